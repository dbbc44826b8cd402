r"""The networks of one step, up to the first layer, where C_L is spent; heads.py has what follows.

    first = W_e e(D) + W_l D_s(x) + v c + bias   sum_k |W_k| constant_k <= C_L    for every row of W = (W_e, W_l)

with e an embedding of D, D_s(x) the densities of the step's states looked up at x, and c the scarcity of readings. How
it is computed (networks.md): features first, [F, features, columns], one column per sample; biases and D's part of the
first layer are weights of a constant 1; MaxMin is an absolute value in place (`lipschitz.after_abs`). So a layer is one
product and one short pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from s2r_torch.predictors.nets.learned_embeddings import Embedding
from s2r_torch.predictors.nets.lipschitz import (
    StackedLinear,
    affine,
    after_abs,
    fold_inputs,
    rotate_outputs,
    row_norms,
    with_constant,
)


@dataclass(frozen=True)
class Sizes:
    """What a step must know of its network."""

    members: int  # F
    inputs: int  # K, size of the embedding, or of the summary where there is none
    states: int  # S_h, densities looked up at x
    obs_dim: int  # d
    num_actions: int  # A
    width: int
    depth: int
    x_width: int
    bound: float  # C_L


@dataclass(frozen=True, eq=False)
class Constants:
    """Lipschitz constants in D of what a step is given."""

    summary: Tensor  # [K]
    local: Tensor  # [] of densities looked up at x


@dataclass(frozen=True, eq=False)
class Prepared:
    """One step's networks for given D: effective weights with MaxMin and biases folded in, and all that depends on D.

    The last input of every layer is the constant 1, which all but the last hand on (`lipschitz.with_constant`).
    """

    offset: Tensor | None  # [F, width + 1, B] first layer on the embedding of D, with its bias; None once folded in
    lift: Tensor  # [F, k, d + S_h + 1] from a column to units of the free network of x, and more
    mix: Tensor  # [F, *, k] from there on
    later: tuple[Tensor, ...]  # the layers after the first
    first: Tensor | None = None  # [F, width (+ 1), d + S_h + 1] the first layer, where it is not a part of `mix`

    def part(self, members: slice, simulators: slice) -> Prepared:
        """For these members and simulators; a single simulator's offset becomes a bias."""
        first = None if self.first is None else self.first[members]
        later = tuple(weight[members] for weight in self.later)
        part = Prepared(None, self.lift[members], self.mix[members], later, first)
        if self.offset is None:
            return part
        offset = self.offset[members, :, simulators]
        if offset.shape[-1] > 1:
            return replace(part, offset=offset)
        if first is None:
            return replace(part, mix=_with_bias(part.mix, offset))
        return replace(part, first=_with_bias(first, offset))


def _with_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """Adds to the weights of the constant 1, the last column."""
    return torch.cat([weight[..., :-1], weight[..., -1:] + bias[:, : weight.shape[1]]], -1)


class Branch(nn.Module):
    """A free network of x with one hidden layer of |.| units, in the two factors that a step needs."""

    def __init__(self, sizes: Sizes, outputs: int, generator: torch.Generator | None):
        super().__init__()
        self.inner = StackedLinear(sizes.members, sizes.obs_dim, sizes.x_width, generator, bound=None)
        self.outer = StackedLinear(sizes.members, sizes.x_width, outputs, generator, bound=None)

    def lift(self, states: int, keep: bool) -> Tensor:
        """(x, local, 1) -> (W x + b, local if kept, 1): [F, x_width + states + 1 or x_width + 1, d + states + 1]."""
        weight, bias = self.inner.weight, self.inner.column()
        top = torch.cat([weight, weight.new_zeros(*weight.shape[:2], states), bias], -1)
        rest = torch.eye(states + 1, dtype=weight.dtype, device=weight.device)[0 if keep else states :]
        rest = nn.functional.pad(rest, (weight.shape[-1], 0)).expand(len(weight), -1, -1)
        return torch.cat([top, rest], 1)

    def output(self) -> Tensor:
        """(|W x + b|, 1) -> the values: [F, outputs, x_width + 1]."""
        return with_constant(self.outer.weight, self.outer.column(), keep=False)


class Step(nn.Module):
    """One step of all members. What a subclass gives is `prepare`, `values` and `lipschitz_bound`.

    What `prepare` returns is the subclass's own, and goes to its `values` alone.
    """

    sizes: Sizes

    def prepare(self, summary: Tensor, scarcity: Tensor, constants: Constants) -> Any:
        """All that depends on the summary [B, K] and on scarcity [B], and on no sample; it has `part(..)`."""
        raise NotImplementedError

    def values(self, prepared: Any, columns: Tensor, n: int) -> Tensor:
        """Unclamped f for columns [d + S_h + 1, B n]: [F, A, B n]."""
        raise NotImplementedError

    def chain(self, prepared: Any) -> list[tuple[Tensor, int]]:
        """`values` as products, each after the absolute value of that many first rows: [F, out, in] and rows.

        Empty where they are more than that.
        """
        return []

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        """Certified constant [F] in D, float64."""
        raise NotImplementedError

    def forward(self, prepared: Any, local: Tensor, x: Tensor) -> Tensor:
        """Unclamped f for local [B, n, S_h] and x [B, n, d] in [-1, 1]: [F, B, n, A]."""
        columns = self.columns(local, x)
        return self.values(prepared, columns.flatten(1), x.shape[1]).unflatten(2, columns.shape[1:]).permute(0, 2, 3, 1)

    def columns(self, local: Tensor, x: Tensor) -> Tensor:
        """What all members share: (x, densities looked up at x, 1), [d + S_h + 1, B, n]."""
        return torch.cat([x, local, x.new_ones(*x.shape[:2], 1)], -1).permute(2, 0, 1).contiguous()


class LayeredStep(Step):
    """Embedding, first layer and a free network of x; what follows is a subclass's.

    Args:
        embedding: a learned map of the summary, or None.
        sizes: see `Sizes`.
        generator: draws the initial weights; consumed.
        free_outputs: outputs of the free network of x.
    """

    first_bias = True

    def __init__(self, embedding: Embedding | None, sizes: Sizes, generator: torch.Generator | None, free_outputs: int):
        super().__init__()
        self.embedding, self.sizes = embedding, sizes
        inputs = sizes.inputs + 1 + sizes.states  # embedding, scarcity, look-ups
        self.first = StackedLinear(
            sizes.members, inputs, sizes.width, generator, bound=sizes.bound, bias=self.first_bias
        )
        self.branch = Branch(sizes, free_outputs, generator)

    def later(self) -> list[StackedLinear]:
        """The normalised layers after the first; MaxMin comes before each."""
        raise NotImplementedError

    def assembled(self, offset: Tensor, local: Tensor) -> Prepared:
        """All effective weights, given the first layer's: offset [F, width + 1, B], local [F, width, S_h]."""
        raise NotImplementedError

    def prepare(self, summary: Tensor, scarcity: Tensor, constants: Constants) -> Prepared:
        embedded = summary if self.embedding is None else self.embedding(summary, constants.summary)
        weight = self.first.effective(self.input_constants(constants))
        bias: Tensor | None = self.first.bias
        if self.rotated():
            weight, bias = rotate_outputs(weight), None if bias is None else rotate_outputs(bias, -1)
        told = torch.cat([embedded, scarcity[:, None].expand(*embedded.shape[:-1], 1)], -1)
        size = told.shape[-1]
        offset = affine(told, weight[..., :size], bias).mT
        return self.assembled(nn.functional.pad(offset, (0, 0, 0, 1)), weight[..., size:])

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        """The product of the layers' constants along the path from D, [F], float64."""
        inputs = self.input_constants(constants)
        bound = row_norms(self.first.effective(inputs), inputs)
        if self.embedding is not None:  # `inputs` assume that embedded values are C_L-Lipschitz
            bound = bound * (self.embedding.norm(constants.summary) / self.sizes.bound).clamp(min=1.0)
        for layer in self.later():
            bound = bound * layer.norm()
        return bound

    def rotated(self) -> bool:
        """Whether the first layer gives (a - b, a + b) of the halves (a, b) that MaxMin compares."""
        return bool(self.later())

    def folded(self) -> tuple[Tensor, ...]:
        """The later layers with MaxMin folded in: (|a - b|, a + b, 1) -> (a - b, a + b, 1), or the output."""
        pairs = [(fold_inputs(layer.effective()), layer.column()) for layer in self.later()]
        inner = [with_constant(rotate_outputs(weight), rotate_outputs(bias), keep=True) for weight, bias in pairs[:-1]]
        return tuple(inner + [with_constant(*pair, keep=False) for pair in pairs[-1:]])

    def through(self, u: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
        """MaxMin and layer, in turn, on u = (a - b, a + b, 1); consumes u."""
        for weight in layers:
            u = after_abs(u, weight, self.sizes.width // 2)
        return u

    def input_constants(self, constants: Constants) -> Tensor:
        """Lipschitz constants [K + 1 + S_h] of the first layer's inputs; scarcity does not move with D."""
        embedded = constants.summary
        if self.embedding is not None:
            embedded = embedded.new_full((self.sizes.inputs,), self.sizes.bound)
        return torch.cat([embedded, embedded.new_zeros(1), constants.local.expand(self.sizes.states)])


def shared(weight: Tensor, columns: Tensor) -> Tensor:
    """weight [F, k, r] times columns [r, m] that all members share, as one product: [F, k, m]."""
    return (weight.flatten(0, 1) @ columns).view(*weight.shape[:2], -1)


def add_offset(u: Tensor, offset: Tensor | None, n: int) -> Tensor:
    """u [F, width (+ 1), B n] + offset [F, width + 1, B]; u is consumed."""
    if offset is None:
        return u
    u, offset = u.unflatten(2, (offset.shape[2], n)), offset[:, : u.shape[1], :, None]
    return (u + offset if torch.is_grad_enabled() else u.add_(offset)).flatten(2)  # in place, autograd would copy twice
