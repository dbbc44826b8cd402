"""A density in few numbers, that worlds are compared by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, Patches, heights

LEAST_SPREAD = 0.1  # in node spacings, added to a density's spread: a stuck sensor has none
LEAST_MASS = 0.05  # of a density on the grid, for means
AT_ONCE = 2**17  # numbers of densities: they stay in the cache
WAVES = {1: 4, 2: 2}  # largest total degree of waves, by dimension; 1 above


def summaries(D: Densities, grid: DensityGrid) -> Tensor:
    """q numbers of every density D [..., G]: [..., q], float64; those that have a name first, then its waves.

    Mass, means, log spreads, log height and correlations; then integrals against cosines of low frequency over the box,
    which are linear in the density: a law that mixes others, as theta says, is told apart by these. Means are relative
    to the middle of the box, so that nothing cancels for readings far from 0.
    """
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (grid.low, grid.high))
    x, d = grid.nodes.double() - (low + high) / 2, grid.obs_dim
    i, j = torch.triu_indices(d, d, 1)
    moments = torch.cat([x, x.square(), x[:, i] * x[:, j]], 1)
    integrands = torch.cat([moments, _waves((grid.nodes.double() - low) / (high - low))], 1)
    least = (LEAST_SPREAD * torch.tensor(grid.spacing, dtype=torch.float64)).square()

    def of(mass: Tensor, integrals: Tensor, height: Tensor) -> Tensor:
        mean, square, product = (integrals[..., : moments.shape[1]] / mass.clamp(min=LEAST_MASS)).split(
            [d, d, len(i)], -1
        )
        variance = (square - mean.square()).clamp(min=0) + least
        correlation = (product - mean[..., i] * mean[..., j]) / (variance[..., i] * variance[..., j]).sqrt()
        waves = integrals[..., moments.shape[1] :]
        return torch.cat([mass, mean, variance.log() / 2, height.clamp(min=1e-12).log(), correlation, waves], -1)

    def of_all_nodes(some: Tensor) -> Tensor:
        weighted = some * grid.weights
        return of(weighted.sum(-1, keepdim=True), weighted @ integrands, some.amax(-1, keepdim=True))

    if isinstance(D, Patches):
        weights = torch.cat([torch.ones(len(integrands), 1), integrands], 1) * grid.weights[:, None]
        sums = D.to(torch.float64).sums(weights.mT)
        return of(sums[..., :1], sums[..., 1:], heights(D)[..., None])
    rows = D.reshape(-1, D.shape[-1]).split(max(1, AT_ONCE // D.shape[-1]))
    return torch.cat([of_all_nodes(some.double()) for some in rows]).reshape(*D.shape[:-1], number_of_summaries(d))


def named_summaries(names: Sequence[str]) -> list[str]:
    """What the first of a state's summaries are called, for coordinates of these names."""
    pairs = [f"correlation of {a} and {b}" for a, b in itertools.combinations(names, 2)]
    return ["mass on the grid", *(f"mean of {n}" for n in names), *(f"spread of {n}" for n in names), "height", *pairs]


def number_of_summaries(obs_dim: int) -> int:
    """q, for readings of obs_dim numbers."""
    return 2 + 2 * obs_dim + obs_dim * (obs_dim - 1) // 2 + len(_degrees(obs_dim))


def _degrees(d: int) -> list[tuple[int, ...]]:
    """The frequencies of waves, one per coordinate."""
    degree = WAVES.get(d, 1)
    if degree == 1:
        return [tuple(int(i == j) for i in range(d)) for j in range(d)]
    return [m for m in itertools.product(range(degree + 1), repeat=d) if 1 <= sum(m) <= degree]


def _waves(u: Tensor) -> Tensor:
    """prod_j cos(pi m_j u_j) [G, W] at places u [G, d] in the unit box, for all m of total degree 1 to `WAVES`."""
    m = torch.tensor(_degrees(u.shape[1]), dtype=torch.float64)
    return torch.cos(math.pi * u[:, None] * m).prod(-1)
