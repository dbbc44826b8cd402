"""What an encoder is fitted on: episodes along many action sequences, the same ones in every simulator.

Raw readings are large and are never held all at once: `Views.through(phi)` draws them part by part and keeps phi's few
numbers. Sequences that pay in a first survey come first, so that rare rewards are among what is seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.episodes import Guard, rollout
from s2r_torch.rng import Seed

PREFIXES = 32  # action paths of H - 1 steps that are looked at
REPEATS = 16  # episodes along each of them
SURVEYED, MOST_SURVEYED = 8, 1024  # simulators, and sequences, that the paths are chosen from
PILOTS, PILOT_READINGS, PILOT_NUMBERS = 32, 2**14, 2**26  # simulators, readings, and numbers that are held raw
AT_ONCE = 2**20  # raw numbers drawn at once: what goes out of cache takes three times as long


@dataclass(frozen=True, eq=False)
class Seen:
    """Features and rewards of episodes along the same sequences in B simulators.

    Args:
        z: `[B, n, H, d]` features.
        rewards: `[B, n, H]` what was paid, in units of total reward.
        sequences: `[n, H]` the actions taken.
    """

    z: Tensor  # [B, n, H, d]
    rewards: Tensor  # [B, n, H]
    sequences: Tensor  # [n, H]

    def select(self, rows: Tensor | slice) -> Seen:
        """The simulators at these positions."""
        return Seen(self.z[rows], self.rewards[rows], self.sequences)


class Views:
    """Episodes of simulators, drawn when they are asked for and counted each time.

    Args:
        simulators: B guarded ones, which nothing else is learned or judged on.
        seed: named stream; the same views are the same bits.
    """

    def __init__(self, simulators: Guard, seed: Seed):
        self.simulators, self.spec, self._seed = simulators, simulators.spec, seed

    @cached_property
    def sequences(self) -> Tensor:
        """Action sequences `[n, H]`: up to 32 different paths of H - 1 actions, 16 times each, last actions in turn."""
        A, paths = self.spec.num_actions, self._paths()
        repeated = paths.repeat_interleave(REPEATS, 0)
        last = torch.arange(len(repeated)) % A
        return torch.cat([repeated, last[:, None]], 1)

    @cached_property
    def pilot(self) -> Tensor:
        """Raw readings `[N, D]`, float32, of some simulators and all steps."""
        few = self.simulators.select(range(min(PILOTS, len(self.simulators))))
        H, most = self.spec.horizon, min(PILOT_READINGS, PILOT_NUMBERS // self.spec.obs_dim)
        n = max(1, most // (len(few) * H))
        rows = torch.linspace(0, len(self.sequences) - 1, n).round().long()
        x, _ = _episodes(few, self.sequences[rows], self._seed.child("pilot"), lambda x: x.float())
        return x.flatten(0, 2)

    def through(self, phi: Callable[[Tensor], Tensor]) -> Seen:
        """All episodes of all simulators, seen through phi: [..., D] -> [..., d]."""
        count = max(1, AT_ONCE // (len(self.sequences) * self.spec.obs_dim))
        parts = torch.arange(len(self.simulators)).split(count)
        drawn = [_episodes(self.simulators.select(p.tolist()), self.sequences, self._seed, phi) for p in parts]
        z, rewards = zip(*drawn, strict=True)
        return Seen(torch.cat(z), torch.cat(rewards), self.sequences)

    def _paths(self) -> Tensor:
        """Paths [K, H - 1]: all, or those of the sequences that paid most in a survey and others at random."""
        A, H = self.spec.num_actions, self.spec.horizon
        if (H - 1) * math.log(A) <= math.log(PREFIXES):
            return torch.tensor([*itertools.product(range(A), repeat=H - 1)], dtype=torch.int64)
        generator = self._seed.child("paths").generator()
        tried = torch.randint(A, (MOST_SURVEYED, H), generator=generator)
        few = self.simulators.select(range(min(SURVEYED, len(self.simulators))))
        _, rewards = _episodes(few, tried, self._seed.child("survey"), lambda x: x[..., :1])
        order = rewards.sum(-1).mean(0).argsort(descending=True, stable=True)
        paid, rest = tried[order[: PREFIXES // 2], :-1], tried[order[PREFIXES // 2 :], :-1]
        return torch.cat([paid, rest]).unique(dim=0, sorted=False)[:PREFIXES]


def _episodes(simulators: Guard, actions: Tensor, seed: Seed, phi: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Whole episodes along actions [n, H]: phi of what was read [B, n, H, d], and rewards [B, n, H]."""

    def act(step: int, x: Tensor) -> Tensor:
        return actions[:, step].expand(len(simulators), -1).contiguous()

    seen = rollout(simulators, act, len(actions), seed, phi)
    return seen.x, seen.rewards
