"""Multiplier bands: moments against samples, coverage, the two-sample radius, guards."""

import math

import pytest
import torch
from support.pac_checks import check_failure_rate

from s2r_torch.density import bands
from s2r_torch.density.bands import SupBand, sup_band, sup_band_from_moments
from s2r_torch.density.bandwidth import lepski_bandwidth, reference_bandwidth
from s2r_torch.density.direct import kernel_values
from s2r_torch.density.estimator import DensityEstimator, DensityGrid, DensityStream, sup_distance
from s2r_torch.density.kernels import LegendreKernel
from s2r_torch.density.moments import combine_moments
from s2r_torch.errors import ObservationError, SettingError


def normal(shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def gauss(x):
    return torch.exp(-x.square() / 2) / (2 * torch.pi) ** 0.5


def estimator(d, order=4, nodes=33, h=1.2, **settings):
    grid = DensityGrid.uniform((-6.0,) * d, (6.0,) * d, nodes)
    return DensityEstimator(grid, LegendreKernel(order), (h,) * d, **settings)


def streamed(estimate, x):
    powers = max(c.num_powers for c in estimate.cells(x.dtype))
    stream = DensityStream(estimate, x.shape[:-2], x.dtype, degree=2 * powers - 2)
    stream.add(x)
    return stream


@pytest.mark.parametrize(("d", "nodes", "boundary"), [(1, 33, "none"), (1, 33, "legendre"), (2, 12, "none")])
def test_moments_and_samples_give_the_same_band(d, nodes, boundary, monkeypatch):
    estimate = estimator(d, nodes=nodes, boundary=boundary)
    x = normal((2, 150, d), seed=1)
    a = sup_band(estimate, x, 3000, generator=rng(1))
    monkeypatch.setattr(bands, "MOST_VALUES", 200_000)
    b = sup_band_from_moments(streamed(estimate, x), 3000, generator=rng(2))
    assert a.maxima.shape == b.maxima.shape == (2, 3000) and a.n == b.n == 150
    for level in (0.5, 0.9, 0.95):
        assert a.radius(level).tolist() == pytest.approx(b.radius(level).tolist(), rel=0.06)


@pytest.mark.parametrize(("d", "nodes", "order"), [(1, 12, 2), (1, 12, 8), (2, 6, 4)])
def test_moments_carry_the_exact_covariance(d, nodes, order):
    """The covariance of Z on the grid is that of the summands over n, to rounding: roots of moments lose nothing."""
    estimate = estimator(d, order, nodes=nodes, h=1.9)
    x = normal((60, d), seed=2)
    stream, cells = streamed(estimate, x), estimate.cells(x.dtype)
    powers, shape = [c.num_powers for c in cells], [c.num_cells for c in cells]
    root, where = bands._cell_roots(stream.sums.squeeze(d), powers)
    k = root.shape[-1]
    columns = torch.zeros(k, len(where) * k, math.prod(shape), dtype=torch.float64)
    for i, cell in enumerate(where.tolist()):
        columns[:, i * k : (i + 1) * k, cell] = root[i]
    Z = estimate.normalised(combine_moments(columns.reshape(*powers, -1, *shape), cells), 60)
    Z -= estimate(x) * columns[0].sum(-1, keepdim=True) / 60
    K = estimate.normalised(kernel_values(estimate.windows(x.dtype), x), 60)
    K -= K.mean(0)
    assert float((Z.T @ Z - K.T @ K).abs().max()) <= 1e-12 * float((K.T @ K).max())


@pytest.mark.parametrize("most_values", [2**22, 400])
@pytest.mark.parametrize(("d", "nodes", "h"), [(1, 40, 0.4), (3, 11, 1.3)])
def test_samples_agree_with_the_formula_on_the_whole_grid(d, nodes, h, most_values, monkeypatch):
    """Nodes that no sample is near are left out, and the rest is summed in parts: nothing changes."""
    estimate, xi = estimator(d, 2, nodes, h), normal((20, 50), seed=3)
    x = 0.5 * normal((50, d), seed=4) - 1
    K = estimate.normalised(kernel_values(estimate.windows(x.dtype), x), 50)
    monkeypatch.setattr(bands, "MOST_VALUES", most_values)
    assert bands._maxima_from_samples(estimate, x, xi).tolist() == pytest.approx(
        (xi @ (K - K.mean(0))).abs().amax(-1).tolist()
    )


def test_samples_that_are_all_off_the_grid_have_a_band_of_0():
    estimate = estimator(1, off_grid_limit=1.0)
    assert float(sup_band(estimate, normal((20, 1), seed=5) + 50, 10, generator=rng()).radius()) == 0


def test_four_dimensions_fit_into_memory_and_time():
    """331,776 nodes, of which 1,000 samples are near a few thousand."""
    grid = DensityGrid.uniform((0.0,) * 4, (2.0,) * 4, 24)
    estimate = DensityEstimator(grid, LegendreKernel(2), (0.15,) * 4)
    x = 1 + 0.1 * normal((1000, 4), seed=7)
    assert float(sup_band(estimate, x, 50, generator=rng()).radius()) < 0.5 * float(estimate(x).max())


def test_many_samples_go_through_moments():
    estimate = estimator(1)
    x = normal((20_000, 1), seed=4)
    few, many = (sup_band(estimate, part, generator=rng(5)) for part in (x[:200], x))
    assert many.n == 20_000
    assert float(few.radius() / many.radius()) == pytest.approx(10, rel=0.15)


def test_same_generator_same_band():
    estimate, x = estimator(1), normal((3, 100, 1), seed=6)
    assert torch.equal(*(sup_band(estimate, x, 50, generator=rng(7)).maxima for _ in range(2)))


def test_settings_are_refused():
    estimate, x = estimator(1), normal((100, 1), seed=6)
    with pytest.raises(SettingError, match="num_draws"):
        sup_band(estimate, x, 0, generator=rng())
    with pytest.raises(SettingError, match="a level"):
        sup_band(estimate, x, 10, generator=rng()).radius(95)
    stream = DensityStream(estimate)
    stream.add(x)
    with pytest.raises(SettingError, match="moments up to degree 4"):
        sup_band_from_moments(stream, generator=rng())


def test_one_sample_has_no_band():
    """Its multiplier draws are all 0: a radius of 0 would promise everything."""
    estimate, x = estimator(1), normal((1, 1), seed=6)
    with pytest.raises(ObservationError, match="n >= 2"):
        sup_band(estimate, x, generator=rng())
    with pytest.raises(ObservationError, match="n >= 2"):
        sup_band_from_moments(streamed(estimate, x), generator=rng())


def test_quantiles_are_conservative_order_statistics():
    band = SupBand(torch.arange(1.0, 100.0), n=50)
    assert float(band.radius(0.95)) == 95.0 and float(band.radius(0.999)) == 99.0
    assert float(band.two_sample_radius(0.95)) == pytest.approx(95 * 2**0.5)
    assert float(band.two_sample_radius(0.95, n_other=25)) == pytest.approx(95 * 3**0.5)


@pytest.mark.statistical
@pytest.mark.parametrize("order", [2, 4])
def test_coverage_of_the_smoothed_and_of_the_true_density(order):
    """Nominal 95 %: E D_hat at any bandwidth; D itself at a bandwidth shrunk for it (density.md: 0.90 to 1.00)."""
    trials, n, nodes = 300, 500, 129
    pilot = normal((20, n, 1), seed=10)
    grid = DensityGrid.uniform((-6.0,), (6.0,), nodes)
    kernel = LegendreKernel(order)
    x = normal((trials, n, 1), seed=11)
    wide = DensityEstimator(grid, kernel, reference_bandwidth(pilot, n, kernel))
    fine = torch.linspace(-9, 9, 40_001, dtype=torch.float64)
    t = (fine - grid.axes[0][:, None]) / wide.bandwidth[0]
    smoothed = torch.trapezoid(kernel(t) / wide.bandwidth[0] * gauss(fine), fine)
    failures = sup_distance(wide(x), smoothed) > sup_band(wide, x, 500, generator=rng(12)).radius(0.95)
    check_failure_rate(int(failures.sum()), trials, 0.05)
    assert int(failures.sum()) > 0  # not vacuous
    narrow = DensityEstimator(grid, kernel, lepski_bandwidth(pilot, n, kernel, grid, shrink=0.5))
    failures = sup_distance(narrow(x), gauss(grid.axes[0])) > sup_band(narrow, x, 500, generator=rng(13)).radius(0.95)
    check_failure_rate(int(failures.sum()), trials, 0.05)


@pytest.mark.statistical
def test_two_sample_radius_covers_distances_of_equal_states():
    estimate, trials = estimator(2, order=2, nodes=20, h=1.0), 200
    x, y = normal((trials, 300, 2), seed=14), normal((trials, 900, 2), seed=15)
    radius = sup_band(estimate, x, 300, generator=rng(16)).two_sample_radius(0.95, n_other=900)
    failures = sup_distance(estimate(x), estimate(y)) > radius
    check_failure_rate(int(failures.sum()), trials, 0.05)
