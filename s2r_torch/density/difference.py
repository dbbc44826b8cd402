r"""Do two samples come from one density? Asked of many simulators at once, where none of them could tell alone.

Both samples of a simulator come in m parts, with an estimate each; a_i is the difference of the i-th estimates. Then

    U = sum_{i < j} <a_i, a_j>    has mean    m (m - 1) / 2 ||what the estimates differ by on average||^2,

which is 0 where the densities agree. There each a_i is symmetric about 0, independently of the others: flipping signs
changes nothing in law, and given all |<a_i, a_j>| the variance of U is sum_{i < j} <a_i, a_j>^2. So

    z = 1 / sqrt(B) sum_b U_b / sqrt(sum_{i < j} <a_i, a_j>_b^2)

has mean 0 and variance 1 whatever the densities, kernel and grid. No simulator adds more than
sqrt(m (m - 1) / 2 / B) to it, so a few corrupted ones decide nothing. Of one state, z > 6 has probability below 1e-5
(m = 4, B = 16, one of them corrupted; the worst case is an estimate at a single node).

>>> g = torch.Generator().manual_seed(0)
>>> D, D_other = torch.randn(2, 16, PARTS, 30, dtype=torch.float64, generator=g)
>>> round(pooled_difference(D, D_other), 1), round(pooled_difference(D + 1, D_other), 1)
(-0.6, 9.1)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PARTS = 4  # m


def in_parts(x: Tensor) -> Tensor:
    """Samples `[B, n, d]` as m parts of one size `[B, m, n // m, d]`; up to m - 1 samples are left out."""
    return x[:, : x.shape[1] // PARTS * PARTS].unflatten(1, (PARTS, -1))


def pooled_difference(D: Tensor, D_other: Tensor) -> float:
    """z of the difference between two densities, pooled over simulators.

    Args:
        D: `[B, m, G]` estimates of one, from m independent parts of a sample, m >= 2.
        D_other: `[B, m, G]` estimates of the other, from parts of the same sizes.

    Returns:
        z, about standard normal where both agree on every simulator, at most sqrt(B m (m - 1) / 2).

    Cost:
        No episodes. O(B m^2 G).
    """
    a = D - D_other  # [B, m, G]
    inner = a @ a.mT  # [B, m, m]
    above = torch.triu_indices(len(a[0]), len(a[0]), offset=1)
    pairs = inner[:, above[0], above[1]]  # [B, m (m - 1) / 2]
    scale = pairs.square().sum(1).sqrt()
    return float((pairs.sum(1) / scale.clamp(min=torch.finfo(scale.dtype).tiny)).sum()) / math.sqrt(len(a))
