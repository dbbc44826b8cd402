r"""Sup-norm error bars of density estimates by the Gaussian multiplier bootstrap (density.md, "Sup-norm bands").

With xi_i independent N(0, 1), the law of

    max_g |Z_g|,    Z_g = 1/n sum_i xi_i (K_h(X_i - x_g) - D_hat_g)

given the data approximates that of max_g |D_hat_g - E D_hat_g|. No data are needed beyond moments: within a cell the
sums of xi_i u_i^k are N(0, moments of order k + l), independent across cells. Bands cover E D_hat; they cover D where h
is small enough that the bias is below the noise (`lepski_bandwidth` with shrink 0.5).

>>> from s2r_torch.density.grid import DensityGrid
>>> from s2r_torch.density.kernels import make_kernel
>>> grid = DensityGrid.uniform((-5.0,), (5.0,), nodes=65)
>>> estimate = DensityEstimator(grid, make_kernel("legendre", 4), bandwidth=(1.0,))
>>> x = torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
>>> band = sup_band(estimate, x, generator=torch.Generator().manual_seed(1))
>>> bool(0.05 < band.radius(0.95) < 0.09)
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from s2r_torch.density.direct import kernel_values
from s2r_torch.density.estimator import DensityEstimator, DensityStream
from s2r_torch.density.moments import combine_moments, num_sums
from s2r_torch.density.windows import AxisWindows
from s2r_torch.errors import ObservationError, SettingError

MOST_VALUES = 2**22  # float64 numbers held at once, 32 MiB


@dataclass(frozen=True, eq=False)
class SupBand:
    """Draws of the sup-norm error of each estimate."""

    maxima: Tensor  # [..., R] sorted draws of max_g |Z_g|
    n: int  # samples of each estimate

    def radius(self, level: float = 0.95) -> Tensor:
        """r `[...]` such that max_g |D_hat - E D_hat| <= r with probability about `level`, in (0, 1)."""
        R = self.maxima.shape[-1]
        if not 0 < level < 1:
            raise SettingError(expected="a level in (0, 1)", got=str(level), cause="a percentage")
        return self.maxima[..., min(math.ceil((R + 1) * level), R) - 1]

    def two_sample_radius(self, level: float = 0.95, n_other: int | None = None) -> Tensor:
        """The radius `[...]` for the sup distance to another, independent estimate of that density.

        Differences of both cancel the bias, so this is the noise level of a merge test (Algorithm 2, line 4).
        """
        return self.radius(level) * math.sqrt(1 + self.n / (n_other or self.n))


def sup_band(estimator: DensityEstimator, x: Tensor, num_draws: int = 1000, *, generator: torch.Generator) -> SupBand:
    """Error bars of the estimates from x `[..., n, d]`.

    Args:
        estimator: what was estimated.
        x: the samples it was estimated from.
        num_draws: R; 1000 for a level of 0.95.
        generator: consumed. States share multipliers: each radius is valid, they are not independent.

    Returns:
        Draws for every state `[...]`.

    Raises:
        ObservationError: fewer than 2 samples, or what no density can be estimated from.

    Cost:
        No episodes. From samples O(R n G) a state; from moments, where that is less, O(R) times a combination.
    """
    estimator.check(x)
    lead, n = x.shape[:-2], x.shape[-2]
    _check_sizes(num_draws, n)
    cells = estimator.cells(x.dtype)
    states = x.reshape(-1, n, x.shape[-1])
    near = math.prod(len(w.middle) for w in _near(estimator, x))
    if n * near > 2 * num_sums(cells) * estimator.grid.shape[-1]:  # operations per draw
        maxima = []
        for state in states:
            stream = DensityStream(estimator, (), x.dtype, degree=2 * max(c.num_powers for c in cells) - 2)
            stream.add(state)
            maxima.append(sup_band_from_moments(stream, num_draws, generator=generator).maxima)
    else:
        xi = torch.randn(num_draws, n, dtype=torch.float64, generator=generator)
        maxima = [_maxima_from_samples(estimator, state, xi) for state in states]
    return SupBand(torch.stack(maxima).reshape(*lead, num_draws).sort(-1).values, n)


def sup_band_from_moments(stream: DensityStream, num_draws: int = 1000, *, generator: torch.Generator) -> SupBand:
    """Error bars from a stream's moments, whatever the number of samples it has seen.

    Args:
        stream: of moments up to twice the kernel's degree: `DensityStream(..., degree=2 * (K - 1))`.
        num_draws: R.
        generator: consumed.

    Raises:
        ObservationError: fewer than 2 samples, or what no density can be estimated from.
        SettingError: the stream keeps too few moments.
    """
    _check_sizes(num_draws, stream.n)
    cells = stream.estimator.cells(stream.dtype)
    if any(p < 2 * c.num_powers - 1 for p, c in zip(stream.powers, cells, strict=True)):
        raise SettingError(
            expected=f"moments up to degree {2 * max(c.num_powers for c in cells) - 2}",
            got=f"{max(stream.powers) - 1}",
            cause="a stream made for densities only; give it degree=",
        )
    D_hat = stream.density().reshape(-1, stream.estimator.grid.num_points)
    d = len(cells)
    sums = stream.sums.movedim(d, 0)  # [B, K_1 .. K_d, C_1 .. C_d]
    maxima = [_maxima_from_moments(stream, s, D, num_draws, generator) for s, D in zip(sums, D_hat, strict=True)]
    return SupBand(torch.stack(maxima).reshape(*stream.lead, num_draws).sort(-1).values, stream.n)


def _maxima_from_samples(estimator: DensityEstimator, x: Tensor, xi: Tensor) -> Tensor:
    """max_g |Z_g| `[R]` for samples `[n, d]` and multipliers `[R, n]`, some draws and samples at a time.

    Z is 0 at nodes that no sample is near: they are left out, which is most of a grid in many dimensions.
    """
    windows = _near(estimator, x)
    G = math.prod(len(w.middle) for w in windows)
    if G == 0:  # all samples off the grid
        return torch.zeros(len(xi), dtype=torch.float64)
    rows = max(1, MOST_VALUES // G)
    maxima = []
    for part in xi.split(rows):
        Z, total = torch.zeros(len(part), G, dtype=torch.float64), torch.zeros(G, dtype=torch.float64)
        for weights, some in zip(part.split(rows, 1), x.split(rows), strict=True):
            K = kernel_values(windows, some)  # [rows, G]
            Z, total = Z.addmm_(weights, K), total + K.sum(0)
        Z -= part.sum(1, keepdim=True) * (total / len(x))
        maxima.append(estimator.normalised(Z, len(x)).abs().amax(-1))
    return torch.cat(maxima)


def _near(estimator: DensityEstimator, x: Tensor) -> list[AxisWindows]:
    """The windows of each axis that reach into the range of samples x `[..., d]`."""
    return [w.near(x[..., j]) for j, w in enumerate(estimator.windows(x.dtype))]


def _maxima_from_moments(
    stream: DensityStream, sums: Tensor, D_hat: Tensor, num_draws: int, generator: torch.Generator
) -> Tensor:
    """max_g |Z_g| `[R]` for one state's moments `[K_1 .. K_d, C_1 .. C_d]` and estimate `[G]`."""
    cells = stream.estimator.cells(stream.dtype)
    powers = [c.num_powers for c in cells]
    root, where = _cell_roots(sums, powers)  # [c, k, k], [c]
    shape = [c.num_cells for c in cells]
    rows = max(1, MOST_VALUES // (math.prod(powers) * math.prod(shape)))
    maxima = []
    for start in range(0, num_draws, rows):
        R = min(rows, num_draws - start)
        normal = torch.randn(len(where), R, root.shape[-1], dtype=torch.float64, generator=generator)
        drawn = torch.zeros(root.shape[-1], R, math.prod(shape), dtype=torch.float64)
        drawn[..., where] = (normal @ root.mT).permute(2, 1, 0)
        Z = stream.estimator.normalised(combine_moments(drawn.reshape(*powers, R, *shape), cells), stream.n)
        Z -= D_hat * (drawn[0].sum(-1, keepdim=True) / stream.n)
        maxima.append(Z.abs().amax(-1))
    return torch.cat(maxima)


def _cell_roots(sums: Tensor, powers: list[int]) -> tuple[Tensor, Tensor]:
    """Roots of the moment matrices sum_i u_i^(k + l) of occupied cells, `[c, k, k]`, and which they are, `[c]`."""
    d = len(powers)
    flat = sums.flatten(d)  # [K_1 .. K_d, C]
    where = flat[(0,) * d].nonzero().flatten()
    exponents = list(product(*(range(p) for p in powers)))
    matrix = torch.stack(
        [
            torch.stack([flat[tuple(a + b for a, b in zip(k, m, strict=True))][where] for m in exponents], -1)
            for k in exponents
        ],
        -2,
    )
    values, vectors = torch.linalg.eigh(matrix)  # few samples make it singular: no Cholesky
    return vectors * values.clamp(min=0).sqrt()[:, None, :], where


def _check_sizes(num_draws: int, n: int) -> None:
    if num_draws < 1:
        raise SettingError(expected="num_draws >= 1", got=str(num_draws), cause="an empty budget")
    if n < 2:
        raise ObservationError(
            expected="n >= 2 samples", got=str(n), cause="how far one sample errs cannot be seen from itself"
        )
