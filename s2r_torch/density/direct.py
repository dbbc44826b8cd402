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
        return _contracted([w.factor(part[..., j]) for j, w in enumerate(windows)])

    last = len(windows[-1].middle)
    return _chunked(summed, x, last + math.prod(len(w.middle) for w in windows[:-1]))


def box_sums(windows: Sequence[AxisWindows], x: Tensor, first: Tensor, size: Sequence[int]) -> Tensor:
    """The same sums at the nodes of a box for each density: `[B, nodes of a box]`, of samples `[B, n, d]`.

    Args:
        windows: of all nodes, along every axis.
        x: samples.
        first: `[B, d]` the first node of every box.
        size: nodes of a box, along every axis.
    """

    def summed(x: Tensor, first: Tensor) -> Tensor:
        some = [w.some(first[:, j], m) for j, (w, m) in enumerate(zip(windows, size, strict=True))]
        return _contracted([w.factor(x[..., j]) for j, w in enumerate(some)])

    rows = max(1, CHUNK // (x.shape[1] * (size[-1] + math.prod(size[:-1]))))
    return torch.cat([summed(*part) for part in zip(x.split(rows), first.split(rows), strict=True)])


def kernel_values(windows: Sequence[AxisWindows], x: Tensor) -> Tensor:
    """The summands `[.., n, G]` float64 of samples `[.., n, d]`: the product kernel at every node, unnormalised."""
    return _product([w.factor(x[..., j]) for j, w in enumerate(windows)])


def _contracted(factors: Sequence[Tensor]) -> Tensor:
    """Sums over samples of products over axes, of factors `[B, n, m_j]`: `[B, m_1 m_2 ..]`."""
    if len(factors) == 1:
        return factors[0].sum(-2)
    return (_product(factors[:-1]).mT @ factors[-1]).flatten(-2)


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
