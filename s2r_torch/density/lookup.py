r"""Densities of one world that are looked up again and again: all that depends on D and the grid is prepared once.

Between nodes a density is multilinear, so it is known from the values at the 2^d corners of the cell that x lies in:

    place     which cell, and where inside it in [0, 1]^d
    values    the corners' values of S densities, interpolated along one axis after the other

Corners of a cell lie together, so that a look-up is one row of a table, and a last row of zeros is for what lies off
the grid. A single reading is placed by plain numbers: on a robot it comes alone, and fifteen tensors of two numbers
each would take longer than the network that follows. Both give what `DensityGrid.interpolate` gives, up to rounding.

>>> grid = DensityGrid.uniform((0.0, 0.0), (1.0, 2.0), nodes=3)
>>> table = LookUp(grid, grid.nodes.sum(-1)[None])  # a linear function is interpolated exactly
>>> table(*place(grid, torch.tensor([[0.25, 5.0], [1.5, 0.0]]))).tolist()
[[1.75, 0.0]]
>>> table.at([0.25, 1.5], torch.float64)
[1.75]
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid

DTYPES = (torch.float32, torch.float64)
ALL = slice(None)


def by_axis(x: Tensor) -> Tensor:
    """Readings `[n, d]` as a row for each axis, `[d, n]`: few long passes then do what many short ones would."""
    return torch.stack(x.unbind(-1))


def place(grid: DensityGrid, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The cell `[n]` of each reading of `[d, n]`, row-major, and the place inside it `[d, n]`, float32.

    Readings off the grid are in a cell past the last one.
    """
    low, high = grid.edges(rows.dtype)
    inside = (rows.clamp(low, high) == rows).all(0)
    position = grid.positions(rows)
    cell = torch.minimum(position.floor().clamp_(min=0), grid.last_cell)  # an end rounded to float32 may lie beyond it
    number = torch.where(inside, grid.cell_strides @ cell, grid.num_cells)
    return number.long(), position.sub_(cell).float().clamp_(0, 1)


class LookUp:
    """S functions on a grid, such as densities, prepared for being looked up, all of them or some that are neighbours.

    Args:
        grid: their grid.
        D: `[S, G]` values at the nodes.
        outside: `[S]` values off the grid; 0 if None, as of a density.

    Cost:
        2^(d + 1) numbers where a density has one.
    """

    def __init__(self, grid: DensityGrid, D: Tensor, outside: Tensor | None = None):
        self.size, self.corners = len(D), 2**grid.obs_dim
        cells = D.reshape(len(D), *grid.shape)
        for j in range(grid.obs_dim):  # a window of two nodes along every axis
            cells = cells.unfold(1 + j, 2, 1)
        cells = cells.flatten(1 + grid.obs_dim).movedim(-1, 1).flatten(2).flatten(0, 1)  # [S 2^d, cells]
        last = D.new_zeros(len(D)) if outside is None else outside
        self._table = torch.cat([cells, last.repeat_interleave(self.corners)[:, None]], 1)
        self._of_cell = self._table.T.contiguous().numpy()  # NumPy's rows cost less to take one by one
        self._axes = [axis.tolist() for axis in grid.axes]
        self._ends = {dtype: [edge.flatten().tolist() for edge in grid.edges(dtype)] for dtype in DTYPES}

    def __call__(self, cell: Tensor, inside: Tensor, some: slice = ALL) -> Tensor:
        """Their values at places `[n]`, `[d, n]` (see `place`): `[S, n]`, or of `some` of them."""
        values = self._table[self._rows(some)].index_select(1, cell)  # [S 2^d, n], the last axis fastest
        for weight in reversed(inside.to(values.dtype).unbind(0)):
            values = torch.lerp(values[::2], values[1::2], weight)
        return values

    def at(self, x: list[float], dtype: torch.dtype, some: slice = ALL) -> list[float]:
        """Their values at one finite reading of that dtype: S numbers, or of `some` of them."""
        cell, weights = 0, []
        for value, axis, low, high in zip(x, self._axes, *self._ends[dtype], strict=True):
            if not low <= value <= high:
                cell, weights = -1, [0.0] * len(x)  # the last one
                break
            i = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
            cell = cell * (len(axis) - 1) + i
            weights.append(min(max((value - axis[i]) / (axis[i + 1] - axis[i]), 0.0), 1.0))
        values = self._of_cell[cell, self._rows(some)].tolist()
        for w in reversed(weights):
            values = [a + w * (b - a) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values

    def _rows(self, some: slice) -> slice:
        return ALL if some is ALL else slice(some.start * self.corners, some.stop * self.corners)
