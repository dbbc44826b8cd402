"""Reality as a Gymnasium environment: whatever its `step` returns as a reward is never looked at.

A robot is one environment: episodes run one after another. Nothing is assumed of its inside, unlike `GymFamily`, whose
worlds are made of latent numbers and a sensor: here the observation itself is the reading.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from s2r_torch.arrays import unmasked
from s2r_torch.base import ProblemSpec, UnlabelledWorld
from s2r_torch.errors import ObservationError, SettingError, SimulatorError
from s2r_torch.families.contract import truth
from s2r_torch.families.gym.family import checked_actions
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.text import printable


class EnvWorld:
    """One environment as an `UnlabelledWorld`.

    An episode that ends early repeats its last reading, as simulators are padded with absorbing states: that is still
    a draw of the reading's law there. Where the state graph says that actions still matter, no simulator ended there.

    Args:
        env: observations are the readings, flattened; it may pay rewards, which nobody looks at.
        spec: of the policy; the environment's own sizes must be these.
        seed: of the first reset; None leaves the environment's randomness alone.
        graph: the policy's state graph, which says where an episode may end early; None accepts any place.

    Raises:
        SettingError: the environment cannot be used (`family.checked_actions`), or has other actions or sensors.
    """

    episodes_at_once = 1

    @taking()
    def __init__(self, env, spec: ProblemSpec, seed: int | None = None, graph: StateGraph | None = None):
        num_actions, obs_dim = checked_actions(env, spec.horizon), _numbers_of(env)
        for name, theirs in (("num_actions", num_actions), ("obs_dim", obs_dim)):
            if theirs != getattr(spec, name):
                raise SettingError(
                    expected=f"a world with {name} = {getattr(spec, name)}, as the policy was trained for",
                    got=str(theirs),
                    cause="another machine, or another version of its sensors",
                )
        self.spec = spec
        self._env, self._seed, self._graph, self._first = env, seed, graph, int(env.action_space.start)
        self._reading = torch.empty(0)
        self._ended = False
        self._path: tuple[int, ...] = ()
        self._running = False

    def reset(self, n: int) -> Tensor:
        """Starts an episode; returns x [1, d]."""
        if n != 1:
            raise SettingError(expected="one episode at a time", got=str(n), cause="there is one environment")
        seed, self._seed = self._seed, None
        self._ended, self._path, self._running = False, (), True
        try:
            result = self._env.reset(seed=seed)
        except TypeError as error:
            raise _old_interface("reset", f"TypeError: {error}") if "seed" in str(error) else error from None
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict | None)):
            raise _old_interface("reset", _described(result))
        return self._read(result[0])

    def step(self, actions: Tensor) -> Tensor:
        """Takes an action [1]; returns the next x [1, d]."""
        if not self._running:
            raise SettingError(expected="reset before step", got="a step", cause="a world that was not started")
        action = self._action(actions)
        self._path += (action,)
        if self._ended:
            return self._reading.clone()
        result = self._env.step(self._first + action)
        if not (isinstance(result, tuple) and len(result) == 5):
            raise _old_interface("step", _described(result))
        observation, (self._ended, truncated) = result[0], map(truth, result[2:4])  # result[1] is the reward
        if truncated and not self._ended and len(self._path) < self.spec.horizon - 1:
            raise SimulatorError(
                expected=f"an episode of {self.spec.horizon} steps",
                got=f"one cut short after {len(self._path)}",
                cause="a time limit in the environment (max_episode_steps, or use env.unwrapped)",
            )
        if self._ended and self._goes_on():
            raise SimulatorError(
                expected=f"an episode of {self.spec.horizon} steps, as in the simulators",
                got=f"its end (terminated) after {len(self._path)} actions, where actions still matter",
                cause="a fall, a collision or an emergency stop; run the episode again",
            )
        return self._read(observation)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _action(self, actions: Tensor) -> int:
        """The one action [1]; raises SettingError for anything else."""
        whole = isinstance(actions, Tensor) and actions.shape == (1,) and not actions.is_floating_point()
        if not whole or not 0 <= int(actions) < self.spec.num_actions:
            expected = f"one action in 0 .. {self.spec.num_actions - 1}, as a tensor [1]"
            raise SettingError(expected=expected, got=printable(repr(actions), 80), cause="there is one environment")
        return int(actions)

    def _goes_on(self) -> bool:
        """Whether, from where the episode is, different actions lead to different states."""
        if self._graph is None or len(self._path) >= self.spec.horizon - 1:
            return False
        so_far = torch.tensor((*self._path, *(0,) * self.spec.horizon))
        here = int(self._graph.visited(so_far)[len(self._path)])
        following = self._graph.next_state[here]
        return here >= 0 and bool((following != following[0]).any())

    def _read(self, observation: object) -> Tensor:
        numbers = None if observation is None else _as_numbers(observation)
        if numbers is None or numbers.size != self.spec.obs_dim:
            raise ObservationError(
                expected=f"{self.spec.obs_dim} numbers, {', '.join(self.spec.obs_names[:6])}, as an observation",
                got=_described(observation),
                cause="a sensor that gave nothing, or an observation_space that says otherwise",
            )
        self._reading = torch.from_numpy(numbers.astype(np.float64).reshape(1, -1))
        return self._reading.clone()


def _numbers_of(env) -> int:
    """How many numbers an observation is, by its space; no names are made for an image of millions."""
    space = getattr(env, "observation_space", None)
    shape = getattr(space, "shape", None)
    if not isinstance(shape, tuple) or not isinstance(getattr(space, "dtype", None), np.dtype):
        raise SettingError(
            expected="an observation space of numbers (Box)",
            got=printable(space),
            cause="a dictionary, tuple or text of observations: wrap it in gymnasium.wrappers.FlattenObservation",
        )
    return math.prod(shape)


def _as_numbers(observation: object) -> np.ndarray | None:
    """An observation as an array of real numbers, or None."""
    try:
        numbers = unmasked(observation)
    except (ValueError, TypeError):
        return None
    return numbers if numbers.dtype.kind in "fiub" else None


def _old_interface(method: str, got: str) -> SimulatorError:
    wanted = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}[method]
    return SimulatorError(
        expected=f"{method} to return {wanted}",
        got=got,
        cause="the old Gym interface: wrap it (shimmy.GymV21CompatibilityV0), or return what Gymnasium wants",
    )


def _described(value: object) -> str:
    """A value in few words; a reward in it is not looked at."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)} ({', '.join(sorted({type(part).__name__ for part in value})[:4])})"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    return "None" if value is None else type(value).__name__


def as_world(
    made: object, spec: ProblemSpec, seed: int | None = None, graph: StateGraph | None = None
) -> UnlabelledWorld:
    """What a user's function returned, as a world: an `UnlabelledWorld` itself, or a Gymnasium environment.

    Raises:
        SettingError: it is neither, or an environment that cannot be used.
    """
    if isinstance(getattr(made, "spec", None), ProblemSpec) and isinstance(made, UnlabelledWorld):
        return made
    if hasattr(made, "action_space"):
        return EnvWorld(made, spec, seed, graph)
    raise SettingError(
        expected="a gymnasium.Env, or an object with spec, reset(n) and step(actions) (base.UnlabelledWorld)",
        got=type(made).__name__,
        cause="a function that returns something else, or a class in place of a function that makes one",
    )
