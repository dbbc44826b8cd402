"""Families with a known state graph: simulators and worlds from three functions, and depth-first numbering."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from s2r_torch.arrays import real_tensor
from s2r_torch.base import ProblemSpec
from s2r_torch.defaults import plainly
from s2r_torch.episodes import require_actions, require_episodes, require_generator, require_generators
from s2r_torch.errors import SettingError
from s2r_torch.families.noise import bernoulli
from s2r_torch.graph import StateGraph
from s2r_torch.held import faults_of
from s2r_torch.plain import as_python
from s2r_torch.text import printable

Running = TypeVar("Running")
Key = TypeVar("Key", bound=Hashable)


class LayeredModel(Protocol):
    """A family whose graph is known; states are those of `graph`, in depth-first order."""

    @property
    def spec(self) -> ProblemSpec: ...

    @property
    def graph(self) -> StateGraph: ...

    @property
    def payment(self) -> float:
        """Rewards are payment * Bernoulli(mean / payment)."""

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, d] at states [B, n] under theta [B, k]; row b consumes generator b alone."""

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        """E[r | theta, s, x, a] [B, n], in [0, payment]."""


@plainly("reset", "step")
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
        self._running: tuple[Tensor, Tensor] | None = None  # states [B, n], and x there

    def __len__(self) -> int:
        return len(self.ids)

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        require_generators(generators, len(self))
        self._generators = generators
        return self._enter(torch.zeros(len(self), n, dtype=torch.int64))

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        state, x = running(self._running)
        mean = self.model.mean_reward(self.theta, state, x, actions)
        reward = bernoulli(mean / self.model.payment, self._generators) * self.model.payment
        following = self.model.graph.next_state[state, actions]
        if bool((following < 0).any()):  # that was the H-th action
            self._running = None
            return None, reward
        return self._enter(following), reward

    def select(self, indices: Sequence[int]) -> LayeredSimulators:
        return LayeredSimulators(self.model, self.theta[list(indices)], [self.ids[i] for i in indices])

    def _enter(self, state: Tensor) -> Tensor:
        """What is read at these states [B, n], where the episodes are from now on."""
        x = self.model.emit(self.theta, state, self._generators)
        self._running = state, x
        return x


@plainly("reset", "step")
class LayeredWorld:
    """One world of a `LayeredModel` (`base.UnlabelledWorld`); it computes no reward at all."""

    def __init__(self, model: LayeredModel, theta: Tensor, generator: torch.Generator):
        self.model, self.spec, self.theta = model, model.spec, theta[None]
        self._generators = [require_generator(generator)]
        self._state: Tensor | None = None

    def reset(self, n: int) -> Tensor:
        require_episodes(n)
        return self._enter(torch.zeros(1, n, dtype=torch.int64))

    def step(self, actions: Tensor) -> Tensor:
        state = running(self._state)
        require_actions(actions, state.shape[1:], self.spec.num_actions)
        following = self.model.graph.next_state[state, actions[None]]
        self._state = None if bool((following < 0).any()) else following
        return self._enter(running(self._state))

    def _enter(self, state: Tensor) -> Tensor:
        self._state = state
        return self.model.emit(self.theta, state, self._generators)[0]


def depth_first(start: Key, moves: Callable[[Key], Sequence[Key]], horizon: int) -> tuple[StateGraph, list[Key]]:
    """Numbers the latent states of a layered world in depth-first preorder, as Algorithm 2 meets them.

    Actions are tried in order; states with the same key in the same layer are one state.

    Args:
        start: the key of the fixed start.
        moves: key -> the keys that actions 0 .. A-1 lead to.
        horizon: H; states of layer H-1 have no successor.

    Returns:
        The graph, and the key of every state.
    """
    number: dict[tuple[int, Key], int] = {}
    keys: list[Key] = []
    paths: list[tuple[int, ...]] = []
    following: list[list[int]] = []

    def visit(key: Key, path: tuple[int, ...]) -> int:
        place = (len(path), key)
        if place in number:
            return number[place]
        state = number[place] = len(keys)
        keys.append(key)
        paths.append(path)
        following.append([])
        targets = moves(key)
        last = len(path) == horizon - 1
        following[state] = [-1 if last else visit(target, path + (a,)) for a, target in enumerate(targets)]
        return state

    with faults_of("moves(key) to give a key for each action, that can be one of a dict", "a fault in them, or a list"):
        visit(start, ())
    if len({*map(len, following)}) != 1:
        got = f"{sorted({*map(len, following)})} of them"
        raise SettingError(expected="the same number of actions in every state", got=got, cause="actions left out")
    return StateGraph(torch.tensor(following), torch.tensor([len(path) for path in paths]), tuple(paths)), keys


def require_theta(theta: Tensor, names: Sequence[str]) -> Tensor:
    """Returns theta [B, k] as float64, a copy, or raises SettingError."""
    return _theta(theta, names, "[B, {}]", "theta of another family, or one theta without its batch dimension")


def require_one(theta: Tensor, names: Sequence[str]) -> Tensor:
    """Returns one theta [k] as float64, a copy, or raises SettingError."""
    return _theta(theta, names, "[{}]", "theta of another family, or several at once")


def _theta(values: object, names: Sequence[str], shape: str, cause: str) -> Tensor:
    expected = f"finite theta of shape {shape.format(len(names))}: {', '.join(names)}"
    try:
        theta = real_tensor(values)
    except ValueError as error:
        raise SettingError(expected=expected, got=printable(error, 120), cause="no numbers") from error
    if theta.ndim != shape.count(",") + 1 or theta.shape[-1] != len(names):
        raise SettingError(expected=expected, got=f"shape {list(theta.shape)}", cause=cause)
    if not bool(torch.isfinite(theta).all()):
        raise SettingError(expected=expected, got="NaN or inf", cause="a division, or a number that is missing")
    return theta


def require_ids(theta: Tensor, ids: Sequence[int]) -> tuple[int, ...]:
    """Returns the ids as ints, or raises SettingError unless there is one per theta, and another for each."""
    listed = as_python(ids)
    found: tuple[Any, ...] = tuple(map(as_python, listed)) if isinstance(listed, Iterable) else (None,)
    whole = all(isinstance(i, Integral) and not isinstance(i, bool) for i in found)
    if not whole or len(found) != theta.shape[0] or len({*found}) < len(found):
        raise SettingError(
            expected=f"{theta.shape[0]} ids, different whole numbers, one per theta",
            got=printable(repr(ids), 80),
            cause="a slice too many, or one name for several: they would draw the same noise",
        )
    return tuple(map(operator.index, found))


def running(state: Running | None) -> Running:
    """Where an episode is, or SettingError unless one runs."""
    if state is None:
        raise SettingError(expected="reset before step", got="a step", cause="an episode has H steps only")
    return state


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Raises SettingError unless low <= value <= high."""
    if not low <= value <= high:
        raise SettingError(expected=f"{low:g} <= {name} <= {high:g}", got=f"{value}", cause="a unit or a typing error")
