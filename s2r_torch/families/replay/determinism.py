"""Is what happens along an action path always the same? Paths are run again, in other ways, before replays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s2r_torch.families.randomness import shaken, states
from s2r_torch.families.replay.sameness import Seen, Trace, require_same, same
from s2r_torch.families.replay.tree import Episode

EXAMINED = 2  # theta whose paths are run in every way, where all share the dynamics; of others each trace is compared
COMPARED = 16  # theta whose dynamics are compared with the first one's, in every set of simulators
RARE = 40  # further times that paths are run where steps draw random numbers: what happens in 1 of 100 is seen
PROBES = 4  # random paths, and up to as many constant ones
RANDOM = "dynamics or starts are random (is_slippery? reset_options? reset noise? a generator that is never seeded?)"
HIDDEN = (
    "dynamics are random, which a fixed seed at every reset hides: they draw from the environment's own generator, or "
    "from numpy's, random's or torch's global one (is_slippery?)"
)
SEEDED = (
    "dynamics depend on the seed of the reset: noise that a fixed seed hides, or a layout that is drawn from it (then "
    "fix it in `make` or by reset_options)"
)
BY_THETA = "dynamics depend on theta: give shared_dynamics=False"
PAID_BY_THETA = (
    "the environment's own rewards depend on theta: pay through a reward model, or give shared_dynamics=False"
)
PAID_AT_RANDOM = "rewards are random: give their mean (the family draws with it, bernoulli_rewards=True)"


class Dynamics(Protocol):
    """Deterministic latent dynamics with a fixed start."""

    @property
    def shared(self) -> bool:
        """Theta does not change them."""

    def sizes(self, theta: Tensor, horizon: int | None) -> tuple[int, int | None]:
        """The number of actions, and after how many steps episodes are cut, if they are; checks what can be checked."""

    def episode(self, theta: Tensor, horizon: int, other_seed: bool = False) -> Episode:
        """Episodes of one theta [k]; with a new seed at every reset instead of the usual one, where there is one."""


def probe_paths(num_actions: int, horizon: int) -> list[list[int]]:
    """The paths that are run again."""
    paths = torch.randint(num_actions, (PROBES, horizon), generator=torch.Generator().manual_seed(0)).tolist()
    return paths + [[a] * horizon for a in range(min(num_actions, PROBES))]


def trace(episode: Episode, path: Sequence[int], shake: int | None = None) -> Trace:
    """What is seen from the start to the end of a path.

    Args:
        episode: the environment.
        path: actions.
        shake: seed of other states that all generators are put into after the reset.
    """
    latent = episode.reset()
    seen = [Seen((), _copied(episode.observation), tuple(latent), 0.0, False)]
    with nullcontext() if shake is None else shaken(episode.source, shake):
        for i, action in enumerate(path, start=1):
            latent, reward, ended = episode.step(action)
            seen.append(Seen(tuple(path[:i]), _copied(episode.observation), tuple(latent), reward, ended))
    return seen


def _copied(observation: object) -> object:
    """What an environment that uses its buffer again does not change."""
    return np.array(observation) if isinstance(observation, memoryview) else copy.deepcopy(observation)


def draws(episode: Episode, path: Sequence[int]) -> bool:
    """Whether any generator that can be reached is in another state after the steps of a path than before them."""
    episode.reset()
    before = states(episode.source)
    for action in path:
        episode.step(action)
    return states(episode.source) != before


def plain_traces(dynamics: Dynamics, theta: Tensor, num_actions: int, horizon: int) -> list[Trace]:
    """What is seen along the probe paths under theta [k], each run once."""
    episode = dynamics.episode(theta, horizon)
    try:
        return [trace(episode, path) for path in probe_paths(num_actions, horizon)]
    finally:
        episode.close()


def deterministic_traces(
    dynamics: Dynamics, theta: Tensor, num_actions: int, horizon: int
) -> tuple[list[Trace], str | None]:
    """What is seen along the probe paths, after running them again in every way that could show a difference.

    Again in the same environment; in another one, whose generators are put into other states after the reset; and with
    other seeds of the resets.

    Returns:
        The traces, and a word on starts that depend on the seed of the reset, if they do.

    Raises:
        SimulatorError: dynamics or starts are random.
    """
    paths = probe_paths(num_actions, horizon)
    one, other, reseeded = (dynamics.episode(theta, horizon, other_seed=seed) for seed in (False, False, True))
    try:
        traces = [trace(one, path) for path in paths]
        trace(one, paths[0][:1])  # a step more: what counts its calls is found, also where its period divides theirs
        require_same(traces, [trace(one, path) for path in paths], RANDOM, PAID_AT_RANDOM)
        require_same(traces, [trace(other, path) for path in paths], RANDOM, PAID_AT_RANDOM)
        shakes = 1 + (RARE if any(draws(other, path) for path in paths) else 0)
        for k in range(shakes):
            shaken_ = [trace(other, path, shake=k * len(paths) + i) for i, path in enumerate(paths)]
            require_same(traces, shaken_, HIDDEN, PAID_AT_RANDOM)
        seeded = [trace(reseeded, path) for path in paths]
        for first, again in zip(traces, seeded, strict=True):
            if not same((first[0].observation, first[0].latent), (again[0].observation, again[0].latent)):
                return traces, f"another seed of the reset starts elsewhere: {again[0]}, not {first[0]}"
        require_same(traces, seeded, SEEDED, PAID_AT_RANDOM)
        return traces, None
    finally:
        for episode in (one, other, reseeded):
            episode.close()


class Trust:
    """Which theta's dynamics have been run again, so that their replays can be relied on.

    Args:
        dynamics: what actions lead to.
        first: `[k]` the theta that all others are compared with, where dynamics are shared.
        num_actions: A.
        horizon: H.
    """

    def __init__(self, dynamics: Dynamics, first: Tensor, num_actions: int, horizon: int):
        self._dynamics, self._first, self._sizes = dynamics, first, (num_actions, horizon)
        self._trusted: set[tuple[float, ...]] = set()
        self._examined = 0
        self._reference: list[Trace] | None = None

    def require(self, theta: Tensor, *, rewards: bool) -> str | None:
        """Runs paths again and again for the first and the last of theta [B, k], and once for some between.

        Where dynamics are shared, and two theta were looked at so closely, once for all: each trace is compared with
        that of the very first theta. Parts of these theta are not looked at again.

        Args:
            theta: `[B, k]`.
            rewards: whether the environment's own rewards must be the same for all theta.

        Returns:
            A word on starts that depend on the seed of the reset, if they do.

        Raises:
            SimulatorError: dynamics are random, or differ between theta although they are shared.
        """
        last, said = len(theta) - 1, None
        between = torch.linspace(0, last, min(len(theta), COMPARED)).round().long().tolist()
        for i in dict.fromkeys((0, last, *(between if self._dynamics.shared else ()))):
            key = tuple(theta[i].tolist())
            if key in self._trusted:
                continue
            if i in (0, last) and not (self._dynamics.shared and self._examined >= EXAMINED):
                self._examined += 1
                traces, seeded = deterministic_traces(self._dynamics, theta[i], *self._sizes)
                said = said or seeded
            else:
                traces = plain_traces(self._dynamics, theta[i], *self._sizes)
            if self._dynamics.shared:
                self._compare(traces, rewards)
        self.include(theta)
        return said

    def include(self, theta: Tensor) -> None:
        """Relies on theta [B, k] from now on: they were looked at as a whole, here or where they come from."""
        self._trusted.update(map(tuple, theta.tolist()))

    def _compare(self, traces: list[Trace], rewards: bool) -> None:
        if self._reference is None:
            self._reference = plain_traces(self._dynamics, self._first, *self._sizes)
        require_same(self._reference, traces, BY_THETA, PAID_BY_THETA, rewards=rewards)
