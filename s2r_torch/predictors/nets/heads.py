r"""Heads: from the first layer (steps.py) and x to one value per action, 1-Lipschitz in the first layer (networks.md).

    mlp       normalised layers with MaxMin on first + u(x)
    film      u_0 = gamma_0(x) first + beta_0(x);  u_l = gamma_l(x) W_l MaxMin(u_l-1) + beta_l(x),  |gamma| <= 1
    signed    sum_k w_k(x, a) z_k / max(1, sum_k |w_k(x, a)|) + b(x, a),  z normalised layers on first
    softmax   sum_k softmax_k(w(x, a)) z_k + b(x, a)

u, gamma, beta, w, b are free networks of x, so |f(D, x, a) - f(D', x, a)| <= C_L max |D - D'| for every x and a.
`ConeStep` has no first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.errors import SettingError
from s2r_torch.predictors.nets.learned_embeddings import Embedding
from s2r_torch.predictors.nets.lipschitz import (
    SAFETY,
    StackedLinear,
    after_abs,
    fold_inputs,
    module_list,
    rotate_outputs,
    with_constant,
)
from s2r_torch.predictors.nets.steps import Branch, Constants, LayeredStep, Prepared, Sizes, Step, add_offset, shared


class MLPHead(LayeredStep):
    """`mlp`: normalised layers with MaxMin on first + u(x). The default: the fastest."""

    first_bias = False  # u has one

    def __init__(self, embedding: Embedding | None, sizes: Sizes, generator: torch.Generator | None):
        super().__init__(embedding, sizes, generator, sizes.width)
        self.hidden, self.out = _normalised(sizes, sizes.num_actions, generator)

    def assembled(self, offset: Tensor, local: Tensor) -> Prepared:
        free = rotate_outputs(self.branch.outer.weight)
        mix = with_constant(torch.cat([free, local], -1), rotate_outputs(self.branch.outer.column()), keep=True)
        return Prepared(offset, self.branch.lift(self.sizes.states, keep=True), mix, self.folded())

    def values(self, prepared: Prepared, columns: Tensor, n: int) -> Tensor:
        u = after_abs(shared(prepared.lift, columns), prepared.mix, self.sizes.x_width)
        return self.through(add_offset(u, prepared.offset, n), prepared.later)

    def chain(self, prepared: Prepared) -> list[tuple[Tensor, int]]:
        later = [(weight, self.sizes.width // 2) for weight in prepared.later]
        return [(prepared.lift, 0), (prepared.mix, self.sizes.x_width), *later]

    def later(self) -> list[StackedLinear]:
        return [*self.hidden, self.out]


class SeparateHead(LayeredStep):
    """Heads whose free network of x gives more than an addend: it and the first layer are computed apart."""

    def assembled(self, offset: Tensor, local: Tensor) -> Prepared:
        first = with_constant(local, local.new_zeros(*local.shape[:2], 1), keep=self.rotated())
        first = nn.functional.pad(first, (self.sizes.obs_dim, 0))
        return Prepared(
            offset, self.branch.lift(self.sizes.states, keep=False), self.branch.output(), self.folded(), first
        )

    def apart(self, prepared: Prepared, columns: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The first layer [F, width (+ 1), m], and the free network's values [F, outputs, m]."""
        assert prepared.first is not None  # `assembled`
        u = add_offset(shared(prepared.first, columns), prepared.offset, n)
        return u, after_abs(shared(prepared.lift, columns), prepared.mix, self.sizes.x_width)


class FiLMHead(SeparateHead):
    """`film`: every layer is scaled by gamma(x) in [-1, 1] and shifted by beta(x) before MaxMin."""

    first_bias = False  # beta has one

    def __init__(self, embedding: Embedding | None, sizes: Sizes, generator: torch.Generator | None):
        super().__init__(embedding, sizes, generator, 2 * sizes.width * sizes.depth)
        self.hidden, self.out = _normalised(sizes, sizes.num_actions, generator)

    def rotated(self) -> bool:
        return False  # scaling comes between

    def folded(self) -> tuple[Tensor, ...]:
        layers = self.later()
        return tuple(with_constant(fold_inputs(layer.effective()), layer.column(), keep=False) for layer in layers)

    def values(self, prepared: Prepared, columns: Tensor, n: int) -> Tensor:
        u, free = self.apart(prepared, columns, n)
        scales = free.chunk(2 * self.sizes.depth, 1)  # gamma_0, beta_0, gamma_1, ...
        for k, weight in enumerate(prepared.later):
            gamma, beta = torch.tanh(scales[2 * k] + 1), scales[2 * k + 1]  # open at first
            a, b = torch.addcmul(beta, gamma, u).chunk(2, 1)
            u = after_abs(torch.cat([a - b, a + b, torch.ones_like(a[:, :1])], 1), weight, self.sizes.width // 2)
        return u

    def later(self) -> list[StackedLinear]:
        return [*self.hidden, self.out]


class SignedHead(SeparateHead):
    """`signed`: a combination of features z of D whose weights, functions of (x, a), have l1 norm at most 1."""

    def __init__(self, embedding: Embedding | None, sizes: Sizes, generator: torch.Generator | None):
        super().__init__(embedding, sizes, generator, sizes.num_actions * (sizes.width + 1))
        self.hidden = _normalised(sizes, sizes.width, generator)[0]

    def values(self, prepared: Prepared, columns: Tensor, n: int) -> Tensor:
        actions, width = self.sizes.num_actions, self.sizes.width
        u, free = self.apart(prepared, columns, n)
        z = self.through(u, prepared.later)  # [F, width, m]
        weight, b = free.split([actions * width, actions], 1)
        weight = self.normalised(weight.unflatten(1, (actions, width)))  # [F, A, width, m]
        return (weight * z[:, None]).sum(2) + b

    def normalised(self, weight: Tensor) -> Tensor:
        """Weights [F, A, width, m] of l1 norm at most 1 over the features."""
        return weight / (weight.abs().sum(2, keepdim=True) * SAFETY).clamp(min=1.0)

    def later(self) -> list[StackedLinear]:
        return list(self.hidden)


class SoftmaxHead(SignedHead):
    """`softmax`: a convex combination of features z of D, with weights that depend on (x, a)."""

    def normalised(self, weight: Tensor) -> Tensor:
        return weight.softmax(2) / SAFETY


@dataclass(frozen=True, eq=False)
class PreparedCones:
    """One step's cones for given D."""

    height: Tensor  # [K, B] of D above every tip
    lift: Tensor  # [F, x_width + 1, d + 1] the free network of x that gives tips
    tips: Tensor  # [F, A K, x_width + 1]

    def part(self, members: slice, simulators: slice) -> PreparedCones:
        """For these members and simulators."""
        return PreparedCones(self.height[:, simulators], self.lift[members], self.tips[members])


class ConeStep(Step):
    r"""Cones around anchors D_k, given 1-Lipschitz distances to them as the summary: the mean of McShane's extensions.

        f = (min_k [v_k(x, a) + C_L distance_k(D)] + max_k [v_k(x, a) - C_L distance_k(D)]) / 2

    v is a free network of x. The first term alone (networks.md) cannot be flat: it must rise away from its anchors.
    """

    def __init__(self, sizes: Sizes, generator: torch.Generator | None):
        super().__init__()
        self.sizes = sizes
        self.branch = Branch(sizes, sizes.num_actions * sizes.inputs, generator)

    def prepare(self, summary: Tensor, scarcity: Tensor, constants: Constants) -> PreparedCones:
        return PreparedCones(self.sizes.bound * summary.T, self.branch.lift(0, keep=False), self.branch.output())

    def values(self, prepared: PreparedCones, columns: Tensor, n: int) -> Tensor:
        tips = after_abs(shared(prepared.lift, columns), prepared.tips, self.sizes.x_width)
        height = prepared.height[..., None]  # [K, B, 1]
        tips = tips.unflatten(2, (height.shape[1], n)).unflatten(1, (self.sizes.num_actions, -1))  # [F, A, K, B, n]
        return (((tips + height).amin(2) + (tips - height).amax(2)) / 2).flatten(2)

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        return (self.sizes.bound * constants.summary.double().amax()).expand(self.sizes.members)


Head = Callable[[Embedding | None, Sizes, torch.Generator | None], LayeredStep]
HEADS: dict[str, Head] = {"mlp": MLPHead, "film": FiLMHead, "signed": SignedHead, "softmax": SoftmaxHead}


def head_class(name: str) -> Head:
    """The head of that name."""
    if name not in HEADS:
        raise SettingError(expected=f"one of the heads {sorted(HEADS)}", got=repr(name), cause="a typo")
    return HEADS[name]


def _normalised(
    sizes: Sizes, outputs: int, generator: torch.Generator | None
) -> tuple[Sequence[StackedLinear], StackedLinear]:
    """The hidden layers after the first, and an output layer."""
    F, width = sizes.members, sizes.width
    hidden = module_list(StackedLinear(F, width, width, generator) for _ in range(sizes.depth - 1))
    return hidden, StackedLinear(F, width, outputs, generator)
