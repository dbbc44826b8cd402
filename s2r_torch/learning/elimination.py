"""Algorithms 3, 4 and 5: DFS-Learn, Consensus, TD-Eliminate, as pure functions on frozen records.

`Judges` are the B simulators that judge the class F, with their densities; they never change. `Knowledge` is what has
been learned so far; each call returns a new one. States stand for paths (T is shared and known after Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Guard
from s2r_torch.errors import RealizabilityError, SettingError
from s2r_torch.graph import StateGraph, told
from s2r_torch.learning.rules import Evidence, RuleSettings, a_posteriori_accuracy, rule_named
from s2r_torch.learning.samples import Samples, Shared
from s2r_torch.planner.budget import Budget
from s2r_torch.predictors.ensemble import Ensemble, Evaluator
from s2r_torch.rng import Seed


@dataclass(frozen=True)
class Elimination:
    """How predictors are eliminated.

    Args:
        rule: a name in `rules.RULES`.
        on_empty: `error`, or `best` to go on with the member of least pooled risk (theory.md C10).
        b_bar: per state, the bias that the calibrated rule allows; other rules take the budget's.
        earners: members whose policies earned the most in calibration; the choice among survivors is among these, while
            one survives. None chooses among all.
        risk: `[F]` Bellman risk of members in calibration, summed over all states. The choice counts it, too: judges
            see few states where survivors agree on the rest. None counts nothing.
        value_bias: how much V_hat* exceeds the value of its own policy, measured by calibration; heuristic.

    Raises:
        SettingError: an unknown rule or on_empty, before anything is drawn.
    """

    rule: str
    on_empty: str = "error"
    b_bar: tuple[float, ...] | None = None
    earners: tuple[int, ...] | None = None
    risk: tuple[float, ...] | None = None
    value_bias: float = 0.0

    def __post_init__(self):
        rule_named(self.rule)
        if self.on_empty not in ("error", "best"):
            raise SettingError(expected="on_empty error or best", got=repr(self.on_empty), cause="a typo")


@dataclass(frozen=True, eq=False)
class Judges:
    """The simulators that judge F: fixed for a whole run of Algorithm 1."""

    simulators: Guard  # B simulators
    D_hat: Densities  # [B, xi, G]
    graph: StateGraph
    ensemble: Ensemble
    budget: Budget
    elimination: Elimination
    seed: Seed
    on_call: Callable[[str, int, int], None] = lambda name, state, survivors: None
    sampling: type[Samples] = Shared
    _last: list[Evaluator] = field(default_factory=list, init=False)  # never handed on by `replace`

    @cached_property
    def samples(self) -> Samples:
        """What Consensus and TD-Eliminate look at."""
        return self.sampling(self.simulators, self.graph, self.budget.n_test, self.budget.n_train, self.seed)

    def evaluator(self, alive: Tensor) -> Evaluator:
        """The class conditioned on D_hat, without eliminated members; cached, and shrunk as members fall."""
        current = self._last.pop() if self._last else self.ensemble.evaluator(self.D_hat)
        if not current.holds(alive):  # asked about earlier knowledge: those members were dropped
            current = self.ensemble.evaluator(self.D_hat)
        self._last.append(current.keep(alive))
        return self._last[0]


@dataclass(frozen=True)
class Call:
    """One call of TD-Eliminate, for the record."""

    state: int
    survivors: int
    threshold: float
    accuracy: float | None  # that the rule claims for every survivor; None where it claims none
    least_risk: float
    b_bar: float = 0.0  # the bias that f* was allowed
    shown: float | None = None  # accuracy that survivors' spread shows if f* is one; None for trained classes


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What has been learned so far; replaced, never changed."""

    alive: Tensor  # [F] bool, over the whole class for ever
    V_hat: Tensor  # [F, B, xi] values of greedy actions; NaN where not estimated
    learned: Tensor  # [xi] bool: TD-Eliminate was called there
    risk: Tensor  # [F] pooled Bellman risk, summed over learned states, beside that of calibration
    earners: Tensor  # [F] bool, among whom the choice is made while one survives
    history: tuple[Call, ...] = ()

    @staticmethod
    def blank(judges: Judges) -> Knowledge:
        """Nothing eliminated, nothing learned."""
        F, (B, xi) = judges.ensemble.size, judges.D_hat.shape[:2]
        among, risk = judges.elimination.earners, judges.elimination.risk
        return Knowledge(
            alive=torch.ones(F, dtype=torch.bool),
            V_hat=torch.full((F, B, xi), torch.nan, dtype=torch.float64),
            learned=torch.zeros(xi, dtype=torch.bool),
            risk=torch.zeros(F, dtype=torch.float64) if risk is None else torch.tensor(risk, dtype=torch.float64),
            earners=torch.isin(torch.arange(F), torch.tensor(range(F) if among is None else among)),
        )

    def best(self) -> int:
        """The survivor that is deployed: of the earners, else of all, that of least risk."""
        earning = self.alive & self.earners
        return int(torch.where(earning if bool(earning.any()) else self.alive, self.risk, torch.inf).argmin())


def dfs_learn(state: int, knowledge: Knowledge, judges: Judges) -> Knowledge:
    """Learns a state after those of its successors on which the survivors disagree (Algorithm 3, DFS-Learn).

    Args:
        state: where to learn.
        knowledge: what is known at entry.
        judges: simulators, densities, class and budget.

    Returns:
        Knowledge with `state` learned, `alive` smaller or equal.

    Raises:
        RealizabilityError: no predictor survived and `on_empty` is `error`.

    Paper deviation:
        In the last layer the loop is skipped and successors are worth 0 (theory.md C1). A learned successor is not
        tested again: its cached V_hat is used (theory.md F4, C3).

    Cost:
        At most A calls of Consensus per learned state and one TD-Eliminate.
    """
    if int(judges.graph.layer[state]) < judges.graph.horizon - 1:
        for a in range(judges.graph.num_actions):
            successor = int(judges.graph.next_state[state, a])
            if successor < 0 or knowledge.learned[successor]:
                continue
            agrees, knowledge = consensus(successor, knowledge, judges)
            if not agrees:
                knowledge = dfs_learn(successor, knowledge, judges)
    return td_eliminate(state, knowledge, judges)


def consensus(state: int, knowledge: Knowledge, judges: Judges) -> tuple[bool, Knowledge]:
    """Tests whether the surviving predictors agree on a state's value (Algorithm 4, Consensus).

        V_hat[f, b] = mean_i max_a f(D_hat[b], x_i, a)
        agrees      = |V_hat[f, b] - V_hat[g, b]| <= epsilon_test(|p|)  for all survivors f, g and all b

    Args:
        state: the end of p.a, in a layer >= 1.
        knowledge: what is known at entry.
        judges: simulators, densities, class and budget.

    Returns:
        The verdict, and knowledge with V_hat at that state.

    Paper deviation:
        x_i are drawn once per state, not once per call: a state that was asked about before, through another parent or
        in an earlier round, keeps its V_hat and costs nothing. The union bound over all of F and one call per state
        covers every later question to the survivors.

    Cost:
        That of `samples.readings`: none beside those of TD-Eliminate where n_test <= n_train.
    """
    step = int(judges.graph.layer[state])
    if bool(knowledge.V_hat[knowledge.alive, :, state].isnan().any()):
        values = judges.evaluator(knowledge.alive).greedy_values(step, judges.samples.readings(state))
        knowledge = _with_values(knowledge, state, values)
    alive = knowledge.V_hat[knowledge.alive, :, state]
    spread = float((alive.amax(0) - alive.amin(0)).max())
    return spread <= judges.budget.epsilon_test(step - 1), knowledge


def td_eliminate(state: int, knowledge: Knowledge, judges: Judges) -> Knowledge:
    """Keeps the predictors whose Bellman risk at a state is small on the simulators (Algorithm 5, TD-Eliminate).

    Args:
        state: where to learn; V_hat of its successors must be known for the survivors.
        knowledge: what is known at entry.
        judges: simulators, densities, class and budget.

    Returns:
        Knowledge with fewer survivors, V_hat at `state` from the same samples (theory.md C6), and `state` learned.

    Raises:
        RealizabilityError: no predictor survived and `on_empty` is `error`.

    Paper deviation:
        The rule is a choice (`rules.py`); the printed one is `paper`. An empty class is an error, or the member of
        least pooled risk (theory.md C10).

    Cost:
        That of `samples.decisions`: at the first call of a run, those at all states.
    """
    step = int(judges.graph.layer[state])
    data = judges.samples.decisions(state)
    evaluator = judges.evaluator(knowledge.alive)
    last = step == judges.graph.horizon - 1
    V_next = None if last else judges.graph.values_after(knowledge.V_hat, [state]).squeeze(-2)
    risks, V_hat, _ = evaluator.bellman_risks(step, data, V_next)
    entry = knowledge.alive
    evidence = Evidence(risks[entry], judges.budget.n_train, lambda: evaluator.distances(step, data, V_next))
    settings = _settings(state, judges)
    verdict = rule_named(judges.elimination.rule)(evidence, settings)
    alive = entry.clone()
    alive[entry] = verdict.keep
    if not bool(alive.any()):
        alive = _emptied(state, risks, verdict.threshold, entry, judges)
    accuracy = verdict.accuracy if math.isfinite(verdict.accuracy) else None
    shown = a_posteriori_accuracy(evidence, alive[entry], settings) if judges.ensemble.exact else None
    least = float(risks[entry].mean(1).min())
    call = Call(state, int(alive.sum()), verdict.threshold, accuracy, least, settings.b_bar, shown)
    judges.on_call("TD-Eliminate", state, call.survivors)
    learned = knowledge.learned.clone()
    learned[state] = True
    knowledge = replace(
        knowledge,
        alive=alive,
        learned=learned,
        risk=knowledge.risk + risks.mean(1),  # eliminated members become NaN, and stay so
        history=(*knowledge.history, call),
    )
    return _with_values(knowledge, state, V_hat)


def _settings(state: int, judges: Judges) -> RuleSettings:
    """What the rule is told at this state."""
    budget, elimination = judges.budget, judges.elimination
    leaf = int(judges.graph.layer[state]) == judges.graph.horizon - 1
    return RuleSettings(
        phi=budget.phi,
        b_bar=budget.b_bar if elimination.b_bar is None else elimination.b_bar[state],
        num_members=judges.ensemble.size,
        delta=budget.delta_td,
        reward_width=judges.ensemble.problem.spec.reward_width,
        residual_width=1.0 if leaf else 2.0,
    )


def _emptied(state: int, risks: Tensor, threshold: float, entry: Tensor, judges: Judges) -> Tensor:
    """Nobody survived: an error, or the member of least pooled risk."""
    alive = risks[entry]
    if judges.elimination.on_empty != "best":
        excess = (alive - alive.min(0).values).amax(1).min()
        raise RealizabilityError(
            expected=f"a predictor within {threshold:.3g} of the least Bellman risk on every simulator",
            got=f"none of {int(entry.sum())} at state {state} (path {told(judges.graph.paths[state])}); the best "
            f"misses by {float(excess):.3g} on its worst simulator",
            cause="a trained class never holds f*: use rule=calibrated, raise b_bar, or set on_empty=best",
        )
    best = int(torch.where(entry, risks.mean(1), torch.inf).nan_to_num(torch.inf).argmin())
    return torch.arange(len(entry)) == best


def _with_values(knowledge: Knowledge, state: int, V_hat: Tensor) -> Knowledge:
    values = knowledge.V_hat.clone()
    values[:, :, state] = V_hat
    return replace(knowledge, V_hat=values)
