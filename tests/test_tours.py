"""Tours: every state gets what it asked for, from few episodes, as if it had episodes of its own."""

import pytest
import torch
from support.worlds import random_world

from s2r_torch.coverage import edges_of, path_cover
from s2r_torch.episodes import Guard, Ledger, observe, try_actions
from s2r_torch.families import make_family
from s2r_torch.rng import Seed
from s2r_torch.tours import decision_tour, decisions, reading_tour, readings

SEED, GRID = Seed.root(0), make_family("grid")
GRAPH = GRID.graph


def guard(ledger: Ledger | None = None, count: int = 3) -> Guard:
    theta = GRID.prior(count, torch.Generator().manual_seed(0))
    return Guard(GRID.simulators(theta, range(count)), ledger or Ledger(), "test")


@pytest.mark.parametrize("seed", range(5))
def test_every_state_gets_what_it_asked_for(seed):
    world = random_world(seed, 4, 3)
    graph, generator = world.graph, torch.Generator().manual_seed(seed)
    wanted = torch.randint(1, 9, (graph.num_states,), generator=generator)
    found = readings(world.guard([0.1, -0.4]), graph, wanted, SEED)
    assert [x.shape for x in found] == [(2, n, 1) for n in wanted.tolist()]
    for path, n, takers in reading_tour(graph, wanted.tolist()):
        assert takers[-1][0] == len(path) and all(count <= n for _, _, count in takers)
        assert all(graph.end(path[:step]) == s for step, s, _ in takers)


@pytest.mark.parametrize("seed", range(5))
def test_every_action_of_every_state_is_taken_once(seed):
    graph = random_world(seed, 4, 3).graph
    walked = [(s, path[step]) for path, takers in decision_tour(graph) for step, s in takers]
    assert sorted(walked) == [(s, a) for s in range(graph.num_states) for a in range(graph.num_actions)]
    for path, takers in decision_tour(graph):
        assert all(graph.end(path[:step]) == s for step, s in takers) and len(path) == takers[-1][0] + 1
    assert {edge for edge in walked if int(graph.layer[edge[0]]) < graph.horizon - 1} == set(edges_of(graph))


def test_what_it_costs():
    ledger = Ledger()
    readings(guard(ledger), GRAPH, 40, SEED)
    assert ledger.counts == {"test": 3 * 40 * len(path_cover(GRAPH))}  # not 9 states' worth
    assert ledger.steps == {"test": 3 * 40 * sum(len(path) for path, _, _ in reading_tour(GRAPH, [40] * 9))}
    ledger = Ledger()
    decisions(guard(ledger), GRAPH, 40, SEED)
    assert ledger.counts == {"test": 3 * 20 * 6}  # six edges of the widest layer
    assert ledger.steps["test"] < 3 * 40 * int((GRAPH.layer + 1).sum()) / 1.5  # of an episode for every decision


def test_readings_have_the_law_of_their_state():
    n = 4000
    found = readings(guard(), GRAPH, n, SEED)
    for s, path in enumerate(GRAPH.paths):
        alone = observe(guard(), path, n, Seed.root(1))
        error = 5 * (2 * alone.var(1) / n).sqrt()
        assert bool(((found[s].mean(1) - alone.mean(1)).abs() < error).all())


@pytest.mark.parametrize("n", [5, 40])
def test_decisions_are_balanced_and_in_random_order(n):
    found = decisions(guard(), GRAPH, n, SEED)
    counts = torch.stack([d.actions.sum(1) for d in found])
    assert counts.min() >= n // 2 and counts.max() <= (n + 1) // 2
    assert not torch.equal(found[0].actions[0], found[0].actions[1])
    halves = torch.stack([d.actions[:, : n // 2].double().mean(1) for d in found])
    assert 0.2 < float(halves.mean()) < 0.8


def test_rewards_belong_to_their_readings():
    n = 3000
    found = decisions(guard(), GRAPH, n, SEED)
    for s, path in enumerate(GRAPH.paths):
        alone = try_actions(guard(), path, n, Seed.root(1))
        for a in range(2):
            here, there = ((d.rewards * (d.actions == a)).mean(1) * 2 for d in (found[s], alone))
            assert bool(((here - there).abs() < 5 * 2 * (0.5 / n) ** 0.5).all())
            first = (found[s].x[..., 0] * found[s].rewards * (found[s].actions == a)).mean(1)
            other = (alone.x[..., 0] * alone.rewards * (alone.actions == a)).mean(1)
            assert bool(((first - other).abs() < 0.2).all())


def test_a_simulator_is_what_it_is_beside_others():
    few = decisions(guard().select([1]), GRAPH, 10, SEED)
    for alone, beside in zip(few, decisions(guard(), GRAPH, 10, SEED), strict=True):
        assert torch.equal(alone.x[0], beside.x[1]) and torch.equal(alone.rewards[0], beside.rewards[1])
        assert torch.equal(alone.actions[0], beside.actions[1])


def test_states_share_no_noise():
    found = readings(guard(count=1), GRAPH, 2000, SEED)
    x = torch.stack([x[0, :, 0] for x in found])
    off = torch.corrcoef(x) - torch.eye(len(x), dtype=x.dtype)
    assert float(off.abs().max()) < 0.12
