r"""System identification: regress theta on what readings look like, then plan for the theta that was found.

    simulators:  statistics u_b of few readings, theta_b known;   m(u) ~ E[theta | u], a ridge regression
    real world:  readings along the path cover, exactly as ours;  theta_hat = m(u)
    act:         argmax_a Q(theta_hat; x, a)

`probe` takes Q from our own predictor at densities simulated at theta_hat, which wants simulators at a chosen theta;
`oracle` from the family's closed form, to tell errors of identification from errors of planning. Neither can say that
a world is unlike all simulators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.comparators.contract import UNLABELLED, Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.policies import Pointwise, StateAware
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.families.contract import GroundTruth, known_truth
from s2r_torch.families.exact import optimal
from s2r_torch.graph import Path, StateGraph
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.schema import Drawable, Settings, Size

RIDGES = torch.logspace(-4, 4, 17, dtype=torch.float64)  # penalties tried, on standardised statistics
PROBE = "identification"  # what simulator episodes at theta_hat are counted as


def statistics(readings: Sequence[Tensor]) -> Tensor:
    """Means of every state, and the pooled spread within states with its square: [B, xi d + 2 d].

    Args:
        readings: one tensor [B, n_s, d] per state; at least one reading each.
    """
    means = torch.cat([x.mean(1) for x in readings], 1)
    within = reduce(torch.add, ((x - x.mean(1, keepdim=True)).square().sum(1) for x in readings))
    variance = within / max(1, sum(x.shape[1] - 1 for x in readings))
    return torch.cat([means, variance.sqrt(), variance], 1)


@dataclass(frozen=True, eq=False)
class Ridge:
    """A linear regression of theta [k] on statistics, its penalty chosen by leave-one-out errors, per parameter."""

    centre: Tensor
    scale: Tensor
    weights: Tensor  # [features, k]
    offset: Tensor  # [k]
    low: Tensor  # [k] range of theta in training: predictions stay inside
    high: Tensor

    @staticmethod
    def fit(u: Tensor, theta: Tensor) -> Ridge:
        """From statistics [B, features] and theta [B, k]."""
        centre, scale = u.mean(0), u.std(0).clamp(min=1e-9)
        left, singular, right = torch.linalg.svd((u - centre) / scale, full_matrices=False)
        target = theta - theta.mean(0)
        best = torch.full((theta.shape[1],), torch.inf, dtype=torch.float64)
        weights = torch.zeros(u.shape[1], theta.shape[1], dtype=torch.float64)
        for penalty in RIDGES:
            shrink = singular.square() / (singular.square() + penalty)
            leverage = (left.square() * shrink).sum(1) + 1 / len(u)
            error = ((target - (left * shrink) @ (left.T @ target)) / (1 - leverage)[:, None]).square().mean(0)
            found = right.T @ ((shrink / singular.clamp(min=1e-12))[:, None] * (left.T @ target))
            weights = torch.where(error < best, found, weights)
            best = torch.minimum(best, error)
        return Ridge(centre, scale, weights, theta.mean(0), theta.amin(0), theta.amax(0))

    def __call__(self, u: Tensor) -> Tensor:
        """theta [B, k]."""
        theta = ((u - self.centre) / self.scale) @ self.weights + self.offset
        return torch.minimum(torch.maximum(theta, self.low), self.high)


@dataclass(frozen=True, eq=False)
class Identifying:
    """n episodes along every sequence of the path cover, all readings used; then plans for theta_hat."""

    policy: MetaPolicy
    cover: tuple[Path, ...]
    samples: tuple[Tensor, ...]  # [xi] of [B, n, d] readings of the training simulators
    theta: Tensor  # [B, k] theirs
    planning: str
    probes: int
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: w n episodes per world; for `probe`, w probes episodes per world in simulators at theta_hat."""
        graph = self.policy.problem.graph
        sequences = tuple((*path, 0) for path in self.cover)
        seen = worlds.walk(sequences, self.n, worlds.seed.child("identification", self.n), UNLABELLED)
        readings = readings_of_states(graph, seen.x, seen.actions[0])
        few = [x[:, : real.shape[1]] for x, real in zip(self.samples, readings, strict=True)]
        theta = Ridge.fit(statistics(few), self.theta)(statistics(readings))
        cost = len(self.cover) * self.n
        if self.planning == "oracle":
            policy = planned(known_truth(worlds.draws.family, theta))
            return Attempt(policy, unlabelled=cost, exact=policy.values)
        simulators = worlds.draws.simulators_of(theta, PROBE)
        seed = worlds.seed.child("identification", self.n, "probe")
        before = simulators.ledger.counts[PROBE]
        D = estimate_densities(simulators, graph, self.policy.estimator, self.probes, seed)
        probed = simulators.ledger.counts[PROBE] - before
        act = self.policy.condition(D, torch.full((graph.num_states,), self.probes)).act
        return Attempt(act, unlabelled=cost, simulator=probed)


def readings_of_states(graph: StateGraph, x: Tensor, actions: Tensor) -> list[Tensor]:
    """All readings [W, n_s, d] of every state, from x [W, n, H, d] along actions [n, H]."""
    states = graph.visited(actions)  # [n, H]
    return [x[:, states == s] for s in range(graph.num_states)]


def planned(truth: GroundTruth) -> StateAware:
    """The best policy of W environments of known truth."""
    Q = optimal(truth)[1]
    known = Pointwise.of(truth)
    return StateAware(truth.graph, Q[:, :, : known.weight.shape[2]].argmax(-1), known.points)


@register_comparator("identification")
@dataclass(frozen=True)
class Identification(Settings):
    """System identification with our own predictor as the planner.

    Args:
        n: episodes along every sequence of the path cover, its one knob.
        probes: simulated readings of every state at theta_hat.
    """

    n: Size = 10
    probes: Annotated[int, Drawable(3)] = 1000

    label = "system identification, our planner"
    planning = "probe"
    access = Access(
        looks="yes",
        simulators="yes, with reward",
        theta="yes",
        chosen="yes",
        graph="discovered there",
        predictors="F at D(theta)",
    )
    learner = Identifying

    def fit(self, known: Known) -> Identifying:
        """No episodes: it uses the training readings."""
        samples = tuple(data.x for data in known.data.samples)
        return Identifying(known.policy, known.policy.cover, samples, known.theta, self.planning, self.probes, self.n)


@register_comparator("identification_oracle")
@dataclass(frozen=True)
class IdentificationOracle(Identification):
    """System identification with the family's closed form as the planner."""

    label = "system identification, oracle planner"
    planning = "oracle"
    access = Access(
        looks="yes", simulators="readings", theta="yes", chosen="closed form", graph="true", predictors="all"
    )
