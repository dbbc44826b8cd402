"""Samples that no density can be estimated from are told by simulator, path and sensor, at every door."""

from dataclasses import replace

import pytest
import torch
from support.worlds import Tabular, class_of, estimator_of, policy_of, random_world

from s2r_torch import memory
from s2r_torch.assurance.rehearsal import look, policies_after
from s2r_torch.coverage import passages, path_cover
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.graph import after
from s2r_torch.learning import estimator
from s2r_torch.learning.estimator import (
    DensitySettings,
    estimate_densities,
    estimate_draws,
    estimate_patches,
    make_estimator,
)
from s2r_torch.learning.exploration import explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.rng import Seed

SEED, N, EACH = Seed.root(0), 60, torch.full((6,), 60)
IDS, AT_FAULT = (11, 5, 17, 40), 2
WORLD = random_world(6, 3, 2)
NAMED = replace(WORLD.spec, obs_names=("height",))
FAULTS = {
    "'height' has one value in all": lambda x: torch.full_like(x, 0.5),
    "'height' has one value in 9.% of": lambda x: torch.where(torch.arange(x.shape[1])[:, None] < N - 3, 0.5, x),
    "off the grid; got 100.00%": lambda x: x + 100,
}


class Faulty(Tabular):
    """Number 17 has a fault in one state."""

    @property
    def spec(self):
        return NAMED

    def with_fault(self, fault, state):
        emit = lambda theta, at, generators: self.spoilt(fault, state, theta, at, generators)  # noqa: E731
        object.__setattr__(self, "emit", emit)
        return Guard(self.simulators((-0.2, 0.1, 0.3, 0.0), IDS), Ledger(), "test")

    def spoilt(self, fault, state, theta, at, generators):
        x = Tabular.emit(self, theta, at, generators)
        here = (theta == 0.3).reshape(-1, 1, 1) & (at == state)[..., None]
        return torch.where(here, fault(x), x)


def faulty(fault, state):
    return Faulty(WORLD.graph, WORLD.number, WORLD.rewards, WORLD.tilt).with_fault(fault, state)


def policy():
    world = Faulty(WORLD.graph, WORLD.number, WORLD.rewards, WORLD.tilt)
    return policy_of(world, class_of(world, torch.zeros(1, 3, 2 * WORLD.spec.max_states_per_layer, 2)), n_real=N)


DOORS = {
    "explore": lambda guard: explore(guard, estimator_of(WORLD), MergeSettings(n_merge=N), N, SEED),
    "estimate": lambda guard: estimate_densities(guard, WORLD.graph, estimator_of(WORLD), N, SEED),
    "draws": lambda guard: estimate_draws(guard, WORLD.graph, estimator_of(WORLD), EACH, 2, SEED),
    "pilot": lambda guard: make_estimator(DensitySettings(n_pilot=N), guard, N, SEED),
    "rehearse": lambda guard: next(policies_after(policy(), guard, [N], SEED)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_told_by_simulator_path_and_sensor(door, message):
    state = WORLD.graph.end((0,))
    with pytest.raises(ObservationError, match=message) as caught:
        DOORS[door](faulty(FAULTS[message], state))
    assert "in simulator 17 after actions 0;" in str(caught.value) and "index" not in str(caught.value)


def test_a_second_passage_is_told_by_its_own_path():
    graph, calls = WORLD.graph, 0
    (again, sequence), *_ = passages(graph, path_cover(graph))
    path = path_cover(graph)[sequence][: int(graph.layer[again])]

    def later(x):  # the first time that the state is passed, all is well
        nonlocal calls
        calls += 1
        return x + 100 if calls > 1 else x

    with pytest.raises(ObservationError, match=f"in simulator 17 {after(path)};"):
        look(policy(), faulty(later, again), SEED)


def test_densities_that_do_not_fit_are_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    ledger = Ledger()
    guard = Guard(WORLD.simulators((0.0, 0.1, 0.2, 0.3), IDS), ledger, "test")
    with pytest.raises(SettingError, match=r"memory for densities of 4 simulators at 6 states on \d+ nodes; got"):
        estimate_densities(guard, WORLD.graph, estimator_of(WORLD), N, SEED)
    assert ledger.counts.total() == 0


def test_room_is_asked_for_before_any_is_taken(monkeypatch):
    guard, estimate = Guard(WORLD.simulators((0.0, 0.1), IDS[:2]), Ledger(), "test"), estimator_of(WORLD)
    order, empty, whole = [], torch.empty, [2, WORLD.graph.num_states, estimate.grid.num_points]
    monkeypatch.setattr(estimator, "require_memory", lambda *told: order.append("asked"))
    monkeypatch.setattr(torch, "empty", lambda *size, **kinds: (order.append([*size]), empty(*size, **kinds))[1])
    estimate_densities(guard, WORLD.graph, estimate, N, SEED)
    assert order.index("asked") < order.index(whole)


def test_draws_are_independent_estimates_of_every_simulator_in_turn():
    """Row k B + b is simulator b's: as near to its own other draws as two estimates are, far from those of others."""
    tilts, ledger = (-0.4, 0.0, 0.4), Ledger()
    guard = Guard(WORLD.simulators(tilts, IDS[:3]), ledger, "test")
    D = estimate_draws(guard, WORLD.graph, estimator_of(WORLD), 10 * EACH, 5, SEED).dense().unflatten(0, (5, 3))
    counted = ledger.counts.total()
    once = estimate_patches(guard, WORLD.graph, estimator_of(WORLD), 10 * EACH, SEED).dense()
    assert counted == 5 * (ledger.counts.total() - counted)  # an episode serves all states that it passes here, too
    apart = lambda a, b: float((a - b).abs().amax(-1).mean())  # noqa: E731
    for b in range(3):
        own = [apart(D[k, b], once[b]) for k in range(5)]
        others = [apart(D[k, b], once[c]) for k in range(5) for c in range(3) if c != b]
        assert 0 < max(own) < min(others)
    between = [apart(D[j, b], D[k, b]) for b in range(3) for j in range(5) for k in range(j)]
    assert min(between) > 0
    torch.testing.assert_close(
        estimate_draws(guard, WORLD.graph, estimator_of(WORLD), 10 * EACH, 1, SEED).dense(), once
    )
