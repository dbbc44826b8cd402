"""Cell moments against direct summation: every order, bandwidth, offset, dtype, axis and layout."""

import itertools
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from s2r_torch.density import boxes
from s2r_torch.density import cells as cells_module
from s2r_torch.density.boxes import window_sums
from s2r_torch.density.cells import AxisCells
from s2r_torch.density.direct import direct_sums
from s2r_torch.density.estimator import DensityEstimator, DensityGrid, DensityStream
from s2r_torch.density.kernels import EpanechnikovKernel, LegendreKernel
from s2r_torch.density.moments import faster_by_moments
from s2r_torch.density.windows import AxisWindows
from s2r_torch.errors import ObservationError, SettingError

BOUNDARY = json.loads((Path(__file__).parents[1] / "golden" / "kde.json").read_text())["boundary_kernels"]


def normal(shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def axis(m, offset=0.0, uneven=False):
    nodes = torch.linspace(-3, 3, m, dtype=torch.float64)
    return (torch.sinh(nodes) / 3 if uneven else nodes) + offset


def relative(D, E):
    return float((D - E).abs().max() / E.abs().max())


def compare(order, m, ratio, offset=0.0, dtype=torch.float64, boundary=False, uneven=False, n=500):
    """The largest difference between moments and direct sums, in units of the peak, ties included."""
    nodes = axis(m, offset, uneven)
    h = float(nodes.diff().max()) * ratio
    cells = (AxisCells.make(AxisWindows.make(LegendreKernel(order), nodes, h, dtype, boundary)),)
    x = 1.2 * normal((n,), seed=m) + offset
    ties = torch.cat([nodes - h, nodes + h])[: n // 2]
    x[: len(ties)] = ties
    x = x.to(dtype)[None, :, None]
    cell, u = cells[0].locate(x.flatten().double())
    assert torch.equal(cell.long(), torch.bucketize(x.flatten().double(), cells[0].edges, right=True))
    assert float(u.abs().max()) <= 1
    return relative(window_sums(cells, x), direct_sums([cells[0].windows], x))


@pytest.mark.parametrize("layout", ["dense", "blocks"])
@pytest.mark.parametrize("order", range(2, 9))
def test_moments_equal_direct_sums(order, layout, monkeypatch):
    monkeypatch.setattr(cells_module, "DENSE_NODES", 10**6 if layout == "dense" else 0)
    for m, ratio in ((5, 0.6), (40, 1.0), (40, 1.5), (64, 10.0)):
        for offset, boundary, uneven in itertools.product((0.0, 1e6), (False, True), (False, True)):
            assert compare(order, m, ratio, offset, torch.float64, boundary, uneven) <= 1e-13
        for uneven in (False, True):
            assert compare(order, m, ratio, 1e3, torch.float32, False, uneven) <= 1e-13
    for m, ratio, offset in ((40, 0.6, 0.0), (120, 20.3, 1e6), (210, 100.0, 1e6)):
        assert compare(order, m, ratio, offset) <= 1e-13


@pytest.mark.statistical
@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_moments_equal_direct_sums_on_a_million_samples(order):
    for m, ratio, offset in ((64, 0.6, 0.0), (64, 5.0, 1e6), (210, 100.0, 1e6)):
        assert compare(order, m, ratio, offset, n=10**6) <= 1e-13


@pytest.mark.parametrize("nodes", [(9,), (700,), (7, 12), (5, 4, 6)])
@pytest.mark.parametrize("boundary", ["none", "legendre"])
def test_every_method_agrees_in_every_dimension(nodes, boundary):
    grid = DensityGrid(tuple(axis(m, uneven=j == 1) for j, m in enumerate(nodes)))
    h = tuple(1.3 * s for s in grid.spacing)
    x = normal((2, 3, 200, len(nodes)), seed=1)
    settings = {"boundary": boundary, "off_grid_limit": 0.1}
    by = {
        m: DensityEstimator(grid, LegendreKernel(4), h, method=m, **settings)(x) for m in ("direct", "moments", "gemm")
    }
    assert relative(by["moments"], by["direct"]) <= 1e-13
    assert relative(by["gemm"], by["direct"]) <= 1e-13
    assert relative(DensityEstimator(grid, LegendreKernel(4), h, **settings)(x), by["direct"]) <= 1e-13


def test_other_kernels_and_float32():
    grid = DensityGrid.uniform((-4.0, -4.0), (4.0, 4.0), 20)
    for kernel, dtype in itertools.product((EpanechnikovKernel(2), LegendreKernel(6)), (torch.float32, torch.float64)):
        x = normal((3, 400, 2), seed=2, dtype=dtype)
        settings = {"bandwidth": (1.0, 0.8), "off_grid_limit": 0.1}
        direct = DensityEstimator(grid, kernel, method="direct", **settings)(x)
        assert direct.dtype == torch.float64
        assert relative(DensityEstimator(grid, kernel, method="moments", **settings)(x), direct) <= 1e-13


def test_an_axis_without_a_table_falls_back_to_bisection():
    nodes = torch.cat([torch.linspace(0, 1e-9, 50), torch.tensor([1.0, 1e6])]).double()
    cells = AxisCells.make(AxisWindows.make(LegendreKernel(4), nodes, 6e5, torch.float64, False))
    assert cells._table is None
    x = torch.linspace(-2e5, 1.2e6, 500, dtype=torch.float64)[None, :, None]
    assert relative(window_sums((cells,), x), direct_sums([cells.windows], x)) <= 1e-13


@pytest.mark.parametrize("nodes", [(90,), (30, 40), (12, 14, 16)])
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("boundary", [False, True])
def test_boxes_give_what_all_cells_give(nodes, order, boundary, monkeypatch):
    """Each density's samples lie elsewhere: in the middle, at an edge, in one cell, off the grid."""
    d, h = len(nodes), 0.8
    axes = [AxisCells.make(AxisWindows.make(LegendreKernel(order), axis(m), h, torch.float64, boundary)) for m in nodes]
    place = torch.tensor([0.0, -3.0, 3.0, 1.1, 20.0, 0.4])[:, None, None].double()
    width = torch.tensor([0.1, 0.2, 0.1, 0.0, 0.1, 0.05])[:, None, None].double()
    x = place + width * normal((6, 70, d), seed=4)
    whole = torch.zeros(6, math.prod(nodes), dtype=torch.float64)
    boxes.add_sums(whole, axes, x)
    monkeypatch.setattr(boxes, "SHARE", 1.0)
    monkeypatch.setattr(boxes, "add_sums", None)  # not called again
    near = window_sums(axes, x)
    assert relative(near, whole) <= 1e-15 and torch.equal(near == 0, whole == 0)
    for some in (slice(1, 2), slice(2, 4), slice(3, 6)):
        assert torch.equal(window_sums(axes, x[some]), near[some])  # whatever others are looked at


def test_few_wide_densities_go_with_many_narrow_ones(monkeypatch):
    axes = [AxisCells.make(AxisWindows.make(LegendreKernel(4), axis(40), 0.3, torch.float64, False))] * 2
    x = torch.tensor([0.1, 1.0, 0.05, 0.9, 0.1])[:, None, None] * normal((5, 60, 2), seed=5)
    sizes = []
    add_sums = boxes.add_sums
    monkeypatch.setattr(boxes, "add_sums", lambda D, axes, x: (sizes.append(len(x)), add_sums(D, axes, x)))
    assert relative(window_sums(axes, x), direct_sums([a.windows for a in axes], x)) <= 1e-13
    assert sizes == [2]


def test_chunks_of_samples_and_densities(monkeypatch):
    from s2r_torch.density import direct, moments

    grid, x = DensityGrid.uniform((-5.0, -5.0), (5.0, 5.0), 12), normal((5, 90, 2), seed=3)
    whole = DensityEstimator(grid, LegendreKernel(4), (1.0, 1.0), method="moments")(x)
    for module in (moments, boxes):
        monkeypatch.setattr(module, "CHUNK", 32)
        monkeypatch.setattr(module, "MAX_SUMS", 12_000)
    monkeypatch.setattr(direct, "CHUNK", 1000)
    for method in ("moments", "gemm", "direct"):
        assert relative(DensityEstimator(grid, LegendreKernel(4), (1.0, 1.0), method=method)(x), whole) <= 1e-13


@pytest.mark.parametrize("d", [1, 2])
def test_streams_add_and_merge(d):
    grid = DensityGrid.uniform((-6.0,) * d, (6.0,) * d, 25)
    estimate = DensityEstimator(grid, LegendreKernel(4), (0.9,) * d)
    x = normal((2, 300, d), seed=4)
    left, right = DensityStream(estimate, (2,)), DensityStream(estimate, (2,), degree=4)
    with pytest.raises(ObservationError, match="n >= 1"):
        left.density()
    for part in x[:, :200].split(70, dim=1):
        left.add(part)
    right.add(x[:, 200:])
    assert relative(right.density(), estimate(x[:, 200:])) <= 1e-13
    with pytest.raises(SettingError, match="streams of different estimators"):
        left.merge(right)
    right = DensityStream(estimate, (2,))
    right.merge(right)
    right.add(x[:, 200:])
    left.merge(right)
    assert left.n == 300 and relative(left.density(), estimate(x)) <= 1e-13


def test_streams_keep_the_guards():
    estimate = DensityEstimator(DensityGrid.uniform((-1.0,) * 2, (1.0,) * 2, 5), LegendreKernel(2), (0.5, 0.5))
    stream = DensityStream(estimate, (1,))
    x = torch.rand(1, 50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for bad, message in (
        (x[0], "parts of another batch"),
        (x.float(), "parts of another batch"),
        (x / 0, "NaN or inf"),
    ):
        with pytest.raises(ObservationError, match=message):
            stream.add(bad)
    stream.add(x)
    stream.add(x + 0.9)
    with pytest.raises(ObservationError, match="off the grid"):
        stream.density()
    constant = DensityStream(estimate, (1,))
    constant.add(torch.full((1, 3, 2), 0.5, dtype=torch.float64))
    with pytest.raises(ObservationError, match="coordinate 0 has one value in all 3"):
        constant.density()
    constant.add(torch.full((1, 3, 2), 0.25, dtype=torch.float64))
    with pytest.raises(ObservationError, match="coordinate 0 and coordinate 1 agree in all 6"):
        constant.density()
    constant.add(x)
    assert constant.density().shape == (1, 25)


def test_the_faster_method_is_chosen():
    def pick(d, m, order, n, B=1):
        windows = AxisWindows.make(LegendreKernel(order), axis(m), 1.0, torch.float64, False)
        return faster_by_moments((AxisCells.make(windows),) * d, B, n)

    assert pick(1, 256, 4, 10**5) and pick(1, 256, 4, 1000, B=512) and pick(2, 64, 4, 10**5)
    assert not pick(2, 64, 4, 30, B=256) and not pick(2, 128, 8, 1000) and not pick(3, 16, 8, 10**4)
    assert not pick(3, 200, 2, 10**9)  # accumulators would not fit


@pytest.mark.parametrize("case", BOUNDARY, ids=lambda c: f"{c['ceil_alpha']},{c['a']},{c['b']}")
def test_boundary_kernel_golden(case):
    a, b = (float(Fraction(case[end])) for end in "ab")
    kernel = LegendreKernel(case["ceil_alpha"])
    nodes = torch.tensor([0.0, -a, b - a]).double().unique()  # the node at -a sees [a, b]
    if a == 0:
        nodes = torch.tensor([0.0, b]).double()
    if b < 1:  # cut on the right
        nodes = torch.tensor([0.0, 1.5, 1.5 + b]).double()
    g = int((nodes == (0.0 if a == 0 else 1.5 if b < 1 else -a)).nonzero())
    windows = AxisWindows.make(kernel, nodes, 1.0, torch.float64, boundary=True)
    exact = [Fraction(c) for c in case["coef"]]
    t = torch.linspace(a, b, 9, dtype=torch.float64)
    values = sum(float(c) * t**i for i, c in enumerate(exact))
    got = windows.factor(nodes[g] + t)[:, g]
    assert relative(got, values) <= 1e-13
    middle = (a + b) / 2
    assert float(windows.coefficients[g] @ torch.tensor([(-middle) ** k for k in range(len(exact))]).double()) == (
        pytest.approx(float(Fraction(case["L2_norm_squared"])), rel=1e-13)
    )


def test_boundary_kernels_restore_the_edge():
    """A uniform density: 1/2 at the edge by plain kernels, 1 by boundary kernels (density.md, 'Bounded X')."""
    grid, h = DensityGrid.uniform((0.0,), (1.0,), 41), (0.2,)
    x = ((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)[:, None]
    plain = DensityEstimator(grid, LegendreKernel(4), h)(x)
    cut = DensityEstimator(grid, LegendreKernel(4), h, boundary="legendre")(x)
    assert float(plain[0]) == pytest.approx(0.5, abs=1e-3)
    assert float((cut - 1).abs().max()) <= 5e-3
    with pytest.raises(SettingError, match="legendre kernel with boundary"):
        DensityEstimator(grid, EpanechnikovKernel(2), h, boundary="legendre")


def test_windows_wider_than_the_axis():
    grid = DensityGrid.uniform((0.0,), (1.0,), 5)
    x = torch.rand(2, 100, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for h, boundary in itertools.product((1.0, 30.0), ("none", "legendre")):
        settings = {"bandwidth": (h,), "boundary": boundary}
        by = [DensityEstimator(grid, LegendreKernel(4), method=m, **settings)(x) for m in ("moments", "direct")]
        assert relative(*by) <= 1e-13


MEMORY = """
import resource, torch
from s2r_torch.density.estimator import DensityEstimator, DensityGrid
from s2r_torch.density.kernels import LegendreKernel
torch.set_num_threads(1)
estimate = DensityEstimator(DensityGrid.uniform((-6.0,), (6.0,), 64), LegendreKernel(4), (0.5,))
x = torch.randn(6_000_000, 1, generator=torch.Generator().manual_seed(0))
x[-1] = 7.0  # off the grid: all are counted
estimate(x[:100_000])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 24 * 2**20, resource.RLIM_INFINITY))  # one float64 copy of x takes 46
D = estimate(x)
assert abs(float((D * estimate.grid.weights).sum()) - 1) < 1e-3
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="address space limits as on Linux")
def test_memory_does_not_depend_on_the_number_of_samples():
    subprocess.run([sys.executable, "-c", MEMORY], check=True)
