"""Small hand-made problems, shared by tests: layered worlds given by tables, and a class of predictors given by tables.

A state with number i within its layer emits one number in cell i, so that states of a layer have disjoint supports; the
cell's halves are what rewards and predictors tell apart. theta in [-1, 1] moves readings and tilts rewards.
"""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import naive
import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.density.patches import dense
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard, Ledger, observe, try_actions
from s2r_torch.families.layered import LayeredSimulators, LayeredWorld, depth_first
from s2r_torch.graph import Path, StateGraph
from s2r_torch.learning.elimination import Elimination, Judges
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.learning.samples import Separate
from s2r_torch.planner.budget import Budget, practical
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed
from s2r_torch.tours import decisions, readings

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
            reward_width=1 / self.graph.horizon,
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
    sizes = [1] + torch.randint(2, width + 1, (horizon - 1,), generator=g).tolist()
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

    def condition(self, D: Tensor, readings: float | None = None) -> Tensor:
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
    """Tables that are about right in most places, and wrong in others, each member in its own."""
    g = torch.Generator().manual_seed(seed)
    horizon, codes = world.graph.horizon, 2 * world.spec.max_states_per_layer
    to_go = (horizon - torch.arange(horizon, dtype=torch.float64)) / horizon / 2
    size = 1.8 * torch.rand(members, 1, 1, 1, dtype=torch.float64, generator=g) - 0.9
    wrong = torch.rand(members, horizon, codes // 2, 1, dtype=torch.float64, generator=g) < 0.4
    detail = torch.rand(members, horizon, codes, world.graph.num_actions, dtype=torch.float64, generator=g) - 0.5
    gains = 0.2 * torch.rand(members, dtype=torch.float64, generator=g) - 0.1
    tables = to_go[:, None, None] + size * wrong.repeat_interleave(2, 2) + 0.1 * detail
    return class_of(world, tables, gains)


# -- elimination, and its oracle ------------------------------------------------------------------------------------

SIZES = {
    "num_simulators": 3,
    "n_merge": 150,
    "n_dist": 100,
    "n_test": 40,
    "n_train": 120,
    "n_rollouts": 4,
    "n_probes": 2,
    "n_real": 50,
    "epsilon": 0.05,
    "delta": 0.5,
}


def budget_for(world: Tabular, members: int, **changes) -> Budget:
    graph = world.graph
    return practical(graph.horizon, graph.num_actions, members, num_states=graph.num_states, **SIZES | changes)


def judges_of(
    world: Tabular, ensemble: Ensemble, budget: Budget, rule: str, seed: int = 0, on_empty: str = "best", **elimination
) -> Judges:
    """Judges with as many thetas as the budget asks for, evenly spaced, and estimated densities."""
    theta = torch.linspace(-0.9, 0.8, budget.num_simulators, dtype=torch.float64).tolist()
    guard, root = world.guard(theta, "eliminate"), Seed.root(seed)
    D_hat = estimate_densities(world.guard(theta), world.graph, estimator_of(world), budget.n_dist, root)
    settings = Elimination(rule, on_empty, **elimination)
    return Judges(guard, D_hat, world.graph, ensemble, budget, settings, root.child("eliminate"))


def naive_predictors(ensemble: Ensemble, D_hat: Tensor) -> list:
    """The tables as functions (b, h, x) -> [A] of plain numbers."""
    (group,) = ensemble.groups
    tables, gains, functional, D = (t.numpy() for t in (group.tables, group.gains, group.functional, D_hat))
    signal = [sum(w * value for w, value in zip(functional, D[b, 0], strict=True)) for b in range(len(D))]

    @functools.cache
    def values(f: int, b: int, h: int, half: int) -> list[float]:
        return [min(1.0, max(0.0, q + gains[f] * signal[b])) for q in tables[f, h, half].tolist()]

    def predictor(f: int) -> Callable:
        return lambda b, h, x: values(f, b, h, int(2 * x))

    return [predictor(f) for f in range(len(gains))]


def part_of(whole: StateGraph, seed: int) -> tuple[StateGraph, list[int]]:
    """The states on two random lists, and their numbers in the whole graph, in the order of the part."""
    rng = random.Random(seed)
    lists = torch.tensor([[rng.randrange(whole.num_actions) for _ in range(whole.horizon - 1)] for _ in range(2)])
    part = whole.restricted_to(whole.visited(lists).unique().tolist())
    return part, [whole.end(path) for path in part.paths]


def _end(graph: StateGraph, path: Path) -> int | None:
    """The state at the end of a path, step by step; None outside."""
    state = 0
    for a in path:
        state = int(graph.next_state[state, a])
        if state < 0:
            return None
    return state


def oracle_of(judges: Judges) -> naive.World:
    """What the naive algorithms are given: the same samples, drawn through the same streams, as numbers."""
    graph, budget = judges.graph, judges.budget
    fresh = Guard(judges.simulators.inner, Ledger(), "oracle")

    def test_samples(state: int) -> list:
        if judges.sampling is Separate:
            return observe(fresh, graph.paths[state], budget.n_test, judges.seed.child("test", state))[..., 0].tolist()
        if budget.n_test <= budget.n_train:
            return train_samples(state)[0]
        return readings(fresh, graph, budget.n_test, judges.seed.child("test"))[state][..., 0].tolist()

    @functools.cache
    def train_samples(state: int) -> tuple[list, list, list]:
        if judges.sampling is Separate:
            data = try_actions(fresh, graph.paths[state], budget.n_train, judges.seed.child("train", state))
        else:
            data = decisions(fresh, graph, budget.n_train, judges.seed.child("train"))[state]
        return data.x[..., 0].tolist(), data.actions.tolist(), data.rewards.tolist()

    return naive.World(
        predictors=naive_predictors(judges.ensemble, dense(judges.D_hat)),
        B=len(fresh),
        horizon=graph.horizon,
        num_actions=graph.num_actions,
        state_of=functools.partial(_end, graph),
        test_samples=functools.cache(test_samples),
        train_samples=train_samples,
        epsilon_test=budget.epsilon_test,
        rule=judges.elimination.rule,
        numbers={
            "phi": budget.phi,
            "b_bar": budget.b_bar,
            "delta": budget.delta_td,
            "reward_width": judges.ensemble.problem.spec.reward_width,
        },
        on_empty=judges.elimination.on_empty,
    )


def policy_of(world: Tabular, ensemble: Ensemble, chosen: int = 0, n_real: int = 80) -> MetaPolicy:
    return MetaPolicy(ensemble, chosen, estimator_of(world), path_cover(world.graph), n_real)
