"""A mixture problem whose truth is known, with its exact class."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.density.patches import dense
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families import exact
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.families.noise import bump_density
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed

BANDWIDTH = 0.15


CASES = {
    "2-2-2-full-flat": Mixture(horizon=2),
    "2-2-2-full-stacked": Mixture(horizon=2, base="stacked"),
    "3-2-3-full-stacked": Mixture(horizon=3, num_actions=3, smoothness=3, base="stacked"),
    "3-3-2-full-flat": Mixture(horizon=3, max_states=3),
    "3-3-3-chain-flat": Mixture(horizon=3, max_states=3, num_actions=3, kind="chain"),
    "4-3-4-full-stacked": Mixture(horizon=4, max_states=3, num_actions=4, smoothness=4, base="stacked"),
}


SMALLEST = "2-2-2-full-flat"


@dataclass(frozen=True, eq=False)
class Exact:
    """A mixture problem whose truth is known."""

    mixture: Mixture
    flips: str | int = "all"
    gains: tuple[float, ...] = (1.0, 0.5, 0.0)

    @cached_property
    def grid(self) -> DensityGrid:
        spec = self.mixture.spec
        return DensityGrid.uniform(spec.low, spec.high, 20 * self.mixture.num_cells + 1)

    @cached_property
    def estimator(self) -> DensityEstimator:
        return DensityEstimator(self.grid, make_kernel("legendre", 2), (BANDWIDTH,))

    @cached_property
    def order(self) -> list[int]:
        flips = 2 ** (self.mixture.horizon * self.mixture.num_cells) if self.flips == "all" else self.flips
        return torch.randperm(flips * len(self.gains), generator=Seed.root(1).generator()).tolist()

    @cached_property
    def ensemble(self) -> Ensemble:
        group = MixturePredictors.build(self.mixture, self.grid, self.flips, self.gains).subset(self.order)
        return Ensemble(Problem(self.mixture.spec, self.mixture.graph, self.grid), (group,), exact=True)

    @property
    def f_star(self) -> int:
        return self.order.index(0)

    def theta(self, count: int, seed: Seed) -> Tensor:
        return self.mixture.prior(count, seed.child("theta").generator())

    def guard(self, theta: Tensor, ledger: Ledger | None = None) -> Guard:
        return Guard(self.mixture.simulators(theta, range(len(theta))), ledger or Ledger(), "eliminate")

    def densities(self, theta: Tensor) -> Tensor:
        """The true densities [B, xi, G]."""
        centres = torch.arange(self.mixture.num_cells) + 0.5
        bumps = bump_density((self.grid.nodes - centres) / 0.5, self.mixture.smoothness) / 0.5
        return self.mixture.cell_probabilities(theta) @ bumps.T

    def cells(self, D: Tensor, step: int) -> Tensor:
        """f(D, x, a) [F, B, J, A], one x in each cell: all there is, as predictors see the cell alone."""
        (group,) = self.ensemble.groups
        centres = (torch.arange(self.mixture.num_cells, dtype=torch.float64) + 0.5)[:, None].expand(len(D), -1, 1)
        return group.q(group.condition(dense(D)), step, centres)

    def values(self, D: Tensor, theta: Tensor, state: int) -> Tensor:
        """E max_a f(D, x, a) [F, B] over x at a state of theta's environments."""
        weight = self.mixture.cell_probabilities(theta)[:, state]  # [B, J]
        return (self.cells(D, int(self.mixture.graph.layer[state])).amax(-1) * weight).sum(-1)

    def regrets(self, D: Tensor, theta: Tensor, members: list[int]) -> Tensor:
        """V* - V(pi^f) at the start [len(members), B], exactly."""
        truth = self.mixture.truth(theta)
        best = exact.optimal(truth)[0][:, 0]
        evaluators = (self.ensemble.subset([f]).evaluator(D) for f in members)
        values = [
            exact.policy_values(truth, lambda step, x, e=e: e.q_of(0, step, x).argmax(-1))[:, 0] for e in evaluators
        ]
        return best - torch.stack(values)


def exact_problem(name: str) -> Exact:
    """All flips and gains for the smallest mixture, 48 members for the others."""
    return Exact(CASES[name], "all" if name == SMALLEST else 16)
