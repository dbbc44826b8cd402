"""Domain randomisation lies between the best list and the Bayes optimum within one episode, both exact."""

import pytest
import torch
from support.known import worlds_of

from s2r_torch.comparators.random_actions import uniform
from s2r_torch.comparators.randomisation import HistoryPolicy, Randomised, histories, history_fqi, q_values
from s2r_torch.episodes import Rollouts, rollout
from s2r_torch.families import exact
from s2r_torch.families.grid import Grid
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.rng import Seed
from s2r_torch.runs.evaluation import attempt_values

MIXTURE = Mixture(horizon=2, quadrature=1)


def trained(family, simulators: int, episodes: int, steps: int):
    worlds = worlds_of(family, simulators, seed=9)
    A = family.spec.num_actions
    seen = rollout(worlds.guard("randomise"), uniform(A, Seed.root(1)), episodes, Seed.root(2))
    return history_fqi(seen, A, 32, steps, Seed.root(3))


def by_hand() -> Rollouts:
    x = torch.arange(12.0).reshape(1, 2, 3, 2)
    actions = torch.tensor([[[0, 1, 1], [1, 0, 0]]])
    return Rollouts(x, actions, torch.tensor([[[0.0, 0.5, 0.0], [0.0, 1.0, 0.0]]], dtype=torch.float64))


def test_histories_hold_all_that_was_seen_and_done():
    first, second, third = histories(by_hand(), 2)
    assert first.tolist() == [[0, 1], [6, 7]]
    assert second.tolist() == [[0, 1, 1, 0, 2, 3], [6, 7, 0, 1, 8, 9]]
    assert third[1].tolist() == [6, 7, 0, 1, 8, 9, 1, 0, 10, 11]


def test_a_policy_sees_the_history_of_the_running_episode_alone():
    networks = trained(MIXTURE, 20, 10, 20)
    policy = HistoryPolicy(networks, 2)
    g = torch.Generator().manual_seed(0)
    x = [torch.rand(3, 4, 1, dtype=torch.float64, generator=g) * 3 for _ in range(2)]
    for _ in range(2):  # a second episode is as the first one
        actions = [policy(step, x[step]) for step in range(2)]
        taken = torch.nn.functional.one_hot(actions[0], 2).float()
        history = torch.cat([x[0].float(), taken, x[1].float()], -1)
        assert torch.equal(actions[1], q_values(networks[1], history).argmax(-1))


def test_layers_after_the_last_payoff_are_left_out():
    networks = history_fqi(by_hand(), 2, 4, 3, Seed.root(0))
    assert [bool(network) for network in networks] == [True, True, False]
    assert [bool(network) for network in trained(Grid(), 10, 10, 3)] == [True, True, True, False, False]


def test_it_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    networks = trained(MIXTURE, 5, 5, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(networks[0], trained(MIXTURE, 5, 5, 5)[0], strict=True))


@pytest.mark.statistical
def test_it_lies_between_the_best_list_and_the_bayes_optimum():
    """Above the ceiling would be a leak of theta; below the list, a fit that failed. Both by enumeration."""
    truth = MIXTURE.truth(MIXTURE.payoff_grid(80))
    ceiling, floor = exact.best_blind(truth), exact.open_loop(truth)[1]
    worlds = worlds_of(MIXTURE, 400)
    values = attempt_values(Randomised(trained(MIXTURE, 2048, 64, 800), 2).attempt(worlds), worlds, 400)
    error = float(values.std()) / 400**0.5 + 0.5 / (400 * 400) ** 0.5
    assert floor - 4.5 * error <= float(values.mean()) <= ceiling + 4.5 * error
    assert ceiling == pytest.approx(0.3588, abs=5e-4) and floor == pytest.approx(0.3573, abs=5e-4)
