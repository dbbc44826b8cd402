"""The explicit radius: formulas by hand, coverage, how conservative it is, where it does not apply."""

import math

import pytest
import torch
from support.pac_checks import check_failure_rate

from s2r_torch.density.estimator import DensityEstimator, DensityGrid, sup_distance
from s2r_torch.density.kernels import EpanechnikovKernel, LegendreKernel
from s2r_torch.density.radius import bias_constant, explicit_bandwidth, explicit_radius, radius_at_nodes
from s2r_torch.errors import AssumptionError, SettingError

NORMAL_CURVATURE = 1 / math.sqrt(2 * math.pi)  # max |phi''|: C_alpha of a standard normal density, alpha = 2


def test_formulas_by_hand():
    n, h, delta = 5000, 0.5, 0.1
    dkw = explicit_radius(LegendreKernel(4), n, h, holder_constant=3.0, delta=delta)
    assert dkw.stochastic == pytest.approx(5.25 / h * math.sqrt(math.log(20) / (2 * n)))
    assert dkw.bias == pytest.approx(3.0 * h**4 / 24 * math.gamma(2) * 0.157419805952640175)
    assert dkw.total == dkw.stochastic + dkw.bias
    bernstein = explicit_radius(
        EpanechnikovKernel(2), n, h, holder_constant=1.0, delta=delta, obs_dim=2, density_bound=0.2, side=8.0
    )
    M, v = 0.75**2 / h**2, 0.2 * 0.6**2 / h**2
    mesh = h**3 / (2 * (2 * 1.5 * 0.75) * math.sqrt(n * h**2))
    ell = math.log(2 * math.ceil(8 / (2 * mesh)) ** 2 / delta)
    first = M * ell / (3 * n)
    assert bernstein.stochastic == pytest.approx(
        first + math.sqrt(first**2 + 2 * v * ell / n) + 1 / math.sqrt(n * h**2)
    )
    assert bernstein.bias == pytest.approx(2 / 1 * 2 * 0.2 * h**2)


def test_the_form_at_nodes_by_hand():
    """theory.md 3.6, for a signed kernel in two dimensions."""
    n, h, kernel = 5000, 0.5, LegendreKernel(4)
    found = radius_at_nodes(kernel, n, h, holder_constant=3.0, delta=0.1, nodes=700, density_bound=0.2, obs_dim=2)
    M, v, ell = 2 * (9 / 8) ** 2 / h**2, 0.2 * (9 / 8) ** 2 / h**2, math.log(2 * 700 / 0.1)
    first = M * ell / (3 * n)
    assert found.stochastic == pytest.approx(first + math.sqrt(first**2 + 2 * v * ell / n))
    assert found.bias == pytest.approx(3.0 * bias_constant(kernel, 2) * h**4)
    with pytest.raises(SettingError, match="delta in"):
        radius_at_nodes(kernel, n, h, holder_constant=3.0, delta=1.0, nodes=700, density_bound=0.2)


def test_the_smaller_form_is_taken_and_the_bandwidth_minimises_it():
    kernel, settings = EpanechnikovKernel(2), {"holder_constant": NORMAL_CURVATURE, "delta": 0.05}
    dkw = explicit_radius(kernel, 10**6, 0.1, **settings)
    both = explicit_radius(kernel, 10**6, 0.1, density_bound=0.4, side=8.0, **settings)
    assert both.total < dkw.total
    h = explicit_bandwidth(kernel, 10**6, widest=5.0, **settings)
    best = explicit_radius(kernel, 10**6, h, **settings).total
    assert all(explicit_radius(kernel, 10**6, h * f, **settings).total > best for f in (0.8, 1.25))


def test_bias_constant_bounds_the_integral_in_two_dimensions():
    kernel = LegendreKernel(4)
    t = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    values = kernel(t).abs()
    norm = (t[:, None] ** 2 + t**2).sqrt()
    integral = torch.trapezoid(torch.trapezoid(values[:, None] * values * norm**4, t), t)
    exact = 8 / 6 * float(integral)  # sum over |m| = 3 of 1 / m! = 2^3 / 3!
    assert exact <= bias_constant(kernel, 2) <= 2.5 * exact


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"obs_dim": 2}, AssumptionError, "d = 1, or a kernel without jumps"),
        ({"delta": 0.0}, SettingError, "delta in"),
        ({"bandwidth": -1.0}, SettingError, "bandwidth > 0"),
    ],
)
def test_where_it_does_not_apply(change, error, message):
    settings = {"n": 100, "bandwidth": 0.5, "holder_constant": 1.0, "delta": 0.05, **change}
    with pytest.raises(error, match=message):
        explicit_radius(LegendreKernel(4), **settings)


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [LegendreKernel(2), EpanechnikovKernel(2)])
def test_it_covers_and_is_conservative_by_a_small_factor(kernel):
    trials, n, delta = 200, 20_000, 0.1
    settings = {"holder_constant": NORMAL_CURVATURE, "delta": delta, "density_bound": 0.4, "side": 12.0}
    h = explicit_bandwidth(kernel, n, widest=3.0, **settings)
    radius = explicit_radius(kernel, n, h, **settings)
    grid = DensityGrid.uniform((-6.0,), (6.0,), 241)
    x = torch.randn(trials, n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = torch.exp(-grid.axes[0].square() / 2) / math.sqrt(2 * math.pi)
    errors = sup_distance(DensityEstimator(grid, kernel, (h,))(x), truth)
    at_nodes = radius_at_nodes(
        kernel, n, h, holder_constant=NORMAL_CURVATURE, delta=delta, nodes=grid.num_points, density_bound=0.4
    )
    check_failure_rate(int((errors > at_nodes.total).sum()), trials, delta)
    assert at_nodes.total < radius.total
    check_failure_rate(int((errors > radius.total).sum()), trials, delta)
    assert 1.5 <= radius.total / float(errors.quantile(1 - delta)) <= 6
