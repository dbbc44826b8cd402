"""Policies that know their own actions, valued by recursion on the graph and by episodes."""

import itertools

import pytest
import torch
from support.known import worlds_of

from s2r_torch.comparators.policies import Pointwise, StateAware, each, follow, follow_each
from s2r_torch.episodes import rollout
from s2r_torch.errors import SettingError
from s2r_torch.families import exact, make_family
from s2r_torch.families.frozenlake import FrozenLake

GRID, MIXTURE = make_family("grid"), make_family("mixture", horizon=2)


def table(graph, worlds, points, seed=0):
    shape = (worlds, graph.num_states, points)
    return torch.randint(graph.num_actions, shape, generator=torch.Generator().manual_seed(seed))


def test_state_aware_values_are_those_of_the_lists_that_they_are():
    """On grid the action depends on the state alone, so every policy is a list: its value is the sum of its payoffs."""
    worlds = worlds_of(GRID, 6)
    policy = StateAware(GRID.graph, table(GRID.graph, 6, 1))
    truth = GRID.truth(worlds.theta)
    for w, value in enumerate(policy.values(truth).tolist()):
        state, total = 0, 0.0
        for _ in range(5):
            action = int(policy.actions[w, state, 0])
            total += float(truth.reward[w, state, 0, action])
            state = int(GRID.graph.next_state[state, action])
        assert value == pytest.approx(total, abs=1e-12)


def test_state_aware_values_agree_with_episodes():
    worlds = worlds_of(MIXTURE, 5)
    known = Pointwise.of(MIXTURE.truth(worlds.theta))
    policy = StateAware(MIXTURE.graph, table(MIXTURE.graph, 5, known.weight.shape[2]), known.points)
    # actions must depend on the cell alone, as quadrature points of one cell are one event
    cells = MIXTURE.cell(known.points[0]).tolist()
    policy.actions[:] = policy.actions[:, :, [cells.index(c) for c in cells]]
    returns = rollout(worlds.guard("test"), policy, 20_000, worlds.seed).returns
    error = returns.std(1) / returns.shape[1] ** 0.5
    assert float(((returns.mean(1) - policy.values(worlds.truth)) / error).abs().max()) < 4.5


def test_policies_with_memory_are_not_valued_layer_by_layer():
    with pytest.raises(SettingError, match="StateAware, which remembers"):
        exact.policy_values(GRID.truth(worlds_of(GRID, 2).theta), StateAware(GRID.graph, table(GRID.graph, 2, 1)))


def test_fixed_lists_and_one_policy_per_world():
    x = torch.zeros(3, 4, 2)
    assert follow((1, 0))(0, x).tolist() == [[1] * 4] * 3
    lists = torch.tensor([[0, 1], [1, 0], [1, 1]])
    assert follow_each(lists)(1, x).tolist() == [[1] * 4, [0] * 4, [1] * 4]
    alone = each([follow(tuple(row)) for row in lists.tolist()])
    assert all(torch.equal(alone(step, x), follow_each(lists)(step, x)) for step in (0, 1))


def test_points_are_kept_only_where_rewards_depend_on_them():
    assert Pointwise.of(GRID.truth(worlds_of(GRID, 3).theta)).points is None
    lake = FrozenLake()
    assert Pointwise.of(lake.truth(worlds_of(lake, 3).theta)).reward.shape[2] == 1
    truth = MIXTURE.truth(worlds_of(MIXTURE, 3).theta)
    assert Pointwise.of(truth).points.shape == (3, 15, 1)


def test_no_table_where_points_move_and_pay():
    truth = MIXTURE.truth(worlds_of(MIXTURE, 3).theta)
    moved = type(truth)(truth.graph, truth.x + torch.rand(3, 1, 1, 1), truth.weight, truth.reward)
    with pytest.raises(SettingError, match="points that move with theta"):
        Pointwise.of(moved)


def test_nearest_points_are_the_points_themselves():
    truth = MIXTURE.truth(worlds_of(MIXTURE, 1).theta)
    known = Pointwise.of(truth)
    actions = torch.arange(15).remainder(2).expand(1, 3, 15)
    policy = StateAware(MIXTURE.graph, actions, known.points)
    assert policy(0, known.points[:1]).tolist() == [list(itertools.islice(itertools.cycle((0, 1)), 15))]
