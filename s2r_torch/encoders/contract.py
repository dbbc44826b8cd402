"""What an encoder is: a torch module phi: R^D -> R^d, fitted on simulators of its own and then never changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s2r_torch.encoders.views import Views
from s2r_torch.rng import Seed


class Encoder(nn.Module):
    """Base of encoders; a user's own is one file with `@register_encoder("mine")` above a subclass.

    The constructor takes `obs_dim`, the D numbers of a reading, and plain settings (JSON values) by keyword; all else
    that `forward` needs is among the parameters and buffers, whose sizes the constructor knows: policy files hold them.

    Args:
        obs_dim: D.
    """

    name = ""  # set by `register_encoder`
    beside = 0  # of forward's last numbers, those that predictors see and densities do not; about -1 .. 1

    def __init__(self, obs_dim: int):
        super().__init__()
        self.obs_dim = obs_dim

    def forward(self, x: Tensor) -> Tensor:
        """phi(x) [N, d] for readings x [N, D], float32; every row by itself."""
        raise NotImplementedError

    def fit(self, views: Views, seed: Seed) -> tuple[str, ...]:
        """Sets parameters and buffers from what the encoder's own simulators show; a fixed encoder leaves them.

        Args:
            views: draws readings and rewards, of simulators that nothing else is learned or judged on.
            seed: named stream.

        Returns:
            What must be known of the fit, in sentences.
        """
        return ()


WIDE = 16  # columns from which a product of matrices treats all rows alike


def rows_alike(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, k] times the rows of weight [d, k]: [N, d], the same bits for a row of x wherever it stands.

    Libraries sum the first and last rows of narrow products in another order; padded ones they do not.
    """
    padded = nn.functional.pad(weight, (0, 0, 0, max(0, WIDE - len(weight))))
    return torch.matmul(x, padded.mT)[..., : len(weight)]


class Identity(Encoder):
    """Readings as they are: the default, for sensors of few numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x
