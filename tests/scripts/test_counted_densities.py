"""Densities drawn as counts are the estimators' own, have the law of readings, and carry Theorems L and R through."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pac_checks import check_failure_rate

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.kernels import make_kernel
from s2r_torch.density.radius import bias_constant
from s2r_torch.families import make_family
from s2r_torch.planner.schedules import paper
from s2r_torch.rng import Seed

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_theorems as bench  # noqa: E402
import counted_densities as counted  # noqa: E402

MIXTURE = make_family("mixture", horizon=2)
THETA = torch.tensor([-1.0, 0.3, 0.9], dtype=torch.float64)


def readings(state, n):
    """[B, n, 1] of the family's own at one state."""
    generators = [Seed.root(3).child(b).generator() for b in range(len(THETA))]
    return MIXTURE.emit(THETA[:, None], torch.full((len(THETA), n), state), generators)


def counts_of(x, look):
    edges = np.linspace(0, MIXTURE.num_cells, look.intervals + 1)
    return torch.stack([torch.from_numpy(np.histogram(row, edges)[0]) for row in x[..., 0].numpy()])


@pytest.mark.parametrize("window", [1, 3])
def test_estimates_from_counts_are_the_estimators(window):
    look = counted.Look(60, window, 5000)
    x = readings(1, look.n)
    estimator = DensityEstimator(look.grid(MIXTURE), make_kernel("box", 2.0), (window * 3 / 60,))
    assert torch.allclose(counted.estimate(counts_of(x, look), MIXTURE, look), estimator(x).double(), atol=1e-6)


def test_counts_have_the_law_of_readings():
    look, n = counted.Look(30, 1, 1), 200_000
    for state in range(MIXTURE.graph.num_states):
        p = counted._shares(MIXTURE, THETA, look)[:, state]
        counts = counts_of(readings(state, n), look)
        assert bool(((counts - n * p).abs() <= 5 * (n * p * (1 - p)).sqrt() + 1).all())


def test_with_readings_without_end_only_the_bias_is_left():
    look = counted.Look(120, 2, counted.MOST_READINGS)
    h, constants = 2 * 3 / 120, MIXTURE.constants()
    true = counted.true_densities(MIXTURE, THETA, look)
    drawn = counted.draw(MIXTURE, THETA, 1, look, np.random.default_rng(0))
    bias = bias_constant(make_kernel("box", 2.0), 1) * constants.C_alpha * h**2
    error = float((drawn - true[:, 1]).abs().max())
    assert 0.2 * bias < error <= bias


def test_the_look_is_the_cheapest_that_reaches_the_radius():
    kernel, events = make_kernel("box", 2.0), (1000, 0.05)
    look = counted.cheapest_look(MIXTURE, 0.01, *events)
    fewer = counted.Look(look.intervals, look.window, look.n - 1)
    assert counted._radius(MIXTURE, kernel, look, *events) <= 0.01 < counted._radius(MIXTURE, kernel, fewer, *events)
    others = [counted.cheapest_look(MIXTURE, 0.01, *events, intervals=k).n for k in (look.intervals // 2, 3000)]
    assert all(n >= 0.99 * look.n for n in others)


def test_two_paths_to_one_state_are_two_with_few_readings():
    mixture = make_family("mixture", horizon=3)
    many = counted.Look(60, 1, 10**7)
    members, draws = bench.the_class(mixture, many.grid(mixture)), np.random.default_rng(0)
    assert counted.see(mixture, members, THETA, many, draws).merged
    assert not counted.see(mixture, members, THETA, counted.Look(60, 1, 100), draws).merged


@pytest.mark.parametrize(("rule", "holds"), [("erratum", True), ("paper", False)])
def test_claims_over_both_layers_on_densities_from_readings(rule, holds):
    """theory.md 2.8, at the paper's phi, n_train and the least n_dist that the radius at nodes allows: 6e13."""
    setting = bench.setting_of(MIXTURE, 64, 0.1)
    plan = paper(setting)
    densities = (plan.budget.num_simulators + 1) * setting.max_num_states * setting.num_actions
    look = counted.cheapest_look(MIXTURE, plan.density_radius, densities, plan.delta_density)
    members = bench.the_class(MIXTURE, look.grid(MIXTURE))
    simulators = bench.Environments.draw(MIXTURE, members, 20, 0.0, Seed.root(0))
    seen = counted.see(MIXTURE, members, simulators.theta, look, simulators.draws)
    assert seen.merged and seen.error <= plan.density_radius < 1e-4
    environments = replace(simulators, theta_hat=seen.theta_hat)
    learner, within = bench.Learner(environments, plan.budget, rule), []
    for step, state in MIXTURE.graph.backward():
        learner.td_eliminate(state)
        bounds = bench.claimed(setting, plan.budget.phi, step + 1)
        within.append(
            all(m <= b for m, b in zip(bench.claims(environments, learner.alive, state), bounds, strict=True))
        )
    assert bool(learner.alive[0]) and all(within) == holds


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("theorem", "horizon", "trials"), [("R", 2, 8), ("R", 3, 5), ("L", 2, 5)])
def test_theorems_end_to_end_at_their_own_sizes(theorem, horizon, trials):
    """theory.md 3.2, 3.3: densities, merging, elimination and deployment from as many readings as they ask for."""
    mixture, epsilon = make_family("mixture", horizon=horizon), 0.15
    setting = bench.setting_of(mixture, 64, epsilon)
    ended = [bench.end_to_end(mixture, setting, theorem, Seed.root(12).child(trial)) for trial in range(trials)]
    check_failure_rate(sum(e.failed(epsilon) for e in ended), trials, setting.delta)
    assert all(e.error <= 1 for e in ended) and max(e.survivors for e in ended) < 32
    members = bench.the_class(mixture)
    worlds = bench.Environments.draw(mixture, members, 500, 0.0, Seed.root(13))
    assert max(float(worlds.losses(f).mean()) for f in range(members.size)) > epsilon  # so the promise says something
