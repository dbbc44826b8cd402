r"""Kernels on [-1, 1] for density estimates, with exact rational coefficients.

The paper's kernel (section 3.2) is the Legendre kernel of order alpha,

    gamma(t) = sum_{m=0}^{l} psi_m(0) psi_m(t) 1[-1 <= t <= 1],    l = ceil(alpha) - 1,

psi_m the orthonormal Legendre polynomials; in d dimensions the product gamma(t_1) ... gamma(t_d) is used. Its moments
of order 1 .. l vanish (K1), so that the bias of an estimate is O(h^alpha). For alpha > 2 it takes negative values.

A kernel is named and looked up in `KERNELS`, so that it can be saved as data:

>>> kernel = make_kernel("legendre", order=4)
>>> [str(c) for c in kernel.coefficients]
['9/8', '0', '-15/8']
>>> kernel(torch.tensor([-1.0, 0.0, 1.1], dtype=torch.float64)).tolist()
[-0.75, 1.125, 0.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.plain import real_numbers

MAX_ORDER = 12  # float64 Horner sums lose digits beyond it

Polynomial = tuple[Fraction, ...]  # coefficients of t^0, t^1, ...


@dataclass(frozen=True)
class Kernel:
    """An even polynomial on the closed interval [-1, 1], zero outside, with the moments of its order checked.

    Args:
        order: alpha, the smoothness that the kernel exploits, in (0, 12].

    Raises:
        SettingError: the order is out of range, or the kernel's moments are not those of that order (K1).
    """

    order: float
    name: ClassVar[str]

    def __post_init__(self):
        if not 0 < self.order <= MAX_ORDER:
            raise SettingError(
                expected=f"a kernel order in (0, {MAX_ORDER}]",
                got=str(self.order),
                cause="an order that is no smoothness",
            )
        wrong = [j for j in range(math.ceil(self.order)) if self.moment(j) != (j == 0)]
        if wrong:
            raise SettingError(
                expected=f"a kernel whose moments 1 .. {math.ceil(self.order) - 1} vanish (K1, order {self.order:g})",
                got=f"{self.name}, whose moment {wrong[0]} is {self.moment(wrong[0])}",
                cause="a non-negative kernel has order at most 2; use 'legendre' for smoother densities",
            )

    @cached_property
    def coefficients(self) -> Polynomial:
        """Exact coefficients of t^0 .. t^degree."""
        raise NotImplementedError

    def __call__(self, t: Tensor) -> Tensor:
        """gamma(t), elementwise, in the dtype of t; the support is closed."""
        return torch.where(t.abs() <= 1, self.polynomial(t), 0.0)

    def polynomial(self, t: Tensor) -> Tensor:
        """gamma's polynomial without its support, elementwise: for callers that decide the support themselves."""
        value = torch.full_like(t, float(self.coefficients[-1]))
        square = t * t
        for c in self.coefficients[-3::-2]:
            value = value * square + float(c)
        return value

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    def moment(self, j: int) -> Fraction:
        """The exact integral of t^j gamma(t)."""
        return sum((2 * c / (i + j + 1) for i, c in enumerate(self.coefficients) if (i + j) % 2 == 0), Fraction(0))

    @cached_property
    def first_moment_order(self) -> int:
        """r, the smallest j >= 1 whose moment does not vanish; even, >= order."""
        return next(j for j in range(1, 2 * MAX_ORDER + 3) if self.moment(j) != 0)

    @cached_property
    def l2_norm_squared(self) -> float:
        """The integral of gamma^2."""
        return float(sum(c * self.moment(i) for i, c in enumerate(self.coefficients)))

    @cached_property
    def sup_norm(self) -> float:
        """max |gamma|."""
        return float(np.abs(self._values(self._breaks(derivative=True))).max())

    @cached_property
    def total_variation(self) -> float:
        """Total variation of gamma on the whole line, the jumps at -1 and 1 included."""
        values = self._values(self._breaks(derivative=True))
        return float(2 * np.abs(np.diff(values)).sum() + 2 * abs(values[-1]))

    @cached_property
    def l1_norm(self) -> float:
        """The integral of |gamma|."""
        return self.abs_moment(0.0)

    @cached_property
    def abs_moment_at_order(self) -> float:
        """The integral of |t|^alpha |gamma(t)|, the constant of the bias lemma for d = 1."""
        return self.abs_moment(self.order)

    def abs_moment(self, power: float) -> float:
        """The integral of |t|^power |gamma(t)|, by its sign changes."""
        t = self._breaks(derivative=False)
        primitive = sum(float(c) * t ** (power + i + 1) / (power + i + 1) for i, c in enumerate(self.coefficients))
        return float(2 * np.abs(np.diff(primitive)).sum())

    def _values(self, t: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyval(t, [float(c) for c in self.coefficients])

    def _breaks(self, derivative: bool) -> np.ndarray:
        """0, the sorted roots in (0, 1) of gamma or of its derivative, and 1; gamma is a polynomial in y = t^2."""
        inner = np.polynomial.Polynomial([float(c) for c in self.coefficients[::2]])
        inner = inner.deriv() if derivative else inner
        roots = inner.roots().astype(complex)
        y = np.sort(roots[np.abs(roots.imag) < 1e-12].real)
        return np.concatenate([[0.0], np.sqrt(y[(y > 0) & (y < 1)]), [1.0]])


@dataclass(frozen=True)
class LegendreKernel(Kernel):
    """The paper's kernel (section 3.2); ceil(alpha) = 1-2 is the box, 3-4 is 9/8 - 15/8 t^2, and so on."""

    name = "legendre"

    @cached_property
    def coefficients(self) -> Polynomial:
        polynomials = _legendre_polynomials(math.ceil(self.order))
        total = [Fraction(0)] * len(polynomials)
        for m, P in enumerate(polynomials):  # psi_m = sqrt((2 m + 1) / 2) P_m
            for i, c in enumerate(P):
                total[i] += Fraction(2 * m + 1, 2) * P[0] * c
        while total[-1] == 0:
            total.pop()
        return tuple(total)


@dataclass(frozen=True)
class BoxKernel(Kernel):
    """1/2 on [-1, 1]; non-negative, order at most 2."""

    name = "box"

    @cached_property
    def coefficients(self) -> Polynomial:
        return (Fraction(1, 2),)


@dataclass(frozen=True)
class EpanechnikovKernel(Kernel):
    """3/4 (1 - t^2) on [-1, 1]; non-negative and continuous, order at most 2."""

    name = "epanechnikov"

    @cached_property
    def coefficients(self) -> Polynomial:
        return (Fraction(3, 4), Fraction(0), Fraction(-3, 4))


KERNELS: dict[str, type[Kernel]] = {k.name: k for k in (LegendreKernel, BoxKernel, EpanechnikovKernel)}


def make_kernel(name: str, order: float) -> Kernel:
    """The kernel of that name and order; raises SettingError for a name that is not in `KERNELS`."""
    if name not in KERNELS:
        raise SettingError(
            expected=f"a kernel among {', '.join(sorted(KERNELS))}", got=repr(name), cause="a misspelling"
        )
    return KERNELS[name](real_numbers("order of a kernel", (order,))[0])


def truncated_legendre(degrees: int, a: Tensor, b: Tensor) -> Tensor:
    r"""The Legendre kernel on a truncated support [a, b] around 0: the boundary kernel (density.md, "Bounded X").

    sum_m p_m(0) p_m(t) over m < degrees, p_m orthonormal on [a, b]: it integrates to 1 and its moments
    1 .. degrees - 1 over [a, b] vanish. With c = (a + b) / 2 and s = 2 (t - c) / (b - a),

        p_m(0) p_m(t) = (2 m + 1) / (b - a) P_m(-2 c / (b - a)) P_m(s).

    Args:
        degrees: ceil(alpha), how many polynomials.
        a: `[m]` lower ends, <= 0.
        b: `[m]` upper ends, >= 0, > a.

    Returns:
        Coefficients `[m, degrees]` of the powers of (t - c): around the middle of the support, where they are smallest.
    """
    half = (b - a) / 2
    zero = -(a + b) / 2 / half
    total = torch.zeros(*a.shape, degrees, dtype=torch.float64)
    for m, P in enumerate(_legendre_polynomials(degrees)):
        at_zero = sum((float(c) * zero**i for i, c in enumerate(P)), torch.zeros_like(zero))
        for i, c in enumerate(P):
            total[..., i] += (2 * m + 1) / (2 * half) * at_zero * float(c) / half**i
    return total


def _legendre_polynomials(count: int) -> list[Polynomial]:
    """P_0 .. P_{count-1}, exact, by (m + 1) P_{m+1} = (2 m + 1) t P_m - m P_{m-1}."""
    P = [(Fraction(1),), (Fraction(0), Fraction(1))]
    for m in range(1, count - 1):
        shifted = (Fraction(0), *P[m])
        previous = (*P[m - 1], Fraction(0), Fraction(0))
        P.append(tuple((Fraction(2 * m + 1) * a - m * b) / (m + 1) for a, b in zip(shifted, previous, strict=True)))
    return P[:count]
