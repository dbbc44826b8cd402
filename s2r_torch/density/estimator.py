r"""Kernel density estimates on a fixed grid (paper eq. kde-formula, `density.md`).

    D_hat[g] = 1 / (n prod_j h_j) sum_i prod_j gamma((X_ij - x_gj) / h_j) 1[x_gj - h_j <= X_ij <= x_gj + h_j]

The predicate is written on the window's edges, x_g - h and x_g + h rounded to the dtype of X, so that every
implementation decides ties alike (`windows`). Sums are in float64. Estimates are signed for orders above 2.

>>> from s2r_torch.density.kernels import make_kernel
>>> grid = DensityGrid.uniform((-1.0,), (1.0,), nodes=5)
>>> estimate = DensityEstimator(grid, make_kernel("legendre", 2), bandwidth=(0.5,))
>>> x = torch.tensor([[-0.5], [0.25]], dtype=torch.float64)
>>> estimate(x).tolist()
[0.5, 0.5, 1.0, 0.5, 0.0]
>>> stream = DensityStream(estimate)
>>> stream.add(x[:1])
>>> stream.add(x[1:])
>>> stream.density().tolist()
[0.5, 0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.defaults import plain_torch
from s2r_torch.density.boxes import window_sums
from s2r_torch.density.cells import AxisCells
from s2r_torch.density.direct import box_sums, direct_sums, gemm_sums
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import Kernel
from s2r_torch.density.moments import add_moments, combine_moments, faster_by_moments
from s2r_torch.density.patches import Patches
from s2r_torch.density.samples import SampleError, check_samples, check_scattered, check_varies, index_of, varies
from s2r_torch.density.windows import AxisWindows
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.given import taking
from s2r_torch.plain import real_numbers

METHODS = ("auto", "moments", "gemm", "direct")
MOST_VALUES = 2**21  # of densities that become patches, held at once: 16 MiB
BY_CHANCE = 1e-3  # at most: a state is refused whose readings lie off the grid as often as they may
FEW_NODES = 32  # times as many has a grid of which only those are looked at that samples reach


@taking()
@dataclass(frozen=True, eq=False)
class DensityEstimator:
    """The kernel density estimate on a grid, for any batch of samples.

    Args:
        grid: where densities are evaluated.
        kernel: gamma, of the order that the densities' smoothness allows.
        bandwidth: h per axis; fixed before the samples are drawn (theory.md 1.3).
        boundary: "none" (the paper), or "legendre": kernels cut at the edges of the grid's box, for densities that are
            positive there; unbiased at the edge, at 8 to 14 times the variance there.
        method: "moments", "gemm" or "direct" (the oracle), which agree up to rounding; "auto" takes the fastest.
        off_grid_limit: the largest share of a state's readings that may lie off the grid, in [0, 1]; of n samples as
            many as chance makes of that.
        allow_constant: accept coordinates that do not vary or repeat another one (such a law has no density).

    Raises:
        SettingError: an unknown choice, or a bandwidth that is not positive or below half the node spacing, which would
            hide samples between nodes, or so wide that a constant kernel sees no difference between samples.
    """

    grid: DensityGrid
    kernel: Kernel
    bandwidth: tuple[float, ...]
    boundary: str = "none"
    method: str = "auto"
    off_grid_limit: float = 0.01
    allow_constant: bool = False
    _cells: dict[torch.dtype, tuple[AxisCells, ...]] = field(default_factory=dict, init=False, repr=False)

    @plain_torch()
    def __post_init__(self):
        object.__setattr__(self, "bandwidth", tuple(map(float, real_numbers("bandwidth", self.bandwidth))))
        if len(self.bandwidth) != self.grid.obs_dim:
            raise SettingError(
                expected=f"{self.grid.obs_dim} bandwidths, one per axis",
                got=str(len(self.bandwidth)),
                cause="the grid and the bandwidth differ in dimension",
            )
        for j, (h, spacing) in enumerate(zip(self.bandwidth, self.grid.spacing, strict=True)):
            if not (math.isfinite(h) and h >= spacing / 2 * (1 - 1e-12)):
                raise SettingError(
                    expected=f"a finite bandwidth >= half the node spacing {spacing:g} on axis {j}",
                    got=f"{h:g}",
                    cause=f"too few nodes: {self.grid.shape[j]} on axis {j}; a sample between two nodes would vanish",
                )
            width = self.grid.high[j] - self.grid.low[j]
            if self.boundary == "none" and len(self.kernel.coefficients) == 1 and h >= width:  # a constant kernel
                raise SettingError(
                    expected=f"a bandwidth below the width {width:g} of the grid on axis {j}",
                    got=f"{h:g}",
                    cause="every window would hold every sample, so that densities tell nothing: more nodes, or a "
                    "narrower bandwidth",
                )
        if not 0 <= self.off_grid_limit <= 1:
            raise SettingError(expected="off_grid_limit in [0, 1]", got=str(self.off_grid_limit), cause="a percentage")
        for name, value, choices in (
            ("boundary", self.boundary, ("none", "legendre")),
            ("method", self.method, METHODS),
        ):
            if value not in choices:
                raise SettingError(expected=f"{name} among {choices}", got=repr(value), cause="a misspelling")
        self.windows(torch.float64)  # refuses kernels without a boundary form

    @plain_torch()
    def __call__(self, x: Tensor) -> Tensor:
        """D_hat `[..., G]` float64 from x `[..., n, d]` (float32 or float64).

        Raises:
            ObservationError: wrong shape, no samples, NaN or inf, too many samples off the grid, or a coordinate that
                is constant, mostly constant, or repeats another one.

        Cost:
            No episodes. Moments: O(n) time and one small matrix product per density. Memory independent of n.
        """
        self.check(x)
        lead, n = x.shape[:-2], x.shape[-2]
        flat = x.reshape(-1, n, self.grid.obs_dim)
        sums = self._method(len(flat), n, x.dtype)(flat)
        return sums.div_(self._scale(n)).reshape(*lead, self.grid.num_points)

    def of_states(self, samples: Sequence[Tensor]) -> Tensor:
        """D_hat `[..., xi, G]` of several states' samples `[..., n_s, d]`, in one go where their numbers are the same.

        Raises:
            ObservationError: as for one state; which one, the last number of its index says.
        """
        alike = self._alike(samples)
        D_hat = None
        for states in alike:
            with _of_states(states):
                D = self(torch.stack([samples[s] for s in states], -3))
            if len(alike) == 1:
                return D
            if D_hat is None:
                D_hat = D.new_empty(*D.shape[:-2], len(samples), D.shape[-1])
            D_hat[..., states, :] = D
        return torch.as_tensor(D_hat)

    @plain_torch()
    def patches(self, samples: Sequence[Tensor]) -> Patches:
        """The same of samples [B, n_s, d], kept only where densities are not 0; some states at a time."""
        at_once = max(1, MOST_VALUES // (len(samples[0]) * self.grid.num_points))
        blocks, order = [], []
        for states in self._alike(samples):
            for start in range(0, len(states), at_once):
                some = states[start : start + at_once]
                with _of_states(some):
                    blocks.append(self._patches(torch.stack([samples[s] for s in some], 1)))
                order += some
        return Patches.joined(blocks, axis=1)[:, torch.tensor(order).argsort()]

    def _patches(self, x: Tensor) -> Patches:
        """Of samples [B, S, n, d]: where they reach few nodes, the others are not even looked at."""
        self.check(x)
        windows = self.windows(x.dtype)
        first, size = zip(*(w.reached(x[..., j]) for j, w in enumerate(windows)), strict=True)
        if FEW_NODES * math.prod(size) > self.grid.num_points:
            return Patches.of(self(x), self.grid)
        begin = torch.stack(first, -1)
        sums = box_sums(windows, x.flatten(0, 1), begin.flatten(0, 1), size)
        return Patches.in_boxes(sums.div_(self._scale(x.shape[-2])).unflatten(0, x.shape[:2]), begin, size, self.grid)

    def _alike(self, samples: Sequence[Tensor]) -> list[list[int]]:
        """States whose samples are of one shape and dtype, together."""
        alike: dict[tuple, list[int]] = {}
        for s, x in enumerate(samples):
            if not isinstance(x, Tensor):
                self.check(x)
            alike.setdefault((x.dtype, *x.shape), []).append(s)
        return list(alike.values())

    def check(self, x: Tensor) -> None:
        """Raises ObservationError unless x `[..., n, d]` is what an estimate can be made from."""
        off = self.count_off_grid(x)
        self.check_off_grid(off, x.shape[-2])
        if not self.allow_constant:
            check_varies(*varies(x), x.shape[-2])
            check_scattered(x, self.bandwidth)

    def count_off_grid(self, x: Tensor) -> Tensor:
        """How many samples of each state lie off the grid, `[...]`; raises ObservationError unless x is finite."""
        low, high = check_samples(x, self.grid.obs_dim)
        self.grid.require_resolved(x.dtype)
        if self.grid.holds(low, high):
            return torch.zeros(x.shape[:-2], dtype=torch.int64)
        return self.grid.count_outside(x)

    def check_off_grid(self, off: Tensor, n: int) -> None:
        """Raises ObservationError when more of some state's n samples lie off the grid than the allowed share makes."""
        if bool(more_than_a_share(off, n, self.off_grid_limit).any()):
            worst = int(off.flatten().argmax())
            raise SampleError(
                expected=f"at most {self.off_grid_limit:.2%} of a state's samples off the grid",
                got=f"{int(off.flatten()[worst]) / n:.2%}",
                cause=f"the grid's box {self.grid.low} .. {self.grid.high} is too small, or a sensor is off its range",
                index=index_of(worst, off.shape),
            )

    def normalised(self, sums: Tensor, n: int) -> Tensor:
        """Sums over windows to densities: divides by n prod_j h_j."""
        return sums / self._scale(n)

    def _scale(self, n: int) -> float:
        return n * math.prod(self.bandwidth)

    def windows(self, dtype: torch.dtype) -> tuple[AxisWindows, ...]:
        """The windows of each axis, for samples of that dtype."""
        return tuple(c.windows for c in self.cells(dtype))

    def cells(self, dtype: torch.dtype) -> tuple[AxisCells, ...]:
        """The cells of each axis, for samples of that dtype; made once."""
        if dtype not in self._cells:
            cut = self.boundary == "legendre"
            self._cells[dtype] = tuple(
                AxisCells.make(AxisWindows.make(self.kernel, nodes, h, dtype, cut))
                for nodes, h in zip(self.grid.axes, self.bandwidth, strict=True)
            )
        return self._cells[dtype]

    def _method(self, batch: int, n: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        method, cells = self.method, self.cells(dtype)
        if method == "auto":
            method = "moments" if faster_by_moments(cells, batch, n) else "gemm"
        if method == "moments":
            return lambda x: window_sums(cells, x)
        sums = gemm_sums if method == "gemm" else direct_sums
        return lambda x: sums(self.windows(dtype), x)


@taking()
class DensityStream:
    """Densities from samples that arrive in parts and are not kept: moments, which add.

    Args:
        estimator: what is estimated.
        lead: leading sizes of the batch, for example (B, xi).
        dtype: of the samples, float32 or float64.
        degree: moments up to this power are kept; the least that the kernel needs, or more for a band (`bands`).

    Cost:
        (K C)^d float64 numbers per density, C about twice the nodes per axis, K = degree + 1; however many samples.
    """

    def __init__(
        self,
        estimator: DensityEstimator,
        lead: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
        degree: int | None = None,
    ):
        if not isinstance(lead, tuple | list) or dtype not in (torch.float32, torch.float64):
            got, cause = f"{lead} and {dtype}", "lead=(B, xi), dtype=torch.float64"
            raise SettingError(expected="leading sizes in a tuple, float32 or float64", got=got, cause=cause)
        self.estimator, self.lead, self.dtype, self.n = estimator, tuple(lead), dtype, 0
        cells = estimator.cells(dtype)
        self.powers = [c.num_powers if degree is None else max(c.num_powers, degree + 1) for c in cells]
        B, d = math.prod(self.lead), len(cells)
        self.sums = torch.zeros(*self.powers, B, *(c.num_cells for c in cells), dtype=torch.float64)
        self._off_grid = torch.zeros(self.lead, dtype=torch.int64)
        self._first = torch.full((*self.lead, 1, d), math.nan, dtype=dtype)
        self._moves = torch.zeros(*self.lead, d, dtype=torch.bool)
        self._differ = torch.eye(d, dtype=torch.bool).expand(*self.lead, d, d)

    def add(self, x: Tensor) -> None:
        """Takes samples x `[..., n, d]` in; their leading sizes are those of the stream.

        Raises:
            ObservationError: another shape or dtype, NaN or inf, or mostly one point.
        """
        if x.shape[:-2] != self.lead or x.dtype != self.dtype:
            raise ObservationError(
                expected=f"samples [{', '.join(map(str, (*self.lead, 'n', 'd')))}] of {self.dtype}",
                got=f"{list(x.shape)} of {x.dtype}",
                cause="parts of another batch",
            )
        self._off_grid += self.estimator.count_off_grid(x)
        if self.n == 0:
            self._first = x[..., :1, :].clone()
        if not self.estimator.allow_constant:
            check_scattered(x, self.estimator.bandwidth)
        moves, differ = varies(x)
        self._moves = self._moves | moves | (x[..., 0, :] != self._first[..., 0, :])
        self._differ = self._differ | differ
        cells = self.estimator.cells(self.dtype)
        add_moments(self.sums, cells, self.powers, x.reshape(-1, *x.shape[-2:]))
        self.n += x.shape[-2]

    def merge(self, other: DensityStream) -> None:
        """Takes in what another stream of the same estimator has seen, for example on another worker."""
        if self.sums.shape != other.sums.shape or self.lead != other.lead or self.dtype != other.dtype:
            raise SettingError(
                expected=f"a stream of sizes {self.lead}, {self.dtype}",
                got=f"{other.lead}, {other.dtype}",
                cause="streams of different estimators",
            )
        if other.n == 0:
            return
        if self.n == 0:
            self._first = other._first
        self.sums += other.sums
        self.n += other.n
        self._off_grid += other._off_grid
        self._moves = self._moves | other._moves | (self._first != other._first)[..., 0, :]
        self._differ = self._differ | other._differ

    def density(self) -> Tensor:
        """D_hat `[..., G]` of all samples so far.

        Raises:
            ObservationError: no samples, too many off the grid, or a coordinate that is constant or duplicated.
        """
        if self.n == 0:
            raise ObservationError(expected="n >= 1 samples", got="0", cause="an empty budget")
        self.estimator.check_off_grid(self._off_grid, self.n)
        if not self.estimator.allow_constant:
            check_varies(self._moves, self._differ, self.n)
        cells = self.estimator.cells(self.dtype)
        sums = self.sums[tuple(slice(c.num_powers) for c in cells)]
        return self.estimator.normalised(combine_moments(sums, cells), self.n).reshape(*self.lead, -1)


@contextmanager
def _of_states(states: Sequence[int]) -> Iterator[None]:
    """Within it, the last number of an index is that of one of these states."""
    try:
        yield
    except SampleError as error:
        raise error.at((*error.index[:-1], states[error.index[-1]])) from error


def sup_distance(D: Tensor, E: Tensor) -> Tensor:
    """max_g |D - E| `[...]` of densities `[..., G]`: the sup norm, seen at the nodes."""
    return (D - E).abs().amax(-1)


def more_than_a_share(count: Tensor, n: int, share: float) -> Tensor:
    r"""Whether counts [...] of n samples are more than a share makes of them, but by a chance of `BY_CHANCE`; or all.

    Chernoff:   P(count / n >= s) <= exp(-n (s log(s / share) + (1 - s) log((1 - s) / (1 - share)))),   s > share

    >>> more_than_a_share(torch.tensor([1, 6, 7]), 100, 0.01).tolist()
    [False, False, True]
    """
    s = count.double() / n
    divergence = torch.xlogy(s, s / share) + torch.xlogy(1 - s, (1 - s) / (1 - share))
    return (s > share) & ((n * divergence > -math.log(BY_CHANCE)) | (count == n))
