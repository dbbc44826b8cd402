"""Algorithms 3, 4 and 5 against their loop-for-loop oracles, their guards, and what they count."""

import itertools
import math
from dataclasses import replace

import naive
import pytest
import torch
from support.judging import TIGHT, constant_class
from support.worlds import Tabular, budget_for, judges_of, layered, oracle_of, part_of, random_class, random_world

from s2r_torch.errors import ObservationError, RealizabilityError, SettingError
from s2r_torch.learning.elimination import Elimination, Judges, Knowledge, consensus, dfs_learn, td_eliminate
from s2r_torch.learning.rules import RULES, RuleSettings
from s2r_torch.learning.sweep import sweep
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.tours import decision_tour, reading_tour

RULE_NAMES = sorted(set(RULES) - {"both"})  # `both` is defined by two others (test_rules.py)


def problem(rule, seed, horizon, num_actions, members=6, **changes):
    world = random_world(seed, horizon, num_actions)
    budget = budget_for(world, members, **TIGHT | {"n_train": 600 if rule in ("paper", "erratum") else 120} | changes)
    return judges_of(world, random_class(world, members, seed), budget, rule, seed)


def of_consensus(judges) -> int:
    """Episodes of one simulator for n_test readings of every state: those of decisions, or more than these."""
    graph, budget = judges.graph, judges.budget
    if budget.n_test <= budget.n_train:
        return of_elimination(judges)
    return sum(n for _, n, _ in reading_tour(graph, [budget.n_test] * graph.num_states))


def of_elimination(judges) -> int:
    """Episodes of one simulator for n_train decisions at every state."""
    return len(decision_tour(judges.graph)) * math.ceil(judges.budget.n_train / judges.graph.num_actions)


def agree(judges, knowledge, oracle, memory):
    """Survivors, values, learned states and risks are those of the oracle."""
    assert knowledge.alive.nonzero().flatten().tolist() == memory.alive
    assert knowledge.learned.nonzero().flatten().tolist() == sorted(memory.learned)
    for (f, b, state), value in memory.V_hat.items():
        if f in memory.alive:
            assert float(knowledge.V_hat[f, b, state]) == pytest.approx(value, abs=1e-12)
    for f in memory.alive:
        assert float(knowledge.risk[f]) == pytest.approx(memory.risk[f], abs=1e-12)
    assert [call.state for call in knowledge.history] == [s for name, s in memory.calls if name == "TD-Eliminate"]
    tested = any(name == "samples" for name, _ in memory.calls) and judges.budget.n_test > judges.budget.n_train
    drawn = oracle.B * (of_consensus(judges) * tested + of_elimination(judges))  # once, for all states
    assert judges.simulators.ledger.counts == {"eliminate": drawn}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize(("horizon", "num_actions"), [*itertools.product((1, 2, 3, 4), (2, 3))])
def test_dfs_learn_agrees_with_the_naive_algorithm(rule, horizon, num_actions):
    more = {"n_test": 700} if (horizon, num_actions) == (3, 2) else {}  # than decisions: readings of their own
    judges = problem(rule, 10 * horizon + num_actions, horizon, num_actions, **more)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(judges.ensemble.size)))
    naive.dfs_learn((), oracle, memory)
    knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
    agree(judges, knowledge, oracle, memory)


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_outside_of_a_pruned_graph_nothing_is_earned(rule, seed):
    whole = problem(rule, seed, 4, 3)
    part, kept = part_of(whole.graph, seed)
    judges = replace(whole, graph=part, D_hat=whole.D_hat[:, kept])
    oracle, memory = oracle_of(judges), naive.Memory(list(range(judges.ensemble.size)))
    naive.dfs_learn((), oracle, memory)
    assert part.pruned
    agree(judges, dfs_learn(0, Knowledge.blank(judges), judges), oracle, memory)
    whole.simulators.ledger.counts.clear()
    judges = replace(judges)
    memory = naive.Memory(list(range(judges.ensemble.size)))
    for step in reversed(range(part.horizon)):
        for state in part.states_of(step):
            naive.td_eliminate(part.paths[state], oracle, memory)
    agree(judges, sweep(judges), oracle, memory)


def test_the_random_problems_are_not_trivial():
    """Members fall, but not all; Consensus says both True and False; states are skipped."""
    survivors, verdicts, skipped = set(), set(), 0
    for rule, horizon, num_actions in itertools.product(RULE_NAMES, (2, 3, 4), (2, 3)):
        judges = problem(rule, 10 * horizon + num_actions, horizon, num_actions)
        knowledge = dfs_learn(0, Knowledge.blank(judges), judges)
        survivors.add(int(knowledge.alive.sum()))
        verdicts.add(bool(knowledge.learned.all()))
        skipped += int((~knowledge.learned).sum())
    assert len(survivors) >= 3 and verdicts == {True, False} and skipped > 3


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_the_sweep_agrees_with_the_naive_td_eliminate(rule):
    judges = problem(rule, 5, 4, 2)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(judges.ensemble.size)))
    for step in reversed(range(judges.graph.horizon)):
        for state in judges.graph.states_of(step):
            naive.td_eliminate(judges.graph.paths[state], oracle, memory)
    knowledge = sweep(judges)
    agree(judges, knowledge, oracle, memory)
    assert bool(knowledge.learned.all())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("step", [0.02, 0.1, 0.4])
def test_consensus_agrees_with_the_naive_algorithm(seed, step):
    judges = problem("sharp", seed, 3, 2, epsilon_test_step=step)
    oracle, memory = oracle_of(judges), naive.Memory(list(range(judges.ensemble.size)))
    alive = torch.ones(judges.ensemble.size, dtype=torch.bool)
    if seed % 2:
        alive[0], memory.alive = False, memory.alive[1:]
    blank = replace(Knowledge.blank(judges), alive=alive)
    for state in range(1, judges.graph.num_states):
        path = judges.graph.paths[state]
        agrees, knowledge = consensus(state, blank, judges)
        assert agrees == naive.consensus(path, oracle.epsilon_test(len(path) - 1), oracle, memory)
        for f, b in itertools.product(memory.alive, range(oracle.B)):
            assert float(knowledge.V_hat[f, b, state]) == pytest.approx(memory.V_hat[f, b, state], abs=1e-12)
        assert torch.equal(knowledge.alive, alive) and not knowledge.learned.any()


def test_consensus_ignores_the_dead_and_sees_every_simulator():
    world = random_world(5, 2, 2)
    ensemble = constant_class(world, [0.2, 0.25, 0.9])
    judges = judges_of(world, ensemble, budget_for(world, 3, epsilon_test_step=0.1), "sharp")
    blank = Knowledge.blank(judges)
    assert not consensus(1, blank, judges)[0]
    assert consensus(1, replace(blank, alive=torch.tensor([True, True, False])), judges)[0]
    ensemble.groups[0].gains[1] = 10.0  # now member 1 depends on the densities, which differ between simulators
    judges = judges_of(world, ensemble, judges.budget, "sharp")
    assert not consensus(1, replace(blank, alive=torch.tensor([True, True, False])), judges)[0]


def test_nothing_is_asked_beyond_the_last_layer():
    """theory.md C1: at |p| = H - 1 there is no Consensus, and what follows is worth 0."""
    world = random_world(3, 1, 3)
    judges = judges_of(world, random_class(world, 4, 0), budget_for(world, 4), "sharp")
    dfs_learn(0, Knowledge.blank(judges), judges)
    assert judges.simulators.ledger.counts == {"eliminate": 3 * judges.budget.n_train}


def test_a_learned_state_is_not_learned_again():
    """theory.md F4: its cached value is used, without another Consensus."""
    judges = problem("paper", 4, 3, 2, epsilon_test_step=1e-9)  # Consensus is never True
    blank = Knowledge.blank(judges)
    knowledge = dfs_learn(0, blank, judges)
    assert len(knowledge.history) == judges.graph.num_states and bool(knowledge.learned.all())
    before = dict(judges.simulators.ledger.counts)
    again = dfs_learn(0, knowledge, judges)
    assert [call.state for call in again.history[len(knowledge.history) :]] == [0]
    assert judges.simulators.ledger.counts == before


@pytest.mark.parametrize("learn", [lambda blank, judges: dfs_learn(0, blank, judges), lambda _, judges: sweep(judges)])
def test_calls_are_pure(learn):
    """The same question about the same knowledge has the same answer, whatever was asked in between."""
    judges = problem("sharp", 43, 4, 3)
    blank = Knowledge.blank(judges)
    once = learn(blank, judges)
    assert blank.alive.all() and not blank.learned.any() and blank.V_hat.isnan().all() and not blank.history
    assert len({call.survivors for call in once.history}) > 2  # members fell early on
    again = learn(blank, judges)
    assert torch.equal(again.alive, once.alive) and torch.equal(again.risk[once.alive], once.risk[once.alive])
    assert torch.equal(again.V_hat.nan_to_num(9), once.V_hat.nan_to_num(9)) and again.history == once.history


@pytest.mark.parametrize("name", ["sharp", "pairwise", "pooled"])
def test_what_a_rule_is_told(name, monkeypatch):
    """The last layer's residuals differ by at most 1, others by 2; delta is that of one call, F that of the start."""
    told = {}

    def rule(evidence, settings):
        told[len(told)] = (evidence.n, tuple(evidence.risks.shape), settings)
        return RULES[name](evidence, settings)

    judges = problem(name, 43, 2, 3)
    monkeypatch.setattr("s2r_torch.learning.elimination.rule_named", lambda _: rule)
    blank = replace(Knowledge.blank(judges), alive=torch.tensor([True] * 4 + [False] * 2))
    knowledge = td_eliminate(judges.graph.states_of(1)[0], blank, judges)
    for state in judges.graph.states_of(1)[1:]:
        _, knowledge = consensus(state, knowledge, judges)
    td_eliminate(0, knowledge, judges)
    budget, spec = judges.budget, judges.ensemble.problem.spec
    expected = RuleSettings(budget.phi, budget.b_bar, 6, budget.delta_td, spec.reward_width, 1.0)
    assert told[0] == (budget.n_train, (4, 3), expected)
    assert told[1] == (budget.n_train, (int(knowledge.alive.sum()), 3), replace(expected, residual_width=2.0))


def test_survivors_only_shrink_and_the_dead_stay_nan():
    judges = problem("sharp", 42, 4, 2)
    knowledge, alive = Knowledge.blank(judges), torch.ones(6, dtype=torch.bool)
    for state in judges.graph.states_of(3) + judges.graph.states_of(2):
        knowledge = td_eliminate(state, knowledge, judges)
        assert not (knowledge.alive & ~alive).any()
        alive = knowledge.alive
        assert torch.isfinite(knowledge.V_hat[alive][..., state]).all()
    assert knowledge.risk[~alive].isnan().any() and alive[knowledge.best()]
    assert float(knowledge.risk[alive].min()) == float(knowledge.risk[knowledge.best()])


def test_a_judge_does_not_see_its_neighbours():
    """Risks and values of a simulator have the same bits when it judges alone."""
    world = random_world(4, 3, 2)
    whole = judges_of(world, random_class(world, 5, 1), budget_for(world, 5), "paper")
    part = replace(whole, simulators=whole.simulators.select([2, 0]), D_hat=whole.D_hat[[2, 0]])
    for state in world.graph.states_of(2):
        both = [td_eliminate(state, Knowledge.blank(judges), judges) for judges in (whole, part)]
        assert torch.equal(both[0].V_hat[:, [2, 0], state], both[1].V_hat[:, :, state])


def test_other_densities_are_judged_with_other_densities():
    """`replace` makes judges that remember nothing of the old ones, whatever these were asked before."""
    world = random_world(4, 3, 2)
    judges = judges_of(world, random_class(world, 5, 1), budget_for(world, 5), "paper")
    state, blank = world.graph.states_of(2)[0], Knowledge.blank(judges)
    before = td_eliminate(state, blank, judges).V_hat[:, :, state]
    other = judges.D_hat.flip(-1)
    anew = replace(judges, D_hat=other)
    fresh = judges_of(world, judges.ensemble, judges.budget, "paper")
    fresh = Judges(fresh.simulators, other, fresh.graph, fresh.ensemble, fresh.budget, fresh.elimination, fresh.seed)
    found = td_eliminate(state, blank, anew).V_hat[:, :, state]
    assert torch.equal(found, td_eliminate(state, blank, fresh).V_hat[:, :, state]) and not torch.equal(found, before)


def test_a_state_asked_about_again_costs_nothing():
    judges = problem("sharp", 1, 3, 2, epsilon_test_step=0.02)
    agrees, knowledge = consensus(1, Knowledge.blank(judges), judges)
    drawn = dict(judges.simulators.ledger.counts)
    assert drawn == {"eliminate": 3 * of_consensus(judges)}
    again, same = consensus(1, knowledge, judges)
    assert again == agrees and same is knowledge and judges.simulators.ledger.counts == drawn
    fewer = replace(knowledge, alive=torch.tensor([True] + 5 * [False]))  # survivors were asked before, all of them
    assert consensus(1, fewer, judges)[0] and judges.simulators.ledger.counts == drawn
    unknown = replace(knowledge, V_hat=torch.where(torch.arange(6)[:, None, None] == 3, torch.nan, knowledge.V_hat))
    consensus(1, unknown, judges)
    assert judges.simulators.ledger.counts == drawn


def test_every_call_is_reported():
    judges, seen = problem("pooled", 7, 3, 2), []
    judges = replace(judges, on_call=lambda *call: seen.append(call))
    knowledge = sweep(judges)
    assert seen == [("TD-Eliminate", call.state, call.survivors) for call in knowledge.history]
    for call in knowledge.history:
        assert call.threshold > 0 and call.accuracy > 0 and 0 < call.least_risk < 1
    assert knowledge.history[-1].survivors == int(knowledge.alive.sum())


# -- what goes wrong ------------------------------------------------------------------------------------------------


def disagreeing(on_empty):
    """Two members, each right on one simulator and wrong on the other: nobody is good on both."""
    graph, number = layered([], 2)
    rewards = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    world = Tabular(graph, number, rewards, torch.full_like(rewards, 0.5))  # pays (1 + theta) / 2
    ensemble = constant_class(world, [0.05, 0.95])
    budget = budget_for(world, 2, num_simulators=2, n_train=4000, phi=0.01, b_bar=0.01)
    return judges_of(world, ensemble, budget, "sharp", on_empty=on_empty)  # theta = -0.9 and 0.8


def test_an_emptied_class_is_an_error_with_the_numbers():
    with pytest.raises(RealizabilityError, match=r"none of 2 at state 0 \(path \(\)\); the best misses by 0\.7") as e:
        td_eliminate(0, Knowledge.blank(disagreeing("error")), disagreeing("error"))
    assert "rule=calibrated" in str(e.value) and "on_empty=best" in str(e.value)


def test_an_emptied_class_may_go_on_with_its_best_member():
    judges = disagreeing("best")
    knowledge = td_eliminate(0, Knowledge.blank(judges), judges)
    assert knowledge.alive.tolist() == [True, False] == [m == knowledge.best() for m in range(2)]
    assert knowledge.risk[0] < knowledge.risk[1]


@pytest.mark.parametrize(
    "wrong", [{"rule": "shrap"}, {"rule": "sharp", "on_empty": "worst"}, {"rule": "sharp", "on_empty": ""}]
)
def test_settings_are_validated_before_anything_is_drawn(wrong):
    with pytest.raises(SettingError, match="a typo"):
        Elimination(**wrong)


def test_one_nan_predictor_does_not_eliminate_the_others():
    """min over risks would be NaN, and every comparison with it False."""
    world = random_world(6, 2, 2)
    ensemble = random_class(world, 4, 0)
    ensemble.groups[0].tables[2, 1, 0, 0] = math.nan
    judges = judges_of(world, ensemble, budget_for(world, 4), "sharp")
    with pytest.raises(ObservationError, match="finite Bellman risks.*not finite"):
        sweep(judges)


def test_values_of_successors_must_be_known():
    judges = problem("sharp", 4, 3, 2)
    with pytest.raises(ObservationError, match="finite Bellman risks.*successors"):
        td_eliminate(0, Knowledge.blank(judges), judges)


def test_a_measured_b_bar_replaces_the_budget_s_state_by_state():
    """The calibrated rule allows (b_bar + noise)^2 at each state."""
    world = random_world(4, 2, 2)
    b_bar = tuple(0.1 * math.sqrt(s + 1) for s in range(world.graph.num_states))
    judges = judges_of(world, random_class(world, 4, 0), budget_for(world, 4), "calibrated", b_bar=b_bar)
    noise = world.spec.reward_width * math.sqrt(math.log(4 / judges.budget.delta_td) / (2 * judges.budget.n_train * 3))
    for call in sweep(judges).history:
        assert call.threshold == pytest.approx((b_bar[call.state] + noise) ** 2)


def test_an_empty_class_cannot_be_made():
    world = random_world(4, 2, 2)
    with pytest.raises(SettingError, match="at least one predictor"):
        Ensemble(random_class(world, 2, 0).problem, ())
    with pytest.raises(SettingError, match="at least one predictor"):
        random_class(world, 2, 0).subset([])
