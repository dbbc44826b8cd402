"""Which simulators the batches of a fit use, how members weight them, and which are held out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.rng import Seed

MOST = 0.25  # share of a batch at the most readings, which policies are judged at


@dataclass(frozen=True, eq=False)
class Draw:
    """Which simulators batches use, and how members weight them."""

    weight: Tensor  # [F, B]
    batched: int  # the first ones
    draws: tuple[int, ...]  # of the densities of all simulators, level by level: R = sum(draws) B rows

    @staticmethod
    def of(members: int, count: int, draws: tuple[int, ...], settings: TrainingSettings, seed: Seed) -> Draw:
        """Holds simulators out, and draws a Bayesian bootstrap over simulators where that is wanted."""
        held_out = int(settings.held_out * count)
        weight = torch.ones(members, count, dtype=torch.float32)
        if settings.bootstrap:
            uniform = torch.rand(members, count, generator=seed.child("bootstrap").generator(), dtype=torch.float32)
            weight = -uniform.clamp(min=1e-12).log()
        return Draw(weight, count - (held_out if held_out > 1 else 0), draws)

    @property
    def count(self) -> int:
        """B."""
        return self.weight.shape[1]

    def some_draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Random draws [count] of densities: of the first level, of the most readings, with probability `MOST`, of the
        others alike; of those of a level, any.
        """
        levels = len(self.draws)
        fewer = torch.randint(1, max(2, levels), (count,), generator=generator)
        most = torch.rand(count, generator=generator) < (MOST if levels > 1 else 1.0)
        level, share = torch.where(most, 0, fewer), torch.rand(count, generator=generator)
        return self._first[level] + (share * torch.tensor(self.draws)[level]).long()

    def held_out(self, levels: int) -> Tensor:
        """The rows of the first draws of the first levels that no batch uses; all where no simulator is held out."""
        first = self.batched if self.batched < self.count else 0
        return (self._first[:levels, None] * self.count + torch.arange(first, self.count)).flatten()

    @property
    def _first(self) -> Tensor:
        """The first draw of every level."""
        return torch.tensor((0, *self.draws)).cumsum(0)[:-1]

    def learned(self, count: int) -> Tensor:
        """So many rows of the first level that batches use, or all of them."""
        return torch.arange(min(count, self.batched))
