r"""Kernel ridge regression with exact leave-one-out predictions: what can be told from statistics, held-out.

    y_hat[i] without i = y[i] - (y - H y)[i] / (1 - H[i, i]),    H = K (K + lambda I)^-1

>>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
>>> Regression(x).explained(x.square()) > 0.99
True
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = (0.5, 2.0, 8.0)  # of the Gaussian kernel, in median distances
RIDGES = (1e-4, 1e-2, 1.0)


class Regression:
    """Predictions from features [B, p], standardised; kernel and ridge are the best ones held-out.

    Args:
        features: `[B, p]`.
    """

    def __init__(self, features: Tensor):
        centred = features - features.mean(0)
        x = centred / centred.std(0).clamp(min=1e-12)
        squared = torch.cdist(x, x).square()
        typical = squared.median().clamp(min=1e-12)
        kernels = [(-squared / (2 * w * w * typical)).exp() for w in WIDTHS]
        kernels.append(x @ x.T / x.shape[1])
        self._hats = []
        for kernel in kernels:
            values, vectors = torch.linalg.eigh(kernel)
            values = values.clamp(min=0)
            self._hats += [(vectors * (values / (values + ridge))) @ vectors.T for ridge in RIDGES]

    def best(self, y: Tensor) -> Tensor:
        """H [B, B] that predicts y [B, K] best, held-out."""
        return min(self._hats, key=lambda hat: float(missed(hat, y).square().mean()))

    def held_out(self, y: Tensor) -> Tensor:
        """Predictions [B, K] of y [B, K], each without the row that it predicts."""
        return y - missed(self.best(y), y)

    def explained(self, y: Tensor) -> float:
        """The share of the variance of y [B, K] that is predicted held-out; 0 where y does not vary."""
        total = float((y - y.mean(0)).square().mean())
        return 0.0 if total < 1e-20 else 1 - float((y - self.held_out(y)).square().mean()) / total


def statistics_of(x: Tensor, quantiles: int) -> Tensor:
    """Statistics [B, p] of readings [B, n, d] of a state: so many quantiles, standard deviations, covariances."""
    x = x.double()
    q = torch.quantile(x, torch.linspace(0.05, 0.95, quantiles, dtype=torch.float64), dim=1)  # [quantiles, B, d]
    centred = x - x.mean(1, keepdim=True)
    covariance = torch.einsum("bni,bnj->bij", centred, centred).flatten(1) / x.shape[1]
    return torch.cat([q.permute(1, 0, 2).flatten(1), x.std(1).clamp(min=1e-12).log(), covariance], 1)


def missed(hat: Tensor, y: Tensor) -> Tensor:
    """y [B, K] minus what all other rows tell of each by H [B, B]."""
    centred = y - y.mean(0)
    return (centred - hat @ centred) / (1 - hat.diagonal()).clamp(min=1e-6)[:, None]
