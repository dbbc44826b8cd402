"""Likelihoods against numerical integration and against what families emit."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from support.known import worlds_of

from s2r_torch.coverage import path_cover
from s2r_torch.families.cliffwalking import CliffWalking
from s2r_torch.families.contract import Likelihood
from s2r_torch.families.frozenlake import FrozenLake
from s2r_torch.families.grid import Grid
from s2r_torch.families.likelihood import camera_evidence, midpoints, offset_evidence
from s2r_torch.families.lock import Lock
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.families.noise import bump_constant
from s2r_torch.rng import Seed

FAMILIES = {
    "grid": Grid(),
    "lock": Lock(),
    "mixture": Mixture(),
    "two_point": Mixture(horizon=3, theta_law="two_point"),
    "frozenlake": FrozenLake(),
    "cliffwalking": CliffWalking(),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def test_midpoints_are_equally_likely():
    assert midpoints(-1.0, 1.0, 4).tolist() == [-0.75, -0.25, 0.25, 0.75]


@pytest.mark.parametrize("smoothness", [1, 2])
@pytest.mark.parametrize("residual", [[0.3], [0.1, -0.2], [0.5, 0.4, 0.45, 0.3]])
def test_evidence_is_the_integral(residual, smoothness):
    def integrand(o, h):
        t = (np.array(residual) - o) / h
        return np.prod(bump_constant(smoothness) * np.clip(1 - t**2, 0, None) ** smoothness / h)

    widths = [0.15, 0.3, 0.45]
    found = offset_evidence(
        torch.tensor([residual], dtype=torch.float64), torch.tensor(widths).double(), 0.6, smoothness
    )
    for h, log_value in zip(widths, found[0].tolist(), strict=True):
        edges = sorted({-0.6, 0.6, *(min(0.6, max(-0.6, r + s * h)) for r in residual for s in (-1, 1))})
        parts = [integrate.quad(integrand, a, b, args=(h,), epsabs=1e-13)[0] for a, b in itertools.pairwise(edges)]
        assert np.exp(log_value) == pytest.approx(sum(parts) / 1.2, rel=1e-6, abs=1e-12)


def test_many_worlds_are_cut_into_pieces(monkeypatch):
    residual = 0.2 * torch.rand(7, 5, dtype=torch.float64)
    whole = offset_evidence(residual, torch.tensor([0.2, 0.4]).double(), 0.5, 2)
    monkeypatch.setattr("s2r_torch.families.likelihood.ENTRIES", 1)
    assert torch.equal(offset_evidence(residual, torch.tensor([0.2, 0.4]).double(), 0.5, 2), whole)


def test_the_evidence_of_a_camera_is_the_integral():
    """Against a plain sum over a fine grid of all headings and gains."""
    g = torch.Generator().manual_seed(0)
    places = torch.tensor([[-1.5, -1.5], [-1.5, -0.5], [-0.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    widths = torch.tensor([0.2, 0.3], dtype=torch.float64)
    turn = torch.tensor([[math.cos(2.0), -math.sin(2.0)], [math.sin(2.0), math.cos(2.0)]], dtype=torch.float64)
    x = 1.1 * places @ turn.T + 0.15 * (2 * torch.rand(1, 4, 2, dtype=torch.float64, generator=g) - 1)
    angles, gains = midpoints(-math.pi, math.pi, 2000), midpoints(1.0, 1.2, 40)
    a, b = gains * angles[:, None].cos(), gains * angles[:, None].sin()
    seen = torch.stack(
        [
            a[..., None] * places[:, 0] - b[..., None] * places[:, 1],
            b[..., None] * places[:, 0] + a[..., None] * places[:, 1],
        ],
        -1,
    )
    for h, found in zip(widths.tolist(), camera_evidence(x, places, widths, (1.0, 1.2), 2)[0].tolist(), strict=True):
        t = (x - seen) / h
        likelihood = (bump_constant(2) * (1 - t.square()).clamp(min=0).square() / h).prod(-1).prod(-1)
        assert found == pytest.approx(float(likelihood.mean().log()), abs=0.01)


def test_many_readings_of_a_camera_are_multiplied_in_pieces(monkeypatch):
    g = torch.Generator().manual_seed(1)
    places = torch.tensor([[-1.5, -1.5], [-0.5, 0.5], [1.5, 0.5]], dtype=torch.float64).repeat(30, 1)
    x = 1.1 * places + 0.2 * (2 * torch.rand(3, 90, 2, dtype=torch.float64, generator=g) - 1)
    widths = torch.tensor([0.15, 0.25, 0.3], dtype=torch.float64)
    whole = camera_evidence(x, places, widths, (1.0, 1.2), 2)
    monkeypatch.setattr("s2r_torch.families.likelihood.AT_ONCE", 1)
    monkeypatch.setattr("s2r_torch.families.likelihood.READINGS", 1)
    assert torch.allclose(camera_evidence(x, places, widths, (1.0, 1.2), 2), whole, rtol=1e-12)
    assert bool(whole[:, 0].isinf().all()) and bool(whole[:, 1:].isfinite().all())  # noise of 0.2 is wider than 0.15


@every_family
def test_a_payoff_grid_pays_what_the_prior_pays(family):
    """The mean reward over the grid is the mean over draws of the prior, whatever else theta holds."""
    theta = family.payoff_grid(200)
    drawn = family.prior(4000, Seed.root(0).generator())
    mean = [(t.weight[..., None] * t.reward).sum(2).mean(0) for t in map(family.truth, (theta, drawn))]
    assert isinstance(family, Likelihood) and float((mean[0] - mean[1]).abs().max()) < 0.02


@pytest.mark.slow
@every_family
def test_posteriors_are_calibrated(family):
    """Theta of the prior is as any draw of its posterior: its ranks are uniform (simulation-based calibration)."""
    grid, worlds = family.payoff_grid(60), worlds_of(family, 150)
    theta, graph = worlds.theta, family.truth(worlds.theta[:1]).graph
    sequences = tuple((*path, 0) for path in path_cover(graph)[:3])
    seen = worlds.walk(sequences, 1, worlds.seed, "test")
    states = graph.visited(torch.tensor(sequences)).flatten()
    posterior = family.log_likelihood(grid, states, seen.x.flatten(1, 2)).softmax(1)
    if len(grid) == 2:  # two values: the posterior probability of the truth is the chance to be right
        right = theta[:, 0] > 0
        error = (posterior[:, 0] - right.double()).mean() / (posterior.prod(1).mean() / 150).sqrt()
        assert abs(float(error)) < 4.5
        return
    pays = theta.shape[1] - 1
    rank = (posterior * (grid[:, pays] < theta[:, pays:])).sum(1)
    assert stats.kstest(rank.numpy(), "uniform").pvalue > 1e-3
    assert float((posterior @ grid[:, pays] - theta[:, pays]).std()) < 0.9 * float(theta[:, pays].std())
