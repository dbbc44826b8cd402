"""Small hand-made problems, shared by tests: layered worlds given by tables, and a class of predictors given by tables.

A state with number i within its layer emits one number in cell i, so that states of a layer have disjoint supports; the
cell's halves are what rewards and predictors tell apart. theta in [-1, 1] moves readings and tilts rewards.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, StateGraph
from s2r_torch.density import DensityEstimator
from s2r_torch.density_grid import DensityGrid
from s2r_torch.envs.layered import LayeredSimulators, LayeredWorld, depth_first
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.kernels import make_kernel
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets import Problem
from s2r_torch.rng import Seed

SHIFT, SPREAD = 0.1, 0.35  # of readings: by theta, and by noise; together below half a cell


@dataclass(frozen=True, eq=False)
class Tabular:
    """A layered world given by tables (`envs.layered.LayeredModel`)."""

    graph: StateGraph
    number: Tensor  # [xi] of each state within its layer
    rewards: Tensor  # [xi, 2, A] mean reward at theta = 0, in [0, 1 / H]
    tilt: Tensor  # [xi, 2, A] what theta adds
    reward_scale: float = 1.0

    @property
    def spec(self) -> ProblemSpec:
        width = max(self.graph.states_per_layer)
        return ProblemSpec(
            self.graph.num_actions,
            self.graph.horizon,
            width,
            1,
            (0.0,),
            (float(width),),
            reward_scale=self.reward_scale,
        )

    @property
    def payment(self) -> float:
        return self.reward_scale / self.graph.horizon

    def simulators(self, theta: Sequence[float], ids: Sequence[int] | None = None) -> LayeredSimulators:
        theta = torch.tensor(theta, dtype=torch.float64)[:, None]
        return LayeredSimulators(self, theta, ids or range(len(theta)))

    def guard(self, theta: Sequence[float], purpose: str = "test", ledger: Ledger | None = None) -> Guard:
        return Guard(self.simulators(theta), ledger or Ledger(), purpose)

    def world(self, theta: float, seed: int) -> LayeredWorld:
        return LayeredWorld(self, torch.tensor([theta], dtype=torch.float64), torch.Generator().manual_seed(seed))

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        n = state.shape[1]
        noise = torch.stack([torch.rand(2, n, dtype=torch.float64, generator=g).sum(0) - 1 for g in generators])
        return (self.number[state] + 0.5 + SHIFT * theta + SPREAD * noise)[..., None]

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        half = code(x) % 2
        return (self.rewards[state, half, actions] + theta * self.tilt[state, half, actions]) * self.reward_scale


def code(x: Tensor) -> Tensor:
    """Which half of which cell an observation [..., 1] lies in: [...] int64."""
    return (2 * x[..., 0]).floor().long()


def layered(moves: Sequence[Sequence[Sequence[int]]], num_actions: int) -> tuple[StateGraph, Tensor]:
    """The graph of moves[h][i][a], a successor in layer h + 1, and the number [xi] of each state within its layer."""
    horizon = len(moves) + 1

    def following(place: tuple[int, int]) -> list[tuple[int, int]]:
        h, i = place
        return [(h + 1, moves[h][i][a] if h < horizon - 1 else 0) for a in range(num_actions)]

    graph, _ = depth_first((0, 0), following, horizon)
    number = [graph.states_of(h).index(s) for s, h in enumerate(graph.layer.tolist())]
    return graph, torch.tensor(number)


def random_world(seed: int, horizon: int, num_actions: int, width: int = 3) -> Tabular:
    """A random layered world, rewards included."""
    g = torch.Generator().manual_seed(seed)
    sizes = [1] + torch.randint(1, width + 1, (horizon - 1,), generator=g).tolist()
    moves = [
        torch.randint(after, (size, num_actions), generator=g).tolist() for size, after in itertools.pairwise(sizes)
    ]
    graph, number = layered(moves, num_actions)
    shape = (graph.num_states, 2, num_actions)
    rewards = (0.3 + 0.4 * torch.rand(shape, dtype=torch.float64, generator=g)) / horizon
    tilt = (torch.rand(shape, dtype=torch.float64, generator=g) - 0.5) * 0.6 / horizon
    return Tabular(graph, number, rewards, tilt)


class TabularPredictors:
    """f(D, x, a) = clip(table[f, h, code(x), a] + gain[f] signal(D)), signal = functional . D of the start state."""

    def __init__(self, tables: Tensor, gains: Tensor, functional: Tensor):
        self.tables, self.gains, self.functional = tables, gains, functional  # [F, H, codes, A], [F], [G]
        self.size = len(gains)

    def condition(self, D: Tensor) -> Tensor:
        return self.gains[:, None] * (D[:, 0] @ self.functional)

    def q(self, conditioned: Tensor, step: int, x: Tensor) -> Tensor:
        return (self.tables[:, step, code(x)] + conditioned[:, :, None, None]).clamp(0, 1)

    def subset(self, members: Sequence[int]) -> "TabularPredictors":
        members = list(members)
        return TabularPredictors(self.tables[members], self.gains[members], self.functional)

    def lipschitz_bound(self) -> Tensor:
        return self.gains.abs() * self.functional.abs().sum()


def grid_of(world: Tabular) -> DensityGrid:
    spec = world.spec
    return DensityGrid.uniform(spec.low, spec.high, 8 * spec.max_states_per_layer + 1)


def estimator_of(world: Tabular, order: float = 2) -> DensityEstimator:
    return DensityEstimator(grid_of(world), make_kernel("legendre", order), (0.25,))


def class_of(world: Tabular, tables: Tensor, gains: Tensor | None = None) -> Ensemble:
    """The class of these tables [F, H, codes, A]; signal(D) is about the mean reading's place in its cell."""
    grid = grid_of(world)
    gains = torch.zeros(len(tables), dtype=torch.float64) if gains is None else gains
    functional = grid.weights * (grid.nodes[:, 0] - 0.5)
    return Ensemble(Problem(world.spec, world.graph, grid), (TabularPredictors(tables, gains, functional),))


def random_class(world: Tabular, members: int, seed: int) -> Ensemble:
    """Random tables near the size of a layer's reward-to-go, so that some members are nearly right."""
    g = torch.Generator().manual_seed(seed)
    horizon, codes = world.graph.horizon, 2 * world.spec.max_states_per_layer
    shape = (members, horizon, codes, world.graph.num_actions)
    to_go = (horizon - torch.arange(horizon, dtype=torch.float64)) / horizon / 2
    spread = torch.rand(members, dtype=torch.float64, generator=g)
    noise = (torch.rand(shape, dtype=torch.float64, generator=g) - 0.5) * spread[:, None, None, None]
    gains = 2 * torch.rand(members, dtype=torch.float64, generator=g) - 1
    return class_of(world, to_go[:, None, None] + noise, gains)


def seed_of(number: int) -> Seed:
    return Seed.root(number)
