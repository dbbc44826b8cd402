"""Repair: envelopes hold, optimism ends in the best list, a nominal model gets stuck as often as it must."""

import pytest
import torch
from support.known import known_on, worlds_of

from s2r_torch.comparators.repair import Repairing, repair, rewards_of_simulators
from s2r_torch.episodes import Guard, Ledger, Transitions
from s2r_torch.families import exact
from s2r_torch.families.grid import SAFE, TREASURE, Grid
from s2r_torch.families.lock import Lock
from s2r_torch.rng import Seed
from s2r_torch.runs.evaluation import attempt_values, optimal_values

GRID = Grid()


def true_rewards(family, theta) -> torch.Tensor:
    """Mean rewards [B, xi, A]."""
    truth = family.truth(theta)
    return (truth.weight[..., None] * truth.reward).sum(2)


def test_rewards_of_simulators_are_those_of_a_loop():
    g = torch.Generator().manual_seed(0)
    actions = torch.randint(3, (2, 20), generator=g)
    rewards = torch.rand(2, 20, dtype=torch.float64, generator=g)
    found = rewards_of_simulators((Transitions(torch.zeros(2, 20, 1), actions, rewards),), 3)
    for b in range(2):
        for a in range(3):
            heard = [float(r) for r, taken in zip(rewards[b], actions[b], strict=True) if int(taken) == a]
            assert float(found[b, 0, a]) == pytest.approx(sum(heard) / len(heard))


def test_the_envelope_of_simulators_is_nowhere_below_a_world():
    """Up to the noise of 8 rewards a pair, and but for worlds beyond all 24 simulators."""
    known = known_on("grid")
    envelope = rewards_of_simulators(known.data.samples, 2).amax(0)
    assert bool((envelope >= true_rewards(GRID, worlds_of(GRID, 40).theta).amax(0) - 0.05).all())


@pytest.mark.parametrize("family", [GRID, Lock(horizon=3)], ids=["grid", "lock"])
def test_optimism_ends_in_the_best_list_of_the_world(family):
    worlds = worlds_of(family, 12)
    envelope = true_rewards(family, family.payoff_grid(100)).amax(0)
    attempt = Repairing(family.graph, envelope, None, 3000).attempt(worlds)
    assert attempt.accepted == 1.0
    values = attempt_values(attempt, worlds, 1)
    best = [exact.open_loop(family.truth(theta[None]))[1] for theta in worlds.theta]
    assert values.tolist() == pytest.approx(best, abs=0.03)


def test_rounds_are_no_more_than_lists_that_optimism_tries():
    """On grid: three lists pass different paying cells, and all others share those cells' rewards."""
    worlds = worlds_of(GRID, 10)
    envelope = true_rewards(GRID, GRID.payoff_grid(100)).amax(0)
    for w in range(10):
        ledger = Ledger()
        world = Guard(GRID.simulators(worlds.theta[w : w + 1], [w]), ledger, "test")
        repair(world, GRID.graph, envelope, 7, Seed.root(w), None)
        assert ledger.counts["test"] <= 7 * 18


@pytest.mark.slow
def test_a_nominal_model_gets_stuck_as_often_as_its_closed_form_says():
    """Nominal treasures .45 and .45 against the safe .5: it takes the safe cell, finds what it predicted, and stops.

    The world's best is max(.9 w, .9 (1 - w), .5), so that loses wherever max(w, 1 - w) > 5 / 9: with probability 8 / 9.
    """
    worlds = worlds_of(GRID, 400)
    nominal = true_rewards(GRID, GRID.payoff_grid(200)).mean(0)
    assert set(nominal.flatten().round(decimals=6).tolist()) == {0.0, TREASURE / 2, SAFE}
    attempt = Repairing(GRID.graph, nominal, 0.05, 400).attempt(worlds)
    stuck = (attempt_values(attempt, worlds, 1) < optimal_values(worlds) - 1e-9).double().mean()
    expected = 8 / 9
    assert abs(float(stuck) - expected) < 4.5 * (expected * (1 - expected) / 400) ** 0.5 + 0.03
