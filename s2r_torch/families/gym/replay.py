"""Replaying deterministic episodes: every action path is run once, whatever the number of episodes that take it.

A `ReplayTree` has a node per action prefix that was needed so far, so that batches of episodes are index tensors. Its
correctness rests on determinism, which is checked whenever a prefix is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s2r_torch.base import StateGraph
from s2r_torch.errors import GraphMismatchError, SimulatorError
from s2r_torch.families.layered import depth_first

PROBES = 32  # random paths that a merged graph is checked on


class Episode(Protocol):
    """One environment that runs one episode at a time; after its end it stays where it is and pays nothing."""

    def reset(self) -> list[float]:
        """Starts afresh; returns the latent numbers of the start."""

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """The next latent numbers, the raw reward, and whether the episode has ended."""


class ReplayTree:
    """What happens along every action path, in one environment or several.

    Args:
        openers: one per root; called when its environment is first needed.
        num_actions: A.
    """

    def __init__(self, openers: Sequence[Callable[[], Episode]], num_actions: int):
        self.num_actions = num_actions
        self._openers, self._episodes = list(openers), [None] * len(openers)
        self._at: list[int | None] = [None] * len(openers)  # the node where each environment stands
        self._root: list[int] = []
        self._parent: list[tuple[int, int] | None] = []  # (node, action)
        self._child = torch.empty(0, num_actions, dtype=torch.int64)
        self._raw = torch.empty(0, num_actions, dtype=torch.float64)
        self._ended = torch.empty(0, dtype=torch.bool)
        self._latent: Tensor | None = None
        self.steps_run = 0  # steps taken in real environments
        for root in range(len(openers)):
            self._add(root, None, self._restart(root), ended=False)
            self._at[root] = root

    @property
    def num_nodes(self) -> int:
        return len(self._parent)

    def latent(self, nodes: Tensor) -> Tensor:
        """The latent numbers [..., l] at nodes [...]; root b is node b."""
        return self._latent.index_select(0, nodes.flatten()).reshape(*nodes.shape, -1)

    def ended(self, nodes: Tensor) -> Tensor:
        """Whether the episode has ended [...] at nodes [...]."""
        return self._ended.take(nodes)

    def step(self, nodes: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The nodes and raw rewards after actions, elementwise; runs the environments where nobody has been yet."""
        edges = nodes * self.num_actions + actions
        following = self._child.flatten().take(edges)
        missing = edges[following < 0]
        if len(missing):
            for edge in missing.unique().tolist():
                self._expand(*divmod(edge, self.num_actions))
            following = self._child.flatten().take(edges)
        return following, self._raw.flatten().take(edges)

    def _expand(self, node: int, action: int) -> None:
        if bool(self._ended[node]):
            self._child[node, action], self._raw[node, action] = node, 0.0
            return
        root = self._root[node]
        if self._at[root] != node:
            self._replay(node)
        latent, raw, ended = self._step(root, action)
        self._child[node, action], self._raw[node, action] = self.num_nodes, raw
        self._at[root] = self.num_nodes
        self._add(root, (node, action), latent, ended)

    def _replay(self, node: int) -> None:
        """Brings the environment to a node again and checks that nothing has changed on the way."""
        prefix, place, root = [], node, self._root[node]
        while self._parent[place] is not None:
            prefix.append((place, self._parent[place][1]))
            place = self._parent[place][0]
        self._at[root] = None
        self._same(root, self._restart(root), False, [])
        for depth, (place, action) in enumerate(reversed(prefix), start=1):
            latent, _, ended = self._step(root, action)
            self._same(place, latent, ended, [a for _, a in prefix[::-1][:depth]])

    def _same(self, node: int, latent: list[float], ended: bool, path: list[int]) -> None:
        before = self._latent[node].tolist()
        if before != latent or bool(self._ended[node]) != ended:
            raise SimulatorError(
                expected=f"the same state after actions {tuple(path)} as before: {before}",
                got=f"{latent}" + (", ended" if ended else ""),
                cause="dynamics or starts are random; only deterministic environments can be replayed",
            )

    def _restart(self, root: int) -> list[float]:
        if self._episodes[root] is None:
            self._episodes[root] = self._openers[root]()
        return self._episodes[root].reset()

    def _step(self, root: int, action: int) -> tuple[list[float], float, bool]:
        self.steps_run += 1
        return self._episodes[root].step(action)

    def _add(self, root: int, parent: tuple[int, int] | None, latent: list[float], ended: bool) -> None:
        node = self.num_nodes
        if self._latent is None:
            self._latent = torch.empty(0, len(latent), dtype=torch.float64)
        if node == len(self._child):
            self._grow(max(64, node))
        self._root.append(root), self._parent.append(parent)
        self._latent[node] = torch.tensor(latent, dtype=torch.float64)
        self._ended[node] = ended

    def _grow(self, more: int) -> None:
        """Room for more nodes."""
        A, size = self._child.shape[1], self._latent.shape[1]
        self._child = torch.cat([self._child, torch.full((more, A), -1)])
        self._raw = torch.cat([self._raw, torch.zeros(more, A, dtype=torch.float64)])
        self._ended = torch.cat([self._ended, torch.zeros(more, dtype=torch.bool)])
        self._latent = torch.cat([self._latent, torch.zeros(more, size, dtype=torch.float64)])


class _Place:
    """A tree node as a key for `depth_first`: equal to every node with the same latent numbers."""

    def __init__(self, tree: ReplayTree, node: int):
        self.node = node
        self.key = (tuple(tree._latent[node].tolist()), bool(tree._ended[node]))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: _Place) -> bool:
        return self.key == other.key


def merged_graph(tree: ReplayTree, horizon: int) -> tuple[StateGraph, Tensor]:
    """The state graph below root 0, in which places of a layer with the same latent numbers are one state.

    Returns:
        The graph, in depth-first order, and one tree node per state [xi].

    Raises:
        GraphMismatchError: the latent numbers do not identify the state, as some random paths show.
    """
    actions = torch.arange(tree.num_actions)

    def moves(place: _Place) -> list[_Place]:
        nodes, _ = tree.step(torch.full_like(actions, place.node), actions)
        return [_Place(tree, node) for node in nodes.tolist()]

    graph, places = depth_first(_Place(tree, 0), moves, horizon)
    probes = torch.randint(tree.num_actions, (PROBES, horizon), generator=torch.Generator().manual_seed(0))
    nodes, states = torch.zeros(PROBES, dtype=torch.int64), graph.visited(probes)
    for step in range(horizon):
        for path, node, state in zip(probes.tolist(), nodes.tolist(), states[:, step].tolist(), strict=True):
            if _Place(tree, node) != places[state]:
                raise GraphMismatchError(
                    expected=f"latent numbers {places[state].key[0]} after actions {tuple(path[:step])}",
                    got=str(_Place(tree, node).key[0]),
                    cause="`latent` leaves out a part of the state, so different states look alike",
                )
        nodes, _ = tree.step(nodes, probes[:, step])
    return graph, torch.tensor([place.node for place in places])


def require_same(first: list, second: list, cause: str) -> None:
    """Raises SimulatorError unless two lists of traces agree in everything.

    A trace is a list of (actions, raw observation, latent numbers, raw reward, ended), from the start to a path's end.
    """
    for one, other in zip(first, second, strict=True):
        for before, after in zip(one, other, strict=True):
            if not _equal(before, after):
                raise SimulatorError(
                    expected=f"the same after actions {before[0]} of every reset: {_shown(before)}",
                    got=_shown(after),
                    cause=cause,
                )


def _equal(one: object, other: object) -> bool:
    """Whether two observations, or structures of them, are the same bits."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def _shown(seen: tuple) -> str:
    _, observation, latent, reward, ended = seen
    return f"{str(observation)[:60]}, latent {latent[:6]}, reward {reward:g}" + (", ended" if ended else "")
