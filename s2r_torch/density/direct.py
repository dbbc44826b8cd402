"""Direct summation of the product kernel over samples, in chunks of bounded memory: the oracle of the moments.

`direct_sums` multiplies the factors of all axes sample by sample, as the formula says. `gemm_sums` contracts samples in
a matrix product, K_1^T K_2, which is faster for few samples or fine grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from s2r_torch.density.windows import AxisWindows

CHUNK = 2**18  # kernel values held at once, 2 MiB


def direct_sums(windows: Sequence[AxisWindows], x: Tensor) -> Tensor:
    """Sums over windows `[B, G]` float64 of samples `[B, n, d]`. O(B n G)."""

    def summed(part: Tensor) -> Tensor:
        return kernel_values(windows, part).sum(-2)

    return _chunked(summed, x, math.prod(len(w.middle) for w in windows))


def gemm_sums(windows: Sequence[AxisWindows], x: Tensor) -> Tensor:
    """The same sums, as a matrix product between the first axes and the last."""

    def summed(part: Tensor) -> Tensor:
        factors = [w.factor(part[..., j]) for j, w in enumerate(windows)]  # [B, n, m_j] each
        if len(factors) == 1:
            return factors[0].sum(-2)
        return (_product(factors[:-1]).mT @ factors[-1]).flatten(-2)

    last = len(windows[-1].middle)
    return _chunked(summed, x, last + math.prod(len(w.middle) for w in windows[:-1]))


def kernel_values(windows: Sequence[AxisWindows], x: Tensor) -> Tensor:
    """The summands `[.., n, G]` float64 of samples `[.., n, d]`: the product kernel at every node, unnormalised."""
    return _product([w.factor(x[..., j]) for j, w in enumerate(windows)])


def _product(factors: Sequence[Tensor]) -> Tensor:
    """`[.., n, m_1]`, `[.., n, m_2]`, .. -> `[.., n, m_1 m_2 ..]`."""
    product = factors[0]
    for factor in factors[1:]:
        product = (product[..., :, None] * factor[..., None, :]).flatten(-2)
    return product


def _chunked(summed: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """Adds `summed` over chunks of samples and concatenates it over densities; `width` kernel values a sample."""
    n = x.shape[1]
    columns = max(1, min(n, CHUNK // width))
    rows = max(1, CHUNK // (width * columns))
    result = []
    for b in range(0, len(x), rows):
        result.append(summed(x[b : b + rows, :columns]))
        for i in range(columns, n, columns):
            result[-1] += summed(x[b : b + rows, i : i + columns])
    return torch.cat(result)
