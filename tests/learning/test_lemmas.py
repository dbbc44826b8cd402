"""What Theorems E and L count: calls of Consensus and TD-Eliminate, and trajectories that miss what is unlearned."""

import itertools
import math

import pytest
import torch
from support.pac_checks import check_failure_rate
from support.worlds import Tabular, budget_for, judges_of, layered, random_class, random_world

from s2r_torch.episodes import Rollouts
from s2r_torch.learning import elimination
from s2r_torch.learning.elimination import Judges, Knowledge
from s2r_torch.learning.learn_on_simulators import _probed_states
from s2r_torch.planner.schedules import Setting, loops, paper

MEMBERS = 3


def counted(world: Tabular, order: list[int], verdict, monkeypatch) -> tuple[list[int], list[int]]:
    """States at which TD-Eliminate and Consensus were called, DFS-Learn being asked at states in this order.

    `verdict()` is what Consensus says, whatever it saw.
    """
    judges = judges_of(world, random_class(world, MEMBERS, 0), budget_for(world, MEMBERS, n_train=6, n_test=4), "paper")
    knowledge, asked, inner = Knowledge.blank(judges), [], elimination.consensus

    def consensus(state: int, known: Knowledge, judges: Judges) -> tuple[bool, Knowledge]:
        asked.append(state)
        return verdict(), inner(state, known, judges)[1]

    with monkeypatch.context() as patched:
        patched.setattr(elimination, "consensus", consensus)
        for state in order:
            if not knowledge.learned[state]:
                knowledge = elimination.dfs_learn(state, knowledge, judges)
    return [call.state for call in knowledge.history], asked


@pytest.mark.parametrize("seed", range(12))
def test_calls_of_any_sequence_of_dfs_learn(seed, monkeypatch):
    """theory.md 2.8: at most HS calls of TD-Eliminate and HSA of Consensus, whatever Consensus says."""
    world, g = random_world(seed, 2 + seed % 4, 2 + seed % 2), torch.Generator().manual_seed(seed)
    graph = world.graph
    order = [0, *torch.randperm(graph.num_states, generator=g).tolist()]
    eliminated, asked = counted(world, order, lambda: bool(torch.rand((), generator=g) < 0.5), monkeypatch)
    assert sorted(eliminated) == list(range(graph.num_states))  # each state once
    leaves = len(graph.states_of(graph.horizon - 1))
    assert len(asked) <= (graph.num_states - leaves) * graph.num_actions
    assert graph.num_states <= graph.horizon * max(graph.states_per_layer)


def test_the_number_of_consensus_calls_is_attained_on_a_tree(monkeypatch):
    """Every successor new, every verdict True, learned from the start downwards: A calls for every inner state."""
    graph, number = layered([[[0, 1]], [[0, 1], [2, 3]]], 2)
    rewards = torch.full((graph.num_states, 2, 2), 0.1, dtype=torch.float64)
    world = Tabular(graph, number, rewards, torch.zeros_like(rewards))
    order = sorted(range(graph.num_states), key=lambda s: int(graph.layer[s]))
    eliminated, asked = counted(world, order, lambda: True, monkeypatch)
    assert eliminated == order and len(asked) == 2 * 3


def test_without_cached_states_calls_would_grow_with_paths(monkeypatch):
    """theory.md F4: two states a layer and no agreement; 2^H - 1 paths, 2 H - 1 states."""
    horizon = 7
    graph, number = layered([[[0, 1]], *[[[0, 1], [0, 1]]] * (horizon - 2)], 2)
    rewards = torch.full((graph.num_states, 2, 2), 0.01, dtype=torch.float64)
    world = Tabular(graph, number, rewards, torch.zeros_like(rewards))
    eliminated, asked = counted(world, [0], lambda: False, monkeypatch)
    assert len(eliminated) == 2 * horizon - 1 < 2**horizon - 1
    assert len(asked) <= 2 * (2 * horizon - 3)


# -- trajectories that miss -----------------------------------------------------------------------------------------


def miss_probability(P: list[float], N: int) -> float:
    """Of N trajectories on distinct simulators chosen uniformly, or ceil(N / B) on each; by enumeration."""
    B = len(P)
    if N > B:
        return math.prod((1 - p) ** math.ceil(N / B) for p in P)
    subsets = list(itertools.combinations(P, N))
    return sum(math.prod(1 - p for p in subset) for subset in subsets) / len(subsets)


@pytest.mark.parametrize("seed", range(20))
def test_no_hit_is_no_likelier_than_with_equal_simulators(seed):
    """theory.md C3: at most (1 - P_bar)^N, with equality where all simulators are alike."""
    g = torch.Generator().manual_seed(seed)
    P = torch.rand(6, dtype=torch.float64, generator=g).pow(1 + seed % 4).tolist()
    mean = sum(P) / len(P)
    for N in (1, 2, 4, 6, 9):
        assert miss_probability(P, N) <= (1 - mean) ** N + 1e-12
        if N <= 6:
            assert miss_probability([mean] * 6, N) == pytest.approx((1 - mean) ** N)
    assert miss_probability(P, 4) < (1 - mean) ** 4 - 1e-6  # they differ, and the inequality is strict


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_probes_miss_as_often_as_enumeration_says(hidden):
    """On 5 simulators of which a few go to an unlearned state, with 2 probes."""
    graph, number = layered([[[0, 1]]], 2)
    rewards = torch.zeros(3, 2, 2, dtype=torch.float64)
    world = Tabular(graph, number, rewards, rewards)
    budget = budget_for(world, MEMBERS, num_simulators=5, n_probes=2)
    judges = judges_of(world, random_class(world, MEMBERS, 0), budget, "paper")
    actions = torch.zeros(5, 1, 2, dtype=torch.int64)
    actions[:hidden, :, 0] = 1  # these leave for the other state
    episodes = Rollouts(torch.zeros(5, 1, 2, 1), actions, torch.zeros(5, 1, 2))
    missed = sum(graph.end((1,)) not in _probed_states(episodes, number, judges) for number in range(2000))
    share = miss_probability([1.0] * hidden + [0.0] * (5 - hidden), 2)
    check_failure_rate(missed, 2000, share)
    check_failure_rate(2000 - missed, 2000, 1 - share)


@pytest.mark.parametrize("epsilon", [0.9, 0.2, 0.01])
@pytest.mark.parametrize("delta", [0.5, 0.05])
def test_the_number_of_probes_is_the_least_that_its_proof_needs(epsilon, delta):
    """(1 - epsilon / 8)^N_2 <= delta / (8 HS), of Theorem P delta / (12 HS); a tenth fewer would not do."""
    setting = Setting(3, 4, 2, 16, epsilon, delta, 2.0, 1, 0.5, 1.0, 1.0, cover_width=4)
    for plan, share, hit in ((loops, 8, 8), (paper, 12, 8)):
        N = plan(setting).budget.n_probes
        assert (1 - epsilon / hit) ** N <= delta / (share * 12)
        assert math.exp(-epsilon / hit * 0.9 * N) > delta / (share * 12)
