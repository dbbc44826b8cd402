"""Honest families that are rare or large: what few draws happen to show is no lie, and a lie among them is found."""

import pytest
import torch
from support.lanes import Lane

from s2r_torch.families.check import OK, check_family, contract
from s2r_torch.families.check.contract import PAIRS, _pairs, rows_together
from s2r_torch.families.check.probe import Probe
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.rng import Seed

SENSOR = AffineSensor(("x",), columns=(1,), offset=lambda theta: theta[:, 0], width=0.2, noise="gaussian")


def game(step, num_actions, horizon, **changes):
    return FunctionFamily(
        name="game",
        step=step,
        start=(0, 0),
        num_actions=num_actions,
        theta_names=("w",),
        prior=uniform_prior((0.1, 0.2)),
        sensor=SENSOR,
        horizon=horizon,
        bernoulli_rewards=True,
        reward_scale=1.0,
        **changes,
    )


def lottery(theta, state, action):
    """Every action pays 1, in one to two tenths of all episodes."""
    return state, theta.w


def triangle(theta, state, action):
    """A place more with action 1; nothing pays but the last step."""
    h, place = state
    return (h + 1, place + action), theta.w * (h == 37)


def lying(family, **scales):
    """The family with another truth."""
    told = family.truth

    def truth(theta):
        true = told(theta)
        for name, change in scales.items():
            object.__setattr__(true, name, change(getattr(true, name)))
        return true

    family.truth = truth
    return family


def most_of_one(reward):
    reward = reward.clone()
    reward[..., 700] = 0.9
    return reward


def test_rare_payments_that_are_seen_24_times_each_are_no_lie():
    """Of 1500 actions some never pay in 24 episodes: their noise seems to be nothing, and the truth to be off."""
    assert check_family(game(lottery, 1500, 1), only={"truth"}).refused == ()


def test_one_action_among_them_that_pays_less_than_the_truth_says_is_found():
    (found,) = check_family(lying(game(lottery, 1500, 1), reward=most_of_one), only={"truth"}).refused
    assert "action 700" in found.found


def test_readings_of_many_states_are_no_lie():
    """741 states, 48 readings each: variances of so few are skewed."""
    report = check_family(game(triangle, 2, 38), only={"truth"})
    assert report.refused == (), report.lines()


class Seldom(Lane):
    """In one world of a hundred the light is on."""

    def prior(self, n, generator):
        u = torch.rand(n, 2, dtype=torch.float64, generator=generator)
        return torch.stack([u[:, 0], (u[:, 1] < 0.01).double()], 1)


@pytest.mark.parametrize("seed", range(3))
def test_two_rows_that_are_rare_once_are_no_dependence(seed, monkeypatch):
    """Rare in both rows of one pair of 200: a correlation of about a half, by chance."""
    probe = Probe(Seldom(), Seed.root(seed))
    unlucky = _pairs(probe, PAIRS)
    unlucky[..., 1] = 0.0
    unlucky[:2, 0, 1] = unlucky[1:3, 1, 1] = 1.0
    assert rows_together(unlucky).startswith("depend on each other")
    honest = _pairs
    monkeypatch.setattr(contract, "_pairs", lambda probe, n: unlucky if n == PAIRS else honest(probe, n))
    (found,) = contract.check_prior(probe)
    assert found.level == OK
