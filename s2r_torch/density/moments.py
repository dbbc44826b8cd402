r"""Moments of samples in cells: all that a density estimate needs to know of them (density.md, "Cell moments").

    M[k_1, .., k_d, c_1, .., c_d] = sum over samples in cell (c_1, .., c_d) of u_1^k_1 .. u_d^k_d

Moments add: samples stream through in chunks, are merged across workers, and are never kept. Sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product

import torch
from torch import Tensor

from s2r_torch.density.cells import DENSE_NODES, AxisCells

CHUNK = 2**15  # samples at once: its temporaries stay in the cache
MAX_SUMS = 2**21  # accumulators held at once by `window_sums`, 16 MiB
MOST_SUMS = 2**25  # accumulators of one density, 256 MiB; above it moments are not an option


def num_sums(cells: Sequence[AxisCells]) -> int:
    """Accumulators of one density: (K_1 C_1) ... (K_d C_d)."""
    return math.prod(c.num_cells * c.num_powers for c in cells)


def add_moments(sums: Tensor, cells: Sequence[AxisCells], powers: Sequence[int], x: Tensor) -> None:
    """Adds the moments of x `[B, n, d]` to `sums` `[K_1 .. K_d, B, C_1 .. C_d]`, contiguous, in place.

    Args:
        sums: accumulators, float64.
        cells: one per axis.
        powers: K per axis, u^0 .. u^(K-1); more than the combination needs where a band is wanted.
        x: finite samples, float32 or float64.
    """
    B, n, d = x.shape
    total = math.prod(c.num_cells for c in cells)
    flat = sums.view(-1, B * total)
    rows, columns = max(1, CHUNK // n), min(n, CHUNK)
    ones = torch.ones(min(B, rows) * columns, dtype=torch.float64)
    for b in range(0, B, rows):
        target = flat[:, b * total : (b + rows) * total]
        for i in range(0, n, columns):
            part = x[b : b + rows, i : i + columns]
            cell, first = cells[0].locate(part[..., 0].double().flatten())
            us = [first]
            for j in range(1, d):
                c, u = cells[j].locate(part[..., j].double().flatten())
                cell = cell.mul_(cells[j].num_cells).add_(c)
                us.append(u)
            index, channels = cell.long(), products_of_powers(us, powers)
            if len(part) > 1:
                index.view(len(part), -1).add_(torch.arange(len(part))[:, None] * total)
            for row, value in zip(target, channels, strict=True):
                row.scatter_add_(0, index, ones[: len(index)] if value is None else value)


def combine_moments(sums: Tensor, cells: Sequence[AxisCells]) -> Tensor:
    """Sums over windows `[B, G]` from moments `[K_1 .. K_d, B, C_1 .. C_d]`, axis by axis, the last first."""
    d = len(cells)
    M = sums
    for j in reversed(range(d)):  # M [K_1 .. K_j, B, m_{j+1} .. m_d, C_1 .. C_j]
        M = M.movedim(j, -2)  # the powers of axis j beside its cells
        lead = M.shape[:-2]
        M = cells[j].combine(M.reshape(-1, *M.shape[-2:])).reshape(*lead, -1)  # [K_1 .. K_{j-1}, B, m.., C_1 .., m_j]
        M = M.movedim(-1, j + 1)  # m_j in front of m_{j+1}: position after [K_1 .. K_{j-1}, B] (j + 1 sizes)
    return M.flatten(1)


def faster_by_moments(cells: Sequence[AxisCells], B: int, n: int) -> bool:
    """Whether moments beat the matrix product for B densities of n samples: a model of both times, in nanoseconds.

    Moments: per sample, finding the cell and one scattered addition per product of powers; per density, clearing and
    combining the accumulators. Product: per sample, the factors and a row of the product. Measured on one thread;
    a bad choice costs time only.
    """
    d, sums, sizes = len(cells), num_sums(cells), [len(c.start) for c in cells]
    G, channels = math.prod(sizes), math.prod(c.num_powers for c in cells)
    if sums > MOST_SUMS:
        return False
    out_of_cache = sums > MAX_SUMS / 4
    combine = 2 * sums * sizes[-1] / 25 if sizes[-1] <= DENSE_NODES else 60 * sums
    moments = B * n * (14 * d + channels * (4 if out_of_cache else 2)) + B * (
        combine + sums * (5 if out_of_cache else 1.5)
    )
    factors = sum(m * (5 + 1.8 * c.num_powers) for m, c in zip(sizes, cells, strict=True))
    gemm = B * n * (factors + (d > 1) * G / 8 + (d > 2) * 1.5 * G / sizes[-1])
    return moments < gemm


def products_of_powers(us: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor | None]:
    """u_1^k_1 .. u_d^k_d for all k_j < counts[j], the last power fastest; None stands for 1."""
    return reduce(_times, map(_powers, us, counts))


def _powers(u: Tensor, count: int) -> list[Tensor | None]:
    """[1, u, u^2, ..]; None stands for 1."""
    values, power = [None, u][:count], u
    while len(values) < count:
        power = power * u
        values.append(power)
    return values


def _times(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
    """All products, the right factor fastest."""
    return [b if a is None else a if b is None else a * b for a, b in product(left, right)]
