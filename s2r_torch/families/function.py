"""A family from one function: `step(theta, state, action) -> (state, reward)`, in plain Python or on batches.

>>> from s2r_torch.families.sensors import AffineSensor, uniform_prior
>>> def step(theta, place, action):
...     place = min(place + action, 2)
...     return place, theta.w if place == 2 else 0.0, place == 2
>>> family = FunctionFamily(
...     name="walk", step=step, start=0, num_actions=3, theta_names=("w",), prior=uniform_prior((0.0, 1.0)),
...     sensor=AffineSensor(("x",), width=lambda theta: 0.2 + 0.2 * theta[:, 0]), horizon=2,
... )
>>> family.spec.max_states_per_layer, family.bernoulli_rewards, family.spec.low[0] < -0.2
(3, True, True)
"""

from __future__ import annotations

import copy
import functools
import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from s2r_torch.errors import ObservationError, RewardError, SettingError, SimulatorError
from s2r_torch.families.contract import names_of, plain_number, truth, users
from s2r_torch.families.replay.family import Payoff, Prior, ReplayFamily
from s2r_torch.families.replay.simulators import Moves
from s2r_torch.families.sensors import Sensor
from s2r_torch.given import taking
from s2r_torch.plain import real_numbers
from s2r_torch.text import printable

State = Any  # a number, or a tuple or list of numbers: a user's
Step = Callable[[tuple, State, int], tuple]  # (theta, state, action) -> (state, reward) or (state, reward, ended)
BatchedStep = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

MOST_THETA = 4096  # whose mean rewards are remembered


class FunctionFamily(ReplayFamily):
    """A family from a plain Python function.

    Args:
        name: what the family is called; an identifier.
        step: (theta, state, action) -> (state, mean reward), or with a third value: whether the episode has ended.
            theta is a named tuple of floats, actions are 0 .. A-1, a state is a number or a tuple of numbers. The next
            state must not depend on theta (unless `shared_dynamics` is False), the reward may; nothing is random.
        start: the state that every episode starts in.
        num_actions: A.
        prior: draws theta [n, k]; for example `uniform_prior`.
        theta_names: what the k numbers are.
        sensor: theta and the numbers of a state -> reading; for example an `AffineSensor`.
        horizon: H; None takes the number of steps after which every episode has ended.
        max_states_per_layer: S, an upper bound; None counts the states.
        bernoulli_rewards: pay reward_scale * Bernoulli(mean / reward_scale) instead of the mean itself; None does so
            where at most one step of an episode pays.
        reward_scale: rewards are divided by it; None takes 1, or the largest total and a margin
            where that is not in 1/2 .. 1.
        shared_dynamics: theta does not change where actions lead (checked on a sample).
        settings: keyword arguments (JSON values) that rebuild this family.

    Raises:
        SettingError: the function cannot be used, or nothing can be proposed; the message says why.
        SimulatorError: the function raised.
    """

    @taking(name=object)
    def __init__(
        self,
        *,
        name: str,
        step: Step,
        start: State,
        num_actions: int,
        prior: Prior,
        theta_names: Sequence[str],
        sensor: Sensor,
        horizon: int | None = None,
        max_states_per_layer: int | None = None,
        bernoulli_rewards: bool | None = None,
        reward_scale: float | None = None,
        shared_dynamics: bool = True,
        settings: dict | None = None,
    ):
        dynamics = FunctionDynamics(step, start, num_actions, names_of(theta_names), shared_dynamics)
        super().__init__(
            name=name,
            prior=prior,
            theta_names=theta_names,
            sensor=sensor,
            dynamics=dynamics,
            payoff=Payoff(dynamics.rewards, bernoulli_rewards, reward_scale),
            horizon=horizon,
            max_states_per_layer=max_states_per_layer,
            settings=settings,
        )


class BatchedFamily(ReplayFamily):
    """A family from a function of tensors.

    Args:
        step: (theta [B, k], states [B, n, l], actions [B, n]) -> (next states [B, n, l], mean rewards [B, n]), tensors
            or arrays. Next states must not depend on theta (unless `shared_dynamics` is False); nothing is random.
        start: the l numbers of the state that every episode starts in.

    The others are those of `FunctionFamily`; a horizon is needed, since such episodes do not end.
    """

    @taking(name=object)
    def __init__(
        self,
        *,
        name: str,
        step: BatchedStep,
        start: Sequence[float],
        num_actions: int,
        prior: Prior,
        theta_names: Sequence[str],
        sensor: Sensor,
        horizon: int,
        max_states_per_layer: int | None = None,
        bernoulli_rewards: bool | None = None,
        reward_scale: float | None = None,
        shared_dynamics: bool = True,
        settings: dict | None = None,
    ):
        def one(theta: tuple, state: tuple, action: int) -> tuple:
            row, place = (torch.tensor([v], dtype=torch.float64) for v in (theta, [state]))
            x, reward = batched(step, row, place, torch.tensor([[action]]))
            return tuple(x[0, 0].tolist()), float(reward[0, 0])

        super().__init__(
            name=name,
            prior=prior,
            theta_names=theta_names,
            sensor=sensor,
            dynamics=FunctionDynamics(
                one, real_numbers("start", start), num_actions, names_of(theta_names), shared_dynamics
            ),
            payoff=Payoff(
                lambda theta, moves: batched(step, theta, moves.latent, moves.actions)[1],
                bernoulli_rewards,
                reward_scale,
            ),
            horizon=horizon,
            max_states_per_layer=max_states_per_layer,
            settings=settings,
        )


def batched(step: BatchedStep, theta: Tensor, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """What a batched step returns, as float64 tensors [B, n, l] and [B, n].

    Raises:
        SimulatorError: it raised, or returned something of another shape.
    """
    with users("step(theta, states, actions)"):
        following, reward = (torch.as_tensor(part, dtype=torch.float64) for part in step(theta, states, actions))
    if following.shape != states.shape or reward.shape != actions.shape:
        raise SimulatorError(
            expected=f"next states {list(states.shape)} and mean rewards {list(actions.shape)} from step",
            got=f"{list(following.shape)} and {list(reward.shape)}",
            cause="theta is [B, k]: theta[:, 0, None] goes with rewards [B, n]",
        )
    return following, reward


@functools.cache
def _theta_of(names: tuple[str, ...]) -> type[tuple]:
    """The named tuples of theta with these names; making a class takes longer than a step does."""
    try:
        return namedtuple("Theta", names)
    except ValueError as error:
        raise SettingError(
            expected="theta_names that are different identifiers", got=str(names), cause=str(error)
        ) from error


@dataclass(frozen=True, eq=False)
class FunctionDynamics:
    """What actions lead to by a function (`determinism.Dynamics`), and what moves pay, remembered for every theta."""

    step: Step
    start: State
    num_actions: int
    theta_names: tuple[str, ...]
    shared: bool = True
    _states: dict[tuple, State] = field(default_factory=dict)  # of latent numbers
    _paid: dict[tuple, dict[tuple, float]] = field(default_factory=dict)  # theta -> (place, action) -> mean reward

    def sizes(self, theta: Tensor, horizon: int | None) -> tuple[int, int | None]:
        """A; there is no time limit."""
        numbers(self.start)
        self.theta(theta)
        return self.num_actions, None

    def episode(self, theta: Tensor, horizon: int, other_seed: bool = False) -> FunctionEpisode:
        """Episodes under theta [k]."""
        return FunctionEpisode(self, self.theta(theta))

    def theta(self, row: Tensor) -> tuple[float, ...]:
        """Theta [k] as a named tuple of floats."""
        return _theta_of(self.theta_names)(*row.tolist())

    def moved(self, theta: tuple[float, ...], state: State, action: int) -> tuple[State, float, bool]:
        """The next state, the mean reward, and whether the episode has ended."""
        following, reward, ended = self.called(theta, state, action)
        paid = plain_number(reward)
        if not math.isfinite(paid):
            raise RewardError(
                expected="a finite mean reward from step",
                got=f"{printable(reward, 80)} for action {action} in state {printable(state, 80)}",
                cause="a step that returns None, a vector or NaN as its second value",
            )
        return following, paid, ended

    def called(self, theta: tuple[float, ...], state: State, action: int) -> tuple[State, Any, bool]:
        """What the function returned, as three values; the reward is not looked at."""
        with users(f"step(theta, {printable(state, 60)}, {action})"):
            result = self.step(theta, copy.copy(state), action)  # a list may be written into
        if not (isinstance(result, tuple) and len(result) in (2, 3)):
            raise SimulatorError(
                expected="(state, reward) or (state, reward, ended) from step",
                got=printable(f"{type(result).__name__}: {result}", 80),
                cause="a step without a return, or Gymnasium's five values",
            )
        return result[0], result[1], len(result) == 3 and truth(result[2])

    def remember(self, state: State) -> list[float]:
        """The latent numbers of a state, which `rewards` finds it by."""
        latent = numbers(state)
        self._states.setdefault(tuple(latent), state)
        return latent

    def rewards(self, theta: Tensor, moves: Moves) -> Tensor:
        """Mean rewards [B, n] of moves (`simulators.RewardModel`); every (theta, state, action) is computed once."""
        size = len(moves.latent.flatten(0, 1))
        edges = moves.place * self.num_actions + moves.actions
        one, inverse = edges.flatten().unique(return_inverse=True)
        at = torch.empty_like(one).scatter_(0, inverse, torch.arange(size))  # a move of every edge
        latent = moves.latent.flatten(0, 1)[at].tolist()
        wanted = [(tuple(numbers), edge % self.num_actions) for numbers, edge in zip(latent, one.tolist(), strict=True)]
        used = torch.zeros(len(theta), len(one), dtype=torch.bool).scatter_(1, inverse.reshape(edges.shape), True)
        table = torch.zeros(len(theta), len(one), dtype=torch.float64)
        for b, row in enumerate(theta):
            named = self.theta(row)
            if len(self._paid) > MOST_THETA:
                self._paid.clear()
            paid = self._paid.setdefault(tuple(named), {})
            for e in used[b].nonzero().flatten().tolist():
                if wanted[e] not in paid:
                    numbers_, action = wanted[e]
                    paid[wanted[e]] = self.moved(named, self._states[numbers_], action)[1]
                table[b, e] = paid[wanted[e]]
        return table.gather(1, inverse.reshape(edges.shape))


class FunctionEpisode:
    """A running episode of a `FunctionDynamics` (`tree.Episode`)."""

    def __init__(self, dynamics: FunctionDynamics, theta: tuple[float, ...]):
        self.dynamics, self.theta, self.source = dynamics, theta, dynamics.step
        self.observation, self.ended = dynamics.start, False

    def reset(self) -> list[float]:
        """Starts afresh; returns the numbers of the start."""
        self.observation, self.ended = self.dynamics.start, False
        return self.latent()

    def latent(self) -> list[float]:
        """The numbers of the present state."""
        return self.dynamics.remember(self.observation)

    def move(self, action: int) -> None:
        """Takes an action; the reward is not looked at."""
        if not self.ended:
            self.observation, _, self.ended = self.dynamics.called(self.theta, self.observation, action)

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """The next numbers, the mean reward, and whether the episode has ended."""
        if self.ended:
            return self.latent(), 0.0, True
        self.observation, reward, self.ended = self.dynamics.moved(self.theta, self.observation, action)
        return self.latent(), reward, self.ended

    def close(self) -> None:
        """Nothing is held."""


def numbers(state: State) -> list[float]:
    """A state as latent numbers.

    >>> numbers((1, 2.5)), numbers(3)
    ([1.0, 2.5], [3.0])

    Raises:
        ObservationError: it is no number and no sequence of numbers, or one of them is not finite.
    """
    try:
        found = [plain_number(n) for n in state] if hasattr(state, "__len__") else [plain_number(state)]
    except TypeError:  # an array without dimensions
        found = [plain_number(state)]
    if not found or not all(map(math.isfinite, found)):
        raise ObservationError(
            expected="a state that is a finite number, or a tuple of them",
            got=printable(f"{type(state).__name__}: {state}", 80),
            cause="a dict, text or None in `start` or returned by step; write states as tuples of numbers",
        )
    return found
