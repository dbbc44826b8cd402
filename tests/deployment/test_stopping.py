"""Sequential deployment: it stops when more episodes cannot change what is done, and keeps its promise."""

import math
from dataclasses import replace

import pytest
import torch
from support.pac_checks import check_failure_rate
from support.worlds import estimator_of, grid_of, policy_of, random_class, random_world

from s2r_torch.coverage import passes, path_cover
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.likeness import UNTESTED
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.stopping import Stopping, look, multiplier_noise
from s2r_torch.episodes import Ledger
from s2r_torch.errors import RecordingError, SettingError
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem

WORLD = random_world(5, 3, 2)
GRAPH, GRID = WORLD.graph, grid_of(WORLD)


class Signal:
    """f(D, x, .) = (0.5 + gain c(D), 0.5 - gain c(D)), c(D) = functional . D[0] - centre: which action depends on D."""

    size = 1

    def __init__(self, gain, centre):
        self.gain, self.centre = gain, centre
        self.functional = GRID.weights * (GRID.nodes[:, 0] - 0.5)  # about the mean reading's place in its cell

    def condition(self, D, readings=None):
        return self.gain * (D[:, 0] @ self.functional - self.centre)

    def q(self, c, step, x):
        return (0.5 + torch.stack([c, -c], -1))[None, :, None].expand(1, *x.shape[:2], 2)

    def subset(self, members):
        return self

    def lipschitz_bound(self):
        return (self.gain * self.functional.abs().sum()).reshape(1)


def meta_of(gain=0.2, centre=0.0, n_real=80) -> MetaPolicy:
    ensemble = Ensemble(Problem(WORLD.spec, GRAPH, GRID), (Signal(gain, centre),))
    return MetaPolicy(ensemble, 0, estimator_of(WORLD), path_cover(GRAPH), n_real)


def samples(n, seed=0, theta=0.5):
    world, seen = WORLD.world(theta, seed), []
    for path in GRAPH.paths:
        x = world.reset(n)
        for a in path:
            x = world.step(torch.full((n,), a))
        seen.append(x)
    return seen


def test_schedule():
    assert Stopping(looks=4).schedule(100) == [25, 50, 75, 100]
    assert Stopping(looks=4).schedule(10) == [3, 5, 8, 10]
    assert Stopping(looks=4).schedule(2) == [2] and Stopping(looks=4).schedule(1) == [1]


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": 5}, {"alpha": 0}, {"looks": 1}, {"tolerance": -1}, {"most_readings": 0}, {"by": "hope"}, {"draws": 100}],
)
def test_settings_that_mean_nothing(wrong):
    with pytest.raises(SettingError):
        Stopping(**wrong)


def test_noise_is_that_of_the_estimate():
    """Multiplier noise has the covariance of the estimate's own error, here at single nodes."""
    estimator, n, draws = estimator_of(WORLD), 60, 4000
    x = samples(n)
    Z = torch.cat(list(multiplier_noise(estimator, x, draws, torch.Generator().manual_seed(0))))
    assert Z.shape == (draws, GRAPH.num_states, GRID.num_points)
    again = torch.stack([torch.stack([estimator(one) for one in samples(n, seed)]) for seed in range(200)])
    shown, real = Z.std(0), again.std(0)
    busy = real > 0.3 * real.max()
    assert (shown[busy] / real[busy]).log().abs().median() < 0.3
    correlation = torch.corrcoef(Z[:, :2, busy[0].nonzero()[0]].flatten(1).T)
    assert correlation[0, 1].abs() < 0.1  # states are independent


def test_certified_loss_is_twice_the_bound_times_the_radius_less_the_lead():
    meta, x = meta_of(gain=0.01), samples(50)
    stopping = Stopping(by="certified", draws=2000)
    found = look(meta, 50, x, stopping)
    generator = torch.Generator().manual_seed(5)
    radius = torch.cat([Z.abs().amax((1, 2)) for Z in multiplier_noise(meta.estimator, x, 2000, generator)])
    r = float(radius.quantile(1 - 0.05 / 3))
    C_L = float(meta.ensemble.lipschitz_bound())
    gap = float((2 * meta.ensemble.groups[0].condition(meta.densities(x)[None])).abs())
    assert found.loss == pytest.approx(max(0.0, 2 * C_L * r - gap), rel=0.1)
    assert look(meta_of(gain=1e-6), 50, x, stopping).enough  # a policy that hardly looks at D needs no more


def test_bootstrap_never_asks_for_more_than_certified():
    x = samples(40)
    for centre in (0.0, 0.05, 0.3):
        meta = meta_of(centre=centre)
        losses = [look(meta, 40, x, Stopping(by=by)).loss for by in ("bootstrap", "certified")]
        assert losses[0] <= losses[1]


def test_the_same_readings_give_the_same_verdict():
    meta, x = meta_of(centre=0.06), samples(40)
    assert look(meta, 40, x, Stopping()) == look(meta, 40, x, Stopping())
    assert look(meta, 40, x, Stopping()).loss != look(meta, 40, x, Stopping(seed=1)).loss


def test_it_stops_where_actions_are_clear_and_goes_on_where_they_are_not():
    clear, ledger = meta_of(centre=-0.5), Ledger()
    deployed = deploy(clear, WORLD.world(0.5, 0), ledger, stopping=Stopping())
    assert (
        deployed.looks[-1].enough
        and torch.equal(deployed.used, 20 * passes(clear.problem.graph, clear.cover))
        and deployed.episodes == 20 * len(clear.cover)
    )
    assert ledger.counts["real"] == deployed.episodes and not deployed.as_trained
    assert "stopped at 20 of 80" in deployed.notices[0] and "certificate" in deployed.notices[0]
    assert deployed.likeness.verdict == UNTESTED

    doubtful = meta_of(gain=1.0, centre=0.05)  # the mean reading at theta = 0.5: a tie
    deployed = deploy(doubtful, WORLD.world(0.5, 0), stopping=Stopping(tolerance=0))
    assert [one.n for one in deployed.looks] == [20, 40, 60] and torch.equal(deployed.used, doubtful.readings)
    assert not any(one.enough for one in deployed.looks) and not deployed.as_trained
    assert "looked at all 80" in deployed.notices[0]


def test_looks_are_at_the_first_readings_whoever_collects():
    """Live, resumed or recorded: the same episodes give the same looks and the same policy."""
    meta, kept = meta_of(gain=1.0, centre=0.05), []
    live = deploy(meta, WORLD.world(0.5, 3), stopping=Stopping(), keep=kept.append)
    recorded = deploy_recorded(meta, Recording.joined(kept), stopping=Stopping())
    assert recorded.looks == live.looks and torch.equal(recorded.D_real, live.D_real)


def test_a_log_that_is_not_enough_says_what_to_record():
    meta, kept = meta_of(gain=1.0, centre=0.05), []
    deploy(replace(meta, n_real=30), WORLD.world(0.5, 3), keep=kept.append)
    with pytest.raises(RecordingError, match="at least 40 readings of every state.*still to be run: 10 of "):
        deploy_recorded(meta, Recording.joined(kept), stopping=Stopping(tolerance=0))
    with pytest.raises(RecordingError, match="at least 20 readings of every state .*; got 0 at the start"):
        deploy_recorded(meta, Recording.empty(WORLD.spec), stopping=Stopping())


def test_certified_needs_a_certificate():
    meta = meta_of(gain=math.inf)
    with pytest.raises(SettingError, match="stopping.by=bootstrap"):
        look(meta, 10, samples(10), Stopping(by="certified"))


def test_one_action_is_always_enough():
    world = random_world(2, 3, 1)
    meta = policy_of(world, random_class(world, 2, 0))
    for by in ("bootstrap", "certified"):
        assert deploy(meta, world.world(0.1, 0), stopping=Stopping(by=by)).looks[0].enough


@pytest.mark.statistical
@pytest.mark.parametrize("centre", [0.05, 0.065, 0.09])
def test_the_promise_is_kept_whenever_it_stops(centre):
    """alpha = 0.2: where it stops, what is done loses more than the tolerance under E D_hat in at most 20 %."""
    meta, stopping, trials = meta_of(gain=1.0, centre=centre), Stopping(alpha=0.2, tolerance=0.004, draws=60), 200
    group = meta.ensemble.groups[0]
    limit = meta.densities(samples(20_000, seed=9))  # E D_hat
    c = float(group.condition(limit[None]))
    failures = stopped = 0
    for trial in range(trials):
        deployed = deploy(meta, WORLD.world(0.5, 100 + trial), stopping=stopping)
        if deployed.looks[-1].enough:
            stopped += 1
            wrong = float(group.condition(deployed.D_real[None])) * c < 0
            failures += wrong and 2 * abs(c) > stopping.tolerance
    assert stopped > trials / 10
    check_failure_rate(failures, trials, stopping.alpha)
