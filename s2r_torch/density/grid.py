"""The fixed grid that densities are estimated on and looked up from.

>>> grid = DensityGrid.uniform((0.0, 0.0), (1.0, 2.0), nodes=3)
>>> grid.num_points, grid.shape, float(grid.weights.sum())
(9, (3, 3), 2.0)
>>> D = grid.nodes.sum(-1)  # a linear function is interpolated exactly
>>> grid.interpolate(D, torch.tensor([[0.25, 1.5], [5.0, 0.0]])).tolist()
[1.75, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import numpy as np
import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.defaults import plain_torch
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.plain import as_python, real_numbers, require_count

MAX_NODES = 2**22  # 32 MiB per density
CHUNK = 2**18  # numbers looked at together, so that memory does not grow with samples


@dataclass(frozen=True, eq=False)
class DensityGrid:
    """A rectilinear grid, not necessarily uniform, with nodes in row-major order.

    Args:
        axes: one strictly increasing float64 tensor per dimension, at least 2 nodes each.

    Raises:
        SettingError: an axis is too short, not finite or not increasing, or the grid is too large for memory.
    """

    axes: tuple[Tensor, ...]
    _edges: dict[torch.dtype, tuple] = field(default_factory=dict, init=False, repr=False)

    @plain_torch()
    def __post_init__(self):
        if isinstance(self.axes, Tensor) and self.axes.ndim < 2:
            raise SettingError(expected="axes in a tuple", got=f"a tensor {list(self.axes.shape)}", cause="(axis,)")
        axes = tuple(torch.as_tensor(a, dtype=torch.float64) for a in self.axes)
        object.__setattr__(self, "axes", axes)
        for j, a in enumerate(axes):
            if a.ndim != 1 or len(a) < 2 or not bool(torch.isfinite(a).all()) or not bool((a.diff() > 0).all()):
                raise SettingError(
                    expected=f"at least 2 finite, strictly increasing nodes on axis {j}",
                    got=f"{a.flatten().tolist()[:4]}...",
                    cause="an empty box, or nodes out of order",
                )
        check_grid_size(tuple(len(a) for a in axes))

    @staticmethod
    @plain_torch()
    def uniform(low: tuple[float, ...], high: tuple[float, ...], nodes: int | tuple[int, ...]) -> DensityGrid:
        """Equally spaced nodes from low to high, both included; `nodes` per axis, or one number for all."""
        low, high = real_numbers("low", low), real_numbers("high", high)
        several = as_python(nodes)
        several = several if isinstance(several, Sequence) else (several,) * len(low)
        counts = tuple(require_count("nodes", m) for m in several)
        if not len(low) == len(high) == len(counts) >= 1:
            raise SettingError(
                expected="one lower edge, upper edge and node count per axis",
                got=f"{len(low)}, {len(high)} and {len(counts)}",
                cause="the grid and the observations differ in dimension",
            )
        check_grid_size(counts)
        return DensityGrid(
            tuple(torch.linspace(lo, hi, m, dtype=torch.float64) for lo, hi, m in zip(low, high, counts, strict=True))
        )

    @property
    def obs_dim(self) -> int:
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(a) for a in self.axes)

    @property
    def num_points(self) -> int:
        """G, the number of nodes."""
        return math.prod(self.shape)

    @property
    def num_cells(self) -> int:
        """Boxes between neighbouring nodes."""
        return math.prod(m - 1 for m in self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """The widest gap between neighbouring nodes, per axis."""
        return tuple(float(gaps.max()) for gaps in self._gaps)

    @cached_property
    def low(self) -> tuple[float, ...]:
        return tuple(float(a[0]) for a in self.axes)

    @cached_property
    def high(self) -> tuple[float, ...]:
        return tuple(float(a[-1]) for a in self.axes)

    @cached_property
    def nodes(self) -> Tensor:
        """All nodes `[G, d]`, the last axis fastest."""
        return torch.cartesian_prod(*self.axes).reshape(self.num_points, self.obs_dim)

    @cached_property
    def weights(self) -> Tensor:
        """Trapezoid weights `[G]`: sum(weights * D) approximates the integral of D."""
        total = torch.ones(1, dtype=torch.float64)
        for a in self.axes:
            w = torch.zeros_like(a)
            w[1:] += a.diff() / 2
            w[:-1] += a.diff() / 2
            total = (total[:, None] * w).flatten()
        return total

    def inside(self, x: Tensor) -> Tensor:
        """Whether x `[..., d]` lies in the closed box of the grid: `[...]` bool, False for NaN."""
        columns = zip(x.unbind(-1), self.low, self.high, strict=True)
        return reduce(torch.logical_and, (c.clamp(low, high) == c for c, low, high in columns))

    def count_outside(self, x: Tensor) -> Tensor:
        """How many of the n observations x `[..., n, d]` are not inside, `[...]` int64; some of them at a time."""
        rows = max(1, CHUNK * x.shape[-2] // max(1, x.numel()))
        return reduce(torch.add, ((~self.inside(part)).sum(-1) for part in x.split(rows, dim=-2)))

    def holds(self, low: list[float], high: list[float]) -> bool:
        """Whether the box of the grid holds the box from low to high."""
        return all(a <= lo and hi <= b for a, b, lo, hi in zip(self.low, self.high, low, high, strict=True))

    def off_grid_share(self, x: Tensor) -> float:
        """The share of observations `[..., d]` that lie outside the box of the grid."""
        return 1.0 - float(self.inside(x).double().mean())

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The cell corners around x and their weights, for multilinear interpolation.

        Args:
            x: `[..., d]` observations.

        Returns:
            Flat node indices `[..., 2^d]` int64 and weights `[..., 2^d]` float64, >= 0, that sum to 1;
            all 0 off the grid.
        """
        index = torch.zeros(*x.shape[:-1], 1, dtype=torch.int64)
        weight = self.inside(x).double()[..., None]
        for j, a in enumerate(self.axes):
            i, w = self.cells_along(j, x[..., j])
            corners = torch.stack([i, i + 1], -1)
            index = (index[..., :, None] * len(a) + corners[..., None, :]).flatten(-2)
            weight = (weight[..., :, None] * torch.stack([1 - w, w], -1)[..., None, :]).flatten(-2)
        return index, weight

    def cells_along(self, axis: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The cell of every coordinate x `[...]` on one axis, int64, and the place inside it in [0, 1]."""
        return _locate(self.axes[axis], self._gaps[axis], self._is_uniform[axis], x.double())

    def positions(self, rows: Tensor) -> Tensor:
        """A row of coordinates for each axis, `[d, n]`, in node numbers, float64: 2.5 is half-way from node 2 to 3."""
        rows = rows.double()
        if all(self._is_uniform):
            low, scale = self._steps
            return (rows - low).mul_(scale)
        placed = (_locate(a, g, False, c) for a, g, c in zip(self.axes, self._gaps, rows.unbind(0), strict=True))
        return torch.stack([i + w for i, w in placed])

    def interpolate(self, D: Tensor, x: Tensor) -> Tensor:
        """Densities D `[..., G]` looked up at x `[..., n, d]`, leading sizes broadcast: `[..., n]`.

        Multilinear between nodes, 0 off the grid; hence 1-Lipschitz in D in the sup norm.
        """
        check_shape("densities", D[..., 0, :] if D.ndim > 1 else D, (*D.shape[:-2], self.num_points), "another grid")
        check_shape("observations", x, (*x.shape[:-2], None, self.obs_dim), "readings [n] in place of [n, d]")
        lead = np.broadcast_shapes(D.shape[:-1], x.shape[:-2])  # torch's own would import sympy, for half a second
        index, weight = (part.expand(*lead, *part.shape[-2:]).reshape(-1, *part.shape[-2:]) for part in self.locate(x))
        D = D.expand(*lead, D.shape[-1]).reshape(-1, 1, D.shape[-1])
        return look_up(D, index, weight)[..., 0].reshape(*lead, x.shape[-2])

    def require_resolved(self, dtype: torch.dtype) -> None:
        """Raises ObservationError where steps between numbers of the readings' dtype are not small beside the nodes."""
        if dtype == torch.float32 and not self.takes_float32:
            j = max(range(self.obs_dim), key=lambda j: _float32_step(self.axes[j]))
            step, gap = _float32_step(self.axes[j]), float(self.axes[j].diff().min())
            raise ObservationError(
                expected="readings in float64",
                got=f"float32, whose steps near {self.high[j]:g} are {step:.2g} wide where nodes lie {gap:.2g} apart "
                f"on axis {j}",
                cause="a box far from 0: take float64 all the way from the sensor, or subtract a constant",
            )

    @cached_property
    def takes_float32(self) -> bool:
        """Whether float32 tells readings apart that lie a thousandth of a cell from each other; not far from 0."""
        return all(_float32_step(a) <= 1e-3 * float(a.diff().min()) for a in self.axes)

    def edges(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Low and high ends of the axes `[d, 1]`, rounded to the dtype of readings, as `inside` compares them."""
        if dtype not in self._edges:
            ends = (torch.stack([a[end] for a in self.axes])[:, None] for end in (0, -1))
            self._edges[dtype] = tuple(end.to(dtype) for end in ends)
        return self._edges[dtype]

    @cached_property
    def _gaps(self) -> tuple[Tensor, ...]:
        """Between neighbouring nodes, per axis."""
        return tuple(a.diff() for a in self.axes)

    @cached_property
    def _is_uniform(self) -> tuple[bool, ...]:
        """Whether nodes of each axis are equally spaced, up to rounding: cells are then found by arithmetic."""
        even = (torch.linspace(float(a[0]), float(a[-1]), len(a), dtype=a.dtype, device=a.device) for a in self.axes)
        off = ((a - b).abs().max() / a.diff().min() for a, b in zip(self.axes, even, strict=True))
        return tuple(float(share) <= 1e-9 for share in off)

    @cached_property
    def _steps(self) -> tuple[Tensor, Tensor]:
        """First node, and nodes per unit of length, `[d, 1]` each."""
        low, high = self.edges(torch.float64)
        return low, (self.last_cell + 1) / (high - low)

    @cached_property
    def last_cell(self) -> Tensor:
        """Number of the last cell of each axis, `[d, 1]` float64."""
        return self.axes[0].new_tensor(self.shape)[:, None] - 2

    @cached_property
    def cell_strides(self) -> Tensor:
        """How many cells lie between neighbours along each axis, row-major, `[d]` float64."""
        return self.axes[0].new_tensor([math.prod(m - 1 for m in self.shape[j + 1 :]) for j in range(self.obs_dim)])


def same_axes(grid: DensityGrid, other: DensityGrid) -> bool:
    """Whether two grids have the same nodes."""
    return grid.shape == other.shape and all(map(torch.equal, grid.axes, other.axes))


def _float32_step(axis: Tensor) -> float:
    """The widest gap between neighbouring float32 numbers on an axis."""
    return torch.finfo(torch.float32).eps * float(axis.abs().max())


def look_up(D: Tensor, index: Tensor, weight: Tensor, rows: Tensor | None = None) -> Tensor:
    """The densities of several states at given points, by multilinear interpolation (a convex combination of nodes).

    Args:
        D: `[B, S, G]`.
        index: `[B, n, c]` int64, the c = 2^d nodes around each point (`DensityGrid.locate`).
        weight: `[B, n, c]` their weights, >= 0, summing to 1 on the grid and to 0 off it.
        rows: `[B]` which densities the points are looked up in, where D has others: `[R, S, G]`; nothing is copied.

    Returns:
        `[B, n, S]`.
    """
    states, (batch, n, corners) = D.shape[1], index.shape
    flat = index.reshape(batch, 1, n * corners)
    if rows is None:
        values = D.gather(2, flat.expand(batch, states, n * corners))
    else:
        values = D[rows[:, None, None], torch.arange(states)[:, None], flat]
    values = values.view(batch, states, n, corners)
    return torch.einsum("bsnc,bnc->bns", values, weight.to(D.dtype))


def check_grid_size(counts: tuple[int, ...]) -> None:
    """Raises SettingError when a grid has more nodes than memory can carry."""
    nodes = math.prod(counts)
    if nodes > MAX_NODES:
        raise SettingError(
            expected=f"at most {MAX_NODES} nodes ({MAX_NODES * 8 / 2**20:.0f} MiB per density)",
            got=f"{' x '.join(map(str, counts))} = {nodes:.3g} nodes, {nodes * 8 / 2**30:.3g} GiB per density",
            cause=f"{len(counts)} dimensions are more than a grid can carry; use fewer nodes, or fewer sensors",
        )


def _locate(axis: Tensor, gaps: Tensor, uniform: bool, x: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of each x on one axis and the position inside it, in [0, 1]; 0 for NaN."""
    last, flat = len(axis) - 2, x.flatten()  # of which rows are picked in a fifth of the time
    if uniform:
        low, high = float(axis[0]), float(axis[-1])
        i = (flat - low).mul_((last + 1) / (high - low)).nan_to_num_(0.0).clamp_(0, last).long()
    else:
        i = (torch.searchsorted(axis, flat.contiguous(), right=True) - 1).clamp(0, last)
    inside = (flat - axis.index_select(0, i)).div_(gaps.index_select(0, i)).nan_to_num_(0.0).clamp_(0, 1)
    return i.view(x.shape), inside.view(x.shape)
