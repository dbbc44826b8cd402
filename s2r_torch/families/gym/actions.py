"""Environments with a few discrete actions: the first ones of many, or some of a continuum, each held for a while."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial

import gymnasium
import numpy as np

from s2r_torch.errors import RewardError, SettingError
from s2r_torch.families.contract import truth
from s2r_torch.given import taking
from s2r_torch.plain import as_python, require_count
from s2r_torch.text import printable

ROUNDING = 1e-6  # of the edges of an action space, which are float32


@taking()
def make_env(env_id: str, actions: int | None = None, **settings) -> gymnasium.Env:
    """`gymnasium.make` without the checker that warns in the middle of a run; third-party ids are `module:Id`.

    Args:
        env_id: what Gymnasium calls it.
        actions: only the first so many of its discrete actions; None for all.
        settings: of the environment.

    Raises:
        ImportError: the environment's package is not installed.
    """
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **settings)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(str(error)) from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv, ModuleNotFoundError) as error:
        cause = "a typo, an old version, or a package that is not imported: 'module:Id' imports it"
        raise SettingError(expected="an environment that Gymnasium knows", got=printable(error), cause=cause) from error
    except Exception as error:  # whatever its constructor says of what it was given
        got = printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        cause = "a typo in a setting, or a value that it does not take"
        raise SettingError(expected=f"settings of {env_id}", got=got, cause=cause) from error
    if actions is None:
        return env
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Discrete) or require_count("actions", actions) > space.n:
        cause = "actions are the first so many of those that there are"
        raise SettingError(expected=f"actions among those of {env_id}: {space}", got=str(actions), cause=cause)
    few = gymnasium.spaces.Discrete(int(actions), start=int(space.start))
    return gymnasium.wrappers.TransformAction(env, partial(_among, space=few), few)


def _among(action: object, space: gymnasium.spaces.Discrete) -> int:
    """An action of a space as an int.

    Raises:
        SettingError: it is none.
    """
    try:  # learners of other libraries give arrays of one number
        found = operator.index(action.item() if isinstance(action, np.ndarray | np.generic) else action)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = int(space.start) - 1
    if not space.start <= found < space.start + space.n:
        expected = f"an action in {space.start} .. {space.start + space.n - 1}"
        raise SettingError(expected=expected, got=printable(repr(action), 80), cause="an action that was left out")
    return found


@taking()
def held_actions(env: gymnasium.Env, actions: Sequence[Sequence[float]], steps: int = 1) -> gymnasium.Env:
    """An environment of continuous actions as one of a few, each held for several steps, or until the episode ends.

    Args:
        env: its action space is a box.
        actions: what action 0, 1, .. stands for.
        steps: of the environment, for one of ours; rewards add up.
    """
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box):
        cause = "an environment of discrete actions needs none of this"
        raise SettingError(expected="an environment whose actions are a Box", got=printable(space), cause=cause)
    return Held(env, _boxed(actions, space), require_count("steps", steps))


class Held(gymnasium.Wrapper):
    """What `held_actions` makes.

    Args:
        env: its action space is a box.
        actions: `[A, ...]` what each stands for, in that box.
        steps: of the environment, for one of ours.
    """

    def __init__(self, env: gymnasium.Env, actions: np.ndarray, steps: int):
        super().__init__(env)
        self._actions, self.steps = actions, steps
        self._few = self.action_space = gymnasium.spaces.Discrete(len(actions))

    def step(self, action):
        total, meant = 0.0, self._actions[_among(action, self._few)]
        for _ in range(self.steps):
            observation, reward, terminated, truncated, info = self.env.step(meant.copy())  # it may write into it
            total += plain_reward(reward)
            if truth(terminated) or truth(truncated):
                break
        return observation, total, terminated, truncated, info


def _boxed(actions: object, space: gymnasium.spaces.Box) -> np.ndarray:
    """Different actions [A, ...] of a box, as what the environment is given.

    Raises:
        SettingError: no such actions.
    """
    try:
        meant = np.array(as_python(actions), dtype=np.float64)
    except (TypeError, ValueError):  # text, names, rows of several lengths
        meant = np.empty(0)
    fits = meant.ndim and len(meant) and meant.shape[1:] == space.shape
    if fits and ((meant >= space.low - ROUNDING) & (meant <= space.high + ROUNDING)).all():
        found = meant.clip(space.low, space.high).astype(space.dtype)
        whole = found.dtype.kind not in "iu" or bool((found == meant).all())
        if whole and len(np.unique(found, axis=0)) == len(found):
            return found
    raise SettingError(
        expected=f"different actions [A, *{list(space.shape)}] within {printable(space)}",
        got=printable(actions, 80),
        cause="[[-1.0], [1.0]] for two actions of one number",
    )


def plain_reward(reward: object) -> float:
    """A reward, whatever number or array of one number it is, as a float.

    >>> plain_reward(np.array([1], dtype=np.int32))
    1.0
    """
    try:
        numbers = np.asarray(np.nan if isinstance(reward, str | bytes) else reward, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # 10**400
        numbers = np.asarray([np.nan])
    if numbers.size != 1 or not np.isfinite(numbers).all() or reward is None:
        raise RewardError(
            expected="one finite reward",
            got=printable(reward, 80),
            cause="a vector of rewards (give a reward model that does not use them), or a fault in the environment",
        )
    return numbers.item()
