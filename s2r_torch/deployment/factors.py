r"""A factor model of numbers that come in groups: what groups share, and the noise of each group alone.

    z[s] = L[s] f + e[s],    f ~ (0, 1) with r factors,    e[s] ~ (0, Psi[s]), independent over groups s

Of xi groups of q numbers. With Psi the block-diagonal of all Psi[s], the covariance is L L^T + Psi, so that its inverse
P needs r x r and q x q matrices only (Woodbury):

    P z = y - A M^-1 A^T z,    y = Psi^-1 z,    A = Psi^-1 L,    M = 1 + L^T A

The conditional law of group s given all others has covariance (P[s, s])^-1 and mean z[s] - (P[s, s])^-1 (P z)[s].
Fitted by alternating the maximum likelihood L given Psi (an eigenproblem; Joreskog, 1967) with Psi given L; the number
of factors is that of the greatest likelihood on rows that were held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

RANKS = (1, 2, 4, 8, 16, 32)
ROUNDS = 5  # of the fit
LEAST_NOISE = 1e-5  # least eigenvalue of Psi, for numbers of variance 1


@dataclass(frozen=True, eq=False)
class Factors:
    """A factor model of z [..., xi, q] with mean 0.

    Args:
        loadings: `[xi, q, r]` L.
        noise: `[xi, q, q]` Psi, positive definite.
    """

    loadings: Tensor
    noise: Tensor

    @cached_property
    def _inverse(self) -> Tensor:
        """[xi, q, q] Psi^-1."""
        return torch.linalg.inv(self.noise)

    @cached_property
    def _weighted(self) -> Tensor:
        """[xi, q, r] A."""
        return self._inverse @ self.loadings

    @cached_property
    def _middle(self) -> Tensor:
        """[r, r] M."""
        r = self.loadings.shape[-1]
        return torch.eye(r, dtype=self.loadings.dtype) + torch.einsum("sqr,sqt->rt", self.loadings, self._weighted)

    @cached_property
    def _blocks(self) -> Tensor:
        """[xi, q, q] P[s, s]."""
        A = self._weighted
        return self._inverse - A @ torch.linalg.solve(self._middle, A.mT)

    def _precise(self, z: Tensor) -> Tensor:
        """P z [..., xi, q]."""
        A = self._weighted
        shared = torch.einsum("sqr,...sq->...r", A, z)
        shared = torch.linalg.solve(self._middle, shared[..., None])[..., 0]
        return torch.einsum("sqp,...sp->...sq", self._inverse, z) - torch.einsum("sqr,...r->...sq", A, shared)

    def distance(self, z: Tensor) -> Tensor:
        """Mahalanobis distances [...] of z [..., xi, q]."""
        return (z * self._precise(z)).sum((-2, -1)).clamp(min=0).sqrt()

    def residuals(self, z: Tensor) -> Tensor:
        """z minus its mean given all other groups, [..., xi, q]."""
        return torch.linalg.solve(self._blocks, self._precise(z)[..., None])[..., 0]

    def distances(self, residuals: Tensor, groups: list[int] | None = None) -> Tensor:
        """Conditional Mahalanobis distances [..., v] of residuals [..., v, q] of these groups; None means all."""
        blocks = self._blocks if groups is None else self._blocks[groups]
        return torch.einsum("...i,...ij,...j->...", residuals, blocks, residuals).clamp(min=0).sqrt()

    def deviations(self, residuals: Tensor) -> Tensor:
        """Residuals [..., xi, q] in units of their standard deviations given all other groups."""
        return residuals / torch.linalg.inv(self._blocks).diagonal(dim1=-2, dim2=-1).sqrt()

    def log_likelihood(self, z: Tensor) -> float:
        """The mean over rows of the log density of z [n, xi, q], but for a constant."""
        volume = torch.linalg.slogdet(self.noise)[1].sum() + torch.linalg.slogdet(self._middle)[1]
        return float(-0.5 * (volume + self.distance(z).square().mean()))


def fit_factors(z: Tensor) -> Factors:
    """The model of z [n, xi, q], n >= 2, whose number of factors predicts half of the rows best from the other half."""
    halves = ((z[::2], z[1::2]), (z[1::2], z[::2]))
    ranks = [r for r in RANKS if r < min(len(z) // 2, z[0].numel())]
    held_out = [sum(_fit(one, r).log_likelihood(other) for one, other in halves) for r in ranks]
    best = max(range(len(ranks)), key=held_out.__getitem__, default=None)
    return _fit(z, 0 if best is None else ranks[best])


def _fit(z: Tensor, r: int) -> Factors:
    n, xi, q = z.shape
    covariance = torch.einsum("nsp,nsq->spq", z, z) / n  # of each group
    loadings = z.new_zeros(xi, q, r)
    for _ in range(ROUNDS):
        values, vectors = torch.linalg.eigh(covariance - loadings @ loadings.mT)
        values = values.clamp(min=LEAST_NOISE)[:, None, :]
        noise, root, whiten = (vectors * values**power @ vectors.mT for power in (1.0, 0.5, -0.5))
        white = torch.einsum("spq,nsq->nsp", whiten, z).flatten(1)
        variance, axes = _leading(white, r)
        loadings = root @ (axes * (variance - 1).clamp(min=0).sqrt()).reshape(xi, q, r)
    return Factors(loadings, (noise + noise.mT) / 2)  # symmetric to the bit


def _leading(white: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """The r largest eigenvalues [r] and eigenvectors [p, r] of white^T white / n, from the smaller Gram matrix."""
    n, p = white.shape
    if p <= n:
        values, vectors = torch.linalg.eigh(white.T @ white / n)
        return values[p - r :], vectors[:, p - r :]
    values, vectors = torch.linalg.eigh(white @ white.T / n)
    values = values[n - r :].clamp(min=torch.finfo(values.dtype).tiny)
    return values, white.T @ vectors[:, n - r :] / (n * values).sqrt()
