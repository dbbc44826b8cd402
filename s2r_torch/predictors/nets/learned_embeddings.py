"""Learned maps of densities whose sup-norm constants are certified: MLP, linear functionals, convolutions, DeepSets.

An embedding takes the standardised summary [B, K], whose entries have the Lipschitz constants `constants` [K] in D, and
gives [F, B, size] whose entries are C_L-Lipschitz in D. C_L is applied at the input, so that the first layer
learns at the pace of the others; `norm` measures the constant, in float64, from the weights that are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s2r_torch.predictors.nets.embeddings import layer_means
from s2r_torch.predictors.nets.lipschitz import StackedConv, StackedLinear, maxmin, module_list, row_norms


class Embedding(nn.Module):
    """A learned map of the summary; what a subclass gives is `size`, `forward` and `norm`."""

    size: int  # outputs

    def forward(self, summary: Tensor, constants: Tensor) -> Tensor:
        """[B, K], and the constants [K] of its entries in D: [F, B, size]."""
        raise NotImplementedError

    def norm(self, constants: Tensor) -> Tensor:
        """Certified constant [F] in D, float64."""
        raise NotImplementedError


class FlatEmbedding(Embedding):
    """An l_inf-normalised MLP on all summaries: [B, K] -> [F, B, size].

    Args:
        members: F.
        inputs: K.
        size: outputs, even unless `depth` is 1.
        bound: C_L.
        generator: draws the weights; consumed.
        depth: layers, each but a single one followed by MaxMin; one layer gives linear functionals of D.
    """

    def __init__(
        self, members: int, inputs: int, size: int, bound: float, generator: torch.Generator | None, *, depth: int = 2
    ):
        super().__init__()
        self.size = size
        layers = [StackedLinear(members, inputs, size, generator, bound=bound)]
        layers += [StackedLinear(members, size, size, generator) for _ in range(depth - 1)]
        self.layers = module_list(layers)

    def forward(self, summary: Tensor, constants: Tensor) -> Tensor:
        hidden = self.layers[0](summary, constants)
        for layer in self.layers[1:]:
            hidden = layer(maxmin(hidden))
        return hidden if len(self.layers) == 1 else maxmin(hidden)

    def norm(self, constants: Tensor) -> Tensor:
        bound = self.layers[0].norm(constants)
        for layer in self.layers[1:]:
            bound = bound * layer.norm()
        return bound


class SetEmbedding(Embedding):
    """DeepSets over the states of every layer: the mean over states of an l_inf-normalised MLP of each state.

        e[f, b, h] = mean over s in layer h of MaxMin(W_2 MaxMin(W_1 summary[b, s]))

    Args:
        members: F.
        layer: `[xi]` the layer of each state.
        statistics: summaries per state; the summary is [B, xi * statistics].
        width: outputs per layer, even.
        bound: C_L.
        generator: draws the weights; consumed.
    """

    layer: Tensor  # [xi]

    def __init__(
        self, members: int, layer: Tensor, statistics: int, width: int, bound: float, generator: torch.Generator | None
    ):
        super().__init__()
        self.statistics = statistics
        self.register_buffer("layer", layer, persistent=False)
        self.size = width * (int(layer.max()) + 1)
        self.each = FlatEmbedding(members, statistics, width, bound, generator)

    def forward(self, summary: Tensor, constants: Tensor) -> Tensor:
        rows = summary.reshape(-1, self.statistics)  # [B xi, statistics]
        each = self.each(rows, self._shared(constants)).unflatten(1, (-1, len(self.layer)))  # [F, B, xi, width]
        return layer_means(each.flatten(0, 1), self.layer).unflatten(0, each.shape[:2]).flatten(2)

    def norm(self, constants: Tensor) -> Tensor:
        return self.each.norm(self._shared(constants))

    def _shared(self, constants: Tensor) -> Tensor:
        """The largest constant of every statistic over the states, which share weights."""
        return constants.view(-1, self.statistics).amax(0)


class ConvEmbedding(Embedding):
    """Two normalised convolutions with MaxMin, then global maximum and mean of every channel: size = 2 channels.

    The summaries are maps [B, H, *grid] with one scale, 1 / C_L.
    """

    def __init__(self, members: int, shape: tuple[int, ...], channels: int, generator: torch.Generator | None):
        super().__init__()
        self.members, self.shape, self.channels, self.size = members, shape, channels, 2 * channels
        d = len(shape) - 1
        self.one = StackedConv(1, shape[0], members * channels, 5, d, 3, generator)  # inputs are shared by all members
        self.two = StackedConv(members, channels, channels, 3, d, 2, generator)

    def forward(self, summary: Tensor, constants: Tensor) -> Tensor:
        maps = self._maxmin(self.one(summary.unflatten(1, self.shape)))
        maps = self._maxmin(self.two(maps)).flatten(2).unflatten(1, (self.members, self.channels))  # [B, F, C, *]
        return torch.cat([maps.amax(-1), maps.mean(-1)], -1).transpose(0, 1)

    def norm(self, constants: Tensor) -> Tensor:
        one = row_norms(self.one.effective().flatten(1).view(self.members, self.channels, -1))
        return one * self.two.norm() * constants.amax().double()

    def _maxmin(self, maps: Tensor) -> Tensor:
        return maxmin(maps.unflatten(1, (self.members, self.channels)), 2).flatten(1, 2)
