"""LSVEE against its loop-for-loop oracle on the tree of paths, and with f* in the class."""

from dataclasses import replace

import naive
import pytest
import torch
from support.exact_class import Exact
from support.judging import TIGHT, rolling
from support.known import worlds_of
from support.pac_checks import check_failure_rate
from support.worlds import budget_for, judges_of, oracle_of, random_class, random_world

from s2r_torch.comparators.bank import Bank
from s2r_torch.comparators.lsvee import EliminationLearner, LSVEELearner, lsvee, path_tree
from s2r_torch.errors import SettingError
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.learning.elimination import Knowledge, dfs_learn
from s2r_torch.learning.samples import Separate
from s2r_torch.rng import Seed

MEMBERS = 10


def problem(seed, horizon, num_actions, **changes):
    """One world, on the tree of its paths; predictors that see no density."""
    world = random_world(seed, horizon, num_actions)
    budget = budget_for(world, MEMBERS, **TIGHT | {"epsilon_test_step": 0.2, "num_simulators": 1} | changes)
    judges = judges_of(world, random_class(world, MEMBERS, seed), budget, "sharp", seed)
    tree = path_tree(num_actions, horizon)
    return replace(
        judges, graph=tree, D_hat=torch.zeros(1, tree.num_states, judges.D_hat.shape[-1], dtype=torch.float64)
    )


@pytest.mark.parametrize("horizon, num_actions", [(1, 2), (2, 3), (4, 2)])
def test_a_tree_has_a_state_per_path(horizon, num_actions):
    tree = path_tree(num_actions, horizon)
    assert tree.states_per_layer == [num_actions**h for h in range(horizon)]
    inner = tree.next_state[tree.layer < horizon - 1].flatten().tolist()
    assert len(set(inner)) == len(inner) == tree.num_states - 1
    assert all(tree.end(path) == s for s, path in enumerate(tree.paths))


def test_a_tree_too_large_is_refused():
    with pytest.raises(SettingError, match="1365"):
        path_tree(4, 6)


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_the_naive_algorithm(seed):
    judges = problem(seed, 2 + seed % 2, 2)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(MEMBERS)))
    naive.dfs_learn((), oracle, memory)
    f = min(memory.alive, key=lambda g: memory.risk[g])
    n, probes = max(judges.budget.n_rollouts, judges.budget.n_probes), judges.budget.n_probes
    member, why, _ = naive.learn_on_simulators(
        oracle,
        memory,
        memory.V_hat[f, 0, 0],
        roll=rolling(judges, oracle, n),
        probes=lambda number: [(0, j) for j in range(probes)],
        epsilon_demand=judges.budget.epsilon_demand,
        path_of=lambda state: judges.graph.paths[state],
    )
    choice = lsvee(judges)
    assert (choice.member, choice.stopped) == (member, why)
    assert choice.knowledge.alive.nonzero().flatten().tolist() == memory.alive
    assert choice.knowledge.learned.nonzero().flatten().tolist() == sorted(memory.learned)


@pytest.mark.parametrize("seed", range(3))
def test_every_episode_is_counted(seed):
    judges = replace(problem(seed, 3, 2), sampling=Separate)
    choice = lsvee(judges)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(MEMBERS)))
    naive.dfs_learn((), oracle, memory)
    tests = sum(name == "Consensus" for name, _ in memory.calls)
    counts, budget = judges.simulators.ledger.counts, judges.budget
    calls = len(choice.knowledge.history)
    assert counts["rollout"] == len(choice.rounds) * max(budget.n_rollouts, budget.n_probes)
    if len(choice.rounds) == 1:  # then all tests were those of the root's call
        assert counts["eliminate"] == tests * budget.n_test + calls * budget.n_train


def informed(exact: Exact, world_theta: torch.Tensor, thetas: list[float]) -> tuple[Bank, torch.Tensor]:
    """Q-functions of these thetas, the world's own first: a bank that holds f*."""
    theta = torch.cat([world_theta, torch.tensor(thetas, dtype=torch.float64)[:, None]])
    group = exact.ensemble.groups[0].subset([exact.f_star])
    return Bank.ensemble(group, exact.densities(theta), exact.ensemble.problem), theta


def learner_for(exact: Exact, n: int, b_bar: float) -> EliminationLearner:
    graph = path_tree(2, exact.mixture.horizon)
    return LSVEELearner(exact.ensemble, torch.zeros(0), graph, "sharp", 0.05, 0.1, b_bar, 8, 0.05, n)


@pytest.mark.statistical
def test_f_star_survives():
    """With probability 1 - delta, the class holding it and `sharp` at its true bias: V_hat's noise."""
    exact, failures, runs, n = Exact(Mixture(horizon=2), flips=1, gains=(1.0,)), 0, 200, 400
    for run in range(runs):
        worlds = worlds_of(exact.mixture, 1, run)
        bank, _ = informed(exact, worlds.theta, [-1.0, -0.5, 0.0, 0.5, 1.0])
        judges = learner_for(exact, n, 0.03).judges(worlds.rewarded(0), bank, Seed.root(run))
        knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
        failures += not bool(knowledge.alive[0])
    check_failure_rate(failures, runs, 0.1)


def test_flips_that_agree_on_values_are_found_by_the_demand_loop():
    """theory.md 5.2: flipped members agree wherever Consensus asks; the root's call sees the first layer alone."""
    exact = Exact(Mixture(horizon=2, theta_law="two_point"), gains=(1.0,))
    worlds = worlds_of(exact.mixture, 1, 3)
    bank = Bank.ensemble(exact.ensemble.groups[0], exact.densities(worlds.theta), exact.ensemble.problem)
    judges = learner_for(exact, 6000, 0.01).judges(worlds.rewarded(0), bank, Seed.root(0))
    knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
    flips = exact.ensemble.groups[0].flips
    alive = flips[knowledge.alive]
    big = [0, 2]  # cells whose errors are above resolution
    assert bool((alive[:, 0][:, big] == 1).all()) and not bool((alive[:, 1] == 1).all())
    choice = lsvee(learner_for(exact, 6000, 0.01).judges(worlds.rewarded(0), bank, Seed.root(0)))
    left = flips[choice.knowledge.alive]
    assert len(choice.rounds) > 1 and len(left) < len(alive) and bool((left[:, :, big] == 1).all())
