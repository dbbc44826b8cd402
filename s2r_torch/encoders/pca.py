"""Principal components: the directions along which readings differ most, whatever they differ by."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.encoders.contract import Encoder, rows_alike
from s2r_torch.encoders.views import Views
from s2r_torch.errors import SettingError
from s2r_torch.rng import Seed
from s2r_torch.schema import Count, Size

ROWS = 2**13  # readings that components are computed of


class Components(Encoder):
    """Base of encoders that begin with principal components.

    Args:
        obs_dim: D.
        count: how many components, at most D.
        dim: d, the features that they become.

    Raises:
        SettingError: more features than components.
    """

    mean: Tensor  # [D]
    components: Tensor  # [count, D]

    def __init__(self, obs_dim: int, count: int, dim: int):
        super().__init__(obs_dim)
        count = min(count, obs_dim)
        if dim > count:
            raise SettingError(expected=f"encoder.dim <= {count}", got=str(dim), cause="readings of fewer numbers")
        self.register_buffer("mean", torch.zeros(obs_dim))
        self.register_buffer("components", torch.eye(obs_dim)[:count].clone())

    def projected(self, x: Tensor) -> Tensor:
        """Principal components [..., count] of readings, each with variance 1."""
        return rows_alike(x - self.mean, self.components)

    def take(self, pilot: Tensor) -> float:
        """Sets the components to those of raw readings [N, D]; returns their share of the variance."""
        mean, components, share = principal(pilot, len(self.components))
        self.mean.copy_(mean)
        self.components.copy_(components)
        return share


class PCA(Components):
    """The first principal components of readings, each with variance 1.

    Args:
        obs_dim: D.
        dim: d, how many components densities live on.
        see: how many further ones predictors see; all, if there are fewer.

    Raises:
        SettingError: more components than a reading has numbers.
    """

    def __init__(self, obs_dim: int, dim: Size = 2, see: Count = 0):
        super().__init__(obs_dim, dim + see, dim)
        self.beside = len(self.components) - dim

    def forward(self, x: Tensor) -> Tensor:
        return self.projected(x)

    def fit(self, views: Views, seed: Seed) -> tuple[str, ...]:
        components, share = self.components, self.take(views.pilot)
        return (f"{len(components)} principal components hold {share:.0%} of the variance of readings",)


def principal(x: Tensor, count: int) -> tuple[Tensor, Tensor, float]:
    """Mean [D] and components [count, D] of readings x [N, D], scaled to variance 1, and their share of the variance.

    >>> x = torch.tensor([[1.0, 0.1], [-1.0, -0.1], [1.0, -0.1], [-1.0, 0.1]])
    >>> mean, components, share = principal(x, 1)
    >>> [round(value, 3) for value in components.abs().flatten().tolist()], round(share, 2)
    ([0.866, 0.0], 0.99)
    """
    if len(x) < x.shape[1] or len(x) > ROWS:
        x = x[torch.linspace(0, len(x) - 1, min(len(x), ROWS)).round().long()]
    mean = x.double().mean(0)
    centred = x.double() - mean
    wide = centred.shape[1] > centred.shape[0]
    square = centred @ centred.mT if wide else centred.mT @ centred  # the smaller one
    values, vectors = torch.linalg.eigh(square / max(1, len(x) - 1))
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)[:, :count].mT
    directions = torch.nn.functional.normalize(vectors @ centred, dim=1) if wide else vectors
    kept = values[: len(directions)].clamp(min=1e-12 * float(values[0]) + 1e-30).sqrt()
    components = torch.zeros(count, x.shape[1], dtype=torch.float64)
    components[: len(directions)] = directions / kept[:, None]
    signs = components.gather(1, components.abs().argmax(1, keepdim=True)).sign()  # whatever the decomposition says
    share = float(values[:count].sum() / values.sum().clamp(min=1e-300))
    return mean.float(), (components * signs.where(signs != 0, 1.0)).float(), share
