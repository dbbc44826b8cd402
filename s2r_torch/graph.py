"""The state graph that every environment shares, and action paths: how they are walked, valued, pruned and told."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.errors import GraphMismatchError, SettingError
from s2r_torch.text import printable

LONG = 16  # actions, from which a path is told in runs

Path = tuple[int, ...]

START = 0  # the state that episodes begin in


@dataclass(frozen=True, eq=False)
class StateGraph:
    """The latent transition graph T, shared by every environment, with states in depth-first order.

    Args:
        next_state: `[xi, A]` int64, -1 for states of the last layer, and where an action leads out of a pruned graph.
        layer: `[xi]` int64, the step 0 .. H-1 of each state.
        paths: one action path per state that ends there; `paths[0] == ()`.
    """

    next_state: Tensor  # [xi, A]
    layer: Tensor  # [xi]
    paths: tuple[Path, ...]  # [xi]

    def __post_init__(self):
        object.__setattr__(self, "paths", tuple(map(tuple, self.paths)))
        for name in ("next_state", "layer"):
            part = getattr(self, name)
            if not (isinstance(part, Tensor) and part.dtype == torch.int64):
                got, cause = str(getattr(part, "dtype", type(part).__name__)), "an array: torch.as_tensor(...).long()"
                raise SettingError(expected=f"{name} of a state graph as an int64 tensor", got=got, cause=cause)
        wrong = self._wrong_sizes() or self._wrong_edges()
        if wrong:
            expected = f"a graph of {len(self.paths)} states with {wrong}"
            raise SettingError(expected=expected, got="another", cause="states out of order, or a layer left out")

    def _wrong_sizes(self) -> str:
        """What the tensors are not, in words; empty where they are as they should be."""
        xi, T, layer = len(self.paths), self.next_state, self.layer
        if T.ndim != 2 or not T.shape[1] or not len(T) == xi >= 1 or layer.shape != (xi,):
            return f"next_state [{xi}, A] and layer [{xi}]"
        ordered = not self.paths[0] and layer.tolist() == [len(path) for path in self.paths]
        return "" if ordered else "paths of as many actions as their layer, the first one ()"

    def _wrong_edges(self) -> str:
        """The same of where edges and paths lead."""
        T, last = self.next_state, self.layer == self.layer.max()
        on = T[~last]
        if not bool((T[last] == -1).all()) or not bool(((on >= -1) & (on < len(T))).all()):
            return "next_state -1 in the last layer, and a state or -1 elsewhere"
        if not bool((on >= 0).any(1).all()):
            return "an action to a next state in every state before the last layer"
        if not bool((self.layer[on] == self.layer[~last, None] + 1)[on >= 0].all()):
            return "edges that lead to the next layer"
        try:
            ends = [self.end(path) for path in self.paths]
        except SettingError:
            ends = []
        return "" if ends == [*range(len(T))] else "paths that end in their states"

    @property
    def num_states(self) -> int:
        return len(self.paths)

    @property
    def num_actions(self) -> int:
        return self.next_state.shape[1]

    @property
    def horizon(self) -> int:
        return int(self.layer.max()) + 1

    @property
    def pruned(self) -> bool:
        """Whether actions lead out of it before the last layer."""
        return bool((self.next_state[self.layer < self.layer.max()] < 0).any())

    @property
    def states_per_layer(self) -> list[int]:
        return torch.bincount(self.layer, minlength=self.horizon).tolist()

    def states_of(self, step: int) -> list[int]:
        """The states of one layer, in depth-first order."""
        return (self.layer == step).nonzero().flatten().tolist()

    def backward(self) -> Iterator[tuple[int, int]]:
        """(step, state) of every state, layer by layer from the last one: successors come before those they follow."""
        for step in reversed(range(self.horizon)):
            for state in self.states_of(step):
                yield step, state

    def values_after(self, V: Tensor, states: Sequence[int]) -> Tensor:
        """V [..., xi] where every action of some states leads [..., S, A]; 0 after the last layer, and outside."""
        following = self.next_state[states]
        return torch.where(following >= 0, V[..., following.clamp(min=0)], 0.0)

    def best_totals(self, reward: Tensor) -> tuple[Tensor, Tensor]:
        """The largest total from every state on [..., xi], and its first action [..., xi], for reward [..., xi, A]."""
        check_shape("rewards", reward, (*reward.shape[:-2], *self.next_state.shape), "of other states or actions")
        V = reward.new_zeros(reward.shape[:-1])
        best = torch.zeros(reward.shape[:-1], dtype=torch.int64)
        for step in reversed(range(self.horizon)):
            states = self.states_of(step)
            V[..., states], best[..., states] = (reward[..., states, :] + self.values_after(V, states)).max(-1)
        return V, best

    def end(self, path: Path) -> int:
        """The state at the end of an action path of length at most H - 1."""
        state = 0
        for a in path:
            if state < 0 or not 0 <= a < self.num_actions:
                expected = f"at most {self.horizon - 1} actions in 0 .. {self.num_actions - 1}"
                raise SettingError(expected=expected, got=printable(path), cause="a path of another problem")
            state = int(self.next_state[state, a])
        if state < 0:
            cause = "a whole episode, not a path; or a path that leads out of a pruned graph"
            raise SettingError(expected=f"at most {self.horizon - 1} actions", got=printable(path), cause=cause)
        return state

    def walked(self, leaving: Sequence[Tensor]) -> Tensor:
        """How often each state is visited [..., xi], by shares of actions: 1 at the start, at most 1 in every layer.

        Args:
            leaving: by layer, `[..., S, A]` the share of every action in the layer's states.
        """
        visits = leaving[0].new_zeros(*leaving[0].shape[:-2], self.num_states)
        visits[..., 0] = 1
        for layer, shares in enumerate(leaving[:-1]):
            states = self.states_of(layer)
            for a in range(self.num_actions):
                following = self.next_state[states, a]
                visits.index_add_(-1, following.clamp(min=0), visits[..., states] * shares[..., a] * (following >= 0))
        return visits

    def visited(self, actions: Tensor) -> Tensor:
        """The states [..., H] that action sequences [..., >= H-1] pass through, the start included; -1 once outside."""
        states = [torch.zeros(actions.shape[:-1], dtype=torch.int64)]
        for step in range(self.horizon - 1):
            here = states[-1]
            states.append(torch.where(here >= 0, self.next_state[here, actions[..., step]], -1))
        return torch.stack(states, dim=-1)

    def best_lists(self, reward: Tensor) -> Tensor:
        """The action lists [M, H] of the largest total, for each of M rewards [M, xi, A]."""
        best, here, actions = self.best_totals(reward)[1], torch.zeros(len(reward), dtype=torch.int64), []
        for _ in range(self.horizon):
            actions.append(best.gather(1, here[:, None]).squeeze(1))
            here = self.next_state[here, actions[-1]].clamp(min=0)  # nothing follows the last action
        return torch.stack(actions, 1)

    def totals(self, reward: Tensor, lists: Tensor) -> Tensor:
        """What lists [K, H] earn [M, K], for M rewards [M, xi, A]."""
        states = self.visited(lists)
        return (reward[:, states.clamp(min=0), lists] * (states >= 0)).sum(-1)

    def restricted_to(self, states: Collection[int]) -> StateGraph:
        """The graph of these states, and of all edges between them; actions that lead elsewhere lead to -1.

        States are numbered as a depth-first search finds them among themselves.

        Args:
            states: the start among them; each reached by a path of them, and followed by one but in the last layer.
        """
        kept = set(states)
        paths: dict[int, Path] = {0: ()}
        todo = [(0, a) for a in reversed(range(self.num_actions))]
        while todo:
            s, a = todo.pop()
            t = int(self.next_state[s, a])
            if t in kept and t not in paths:
                paths[t] = (*paths[s], a)
                todo.extend((t, b) for b in reversed(range(self.num_actions)))
        number = torch.full((self.num_states + 1,), -1)  # the last one for -1
        number[[*paths]] = torch.arange(len(paths))
        return StateGraph(number[self.next_state[[*paths]]], self.layer[[*paths]], tuple(paths.values()))

    def require_same(self, other: StateGraph) -> None:
        """Raises GraphMismatchError unless both graphs have the same states in the same order."""
        if self.next_state.shape != other.next_state.shape or not bool((self.next_state == other.next_state).all()):
            raise GraphMismatchError(
                expected=f"the graph found before: {self.num_states} states, per layer {self.states_per_layer}",
                got=f"{other.num_states} states, per layer {other.states_per_layer}",
                cause="a merge went wrong; raise n_merge, or check that theta never changes the dynamics",
            )


def spelt(actions: Path) -> str:
    """A sequence of actions in words: "0 1 1"."""
    return " ".join(map(str, actions)) or "(none: look at the start only)"


def after(path: Path) -> str:
    """Where an action path leads, in words: "at the start", "after actions 0 1"; a long one in runs of one action."""
    if not path:
        return "at the start"
    return f"after actions {', '.join(_runs(path)) if len(path) > LONG else spelt(path)}"


def told(path: Path) -> str:
    """An action path as messages name it: "(0, 1)"; a long one in runs of one action.

    >>> told((0, 1)), told((0,) * 20 + (1, 0, 0))
    ('(0, 1)', '(20 times 0, 1, 2 times 0)')
    """
    return f"({', '.join(_runs(path))})" if len(path) > LONG else str(path)


def _runs(path: Path) -> list[str]:
    """Actions, and how often each is taken in a row."""
    runs = [(a, len(list(same))) for a, same in itertools.groupby(path)]
    return [f"{count} times {a}" if count > 1 else str(a) for a, count in runs]
