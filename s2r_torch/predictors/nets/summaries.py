"""What a user's `summary` must be: statistics of one simulator's densities that move by at most their sup norm.

Certificates rest on it, and no proof can be read off code: it is tried, on densities that look like estimates, with
changes of every kind and size, and along its own gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from s2r_torch.density.patches import Patches, taken
from s2r_torch.errors import SettingError
from s2r_torch.held import faults_of
from s2r_torch.problem import Problem

COUNT = 4  # simulators
STEEPEST = 16  # statistics whose gradients are followed
ROUNDING = 1e-3  # of float32, relative to the change


class Summarises(Protocol):
    """What has a summary, whose `options` decide what it is."""

    options: dict
    certified: bool

    def parameters(self) -> Iterator[Tensor]: ...

    def summary(self, D: Tensor) -> Tensor: ...


_TRIED: WeakKeyDictionary[Problem, set[tuple[type, str]]] = WeakKeyDictionary()


def require_summary(net: Summarises, problem: Problem) -> None:
    """Tries the summary of a user's network, once for every problem, class and options.

    Raises:
        SettingError: it does not give finite numbers [B, K], simulator by simulator, without parameters; or, where a
            certificate rests on it, it is not 1-Lipschitz in D [B, xi, G].
    """
    kind, tried = type(net), _TRIED.setdefault(problem, set())
    if is_ours(kind) or (kind, repr(net.options)) in tried:
        return
    name = f"{kind.__name__}.summary"
    if any(True for _ in net.parameters()):
        cause = "numbers that training changes, which no bound knows of: make_embedding has them, and buffers stay"
        raise SettingError(expected=f"{name} without parameters", got="some, made in setup", cause=cause)
    _require(net.summary, problem, name, net.certified)
    tried.add((kind, repr(net.options)))


def is_ours(kind: type[Summarises]) -> bool:
    """Whether the summary of a class of networks is one that ships."""
    return kind.summary.__module__.startswith("s2r_torch.") and kind.summary.__qualname__ != "Net.summary"


def _require(summary: Callable[[Tensor], Tensor], problem: Problem, name: str, lipschitz: bool) -> None:
    def refuse(expected: str, got: str, cause: str) -> None:
        raise SettingError(expected=f"{expected} from {name}", got=got, cause=cause)

    def called(D: Tensor, gradients: bool = False) -> Tensor:
        expected = f"{name} to give statistics of densities {list(D.shape)}"
        with faults_of(expected, "its own code"), torch.set_grad_enabled(gradients):
            values = summary(D.clone())
        if not (isinstance(values, Tensor) and values.is_floating_point() and values.ndim == 2 and values.shape[1]) or (
            len(values) != len(D)
        ):
            got = (
                f"{values.dtype} of shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            )
            refuse(f"statistics [{len(D)}, K], K >= 1,", got, "flatten(1) is missing, or a return")
        if not bool(torch.isfinite(values).all()):
            refuse("finite statistics", "NaN or inf", "a logarithm, a root or a division")
        return values.detach()

    D = _bumps(problem)
    values = called(D)
    if not torch.equal(called(D), values):
        refuse("the same statistics for the same densities", "others", "random numbers, or a count of its calls")
    if not torch.equal(called(D, gradients=True), values):
        refuse("the same statistics in training and in use", "others", "code that asks whether gradients are taken")
    alone = torch.cat([called(row[None]) for row in D])
    if not torch.allclose(alone, values, rtol=1e-4, atol=1e-5):
        refuse("statistics of every simulator by itself", "others beside other simulators", "means over the batch")
    called(torch.zeros_like(D))
    sparse = Patches.of(torch.where(D.amax(-1, keepdim=True) / 2 < D, D, 0.0), problem.grid)
    if taken(summary, sparse) is sparse and not torch.allclose(summary(sparse), called(sparse.dense()), 1e-4, 1e-5):
        refuse("the same statistics of patches as of all nodes", "others", "@takes_patches on a summary that does not")
    if not lipschitz:
        return
    for change in itertools.chain(_changes(D), _steepest(summary, D)):  # one at a time: each is as large as D
        moved, most = float((called(D + change) - values).abs().max()), float(change.abs().max())
        if moved > most * (1 + ROUNDING) + 1e-5 * float(values.abs().max()):
            cause = "sums over nodes that are not divided, a factor, a jump: docs/own-network.md has building blocks"
            refuse("statistics that move by at most max |D - D'|", f"{moved:.3g} for {most:.3g}", cause)


def _bumps(problem: Problem) -> Tensor:
    """Densities [COUNT, xi, G], one bump each of its own place and width."""
    grid, xi = problem.grid, problem.graph.num_states
    g = torch.Generator().manual_seed(0)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (grid.low, grid.high))
    centre = low + (high - low) * torch.rand(COUNT, xi, 1, grid.obs_dim, generator=g, dtype=torch.float64)
    width = (high - low) * (0.05 + 0.2 * torch.rand(COUNT, xi, 1, 1, generator=g, dtype=torch.float64))
    D = torch.exp(-0.5 * ((grid.nodes - centre) / width).square().sum(-1))
    return (D / (D * grid.weights).sum(-1, keepdim=True).clamp(min=1e-12)).float()


def _changes(D: Tensor) -> Iterator[Tensor]:
    """Of densities: lifts, noise, signs, spikes, another density; small and large."""
    g = torch.Generator().manual_seed(1)
    height = float(D.max())
    for size in (1e-3 * height, 0.1 * height, height):
        yield torch.full_like(D, size)
        yield size * torch.randn(D.shape, generator=g)
        yield size * (torch.randint(2, D.shape, generator=g) * 2.0 - 1)
        yield size * (torch.rand(D.shape, generator=g) < 1 / D.shape[-1])
    yield D.roll(1, 0) - D


def _steepest(summary: Callable[[Tensor], Tensor], D: Tensor) -> Iterator[Tensor]:
    """Changes along the signs of gradients, which move a statistic most; none where there are no gradients."""
    try:
        with torch.enable_grad():
            x = D.clone().requires_grad_()
            values = summary(x)
            for k in torch.linspace(0, values.shape[1] - 1, min(STEEPEST, values.shape[1])).long().tolist():
                (slope,) = torch.autograd.grad(values[:, k].sum(), x, retain_graph=True)
                yield 1e-2 * float(D.max()) * slope.sign()
    except RuntimeError:  # no gradient
        return
