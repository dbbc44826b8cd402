r"""Bounded smooth noise: the bump density, drawn fast from torch generators, and its quadrature.

The bump of smoothness k on [-1, 1] (theory.md 5.2), whose derivatives of order < k are continuous on the whole line:

    b_k(t) = c_k (1 - t^2)^k,    c_k = (2k+1)! / (2^(2k+1) k!^2)

A draw is the median of 2k+1 uniforms on [-1, 1]. The median of the leading 16 bits is the leading 16 bits of the
median, so the uniforms need 16 bits only, and one more lane of 16 bits fills in the rest: (2k+2) / 4 words of 64 random
bits a draw. Within cells of width 2^-15 the density is replaced by its mean, an error of at most 2^-15 max|b_k'|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import scipy
import torch
from torch import Tensor

from s2r_torch.plain import require_count

BLOCK = 2**15  # draws made together: they fit into the cache
MAX_SMOOTHNESS = 8


def require_smoothness(k: int) -> int:
    """Returns k if it is a smoothness that can be drawn, else raises SettingError."""
    return require_count("smoothness", k, MAX_SMOOTHNESS, "noise is a median of 2k+1 uniforms")


def bump_constant(k: int) -> float:
    """c_k, which is also the height b_k(0).

    >>> bump_constant(2)
    0.9375
    """
    return math.factorial(2 * k + 1) / (2 ** (2 * k + 1) * math.factorial(k) ** 2)


def bump_density(t: Tensor, k: int) -> Tensor:
    """b_k(t), elementwise; 0 outside [-1, 1]."""
    return bump_constant(k) * (1 - t.square()).clamp(min=0) ** k


def bump_nodes(points: int, k: int) -> tuple[Tensor, Tensor]:
    """Gauss-Jacobi nodes and weights [points] for E g(t), t ~ b_k; exact for polynomials up to 2 points - 1."""
    nodes, weights = scipy.special.roots_jacobi(points, k, k)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def product_nodes(points: int, k: int, dimension: int) -> tuple[Tensor, Tensor]:
    """The product rule in several coordinates: nodes [points^d, d], weights [points^d]."""
    nodes, weights = bump_nodes(points, k)
    grid = torch.cartesian_prod(*[nodes] * dimension).reshape(-1, dimension)
    return grid, torch.cartesian_prod(*[weights] * dimension).reshape(-1, dimension).prod(-1)


def bump_draws(n: int, k: int, generators: Sequence[torch.Generator]) -> Tensor:
    """n draws [B, n] of b_k, float64; row b consumes generator b alone and does not depend on the other rows.

    Cost: about 20 ns a draw at k = 2 on one core, two thirds of it torch's Mersenne twister.
    """
    lanes = 2 * k + 2
    columns = max(1, min(n, BLOCK))
    rows = max(1, BLOCK // columns)
    out = torch.empty(len(generators), n, dtype=torch.float64)
    for top in range(0, len(generators), rows):
        for left in range(0, n, columns):
            width = min(columns, n - left)
            bits = _random_words(-(-lanes * width // 4), generators[top : top + rows])
            lane = bits.view(torch.int16)[:, : lanes * width].unflatten(1, (lanes, width))  # [rows, lanes, width]
            median = _median([lane[:, i] for i in range(lanes - 1)])
            fine = median.int().mul_(2**16).add_(lane[:, -1]).double()
            out[top : top + rows, left : left + width] = fine.mul_(2.0**-31).add_(2.0**-32)
    return out


def uniforms(n: int, generators: Sequence[torch.Generator]) -> Tensor:
    """n uniforms [B, n] strictly inside (0, 1), float64 with 32 random bits; row b consumes generator b alone."""
    bits = _random_words((n + 1) // 2, generators).view(torch.int32)[:, :n]
    return bits.double().mul_(2.0**-32).add_(0.5 + 2.0**-33)


def bernoulli(mean: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draws 0.0 or 1.0 with these means [B, n]; row b consumes generator b, but not where all its means are certain."""
    drawn = mean.clone()
    random = ((mean > 0) & (mean < 1)).any(-1).nonzero().flatten().tolist()
    if random:
        u = uniforms(mean.shape[1], [generators[b] for b in random])
        drawn[random] = (u < mean[random]).double()
    return drawn


def _random_words(words: int, generators: Sequence[torch.Generator]) -> Tensor:
    """[B, words] int64, all 64 bits random."""
    bits = torch.empty(len(generators), words, dtype=torch.int64)
    for row, generator in zip(bits, generators, strict=True):
        row.random_(-(2**63), None, generator=generator)
    return bits


def _median(values: list[Tensor]) -> Tensor:
    """The elementwise median of an odd number of tensors.

    Of 2k+1 values any k+2 contain neither their own smallest nor their own largest as the median of all: drop
    both, take in one more value, repeat. Minima and maxima only, so no sort and no branch.
    """
    first = (len(values) + 3) // 2
    held, rest = values[:first], values[first:]
    while len(held) > 1:
        held = _without_extremes(held) + rest[:1]
        rest = rest[1:]
    return held[0]


def _without_extremes(values: list[Tensor]) -> list[Tensor]:
    """The values, in some order, without their elementwise smallest and largest."""
    half = len(values) // 2
    pairs = list(zip(values[:half], values[-half:], strict=True))
    low, high = [torch.minimum(*p) for p in pairs], [torch.maximum(*p) for p in pairs]
    middle = values[half : len(values) - half]
    if middle:  # an odd one out: exchange it with one low and one high value
        above, low[0] = torch.maximum(low[0], middle[0]), torch.minimum(low[0], middle[0])
        middle, high[0] = [torch.minimum(high[0], above)], torch.maximum(high[0], above)
    return (
        _without_first(low, torch.minimum, torch.maximum) + middle + _without_first(high, torch.maximum, torch.minimum)
    )


def _without_first(values: list[Tensor], first, other) -> list[Tensor]:
    """The values, in some order, without the one that `first` (minimum or maximum) picks."""
    kept, carry = [], values[0]
    for i, value in enumerate(values[1:], start=2):
        kept.append(other(carry, value))
        if i < len(values):
            carry = first(carry, value)
    return kept
