r"""A sup-norm radius of density estimates with every constant explicit: the rigorous alternative to bands.

theory.md 3.4: with probability at least 1 - delta, max_x |D_hat - D| <= stochastic + bias, h fixed beforehand:

    Bernstein on a net (kernels without jumps):   M l / (3 n) + sqrt((M l / (3 n))^2 + 2 v l / n) + 1 / sqrt(n h^d)
    DKW-Massart (d = 1, any kernel):              TV(gamma) / h sqrt(log(2 / delta) / (2 n))
    bias:                                         C_2 h^alpha

At the nodes of a grid, where the algorithms look, Bernstein's holds for any kernel in any d (theory.md 3.6).

The price of rigour is a factor of 2.4 to 5 over what is seen (theory.md 6).

>>> from s2r_torch.density.kernels import make_kernel
>>> radius = explicit_radius(make_kernel("legendre", 2), n=10_000, bandwidth=0.3, holder_constant=0.5, delta=0.05)
>>> round(radius.stochastic, 4), round(radius.bias, 4)
(0.0453, 0.0075)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2r_torch.density.kernels import EpanechnikovKernel, Kernel
from s2r_torch.errors import AssumptionError, SettingError

LIPSCHITZ = {EpanechnikovKernel.name: 1.5}  # |gamma'| of the kernels without jumps, on the whole line


@dataclass(frozen=True)
class ExplicitRadius:
    """Both parts of the radius, in units of density."""

    stochastic: float
    bias: float

    @property
    def total(self) -> float:
        return self.stochastic + self.bias


def explicit_radius(
    kernel: Kernel,
    n: int,
    bandwidth: float,
    *,
    holder_constant: float,
    delta: float,
    obs_dim: int = 1,
    density_bound: float | None = None,
    side: float | None = None,
) -> ExplicitRadius:
    r"""The radius of theory.md 3.4, the smaller of its two forms where both hold.

    Args:
        kernel: gamma, of the order alpha of the densities.
        n: samples of the estimate.
        bandwidth: h, the same on all axes.
        holder_constant: C_alpha of Assumption 3, on all of R^d: the density vanishes smoothly at the edge of its box.
        delta: failure probability, in (0, 1).
        obs_dim: d.
        density_bound: P_inf >= sup D, for Bernstein's form.
        side: rho, the longest side of the box, for Bernstein's form.

    Returns:
        The stochastic part and the bias. Both parts hold at every x of the box, not only at grid nodes.

    Raises:
        AssumptionError: no form applies: d > 1 with a kernel that jumps, or without density_bound and side.
        SettingError: a number out of range.
    """
    _check(n, bandwidth, delta, holder_constant, obs_dim)
    forms = []
    if obs_dim == 1:
        forms.append(kernel.total_variation / bandwidth * math.sqrt(math.log(2 / delta) / (2 * n)))
    if kernel.name in LIPSCHITZ and density_bound is not None and side is not None:
        forms.append(_on_a_net(kernel, n, bandwidth, obs_dim, delta, density_bound, side))
    if not forms:
        raise AssumptionError(
            expected="d = 1, or a kernel without jumps (epanechnikov) with density_bound and side",
            got=f"d = {obs_dim}, {kernel.name}, density_bound = {density_bound}, side = {side}",
            cause="a radius of theory.md 3.4 that is not implemented; use `sup_band`",
        )
    return ExplicitRadius(min(forms), bias_constant(kernel, obs_dim) * holder_constant * bandwidth**kernel.order)


def radius_at_nodes(
    kernel: Kernel,
    n: int,
    bandwidth: float,
    *,
    holder_constant: float,
    delta: float,
    nodes: int,
    density_bound: float,
    obs_dim: int = 1,
) -> ExplicitRadius:
    """The radius of theory.md 3.6: it holds at grid nodes alone, for any kernel in any d.

    Args:
        nodes: all at which it shall hold at once: G times the number of densities.

    The others, what it returns and what it raises are those of `explicit_radius`.
    """
    _check(n, bandwidth, delta, holder_constant, obs_dim)
    noise = _bernstein(kernel, n, bandwidth, obs_dim, math.log(2 * nodes / delta), density_bound)
    return ExplicitRadius(noise, bias_constant(kernel, obs_dim) * holder_constant * bandwidth**kernel.order)


def explicit_bandwidth(kernel: Kernel, n: int, *, widest: float, **assumptions) -> float:
    """The bandwidth in (0, widest] that minimises the radius: a function of n and the assumptions, not of data."""

    def total(log_h: float) -> float:
        return explicit_radius(kernel, n, math.exp(log_h), **assumptions).total

    from scipy.optimize import minimize_scalar  # where nothing is proved, nobody waits for it

    found = minimize_scalar(total, bounds=(math.log(widest) - 20, math.log(widest)), method="bounded")
    return math.exp(found.x)


def bias_constant(kernel: Kernel, obs_dim: int) -> float:
    r"""C_2 / C_alpha, with l = ceil(alpha) - 1.

    d = 1:  Gamma(alpha - l + 1) / Gamma(alpha + 1) mu,    mu = int |gamma| |z|^alpha dz
    d > 1:  sum_{|m| = l} 1 / m! int |kappa| ||z||^alpha dz <= d^l / l! d^max(1, alpha / 2) ||gamma||_1^(d-1) mu
    """
    alpha, d = kernel.order, obs_dim
    rest = math.ceil(alpha) - 1
    if d == 1:
        return math.gamma(alpha - rest + 1) / math.gamma(alpha + 1) * kernel.abs_moment_at_order
    norm = d ** max(1.0, alpha / 2) * kernel.l1_norm ** (d - 1) * kernel.abs_moment_at_order
    return d**rest / math.factorial(rest) * norm


def _check(n: int, bandwidth: float, delta: float, holder_constant: float, obs_dim: int) -> None:
    if not (n >= 1 and bandwidth > 0 and 0 < delta < 1 and holder_constant >= 0 and obs_dim >= 1):
        raise SettingError(
            expected="n >= 1, bandwidth > 0, delta in (0, 1), holder_constant >= 0",
            got=f"n = {n}, bandwidth = {bandwidth}, delta = {delta}, holder_constant = {holder_constant}",
            cause="a setting out of range",
        )


def _on_a_net(kernel: Kernel, n: int, h: float, d: int, delta: float, density_bound: float, side: float) -> float:
    """Bernstein's inequality on a net of the box, plus the kernel's change between its points."""
    steep = d * LIPSCHITZ[kernel.name] * kernel.sup_norm ** (d - 1)  # of the product kernel, in sup norm
    mesh = h ** (d + 1) / (2 * steep * math.sqrt(n * h**d))
    N = math.ceil(side / (2 * mesh)) ** d
    return _bernstein(kernel, n, h, d, math.log(2 * N / delta), density_bound) + 1 / math.sqrt(n * h**d)


def _bernstein(kernel: Kernel, n: int, h: float, d: int, ell: float, density_bound: float) -> float:
    """How far an estimate is from its mean at a point, but for a probability of 2 exp(-ell)."""
    M = kernel.sup_norm**d / h**d * (1 if kernel.l1_norm <= 1 + 1e-12 else 2)
    v = density_bound * kernel.l2_norm_squared**d / h**d
    first = M * ell / (3 * n)
    return first + math.sqrt(first**2 + 2 * v * ell / n)
