r"""Bandwidths, all fixed before the samples they are used on are drawn (theory.md 1.3: data-driven h voids the rates).

- `paper_bandwidth`: the paper's h = n^(-1/(2 alpha + d)); it knows nothing of the data's scale.
- `reference_bandwidth`: the same rate with the constant that is optimal for a normal law, scaled per axis by a pilot.

>>> round(paper_bandwidth(n=512, order=4, obs_dim=1), 12)
0.5
>>> from s2r_torch.kernels import make_kernel
>>> round(normal_reference_constant(make_kernel("legendre", 4), obs_dim=1), 3)
2.627
"""

from __future__ import annotations

import math

from torch import Tensor

from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.kernels import Kernel
from s2r_torch.samples import check_samples


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


def pilot_scale(x_pilot: Tensor) -> tuple[float, ...]:
    """The standard deviation per axis of x_pilot `[..., n_pilot, d]`, its median over the leading sizes."""
    check_samples(x_pilot, x_pilot.shape[-1])
    if x_pilot.shape[-2] < 2:
        raise ObservationError(
            expected="at least 2 pilot samples per state", got=str(x_pilot.shape[-2]), cause="a scale needs two numbers"
        )
    scale = x_pilot.double().std(-2).reshape(-1, x_pilot.shape[-1]).median(0).values.tolist()
    if min(scale) <= 0:
        raise ObservationError(
            expected="pilot samples that vary", got=f"standard deviations {scale}", cause="a stuck sensor"
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
