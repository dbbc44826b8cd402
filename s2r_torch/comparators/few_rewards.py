r"""Few rewards: look first, as ever, and let a handful of rewarded episodes choose among what looking leaves open.

    simulators:  chosen_b = the member of F of least Bellman risk in simulator b alone
    real world:  D_real from n_real readings of every state, without reward;  candidates: ours, then the members that
                 the simulators with the most similar densities chose, but for those that act alike
    rounds:      the same number of rewarded episodes for every candidate that is left;  one goes when another's lower
                 confidence bound exceeds its upper one;  the best mean acts in the end, on ties the earlier candidate

The paper's future work. It matters where densities do not tell everything (mixture, hidden_sign=last). Its worlds show
rewards, so the promise is another one: nothing that was certified for Deploy holds for it, and it takes a world of
another type (`Worlds.rewarded`), which `deploy` does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.assurance.confidence import lower, upper
from s2r_torch.comparators.contract import (
    REWARDED,
    UNLABELLED,
    Access,
    Attempt,
    Drawn,
    Known,
    Worlds,
    register_comparator,
)
from s2r_torch.comparators.identification import readings_of_states
from s2r_torch.comparators.policies import each
from s2r_torch.coverage import typical
from s2r_torch.density.estimator import sup_distance
from s2r_torch.density.patches import Densities, dense
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Act, Guard, Ledger, rollout
from s2r_torch.learning.calibration import bellman_table
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import Drawable, Settings, Share, Size
from s2r_torch.workers.simulators import AT_ONCE

ROUNDS = 4
ALIKE = 0.99  # share of readings on which two policies must agree to count as one


def race(world: Guard, acts: Sequence[Act], budget: int, delta: float, seed: Seed) -> int:
    """Which policy earns most, after at most `budget` rewarded episodes; fewer where one is left before.

    Every round's share goes evenly to those that are left; bounds hold with probability 1 - delta for all together.
    """
    returns: list[list[float]] = [[] for _ in acts]
    alive, share = list(range(len(acts))), delta / (2 * len(acts) * ROUNDS)
    for number in range(ROUNDS):
        each_one = budget * (number + 1) // ROUNDS - budget * number // ROUNDS
        for place, i in enumerate(alive):
            episodes = each_one // len(alive) + (place < each_one % len(alive))
            if episodes:
                seen = rollout(world, acts[i], episodes, seed.child(number, i)).returns[0]
                returns[i] += seen.clamp(0, 1).tolist()
        if min(len(returns[i]) for i in alive) >= 2:
            so_far = {i: torch.tensor(returns[i], dtype=torch.float64) for i in alive}
            least = max(float(lower(x, share)) for x in so_far.values())
            alive = [i for i in alive if float(upper(so_far[i], share)) >= least]
        if len(alive) == 1:
            break
    means = [sum(returns[i]) / len(returns[i]) if returns[i] else 0.0 for i in range(len(acts))]
    return max(alive, key=lambda i: means[i]) if budget else 0


@dataclass(frozen=True, eq=False)
class Racing:
    """Looks like Deploy, then n rewarded episodes."""

    policy: MetaPolicy
    ensemble: Ensemble  # members that may act: the policy's own first
    D: Densities  # [B, xi, G] of the simulators
    chosen: Tensor  # [B] the member that each of them prefers
    near: int
    most: int
    delta: float
    looks: int
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: w looks episodes without reward per world, then at most n with."""
        seed, cover = worlds.seed.child("few_rewards", self.n), self.policy.cover
        looked = worlds.walk(tuple((*path, 0) for path in cover), self.looks, seed.child("look"), UNLABELLED)
        readings = readings_of_states(self.policy.problem.graph, looked.x, looked.actions[0])
        D_real = self.policy.densities(readings)
        acts, ledger = [], Ledger()
        for w in range(len(worlds)):
            candidates = self._candidates(D_real[w], [x[w] for x in readings])
            acts.append(candidates[race(worlds.rewarded(w, ledger), candidates, self.n, self.delta, seed)])
        spent = ledger.counts[REWARDED]
        worlds.draws.ledger.take_over(ledger, REWARDED)
        return Attempt(each(acts), unlabelled=len(cover) * self.looks, rewarded=spent / len(worlds))

    def _candidates(self, D_real: Tensor, readings: Sequence[Tensor]) -> list[Act]:
        """Ours first, then those that similar simulators chose, most often first; no two that act alike on readings."""
        distance = torch.cat([sup_distance(dense(part), D_real).amax(1) for part in self.D.split(AT_ONCE)])
        votes = Counter(self.chosen[distance.argsort()[: self.near]].tolist())
        layer = self.policy.problem.graph.layer.tolist()
        many = typical(torch.tensor([len(x) for x in readings]))
        kept: list[Act] = []
        taken: list[Tensor] = []
        for member in (0, *(member for member, _ in votes.most_common())):
            act = self.ensemble.subset([member]).evaluator(D_real[None], many).policy_of(0)
            actions = torch.cat([act(step, x[None])[0] for step, x in zip(layer, readings, strict=True)])
            if all(float((actions == other).double().mean()) < ALIKE for other in taken):
                kept.append(act)
                taken.append(actions)
            if len(kept) == self.most:
                break
        return kept


@register_comparator("few_rewards")
@dataclass(frozen=True)
class FewRewards(Settings):
    """Our policy, and a race among what looking leaves open.

    Args:
        n: rewarded episodes at most, its one knob.
        looks: episodes along every sequence of the path cover before that, without reward; None for the policy's own
            n_real.
        near: simulators whose preferences count, those of the most similar densities.
        most: candidates at most.
        delta: probability that the best one is dropped.
        samples: transitions per state and simulator that say what each of them prefers.
    """

    n: Size = 20
    looks: Annotated[int, Drawable(3)] | None = None
    near: Size = 32
    most: Size = 4
    delta: Share = 0.1
    samples: Size = 500

    label = "few rewards, after looking"
    access = Access(
        reward="few", looks="yes", simulators="yes, with reward", graph="discovered there", predictors="F trained"
    )
    learner = Racing

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """What says which member each training simulator prefers."""
        return (Drawn("few_rewards", None, decisions=self.samples),)

    def fit(self, known: Known) -> Racing:
        """Cost: xi samples episodes in every training simulator."""
        simulators = known.draws.simulators("train", len(known.data.D)).for_purpose("few_rewards")
        seed = known.seed.child("few_rewards")
        risks = bellman_table(simulators, known.data.D, known.ensemble, self.samples, seed).risks
        chosen = risks.sum(2).argmin(0)  # [B]
        acting = known.policy.ensemble.subset([known.policy.chosen])
        members = chosen.unique().tolist()
        place = {member: 1 + i for i, member in enumerate(members)}
        return Racing(
            known.policy,
            Ensemble(known.problem, (*acting.groups, *known.ensemble.subset(members).groups)),
            known.data.D,
            torch.tensor([place[member] for member in chosen.tolist()]),
            self.near,
            self.most,
            self.delta,
            self.looks or known.policy.n_real,
            self.n,
        )
