"""Prepared look-ups against interpolation: one reading or many, on nodes, on edges and off the grid."""

import math

import pytest
import torch

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.lookup import LookUp, by_axis, place
from s2r_torch.errors import ObservationError

UNEVEN = torch.tensor([-1.0, -0.2, 0.1, 1.0, 2.0], dtype=torch.float64)
GRIDS = {
    "line": DensityGrid.uniform((-0.2,), (0.7,), 9),
    "plane": DensityGrid.uniform((-0.2, 0.1), (2.2, 2.3), (9, 6)),  # ends that float32 rounds outwards and inwards
    "space": DensityGrid.uniform((0.0, -1.0, 2.0), (1.0, 1.0, 5.0), (4, 5, 3)),
    "uneven": DensityGrid((UNEVEN, UNEVEN * 2)),
    "nearly even": DensityGrid((torch.linspace(0, 1, 9, dtype=torch.float64) ** 1.0005,)),
    "far": DensityGrid.uniform((4_499_999.0, 4_499_999.0), (4_500_005.0, 4_500_005.0), 24),
}


def readings(grid, dtype, n=300):
    """In and around the grid, on nodes, on its ends and beside them, and so far away that float32 overflows."""
    g = torch.Generator().manual_seed(0)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (grid.low, grid.high))
    x = low + (high - low) * (1.4 * torch.rand(n, grid.obs_dim, generator=g, dtype=torch.float64) - 0.2)
    ends = [
        edge.to(dtype).nextafter(torch.full_like(edge, way).to(dtype)) for edge in (low, high) for way in (-1e9, 1e9)
    ]
    nodes = grid.nodes[torch.randint(grid.num_points, (40,), generator=g)]
    huge = torch.full_like(low, 1e39 if dtype == torch.float64 else 3e38)
    return torch.cat([x.to(dtype), nodes.to(dtype), torch.stack([low, high, huge, -huge]).to(dtype), torch.stack(ends)])


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prepared_look_ups_are_interpolation(name, dtype):
    grid = GRIDS[name]
    D = torch.rand(3, grid.num_points, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x, table = readings(grid, dtype), LookUp(grid, D)
    expected = torch.stack([grid.interpolate(one, x) for one in D], -1)
    many = table(*place(grid, by_axis(x)))
    alone = torch.tensor([table.at(row, dtype) for row in x.tolist()], dtype=torch.float64)
    assert 0.2 < float((expected != 0).double().mean()) < 1
    torch.testing.assert_close(many.T, expected, atol=1e-6, rtol=0)  # the place in a cell is kept in float32
    torch.testing.assert_close(alone, expected, atol=1e-12 if name != "far" else 1e-6, rtol=0)
    assert torch.equal(many.T == 0, expected == 0) and torch.equal(alone == 0, expected == 0)


def test_nothing_looked_up():
    grid = GRIDS["plane"]
    empty = torch.zeros(0, 2, dtype=torch.float64)
    assert LookUp(grid, torch.rand(3, grid.num_points))(*place(grid, by_axis(empty))).shape == (3, 0)
    assert (
        LookUp(grid, torch.rand(0, grid.num_points))(*place(grid, by_axis(readings(grid, torch.float32)))).shape[0] == 0
    )


def test_float32_far_from_0_is_refused_with_its_steps():
    GRIDS["plane"].require_resolved(torch.float32)
    GRIDS["far"].require_resolved(torch.float64)
    assert math.isclose(GRIDS["far"].axes[0].diff().min(), 6 / 23, rel_tol=1e-6)
    with pytest.raises(
        ObservationError, match=r"readings in float64; got float32.* are 0\.54 wide where nodes lie 0\.26"
    ):
        GRIDS["far"].require_resolved(torch.float32)
