"""What sizes buy: bounds from a run's own survivors hold, are below those promised, and are withheld where unproved."""

from dataclasses import replace

import pytest
from learning.test_guarantees import judging
from support.exact_class import SMALLEST, exact_problem

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
