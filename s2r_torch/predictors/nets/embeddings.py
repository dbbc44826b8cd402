"""Features of densities that are 1-Lipschitz in the sup norm by construction (architecture.md section 4).

Each function below moves by at most max |D - D'| when D does, so a network on top needs no further certificate than
that of its own layers. None has parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, Patches, looked_up_own

LOOKED_UP = 2**20  # look-ups at once
UNTOLD, MOST_DIRECTIONS = 0.01, 4  # share of the variance of places that need not be spanned, and by how many at most
PARTS = 2**24  # of the largest squared distance, which rounding moves by less
CANDIDATES, AT_ONCE = 2**15, 2**12  # places that sensors are chosen from, how many of them are looked at together


def sorted_values(D: Densities, ranks: Tensor) -> Tensor:
    """Chosen ranks [r] of the values of D [..., G] in decreasing order: [..., r]; they see a shape wherever it lies."""
    if isinstance(D, Patches):
        return among_zeros(D.values, D.grid.num_points, ranks)
    if D.requires_grad or D.device.type != "cpu":
        return D.sort(-1, descending=True).values[..., ranks]
    rising = torch.from_numpy(np.sort(D.numpy(), -1))  # 13 times faster: it keeps no places
    return rising[..., D.shape[-1] - 1 - ranks]


def among_zeros(values: Tensor, count: int, ranks: Tensor) -> Tensor:
    """Chosen ranks [r] of so many numbers in decreasing order, 0 but for those of values [..., P]: [..., r]."""
    rising, size = torch.from_numpy(np.sort(values.numpy(), -1)), values.shape[-1]
    above, below = (values > 0).sum(-1, keepdim=True), (values < 0).sum(-1, keepdim=True)
    high, low = (rising[..., (end - 1 - ranks).clamp(0, size - 1)] for end in (size, count))
    return torch.where(ranks < above, high, torch.where(ranks >= count - below, low, 0.0))


def steepest_falls(D: Densities, shape: Sequence[int], steps: Sequence[Sequence[int]]) -> Tensor:
    """How steeply D [..., G] falls along steps v: max over y of (M(y) - M(y + v)) / 2, 0 off the grid: [..., steps].

    M are the maxima of D over the axes that v does not move along. The same wherever a shape lies, falls tell along
    which way it is wide and to which side it leans; sorted values do not.

    Args:
        D: densities.
        shape: nodes of every axis.
        steps: v, in nodes along every axis, not all 0.
    """
    full = D.boxes() if isinstance(D, Patches) else D.unflatten(-1, tuple(shape))
    maxima: dict[tuple[int, ...], Tensor] = {}
    falls = []
    for v in steps:
        others = tuple(j - len(shape) for j, k in enumerate(v) if not k)
        if others not in maxima:
            maxima[others] = full.amax(others) if others else full
        moved = [k for k in v if k]
        padded = torch.nn.functional.pad(maxima[others], [abs(k) for k in reversed(moved) for _ in range(2)])
        here = there = padded
        for axis, k in zip(range(-len(moved), 0), moved, strict=True):
            size = padded.shape[axis] - abs(k)
            here, there = here.narrow(axis, max(-k, 0), size), there.narrow(axis, max(k, 0), size)
        falls.append((here - there).amax(tuple(range(-len(moved), 0))) / 2)
    return torch.stack(falls, -1)


def linear_functionals(D: Densities, functionals: Tensor) -> Tensor:
    """Linear functionals [m, G] of D [..., G], each divided by its l1 norm: [..., m]."""
    unit = functionals / functionals.abs().sum(-1, keepdim=True)
    return D.sums(unit) if isinstance(D, Patches) else D @ unit.to(D.dtype).T


def agreement(D: Densities, places: Tensor, grid: DensityGrid) -> Tensor:
    """How high D [B, xi, G] is where one of K known sensors sees the states, at the best: [B].

    That is the largest of K averages over states of D_s at places[k, s]: of few readings, which tell little of any one
    state's density, all states together tell how far readings are from where they should be.

    Args:
        D: densities.
        places: `[K, xi, d]`.
        grid: theirs.
    """
    some = D.split(max(1, LOOKED_UP // places[..., 0].numel()))
    return torch.cat([looked_up_own(part, grid, places).mean(2).amax(1) for part in some])


def places_between(seen: Tensor, count: int) -> Tensor:
    """Where further sensors would see the states: among training simulators and between them, [count, xi, d].

    Candidates fill the space that simulators' places span, around each of them as far as the loneliest one is from its
    nearest; each that is taken is the farthest from those taken before. So no sensor like these is far from all of
    them, and those of training agree no better than others do.

    Args:
        seen: `[B, xi, d]` where simulators see them.
        count: how many.
    """
    flat = seen.flatten(1)
    centre = flat.mean(0)
    _, scales, directions = torch.linalg.svd(flat - centre, full_matrices=False)
    left = 1 - scales.square().cumsum(0) / scales.square().sum().clamp(min=1e-12)  # share of the variance
    spanned = directions[: min(1 + int((left > UNTOLD).sum()), MOST_DIRECTIONS)]
    u = (flat - centre) @ spanned.T
    nearest = torch.cdist(u, u).fill_diagonal_(torch.inf).amin(1)
    apart = nearest[nearest.isfinite()].amax() if len(u) > 1 else nearest.new_zeros(())
    low, high = u.amin(0) - apart, u.amax(0) + apart
    drawn = torch.quasirandom.SobolEngine(u.shape[1]).draw(CANDIDATES, dtype=u.dtype)
    between = [v[torch.cdist(v, u).amin(1) <= apart] for v in (low + (high - low) * drawn).split(AT_ONCE)]
    candidates = torch.cat([u, *between])
    return (centre + candidates[_farthest(candidates, count)] @ spanned).view(count, *seen.shape[1:])


def _farthest(points: Tensor, count: int) -> Tensor:
    """Which [count] of points [M, m] are taken, the first one first, and each the farthest from those before.

    Of those that are as far but for rounding, the first: squares are counted in `PARTS` of the largest.
    """
    taken, distance, part = [0], points.new_full((len(points),), torch.inf), 0.0
    while len(taken) < count:
        squares = (points - points[taken[-1]]).square().sum(1)
        part = part or float(squares.amax()) / PARTS or 1.0
        distance = torch.minimum(distance, (squares / part).round_())
        taken.append(int(distance.argmax()))
    return torch.tensor(taken)


def layer_means(values: Tensor, layer: Tensor) -> Tensor:
    """The average over the states of every layer: values [B, xi, ...], layer [xi] -> [B, H, ...]."""
    horizon = int(layer.max()) + 1
    member = torch.nn.functional.one_hot(layer, horizon).to(values.dtype)  # [xi, H]
    member = member / member.sum(0)
    return torch.einsum("bs...,sh->bh...", values, member)


def sup_distances(values: Tensor, anchors: Tensor) -> Tensor:
    """max_j |values[b, j] - anchors[k, j]|: [B, J] and [K, J] -> [B, K]."""
    return (values[:, None] - anchors.to(values.dtype)).abs().amax(-1)
