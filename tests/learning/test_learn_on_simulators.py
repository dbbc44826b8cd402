"""Algorithm 6 against its loop-for-loop oracle, and the ways in which its loop ends."""

from dataclasses import replace

import naive
import pytest
import torch
from support.judging import TIGHT, constant_class, probing, rolling
from support.worlds import Tabular, budget_for, class_of, judges_of, layered, oracle_of, random_class, random_world

from s2r_torch.learning.elimination import Knowledge, dfs_learn
from s2r_torch.learning.learn_on_simulators import learn_on_simulators

MEMBERS = 12


def problem(seed, rule="pooled", horizon=3, num_actions=2, **changes):
    world = random_world(seed, horizon, num_actions)
    budget = budget_for(world, MEMBERS, **TIGHT | {"epsilon_test_step": 0.3} | changes)
    return judges_of(world, random_class(world, MEMBERS, seed), budget, rule, seed)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("overrated", [0.0, 0.3])
def test_agrees_with_the_naive_algorithm(seed, overrated):
    """From knowledge of the start alone; an overrated V_hat* keeps the loop going."""
    judges = problem(seed, horizon=2 + seed % 3, num_actions=2 + seed % 2)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(MEMBERS)))
    naive.dfs_learn((), oracle, memory)
    knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
    V_hat_star = float(knowledge.V_hat[knowledge.best(), :, 0].mean()) + overrated
    before = judges.simulators.ledger.counts["eliminate"]

    learned = learn_on_simulators(knowledge, judges, V_hat_star)
    n = judges.budget.n_rollouts
    member, why, values = naive.learn_on_simulators(
        oracle,
        memory,
        V_hat_star,
        roll=rolling(judges, oracle, n),
        probes=probing(judges),
        epsilon_demand=judges.budget.epsilon_demand,
        path_of=lambda state: judges.graph.paths[state],
    )
    assert (learned.member, learned.stopped) == (member, why)
    assert [r.value for r in learned.rounds] == pytest.approx(values, abs=1e-12)
    assert learned.knowledge.alive.nonzero().flatten().tolist() == memory.alive
    assert learned.knowledge.learned.nonzero().flatten().tolist() == sorted(memory.learned)
    assert [call.state for call in learned.knowledge.history] == [
        state for name, state in memory.calls if name == "TD-Eliminate"
    ]
    counts = judges.simulators.ledger.counts
    assert counts["rollout"] == oracle.B * n * len(values)
    assert counts["eliminate"] == before  # drawn at the start, for all states


def test_the_random_problems_are_not_trivial():
    """Some are accepted at once, some after learning, some never."""
    rounds, why = set(), set()
    for seed in range(8):
        for overrated in (0.0, 0.3):
            judges = problem(seed, horizon=2 + seed % 3, num_actions=2 + seed % 2)
            knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
            V_hat_star = float(knowledge.V_hat[knowledge.best(), :, 0].mean()) + overrated
            learned = learn_on_simulators(knowledge, judges, V_hat_star)
            rounds.add(len(learned.rounds)), why.add(learned.stopped)
    assert rounds > {1, 2} and why == {"accepted", "no_progress"}


def fork():
    """Left pays 0.5 for sure; right leads to a state that pays nothing. H = 2."""
    graph, number = layered([[[0, 1]]], 2)
    rewards = torch.zeros(3, 2, 2, dtype=torch.float64)
    rewards[graph.end((0,))] = 0.5
    return Tabular(graph, number, rewards, torch.zeros_like(rewards))


def fork_class(world):
    """Three members: one wants to go right for nothing, one knows the truth, one overrates everything alike."""
    tables = torch.zeros(3, 2, 4, 2, dtype=torch.float64)
    tables[0, 0], tables[0, 1] = torch.tensor([0.5, 0.9]), 0.5
    tables[1, 0], tables[1, 1, :2] = torch.tensor([0.5, 0.0]), 0.5
    tables[2, 0], tables[2, 1] = torch.tensor([0.7, 0.6]), 0.7
    return class_of(world, tables)


def blank_with_risk(judges, risk):
    return replace(Knowledge.blank(judges), risk=torch.tensor(risk, dtype=torch.float64))


def test_a_policy_that_earns_what_was_predicted_is_accepted_at_once():
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3), "sharp")
    learned = learn_on_simulators(blank_with_risk(judges, [1.0, 0.0, 1.0]), judges, 0.5)
    assert (learned.member, learned.stopped, len(learned.rounds)) == (1, "accepted", 1)
    assert learned.rounds[0].value == 0.5 and learned.rounds[0].learned == 0
    assert judges.simulators.ledger.counts == {"rollout": 3 * judges.budget.n_rollouts}


def test_a_policy_that_earns_more_is_accepted_too():
    """theory.md C15: one-sided."""
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3), "sharp")
    assert learn_on_simulators(blank_with_risk(judges, [1.0, 0.0, 1.0]), judges, 0.1).stopped == "accepted"


def test_the_acceptance_threshold():
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3), "sharp")
    assert judges.budget.epsilon_demand == 0.025
    for V_hat_star, why in ((0.5249, "accepted"), (0.5251, "no_progress")):
        knowledge = replace(blank_with_risk(judges, [1.0, 0.0, 1.0]), learned=torch.ones(3, dtype=torch.bool))
        assert learn_on_simulators(knowledge, judges, V_hat_star).stopped == why


def test_a_calibrated_bias_lowers_the_target():
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3), "sharp", value_bias=0.2)
    learned = learn_on_simulators(blank_with_risk(judges, [1.0, 0.0, 1.0]), judges, 0.72)
    assert learned.stopped == "accepted" and learned.rounds[0].target == pytest.approx(0.52)


def test_a_bad_policy_is_found_out_where_it_went():
    """Member 0 goes right, earns nothing, and falls when the state it went to is learned."""
    world = fork()
    budget = budget_for(world, 3, n_train=1000, phi=0.01, b_bar=0.02)
    judges = judges_of(world, fork_class(world), budget, "sharp")
    learned = learn_on_simulators(blank_with_risk(judges, [0.0, 0.1, 0.2]), judges, 0.5)
    right = world.graph.end((1,))
    assert learned.knowledge.alive.tolist() == [False, True, False] and learned.knowledge.learned[right]
    assert [r.member for r in learned.rounds] == [0, 1] and learned.rounds[0].value == 0.0
    assert (learned.member, learned.stopped, learned.rounds[0].learned) == (1, "accepted", 2)


def test_states_are_learned_deepest_first():
    """A state's risk needs the values of its successors, so what was visited last is learned first."""
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3, n_train=1000, phi=0.01, b_bar=0.02), "sharp")
    learned = learn_on_simulators(blank_with_risk(judges, [0.0, 0.1, 0.2]), judges, 0.5)
    assert [call.state for call in learned.knowledge.history] == [world.graph.end((1,)), 0]


def test_no_progress_when_everything_is_learned():
    """An overrated V_hat* can never be earned; when nothing is left to learn the best survivor is returned."""
    world = fork()
    judges = judges_of(world, fork_class(world), budget_for(world, 3, n_train=500), "pooled")
    learned = learn_on_simulators(Knowledge.blank(judges), judges, 0.99)
    assert learned.stopped == "no_progress" and learned.member == 1 == learned.knowledge.best()


def test_no_progress_when_the_policy_never_meets_an_unlearned_state():
    """State `right` is never visited by a good policy: waiting for it would be waiting for ever."""
    world = fork()
    ensemble = fork_class(world).subset([1])
    judges = judges_of(world, ensemble, budget_for(world, 1), "sharp")
    learned = learn_on_simulators(Knowledge.blank(judges), judges, 0.99)
    assert learned.stopped == "no_progress" and not learned.knowledge.learned[world.graph.end((1,))]
    assert len(learned.rounds) == 2 and learned.rounds[-1].learned == 0


@pytest.mark.parametrize(("n_probes", "n_rollouts", "drawn"), [(2, 4, 4), (3, 1, 1), (7, 1, 3), (7, 5, 5)])
def test_enough_episodes_for_the_probes(n_probes, n_rollouts, drawn):
    """N_2 trajectories need ceil(N_2 / B) per simulator (theory.md C3), whatever n_1 is."""
    world = fork()
    budget = budget_for(world, 3, n_probes=n_probes, n_rollouts=n_rollouts)
    judges = judges_of(world, fork_class(world), budget, "sharp")
    learn_on_simulators(blank_with_risk(judges, [1.0, 0.0, 1.0]), judges, 0.5)
    assert judges.simulators.ledger.counts["rollout"] == 3 * drawn


def parting(n_probes, seed):
    """Where the loop learned when policies go left in one of three simulators and right in the others."""
    graph, number = layered([[[0, 1]]], 2)
    rewards = torch.zeros(3, 2, 2, dtype=torch.float64)
    world = Tabular(graph, number, rewards, torch.zeros_like(rewards))
    ensemble = constant_class(world, [0.0, 0.5])
    judges = judges_of(world, ensemble, budget_for(world, 2, n_probes=n_probes), "paper", seed)
    judges = replace(judges, ensemble=replace(ensemble, groups=(Parting(ensemble.groups[0]),)))
    knowledge = replace(Knowledge.blank(judges), learned=torch.tensor([True, False, False]))
    learned = learn_on_simulators(knowledge, judges, 0.9)
    return learned.rounds[0].learned, tuple(learned.knowledge.learned.tolist())


def test_probes_are_simulators_chosen_at_random():
    """One probe shows one way in each round, and which one differs between runs; three show both ways at once."""
    one = [parting(1, seed) for seed in range(8)]
    assert {first for first, _ in one} == {1} and len({where for _, where in one}) >= 2
    assert {parting(3, seed) for seed in range(4)} == {(2, (True, True, True))}


class Parting:
    """Members that go left in the first simulator of a batch and right in the others."""

    def __init__(self, group):
        self.group, self.size = group, group.size

    def condition(self, D, readings=None):
        return self.group.condition(D, readings)

    def q(self, conditioned, step, x):
        q = self.group.q(conditioned, step, x).clone()
        if step == 0:
            q[:, 0, :, 0] += 0.1
            q[:, 1:, :, 1] += 0.1
        return q

    def subset(self, members):
        return Parting(self.group.subset(members))
