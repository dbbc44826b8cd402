"""What sizes buy: bounds from a run's own survivors hold, are below those promised, and are withheld where unproved."""

import math
from dataclasses import replace

import pytest
from learning.test_guarantees import judging
from support.exact_class import SMALLEST, exact_problem
from support.judging import constant_class
from support.worlds import budget_for, judges_of, random_world

from s2r_torch.learning.bought import bought
from s2r_torch.learning.elimination import Knowledge, td_eliminate
from s2r_torch.learning.sweep import sweep
from s2r_torch.planner.budget import accuracy_of

WIDTH = exact_problem(SMALLEST).mixture.spec.reward_width


@pytest.mark.statistical
@pytest.mark.parametrize("n_train", [3000, 100_000])
def test_survivors_lose_no_more_than_they_show(n_train):
    problem = exact_problem(SMALLEST)
    for seed in range(3):
        judges, theta, _ = judging(
            problem, "sharp", seed, num_simulators=4, n_train=n_train, n_dist=20_000, n_test=n_train
        )
        knowledge = sweep(judges)
        assert knowledge.alive[problem.f_star]
        found = bought(knowledge, judges.graph, judges.budget, consensus=False, reward_width=WIDTH)
        worst = float(problem.regrets(judges.D_hat, theta, knowledge.alive.nonzero().flatten().tolist()).max())
        assert 0 <= worst <= found.after < found.before and found.unlearned == 0
        assert found.before == accuracy_of(judges.budget, consensus=False, reward_width=WIDTH).suboptimality


@pytest.mark.slow
def test_more_samples_buy_more():
    def after(n):
        judges, _, _ = judging(exact_problem(SMALLEST), "sharp", 0, n_train=n, n_dist=20_000, n_test=n)
        return bought(sweep(judges), judges.graph, judges.budget, consensus=False, reward_width=WIDTH).after

    assert after(100_000) < after(3000) / 2


def test_nothing_is_shown_where_nothing_is_proved():
    """Not after a state that was never learned, not of a trained class."""
    judges, _, _ = judging(exact_problem(SMALLEST), "sharp", 0)
    part = td_eliminate(judges.graph.num_states - 1, Knowledge.blank(judges), judges)
    found = bought(part, judges.graph, judges.budget, consensus=True, reward_width=WIDTH)
    assert found.after is None and found.unlearned == judges.graph.num_states - 1
    trained = replace(judges, ensemble=replace(judges.ensemble, exact=False))
    knowledge = sweep(trained)
    assert all(call.shown is None for call in knowledge.history)
    assert bought(knowledge, judges.graph, judges.budget, consensus=False, reward_width=WIDTH).after is None


@pytest.mark.parametrize("c", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_what_survivors_show_in_closed_form(c, horizon):
    """Two constant members, c apart: residuals differ by c in the last layer and by 0 above it, values by c everywhere.

    So R = m s_0 above, (s_0 + sqrt(s_0^2 + 4 c^2)) / 2 in the last layer, and T = c (theory.md 2.5, 2.7).
    """
    world = random_world(3, horizon, 2)
    ensemble = replace(constant_class(world, [0.3, 0.3 + c]), exact=True)
    judges = judges_of(world, ensemble, budget_for(world, 2, n_train=400, b_bar=1.0), "sharp")
    knowledge, budget = sweep(judges), judges.budget
    assert bool(knowledge.alive.all())  # b_bar allows for both
    s_0 = math.sqrt(2 * math.log(4 * 2 * budget.num_simulators / budget.delta_td) / budget.n_train)
    last = 2 * math.sqrt(2) * (s_0 + math.sqrt(s_0**2 + 4 * c**2)) / 2 + budget.b_bar
    above = 2 * math.sqrt(2) * 2 * s_0 + budget.b_bar + 2 * c
    width = world.spec.reward_width
    found = bought(knowledge, judges.graph, budget, consensus=False, reward_width=width)
    assert found.after == pytest.approx(last + (horizon - 1) * above, abs=1e-6)
