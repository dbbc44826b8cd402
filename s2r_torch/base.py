"""The vocabulary: problems, simulators, worlds without rewards, state graphs.

Shape legend, used in every docstring:

    B  simulators (index b)            xi  discovered states (index s)     H  horizon (steps 0 .. H-1)
    F  predictors (index f)            A   actions (index a)               G  points of the density grid
    n  samples or episodes             d   observation dimension           k  numbers in theta
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.errors import GraphMismatchError, SettingError
from s2r_torch.plain import as_python, is_real, real_numbers, require_count
from s2r_torch.text import printable

LONG = 16  # actions, from which a path is told in runs

Path = tuple[int, ...]

START = 0  # the state that episodes begin in

MOST_LETTERS = 100  # of a sensor's name
MOST_ACTIONS = 4096
CUT_FINE = "a continuous action cut fine: list a few"
MOST_STEPS = 400  # H: states are found depth first, by calls inside each other
EVERY_TICK = "a decision at every tick: let one action stand for several steps"


@dataclass(frozen=True)
class ProblemSpec:
    """What is known of a problem before anything is drawn (paper section 3.1).

    Args:
        num_actions: A.
        horizon: H, the number of decisions in every episode.
        max_states_per_layer: S, an upper bound.
        obs_dim: d.
        low: lower edge of the observation box, per coordinate.
        high: upper edge of the observation box, per coordinate.
        obs_names: what the coordinates are called, the columns of recorded episodes; defaults to x_1 .. x_d.
        reward_scale: raw rewards are divided by it, so that an episode's total lies in [0, 1] (theory.md C7).
        zeta: separation of states in sup norm (Assumption 5), where the family knows it.
        reward_width: width of the range of a single scaled reward, rho_R in (0, 1].
        beside: numbers of a reading after those d, which predictors see and densities do not: an encoder's.

    Raises:
        SettingError: a size below 1, an empty box, a number that is not finite, or a name that no file keeps as it is.
    """

    num_actions: int
    horizon: int
    max_states_per_layer: int
    obs_dim: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    obs_names: tuple[str, ...] = ()
    reward_scale: float = 1.0
    zeta: float | None = None
    reward_width: float = 1.0
    beside: int = 0

    def __post_init__(self):
        for name in ("num_actions", "max_states_per_layer", "obs_dim"):
            object.__setattr__(self, name, require_count(name, getattr(self, name)))
        object.__setattr__(self, "beside", require_count("beside", self.beside, least=0))
        object.__setattr__(self, "horizon", require_count("horizon", self.horizon, MOST_STEPS, EVERY_TICK))
        for name in ("low", "high"):
            object.__setattr__(self, name, real_numbers(name, getattr(self, name)))
        if not len(self.low) == len(self.high) == self.obs_dim:
            got, cause = f"{len(self.low)} and {len(self.high)}", "obs_dim and the observation box disagree"
            expected = f"{self.obs_dim} lower and upper bounds, one per coordinate"
            raise SettingError(expected=expected, got=got, cause=cause)
        if not all(-math.inf < lo < hi < math.inf for lo, hi in zip(self.low, self.high, strict=True)):
            got, cause = f"{self.low}, {self.high}", "an unbounded sensor"
            raise SettingError(expected="finite bounds with low < high", got=got, cause=cause)
        self._require_positive("reward_scale", math.inf, "a sign or unit error")
        self._require_positive("reward_width", 1, "the width before scaling")
        if self.zeta is not None:
            self._require_positive("zeta", math.inf, "None where nobody knows it")
        given: Any = as_python(self.obs_names)
        names = given if isinstance(given, tuple | list) else (given,)
        names = tuple(f"x_{i + 1}" for i in range(self.obs_dim)) if names in ((), [], ("",), (None,)) else tuple(names)
        object.__setattr__(self, "obs_names", names)
        _check_names(self.obs_names, self.obs_dim)

    @property
    def width(self) -> int:
        """Numbers of a reading, d + beside."""
        return self.obs_dim + self.beside

    def placed(self, x: Tensor) -> Tensor:
        """What densities live on, [..., d] of readings [..., d + beside]."""
        return x[..., : self.obs_dim] if self.beside else x

    def widened(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Readings [..., d + beside] at places [..., d], with one value beside."""
        return torch.nn.functional.pad(x, (0, self.beside), value=value)

    def _require_positive(self, name: str, most: float, cause: str) -> None:
        """Keeps a number above 0, at most `most`, as Python's; raises SettingError for anything else."""
        value: Any = as_python(getattr(self, name))
        if not (is_real(value) and 0 < value <= most and math.isfinite(value)):
            expected = f"{name} > 0" if most == math.inf else f"{name} in (0, {most}]"
            raise SettingError(expected=expected, got=printable(getattr(self, name)), cause=cause)
        object.__setattr__(self, name, value)


RESERVED = ("episode", "step", "action")  # columns of recorded episodes


def _check_names(names: tuple[str, ...], d: int) -> None:
    """Raises SettingError unless names are such that tables, spreadsheets and terminals keep as they are."""
    if len(names) != d:
        raise SettingError(expected=f"{d} obs_names, one per coordinate", got=f"{len(names)}", cause="a name too few")
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name or name != name.strip():
            problem = "a text without blanks at its ends"
        elif not name.isprintable() or '"' in name or len(name) > MOST_LETTERS:
            problem = f"at most {MOST_LETTERS} printable characters without quotation marks"
        elif name[0] in "=+-@#%/":
            problem = "a name that is no formula, number or comment"
        elif name in RESERVED:
            problem = f"a name other than {', '.join(RESERVED)}"
        elif name in names[:i]:
            problem = "different names"
        else:
            continue
        cause = "names that a file, a spreadsheet or a terminal would take for something else"
        got = printable(repr(name), 60)
        raise SettingError(expected=f"obs_names that columns of a table can have: {problem}", got=got, cause=cause)


@runtime_checkable
class Simulators(Protocol):
    """B simulators, stepped together; each runs n episodes at once.

    `reset` starts n fresh episodes in every simulator and keeps the generators (one per simulator, consumed) for
    their whole length. After the last of the H actions `step` returns None for the observation.
    Use through `episodes.Guard`, which counts and checks; never call `reset` and `step` directly.
    """

    spec: ProblemSpec
    ids: tuple[int, ...]  # [B] stable names of the simulators, which their random streams derive from

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Starts n episodes in every simulator; returns x [B, n, d], float64."""

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        """Takes actions [B, n] (int64); returns the next x [B, n, d] or None, and raw rewards r [B, n]."""

    def select(self, indices: Sequence[int]) -> Simulators:
        """The simulators at these positions, with their ids."""


@runtime_checkable
class UnlabelledWorld(Protocol):
    """Reality: it shows observations and has no reward at all."""

    spec: ProblemSpec

    def reset(self, n: int) -> Tensor:
        """Starts n episodes; returns x [n, d], float64."""

    def step(self, actions: Tensor) -> Tensor:
        """Takes actions [n] (int64); returns the next x [n, d]. Called at most H - 1 times per episode."""


class PredictorGroup(Protocol):
    """Members of the class F that are evaluated together; all share one state graph, density grid and horizon.

    A predictor sees the densities of all states, each on the grid of its own layer, and the observation with its step.
    """

    size: int  # number of members

    def condition(self, D: Tensor, readings: float | None = None) -> Any:
        """Everything that depends on D [B, xi, G] alone, computed once and cached by the caller.

        Args:
            D: the densities.
            readings: how many readings are behind the density of a state, the geometric mean over states; None for as
                many as the members were ever shown. They may tell a noisy density by it.
        """

    def q(self, conditioned: Any, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) in [0, 1] for every member, simulator, sample and action: x [B, n, d] -> [size, B, n, A]."""

    def subset(self, members: Sequence[int]) -> PredictorGroup:
        """The group of these members only, physically smaller."""

    def lipschitz_bound(self) -> Tensor:
        """A certified bound [size], float64, on |f(D, x, a) - f(D', x, a)| / max |D - D'|, uniform in (x, a).

        Infinite where there is no certificate.
        """

    def recipe(self) -> dict:
        """JSON values from which `from_recipe` of the registered `kind` in it rebuilds these members."""

    def tensors(self) -> dict[str, Tensor]:
        """All numbers of these members that the recipe leaves out, by name."""


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
