"""What policies are worth: exactly where the family knows its ground truth, by episodes where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.assurance.appraisal import Appraisal
from s2r_torch.assurance.rehearsal import policies_after
from s2r_torch.comparators.contract import COMPARATORS, Attempt, Worlds
from s2r_torch.density.patches import Densities, Patches, all_rows
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Act, Guard, Ledger, rollout
from s2r_torch.errors import GraphMismatchError, SimulatorError
from s2r_torch.families import exact
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.draws import Draws
from s2r_torch.graph import StateGraph
from s2r_torch.planner.looking import Looking
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.student import half_width
from s2r_torch.workers.engines import Tell
from s2r_torch.workers.simulators import in_parts, map_simulators

ASKED = 8  # readings of every step that a policy is asked about twice
MOST_WORLDS = 200  # for the curve of value against real-world episodes
WORTHLESS = 0.98  # share of the optimum from which a policy without them leaves densities nothing to add


@dataclass(frozen=True)
class StandIn:
    """What is taken for the optimum where nobody knows the truth of a world."""

    value: float = 1.0
    kind: str = "bound: an episode's total is at most 1"

    @staticmethod
    def of(appraisal: Appraisal | None) -> StandIn:
        """The estimate of dynamic programming on fresh simulators, where there is one."""
        if appraisal is None:
            return StandIn()
        low, high = appraisal.between
        kind = f"estimated on simulators: {max(0.0, low):.3f} to {min(1.0, high):.3f} at 95 %"
        return StandIn(appraisal.optimum, kind)


BOUND = StandIn()


@dataclass(frozen=True)
class Worth:
    """What a deployed meta-policy is worth in held-out worlds."""

    value: float  # mean expected total reward over the worlds
    low: float  # 95 % interval of that mean, from the paired gap to the optimum, cut at 0 and the optimum
    high: float
    optimal: float  # mean over the same worlds, or what stands in for it
    optimal_kind: str  # "exact", or what it is else
    num_worlds: int


def deploy_in(
    meta_policy: MetaPolicy, draws: Draws, count: int, on_world: Callable[[int], None]
) -> tuple[Densities, int, dict[str, int]]:
    """Deploys in `count` fresh worlds, one after another (Algorithm 7).

    Returns:
        D_real [count, xi, G], episodes per world, and how often each verdict on a world was given.
    """
    densities, verdicts, episodes = [], Counter[str](), 0
    payloads = list(enumerate(draws.theta("worlds", count)))
    for w, deployed in enumerate(draws.workers.map(_deploy_in_one, (meta_policy, draws.apart()), payloads)):
        D_real, episodes, verdict, ledger = deployed
        draws.ledger.include(ledger)
        densities.append(D_real)
        verdicts[verdict] += 1
        on_world(w)
    return all_rows(densities), episodes, dict(verdicts)


def _deploy_in_one(
    shared: tuple[MetaPolicy, Draws], payload: tuple[int, Tensor], tell: Tell
) -> tuple[Densities, int, str, Ledger]:
    """D_real [1, xi, G] of one world, its episodes, the verdict on it, and all that was counted."""
    (meta_policy, draws), (w, theta), ledger = shared, payload, Ledger()
    deployed = deploy(meta_policy, draws.world("world", w, theta), ledger, refuse=False)
    D_real = Patches.of(deployed.D_real[None], meta_policy.problem.grid)
    return D_real, deployed.episodes, deployed.likeness.verdict, ledger


def value_deployed(
    meta_policy: MetaPolicy, D_real: Densities, draws: Draws, n_rollouts: int, unknown: StandIn = BOUND
) -> Worth:
    """Compares the policies conditioned on D_real [W, xi, G] with the best possible ones in the same worlds."""
    count = len(D_real)
    theta = draws.theta("worlds", count)
    act = meta_policy.condition(D_real).act
    simulators = draws.simulators("worlds", count).for_purpose("evaluate")
    truth = draws.family.truth(theta)
    value = _values(truth, simulators, act, n_rollouts, draws.seed.child("evaluate"))
    optimal, kind = _optimal(truth, count, unknown)
    mean, low, high = _interval(value, optimal)
    return Worth(mean, low, high, float(optimal.mean()), kind, count)


def value_of_looking(
    meta_policy: MetaPolicy,
    draws: Draws,
    population: int,
    few: int,
    readings: Sequence[int],
    n_rollouts: int,
    unknown: StandIn = BOUND,
) -> Looking:
    """Deploys with ever more readings of every state, in the same worlds, and values each policy.

    The worlds are the first of those in which comparators are valued: 200 of them where values are exact, else `few`.
    """
    theta = draws.theta("population", population)
    theta = theta[: few if draws.family.truth(theta[:1]) is None else MOST_WORLDS]
    seed = draws.seed.child("looking")
    given = meta_policy, draws.apart(), tuple(readings), n_rollouts, seed, unknown
    parts = map_simulators(_values_of_looking, in_parts(draws.simulators_of(theta, "evaluate"), theta), *given)
    values, best = (torch.cat(several, -1) for several in zip(*parts, strict=True))  # [readings, B], [B]
    mean, low, high = zip(*(_interval(value, best) for value in values), strict=True)
    episodes = tuple(len(meta_policy.cover) * n for n in readings)
    return Looking(tuple(readings), episodes, mean, low, high, float(best.mean()))


def _values_of_looking(
    simulators: Guard,
    theta: Tensor,
    meta_policy: MetaPolicy,
    draws: Draws,
    readings: Sequence[int],
    n_rollouts: int,
    seed: Seed,
    unknown: StandIn,
) -> tuple[Tensor, Tensor]:
    """Values of some worlds' policies after every number of readings [readings, B], and the best possible ones [B]."""
    truth, own = draws.family.truth(theta), seed.child("values")
    policies = policies_after(meta_policy, simulators, readings, seed)
    found = [_values(truth, simulators, policy.act, n_rollouts, own) for policy in policies]
    return torch.stack(found), _optimal(truth, len(theta), unknown)[0]


def _values(truth: GroundTruth | None, simulators: Guard, act: Act, n_rollouts: int, seed: Seed) -> Tensor:
    """Values of policies [B]: exact, or by episodes where nobody knows the truth."""
    if truth is None:
        return rollout(simulators, act, n_rollouts, seed).returns.mean(1)
    return exact.policy_values(truth, act)[:, 0]


def _optimal(truth: GroundTruth | None, count: int, unknown: StandIn) -> tuple[Tensor, str]:
    """The best possible values [B], and what kind of optimum that is."""
    if truth is None:
        return torch.full((count,), unknown.value, dtype=torch.float64), unknown.kind
    return exact.optimal(truth)[0][:, 0], "exact"


def _interval(value: Tensor, optimal: Tensor) -> tuple[float, float, float]:
    """Mean of values [B], and its 95 % interval from the paired gap to the optimum, cut at 0 and the optimum.

    What stands in for an unknown optimum may lie below the mean.
    """
    half, mean = half_width(optimal - value), float(value.mean())
    return mean, max(0.0, mean - half), min(max(mean, float(optimal.mean())), mean + half)


def member_regrets(ensemble: Ensemble, D: Tensor, truth: GroundTruth, readings: float | None = None) -> Tensor:
    """What every member's policy loses, as a share of the optimum, over environments with densities D [B, xi, G]: [F].

    Exact values of the policies conditioned on D, of so many readings, averaged over the environments of `truth`.
    """
    evaluator = ensemble.evaluator(D, readings)
    optimal = float(exact.optimal(truth)[0][:, 0].mean())

    def value(member: int) -> float:
        return float(exact.policy_values(truth, evaluator.policy_of(member))[:, 0].mean())

    return torch.tensor([1 - value(f) / optimal for f in range(ensemble.size)], dtype=torch.float64)


def value_attempts(
    attempts: dict[str, Attempt], worlds: Worlds, n_rollouts: int, unknown: StandIn = BOUND
) -> dict[str, float]:
    """Mean values over the worlds, by name: exact where the family can, else by episodes.

    `optimal` is among them: the best possible policy's, or what stands in for it.
    """
    few = max(1, n_rollouts // 10)
    found = {name: float(attempt_values(attempt, worlds, few).mean()) for name, attempt in attempts.items()}
    return {"optimal": float(optimal_values(worlds, unknown).mean()), **found}


def best_without_looking(values: Mapping[str, float]) -> tuple[str, float] | None:
    """The comparator, and its value, that earns most of those that see nothing of the real world; None without one.

    It is what the worth of densities is measured against.
    """
    unseeing = {name: value for name, value in values.items() if name in COMPARATORS and sees_nothing(name)}
    return max(unseeing.items(), key=lambda item: item[1], default=None)


def sees_nothing(comparator: str) -> bool:
    """Whether a comparator neither looks nor is paid in the real world before it acts."""
    access = getattr(COMPARATORS[comparator], "access", None)
    return access is not None and access.looks == access.reward == "no"


def attempt_values(attempt: Attempt, worlds: Worlds, n_rollouts: int) -> Tensor:
    """The value [W] of an attempt in every world: exact, or of n_rollouts episodes each where it cannot be."""
    truth = worlds.truth
    if truth is not None and attempt.exact:
        return attempt.exact(truth)
    if truth is not None and reactive(attempt.act, truth):
        return exact.policy_values(truth, attempt.act)[:, 0]
    seed = worlds.seed.child("value")
    return rollout(worlds.guard(worlds.purpose), attempt.act, n_rollouts, seed).returns.mean(1)


def reactive(act: Act, truth: GroundTruth) -> bool:
    """Whether a policy answers by (step, x) alone: alike when it is asked in the other order, which no episode has.

    In between it sees an episode of other states and readings, which it forgets if it is reactive; last, single ones.
    """
    if getattr(act, "has_memory", False):
        return False
    steps = range(truth.graph.horizon)
    spread = torch.linspace(0, truth.x.shape[2] - 1, ASKED).long()
    few, others = ([truth.x[:, truth.graph.states_of(h)[i]][:, spread] for h in steps] for i in (0, -1))
    try:
        one, _, other = (
            {h: act(h, seen[h]).clone() for h in order}  # it may be a buffer that is used again
            for order, seen in ((steps, few), (steps, [x.flip(1) for x in others]), (reversed(steps), few))
        )
        alone = {h: act(h, few[h][:, :1]) for h in steps}
    except SimulatorError:  # what it remembers does not fit this order; a fault shows again in episodes
        return False
    return all(torch.equal(one[h], other[h]) and torch.equal(one[h][:, :1], alone[h]) for h in steps)


def optimal_values(worlds: Worlds, unknown: StandIn = BOUND) -> Tensor:
    """The best possible value [W] of every world, or what stands in for it where nobody knows it."""
    return _optimal(worlds.truth, len(worlds), unknown)[0]


def check_graph(graph: StateGraph, draws: Draws) -> str | None:
    """A sentence if the discovered graph differs from the true one, where the family knows it; for the report only."""
    truth = draws.family.truth(draws.theta("worlds", 1))
    if truth is None:
        return None
    try:
        graph.require_same(truth.graph)
    except GraphMismatchError as error:
        return f"the discovered state graph is not the true one: {error}"
    return None


def worth_of_looking(share: float, values: dict[str, float]) -> list[str]:
    """What the best policy that does not look says of one that does, which reaches this share of the optimum."""
    unseeing = best_without_looking(values)
    if not unseeing:
        return []
    label, theirs = COMPARATORS[unseeing[0]].label, unseeing[1] / values["optimal"]
    if theirs >= WORTHLESS:
        return [f"{label} does as well: on this family densities are not needed"]
    if theirs >= share:
        return [
            f"deploy the {label}, not this policy: it reaches {theirs:.3f} of the optimum without looking, the policy "
            f"{share:.3f}; densities are needed here, and learning fell short of what they tell"
        ]
    return []
