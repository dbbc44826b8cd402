"""Replaying deterministic episodes: every action path is run once, whatever the number of episodes that take it.

A `ReplayTree` has a node per action prefix that was needed so far, so that batches of episodes are index tensors. Its
correctness rests on determinism, which is checked whenever a prefix is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from s2r_torch.errors import GraphMismatchError, SettingError, SimulatorError
from s2r_torch.families.layered import depth_first
from s2r_torch.families.replay.sameness import same
from s2r_torch.graph import StateGraph

PROBES = 32  # random paths that a merged graph is checked on
ROUNDING = 1e-13  # of the largest number of its kind: sums of the same numbers differ by less
COMPARED = 2**22  # numbers of states that are compared at once: 32 MiB
MOST_PLACES = 2048  # different places that are looked at before a graph is given up


class Episode(Protocol):
    """One environment that runs one episode at a time; after its end it stays where it is and pays nothing."""

    @property
    def observation(self) -> object:
        """The raw one."""

    @property
    def source(self) -> Any:
        """What generators of its own can be reached from."""

    def reset(self) -> list[float]:
        """Starts afresh; returns the latent numbers of the start."""

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """The next latent numbers, the raw reward (NaN if it is no number), and whether the episode has ended."""

    def move(self, action: int) -> object:
        """As `step`, and looks at no reward; whatever it returns is not used."""

    def latent(self) -> list[float]:
        """The latent numbers of the present state."""

    def close(self) -> None:
        """Frees whatever the environment holds."""


class ReplayTree:
    """What happens along every action path, in one environment or several.

    Args:
        openers: one per root; called when its environment is first needed.
        num_actions: A.
    """

    def __init__(self, openers: Sequence[Callable[[], Episode]], num_actions: int):
        self.num_actions = num_actions
        self._openers = list(openers)
        self._episodes: list[Episode | None] = [None] * len(openers)  # opened when first needed
        self._at: list[int | None] = [None] * len(openers)  # the node where each environment stands
        self._root: list[int] = []
        self._parent: list[tuple[int, int] | None] = []  # (node, action)
        self._child = torch.empty(0, num_actions, dtype=torch.int64)
        self._raw = torch.empty(0, num_actions, dtype=torch.float64)
        self._ended = torch.empty(0, dtype=torch.bool)
        self._latent = torch.empty(0, 0, dtype=torch.float64)  # its columns are known with the first node
        self._place = torch.empty(0, dtype=torch.int64)
        self._places: dict[tuple, int] = {}  # (latent numbers, ended) -> place
        self.steps_run = 0  # steps taken in real environments
        for root in range(len(openers)):
            self._add(root, None, self._restart(root), ended=False)
            self._at[root] = root

    @property
    def num_nodes(self) -> int:
        return len(self._parent)

    @property
    def num_places(self) -> int:
        """How many different latent numbers were seen."""
        return len(self._places)

    def close(self) -> None:
        """Closes all environments; whatever is needed later is opened again."""
        for root, episode in enumerate(self._episodes):
            if episode is not None:
                self._episodes[root], self._at[root] = None, None
                episode.close()

    def place(self, nodes: Tensor) -> Tensor:
        """The numbers [...] of the places that nodes [...] are at; nodes with the same latent numbers share one."""
        return self._place.take(nodes)

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
        while (parent := self._parent[place]) is not None:
            prefix.append((place, parent[1]))
            place = parent[0]
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
        return self._episode(root).reset()

    def _step(self, root: int, action: int) -> tuple[list[float], float, bool]:
        self.steps_run += 1
        return self._episode(root).step(action)

    def _episode(self, root: int) -> Episode:
        """The environment of a root; opened now, unless it is open."""
        episode = self._episodes[root]
        if episode is None:
            episode = self._episodes[root] = self._openers[root]()
        return episode

    def _add(self, root: int, parent: tuple[int, int] | None, latent: list[float], ended: bool) -> None:
        node = self.num_nodes
        if node == 0:
            self._latent = torch.empty(0, len(latent), dtype=torch.float64)
        if len(latent) != self._latent.shape[1]:
            raise SimulatorError(
                expected=f"{self._latent.shape[1]} latent numbers in every state, as at the first start",
                got=str(len(latent)),
                cause="states of different lengths: pad them, or give latent=(env, observation) -> numbers",
            )
        if node == len(self._child):
            self._grow(max(64, node))
        self._root.append(root)
        self._parent.append(parent)
        self._latent[node] = torch.tensor(latent, dtype=torch.float64)
        self._ended[node] = ended
        self._place[node] = self._places.setdefault((tuple(self._latent[node].tolist()), ended), len(self._places))

    def _grow(self, more: int) -> None:
        """Room for more nodes."""
        A, size = self._child.shape[1], self._latent.shape[1]
        self._child = torch.cat([self._child, torch.full((more, A), -1)])
        self._raw = torch.cat([self._raw, torch.zeros(more, A, dtype=torch.float64)])
        self._ended = torch.cat([self._ended, torch.zeros(more, dtype=torch.bool)])
        self._place = torch.cat([self._place, torch.zeros(more, dtype=torch.int64)])
        self._latent = torch.cat([self._latent, torch.zeros(more, size, dtype=torch.float64)])


class _Place:
    """A tree node as a key for `depth_first`: equal to every node with the same latent numbers."""

    def __init__(self, tree: ReplayTree, node: int):
        self.node, self.place = node, int(tree._place[node])

    def __hash__(self) -> int:
        return self.place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.place == other.place


def merged_graph(tree: ReplayTree, horizon: int, root: int = 0) -> tuple[StateGraph, Tensor]:
    """The state graph below a root, in which places of a layer with the same latent numbers are one state.

    Returns:
        The graph, in depth-first order, and one tree node per state [xi].

    Raises:
        GraphMismatchError: the latent numbers do not identify the state, as some random paths show.
        SettingError: there are thousands of states.
    """
    actions = torch.arange(tree.num_actions)
    visited = 0

    def moves(place: _Place) -> list[_Place]:
        nonlocal visited
        visited += 1
        if visited > MOST_PLACES:
            raise SettingError(
                expected=f"at most {MOST_PLACES} states in {horizon} layers",
                got="more",
                cause="`latent` has numbers that never come back to the same value (a clock, a position that is not "
                "rounded), so that action paths do not merge; or the horizon is too long",
            )
        nodes, _ = tree.step(torch.full_like(actions, place.node), actions)
        return [_Place(tree, node) for node in nodes.tolist()]

    graph, places = depth_first(_Place(tree, root), moves, horizon)
    nodes = torch.tensor([place.node for place in places])
    _require_apart(tree, graph, nodes)
    _require_states(tree, graph, nodes, root)
    return graph, nodes


def _require_apart(tree: ReplayTree, graph: StateGraph, of_state: Tensor) -> None:
    """Raises GraphMismatchError where states of a layer differ by no more than sums of the same numbers may."""
    latent = tree.latent(of_state)
    rounding = ROUNDING * latent.abs().amax(0)
    for step in range(graph.horizon):
        layer = (graph.layer == step).nonzero().flatten()
        for some in layer.split(max(1, COMPARED // max(1, latent[layer].numel()))):
            gap = (latent[some, None] - latent[None, layer]).abs()  # [some, k, l]
            near = ((gap <= rounding).all(-1) & (gap > 0).any(-1)).nonzero().tolist()
            if near:
                one, other = int(some[near[0][0]]), int(layer[near[0][1]])
                raise GraphMismatchError(
                    expected="states that are the same or differ by more than rounding does",
                    got=f"{latent[one].tolist()} after actions {graph.paths[one]}, {latent[other].tolist()} after "
                    f"{graph.paths[other]}",
                    cause="fractions summed in another order; count whole steps, or round(...) what step returns",
                )


def _require_states(tree: ReplayTree, graph: StateGraph, of_state: Tensor, root: int) -> None:
    """Raises GraphMismatchError unless random paths find the places and pay the rewards that the graph says."""
    horizon = graph.horizon
    probes = torch.randint(tree.num_actions, (PROBES, horizon), generator=torch.Generator().manual_seed(0))
    nodes, states = torch.full((PROBES,), root), graph.visited(probes)
    for step in range(horizon):
        known = of_state[states[:, step]]
        wrong = (tree.place(nodes) != tree.place(known)).nonzero().flatten().tolist()
        if wrong:
            i = wrong[0]
            raise GraphMismatchError(
                expected=f"latent numbers {tree.latent(known[i]).tolist()} after actions "
                f"{tuple(probes[i, :step].tolist())}",
                got=str(tree.latent(nodes[i]).tolist()),
                cause="`latent` leaves out a part of the state, so different states look alike",
            )
        _, wanted = tree.step(known, probes[:, step])
        nodes, raw = tree.step(nodes, probes[:, step])
        for i, (one, other) in enumerate(zip(wanted.tolist(), raw.tolist(), strict=True)):
            if not same(one, other):
                raise GraphMismatchError(
                    expected=f"reward {one:g} after actions {tuple(probes[i, : step + 1].tolist())}, as on another "
                    "way to the same latent numbers",
                    got=f"{other:g}",
                    cause="`latent` leaves out a part of the state, on which rewards depend; or rewards are random: "
                    "give their mean",
                )
