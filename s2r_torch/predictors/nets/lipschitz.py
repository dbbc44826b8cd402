"""Layers of F stacked networks whose sup-norm Lipschitz constants are known by construction.

Assumption 4 is a bound in the sup norm, so what counts of a weight matrix is its l_inf -> l_inf norm, the largest row
sum of |W| (networks.md). A stacked layer keeps the weights of all F members in one tensor and normalises them in
forward; nothing is projected after a step, and certificates are computed from the effective weights in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)

SAFETY = 1 + 2**-20  # float32 rows would otherwise exceed their bound by up to 2e-7


def normalise_rows(weight: Tensor, constants: Tensor | None = None, bound: float = 1.0) -> Tensor:
    r"""Scales rows down so that the map is `bound`-Lipschitz from inputs with these constants to the sup norm.

        row_norm[k] = sum_j |weight[k, j]| constants[j];   result[k] = weight[k] / max(1, row_norm[k] / bound)

    Args:
        weight: `[..., out, in]`.
        constants: `[in]` Lipschitz constant of each input, default 1.
        bound: the Lipschitz constant wanted, > 0.

    Returns:
        The effective weight, same shape.
    """
    size = weight.abs() if constants is None else weight.abs() * constants
    return weight / (size.sum(-1, keepdim=True) * (SAFETY / bound)).clamp(min=1.0)


def row_norms(weight: Tensor, constants: Tensor | None = None) -> Tensor:
    """The certified constant of effective weights `[F, out, in]`: the largest weighted row sum [F], in float64."""
    size = weight.detach().double().abs()
    if constants is not None:
        size = size * constants.double()
    return size.sum(-1).amax(-1) if size.shape[-1] else size.new_zeros(size.shape[0])


def maxmin(x: Tensor, dim: int = -1) -> Tensor:
    """MaxMin on contiguous halves: (max(a, b), min(a, b)); 1-Lipschitz in the sup norm, and keeps gradients alive.

    Computed as ((a + b) + |a - b|, (a + b) - |a - b|) / 2, whose gradient is much cheaper than that of max and min.
    """
    a, b = x.chunk(2, dim)
    middle, gap = a + b, (a - b).abs()
    return torch.cat([middle + gap, middle - gap], dim) / 2


# MaxMin between two layers W_1 and W_2, spread over this module, steps.py and heads.py. With R = rotate_outputs and
# N = fold_inputs, a and b the halves of W_1 x:
#
#     W_2 MaxMin(W_1 x) = N(W_2) (|a - b|, a + b)      MaxMin(a, b) = (a + b + |a - b|, a + b - |a - b|) / 2
#     (a - b, a + b)    = R(W_1) x                      so only |first half| is left to do: `after_abs`
#
# `LayeredStep.folded` makes N(W) of every later layer and R of all but the last; `LayeredStep.prepare` makes R(W_1).


def rotate_outputs(weight: Tensor, dim: int = -2) -> Tensor:
    """Makes a layer give (a - b, a + b) where it gave halves (a, b): one half of MaxMin, folded into the weights."""
    a, b = weight.chunk(2, dim)
    return torch.cat([a - b, a + b], dim)


def fold_inputs(weight: Tensor) -> Tensor:
    """The other half: weight MaxMin(a, b) = fold_inputs(weight) (|a - b|, a + b)."""
    upper, lower = weight.chunk(2, -1)
    return torch.cat([upper - lower, upper + lower], -1) / 2


def with_constant(weight: Tensor, bias: Tensor, keep: bool) -> Tensor:
    """A layer whose last input is the constant 1: [F, out, in] and [F, out, 1] -> [F, out, in + 1].

    With `keep` it also hands the constant on, as its last output. One product then does the work of two passes.
    """
    wide = torch.cat([weight, bias], -1)
    if not keep:
        return wide
    last = wide.new_zeros(len(wide), 1, wide.shape[-1])
    last[..., -1] = 1.0
    return torch.cat([wide, last], -2)


def after_abs(u: Tensor, weight: Tensor, rows: int) -> Tensor:
    """weight u after u[:, :rows] was replaced by its absolute value, in place: u is consumed.

    With rotated and folded weights this is a layer after MaxMin, of which only |a - b| is not linear (networks.md).

    Args:
        u: `[F, in, m]`, features first.
        weight: `[F, out, in]`.
        rows: how many rows the absolute value applies to.

    Returns:
        `[F, out, m]`.
    """
    if torch.is_grad_enabled():
        return _AfterAbs.apply(u, weight, rows)
    u[:, :rows].abs_()
    return torch.bmm(weight, u)


class _AfterAbs(torch.autograd.Function):
    """Overwrites u, which is not an output (autograd cannot mark a view as dirty): whoever saved u gets an error."""

    @staticmethod
    def forward(ctx, u: Tensor, weight: Tensor, rows: int) -> Tensor:
        u = u.detach()  # the same memory and version counter
        part = u[:, :rows]
        sign = part.sign() if ctx.needs_input_grad[0] else None
        part.abs_()
        ctx.save_for_backward(u, weight, sign)
        return torch.bmm(weight, u)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        u, weight, sign = ctx.saved_tensors
        upward = None
        if sign is not None:
            upward = weight.mT @ grad
            upward[:, : sign.shape[1]].mul_(sign)
        return upward, grad @ u.mT, None


def initial(shape: tuple[int, ...], width: float, generator: torch.Generator | None) -> Tensor:
    """Initial weights of that shape, float32, uniform in +-width / 2.

    Without a generator one 0 stands for all of them: a network of any size is then built at once, in no memory, to be
    compared with the weights that a file holds before these take their places.
    """
    if generator is None:
        return torch.zeros((), dtype=torch.float32).expand(shape)
    return (torch.rand(shape, dtype=torch.float32, generator=generator) - 0.5) * width


def module_list(modules: Iterable[Layer]) -> Sequence[Layer]:
    """`nn.ModuleList`, which forgets what type its elements have."""
    return cast(Sequence[Layer], nn.ModuleList(modules))


class StackedLinear(nn.Module):
    """F linear layers side by side: [F, n, in] -> [F, n, out].

    Args:
        members: F.
        inputs: input size; 0 is allowed and gives the bias alone.
        outputs: output size.
        generator: draws the initial weights; consumed. None where weights are to be loaded (`initial`).
        bound: rows are normalised to this Lipschitz constant; None leaves the layer free.
        bias: whether to add a free bias.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        generator: torch.Generator | None,
        *,
        bound: float | None = 1.0,
        bias: bool = True,
    ):
        super().__init__()
        scale = 1 / math.sqrt(max(1, inputs))
        self.weight = nn.Parameter(initial((members, outputs, inputs), 2 * scale, generator))
        self.bias = nn.Parameter(initial((members, 1, outputs), scale, generator)) if bias else None
        self.bound = bound

    def effective(self, constants: Tensor | None = None) -> Tensor:
        """The weights that are used, [F, out, in]."""
        return self.weight if self.bound is None else normalise_rows(self.weight, constants, self.bound)

    def forward(self, x: Tensor, constants: Tensor | None = None) -> Tensor:
        return affine(x, self.effective(constants), self.bias)

    def column(self) -> Tensor:
        """The bias as a column, [F, out, 1]; 0 where there is none."""
        return self.weight.new_zeros(*self.weight.shape[:2], 1) if self.bias is None else self.bias.mT

    def norm(self, constants: Tensor | None = None) -> Tensor:
        """Certified Lipschitz constant [F], float64; infinite for a free layer is never asked for."""
        return row_norms(self.effective(constants), constants)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b for stacked weights [F, out, in]; x [F, n, in], or [n, in] shared by all members."""
    members, outputs, inputs = weight.shape
    if x.ndim == 2:  # one product for all members: their weights are rows of one matrix
        y = (x @ weight.reshape(members * outputs, inputs).T).view(-1, members, outputs).transpose(0, 1)
        return y if bias is None else y + bias
    return x @ weight.mT if bias is None else torch.baddbmm(bias, x, weight.mT)


class StackedConv(nn.Module):
    """F convolutions side by side over C channels of 1-D or 2-D maps: [B, F * C, ...] -> [B, F * outputs, ...].

    The l_inf norm of a convolution is the sum of |weights| over input channels and taps, so rows are normalised as in
    `StackedLinear`. Padding with zeros keeps the bound.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        taps: int,
        obs_dim: int,
        stride: int,
        generator: torch.Generator | None,
    ):
        super().__init__()
        shape = (members * outputs, inputs, *[taps] * obs_dim)
        scale = 1 / math.sqrt(inputs * taps**obs_dim)
        self.weight = nn.Parameter(initial(shape, 2 * scale, generator))
        self.bias = nn.Parameter(initial((members * outputs,), scale, generator))
        self.members, self.stride, self.padding = members, stride, taps // 2
        self.convolve = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[obs_dim]

    def effective(self) -> Tensor:
        return normalise_rows(self.weight.flatten(1)).view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(
            x, self.effective(), self.bias, stride=self.stride, padding=self.padding, groups=self.members
        )

    def norm(self) -> Tensor:
        """Certified Lipschitz constant [F], float64."""
        return row_norms(self.effective().flatten(1).view(self.members, -1, self.weight[0].numel()))
