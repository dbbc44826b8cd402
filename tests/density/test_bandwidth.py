"""Bandwidth rules: constants, error against the oracle, rates, guards."""

import math

import pytest
import torch

from s2r_torch.density.bandwidth import (
    lepski_bandwidth,
    normal_reference_constant,
    paper_bandwidth,
    reference_bandwidth,
)
from s2r_torch.density.estimator import DensityEstimator, DensityGrid, sup_distance
from s2r_torch.density.kernels import LegendreKernel
from s2r_torch.errors import ObservationError, SettingError


def normal(shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bimodal(shape, seed):
    """1/2 N(-1.5, 0.4^2) + 1/2 N(1.5, 0.4^2)."""
    sign = torch.randint(2, shape, generator=torch.Generator().manual_seed(seed + 1)) * 2 - 1
    return 1.5 * sign + 0.4 * normal(shape, seed)


def gauss(x, mean=0.0, scale=1.0):
    return torch.exp(-(((x - mean) / scale) ** 2) / 2) / (scale * math.sqrt(2 * math.pi))


TRUTH = {normal: gauss, bimodal: lambda x: (gauss(x, -1.5, 0.4) + gauss(x, 1.5, 0.4)) / 2}
GRID = DensityGrid.uniform((-6.0,), (6.0,), 301)


def error(draw, kernel, h, n, trials=30, seed=7):
    """Mean over trials of the sup error of estimates with bandwidth h."""
    D = DensityEstimator(GRID, kernel, (h,))(draw((trials, n), seed)[..., None])
    return float(sup_distance(D, TRUTH[draw](GRID.axes[0])).mean())


def test_paper_rule():
    assert paper_bandwidth(1024, 4, 2) == pytest.approx(0.5, rel=1e-14)
    with pytest.raises(SettingError, match="n >= 1"):
        paper_bandwidth(0, 2, 1)


@pytest.mark.parametrize(("order", "constant"), [(2, 1.843), (4, 2.627), (6, 3.190), (8, 3.653)])
def test_reference_constants(order, constant):
    assert normal_reference_constant(LegendreKernel(order), 1) == pytest.approx(constant, abs=5e-4)


def test_reference_constant_in_two_dimensions_minimises_the_error():
    """The d-dimensional constant against quadrature of variance + bias^2 with the leading bias terms."""
    kernel, n = LegendreKernel(2), 1000
    grid = DensityGrid.uniform((-8.0,) * 2, (8.0,) * 2, 161)
    x, y = grid.nodes.T
    bias = (x**2 - 1 + y**2 - 1) * gauss(x) * gauss(y) * float(kernel.moment(2)) / 2
    squared = float((bias**2 * grid.weights).sum())
    best = min(
        (0.01 * i for i in range(10, 200)), key=lambda h: kernel.l2_norm_squared**2 / (n * h**2) + h**4 * squared
    )
    assert normal_reference_constant(kernel, 2) * n ** (-1 / 6) == pytest.approx(best, abs=0.006)


def test_reference_follows_the_scale_of_each_axis_and_ignores_a_bad_state():
    x = normal((9, 200, 2), seed=0) * torch.tensor([1.0, 5.0]).double() + 100
    h = reference_bandwidth(x, 200, LegendreKernel(4))
    assert h[1] / h[0] == pytest.approx(5, rel=0.1)
    x[3] *= 1000
    assert reference_bandwidth(x, 200, LegendreKernel(4)) == pytest.approx(h, rel=0.1)
    assert reference_bandwidth(x, 2**10 * 200, LegendreKernel(4))[0] == pytest.approx(h[0] / 2, rel=0.1)


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("draw", [normal, bimodal])
def test_lepski_is_close_to_the_best_bandwidth(draw, order):
    kernel, n = LegendreKernel(order), 500
    best = min(error(draw, kernel, 3 * 1.15**-i, n) for i in range(25))
    h = lepski_bandwidth(draw((20, n), 3)[..., None], n, kernel, GRID)[0]
    assert error(draw, kernel, h, n) <= 1.25 * best
    if draw is bimodal:
        assert error(draw, kernel, reference_bandwidth(draw((20, n), 3)[..., None], n, kernel)[0], n) >= 2 * best


def test_lepski_in_two_dimensions_keeps_the_scales_and_the_rate():
    grid, kernel = DensityGrid.uniform((-5.0, -25.0), (5.0, 25.0), 41), LegendreKernel(2)
    x = normal((8, 100, 2), seed=4) * torch.tensor([1.0, 5.0]).double()
    h = lepski_bandwidth(x, 100, kernel, grid)
    assert h[1] / h[0] == pytest.approx(5, rel=0.1)
    reference = reference_bandwidth(x, 100, kernel)
    assert 0.6 * reference[0] <= h[0] <= reference[0] * 1.01
    later = lepski_bandwidth(x, 800, kernel, grid)
    assert later[0] == pytest.approx(h[0] * 8 ** (-1 / 6))
    assert lepski_bandwidth(x, 10**12, kernel, grid) == grid.spacing  # never below it


def test_pilots_are_guarded():
    kernel = LegendreKernel(2)
    for x, message in (
        (normal((1, 1), 0), "at least 2 pilot samples"),
        (torch.ones(5, 1), "pilot samples that vary"),
        (normal((5, 1), 0) / 0, "NaN or inf"),
    ):
        with pytest.raises(ObservationError, match=message):
            lepski_bandwidth(x, 10, kernel, GRID)
        with pytest.raises(ObservationError, match=message):
            reference_bandwidth(x, 10, kernel)
    with pytest.raises(ObservationError, match="off the grid"):
        lepski_bandwidth(normal((50, 1), 0) * 100, 10, kernel, GRID)
    with pytest.raises(SettingError, match="shrink"):
        lepski_bandwidth(normal((50, 1), 0), 10, kernel, GRID, shrink=0.0)
    with pytest.raises(SettingError, match="n >= 1"):
        reference_bandwidth(normal((50, 1), 0), 0, kernel)


@pytest.mark.parametrize(("order", "rate"), [(2, -0.400), (4, -0.444)])
def test_rate_of_the_sup_error(order, rate):
    """E max |D_hat - D| / sqrt(log n) ~ n^(-alpha / (2 alpha + 1)) on a normal density (density.md, last line)."""
    kernel = LegendreKernel(order)
    sizes = [250, 1000, 4000, 16_000, 64_000]
    logs = [
        math.log(
            error(normal, kernel, normal_reference_constant(kernel, 1) * n ** (-1 / (2 * order + 1)), n)
            / math.sqrt(math.log(n))
        )
        for n in sizes
    ]
    x = torch.tensor(sizes).double().log()
    y = torch.tensor(logs).double()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert slope == pytest.approx(rate, abs=0.03)
