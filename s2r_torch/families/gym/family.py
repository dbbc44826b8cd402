"""Any Gymnasium environment with discrete actions as a family: theta decides what is sensed and what pays.

The environment gives the latent dynamics, which must be deterministic with a fixed start; a `Sensor` turns latent
numbers into readings under theta, a `RewardModel` turns moves into mean rewards under theta (`replay.family`).
This and `actions` are the only modules that import Gymnasium.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import gymnasium
import numpy as np
from torch import Tensor

from s2r_torch.arrays import unmasked
from s2r_torch.errors import ObservationError, RewardError, SettingError, SimulatorError
from s2r_torch.families.contract import plain_number, truth, users
from s2r_torch.families.gym.actions import Held, held_actions, make_env, plain_reward
from s2r_torch.families.replay.family import Payoff, Prior, ReplayFamily
from s2r_torch.families.replay.simulators import Moves, RewardModel, own_reward
from s2r_torch.families.sensors import Sensor
from s2r_torch.given import taking
from s2r_torch.text import printable

__all__ = ["GymFamily", "Moves", "held_actions", "make_env"]

Make = Callable[[Tensor], gymnasium.Env]  # theta [k] -> environment
Latent = Callable[[Any, Any], Sequence[float]]  # (unwrapped environment, raw observation) -> numbers

OTHER_SEED = 7919  # added to the seed of resets, where another one is wanted


def observed_numbers(env: gymnasium.Env, observation: object) -> list[float]:
    """The raw observation, flattened."""
    try:
        numbers = unmasked(observation)
        if numbers.dtype.kind not in "fiubO":
            raise TypeError(f"numbers of type {numbers.dtype}")
        return numbers.astype(np.float64).ravel().tolist()
    except (TypeError, ValueError) as error:
        raise SettingError(
            expected="observations that are numbers",
            got=printable(f"{type(observation).__name__}: {observation}", 80),
            cause="a Dict, Tuple or text: give latent=(env, observation) -> numbers, or "
            "use gymnasium.wrappers.FlattenObservation",
        ) from error


class GymFamily(ReplayFamily):
    """A family made from Gymnasium environments: their dynamics, and what theta makes of them.

    Args:
        name: what the family is called; an identifier.
        make: theta [k] -> a plain environment (no vector environment, no autoreset, no time limit below H).
        prior: draws theta [n, k].
        theta_names: what the k numbers are.
        sensor: theta and latent numbers -> reading; for example an `AffineSensor`.
        horizon: H; None takes the number of steps after which every episode has ended or is cut.
        max_states_per_layer: S, an upper bound; None counts the states.
        reward: theta and moves -> mean rewards; a finished episode always gets 0.
        latent: what sensor and reward see of the environment, called with `env.unwrapped` and the raw observation; it
            must identify the state within a layer for `truth` to be right.
        bernoulli_rewards: pay reward_scale * Bernoulli(mean / reward_scale) instead of the mean itself; None does so
            where at most one step of an episode pays.
        reward_scale: raw rewards are divided by it; None takes 1, or the largest total and a margin
            where that is not in 1/2 .. 1.
        shared_dynamics: theta does not change the environment (checked on a sample): one replay serves all simulators.
        reset_seed: passed to every reset.
        reset_options: passed to every reset.
        settings: keyword arguments (JSON values) that rebuild this family.

    Raises:
        SettingError: the environment cannot be used; the message says why.
    """

    @taking(name=object)
    def __init__(
        self,
        *,
        name: str,
        make: Make,
        prior: Prior,
        theta_names: Sequence[str],
        sensor: Sensor,
        horizon: int | None = None,
        max_states_per_layer: int | None = None,
        reward: RewardModel = own_reward,
        latent: Latent = observed_numbers,
        bernoulli_rewards: bool | None = None,
        reward_scale: float | None = None,
        shared_dynamics: bool = True,
        reset_seed: int = 0,
        reset_options: dict | None = None,
        settings: dict | None = None,
    ):
        super().__init__(
            name=name,
            prior=prior,
            theta_names=theta_names,
            sensor=sensor,
            dynamics=GymDynamics(
                make, latent, shared_dynamics, int(reset_seed), reset_options, needs_rewards=reward is own_reward
            ),
            payoff=Payoff(reward, bernoulli_rewards, reward_scale),
            horizon=horizon,
            max_states_per_layer=max_states_per_layer,
            settings=settings,
        )


@dataclass(frozen=True)
class GymDynamics:
    """What actions lead to in a Gymnasium environment (`determinism.Dynamics`).

    Args:
        make: theta [k] -> environment.
        latent: what is seen of it.
        shared: theta does not change the environment.
        reset_seed: passed to every reset.
        reset_options: passed to every reset.
        needs_rewards: a reward that is no number is an error.
    """

    make: Make
    latent: Latent = observed_numbers
    shared: bool = True
    reset_seed: int = 0
    reset_options: dict | None = None
    needs_rewards: bool = True

    def sizes(self, theta: Tensor, horizon: int | None) -> tuple[int, int | None]:
        """A, and the environment's own time limit."""
        env = self._made(theta)
        sizes = checked_actions(env, horizon or 1), time_limit(env)
        with users("close()"):
            env.close()
        return sizes

    def episode(self, theta: Tensor, horizon: int, other_seed: bool = False) -> GymEpisode:
        """A new environment of theta [k]."""
        seeds = itertools.count(self.reset_seed + OTHER_SEED) if other_seed else itertools.repeat(self.reset_seed)
        env = self._made(theta)
        return GymEpisode(env, self.latent, seeds, self.reset_options, horizon, self.needs_rewards)

    def _made(self, theta: Tensor) -> gymnasium.Env:
        with users("make(theta)"):
            env = self.make(theta)
        if getattr(env, "render_mode", None) == "human":
            raise SettingError(
                expected="simulators without a window",
                got=f"render_mode='human' of {type(env.unwrapped).__name__}",
                cause="every step is drawn at the speed of a film, hours for a check: leave render_mode out",
            )
        return env


class GymEpisode:
    """One environment and its running episode, padded: after its end it stays where it is and pays nothing.

    Args:
        env: the environment.
        latent: what to see of it.
        seeds: of the resets, one after another.
        options: of every reset.
        horizon: H.
        needs_rewards: a reward that is no number is an error; else it is NaN.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        latent: Latent,
        seeds: Iterator[int],
        options: dict | None,
        horizon: int,
        needs_rewards: bool = True,
    ):
        self.env, self.horizon, self.source = env, horizon, env
        self._latent, self._seeds, self._options, self._needs_rewards = latent, seeds, options, needs_rewards
        self._first_action = int(cast(gymnasium.spaces.Discrete, env.action_space).start)  # `checked_actions`
        self.observation: object = None
        self.ended = False
        self._actions: list[int] = []

    def reset(self) -> list[float]:
        """A full reset; returns the latent numbers of the start."""
        self.observation = reset_env(self.env, seed=next(self._seeds), options=_copied(self._options))
        self.ended, self._actions = False, []
        return self.latent()

    def latent(self) -> list[float]:
        """The latent numbers of the present state.

        Raises:
            ObservationError: one is NaN or infinite.
        """
        with users("latent(env, observation)"):
            given = [*self._latent(self.env.unwrapped, self.observation)]
            numbers = [plain_number(number) for number in given]
        bad = [i for i, number in enumerate(numbers) if not np.isfinite(number)]
        if bad:
            found = repr(given[bad[0]]) if isinstance(given[bad[0]], str) else given[bad[0]]
            raise ObservationError(
                expected="finite latent numbers",
                got=f"{printable(found, 60)} as number {bad[0]} of {len(numbers)} after actions {(*self._actions,)}",
                cause="a part of the observation that is not always there: give latent=(env, observation) -> numbers, "
                "which leaves it out",
            )
        return numbers

    def move(self, action: int) -> object:
        """Takes an action; returns the raw reward as it came, which worlds ignore."""
        if self.ended:
            return 0.0
        self._actions.append(int(action))
        action = self._first_action + int(action)  # some environments accept numpy scalars or floats, some crash
        self.observation, reward, ended, truncated = step_env(self.env, action)
        self.ended = ended
        if truncated and not ended and len(self._actions) < self.horizon:
            raise SimulatorError(
                expected=f"an episode of {self.horizon} steps",
                got=f"one cut short after {len(self._actions)}",
                cause="a time limit in the environment (max_episode_steps, or use env.unwrapped)",
            )
        return reward

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """`move` with all that simulators need: latent numbers, raw reward, whether the episode has ended."""
        reward = self.move(action)
        try:
            reward = plain_reward(reward)
        except RewardError:
            if self._needs_rewards:
                raise
            reward = float("nan")
        return self.latent(), reward, self.ended

    def close(self) -> None:
        """Closes the environment."""
        with users("close()"):
            self.env.close()


def reset_env(env: gymnasium.Env, **arguments) -> object:
    """The first observation of an episode.

    Raises:
        SimulatorError: `reset` fails, or does not return (observation, info).
    """
    with users("reset", f"a fault in {type(env.unwrapped).__name__}"):
        result = env.reset(**arguments)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result[0]
    raise SimulatorError(
        expected="(observation, info) from reset, info a dict",
        got=printable(f"{type(result).__name__} {result}", 80),
        cause="an environment of the old Gym interface, whose reset returns the observation alone",
    )


def step_env(env: gymnasium.Env, action: int) -> tuple[object, object, bool, bool]:
    """The next observation, the reward as it came, terminated, truncated.

    Raises:
        SimulatorError: `step` fails, or does not return five values.
    """
    with users(f"step({action})", f"a fault in {type(env.unwrapped).__name__}"):
        result = env.step(action)
    if not (isinstance(result, tuple) and len(result) == 5):
        many = isinstance(result, tuple)
        raise SimulatorError(
            expected="(observation, reward, terminated, truncated, info) from step",
            got=f"{len(result)} values" if many else type(result).__name__,
            cause="an environment of the old Gym interface" if many and len(result) == 4 else "a fault in its step",
        )
    observation, reward, terminated, truncated, _ = result
    return observation, reward, truth(terminated), truth(truncated)


def checked_actions(env: gymnasium.Env, horizon: int) -> int:
    """A, after checking that the environment can be used at all.

    Raises:
        SettingError: a vector environment, autoreset, a time limit below H, or actions that are not discrete.
    """

    def refuse(expected: str, got: str, cause: str) -> NoReturn:
        raise SettingError(expected=expected, got=got, cause=cause)

    if isinstance(env, gymnasium.vector.VectorEnv):
        refuse("a plain environment", type(env).__name__, "vector environments reset themselves and swallow an action")
    if not isinstance(env, gymnasium.Env):
        refuse("a gymnasium.Env", type(env).__name__, "`make` returns something else, or an old gym environment")
    if any(isinstance(layer, gymnasium.wrappers.Autoreset) for layer in layers(env)):
        refuse("no autoreset", "the wrapper Autoreset", "a finished episode must stay finished")
    limit = time_limit(env)
    if limit is not None and limit < horizon:
        refuse(f"a time limit of at least {horizon}", str(limit), "give max_episode_steps, or use env.unwrapped")
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        refuse("a Discrete action space", str(env.action_space), "continuous or composite actions: list a few of them")
    return int(env.action_space.n)


def _copied(options: dict | None) -> dict | None:
    """Options of one reset, which may write into them; what cannot be copied, such as a lock, is shared."""
    try:
        return copy.deepcopy(options)
    except (TypeError, copy.Error):
        return copy.copy(options)


def layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """An environment's wrappers, outermost first, and what they wrap."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def time_limit(env: gymnasium.Env) -> int | None:
    """In which step episodes are cut, if they are; several of the environment may be one of ours."""
    limits, held = [], 1
    for layer in layers(env):
        held *= layer.steps if isinstance(layer, Held) else 1
        limits += [-(-layer._max_episode_steps // held)] if isinstance(layer, gymnasium.wrappers.TimeLimit) else []
    return min(limits, default=None)
