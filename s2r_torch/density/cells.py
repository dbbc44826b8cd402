r"""Cells of one axis: between neighbouring window edges every sample lies in the same windows (`density.md`).

    E = sort({lower_g} u {next float after upper_g}),  cell c = #(E <= X),  u = (X - centre_c) / h,  M[k, c] = sum u^k

Every window is a union of cells start_g .. stop_g - 1, with no boundary cell to treat, and q_g is a polynomial, so

    sum_i factor[i, g] = sum_{c in window g} sum_k taylor(g, centre_c)[k] M[k, c]

is exact up to rounding: Taylor sums around a centre that is near, no differences of large numbers.

Small axes combine by one dense matrix. Large ones by blocks of cells, at most h / 4 wide: the part of the window in its
first block (a suffix sum), whole blocks, the part in its last block (a prefix sum); additions only, O(m K (h / block)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.density.windows import AxisWindows

DENSE_NODES = 512  # above it blocks need less time and far less memory than one dense matrix
MAX_BINS = 2**16
BLOCKS_PER_BANDWIDTH = 4


@dataclass(frozen=True, eq=False)
class AxisCells:
    """The cells of one axis, how to find them, and how their moments make densities."""

    windows: AxisWindows
    edges: Tensor  # [C - 1] float64, exact images of edges in the samples' dtype
    centre: Tensor  # [C] float64; the outermost cells, outside of every window, end h beyond the edges
    start: Tensor  # [m] first cell of each window
    stop: Tensor  # [m] one after its last cell

    @staticmethod
    def make(windows: AxisWindows) -> AxisCells:
        after = windows.upper.nextafter(torch.full_like(windows.upper, math.inf))
        edges = torch.cat([windows.lower, after]).unique(sorted=True)
        start, stop = (torch.searchsorted(edges, e) + 1 for e in (windows.lower, after))
        edges = edges.double()
        ends = torch.cat([edges[:1] - windows.bandwidth, edges, edges[-1:] + windows.bandwidth])
        return AxisCells(windows, edges, (ends[:-1] + ends[1:]) / 2, start, stop)

    @property
    def num_cells(self) -> int:
        return len(self.centre)

    @property
    def num_powers(self) -> int:
        """K, how many powers of u the combination needs."""
        return self.windows.coefficients.shape[1]

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cell numbers, as float64, and u in [-1, 1] (outside all windows: cut) of finite samples x `[n]` float64.

        A table over uniform bins and two comparisons, which is exact: the map to bins is monotone, so edges in lower
        bins are below x and edges in higher bins above it, whatever the rounding. Without such a table, bisection.
        """
        h = self.windows.bandwidth
        x = x.clamp(float(self.edges[0]) - h, float(self.edges[-1]) + h)
        if self._table is None:
            cell = torch.bucketize(x, self.edges, right=True)
            return cell.double(), (x - self.centre[cell]).mul_(1 / h).clamp_(-1, 1)
        table = self._table
        bin = (x - table.origin).mul_(table.scale).int()
        cell = torch.index_select(table.below, 0, bin)
        for edge in table.edges:
            step = torch.index_select(edge, 0, bin)
            cell += torch.le(step, x, out=step)
        return cell, (x - torch.index_select(self.centre, 0, cell.int())).mul_(1 / h)

    def combine(self, M: Tensor) -> Tensor:
        """Sums `[P, m]` over windows from moments `[P, K, C]`."""
        if len(self.windows.middle) <= DENSE_NODES:
            return M.reshape(len(M), -1) @ self.dense
        return self._blocks.combine(M)

    @cached_property
    def dense(self) -> Tensor:
        """W `[K C, m]`: taylor coefficients where the cell lies in the window, else 0."""
        m, C = len(self.start), self.num_cells
        cells = torch.arange(C)[:, None]
        inside = (self.start <= cells) & (cells < self.stop)  # [C, m]
        W = self.windows.taylor(self.centre[:, None], torch.arange(m).expand(C, m))  # [C, m, K]
        return W.where(inside[..., None], 0.0).permute(2, 0, 1).reshape(-1, m).contiguous()

    @cached_property
    def _blocks(self) -> _Blocks:
        return _Blocks.make(self)

    @cached_property
    def _table(self) -> _Table | None:
        return _Table.make(self.edges, self.windows.bandwidth)


@dataclass(frozen=True, eq=False)
class _Table:
    """Uniform bins, with the number of edges in lower bins and the one or two edges inside each."""

    origin: float
    scale: float
    below: Tensor  # [bins] float64
    edges: tuple[Tensor, ...]  # [bins] float64 each, inf where there is none

    @staticmethod
    def make(edges: Tensor, margin: float) -> _Table | None:
        """A table with one edge a bin where that takes few bins, else two; None where bins would have to be too many.

        Two edges can be neighbouring floats (where 2 h is a multiple of the spacing), which no table tells apart.
        """
        for most, bins_per_edge in ((1, 8), (2, 64)):
            bins = len(edges) // most + 1
            while bins <= min(MAX_BINS, bins_per_edge * len(edges)):
                table = _Table._try(edges, margin, bins, most)
                if table is not None:
                    return table
                bins = bins * 5 // 4 + 1
        return None

    @staticmethod
    def _try(edges: Tensor, margin: float, bins: int, most: int) -> _Table | None:
        origin, width = float(edges[0]) - margin, float(edges[-1] - edges[0]) + 2 * margin
        scale = bins / width
        bin = ((edges - origin) * scale).int().long()
        count = torch.bincount(bin, minlength=bins + 2)
        if int(count.max()) > most:
            return None
        below = count.cumsum(0) - count
        slots = [torch.full((len(count),), math.inf, dtype=torch.float64) for _ in range(most)]
        rank = torch.arange(len(edges)) - below[bin]
        for r, slot in enumerate(slots):
            slot[bin[rank == r]] = edges[rank == r]
        return _Table(origin, scale, below.double(), tuple(slots))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Runs of neighbouring cells, at most a quarter bandwidth wide unless they are a single cell.

    A window is the end of its first block, whole blocks, and the beginning of its last block. Windows are wider than
    any block of several cells; so a window inside one block is a single cell, which `first` alone covers.
    """

    shift: Tensor  # [C] (cell centre - block centre) / h
    layout: Tensor  # [blocks * width] which cell is in each slot, C where none is
    width: int
    first: _Part
    whole: tuple[_Part, ...]
    last: _Part

    @staticmethod
    def make(cells: AxisCells) -> _Blocks:
        # Seven cells in blocks of at most three, `layout` with width 3 (. is a slot without a cell, cell number C):
        #
        #     cell    0  1  2  3  4  5  6            block 0     1     2
        #     block   0  0  1  1  1  2  2     ->    slots  0 1 . 2 3 4 5 6 .
        #
        # A window from cell 1 to cell 5 is the end of block 0 (a suffix sum, read at slot 1), all of block 1, and the
        # beginning of block 2 (a prefix sum, read at slot 6).
        block, centre = _split(cells)
        size = torch.bincount(block)
        width = int(size.max())
        slot = block * width + torch.arange(cells.num_cells) - (size.cumsum(0) - size)[block]
        layout = torch.full((len(size) * width,), cells.num_cells)
        layout[slot] = torch.arange(cells.num_cells)
        begin, end = block[cells.start], block[cells.stop - 1]
        node = torch.arange(len(begin))

        def part(number: Tensor, index: Tensor, used: Tensor) -> _Part:
            taylor = cells.windows.taylor(centre[number], node).where(used[:, None], 0.0)
            return _Part(index, taylor.T.contiguous())

        steps = range(1, int((end - begin).max()))
        return _Blocks(
            (cells.centre - centre[block]) / cells.windows.bandwidth,
            layout,
            width,
            part(begin, slot[cells.start], begin >= 0),
            tuple(part(n, n, begin + i < end) for i in steps for n in [torch.minimum(begin + i, end)]),
            part(end, slot[cells.stop - 1], begin < end),
        )

    def combine(self, M: Tensor) -> Tensor:
        """Sums `[P, m]` over windows from moments `[P, K, C]`."""
        padded = M.new_zeros(*M.shape[:2], M.shape[2] + 1)
        for k in range(M.shape[1]):  # (u + shift)^k
            factor = torch.ones_like(self.shift)
            for j in range(k, -1, -1):
                padded[:, k, :-1].addcmul_(M[:, j], factor * math.comb(k, j))
                factor = factor * self.shift
        blocks = padded.index_select(-1, self.layout).unflatten(-1, (-1, self.width))  # [P, K, blocks, width]
        prefix = blocks.cumsum(-1)
        suffix = blocks.flip(-1).cumsum(-1).flip(-1)
        D = self.first.sum(suffix.flatten(-2)) + self.last.sum(prefix.flatten(-2))
        total = prefix[..., -1].contiguous()
        for part in self.whole:
            D += part.sum(total)
        return D


@dataclass(frozen=True, eq=False)
class _Part:
    """One block of every window: where its moments lie, and its Taylor coefficients."""

    index: Tensor  # [m]
    taylor: Tensor  # [K, m], 0 where the window has no such block

    def sum(self, moments: Tensor) -> Tensor:
        """`[P, K, slots]` -> `[P, m]`."""
        return (moments.index_select(-1, self.index) * self.taylor).sum(1)


def _split(cells: AxisCells) -> tuple[Tensor, Tensor]:
    """The block of each cell `[C]` and the centre of each block: greedy, by width and by number of cells."""
    edges, h = cells.edges, cells.windows.bandwidth
    inner = cells.num_cells - 2
    limit = max(1, math.ceil(2 * inner * h / BLOCKS_PER_BANDWIDTH / float(edges[-1] - edges[0])))
    block, centre, i = [0], [cells.centre[0].item()], 0
    while i < inner:  # cell i + 1 is [edges[i], edges[i + 1])
        reach = int(torch.searchsorted(edges, edges[i] + h / BLOCKS_PER_BANDWIDTH, right=True)) - 1
        j = min(max(reach, i + 1), i + limit, inner)
        block += [len(centre)] * (j - i)
        centre.append(float(edges[i] + edges[j]) / 2)
        i = j
    block.append(len(centre))
    centre.append(cells.centre[-1].item())
    return torch.tensor(block), torch.tensor(centre, dtype=torch.float64)
