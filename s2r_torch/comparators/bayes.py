r"""The Bayes line: what looking without reward, then acting, can give at most, if prior and likelihood are known.

    p(theta | looks)  by Bayes' rule on a grid of theta
    a(s, x) = argmax_a  E[ weight_theta(s, x) (r_theta(s, x, a) + V_theta(T(s, a))) | looks ],   backward over layers

V_theta is the value of the actions below in the environment of theta. Where rewards depend on (s, a) alone this is the
best of all policies that looked and then act without looking again. Where they depend on x (mixture), the reading acted
on is used as well, but not what earlier readings of the same episode add. It is no method: it knows the prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.comparators.contract import UNLABELLED, Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.policies import Pointwise, StateAware
from s2r_torch.coverage import path_cover
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family, Likelihood, known_truth
from s2r_torch.graph import Path
from s2r_torch.schema import Settings, Size


def best_actions(posterior: Tensor, known: Pointwise) -> Tensor:
    """The actions [W, xi, m] above, for posteriors [W, K] over K environments."""
    graph, (W, K) = known.graph, posterior.shape
    _, xi, m, _ = known.reward.shape
    actions = torch.zeros(W, xi, m, dtype=torch.int64)
    V = torch.zeros(W, K, xi, dtype=torch.float64)
    for _, s in graph.backward():
        total = known.reward[:, s] + graph.values_after(V, [s])  # [W, K, m, A]
        actions[:, s] = torch.einsum("wk,km,wkma->wma", posterior, known.weight[:, s], total).argmax(-1)
        taken = total.gather(-1, actions[:, None, s, :, None].expand(W, K, m, 1)).squeeze(-1)
        V[:, :, s] = (taken * known.weight[:, s]).sum(-1)
    return actions


@dataclass(frozen=True)
class BayesLine:
    """n looks along the path cover, in turn; then the best actions under the posterior."""

    cover: tuple[Path, ...]
    points: int
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: n episodes per world."""
        family = worlds.draws.family
        likelihood = likelihood_of(family)
        theta = likelihood.payoff_grid(self.points)
        known = Pointwise.of(known_truth(family, theta))
        sequences = tuple((*self.cover[i % len(self.cover)], 0) for i in range(self.n))
        seen = worlds.walk(sequences, 1, worlds.seed.child("bayes", self.n), UNLABELLED)
        states = known.graph.visited(torch.tensor(sequences)).flatten()  # [n H]
        evidence = likelihood.log_likelihood(theta, states, seen.x.flatten(1, 2))
        policy = StateAware(known.graph, best_actions(evidence.softmax(1), known), known.points)
        return Attempt(policy, unlabelled=self.n, exact=policy.values)


def likelihood_of(family: Family) -> Likelihood:
    """The family, as one that knows its likelihood; else SettingError."""
    if isinstance(family, Likelihood):
        return family
    raise SettingError(
        expected="a family that knows its likelihood (families.contract.Likelihood)",
        got=family.name,
        cause="leave the Bayes line out where nobody knows it",
    )


@register_comparator("bayes")
@dataclass(frozen=True)
class Bayes(Settings):
    """The limit that every method without reward is measured against.

    Args:
        n: looks in all, its one knob.
        points: of the grid of theta.

    Raises:
        SettingError: (fit) a family that does not know its likelihood.
    """

    n: Size = 10
    points: Size = 64

    label = "Bayes line (knows prior and likelihood)"
    access = Access(
        looks="yes", simulators="prior + likelihood", theta="yes", chosen="yes", graph="true", predictors="all"
    )
    learner = BayesLine

    def fit(self, known: Known) -> BayesLine:
        """No episodes."""
        likelihood_of(known.draws.family)
        return BayesLine(path_cover(known.problem.graph), self.points, self.n)
