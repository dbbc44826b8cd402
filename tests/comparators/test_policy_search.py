"""Policy search without densities, against exact values of every family that has them."""

import pytest
import torch

from s2r_torch.comparators.policy_search import GridPolicy, PolicySearch
from s2r_torch.density.grid import DensityGrid
from s2r_torch.episodes import Ledger, Transitions
from s2r_torch.families import exact, make_family
from s2r_torch.families.draws import Draws
from s2r_torch.graph import StateGraph
from s2r_torch.rng import Seed
from s2r_torch.tours import decisions

SEED = Seed.root(0)


def searched(name: str, count: int = 128) -> tuple[PolicySearch, Draws]:
    """The search on draws of a family whose graph is known."""
    draws = Draws(make_family(name), SEED, Ledger())
    graph, spec = draws.family.truth(draws.theta("train", 1)).graph, draws.family.spec
    samples = decisions(draws.simulators("train", count), graph, 64, SEED.child("samples"))
    return PolicySearch(graph, samples, DensityGrid.uniform(spec.low, spec.high, 24)), draws


def value(draws: Draws, policy: GridPolicy) -> float:
    truth = draws.family.truth(draws.theta("population", 1000))
    return float(exact.policy_values(truth, policy.act)[:, 0].mean())


def test_it_finds_what_a_list_earns_where_readings_tell_no_more():
    """On grid the best list earns 0.5, a random policy 0.475, and nothing that looks at x alone much more."""
    search, draws = searched("grid")
    assert value(draws, search.best(3)) > 0.49


def test_further_sweeps_go_where_the_policy_goes():
    """On the lake most states are passed by nobody who means well: weighed alike, they mislead."""
    search, draws = searched("frozenlake", count=64)
    alike, _ = search.swept(torch.ones(64, search.graph.num_states, dtype=torch.float64))
    assert value(draws, search.best(3)) > value(draws, alike) + 0.1


def test_states_passed_are_those_of_the_graph():
    """Of a policy that always takes action 0: the states of that list, with probability 1."""
    search, draws = searched("grid", count=8)
    H, A, G = search.graph.horizon, 2, search.grid.num_points
    always = GridPolicy(search.grid, (torch.tensor([1.0, 0.0]).double(),) * H, (torch.zeros(A, G).double(),) * H)
    passed = search.passed(always)
    visited = search.graph.visited(torch.zeros(H, dtype=torch.int64)).tolist()
    assert passed[:, visited].eq(1).all() and float(passed.sum()) == pytest.approx(8 * H)


def test_a_reading_that_tells_the_payoff_is_used():
    """One step, x in [0, 1], action 1 pays where x > 1/2: a list earns 1/2, the search nearly all."""
    generator = SEED.child("one step").generator()
    x = torch.rand(16, 200, 1, generator=generator, dtype=torch.float64)
    actions = torch.arange(200).expand(16, -1) % 2
    rewards = (actions == (x[..., 0] > 0.5)).double()
    graph = StateGraph(torch.full((1, 2), -1), torch.zeros(1, dtype=torch.int64), ((),))
    search = PolicySearch(graph, [Transitions(x, actions, rewards)], DensityGrid.uniform((0.0,), (1.0,), 33))
    policy = search.best(1)
    fresh = torch.linspace(0.01, 0.99, 99, dtype=torch.float64).view(1, -1, 1)
    right = policy.act(0, fresh) == (fresh[..., 0] > 0.5).long()
    assert right.double().mean() > 0.95
