r"""Bandwidths, all fixed before the samples they are used on are drawn (theory.md 1.3: data-driven h voids the rates).

- `paper_bandwidth`: the paper's h = n^(-1/(2 alpha + d)); it knows nothing of the data's scale.
- `reference_bandwidth`: the same rate with the constant that is optimal for a normal law, scaled per axis by a pilot.
- `lepski_bandwidth`: adapts to the density's shape on a pilot. On normal, bimodal, skewed and claw densities (n = 50 to
  5000, orders 2 to 8) its error is at most 1.36 times the best bandwidth's, where the reference's is up to 8.8 times
  (`python scripts/bench.py bandwidth --orders 2,4,6,8 --samples 50,300,5000`).

>>> round(paper_bandwidth(n=512, order=4, obs_dim=1), 12)
0.5
>>> from s2r_torch.density.kernels import make_kernel
>>> round(normal_reference_constant(make_kernel("legendre", 4), obs_dim=1), 3)
2.627
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import Kernel
from s2r_torch.density.samples import SampleError, check_samples
from s2r_torch.errors import ObservationError, SettingError

CANDIDATES, RATIO, WIDEST = 12, 1.25, 1.25  # from 1.25 times the reference down to 1 / 9.3 of it
SHRINK = 0.8
MOST_VALUES = 2**22  # density values held at once, 32 MiB


def paper_bandwidth(n: int, order: float, obs_dim: int) -> float:
    """h = n^(-1/(2 alpha + d)) (paper, Corollary of the KDE theorem)."""
    _check_n(n)
    return float(n ** (-1 / (2 * order + obs_dim)))


def reference_bandwidth(x_pilot: Tensor, n: int, kernel: Kernel) -> tuple[float, ...]:
    r"""The normal-reference rule per axis, pooled over states and simulators by the median.

        h_j = C(kernel, d) median(std_j) n^(-1/(2 r + d)),   r the kernel's first non-vanishing moment

    Args:
        x_pilot: `[..., n_pilot, d]` samples that are used for nothing else.
        n: the number of samples of each estimate to come.
        kernel: its kernel.

    Returns:
        One bandwidth per axis.

    Raises:
        ObservationError: fewer than 2 pilot samples, not finite, or a coordinate that does not vary.
    """
    _check_n(n)
    d = x_pilot.shape[-1]
    scale = pilot_scale(x_pilot)
    factor = normal_reference_constant(kernel, d) * n ** (-1 / (2 * kernel.first_moment_order + d))
    return tuple(factor * s for s in scale)


def lepski_bandwidth(
    x_pilot: Tensor,
    n: int,
    kernel: Kernel,
    grid: DensityGrid,
    *,
    shrink: float = SHRINK,
    off_grid_limit: float = 0.01,
) -> tuple[float, ...]:
    r"""Lepski's rule on a pilot, pooled over states and simulators by the median.

    Among candidates h = t (s_1, .., s_d), s the pilot's scale, the widest whose estimate stays, in sup norm, within

        r(h') = sqrt(2 L V_0 max D_hat) + L V_0 / 3,    V_0 = gamma(0)^d / (n_pilot h'_1 .. h'_d),    L = d log(8 / t')

    of every narrower one's: a bias would show as a difference larger than noise. It is then shrunk, because the rule
    errs to the wide side, and brought from n_pilot to n samples by the rate n^(-1/(2 r + d)).

    Args:
        x_pilot: `[..., n_pilot, d]` samples that are used for nothing else.
        n: the number of samples of each estimate to come.
        kernel: its kernel.
        grid: its grid; no bandwidth is below the node spacing.
        shrink: 0.8 for the least error; 0.5 where a band around the estimate must cover the density itself.
        off_grid_limit: as in `DensityEstimator`.

    Returns:
        One bandwidth per axis.

    Raises:
        ObservationError: fewer than 2 pilot samples, not finite, off the grid, or a coordinate that does not vary.

    Deviation from Lepski's rule (density.md, "Bandwidth"):
        The term L V_0 / 3 (Bernstein's) is added: without it windows with few samples make the rule choose far too
        narrow in two dimensions. max D_hat is that of the widest candidate.
    """
    if not (math.isfinite(shrink) and shrink > 0):
        raise SettingError(expected="shrink > 0", got=str(shrink), cause="a typo")
    n_pilot, d = x_pilot.shape[-2:]
    scale = pilot_scale(x_pilot)
    DensityEstimator(grid, kernel, grid.spacing, off_grid_limit=off_grid_limit).check(x_pilot)
    reference = normal_reference_constant(kernel, d) * n_pilot ** (-1 / (2 * kernel.first_moment_order + d))
    factors = [WIDEST * reference * RATIO**-i for i in range(CANDIDATES)]
    narrow = max(g / s for g, s in zip(grid.spacing, scale, strict=True))
    factors = [t for t in factors if t >= narrow] or [narrow]
    candidates = [
        DensityEstimator(grid, kernel, tuple(t * s for s in scale), off_grid_limit=off_grid_limit) for t in factors
    ]
    states = x_pilot.reshape(-1, n_pilot, d)
    rows = max(1, MOST_VALUES // (len(factors) * grid.num_points))
    chosen = torch.cat([_widest_without_bias(candidates, factors, part) for part in states.split(rows)])
    factor = factors[int(chosen.median())] * shrink
    factor *= (n_pilot / n) ** (1 / (2 * kernel.first_moment_order + d))
    return tuple(max(factor * s, g) for s, g in zip(scale, grid.spacing, strict=True))


def _widest_without_bias(candidates: list[DensityEstimator], factors: list[float], x: Tensor) -> Tensor:
    """For each state `[B]` of x `[B, n, d]` the first candidate, widest first, that Lepski's rule accepts."""
    D = torch.stack([estimate(x) for estimate in candidates])  # [T, B, G]
    n, d = x.shape[-2:]
    noise = []
    for estimate, t in zip(candidates, factors, strict=True):
        L = d * max(math.log(8 / t), 1.0)
        V = estimate.kernel.sup_norm**d / (n * math.prod(estimate.bandwidth))
        noise.append((2 * L * V * D[0].amax(-1)).sqrt() + L * V / 3)
    chosen = torch.full((len(x),), len(candidates) - 1)
    for i in reversed(range(len(candidates) - 1)):
        within = [sup_distance(D[i], D[j]) <= noise[j] for j in range(i + 1, len(candidates))]
        chosen[torch.stack(within).all(0)] = i
    return chosen


def pilot_scale(x_pilot: Tensor) -> tuple[float, ...]:
    """The standard deviation per axis of x_pilot `[..., n_pilot, d]`, its median over the leading sizes."""
    check_samples(x_pilot, x_pilot.shape[-1])
    if x_pilot.shape[-2] < 2:
        raise ObservationError(
            expected="at least 2 pilot samples per state", got=str(x_pilot.shape[-2]), cause="a scale needs two numbers"
        )
    scale = x_pilot.double().std(-2).reshape(-1, x_pilot.shape[-1]).median(0).values.tolist()
    if min(scale) <= 0:
        raise SampleError(
            expected="pilot samples that vary",
            got="{} has one value in most states",
            cause="a stuck sensor; its law has no density (Assumption 3)",
            columns=(scale.index(min(scale)),),
        )
    return tuple(scale)


def normal_reference_constant(kernel: Kernel, obs_dim: int) -> float:
    r"""C such that h_j = C s_j n^(-1/(2 r + d)) minimises the asymptotic mean squared error on a normal law.

    With R(g) the integral of g^2, mu_r the kernel's first moment, phi the standard normal density and q = r / 2,

        variance = R(gamma)^d / (n h^d),     bias = h^r mu_r / r! sum_j d^r/dx_j^r phi
        integral of bias^2 = h^(2 r) (mu_r / r!)^2 d R(phi)^(d-1) [R(phi^(r)) + (d - 1) R(phi^(q))^2 / R(phi)]

    (the cross terms by q integrations by parts), whose sum is least at

        C^(2 r + d) = R(gamma)^d / (2 r (mu_r / r!)^2 R(phi)^(d-1) [R(phi^(r)) + (d - 1) R(phi^(q))^2 / R(phi)]).
    """
    r, d = kernel.first_moment_order, obs_dim
    mu = float(kernel.moment(r)) / math.factorial(r)
    curvature = _roughness(r) + (d - 1) * _roughness(r // 2) ** 2 / _roughness(0)
    power = kernel.l2_norm_squared**d / (2 * r * mu**2 * _roughness(0) ** (d - 1) * curvature)
    return power ** (1 / (2 * r + d))


def _roughness(k: int) -> float:
    """R(phi^(k)) = (2 k)! / (2^(2 k + 1) k! sqrt(pi)), phi^(k) the k-th derivative of the normal density."""
    return math.factorial(2 * k) / (2 ** (2 * k + 1) * math.factorial(k) * math.sqrt(math.pi))


def _check_n(n: int) -> None:
    if n < 1:
        raise SettingError(expected="n >= 1 samples", got=str(n), cause="an empty budget")
