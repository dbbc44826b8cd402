"""The appraisal against all lists of actions, one by one, and against exact optima."""

from itertools import product

import pytest
import torch
from scipy import stats

from s2r_torch.assurance.appraisal import Appraisal, appraise, best_lists, mean_rewards, optimum, totals
from s2r_torch.episodes import Ledger
from s2r_torch.families import exact, make_family
from s2r_torch.families.draws import Draws
from s2r_torch.rng import Seed

SEED = Seed.root(0)
GRID = make_family("grid").graph


def some_rewards(count: int, noise: float = 0.0) -> torch.Tensor:
    """[2, M, xi, A]: two noisy halves of the same mean rewards."""
    generator = SEED.child("rewards").generator()
    mean = torch.rand(1, count, GRID.num_states, 2, generator=generator, dtype=torch.float64)
    return mean + noise * torch.randn(2, *mean.shape[1:], generator=generator, dtype=torch.float64)


def by_hand(reward: torch.Tensor, actions: tuple[int, ...]) -> float:
    """What a list earns in one simulator, step by step."""
    s, total = 0, 0.0
    for a in actions:
        total, s = total + float(reward[s, a]), int(GRID.next_state[s, a])
    return total


def test_the_best_list_is_the_best_of_all():
    reward = some_rewards(5)[0]
    lists, value = best_lists(GRID, reward)
    for i in range(5):
        earned = {actions: by_hand(reward[i], actions) for actions in product(range(2), repeat=GRID.horizon)}
        assert value[i].item() == pytest.approx(max(earned.values()))
        assert earned[tuple(lists[i].tolist())] == pytest.approx(max(earned.values()))
    assert torch.allclose(totals(GRID, reward, lists), value)


def test_the_optimum_lies_between_its_estimates():
    """Choosing by one half and paying by the other takes away the optimism of choosing the largest."""
    truth = best_lists(GRID, some_rewards(4000)[0])[1].mean()
    below, above = (values.mean() for values in optimum(GRID, some_rewards(4000, noise=0.2)))
    assert below < truth < above and truth - below < above - truth + 0.1


def test_mean_rewards_of_simulators_give_their_exact_optimum():
    family, ledger = make_family("grid"), Ledger()
    draws = Draws(family, SEED, ledger)
    halves = mean_rewards(draws.simulators("test", 40), GRID, 64, SEED.child("draws"))
    best = exact.optimal(family.truth(draws.theta("test", 40)))[0][:, 0]
    below, above = optimum(GRID, halves)
    assert float(below.mean()) == pytest.approx(float(best.mean()), abs=0.02) and float(above.mean()) >= below.mean()
    assert sum(ledger.counts.values()) == 40 * 64 * 6  # along six sequences


def planted(policy: float, fixed: float, best: float) -> Appraisal:
    """100 simulators of two kinds: a list that is best in one of them earns `fixed` there, and the best one `best`."""
    reward = torch.zeros(100, GRID.num_states, 2, dtype=torch.float64)
    last = GRID.states_of(GRID.horizon - 1)[0]
    reward[:, last, 0], reward[::2, last, 1], reward[1::2, last, 1] = fixed, best, 0.0
    reward[1::2, last, 0] = best if best == fixed else fixed
    earned = torch.full((100,), policy, dtype=torch.float64)
    return appraise(GRID, earned, (*GRID.paths[last], 0), reward.expand(2, -1, -1, -1), 0.03)


@pytest.mark.parametrize(
    ("policy", "fixed", "best", "words"),
    [
        (0.7, 0.5, 0.9, []),
        (0.4, 0.5, 0.9, ["deploy the list", "falls short"]),
        (0.6, 0.5, 0.9, ["falls short"]),
        (0.5, 0.5, 0.5, ["densities are not needed"]),
        (0.4, 0.5, 0.5, ["deploy the list", "densities are not needed", "falls short"]),
    ],
)
def test_what_it_says_follows_from_what_is_earned(policy, fixed, best, words):
    said = planted(policy, fixed, best).sentences()
    assert len(said) == len(words) and all(word in text for word, text in zip(words, said, strict=True))


def test_a_policy_that_reads_more_than_the_state_stands_for_the_optimum():
    """In a state whose readings tell what pays, every list earns 0.5 and the policy 1: densities are not useless."""
    halves = torch.zeros(2, 40, GRID.num_states, 2, dtype=torch.float64)
    halves[:, :, GRID.end((0,) * (GRID.horizon - 1))] = 0.5  # of a last state, whatever is done there
    earned = torch.full((40,), 0.9, dtype=torch.float64) + 0.01 * torch.arange(40) / 40
    found = appraise(GRID, earned, (0,) * GRID.horizon, halves, tolerance=0.03)
    assert found.fixed == 0.5 and found.optimum == found.at_most == found.policy and found.between[0] > 0.9
    assert found.densities_needed and not found.falls_short and found.sentences() == []
    assert not appraise(GRID, earned - 0.4, (0,) * GRID.horizon, halves, tolerance=0.03).densities_needed


def test_few_simulators_leave_more_room():
    """What 3 simulators lost is nothing sure at 2 standard errors: Student's interval is more than twice as wide."""
    halves, three = torch.full((2, 3, GRID.num_states, 2), 0.1, dtype=torch.float64), torch.tensor([0.38, 0.4, 0.45])
    found = appraise(GRID, three.double(), (0,) * GRID.horizon, halves, tolerance=0.03)
    low, high = stats.ttest_1samp(0.5 - three.double().numpy(), 0.0).confidence_interval(0.95)
    assert found.lost == pytest.approx((low, high)) and not found.falls_short
