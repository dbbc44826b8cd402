"""Patches of a grid against the dense densities that they stand for."""

import pickle

import pytest
import torch

from s2r_torch.density.grid import DensityGrid, look_up
from s2r_torch.density.patches import Patches, all_rows, centres, dense, heights, looked_up
from s2r_torch.predictors.nets.embeddings import agreement, linear_functionals, sorted_values, steepest_falls

GRIDS = {
    "line": DensityGrid.uniform((-1.0,), (2.0,), 9),
    "plane": DensityGrid((torch.tensor([0.0, 0.1, 0.5, 1.0, 1.2, 2.0]), torch.linspace(-3, 3, 11))),
    "space": DensityGrid.uniform((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (5, 7, 6)),
}


def bumps(grid, R=5, S=4, wide=3, seed=0, dtype=torch.float64):
    """Densities that are not 0 in a box of each, also at the edges; the first is 0 everywhere, signs vary."""
    g, D = torch.Generator().manual_seed(seed), torch.zeros(R, S, *grid.shape, dtype=dtype)
    for r in range(R):
        for s in range(S):
            size = [int(torch.randint(1, wide + 1, (), generator=g)) for _ in grid.shape]
            first = [int(torch.randint(0, n - m + 1, (), generator=g)) for n, m in zip(grid.shape, size, strict=True)]
            box = tuple(slice(f, f + m) for f, m in zip(first, size, strict=True))
            if (r, s) != (0, 0):
                D[(r, s, *box)] = torch.randn(size, generator=g, dtype=dtype)
    return D.flatten(2)


def readings(grid, *lead, seed=1):
    """On nodes, between them, at the edges of the box and off it."""
    g, low, high = torch.Generator().manual_seed(seed), torch.tensor(grid.low), torch.tensor(grid.high)
    x = (low + (high - low) * (1.4 * torch.rand(*lead, grid.obs_dim, generator=g) - 0.2)).double()
    x[..., 0, :], x[..., 1, :], x[..., 2, :] = low, high, grid.nodes[len(grid.nodes) // 2]
    return x


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_hold_all_of_a_density(name, dtype):
    grid, D = GRIDS[name], bumps(GRIDS[name], dtype=dtype)
    patches = Patches.of(D, grid)
    assert torch.equal(dense(patches), D) and patches.shape == D.shape and patches.values.dtype == dtype
    assert all(m <= 3 for m in patches.size)
    assert torch.equal(heights(patches), D.amax(-1).clamp(min=0))  # there is a 0 beside every box
    assert torch.equal(dense(patches[[3, 1]]), D[[3, 1]]) and torch.equal(dense(patches[:, [2, 0]]), D[:, [2, 0]])
    assert torch.equal(torch.cat([dense(part) for part in patches.split(2)]), D)
    assert torch.equal(dense(pickle.loads(pickle.dumps(patches))), D)
    assert torch.equal(dense(patches.to(torch.float32)), D.float())


@pytest.mark.parametrize("name", GRIDS)
def test_distance_and_mean_are_those_of_all_nodes(name):
    grid = GRIDS[name]
    D, E = bumps(grid, seed=0), bumps(grid, seed=1)
    D[1, 1] = 0  # of one there is nothing
    P, Q = Patches.of(D, grid), Patches.of(E, grid)
    assert torch.equal(P.distance(Q), (D - E).abs().amax(-1)) and torch.equal(P.mean(Q).dense(), (D + E) / 2)
    assert torch.equal(P.distance(P), torch.zeros(D.shape[:2], dtype=torch.float64))
    x = readings(grid, len(D), 200)
    torch.testing.assert_close(P.mean(Q).at(x), look_up((D + E) / 2, *grid.locate(x)), rtol=0, atol=1e-12)


def test_sets_of_states_are_joined():
    grid = GRIDS["plane"]
    D, E = bumps(grid, wide=2), bumps(grid, S=2, wide=4, seed=1)
    both = Patches.joined([Patches.of(D, grid), Patches.of(E, grid)], axis=1)
    assert torch.equal(both.dense(), torch.cat([D, E], 1))


@pytest.mark.parametrize("name", GRIDS)
def test_a_look_up_is_that_of_the_dense_density(name):
    grid, D = GRIDS[name], bumps(GRIDS[name])
    x = readings(grid, 5, 400)
    wanted = look_up(D, *grid.locate(x))
    assert float((wanted != 0).double().mean()) > 0.02
    torch.testing.assert_close(looked_up(Patches.of(D, grid), grid, x), wanted, rtol=0, atol=1e-12)
    rows = torch.tensor([4, 0, 4])
    wanted = look_up(D, *grid.locate(x[:3]), rows)
    torch.testing.assert_close(looked_up(Patches.of(D, grid), grid, x[:3], rows), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wide", [2, 5])
def test_sets_with_boxes_of_other_sizes_are_joined(wide):
    grid = GRIDS["plane"]
    one, other = bumps(grid, wide=2), bumps(grid, R=3, wide=wide, seed=7)
    joined = all_rows([Patches.of(one, grid), Patches.of(other, grid)])
    assert isinstance(joined, Patches) and torch.equal(dense(joined), torch.cat([one, other]))
    assert torch.equal(all_rows([one, Patches.of(other, grid)]), torch.cat([one, other]))


def test_densities_everywhere_and_nowhere():
    grid = GRIDS["line"]
    for D in (torch.ones(2, 3, 9), torch.zeros(2, 3, 9), torch.zeros(0, 3, 9), torch.zeros(2, 0, 9)):
        patches = Patches.of(D, grid)
        assert torch.equal(torch.cat([dense(part) for part in patches.split(1)]), D)
        x = readings(grid, len(D), 50)
        assert torch.equal(dense(patches), D)
        torch.testing.assert_close(patches.at(x), look_up(D, *grid.locate(x)))


def test_negative_values_along_a_whole_axis_have_no_zeros_beside_them():
    grid = GRIDS["plane"]
    D = torch.zeros(1, 1, *grid.shape)
    D[:, :, :, 4] = -1.0
    D[:, :, 2] = -1.0
    D = D.flatten(2)
    half = D.unflatten(2, grid.shape).clone()
    half[..., 5:] = 0.0
    assert not Patches.of(D, grid).small and not Patches.of(half.flatten(2), grid).small  # networks take all nodes


@pytest.mark.parametrize("name", GRIDS)
def test_statistics_are_those_of_the_dense_density(name):
    grid, D = GRIDS[name], bumps(GRIDS[name])
    patches, G = Patches.of(D, grid), grid.num_points
    assert patches.small and not Patches.of(torch.ones(1, 1, G), grid).small
    ranks = torch.tensor(sorted({0, 1, 3, G // 2, G - 4, G - 2, G - 1}))
    assert bool((sorted_values(D, ranks)[..., -2:] < 0).any())  # negative values count, too
    assert torch.equal(sorted_values(patches, ranks), sorted_values(D, ranks))
    steps = [(1,) * grid.obs_dim, (-3,) + (0,) * (grid.obs_dim - 1)]
    assert torch.equal(steepest_falls(patches, grid.shape, steps), steepest_falls(D, grid.shape, steps))
    functionals = torch.randn(3, G, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = linear_functionals(D, functionals)
    torch.testing.assert_close(linear_functionals(patches, functionals), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(centres(patches, grid), centres(D, grid), rtol=1e-9, atol=1e-12)
    places = readings(grid, 7, D.shape[1])
    torch.testing.assert_close(agreement(patches, places, grid), agreement(D, places, grid), rtol=0, atol=1e-12)


def test_centres_are_means_of_densities():
    grid = GRIDS["plane"]
    D = torch.zeros(1, 2, grid.num_points, dtype=torch.float64)
    D[0, 0, 3], D[0, 1, 5], D[0, 1, 9] = 2.0, 1.0, 3.0
    expected = torch.stack([grid.nodes[3], grid.nodes[5] / 4 + 3 * grid.nodes[9] / 4])
    torch.testing.assert_close(centres(D, grid)[0], expected)
