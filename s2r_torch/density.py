r"""Kernel density estimates on a fixed grid (paper eq. kde-formula, `density.md`).

    D_hat[g] = 1 / (n prod_j h_j) sum_i prod_j gamma((X_ij - x_gj) / h_j) 1[x_gj - h_j <= X_ij <= x_gj + h_j]

The predicate is written on the window's edges, x_g - h and x_g + h rounded to the dtype of X, so that every
implementation decides ties alike. Sums are in float64. Estimates are signed for orders above 2.

>>> from s2r_torch.kernels import make_kernel
>>> grid = DensityGrid.uniform((-1.0,), (1.0,), nodes=5)
>>> estimate = DensityEstimator(grid, make_kernel("legendre", 2), bandwidth=(0.5,))
>>> estimate(torch.tensor([[-0.5], [0.25]], dtype=torch.float64)).tolist()
[0.5, 0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.density_grid import DensityGrid
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.kernels import Kernel
from s2r_torch.samples import at_index, check_samples, check_varies

CHUNK = 2**18  # kernel values held at once, 2 MiB


@dataclass(frozen=True, eq=False)
class DensityEstimator:
    """The kernel density estimate on a grid, for any batch of samples.

    Args:
        grid: where densities are evaluated.
        kernel: gamma, of the order that the densities' smoothness allows.
        bandwidth: h per axis; fixed before the samples are drawn (theory.md 1.3).
        off_grid_limit: the largest share of a state's samples that may lie off the grid, in [0, 1].
        allow_constant: accept coordinates that do not vary or repeat another one (such a law has no density).

    Raises:
        SettingError: a bandwidth is not positive or below half the node spacing, which would hide states between nodes.
    """

    grid: DensityGrid
    kernel: Kernel
    bandwidth: tuple[float, ...]
    off_grid_limit: float = 0.01
    allow_constant: bool = False

    def __post_init__(self):
        object.__setattr__(self, "bandwidth", tuple(float(h) for h in self.bandwidth))
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
        if not 0 <= self.off_grid_limit <= 1:
            raise SettingError(expected="off_grid_limit in [0, 1]", got=str(self.off_grid_limit), cause="a percentage")

    def __call__(self, x: Tensor) -> Tensor:
        """D_hat `[..., G]` float64 from x `[..., n, d]` (float32 or float64).

        Raises:
            ObservationError: wrong shape, no samples, NaN or inf, too many samples off the grid, or a coordinate that
                is constant or repeats another one.

        Cost:
            No episodes. O(n G) time per density for d = 1, O(n (m_1 + m_2)) and a GEMM for d = 2; memory
            independent of n.
        """
        self.check(x)
        lead, n = x.shape[:-2], x.shape[-2]
        flat = x.reshape(-1, n, self.grid.obs_dim)
        D = flat.new_zeros(len(flat), self.grid.num_points, dtype=torch.float64)
        for batch, samples in _chunks(len(flat), n, sum(self.grid.shape)):
            D[batch] += self._sum(flat[batch, samples])
        return (D / (n * math.prod(self.bandwidth))).reshape(*lead, self.grid.num_points)

    def check(self, x: Tensor) -> None:
        """Raises ObservationError unless x `[..., n, d]` is what an estimate can be made from."""
        check_samples(x, self.grid.obs_dim)
        share = 1.0 - self.grid.inside(x).double().mean(-1)
        if bool((share > self.off_grid_limit).any()):
            worst = int(share.flatten().argmax())
            raise ObservationError(
                expected=f"at most {self.off_grid_limit:.2%} of a state's samples off the grid",
                got=f"{float(share.flatten()[worst]):.2%}{at_index(worst, share.shape)}",
                cause=f"the grid's box {self.grid.low} .. {self.grid.high} is too small, or a sensor is off its range",
            )
        if not self.allow_constant:
            check_varies(x)

    def _sum(self, x: Tensor) -> Tensor:
        """Unnormalised sums `[B, G]` of the product kernel over samples `[B, n, d]`."""
        factors = [self._factor(j, x[..., j]) for j in range(self.grid.obs_dim)]  # [B, n, m_j] each
        if len(factors) == 1:
            return factors[0].sum(-2)
        product = factors[0]
        for factor in factors[1:-1]:
            product = (product[..., :, None] * factor[..., None, :]).flatten(-2)
        return (product.mT @ factors[-1]).flatten(-2)

    def _factor(self, j: int, x: Tensor) -> Tensor:
        """gamma((X - x_g) / h) along one axis, `[B, n, m]` float64, for x `[B, n]`."""
        nodes, h = self.grid.axes[j], self.bandwidth[j]
        lower, upper = window_edges(nodes, h, x.dtype)
        inside = (lower <= x[..., None]) & (x[..., None] <= upper)
        return self.kernel.polynomial((x[..., None].double() - nodes) / h).where(inside, 0.0)


def window_edges(nodes: Tensor, h: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The closed window [x_g - h, x_g + h] of every node `[m]`, in the samples' dtype: the shared tie predicate."""
    return (nodes - h).to(dtype), (nodes + h).to(dtype)


def sup_distance(D: Tensor, E: Tensor) -> Tensor:
    """max_g |D - E| `[...]` of densities `[..., G]`: the sup norm, seen at the nodes."""
    return (D - E).abs().amax(-1)


def _chunks(batch: int, n: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Slices over densities and samples that hold at most CHUNK kernel values at once."""
    samples = max(1, min(n, CHUNK // width))
    densities = max(1, CHUNK // (width * samples))
    for b in range(0, batch, densities):
        for i in range(0, n, samples):
            yield slice(b, b + densities), slice(i, i + samples)
