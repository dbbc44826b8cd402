"""Uniformly random actions: what nothing at all is worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.episodes import Act
from s2r_torch.families.exact import uniform_value
from s2r_torch.rng import Seed


def uniform(num_actions: int, seed: Seed) -> Act:
    """The policy of uniformly random actions."""
    generator = seed.generator()
    return lambda step, x: torch.randint(num_actions, x.shape[:2], generator=generator)


@dataclass(frozen=True)
class Uniform:
    """Knows how many actions there are."""

    num_actions: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Fresh actions in every world."""
        return Attempt(uniform(self.num_actions, worlds.seed.child("actions")), exact=uniform_value)


@register_comparator("random")
@dataclass(frozen=True)
class RandomActions:
    """Uniformly random actions."""

    label = "random actions"
    access = Access()
    learner = Uniform

    def fit(self, known: Known) -> Uniform:
        """Nothing to learn."""
        return Uniform(known.problem.spec.num_actions)
