"""Any Gymnasium environment with discrete actions as a family: theta decides what is sensed and what pays.

The environment gives the latent dynamics, which must be deterministic with a fixed start; a `Sensor` turns latent
numbers into readings under theta, a `RewardModel` turns moves into mean rewards under theta. Every episode has H
layers: one that ends early keeps emitting the reading of its last state and pays nothing.

Simulators replay every action path once and draw readings in batch; the episodes count all the same. A world steps
every episode for real. This is the only module that imports Gymnasium.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property

import gymnasium
import numpy as np
import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, StateGraph
from s2r_torch.errors import RewardError, SettingError, SimulatorError
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.gym.replay import ReplayTree, merged_graph, require_same
from s2r_torch.families.gym.simulators import GymSimulators, GymWorld, Moves, RewardModel, Sensor, own_reward
from s2r_torch.families.layered import require_theta

Prior = Callable[[int, torch.Generator], Tensor]  # n -> theta [n, k], float64
Make = Callable[[Tensor], gymnasium.Env]  # theta [k] -> environment
Latent = Callable[[gymnasium.Env, object], Sequence[float]]  # (unwrapped environment, raw observation) -> numbers

PROBES = 4  # random paths, and up to as many constant ones, that are run again before simulators are trusted


def observed_numbers(env: gymnasium.Env, observation: object) -> list[float]:
    """The raw observation, flattened."""
    return np.asarray(observation, dtype=np.float64).ravel().tolist()


def make_env(env_id: str, **settings) -> gymnasium.Env:
    """`gymnasium.make` without the checker that warns in the middle of a run; third-party ids are `module:Id`."""
    return gymnasium.make(env_id, disable_env_checker=True, **settings)


class GymFamily:
    """A family made from Gymnasium environments.

    Args:
        name: what the family is called.
        make: theta [k] -> a plain environment (no vector environment, no autoreset, no time limit below H).
        prior: draws theta [n, k].
        theta_names: what the k numbers are.
        sensor: theta and latent numbers -> reading.
        horizon: H.
        max_states_per_layer: S, an upper bound.
        reward: theta and moves -> mean rewards; a finished episode always gets 0.
        latent: what sensor and reward see of the environment, called with `env.unwrapped` and the raw observation; it
            must identify the state within a layer for `truth` to be right.
        bernoulli_rewards: pay reward_scale * Bernoulli(mean / reward_scale) instead of the mean itself.
        reward_scale: raw rewards are divided by it.
        shared_dynamics: theta does not change the environment (checked on a sample): one replay serves all simulators.
        reset_seed: passed to every reset.
        reset_options: passed to every reset.
        settings: keyword arguments (JSON values) that rebuild this family.

    Raises:
        SettingError: the environment cannot be used; the message says why.
    """

    def __init__(
        self,
        *,
        name: str,
        make: Make,
        prior: Prior,
        theta_names: Sequence[str],
        sensor: Sensor,
        horizon: int,
        max_states_per_layer: int,
        reward: RewardModel = own_reward,
        latent: Latent = observed_numbers,
        bernoulli_rewards: bool = True,
        reward_scale: float = 1.0,
        shared_dynamics: bool = True,
        reset_seed: int = 0,
        reset_options: dict | None = None,
        settings: dict | None = None,
    ):
        self.name, self.sensor, self.theta_names = name, sensor, tuple(theta_names)
        self.bernoulli_rewards, self.shared_dynamics = bernoulli_rewards, shared_dynamics
        self._make, self._prior, self._reward, self._latent = make, prior, reward, latent
        self._reset = {"seed": int(reset_seed), "options": reset_options}
        self._settings = dict(settings or {})
        self._trusted: set[tuple[float, ...]] = set()  # theta whose dynamics were checked
        theta = self.prior(1, torch.Generator().manual_seed(0))[0]
        self.spec = ProblemSpec(
            num_actions=usable_actions(make(theta), horizon),
            horizon=horizon,
            max_states_per_layer=max_states_per_layer,
            obs_dim=len(sensor.low),
            low=tuple(sensor.low),
            high=tuple(sensor.high),
            obs_names=tuple(sensor.names),
            reward_scale=reward_scale,
        )

    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, k]; consumes the generator."""
        return require_theta(self._prior(n, generator), self.theta_names)

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> GymSimulators:
        """Simulators that replay; the determinism that this needs is checked on the first and last theta.

        Raises:
            SimulatorError: dynamics or starts are random, or depend on theta although `shared_dynamics` says not.
        """
        theta = require_theta(theta, self.theta_names)
        self._check_dynamics(theta)
        if self.shared_dynamics:
            return GymSimulators(self, theta, ids, self._tree, torch.zeros(len(theta), dtype=torch.int64))
        openers = [lambda row=row: self.episode(row) for row in theta]
        return GymSimulators(self, theta, ids, ReplayTree(openers, self.spec.num_actions), torch.arange(len(theta)))

    def world(self, theta: Tensor, generator: torch.Generator) -> GymWorld:
        """A world that runs every episode in an environment of its own."""
        return GymWorld(self, require_theta(theta[None], self.theta_names)[0], generator)

    def truth(self, theta: Tensor) -> GroundTruth | None:
        """The ground truth of shared dynamics and a sensor that has `quadrature`, else None.

        Raises:
            GraphMismatchError: `latent` does not identify the states of a layer.
        """
        if not (self.shared_dynamics and hasattr(self.sensor, "quadrature")):
            return None
        theta = require_theta(theta, self.theta_names)
        self._check_dynamics(theta)
        graph, nodes = self._merged
        x, weight = self.sensor.quadrature(theta, self._tree.latent(nodes))
        B, xi, m, A = *weight.shape, self.spec.num_actions
        actions = torch.arange(A).repeat(xi).expand(B, xi * A)
        _, mean = self.moves(self._tree, theta, nodes.repeat_interleave(A).expand(B, xi * A), actions)
        reward = (mean / self.spec.reward_scale).reshape(B, xi, 1, A).expand(B, xi, m, A)
        return GroundTruth(graph, x, weight, reward)

    def parameters(self) -> dict:
        """Keyword arguments that rebuild this family."""
        return dict(self._settings)

    def episode(self, theta: Tensor) -> GymEpisode:
        """A new environment of theta [k], to be stepped for real."""
        return GymEpisode(self._make(theta), self._latent, self._reset, self.spec.horizon)

    def moves(self, tree: ReplayTree, theta: Tensor, nodes: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The next nodes [B, n] and mean rewards [B, n] of actions; 0 where the episode has ended."""
        following, raw = tree.step(nodes, actions)
        mean = self._reward(theta, Moves(tree.latent(nodes), actions, tree.latent(following), raw))
        mean = torch.where(tree.ended(nodes), 0.0, mean)
        top = self.spec.reward_scale if self.bernoulli_rewards else float("inf")
        if not bool(((mean >= 0) & (mean <= top)).all()):
            bad = mean[~((mean >= 0) & (mean <= top))]
            raise RewardError(
                expected=f"mean rewards in [0, {top:g}]",
                got=f"{float(bad[0]):g}",
                cause="rewards are not scaled, or costs below 0 (shift or drop them; give a reward model)",
            )
        return following, mean

    @cached_property
    def _tree(self) -> ReplayTree:
        """What happens along action paths, for all theta; used only where dynamics are shared."""
        theta = self.prior(1, torch.Generator().manual_seed(0))[0]
        return ReplayTree([lambda: self.episode(theta)], self.spec.num_actions)

    @cached_property
    def _merged(self) -> tuple[StateGraph, Tensor]:
        return merged_graph(self._tree, self.spec.horizon)

    @cached_property
    def _reference(self) -> list:
        """The traces that all theta must share, where dynamics are shared."""
        return self._traces(self.prior(1, torch.Generator().manual_seed(0))[0])

    def _check_dynamics(self, theta: Tensor) -> None:
        """Runs random paths twice on a sample of theta, and across theta where dynamics are shared."""
        for row in (theta[0], theta[-1]):
            key = tuple(row.tolist())
            if key not in self._trusted:
                traces = self._traces(row)
                if self.shared_dynamics:
                    require_same(self._reference, traces, "dynamics depend on theta: give shared_dynamics=False")
                self._trusted.add(key)

    def _traces(self, theta: Tensor) -> list:
        """What is seen along some paths: the same again, and in another instance with other random numbers inside."""
        A, H = self.spec.num_actions, self.spec.horizon
        paths = torch.randint(A, (PROBES, H), generator=torch.Generator().manual_seed(0)).tolist()
        paths += [[a] * H for a in range(min(A, PROBES))]
        one, other = self.episode(theta), self.episode(theta)
        traces = [one.trace(path) for path in paths]
        disturbed = [other.trace(path, disturb=i) for i, path in enumerate(paths)]
        for again in ([one.trace(path) for path in paths], disturbed):
            require_same(traces, again, "dynamics or starts are random (is_slippery? reset_options? reset noise?)")
        one.env.close(), other.env.close()
        return traces


class GymEpisode:
    """One environment and its running episode, padded: after its end it stays where it is and pays nothing.

    Args:
        env: the environment.
        latent: what to see of it.
        reset: keyword arguments of every reset.
        horizon: H.
    """

    def __init__(self, env: gymnasium.Env, latent: Latent, reset: dict, horizon: int):
        self.env, self.horizon = env, horizon
        self._latent, self._reset = latent, reset
        self._first_action = int(env.action_space.start)
        self.observation, self.ended, self._steps = None, False, 0

    def reset(self) -> list[float]:
        """A full reset; returns the latent numbers of the start."""
        self.observation, _ = self.env.reset(**self._reset)
        self.ended, self._steps = False, 0
        return self.latent()

    def latent(self) -> list[float]:
        """The latent numbers of the present state."""
        return [float(number) for number in self._latent(self.env.unwrapped, self.observation)]

    def move(self, action: int) -> object:
        """Takes an action; returns the raw reward as it came, which worlds ignore."""
        if self.ended:
            return 0.0
        self._steps += 1
        action = self._first_action + int(action)  # some environments accept numpy scalars or floats, some crash
        self.observation, reward, self.ended, truncated, _ = self.env.step(action)
        self.ended = bool(self.ended)
        if truncated and not self.ended and self._steps < self.horizon:
            raise SimulatorError(
                expected=f"an episode of {self.horizon} steps",
                got=f"one cut short after {self._steps}",
                cause="a time limit in the environment (max_episode_steps, or use env.unwrapped)",
            )
        return reward

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """`move` with all that simulators need: latent numbers, raw reward, whether the episode has ended."""
        reward = plain_reward(self.move(action))
        return self.latent(), reward, self.ended

    def trace(self, path: Sequence[int], *, disturb: int | None = None) -> list[tuple]:
        """(actions, raw observation, latent numbers, raw reward, ended) from the start to the end of a path.

        Args:
            path: actions.
            disturb: seed of a random generator that replaces the environment's own after the reset, so that the fixed
                seed of resets cannot hide noise in the dynamics.
        """
        latent = self.reset()
        seen = [((), copy.deepcopy(self.observation), latent, 0.0, False)]
        if disturb is not None:
            self.env.unwrapped.np_random = np.random.default_rng(disturb)
        for i, action in enumerate(path, start=1):
            latent, reward, ended = self.step(action)
            seen.append((tuple(path[:i]), copy.deepcopy(self.observation), latent, reward, ended))
        return seen


def usable_actions(env: gymnasium.Env, horizon: int) -> int:
    """A, after checking that the environment can be used at all; closes it.

    Raises:
        SettingError: a vector environment, autoreset, a time limit below H, or actions that are not discrete.
    """
    num_actions = checked_actions(env, horizon)
    env.close()
    return num_actions


def checked_actions(env: gymnasium.Env, horizon: int) -> int:
    """As `usable_actions`, and leaves the environment open."""

    def refuse(expected: str, got: str, cause: str):
        raise SettingError(expected=expected, got=got, cause=cause)

    if isinstance(env, gymnasium.vector.VectorEnv):
        refuse("a plain environment", type(env).__name__, "vector environments reset themselves and swallow an action")
    if not isinstance(env, gymnasium.Env):
        refuse("a gymnasium.Env", type(env).__name__, "`make` returns something else, or an old gym environment")
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.Autoreset):
            refuse("no autoreset", "the wrapper Autoreset", "a finished episode must stay finished")
        limit = layer._max_episode_steps if isinstance(layer, gymnasium.wrappers.TimeLimit) else horizon
        if limit < horizon:
            refuse(f"a time limit of at least {horizon}", str(limit), "give max_episode_steps, or use env.unwrapped")
        layer = layer.env
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        refuse("a Discrete action space", str(env.action_space), "continuous or composite actions: list a few of them")
    return int(env.action_space.n)


def plain_reward(reward: object) -> float:
    """A reward, whatever number or array of one number it is, as a float.

    >>> plain_reward(np.array([1], dtype=np.int32))
    1.0
    """
    numbers = np.asarray(reward, dtype=np.float64)
    if numbers.size != 1 or not np.isfinite(numbers).all():
        raise RewardError(expected="one finite reward", got=str(reward), cause="a vector of rewards, or a fault")
    return numbers.item()
