"""A family seen through an encoder: the same environments, features for readings, and all checks hold for phi(X)."""

import pytest
import torch
from support.strip import strip

from s2r_torch.encoders.encoding import features_spec, made
from s2r_torch.encoders.views import Views
from s2r_torch.episodes import Guard, Ledger, observe
from s2r_torch.errors import ObservationError
from s2r_torch.families import encoded as module
from s2r_torch.families.check import check_family
from s2r_torch.families.contract import Family
from s2r_torch.families.encoded import EncodedFamily, unencoded
from s2r_torch.rng import Seed
from s2r_torch.runs.encoding import boxed


@pytest.fixture(scope="module")
def family() -> EncodedFamily:
    inner = strip()
    phi = made("learned", {"steps": 100, "payoff": [0.3]}, inner.spec)
    theta = inner.prior(64, Seed.root(0).generator())
    views = Views(Guard(inner.simulators(theta, range(64)), Ledger(), "encode"), Seed.root(1))
    phi.module.fit(views, Seed.root(2))
    return EncodedFamily(inner, boxed(phi, views))


def test_it_shows_phi_of_what_the_inner_one_shows(family):
    theta = family.prior(3, Seed.root(3).generator())
    paths = [(), (0,), (1, 2)]
    for path in paths:
        raw, seen = (
            observe(Guard(f.simulators(theta, range(3)), Ledger(), "x"), path, 5, Seed.root(4))
            for f in (family.inner, family)
        )
        assert torch.equal(family.phi(raw), seen)
    raw, seen = (f.world(theta[0], Seed.root(5).generator()) for f in (family.inner, family))
    assert torch.equal(family.phi(raw.reset(4)), seen.reset(4))
    assert torch.equal(family.phi(raw.step(torch.ones(4).long())), seen.step(torch.ones(4).long()))
    assert family.simulators(theta, (7, 8, 9)).select([2, 0]).ids == (9, 7)


def test_raw_readings_are_held_a_few_simulators_at_a_time(family, monkeypatch):
    """Large ones go out of cache, and their memory is touched afresh for every call: three times as slow."""
    theta, held = family.prior(5, Seed.root(3).generator()), []

    def episodes():
        simulators = family.simulators(theta, range(5))
        x = simulators.reset(4, [Seed.root(6).child(i).generator() for i in range(5)])
        seen = [(x, torch.zeros(5, 4, dtype=torch.float64))]
        for a in (1, 2, 0):
            seen.append(simulators.step(torch.full((5, 4), a)))
        return seen

    whole = episodes()
    monkeypatch.setattr(module, "IN_CACHE", 2 * 4 * 14)
    shown = family.inner.sensor.read
    monkeypatch.setattr(type(family.inner.sensor), "read", lambda self, *a: (held.append(len(a[0])), shown(*a))[1])
    for (x, rewards), (z, paid) in zip(whole, episodes(), strict=True):
        assert (x is None and z is None) or torch.equal(x, z)
        assert torch.equal(rewards, paid)
    assert held == [2, 2, 1] * 3


def test_its_truth_is_the_inner_one_seen_through_phi_whatever_fits_into_memory(family, monkeypatch):
    theta = family.prior(5, Seed.root(3).generator())
    raw, whole = family.inner.truth(theta), family.truth(theta)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    for truth in (whole, family.truth(theta)):
        assert torch.equal(truth.x, family.phi(raw.x))
        assert torch.equal(truth.reward, raw.reward) and torch.equal(truth.weight, raw.weight)
    assert family.known_graph().num_states == raw.graph.num_states
    assert family.mean_rewards(theta).shape == (5, raw.graph.num_states, 3)


def test_dynamics_are_looked_at_once_for_a_truth_whatever_its_parts(family, monkeypatch):
    """Part by part, a thousand worlds of images took minutes of stepped environments."""
    dynamics, opened = type(family.inner.dynamics), []
    episode = dynamics.episode
    monkeypatch.setattr(
        dynamics, "episode", lambda self, theta, *a, **k: opened.append(1) or episode(self, theta, *a, **k)
    )
    monkeypatch.setattr(module, "AT_ONCE", 1)
    counts = []
    for seed in (11, 12):
        opened.clear()
        theta = family.prior(40, Seed.root(seed).generator())
        family.inner.simulators(theta, range(40)) if seed == 11 else family.truth(theta)
        counts.append(len(opened))
    assert counts[0] <= counts[1] <= counts[0] + 3  # the first theta, before the others


@pytest.mark.slow
def test_all_checks_of_a_family_hold_for_features(family):
    """Among them Assumption 5 (states can be told apart) and 1 (what pays shows), of phi(X)."""
    assert isinstance(family, Family) and unencoded(family) is family.inner is unencoded(family.inner)
    wanted = ("one simulator beside others", "box of readings", "one state graph for all", "what pays shows", "worlds")
    report = check_family(family, only=wanted)  # not `truth`: the strip's own quadrature is coarse
    report.require()
    levels = {finding.checked: finding.level for finding in report.findings}
    told = ("name and parameters", "states can be told apart", "densities are needed", "what pays shows", "worlds")
    assert {levels[name] for name in told} == {"ok"}


@pytest.mark.slow
def test_an_encoder_that_loses_the_states_is_found_by_these_checks():
    """Total brightness: the spot is as bright wherever it is."""
    inner = strip()
    phi = made("pca", {"dim": 1}, inner.spec)
    phi.module.components.copy_(torch.ones(1, 14))
    lost = EncodedFamily(inner, boxed(phi, views_of(inner)))
    assert "states can be told apart" in {finding.checked for finding in check_family(lost).refused}


def test_an_encoder_that_was_not_fitted_is_told():
    inner = strip()
    phi = made("pca", {"dim": 1}, inner.spec)
    phi.module.components.zero_()
    with pytest.raises(ObservationError, match="feature_1 = 0 for all"):
        boxed(phi, views_of(inner))


def views_of(inner) -> Views:
    theta = inner.prior(8, Seed.root(0).generator())
    return Views(Guard(inner.simulators(theta, range(8)), Ledger(), "encode"), Seed.root(1))


def test_a_box_holds_what_was_seen(family):
    z = Views(views_of(family.inner).simulators, Seed.root(9)).through(family.phi).z
    low, high = torch.tensor(family.spec.low), torch.tensor(family.spec.high)
    assert bool(((z > low) & (z < high)).all()) and float((high - low).max()) < 9
    assert features_spec(family.inner.spec, (0.0,), (1.0,)).obs_names == ("feature_1",)
