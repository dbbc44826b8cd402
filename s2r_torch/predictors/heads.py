r"""Heads: from an embedding e of D, densities looked up at x, and x itself, to one value per action (networks.md).

Every head starts with the same layer, which is where C_L is spent, and is then 1-Lipschitz:

    first = W_e e(D) + W_l D_s(x) + bias        sum_k |W_k| constant_k <= C_L     for every row of W = (W_e, W_l)

    mlp       normalised layers with MaxMin on first + u(x)
    film      u_0 = gamma_0(x) first + beta_0(x);  u_l = gamma_l(x) W_l MaxMin(u_l-1) + beta_l(x),  |gamma| <= 1
    signed    sum_k w_k(x, a) z_k / max(1, sum_k |w_k(x, a)|) + b(x, a),  z normalised layers on first
    softmax   sum_k softmax_k(w(x, a)) z_k + b(x, a)
    cones     has no such layer: see `ConeHead`

u, gamma, beta, w, b are free networks of x, so |f(D, x, a) - f(D', x, a)| <= C_L max |D - D'| for every x and a.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.errors import SettingError
from s2r_torch.predictors.lipschitz import (
    SAFETY,
    StackedLinear,
    affine,
    after_maxmin,
    normalise_rows,
    rotate_outputs,
    row_norms,
)


@dataclass(frozen=True)
class HeadSizes:
    """What a head must know of its network and step."""

    members: int  # F
    inputs: int  # K, size of the embedding, or of the summary where there is none
    states: int  # densities looked up at x
    obs_dim: int  # d
    num_actions: int  # A
    width: int
    depth: int
    x_width: int
    bound: float  # C_L


@dataclass(frozen=True, eq=False)
class Constants:
    """Lipschitz constants in D of what a step's networks are given."""

    summary: Tensor  # [K]
    local: Tensor  # [] of densities looked up at x


@dataclass(frozen=True, eq=False)
class Prepared:
    """One step's networks with everything that depends on D alone already computed."""

    offset: Tensor  # [F, B, width] first layer on the embedding of D, with its bias
    local_weight: Tensor  # [F, width, S_h] first layer on the densities looked up at x


class Branch(nn.Module):
    """A free network of x with one hidden layer: [m, d] -> [F, m, outputs]."""

    def __init__(self, sizes: HeadSizes, outputs: int, generator: torch.Generator):
        super().__init__()
        self.inner = StackedLinear(sizes.members, sizes.obs_dim, sizes.x_width, generator, bound=None)
        self.outer = StackedLinear(sizes.members, sizes.x_width, outputs, generator, bound=None)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.hidden(x))


class Head(nn.Module):
    """The networks of one step, for all members: embedding and first layer here, the rest in subclasses.

    Args:
        embedding: a learned map of the summary, or None.
        sizes: see `HeadSizes`.
        generator: draws the initial weights; consumed.
    """

    first_bias = True

    def __init__(self, embedding: nn.Module | None, sizes: HeadSizes, generator: torch.Generator):
        super().__init__()
        self.embedding, self.sizes = embedding, sizes
        inputs = sizes.inputs + sizes.states
        self.first = StackedLinear(
            sizes.members, inputs, sizes.width, generator, bound=sizes.bound, bias=self.first_bias
        )

    def prepare(self, summary: Tensor, constants: Constants) -> Prepared:
        """The part that depends on D: summary [B, K] -> Prepared."""
        embedded = summary if self.embedding is None else self.embedding(summary, constants.summary)
        weight, bias = self.first_layer(self.first.effective(self._inputs(constants)))
        size = embedded.shape[-1]
        return Prepared(affine(embedded, weight[..., :size], bias), weight[..., size:])

    def first_layer(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's weight and bias as `forward` wants them."""
        return weight, self.first.bias

    def forward(self, prepared: Prepared, local: Tensor, x: Tensor) -> Tensor:
        """Unclamped f for local [B, n, S_h] and x [B, n, d] in [-1, 1]: [F, B, n, A]."""
        batch, n, _ = x.shape
        q = self.values(prepared, local.reshape(batch * n, -1), x.reshape(batch * n, -1), (batch, n))
        return q.unflatten(1, (batch, n))

    def values(self, prepared: Prepared, local: Tensor, x: Tensor, shape: tuple[int, int]) -> Tensor:
        """The same with rows [m] = [B, n] flattened: [F, m, A]."""
        raise NotImplementedError

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        """Certified constant [F] in D, float64: the product of the layers' constants along the path from D."""
        inputs = self._inputs(constants)
        bound = row_norms(self.first.effective(inputs), inputs)
        if self.embedding is not None:  # `inputs` assume that embedded values are C_L-Lipschitz
            bound = bound * (self.embedding.norm(constants.summary) / self.sizes.bound).clamp(min=1.0)
        for layer in self.later():
            bound = bound * layer.norm()
        return bound

    def later(self) -> list[StackedLinear]:
        """The normalised layers after the first."""
        return []

    def _inputs(self, constants: Constants) -> Tensor:
        """Lipschitz constants [K + S_h] of the first layer's inputs."""
        embedded = constants.summary
        if self.embedding is not None:
            embedded = embedded.new_full((self.sizes.inputs,), self.sizes.bound)
        return torch.cat([embedded, constants.local.expand(self.sizes.states)])


def first_output(prepared: Prepared, local: Tensor, shape: tuple[int, int], base: Tensor | None = None) -> Tensor:
    """The first layer for rows [m] of shape [B, n], added to base [F, m, width] in place: [F, m, width]."""
    offset = prepared.offset[:, :, None]  # [F, B, 1, width]
    if local.shape[-1]:
        shared = local.expand(len(offset), *local.shape)
        product = shared @ prepared.local_weight.mT if base is None else base.baddbmm_(shared, prepared.local_weight.mT)
        return product.unflatten(1, shape).add_(offset).flatten(1, 2)
    if base is None:
        return offset.expand(-1, -1, shape[1], -1).flatten(1, 2)
    return base.unflatten(1, shape).add_(offset).flatten(1, 2)


class MLPHead(Head):
    """`mlp`: normalised layers with MaxMin on first + u(x). The default: the fastest.

    Hidden layers are kept as (a - b, a + b) of the halves (a, b) that MaxMin compares.
    """

    first_bias = False  # u has one

    def __init__(self, embedding: nn.Module | None, sizes: HeadSizes, generator: torch.Generator):
        super().__init__(embedding, sizes, generator)
        self.branch = Branch(sizes, sizes.width, generator)
        self.hidden, self.out = _normalised(sizes, sizes.num_actions, generator)

    def first_layer(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_outputs(weight), rotate_outputs(self.branch.outer.bias, -1)

    def values(self, prepared: Prepared, local: Tensor, x: Tensor, shape: tuple[int, int]) -> Tensor:
        base = self.branch.hidden(x) @ rotate_outputs(self.branch.outer.weight).mT
        hidden = first_output(prepared, local, shape, base)
        return _through(hidden, self.hidden, self.out)

    def later(self) -> list[StackedLinear]:
        return [*self.hidden, self.out]


class FiLMHead(Head):
    """`film`: every layer is scaled by gamma(x) in [-1, 1] and shifted by beta(x) before MaxMin."""

    first_bias = False  # beta has one

    def __init__(self, embedding: nn.Module | None, sizes: HeadSizes, generator: torch.Generator):
        super().__init__(embedding, sizes, generator)
        self.branch = Branch(sizes, 2 * sizes.width * sizes.depth, generator)
        self.hidden, self.out = _normalised(sizes, sizes.num_actions, generator)

    def first_layer(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight, weight.new_zeros(len(weight), 1, self.sizes.width)

    def values(self, prepared: Prepared, local: Tensor, x: Tensor, shape: tuple[int, int]) -> Tensor:
        scales = self.branch(x).chunk(2 * self.sizes.depth, -1)  # gamma_0, beta_0, gamma_1, ...
        hidden = first_output(prepared, local, shape)
        for k, layer in enumerate((*self.hidden, self.out)):
            gamma, beta = torch.tanh(scales[2 * k] + 1), scales[2 * k + 1]  # open at first
            a, b = torch.addcmul(beta, gamma, hidden).chunk(2, -1)
            hidden = after_maxmin(torch.cat([a - b, a + b], -1), layer.effective(), layer.bias)
        return hidden

    def later(self) -> list[StackedLinear]:
        return [*self.hidden, self.out]


class SignedHead(Head):
    """`signed`: a combination of features z of D whose weights, functions of (x, a), have l1 norm at most 1."""

    def __init__(self, embedding: nn.Module | None, sizes: HeadSizes, generator: torch.Generator):
        super().__init__(embedding, sizes, generator)
        self.branch = Branch(sizes, sizes.num_actions * (sizes.width + 1), generator)
        self.hidden = _normalised(sizes, sizes.width, generator)[0]

    def first_layer(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return (
            (rotate_outputs(weight), rotate_outputs(self.first.bias, -1)) if self.hidden else (weight, self.first.bias)
        )

    def values(self, prepared: Prepared, local: Tensor, x: Tensor, shape: tuple[int, int]) -> Tensor:
        z = first_output(prepared, local, shape)
        if self.hidden:
            z = _through(z, self.hidden[:-1], self.hidden[-1])
        weight, b = self.branch(x).split([self.sizes.num_actions * self.sizes.width, self.sizes.num_actions], -1)
        weight = self.normalised(weight.unflatten(-1, (self.sizes.num_actions, self.sizes.width)))  # [F, m, A, width]
        return (weight * z[:, :, None]).sum(-1) + b

    def normalised(self, weight: Tensor) -> Tensor:
        return normalise_rows(weight)

    def later(self) -> list[StackedLinear]:
        return list(self.hidden)


class SoftmaxHead(SignedHead):
    """`softmax`: a convex combination of features z of D, with weights that depend on (x, a)."""

    def normalised(self, weight: Tensor) -> Tensor:
        return weight.softmax(-1) / SAFETY


class ConeHead(nn.Module):
    r"""Cones around anchors D_k, given 1-Lipschitz distances to them as the summary: the mean of McShane's extensions.

        f = (min_k [v_k(x, a) + C_L distance_k(D)] + max_k [v_k(x, a) - C_L distance_k(D)]) / 2

    v is a free network of x. The first term alone (networks.md) cannot be flat: it must rise away from its anchors.
    """

    def __init__(self, sizes: HeadSizes, generator: torch.Generator):
        super().__init__()
        self.sizes = sizes
        self.branch = Branch(sizes, sizes.num_actions * sizes.inputs, generator)

    def prepare(self, summary: Tensor, constants: Constants) -> Tensor:
        """The heights [B, K] of D above the cones' tips."""
        return self.sizes.bound * summary

    def forward(self, prepared: Tensor, local: Tensor, x: Tensor) -> Tensor:
        """Unclamped f for x [B, n, d] in [-1, 1]: [F, B, n, A]."""
        tips = self.branch(x.flatten(0, 1)).unflatten(1, x.shape[:2])  # [F, B, n, A K]
        tips, height = tips.unflatten(-1, (self.sizes.num_actions, self.sizes.inputs)), prepared[:, None, None]
        return ((tips + height).amin(-1) + (tips - height).amax(-1)) / 2

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        """Certified constant [F] in D, float64."""
        return (self.sizes.bound * constants.summary.double().amax()).expand(self.sizes.members)


HEADS: dict[str, type[Head]] = {"mlp": MLPHead, "film": FiLMHead, "signed": SignedHead, "softmax": SoftmaxHead}


def head_class(name: str) -> type[Head]:
    """The head of that name."""
    if name not in HEADS:
        raise SettingError(expected=f"one of the heads {sorted(HEADS)}", got=repr(name), cause="a typo in conf/net")
    return HEADS[name]


def _normalised(sizes: HeadSizes, outputs: int, generator: torch.Generator) -> tuple[nn.ModuleList, StackedLinear]:
    """The hidden layers after the first, and an output layer."""
    F, width = sizes.members, sizes.width
    hidden = nn.ModuleList(StackedLinear(F, width, width, generator) for _ in range(sizes.depth - 1))
    return hidden, StackedLinear(F, width, outputs, generator)


def _through(hidden: Tensor, layers: nn.ModuleList, last: StackedLinear) -> Tensor:
    """MaxMin and layer, in turn, on hidden = (a - b, a + b); the last layer's output is not rotated."""
    for layer in layers:
        hidden = after_maxmin(hidden, rotate_outputs(layer.effective()), rotate_outputs(layer.bias, -1))
    return after_maxmin(hidden, last.effective(), last.bias)
