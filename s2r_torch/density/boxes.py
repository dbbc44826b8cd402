r"""Sums over windows of samples that lie close together: only the cells around them are looked at, not the whole grid.

States share a grid, and each fills a small part of it: on `treasure` 4 of 56 nodes along either axis. So every density
has a box of its own: along axis j the w_j cells from its first occupied one on, and the v_j nodes whose windows reach
one of them. All else is 0. Boxes are padded to the widest one; padding adds zeros to sums that are taken cell by cell,
so a density has the same bits whatever others are estimated beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.density.cells import DENSE_NODES, AxisCells
from s2r_torch.density.moments import CHUNK, MAX_SUMS, add_moments, combine_moments, num_sums, products_of_powers

SHARE = 1 / 16  # of a grid's cells, at most, in a box: above it matrix products over all of them take less time


def window_sums(axes: Sequence[AxisCells], x: Tensor) -> Tensor:
    """Sums over windows `[B, G]` float64 of samples `[B, n, d]`, by moments, a bounded number of densities at once."""
    B, n, _ = x.shape
    D = torch.zeros(B, math.prod(len(axis.start) for axis in axes), dtype=torch.float64)
    if n > CHUNK or any(len(axis.start) > DENSE_NODES for axis in axes):
        add_sums(D, axes, x)
        return D
    for some, out in zip(x.split(CHUNK // n), D.split(CHUNK // n), strict=True):
        near = _share(axes, some) <= SHARE
        if bool(near.any()):
            add_box_sums(out, near.nonzero(), [AxisBox.around(axis, some[near, :, j]) for j, axis in enumerate(axes)])
        if bool(near.all()):
            continue
        rest = torch.zeros(len(some) - int(near.sum()), D.shape[1], dtype=torch.float64)
        add_sums(rest, axes, some[~near])
        out[~near] = rest
    return D


def _share(axes: Sequence[AxisCells], x: Tensor) -> Tensor:
    """Which share of all cells [B] the boxes of samples x [B, n, d] have."""
    ends = torch.stack([x.amin(1), x.amax(1)]).double().movedim(-1, 0).contiguous()  # [d, 2, B]
    cells = [torch.bucketize(of_axis, axis.edges, right=True) for axis, of_axis in zip(axes, ends, strict=True)]
    shares = [(last - first + 1) / axis.num_cells for axis, (first, last) in zip(axes, cells, strict=True)]
    return torch.stack(shares).prod(0)


def add_sums(D: Tensor, axes: Sequence[AxisCells], x: Tensor) -> None:
    """Adds the sums over windows of samples x [B, n, d] to D [B, G], by the moments of all cells."""
    powers = [axis.num_powers for axis in axes]
    rows = max(1, MAX_SUMS // num_sums(axes))
    for some, out in zip(x.split(rows), D.split(rows), strict=True):
        sums = torch.zeros(*powers, len(some), *(axis.num_cells for axis in axes), dtype=torch.float64)
        add_moments(sums, axes, powers, some)
        out += combine_moments(sums, axes)


@dataclass(frozen=True, eq=False)
class AxisBox:
    """Where the samples of B densities lie along one axis."""

    axis: AxisCells
    cell: Tensor  # [B, n] cells of samples, counted from the first occupied one of each density; float64
    u: Tensor  # [B n] places in them
    first: Tensor  # [B] that first cell
    width: int  # w
    node: Tensor  # [B] the first node whose window reaches a cell of the box
    nodes: int  # v, at most

    @staticmethod
    def around(axis: AxisCells, x: Tensor) -> AxisBox:
        """The boxes of samples x [B, n]."""
        cell, u = axis.locate(x.double().flatten())
        cell = cell.view(x.shape)
        first, last = (edge.long() for edge in cell.aminmax(dim=1))
        node = torch.searchsorted(axis.stop, first, right=True)
        after = torch.searchsorted(axis.start, last, right=True)
        width, nodes = int((last - first).max()) + 1, max(0, int((after - node).max()))
        return AxisBox(axis, cell - first[:, None], u, first, width, node, nodes)

    def place(self) -> Tensor:
        """The box's nodes on the axis [B, v]; beyond its end, the last one."""
        return self._nodes().clamp(max=len(self.axis.start) - 1)

    def weights(self) -> Tensor:
        """What moments of the box's cells add to its nodes: [B, K w, v]; 0 beyond the end of the axis."""
        cells = (self.first[:, None] + torch.arange(self.width)).clamp(max=self.axis.num_cells - 1)
        W = self.axis.dense.view(self.axis.num_powers, self.axis.num_cells, -1)
        W = W[:, cells[:, :, None], self.place()[:, None, :]].movedim(1, 0)  # [B, K, w, v]
        beyond = self._nodes() >= len(self.axis.start)
        return W.masked_fill(beyond[:, None, None, :], 0.0).flatten(1, 2)

    def _nodes(self) -> Tensor:
        return self.node[:, None] + torch.arange(self.nodes)


def add_box_sums(D: Tensor, rows: Tensor, boxes: Sequence[AxisBox]) -> None:
    """Adds the sums over windows of the samples in boxes to rows [b, 1] of D [B, G], which is contiguous."""
    where = rows
    for box in boxes:
        where = (where[:, :, None] * len(box.axis.start) + box.place()[:, None, :]).flatten(1)
    D.view(-1).scatter_add_(0, where.flatten(), _combined(boxes).flatten())


def _combined(boxes: Sequence[AxisBox]) -> Tensor:
    """Sums over windows of the boxes' nodes [b, v_1 .. v_d], axis by axis, the last first."""
    d, M = len(boxes), _moments(boxes)  # [b, K_1 .. K_j, w_1 .. w_j, v_d .. v_{j+1}]
    for j in reversed(range(d)):
        M, weights = M.movedim((1 + j, 2 + 2 * j), (-2, -1)), boxes[j].weights()
        lead, M = M.shape[:-2], M.reshape(len(M), -1, weights.shape[1])
        sums = M.new_zeros(*M.shape[:2], boxes[j].nodes)
        for c in range(weights.shape[1]):  # not a matrix product, whose rounding depends on its sizes
            sums += M[:, :, c, None] * weights[:, c, None]
        M = sums.view(*lead, boxes[j].nodes)
    return M.permute(0, *range(d, 0, -1))


def _moments(boxes: Sequence[AxisBox]) -> Tensor:
    """[b, K_1 .. K_d, w_1 .. w_d] (`moments`)."""
    widths, powers = [box.width for box in boxes], [box.axis.num_powers for box in boxes]
    count = len(boxes[0].cell)
    index = torch.arange(count, dtype=torch.float64)[:, None]
    for box in boxes:
        index = index * box.width + box.cell
    index = index.long().flatten()
    sums = torch.zeros(math.prod(powers), count * math.prod(widths), dtype=torch.float64)
    values = products_of_powers([box.u for box in boxes], powers)
    for row, value in zip(sums, values, strict=True):
        row.scatter_add_(0, index, torch.ones(len(index), dtype=torch.float64) if value is None else value)
    return sums.view(*powers, count, *widths).movedim(len(boxes), 0)
