"""Worlds of public packages as families: who they pay, against closed forms, and what `check_family` finds."""

import pytest
import torch
from support.optional import needs

from s2r_torch.families import exact, make_family
from s2r_torch.families.check import check_family
from s2r_torch.families.treasure import HORIZON, LARGEST, TREASURES
from s2r_torch.rng import Seed

STATES = {"cliffwalking": 53, "minigrid": 84}


def family_and_theta(name, n=200):
    needs(name)
    family = make_family(name)
    return family, family.prior(n, Seed.root(0).generator())


@pytest.mark.parametrize("name", sorted(STATES))
def test_one_of_two_places_pays(name):
    """V* = max(w, 1 - w), world by world, and a fixed list earns w or 1 - w everywhere."""
    family, theta = family_and_theta(name)
    truth, w = family.truth(theta), theta[:, 2]
    torch.testing.assert_close(exact.optimal(truth)[0][:, 0], torch.maximum(w, 1 - w))
    assert truth.graph.num_states == STATES[name]
    assert exact.open_loop(truth)[1] == pytest.approx(float(torch.maximum(w.mean(), 1 - w.mean())), abs=1e-9)


def test_the_best_treasure_depends_on_the_price_of_time():
    """V* is the largest of what each treasure is worth with the fewest moves there are to it."""
    family, theta = family_and_theta("treasure")
    w = theta[:, 2]
    worth = [(1 - w) * v / LARGEST + w * (1 - (r + c - 1) / HORIZON) for (r, c), v in TREASURES.items()]
    torch.testing.assert_close(exact.optimal(family.truth(theta))[0][:, 0], torch.stack(worth).amax(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(STATES), "treasure"])
def test_they_are_what_they_say_and_densities_are_needed(name):
    report = check_family(family_and_theta(name, 1)[0])
    report.require()
    assert [finding.level for finding in report["densities are needed"]] == ["ok"]
    assert [finding.level for finding in report["what pays shows"]] == ["ok"]
