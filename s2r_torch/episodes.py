"""Episodes: drawn, counted and checked at one door.

Algorithms reach simulators through few helpers only: `observe` a path's end, `try_actions` at a path's end, `rollout`
a policy; along tours of a known graph, what `tours.py` has. `Guard` counts episodes and their steps in a `Ledger` and
refuses what would spoil hours of work later: observations that are not finite, rewards outside [0, 1], a simulator that
dies. Reality has a door of its own (`deployment/live.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.base import ProblemSpec, Simulators
from s2r_torch.errors import ObservationError, RewardError, S2RError, SettingError, SimulatorError
from s2r_torch.given import refuse_kind, require_having, taking
from s2r_torch.graph import Path, after
from s2r_torch.held import faults_of, untouched
from s2r_torch.plain import require_count
from s2r_torch.rng import Seed
from s2r_torch.text import printable
from s2r_torch.workers.engines import SERIAL, Workers

Act = Callable[[int, Tensor], Tensor]  # (step, x [B, n, d]) -> actions [B, n]

REWARD_TOLERANCE = 1e-9


@dataclass
class Ledger:
    """How many episodes were drawn, and how many steps of environments they took, by purpose.

    A step is one action of one episode; an episode that is left at a path's end has as many as the path. What a slow
    simulator costs is its steps.
    """

    counts: Counter = field(default_factory=Counter)  # episodes
    steps: Counter = field(default_factory=Counter)

    def add(self, purpose: str, episodes: int) -> None:
        self.counts[purpose] += episodes

    def include(self, other: Ledger) -> None:
        """Adds all that another one counted elsewhere."""
        for name, counted in vars(other).items():
            getattr(self, name).update(counted)

    def walked(self, purpose: str, steps: int) -> None:
        self.steps[purpose] += steps

    def take_over(self, other: Ledger, purpose: str) -> None:
        """Adds all that another ledger counted, under one name."""
        self.add(purpose, other.counts.total())
        self.walked(purpose, other.steps.total())


class Recipe(Protocol):
    """How simulators are made again elsewhere."""

    def simulators(self) -> Simulators:
        """They, as before their first episode."""

    def select(self, indices: Sequence[int]) -> Recipe:
        """Of some of them."""


class Guard:
    """Simulators whose every episode is counted and checked, with rewards scaled to a total in [0, 1].

    What passes is copied, so that a simulator may write into the tensors that it returned or was given.

    Args:
        simulators: what to guard.
        ledger: where episodes are counted.
        purpose: what they are counted as, for example "explore".
        recipe: how they are made again where they travel to; None where nobody knows.
        workers: who takes on parts of them (workers/simulators.py).
    """

    def __init__(
        self,
        simulators: Simulators,
        ledger: Ledger,
        purpose: str,
        recipe: Recipe | None = None,
        workers: Workers = SERIAL,
    ):
        require_having("simulators", simulators, ("reset", "step", "select", "spec", "ids"), "simulators")
        self.inner, self.ledger, self.purpose = simulators, ledger, purpose
        self.recipe, self.workers = recipe, workers
        self.spec: ProblemSpec = simulators.spec
        self.ids = tuple(simulators.ids)
        self._total = torch.empty(0)  # [B, n] return of the running episodes
        self._actions: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.ids)

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        require_episodes(n)
        require_generators(generators, len(self))
        self.ledger.add(self.purpose, n * len(self.ids))
        self._total = torch.zeros(len(self.ids), n, dtype=torch.float64)
        self._actions = []
        return self._checked(_call(self.inner.reset, "reset", self.ids, n, generators))

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        self._check_actions(actions)
        self._actions.append(actions.clone())
        self.ledger.walked(self.purpose, actions.numel())
        x, reward = _two(_call(self.inner.step, "step", self.ids, actions.clone()), self.ids)
        reward = self._paid(reward)
        if x is None and len(self._actions) < self.spec.horizon:
            raise SimulatorError(
                expected=f"an episode of {self.spec.horizon} actions",
                got=f"its end after {len(self._actions)}",
                cause="an environment that ends early: pad it with an absorbing state that pays nothing",
            )
        return (None if x is None else self._checked(x)), reward

    def move(self, actions: Tensor) -> Tensor:
        """`step` for actions that are not an episode's last: the observations that follow."""
        x, _ = self.step(actions)
        if x is None:
            raise SettingError(
                expected=f"at most {self.spec.horizon - 1} actions before an observation",
                got=str(len(self._actions)),
                cause="an action path that is longer than an episode",
            )
        return x

    def select(self, indices: Sequence[int]) -> Guard:
        last, cause = len(self) - 1, "one of other simulators"
        rows = [require_count("an index of simulators", i, last, cause, least=0) for i in indices]
        recipe = self.recipe and self.recipe.select(rows)
        return Guard(self.inner.select(rows), self.ledger, self.purpose, recipe, self.workers)

    def for_purpose(self, purpose: str) -> Guard:
        """The same simulators, counted under another name."""
        return Guard(self.inner, self.ledger, purpose, self.recipe, self.workers)

    def apart(self) -> Guard:
        """The same simulators, counted in a ledger of their own."""
        return Guard(self.inner, Ledger(), self.purpose, self.recipe)

    def __reduce__(self):  # simulators travel as their recipe
        if self.recipe is None:
            raise TypeError("simulators that no registered family made cannot travel")
        return _arrived, (self.recipe, self.purpose)

    @property
    def named(self) -> str:
        """In words: "simulators 16, 17, 18, 19, ..."."""
        return _named(self.ids).removeprefix("one of ")

    def where(self, b: int, path: Path) -> str:
        """A place in words: "in simulator 17 after actions 0 1"."""
        return f"in simulator {self.ids[b]} {after(path)}"

    def _check_actions(self, actions: Tensor) -> None:
        require_actions(actions, self._total.shape, self.spec.num_actions)

    def _paid(self, reward: object) -> Tensor:
        """The scaled rewards [B, n], added to the totals."""
        reward = _rewards(reward) / self.spec.reward_scale
        if reward.shape != self._total.shape:
            raise RewardError(
                expected=f"rewards of shape {list(self._total.shape)}",
                got=str(list(reward.shape)),
                cause="one reward per simulator and episode is wanted",
            )
        self._total = self._total + reward
        bad = ~((reward >= -REWARD_TOLERANCE) & (self._total <= 1 + REWARD_TOLERANCE))
        if bool(bad.any()):
            b, i = bad.nonzero()[0].tolist()
            raise RewardError(
                expected="rewards >= 0 whose total over an episode is at most 1",
                got=f"reward {float(reward[b, i]):g}, total {float(self._total[b, i]):g} {self._where(b, i)}",
                cause="rewards are not scaled (give the family a reward_scale), or not finite",
            )
        return reward

    def _checked(self, x: Tensor) -> Tensor:
        _require_real("the simulator's sensor model", x)
        check_shape("observations", x, (*self._total.shape, self.spec.width), "the simulator's sensor model")
        x = x.detach().to("cpu", copy=True)
        if math.isfinite(float(x.sum())):  # a sum that is not may be of finite numbers, too
            return x
        bad = ~torch.isfinite(x).all(-1)
        if bool(bad.any()):
            b, i = bad.nonzero()[0].tolist()
            raise ObservationError(
                expected="finite observations",
                got=f"{int(bad.sum())} of {bad.numel()} not finite, the first {x[b, i].tolist()} {self._where(b, i)}",
                cause="a sensor model that divides by zero or a simulator that diverged",
            )
        return x

    def _where(self, b: int, i: int) -> str:
        return self.where(b, tuple(int(a[b, i]) for a in self._actions))


def _arrived(recipe: Recipe, purpose: str) -> Guard:
    """Simulators where they have travelled to; what they count is theirs."""
    return Guard(recipe.simulators(), Ledger(), purpose, recipe)


@dataclass(frozen=True, eq=False)
class Transitions:
    """Single decisions at one state: what TD-Eliminate learns from."""

    x: Tensor  # [B, n, d]
    actions: Tensor  # [B, n]
    rewards: Tensor  # [B, n]

    @staticmethod
    def joined(parts: Sequence[Transitions]) -> Transitions:
        """Those of several parts of the simulators."""
        return Transitions(*map(torch.cat, zip(*((p.x, p.actions, p.rewards) for p in parts), strict=True)))

    def by_action(self, num_actions: int) -> tuple[Tensor, Tensor]:
        """x `[B, A, n / A, d]` and rewards `[B, A, n / A]` of every action, all taken equally often."""
        in_turn = self.actions.argsort(dim=1, stable=True)
        x = self.x.gather(1, in_turn[..., None].expand_as(self.x))
        return x.unflatten(1, (num_actions, -1)), self.rewards.gather(1, in_turn).unflatten(1, (num_actions, -1))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Whole episodes of a policy."""

    x: Tensor  # [B, n, H, d]
    actions: Tensor  # [B, n, H]
    rewards: Tensor  # [B, n, H]

    @staticmethod
    def joined(parts: Sequence[Rollouts]) -> Rollouts:
        """Those of several parts of the simulators."""
        return Rollouts(*map(torch.cat, zip(*((p.x, p.actions, p.rewards) for p in parts), strict=True)))

    @property
    def returns(self) -> Tensor:
        """Total reward per episode [B, n], in [0, 1]."""
        return self.rewards.sum(-1)


@taking(simulators=object)
def observe(simulators: Guard, path: Path, n: int, seed: Seed) -> Tensor:
    """n observations [B, n, d] at the end of an action path, one episode each."""
    x = simulators.reset(n, seed.generators(simulators.ids))
    for a in path:
        x = simulators.move(torch.full(x.shape[:2], a, dtype=torch.int64))
    return x


@taking(simulators=object)
def try_actions(simulators: Guard, path: Path, n: int, seed: Seed) -> Transitions:
    """n uniformly random actions at the end of a path, with their rewards; one episode each (Algorithm 5, line 3)."""
    x = observe(simulators, path, n, seed)
    generators = seed.child("actions").generators(simulators.ids)
    actions = torch.stack([torch.randint(simulators.spec.num_actions, (n,), generator=g) for g in generators])
    _, rewards = simulators.step(actions)
    return Transitions(x, actions, rewards)


@taking(simulators=object)
def rollout(simulators: Guard, act: Act, n: int, seed: Seed, see: Callable[[Tensor], Tensor] = lambda x: x) -> Rollouts:
    """n whole episodes of a policy in every simulator; `see` says what is kept of readings, which may be large."""
    x = simulators.reset(n, seed.generators(simulators.ids))
    xs, actions, rewards = [], [], []
    for step in range(simulators.spec.horizon):
        xs.append(see(x))
        with untouched("a policy", x), faults_of("a policy to act", "a fault in its own code"):
            actions.append(act(step, x))
        following, reward = simulators.step(actions[-1])
        actions[-1] = actions[-1].clone()  # it may be a buffer that is used again
        rewards.append(reward)
        x = x if following is None else following  # nothing follows the last action
    return Rollouts(torch.stack(xs, 2), torch.stack(actions, 2), torch.stack(rewards, 2))


def require_actions(actions: object, shape: Sequence[int], num_actions: int, of: str = "") -> None:
    """Raises SettingError unless these are actions 0 .. A-1 of that shape, int64; `of` says whose."""
    whose = of and f" from {of}"
    if not isinstance(actions, Tensor) or actions.shape != tuple(shape) or actions.dtype != torch.int64:
        raise SettingError(
            expected=f"int64 actions of shape {list(shape)}{whose}",
            got=f"{actions.dtype} of shape {list(actions.shape)}" if isinstance(actions, Tensor) else _kind(actions),
            cause="action values instead of their argmax, a missing axis, or a step before reset",
        )
    if actions.numel() and not 0 <= int(actions.min()) <= int(actions.max()) < num_actions:
        raise SettingError(
            expected=f"actions in 0 .. {num_actions - 1}{whose}",
            got=f"{int(actions.min())} .. {int(actions.max())}",
            cause="a policy made for another problem",
        )


def require_generator(generator: object) -> torch.Generator:
    """Returns it, or raises SettingError unless it is one of torch's generators."""
    if not isinstance(generator, torch.Generator):
        refuse_kind("generator", generator, "Generator", "a seed: torch.Generator().manual_seed(seed)")
    return generator


def require_generators(generators: Sequence[torch.Generator], count: int) -> None:
    """Raises SettingError unless there is one generator per simulator."""
    listed = isinstance(generators, Sequence) and all(isinstance(g, torch.Generator) for g in generators)
    if not listed or len(generators) != count:
        got = str(len(generators)) if listed else _kind(generators)
        cause = "another batch's streams, or one for all: Seed.generators(ids) makes them"
        raise SettingError(expected=f"{count} generators, one per simulator, in a list", got=got, cause=cause)


def require_episodes(n: int) -> None:
    """Raises SettingError unless it is a number of episodes."""
    if not isinstance(n, int | np.integer) or n < 1:
        raise SettingError(expected="n >= 1 episodes", got=printable(repr(n)), cause="an empty budget")


def _require_real(cause: str, x: Tensor) -> None:
    """Raises ObservationError unless x is a dense tensor of real numbers."""
    if not isinstance(x, Tensor):
        pair = isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], dict)
        cause = "Gymnasium's (observation, info): return the observation alone" if pair else cause
    elif x.layout == torch.strided and x.dtype in (torch.float32, torch.float64):
        return
    raise ObservationError(expected="observations as a float32 or float64 tensor", got=_kind(x), cause=cause)


def _rewards(reward: object) -> Tensor:
    """Rewards as a dense float64 tensor of its own."""
    try:
        given = torch.as_tensor(reward)
        if given.layout != torch.strided or given.is_complex():
            raise TypeError
        return given.detach().to("cpu", torch.float64, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RewardError(
            expected="rewards as a tensor of real numbers",
            got=_kind(reward),
            cause="a step that returns no reward, or one in another form",
        ) from error


def _two(result: object, ids: Sequence) -> tuple:
    """What `step` returned, if it is two things."""
    got, cause = _kind(result), "a step without a return"
    if isinstance(result, tuple | list):
        if len(result) == 2:
            return tuple(result)
        got, cause = f"{got} of {len(result)}", "Gymnasium's step, which returns four or five values"
    raise SimulatorError(
        expected="two values from step: the next observations and the rewards",
        got=got,
        cause=f"{cause}, in {_named(ids)}",
    )


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else type(value).__name__
    return str(value.dtype) + ("" if value.layout == torch.strided else f", {value.layout}")


def _call(function: Callable, name: str, ids: Sequence, *args):
    """Calls a simulator; whatever it raises becomes a SimulatorError that names it."""
    try:
        return function(*args)
    except S2RError:
        raise
    except (Exception, SystemExit) as error:  # an exit of user code is no success of ours
        raise SimulatorError(
            expected=f"{name} to succeed",
            got=printable(f"{type(error).__name__}: {error}"),
            cause=f"a fault in {_named(ids)}",
        ) from error


def _named(ids: Sequence) -> str:
    shown = ", ".join(str(i) for i in ids[:4]) + (", ..." if len(ids) > 4 else "")
    return f"simulator {shown}" if len(ids) == 1 else f"one of simulators {shown}"
