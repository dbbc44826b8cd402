"""A1 and A2 err as often as is stated where they hold, whatever the noise: of payments, of values, of simulators."""

import math

import pytest
import torch
from scipy import stats
from support.worlds import Tabular, class_of, grid_of, layered

from s2r_torch.assurance.differences import _difference, _values_apart, _verdict, check_realizability, in_halves
from s2r_torch.assurance.findings import DOUBTFUL, VIOLATED, DiagnosticSettings
from s2r_torch.rng import Seed
from s2r_torch.tours import decisions

REACH = torch.tensor([0.05], dtype=torch.float64)
THETA = torch.linspace(-0.1, 0.1, 8, dtype=torch.float64).tolist()


class Even(Tabular):
    """Readings that are uniform in the cell of their state."""

    def emit(self, theta, state, generators):
        u = torch.stack([torch.rand(state.shape[1], dtype=torch.float64, generator=g) for g in generators])
        return (self.number[state] + u)[..., None]


def even_world():
    """Three layers whose payments depend on the half of a cell: V of a state must be estimated."""
    graph, number = layered([[[0, 1]], [[0, 1], [1, 0]]], 2)
    g = torch.Generator().manual_seed(1)
    rewards = 0.1 + 0.2 * torch.rand(graph.num_states, 2, 2, dtype=torch.float64, generator=g)
    return Even(graph, number, rewards, torch.zeros_like(rewards))


def optimum_of(world):
    """Q* [1, H, codes, A] and V* [xi], by dynamic programming: both halves of a cell are equally likely."""
    graph, number = world.graph, world.number
    Q, V = torch.zeros(1, graph.horizon, 4, 2, dtype=torch.float64), torch.zeros(graph.num_states, dtype=torch.float64)
    for layer, s in graph.backward():
        q = world.rewards[s] + (V[graph.next_state[s]] if layer + 1 < graph.horizon else 0.0)
        Q[0, layer, 2 * int(number[s]) : 2 * int(number[s]) + 2], V[s] = q, q.amax(-1).mean()
    return Q, V


def paid_their_means(monkeypatch):
    monkeypatch.setattr("s2r_torch.families.layered.bernoulli", lambda mean, generators: mean)


@pytest.mark.parametrize("spread", [1.0, 10.0], ids=["equal", "unequal"])
@pytest.mark.parametrize("places", [1, 44])
def test_differences_of_few_simulators_are_real_as_often_as_is_stated(places, spread):
    """8 simulators that differ by nothing, some noisier than others. (z > 4 errs in 11 % of runs with 44 places.)"""
    g, runs = torch.Generator().manual_seed(places), 20_000 // places
    scale = torch.linspace(0.001, 0.001 * spread, 8, dtype=torch.float64)
    squares = scale[:, None] * torch.randn(runs, 8, places, dtype=torch.float64, generator=g)
    verdicts = [
        _verdict({s: _difference(row[:, s]) for s in range(places)}, DiagnosticSettings())[0] for row in squares
    ]
    wrong = sum(verdict in (DOUBTFUL, VIOLATED) for verdict in verdicts)
    assert wrong <= 0.01 * runs + 3 * math.sqrt(0.01 * runs)


@pytest.mark.parametrize("places", [1, 20])
def test_no_difference_is_larger_than_is_said_in_95_percent(places):
    """The largest difference has the size that counts; the others are smaller."""
    g, runs = torch.Generator().manual_seed(0), 5000 // places
    true = torch.linspace(0.02, 0, places, dtype=torch.float64).square()
    squares = true + 1e-4 * torch.randn(runs, 8, places, dtype=torch.float64, generator=g)
    most = torch.tensor([max(_difference(row[:, s]).most for s in range(places)) for row in squares])
    assert float((most < 0.02).double().mean()) <= 0.05 + 3 * math.sqrt(0.05 / runs)


@pytest.mark.parametrize("random", [True, False], ids=["by chance", "their means"])
def test_the_optimum_itself_is_realizable(random, monkeypatch):
    """The class is {Q*}. Where payments are no noise, that of estimated values is all that is left."""
    if not random:
        paid_their_means(monkeypatch)
    world, runs = even_world(), 120
    ensemble = class_of(world, optimum_of(world)[0])
    D = torch.zeros(8, world.graph.num_states, len(grid_of(world).weights))
    p = []
    for k in range(runs):
        drawn = decisions(world.guard(THETA), world.graph, 200, Seed.root(k))
        data = tuple(in_halves(of_state) for of_state in drawn)
        found = check_realizability(data, D.double(), ensemble, REACH, DiagnosticSettings(n=200))
        p.append(found.numbers["p"])
    assert sum(value <= 0.05 for value in p) <= 0.05 * runs + 3 * math.sqrt(0.05 * runs)


def test_errors_of_values_from_either_half_are_uncorrelated():
    """Of a state whose actions pay alike, so that chance picks one: what picks is not what the other half values."""
    world = even_world()
    world.rewards[:] = 0.2
    guard, _, V = world.guard([0.0] * 2000), *optimum_of(world)
    data = tuple(in_halves(drawn) for drawn in decisions(guard, world.graph, 60, Seed.root(0)))
    one, other = (values - V for values in _values_apart(data, class_of(world, optimum_of(world)[0]), REACH))
    for products in (one * other)[:, world.graph.layer == 2].T:
        assert float(products.mean().abs()) < 3.5 * float(products.std()) / math.sqrt(len(products))
    assert float(one.abs().mean()) > 0.001


def test_the_largest_difference_that_is_not_excluded_is_the_end_of_a_one_sided_interval():
    squares = 0.01 + 0.02 * torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of_scipy = stats.ttest_1samp(squares.numpy(), 0.0, alternative="less").confidence_interval(0.95)
    assert _difference(squares).most == pytest.approx(math.sqrt(of_scipy.high))
    assert _difference(squares).size == pytest.approx(math.sqrt(float(squares.mean())))
