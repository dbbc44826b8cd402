"""Exact values against brute force on random small worlds."""

from itertools import product

import pytest
import torch

from s2r_torch.errors import SettingError
from s2r_torch.families import exact
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.layered import depth_first
from s2r_torch.rng import Seed

H, A, B, M = 4, 3, 3, 2


@pytest.fixture(params=range(4))
def truth(request):
    """A random layered world: three latent labels, random transitions, M observation symbols shared by all theta."""
    g = Seed.root(request.param).generator()
    table = torch.randint(3, (H, 3, A), generator=g).tolist()
    graph, _ = depth_first((0, 0), lambda key: [(key[0] + 1, s) for s in table[key[0]][key[1]]], H)
    xi = graph.num_states
    weight = torch.rand(B, xi, M, generator=g, dtype=torch.float64)
    return GroundTruth(
        graph,
        torch.arange(M, dtype=torch.float64)[:, None].expand(B, xi, M, 1),
        weight / weight.sum(-1, keepdim=True),
        torch.rand(B, xi, M, A, generator=g, dtype=torch.float64) / H,
    )


def value_by_loops(truth, b, state, choose):
    """V of a policy choose(state, i) -> action, straight from the definition."""
    total = 0.0
    for i in range(M):
        a = choose(state, i)
        following = int(truth.graph.next_state[state, a])
        after = value_by_loops(truth, b, following, choose) if following >= 0 else 0.0
        total += float(truth.weight[b, state, i]) * (float(truth.reward[b, state, i, a]) + after)
    return total


def test_policy_values_are_the_definition(truth):
    table = torch.randint(A, (H, M), generator=Seed.root(1).generator())
    V = exact.policy_values(truth, lambda step, x: table[step][x[..., 0].long()])
    for b in range(B):
        by_loops = value_by_loops(truth, b, 0, lambda s, i: int(table[truth.graph.layer[s], i]))
        assert float(V[b, 0]) == pytest.approx(by_loops, abs=1e-12)


def test_action_values_take_each_environments_own_actions(truth):
    actions = torch.randint(A, (B, truth.graph.num_states, M), generator=Seed.root(2).generator())
    V = exact.action_values(truth, actions)
    for b in range(B):
        by_loops = value_by_loops(truth, b, 0, lambda s, i, b=b: int(actions[b, s, i]))
        assert float(V[b, 0]) == pytest.approx(by_loops, abs=1e-12)


def test_optimal_is_attained_by_its_greedy_actions_and_beaten_by_none(truth):
    V, Q = exact.optimal(truth)
    assert torch.allclose(exact.action_values(truth, Q.argmax(-1)), V, atol=1e-14)
    for seed in range(50):
        actions = torch.randint(A, Q.shape[:-1], generator=Seed.root(seed).generator())
        assert bool((exact.action_values(truth, actions) <= V + 1e-12).all())
    last = truth.graph.states_of(H - 1)
    assert torch.equal(Q[:, last], truth.reward[:, last])


def list_value(truth, path):
    """The value of a list of actions, averaged over environments."""
    plan = torch.tensor(path)[truth.graph.layer]  # [xi]
    return float(exact.action_values(truth, plan[:, None].expand(truth.weight.shape))[:, 0].mean())


def test_open_loop_is_the_best_of_all_lists(truth):
    path, value = exact.open_loop(truth)
    values = {candidate: list_value(truth, candidate) for candidate in product(range(A), repeat=H)}
    assert len(path) == H and value == pytest.approx(max(values.values()), abs=1e-12)
    assert values[path] == pytest.approx(value, abs=1e-12)


def test_uniform_value_is_the_mean_over_all_lists(truth):
    values = [list_value(truth, path) for path in product(range(A), repeat=H)]
    assert float(exact.uniform_value(truth).mean()) == pytest.approx(sum(values) / len(values), abs=1e-12)


def test_blind_lies_between_open_loop_and_optimal(truth):
    blind = exact.best_blind(truth)
    assert exact.open_loop(truth)[1] < blind < float(exact.optimal(truth)[0][:, 0].mean())
    alone = GroundTruth(truth.graph, truth.x[:1], truth.weight[:1], truth.reward[:1])
    assert exact.best_blind(alone) == pytest.approx(float(exact.optimal(alone)[0][0, 0]), abs=1e-12)


def test_blind_needs_common_symbols(truth):
    moved = GroundTruth(truth.graph, truth.x + torch.arange(B)[:, None, None, None], truth.weight, truth.reward)
    with pytest.raises(SettingError, match="same quadrature points"):
        exact.best_blind(moved)
