r"""Densities as patches: a density is 0 but near its state, and only the box of nodes where it is not is kept.

    first[r, s]   the first node of the box, along every axis
    values[r, s]  what the box holds, with MARGIN nodes of zeros around it

All boxes are as large as the largest one must be. On a grid of width 33 that is one number where the grid has 200: what
is trained on would not fit into memory otherwise, nor into a cache. Look-ups are the same as in a dense density, up to
rounding: a cell outside the box is moved to its margin, where all corners are 0.

>>> grid = DensityGrid.uniform((0.0, 0.0), (9.0, 9.0), nodes=10)
>>> D = torch.zeros(1, 2, 100)
>>> D[0, 0, 35], D[0, 1, 98] = 1.0, 2.0
>>> patches = Patches.of(D, grid)
>>> patches.shape, patches.values.shape, patches.first.tolist()
(torch.Size([1, 2, 100]), torch.Size([1, 2, 25]), [[[3, 5], [9, 8]]])
>>> torch.equal(patches.dense(), D)
True
>>> patches.at(torch.tensor([[[3.0, 4.5], [9.0, 8.0], [99.0, 8.0]]])).tolist()
[[[0.5, 0.0], [0.0, 2.0], [0.0, 0.0]]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid, look_up

MARGIN = 2  # nodes of zeros on either side: a whole cell, and the corner of one that ends where the box begins
FAR = -(2**20)  # the cell of a reading off the grid


@dataclass(frozen=True, eq=False)
class Patches:
    """Densities [R, S, G].

    Args:
        grid: theirs.
        first: `[R, S, d]` int64.
        values: `[R, S, P]`, P the product over axes of nodes of a box and 2 MARGIN.
        size: nodes of a box, along every axis.
    """

    grid: DensityGrid
    first: Tensor  # [R, S, d]
    values: Tensor  # [R, S, P]
    size: tuple[int, ...]

    @staticmethod
    def of(D: Tensor, grid: DensityGrid) -> Patches:
        """Of dense ones [R, S, G]."""
        full, begins, sizes = D.unflatten(-1, grid.shape), [], []
        for j in range(grid.obs_dim):
            others = [2 + k for k in range(grid.obs_dim) if k != j]
            on = (full != 0).any(others) if others else full != 0  # [R, S, nodes]
            begin, end = on.int().argmax(-1), len(grid.axes[j]) - on.flip(-1).int().argmax(-1)
            wide = torch.where(on.any(-1), end - begin, 0)
            sizes.append(int(wide.max()) if wide.numel() else 0)
            begins.append(begin)
        size, first = tuple(sizes), torch.stack(begins, -1)
        values = _at_the_end(full, size).flatten(2).gather(-1, _nodes(grid, first, size))
        return Patches.in_boxes(values, first, size, grid)

    @staticmethod
    def in_boxes(values: Tensor, first: Tensor, size: tuple[int, ...], grid: DensityGrid) -> Patches:
        """Of values [R, S, nodes of a box] in boxes of one size that begin at first [R, S, d]."""
        margin = (MARGIN, MARGIN) * grid.obs_dim
        return Patches(grid, first, torch.nn.functional.pad(values.unflatten(-1, size), margin).flatten(2), size)

    @staticmethod
    def joined(parts: Sequence[Patches], axis: int = 0) -> Patches:
        """Those of several sets of simulators, one after another; of several sets of states, with axis 1."""
        size = tuple(max(sizes) for sizes in zip(*(part.size for part in parts), strict=True))
        grown = [_at_the_end(part.boxes(), [m - n for m, n in zip(size, part.size, strict=True)]) for part in parts]
        first = torch.cat([part.first for part in parts], axis)
        return Patches(parts[0].grid, first, torch.cat([box.flatten(2) for box in grown], axis), size)

    @property
    def shape(self) -> torch.Size:
        """[R, S, G], as of dense ones."""
        return torch.Size((*self.first.shape[:2], self.grid.num_points))

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index) -> Patches:
        """Of some simulators, or of some simulators and states; neither index may be a single number."""
        return replace(self, first=self.first[index], values=self.values[index])

    def split(self, rows: int) -> list[Patches]:
        """Some simulators at a time."""
        return [self[start : start + rows] for start in range(0, len(self), rows)] or [self]

    def to(self, dtype: torch.dtype) -> Patches:
        """In another precision."""
        return replace(self, values=self.values.to(dtype))

    def dense(self) -> Tensor:
        """All nodes: [R, S, G]."""
        values, (R, S) = self.boxes(), self.first.shape[:2]
        for j, m in enumerate(self.size):
            values = values.narrow(2 + j, MARGIN, m)
        values, wide = values.flatten(2), [n + m for n, m in zip(self.grid.shape, self.size, strict=True)]
        D = values.new_zeros(R, S, math.prod(wide)).scatter_(-1, _nodes(self.grid, self.first, self.size), values)
        D = D.unflatten(-1, wide)
        for j, n in enumerate(self.grid.shape):
            D = D.narrow(2 + j, 0, n)
        return D.flatten(2)

    @property
    def small(self) -> bool:
        """Whether zeros lie beside every box, along every axis."""
        return all(m < n for m, n in zip(self.size, self.grid.shape, strict=True))

    def sums(self, weights: Tensor) -> Tensor:
        """Sums over nodes of values times weights [k, G]: [R, S, k]."""
        edges = [size for m in reversed(self.size) for size in (MARGIN, m + MARGIN)]
        wide = torch.nn.functional.pad(weights.to(self.values.dtype).unflatten(-1, self.grid.shape), edges)
        size = [m + 2 * MARGIN for m in self.size]
        index, along = _nodes(self.grid, self.first, size), wide.flatten(1)
        return torch.stack([(self.values * one[index]).sum(-1) for one in along], -1)

    @property
    def ends(self) -> Tensor:
        """The nodes [R, S, d] after the last one of the boxes, along every axis."""
        return self.first + torch.tensor(self.size, device=self.first.device)

    def within(self, first: Tensor, size: Sequence[int]) -> Tensor:
        """Values in other boxes of nodes, which begin at first [R, S, d]: [R, S, nodes of such a box]."""
        index = self.first.new_zeros(*first.shape[:2], 1)
        for j, (m, wide) in enumerate(zip(self.size, size, strict=True)):
            along = (first - self.first)[..., j, None] + torch.arange(wide, device=first.device)
            along = (along + MARGIN).clamp_(0, m + 2 * MARGIN - 1)  # beyond the box: into its margin
            index = (index[..., :, None] * (m + 2 * MARGIN) + along[..., None, :]).flatten(-2)
        return self.values.gather(-1, index)

    def around(self, other: Patches) -> tuple[Tensor, tuple[int, ...]]:
        """The first node [R, S, d], and the size, of boxes that hold these and others of the same places."""
        first = torch.minimum(self.first, other.first)
        return first, tuple((torch.maximum(self.ends, other.ends) - first).amax((0, 1)).clamp(min=1).tolist())

    def distance(self, other: Patches) -> Tensor:
        """Sup distance [R, S] from others of the same places; of boxes that share no node, the larger height."""
        apart = ((self.first >= other.ends) | (other.first >= self.ends)).any(-1)  # [R, S]
        larger = torch.maximum(self.values.abs().amax(-1), other.values.abs().amax(-1))
        other = replace(other, first=torch.where(apart[..., None], self.first, other.first))  # not looked at
        first, size = self.around(other)
        return torch.where(apart, larger, (self.within(first, size) - other.within(first, size)).abs().amax(-1))

    def mean(self, other: Patches) -> Patches:
        """The mean of these and of others of the same places."""
        first, size = self.around(other)
        return Patches.in_boxes((self.within(first, size) + other.within(first, size)) / 2, first, size, self.grid)

    def boxes(self) -> Tensor:
        """What boxes hold, with an axis for each of the grid's: [R, S, *nodes of a box and its margins]."""
        return self.values.unflatten(-1, [m + 2 * MARGIN for m in self.size])

    def at(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Looked up at x [B, n, d], by multilinear interpolation: [B, n, S].

        Args:
            x: readings.
            rows: `[B]` in which densities; None for those of the same place.
        """
        rows = torch.arange(len(self), device=self.first.device) if rows is None else rows
        return self._interpolated(x[:, None], rows).mT

    def at_own(self, places: Tensor) -> Tensor:
        """Every state's looked up at places of its own, [n, S, d], by multilinear interpolation: [R, n, S]."""
        return self._interpolated(places.transpose(0, 1)[None], torch.arange(len(self), device=self.first.device)).mT

    def _interpolated(self, x: Tensor, rows: Tensor) -> Tensor:
        """Those of rows [B] at x [B or 1, S or 1, n, d]: [B, S, n]."""
        S, P = self.values.shape[1:]
        states = torch.arange(S, device=self.first.device)
        inside, first = self.grid.inside(x), self.first[rows]
        place = (rows[:, None] * S + states) * P  # [B, S]
        index, strides = place[..., None], [1]
        for m in reversed(self.size[1:]):
            strides.insert(0, strides[0] * (m + 2 * MARGIN))
        weights = []
        for j, (m, stride) in enumerate(zip(self.size, strides, strict=True)):
            cell, weight = self.grid.cells_along(j, x[..., j])
            near = (torch.where(inside, cell, FAR) - first[..., j, None]).clamp_(-MARGIN, m)  # [B, S, n]
            index = index + (near + MARGIN) * stride
            weights.append(weight.to(self.values.dtype))
        flat = self.values.view(-1)
        picked = (
            flat.index_select(0, (index + offset).flatten()) for offset in _offsets(strides)
        )  # faster than flat[..]
        corners = [values.view(index.shape) for values in picked]  # the last axis fastest
        for weight in reversed(weights):
            corners = [torch.lerp(a, b, weight) for a, b in zip(corners[::2], corners[1::2], strict=True)]
        return corners[0]


Densities = Tensor | Patches  # [B, xi, G]


Task = TypeVar("Task", bound=Callable[..., Any])


def takes_patches(task: Task) -> Task:
    """Marks a function of densities that finds the same from patches; others are given all nodes (`taken`)."""
    cast(Any, task).takes_patches = True
    return task


def taken(task: Callable[..., Any], D: Densities) -> Any:
    """The densities, as that function of them takes them."""
    return D if getattr(task, "takes_patches", False) else dense(D)


def dense(D: Densities) -> Tensor:
    """All nodes, [B, xi, G]."""
    return D.dense() if isinstance(D, Patches) else D


def all_rows(parts: Sequence[Densities]) -> Densities:
    """Those of several sets of simulators, one after another; dense where one of them is."""
    patches = [part for part in parts if isinstance(part, Patches)]
    return Patches.joined(patches) if len(patches) == len(parts) else torch.cat([dense(part) for part in parts])


def heights(D: Densities) -> Tensor:
    """Their largest values [B, xi]."""
    return (D.values if isinstance(D, Patches) else D).amax(-1)


def centres(D: Densities, grid: DensityGrid) -> Tensor:
    """Their mean positions [B, S, d], float64."""
    weights = torch.cat([grid.nodes.T, torch.ones(1, grid.num_points, dtype=torch.float64)])
    sums = D.to(torch.float64).sums(weights) if isinstance(D, Patches) else D.double() @ weights.T
    return sums[..., :-1] / sums[..., -1:].clamp(min=1e-12)


def looked_up(D: Densities, grid: DensityGrid, x: Tensor, rows: Tensor | None = None) -> Tensor:
    """Densities [R, S, G] at readings x [B, n, d], in those of rows [B]: [B, n, S]."""
    return D.at(x, rows) if isinstance(D, Patches) else look_up(D, *grid.locate(x), rows)


def looked_up_own(D: Densities, grid: DensityGrid, places: Tensor) -> Tensor:
    """Every state's density in D [R, S, G] at places [n, S, d] of its own: [R, n, S]."""
    return D.at_own(places) if isinstance(D, Patches) else grid.interpolate(D, places.transpose(0, 1)).mT


def _at_the_end(values: Tensor, more: Sequence[int]) -> Tensor:
    """Values [R, S, *nodes] with so many nodes of zeros more along every axis."""
    return torch.nn.functional.pad(values, [size for m in reversed(more) for size in (0, m)])


def _nodes(grid: DensityGrid, first: Tensor, size: Sequence[int]) -> Tensor:
    """Numbers of the nodes of boxes that begin at first [R, S, d]: [R, S, nodes of a box], row-major.

    They are those of a grid that goes on by the size of a box: one that begins near the end sticks out.
    """
    index = first.new_zeros(*first.shape[:2], 1)
    for j, (nodes, m) in enumerate(zip(grid.shape, size, strict=True)):
        along = first[..., j, None] + torch.arange(m, device=first.device)
        index = (index[..., :, None] * (nodes + m) + along[..., None, :]).flatten(-2)
    return index


def _offsets(strides: Sequence[int]) -> list[int]:
    """Of the corners of a cell from its first one, the last axis fastest."""
    offsets = [0]
    for stride in strides:
        offsets = [offset + step for offset in offsets for step in (0, stride)]
    return offsets
