"""Density estimates against exact golden numbers and a slow sum; guards."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from scipy import stats

from s2r_torch.density.estimator import (
    DensityEstimator,
    DensityGrid,
    DensityStream,
    more_than_a_share,
    sup_distance,
)
from s2r_torch.density.kernels import LegendreKernel, make_kernel
from s2r_torch.density.patches import Patches
from s2r_torch.errors import ObservationError, SettingError

CASES = json.loads((Path(__file__).parents[1] / "golden" / "kde.json").read_text())["kde_cases"]
MULTIPLIERS = ((37, 11), (101, 7))  # of the golden generator


def golden_samples(case):
    if "samples" in case:
        return torch.tensor([[float(Fraction(v)) for v in row] for row in case["samples"]], dtype=torch.float64)
    i = torch.arange(case["n"])
    return torch.stack([((a * i + b) % 256).double() / 128 - 1 for a, b in MULTIPLIERS[: case["d"]]], -1)


def golden_estimate(case, dtype=torch.float64, **settings):
    """The estimate at the golden points: a grid through their coordinates, then the points picked out."""
    points = torch.tensor([[float(Fraction(v)) for v in p] for p in case["points"]], dtype=torch.float64)
    h = float(Fraction(case["h"]))
    axes = []
    for column in points.T:
        nodes = torch.cat([column, torch.arange(-3.0, 3.0, h / 2, dtype=torch.float64)]).unique()
        axes.append(nodes)
    grid = DensityGrid(tuple(axes))
    x = golden_samples(case).to(dtype)
    D = DensityEstimator(grid, LegendreKernel(case["alpha"]), (h,) * case["d"], **settings)(x)
    index = [torch.searchsorted(a, c.contiguous()) for a, c in zip(axes, points.T, strict=True)]
    return D.reshape(grid.shape)[tuple(index)], D.abs().max()


@pytest.mark.parametrize("method", ["direct", "gemm", "moments"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_golden(case, method):
    expected = torch.tensor([float(Fraction(v)) for v in case["values"]], dtype=torch.float64)
    got, height = golden_estimate(case, method=method)
    assert float((got - expected).abs().max()) <= 1e-13 * float(height)
    if case["name"].startswith("dyadic"):  # exact in float32 too
        got, height = golden_estimate(case, torch.float32, method=method)
        assert float((got - expected).abs().max()) <= 1e-13 * float(height)


def uniform(shape, seed, low=-1.0, high=1.0, dtype=torch.float64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * (high - low) + low


@pytest.mark.parametrize(("d", "nodes"), [(1, (9,)), (2, (7, 5)), (3, (4, 5, 3))])
def test_batches_and_dimensions_agree_with_the_formula(d, nodes):
    grid, kernel = DensityGrid.uniform((-1.0,) * d, (1.0,) * d, nodes), LegendreKernel(4)
    h = (0.9, 0.6, 1.1)[:d]
    x = uniform((2, 3, 40, d), seed=d)
    D = DensityEstimator(grid, kernel, h)(x)
    assert D.shape == (2, 3, grid.num_points) and D.dtype == torch.float64
    for b, s in ((0, 0), (1, 2)):
        for g in (0, grid.num_points // 2, grid.num_points - 1):
            t = (x[b, s] - grid.nodes[g]) / torch.tensor(h, dtype=torch.float64)
            expected = kernel(t).prod(-1).mean() / math.prod(h)
            assert float(D[b, s, g]) == pytest.approx(float(expected), abs=1e-13)


def test_integrates_to_one_and_chunks_add_up():
    grid = DensityGrid.uniform((-3.0,), (3.0,), 601)
    estimate = DensityEstimator(grid, LegendreKernel(2), (0.5,))
    x = uniform((2, 2000, 1), seed=0)
    D = estimate(x)
    assert (D * grid.weights).sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-3)
    halves = (estimate(x[:, :1000]) + estimate(x[:, 1000:])) / 2
    assert float(sup_distance(D, halves).max()) <= 1e-13


@pytest.mark.parametrize(
    "axis", [torch.linspace(-1.3, 2.7, 24, dtype=torch.float64), torch.tensor([-1.3, 0.0, 0.1, 2.0, 2.7])]
)
def test_cells_are_found_by_a_loop(axis):
    """Evenly spaced or not, on nodes, between them, off the grid and where nothing was read."""
    axis = axis.double()
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, -9.0, 9.0], dtype=torch.float64)
    x = torch.cat([uniform((30,), seed=3, low=-1.3, high=2.7), axis, odd])
    x = x[: len(x) // 2 * 2].view(2, -1).T  # not contiguous
    cells, inside = DensityGrid((axis,)).cells_along(0, x)
    assert cells.shape == inside.shape == x.shape
    for value, cell, w in zip(x.flatten().tolist(), cells.flatten().tolist(), inside.flatten().tolist(), strict=True):
        assert 0 <= cell <= len(axis) - 2 and 0 <= w <= 1
        near = float(axis[cell]) if math.isnan(value) else min(max(value, float(axis[0])), float(axis[-1]))
        assert float(axis[cell] + w * (axis[cell + 1] - axis[cell])) == pytest.approx(near, abs=1e-12)


def test_interpolation():
    grid = DensityGrid((torch.tensor([0.0, 0.1, 1.0]), torch.linspace(0, 2, 5)))
    x = uniform((3, 50, 2), seed=1, low=0.0, high=1.0)
    index, weight = grid.locate(x)
    assert bool((weight >= 0).all()) and float((weight.sum(-1) - 1).abs().max()) <= 1e-15
    D = (2 * grid.nodes[:, 0] - grid.nodes[:, 1] + 1).expand(3, -1)  # linear: exact
    assert float((grid.interpolate(D, x) - (2 * x[..., 0] - x[..., 1] + 1)).abs().max()) <= 1e-14
    random = uniform((3, grid.num_points), seed=2)
    at_nodes = grid.nodes.expand(3, -1, -1)
    assert torch.equal(grid.interpolate(random, at_nodes), random)
    outside = torch.tensor([[-0.001, 1.0], [0.5, 2.001], [float("nan"), 0.5], [float("inf"), 0.0]])
    assert grid.interpolate(random, outside.expand(3, -1, -1)).abs().max() == 0
    assert grid.off_grid_share(outside) == 1.0


GRID = DensityGrid.uniform((-1.0,), (1.0,), 11)
BOX = LegendreKernel(2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0.0], [1.0]], "torch.Tensor; got list"),
        (torch.zeros(3, 1, requires_grad=True), "without a gradient"),
        (torch.tensor([[0.0], [float("nan")], [float("inf")]]), "2 of 3 with NaN or inf, the first as sample 1"),
        (torch.zeros(2, 0, 1), "n >= 1 samples"),
        (torch.zeros(2, 5, 2), r"samples of shape \[..., n, 1\]"),
        (torch.zeros(5), "samples of shape"),
        (torch.zeros(5, 1, dtype=torch.int64), "float32 or float64"),
        (torch.tensor([[[0.1], [0.2]] * 5, [[0.1], [3.0]] * 5]), r"50.00% at index \(1,\)"),
        (torch.full((2, 3, 1), 0.5), r"coordinate 0 has one value in all 3 samples at index \(0,\)"),
    ],
)
def test_samples_that_spoil_a_density_are_refused(x, message):
    with pytest.raises(ObservationError, match=message):
        DensityEstimator(GRID, BOX, (0.3,))(x)


def test_duplicated_columns_are_refused():
    grid = DensityGrid.uniform((-1.0,) * 3, (1.0,) * 3, 4)
    x = uniform((2, 10, 3), seed=3)
    x[1, :, 2] = x[1, :, 0]
    with pytest.raises(ObservationError, match=r"0 and coordinate 2 agree in all 10 samples at index \(1,\)"):
        DensityEstimator(grid, BOX, (0.7,) * 3)(x)
    DensityEstimator(grid, BOX, (0.7,) * 3, allow_constant=True)(x)


def test_one_sample_is_enough():
    assert float(DensityEstimator(GRID, BOX, (0.3,))(torch.zeros(1, 1)).max()) == pytest.approx(0.5 / 0.3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DensityEstimator(GRID, BOX, (0.09,)), "half the node spacing 0.2"),
        (lambda: DensityEstimator(GRID, BOX, (float("nan"),)), "half the node spacing"),
        (lambda: DensityEstimator(GRID, BOX, (2.0,)), "every window would hold every sample"),
        (lambda: DensityEstimator(GRID, BOX, (0.3, 0.3)), "1 bandwidths"),
        (lambda: DensityEstimator(GRID, BOX, (0.3,), off_grid_limit=5), "off_grid_limit"),
        (lambda: DensityGrid((torch.tensor([0.0, 0.0, 1.0]),)), "strictly increasing"),
        (lambda: DensityGrid.uniform((0.0,), (1.0, 2.0), 5), "per axis"),
        (lambda: DensityGrid.uniform((0.0,) * 6, (1.0,) * 6, 64), "6.87e.10 nodes, 512 GiB"),
        (lambda: make_kernel("nope", 2), "a kernel among"),
        (lambda: DensityEstimator(GRID, BOX, (0.3,), method="fft"), "method among"),
        (lambda: DensityEstimator(GRID, BOX, (0.3,), boundary="reflect"), "boundary among"),
    ],
)
def test_settings_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_a_wide_kernel_that_is_not_constant_still_tells_samples_apart():
    x = torch.tensor([[-0.5], [0.5]], dtype=torch.float64)
    for kernel, settings in ((LegendreKernel(4), {}), (BOX, {"boundary": "legendre"})):
        one, other = (DensityEstimator(GRID, kernel, (2.0,), **settings)(part) for part in x.split(1))
        assert float((one - other).abs().max()) > 0.05


@pytest.mark.parametrize("share", [0.6, 0.95])
@pytest.mark.parametrize("spread", [0.0, 1e-6])
def test_samples_that_are_mostly_one_point_are_refused_with_their_state(share, spread):
    """Half-constant laws integrate to 1.5 or 0.8, by where the nodes lie: no density."""
    grid = DensityGrid.uniform((-1.0, -1.0), (1.0, 1.0), 11)
    estimate = DensityEstimator(grid, BOX, (0.13, 0.13))
    x = uniform((3, 4, 200, 2), seed=0)
    assert estimate(x).shape == (3, 4, 121)
    stuck = torch.rand(200, generator=torch.Generator().manual_seed(1)) < share
    x[1, 2, stuck, 1] = 0.3 + spread * x[1, 2, stuck, 1]
    with pytest.raises(ObservationError, match=r"coordinate 1 has one value in \d\d% of 200 samples at index \(1, 2\)"):
        estimate(x)
    stream = DensityStream(estimate, (3, 4))
    with pytest.raises(ObservationError, match="one value in"):
        stream.add(x)
    free = replace(estimate, allow_constant=True)
    total = float((free(x)[1, 2] * grid.weights).sum())
    assert abs(total - 1) > 0.15  # what would have gone unnoticed
    x[1, 2] = uniform((200, 2), seed=5).mul(10).round().div(10)  # a sensor that rounds is none of these
    assert estimate(x).shape == (3, 4, 121)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("order", "boundary"), [(2, "none"), (4, "none"), (4, "legendre")])
@pytest.mark.parametrize(("d", "nodes"), [(1, (1201,)), (2, (61, 50)), (3, (21, 19, 22))])
def test_patches_look_at_the_nodes_that_samples_reach(d, nodes, order, boundary, dtype, monkeypatch):
    """States all over the box and beyond its edges, of different numbers of samples; the last one's are far apart."""
    grid = DensityGrid.uniform((-1.0,) * d, (1.0,) * d, nodes)
    h = [(1.2, 0.8, 1.0)[j] * spacing for j, spacing in enumerate(grid.spacing)]
    estimate = DensityEstimator(grid, LegendreKernel(order), tuple(h), boundary, off_grid_limit=1.0)
    at, wide = [-1.0, -0.97, -0.3, 0.2, 0.9, 1.0, 1.3], 0.4 * max(grid.spacing)
    samples = [uniform((3, 20 + s % 2, d), s, c - wide, c + wide, dtype) for s, c in enumerate(at)]
    samples = [torch.cat([x, x[:, :1] + wide], 1) for x in samples]
    dense, alone = estimate.of_states(samples), []
    assert float((dense != 0).double().mean(-1).max()) < 0.06
    monkeypatch.setattr(Patches, "of", alone.append)  # all nodes, which nobody looks at here
    assert torch.allclose(estimate.patches(samples).dense(), dense, rtol=0, atol=1e-12 * float(dense.abs().max()))
    assert not alone
    monkeypatch.undo()
    beyond = estimate.patches(samples).distance(Patches.of(dense, grid))  # nothing is kept where there is no node
    assert float(beyond.max()) <= 1e-12 * float(dense.abs().max())
    samples[2][0, 0], samples[2][0, 1] = -1.0, 1.0
    assert torch.equal(estimate.patches(samples).dense()[:, 2], estimate.of_states(samples)[:, 2])


def test_patches_hold_samples_on_the_edge_of_a_window():
    """Windows are closed on both sides: of samples on nodes, and a bandwidth of whole cells, all edges count."""
    grid = DensityGrid.uniform((0.0,), (16.0,), 257)
    estimate = DensityEstimator(grid, BOX, (0.125,), allow_constant=True)
    x = torch.tensor([8.0, 8.0625, 8.0]).double()[None, :, None]
    patches = estimate.patches([x])
    assert patches.size == (6,) and torch.equal(patches.dense()[:, 0], estimate(x))


@pytest.mark.parametrize("d", [1, 2])
def test_states_that_no_node_sees_have_empty_patches(d):
    """A dead sensor in every simulator, where any share off the grid is allowed."""
    grid = DensityGrid.uniform((0.0,) * d, (1.0,) * d, 65)
    estimate = DensityEstimator(grid, BOX, (0.02,) * d, off_grid_limit=1.0, allow_constant=True)
    away, there = torch.full((2, 5, d), 7.0), torch.full((2, 5, d), 0.5)
    for samples in ([away], [-away, away], [away, there]):
        patches, dense = estimate.patches(samples), estimate.of_states(samples)
        assert torch.equal(patches.dense(), dense)
        assert torch.equal(patches.distance(patches[:, [0] * len(samples)]), sup_distance(dense, dense[:, :1]))
    nothing = Patches.of(torch.zeros(2, 1, grid.num_points), grid)
    assert torch.equal(nothing.distance(nothing), torch.zeros(2, 1)) and not nothing.mean(nothing).dense().any()


def test_patches_are_the_same_under_other_defaults():
    grid = DensityGrid.uniform((0.0,), (1.0,), 257)
    estimate, samples = DensityEstimator(grid, BOX, (0.01,)), [uniform((2, 40, 1), 0, 0.4, 0.42)]
    plain = estimate.patches(samples)
    torch.set_default_device("meta")
    try:
        assert torch.equal(estimate.patches(samples).values, plain.values)
    finally:
        torch.set_default_device("cpu")


def test_states_are_estimated_together_and_refused_apart(monkeypatch):
    """States of 40, 60 and 40 samples, on two simulators; the sixth is spoilt on the second one."""
    estimate = DensityEstimator(GRID, BOX, (0.3,))
    samples = [uniform((2, n, 1), seed=n + s) for s, n in enumerate((40, 60, 40, 60, 60, 40))]
    D = estimate.of_states(samples)
    assert all(torch.equal(D[:, s], estimate(x)) for s, x in enumerate(samples))
    monkeypatch.setattr("s2r_torch.density.estimator.MOST_VALUES", 2 * 2 * estimate.grid.num_points)  # two states
    assert torch.equal(estimate.patches(samples).dense(), D)
    assert torch.equal(estimate.of_states([samples[1][0], samples[3][0]]), D[0, [1, 3]])
    samples[5][1, 7] = torch.nan
    for estimates in (estimate.of_states, estimate.patches):
        with pytest.raises(ObservationError, match=r"NaN.* at index \(1, 5\)"):
            estimates(samples)
    with pytest.raises(ObservationError, match="got list"):
        estimate.of_states([samples[0], [[1.0]]])


@pytest.mark.parametrize(("n", "share"), [(100, 0.01), (600, 0.01), (50, 0.1)])
def test_a_state_whose_readings_lie_off_the_grid_as_often_as_they_may_is_hardly_ever_refused(n, share):
    """Against exact binomial tails; and ten times as many are."""
    counts = torch.arange(n + 1)
    refused = more_than_a_share(counts, n, share)
    first = int(refused.int().argmax())
    assert stats.binom.sf(first - 1, n, share) <= 1e-3 < stats.binom.sf(first - 5, n, share)
    assert bool(refused[first:].all()) and not bool(refused[:first].any()) and first <= 10 * share * n


def test_whatever_lies_off_the_grid_altogether_is_refused():
    assert more_than_a_share(torch.tensor([0, 1]), 1, 0.01).tolist() == [False, True]
    assert more_than_a_share(torch.tensor([0, 1, 9]), 9, 0.0).tolist() == [False, True, True]
    assert not more_than_a_share(torch.tensor([0, 1, 9]), 9, 1.0).any()
