r"""The window of every node on one axis, and the polynomial that is summed inside it.

    factor[i, g] = q_g((X_i - y_g) / h) 1[lower_g <= X_i <= upper_g]

Inside the box y_g = x_g, q_g = gamma and the window is [x_g - h, x_g + h]. Both edges are rounded to the dtype of X,
once: the tie predicate that every implementation shares. With `boundary=True` windows are cut at the ends of the
axis and q_g is the Legendre kernel on what is left, written around the middle y_g of the window, so that a density
that is positive at the edge of its box is still estimated at its full rate (density.md, "Bounded X").

>>> nodes = torch.linspace(0, 1, 5, dtype=torch.float64)
>>> axis = AxisWindows.make(LegendreKernel(2), nodes, 0.5, torch.float64, boundary=True)
>>> axis.lower.tolist(), axis.upper.tolist()
([0.0, 0.0, 0.0, 0.25, 0.5], [0.5, 0.75, 1.0, 1.0, 1.0])
>>> axis.factor(torch.tensor([0.0], dtype=torch.float64)).tolist()  # 4 - 6 t at the edge
[[4.0, 1.3333333333333333, 0.5, 0.0, 0.0]]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.density.kernels import Kernel, LegendreKernel, truncated_legendre
from s2r_torch.errors import SettingError


@dataclass(frozen=True, eq=False)
class AxisWindows:
    """Windows and polynomials of the m nodes of one axis, for samples of one dtype."""

    bandwidth: float
    lower: Tensor  # [m] in the samples' dtype, closed
    upper: Tensor  # [m] in the samples' dtype, closed
    middle: Tensor  # [m] y_g, float64
    coefficients: Tensor  # [m, K] of ((X - y_g) / h)^k, float64

    @staticmethod
    def make(kernel: Kernel, nodes: Tensor, bandwidth: float, dtype: torch.dtype, boundary: bool) -> AxisWindows:
        """The windows of `nodes` [m]; `boundary` cuts them at the first and the last node."""
        lower, upper = nodes - bandwidth, nodes + bandwidth
        if not boundary:
            q = torch.tensor([float(c) for c in kernel.coefficients], dtype=torch.float64)
            return AxisWindows(bandwidth, lower.to(dtype), upper.to(dtype), nodes, q.expand(len(nodes), -1))
        if not isinstance(kernel, LegendreKernel):
            raise SettingError(
                expected="the legendre kernel with boundary='legendre'",
                got=kernel.name,
                cause="only its boundary form keeps the order",
            )
        lower, upper = lower.clamp(min=float(nodes[0])), upper.clamp(max=float(nodes[-1]))
        a = ((lower - nodes) / bandwidth).where(lower > nodes - bandwidth, -1.0)
        b = ((upper - nodes) / bandwidth).where(upper < nodes + bandwidth, 1.0)
        q = truncated_legendre(math.ceil(kernel.order), a, b)
        return AxisWindows(bandwidth, lower.to(dtype), upper.to(dtype), nodes + (a + b) / 2 * bandwidth, q)

    def near(self, x: Tensor) -> AxisWindows:
        """Those windows that reach into the range of the samples x `[...]`; the others hold none of them."""
        keep = (self.lower <= x.max()) & (x.min() <= self.upper)
        return AxisWindows(
            self.bandwidth, self.lower[keep], self.upper[keep], self.middle[keep], self.coefficients[keep]
        )

    def reached(self, x: Tensor) -> tuple[Tensor, int]:
        """The first window `[...]` that holds a sample of x `[..., n]`, and how many from there on may: 1 or more."""
        first = torch.searchsorted(self.upper, x.amin(-1))
        beyond = torch.searchsorted(self.lower, x.amax(-1), right=True)
        return first, max(1, int((beyond - first).max()))

    def some(self, first: Tensor, count: int) -> AxisWindows:
        """So many of them from `first` `[...]` on, `[..., 1, count]`; beyond the last one they hold nothing."""
        index = (first[..., None] + torch.arange(count))[..., None, :]
        last, beyond = len(self.middle) - 1, index >= len(self.middle)
        index = index.clamp(max=last)
        lower = self.lower[index].masked_fill(beyond, math.inf)
        return AxisWindows(self.bandwidth, lower, self.upper[index], self.middle[index], self.coefficients[index])

    def factor(self, x: Tensor) -> Tensor:
        """The summand of every sample and node, x `[..., n]` -> `[..., n, m]` float64: the direct evaluation."""
        x = x[..., None]
        inside = (self.lower <= x) & (x <= self.upper)
        t = (x.double() - self.middle) / self.bandwidth
        value = self.coefficients[..., -1].expand_as(t)
        for k in range(self.coefficients.shape[-1] - 2, -1, -1):
            value = torch.addcmul(self.coefficients[..., k], value, t)
        return value.where(inside, 0.0)

    def taylor(self, point: Tensor, node: Tensor) -> Tensor:
        """Coefficients `[..., K]` of q_g, g = `node`, around `point` instead of y_g: of powers of (X - point) / h."""
        a = (point - self.middle[node]) / self.bandwidth
        q = self.coefficients[node]
        K = q.shape[-1]
        shifted = []
        for k in range(K):
            value = torch.zeros_like(a)
            for i in range(K - 1, k - 1, -1):
                value = value * a + math.comb(i, k) * q[..., i]
            shifted.append(value)
        return torch.stack(shifted, -1)
