"""Families with a known state graph: simulators and worlds from three functions, and depth-first numbering."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, StateGraph
from s2r_torch.errors import SettingError
from s2r_torch.families.noise import bernoulli


class LayeredModel(Protocol):
    """A family whose graph is known; states are those of `graph`, in depth-first order."""

    spec: ProblemSpec
    graph: StateGraph
    payment: float  # rewards are payment * Bernoulli(mean / payment)

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, d] at states [B, n] under theta [B, k]; row b consumes generator b alone."""

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        """E[r | theta, s, x, a] [B, n], in [0, payment]."""


class LayeredSimulators:
    """B simulators of a `LayeredModel` (`base.Simulators`); every random number of row b comes from generator b.

    Args:
        model: the family.
        theta: `[B, k]`.
        ids: `[B]` names.
    """

    def __init__(self, model: LayeredModel, theta: Tensor, ids: Sequence[int]):
        self.model, self.spec, self.theta = model, model.spec, theta
        self.ids = require_ids(theta, ids)
        self._generators: Sequence[torch.Generator] = ()
        self._state = self._x = None

    def __len__(self) -> int:
        return len(self.ids)

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        require_generators(generators, len(self))
        self._generators = generators
        self._state = torch.zeros(len(self), n, dtype=torch.int64)
        self._x = self.model.emit(self.theta, self._state, generators)
        return self._x

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        require_running(self._state)
        mean = self.model.mean_reward(self.theta, self._state, self._x, actions)
        reward = bernoulli(mean / self.model.payment, self._generators) * self.model.payment
        self._advance(actions)
        return self._x, reward

    def select(self, indices: Sequence[int]) -> LayeredSimulators:
        return LayeredSimulators(self.model, self.theta[list(indices)], [self.ids[i] for i in indices])

    def _advance(self, actions: Tensor) -> None:
        """Moves to the next layer, or ends the episodes after its H-th action."""
        following = self.model.graph.next_state[self._state, actions]
        if bool((following < 0).any()):
            self._state = self._x = None
        else:
            self._state, self._x = following, self.model.emit(self.theta, following, self._generators)


class LayeredWorld:
    """One world of a `LayeredModel` (`base.UnlabelledWorld`); it computes no reward at all."""

    def __init__(self, model: LayeredModel, theta: Tensor, generator: torch.Generator):
        self.model, self.spec, self.theta = model, model.spec, theta[None]
        self._generators = [generator]
        self._state = None

    def reset(self, n: int) -> Tensor:
        self._state = torch.zeros(1, n, dtype=torch.int64)
        return self.model.emit(self.theta, self._state, self._generators)[0]

    def step(self, actions: Tensor) -> Tensor:
        require_running(self._state)
        self._state = self.model.graph.next_state[self._state, actions[None]]
        if bool((self._state < 0).any()):
            self._state = None
        require_running(self._state)
        return self.model.emit(self.theta, self._state, self._generators)[0]


def depth_first(
    start: Hashable, moves: Callable[[Hashable], Sequence[Hashable]], horizon: int
) -> tuple[StateGraph, list]:
    """Numbers the latent states of a layered world in depth-first preorder, as Algorithm 2 meets them.

    Actions are tried in order; states with the same key in the same layer are one state.

    Args:
        start: the key of the fixed start.
        moves: key -> the keys that actions 0 .. A-1 lead to.
        horizon: H; states of layer H-1 have no successor.

    Returns:
        The graph, and the key of every state.
    """
    number: dict[tuple[int, Hashable], int] = {}
    keys, layers, paths, following = [], [], [], []

    def visit(key: Hashable, path: tuple[int, ...]) -> int:
        place = (len(path), key)
        if place in number:
            return number[place]
        state = number[place] = len(keys)
        keys.append(key), layers.append(len(path)), paths.append(path), following.append([])
        targets = moves(key)
        last = len(path) == horizon - 1
        following[state] = [-1 if last else visit(target, path + (a,)) for a, target in enumerate(targets)]
        return state

    visit(start, ())
    return StateGraph(torch.tensor(following), torch.tensor(layers), tuple(paths)), keys


def require_theta(theta: Tensor, names: Sequence[str]) -> Tensor:
    """Returns theta [B, k] as float64, or raises SettingError."""
    theta = torch.as_tensor(theta, dtype=torch.float64)
    if theta.ndim != 2 or theta.shape[1] != len(names) or not bool(torch.isfinite(theta).all()):
        raise SettingError(
            expected=f"finite theta of shape [B, {len(names)}]: {', '.join(names)}",
            got=f"shape {list(theta.shape)}" if theta.ndim != 2 or theta.shape[1] != len(names) else "NaN or inf",
            cause="theta of another family, or one theta without its batch dimension",
        )
    return theta


def require_ids(theta: Tensor, ids: Sequence[int]) -> tuple[int, ...]:
    """Returns the ids as ints, or raises SettingError unless there is one per theta."""
    if len(ids) != theta.shape[0]:
        raise SettingError(expected=f"{theta.shape[0]} ids, one per theta", got=str(len(ids)), cause="a slice too many")
    return tuple(int(i) for i in ids)


def require_generators(generators: Sequence[torch.Generator], count: int) -> None:
    """Raises SettingError unless there is one generator per simulator."""
    if len(generators) != count:
        raise SettingError(
            expected=f"{count} generators, one per simulator", got=str(len(generators)), cause="another batch's streams"
        )


def require_running(state: Tensor | None) -> None:
    """Raises SettingError unless an episode runs."""
    if state is None:
        raise SettingError(expected="reset before step", got="a step", cause="an episode has H steps only")


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Raises SettingError unless low <= value <= high."""
    if not low <= value <= high:
        raise SettingError(expected=f"{low:g} <= {name} <= {high:g}", got=f"{value}", cause="a unit or a typing error")
