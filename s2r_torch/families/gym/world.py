"""Reality as a Gymnasium environment: whatever its `step` returns as a reward is never looked at.

A robot is one environment: episodes run one after another. Nothing is assumed of its inside, unlike `GymFamily`, whose
worlds are made of latent numbers and a sensor: here the observation itself is the reading.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, UnlabelledWorld
from s2r_torch.errors import SettingError, SimulatorError
from s2r_torch.families.gym.family import checked_actions


class EnvWorld:
    """One environment as an `UnlabelledWorld`.

    An episode that ends early repeats its last reading, as simulators are padded with absorbing states: that is still
    a draw of the reading's law there.

    Args:
        env: observations are the readings, flattened; it may pay rewards, which nobody looks at.
        spec: of the policy; sizes are the environment's own, so that `deploy` can compare them.
        seed: of the first reset; None leaves the environment's randomness alone.

    Raises:
        SettingError: the environment cannot be used (`gym_adapter.checked_actions`).
    """

    episodes_at_once = 1

    def __init__(self, env, spec: ProblemSpec, seed: int | None = None):
        num_actions = checked_actions(env, spec.horizon)
        shape = getattr(env.observation_space, "shape", None)
        d = spec.obs_dim if shape is None else math.prod(shape)
        same = {} if d == spec.obs_dim else {"obs_dim": d, "low": (0.0,) * d, "high": (1.0,) * d, "obs_names": ()}
        self.spec = replace(spec, num_actions=num_actions, **same)
        self._env, self._seed, self._first = env, seed, int(env.action_space.start)
        self._reading, self._ended, self._steps = None, False, 0

    def reset(self, n: int) -> Tensor:
        """Starts an episode; returns x [1, d]."""
        if n != 1:
            raise SettingError(expected="one episode at a time", got=str(n), cause="there is one environment")
        seed, self._seed = self._seed, None
        observation, _ = self._env.reset(seed=seed)
        self._ended, self._steps = False, 0
        return self._read(observation)

    def step(self, actions: Tensor) -> Tensor:
        """Takes an action [1]; returns the next x [1, d]."""
        if self._ended:
            return self._reading.clone()
        result = self._env.step(self._first + int(actions[0]))
        observation, self._ended, truncated = result[0], bool(result[2]), bool(result[3])  # result[1] is the reward
        self._steps += 1
        if truncated and not self._ended and self._steps < self.spec.horizon - 1:
            raise SimulatorError(
                expected=f"an episode of {self.spec.horizon} steps",
                got=f"one cut short after {self._steps}",
                cause="a time limit in the environment (max_episode_steps, or use env.unwrapped)",
            )
        return self._read(observation)

    def _read(self, observation: object) -> Tensor:
        self._reading = torch.from_numpy(np.array(observation, dtype=np.float64).reshape(1, -1))
        return self._reading.clone()


def as_world(made: object, spec: ProblemSpec, seed: int | None = None) -> UnlabelledWorld:
    """What a user's function returned, as a world: an `UnlabelledWorld` itself, or a Gymnasium environment.

    Raises:
        SettingError: it is neither.
    """
    if isinstance(getattr(made, "spec", None), ProblemSpec) and isinstance(made, UnlabelledWorld):
        return made
    if hasattr(made, "action_space"):
        return EnvWorld(made, spec, seed)
    raise SettingError(
        expected="a gymnasium.Env, or an object with spec, reset(n) and step(actions) (base.UnlabelledWorld)",
        got=type(made).__name__,
        cause="a function that returns something else, or a class in place of a function that makes one",
    )
