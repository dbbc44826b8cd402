"""What networks are trained on; it needs no trainer, so whoever passes it on waits for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities, Patches
from s2r_torch.episodes import Transitions


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Draws of theta that train F, and judge nothing."""

    D: Densities  # [B, xi, G] estimated
    samples: tuple[Transitions, ...]  # [xi] transitions at every state
    readings: float = 1.0  # behind every density of D
    fewer: Mapping[float, Densities] = field(default_factory=dict)  # fewer readings -> [k B, xi, G], k draws of them

    @property
    def draws(self) -> tuple[int, ...]:
        """How often densities of all simulators were drawn, level by level."""
        return tuple(len(D) // len(self.D) for D in self.levels.values())

    @property
    def levels(self) -> dict[float, Densities]:
        """Readings behind the density of a state (geometric mean over states) -> densities; those of D come first."""
        return {self.readings: self.D, **self.fewer}

    def tensors(self) -> list[Tensor]:
        """All of it."""
        levels = [torch.tensor([*self.levels], dtype=torch.float64)]
        for D in self.levels.values():
            levels += [D.first, D.values] if isinstance(D, Patches) else [D]
        return [*levels, *(part for t in self.samples for part in (t.x, t.actions, t.rewards))]

    def mean_rewards(self, num_actions: int) -> Tensor:
        """What every action paid on average at every state of every simulator: [B, xi, A], float64."""
        found = []
        for t in self.samples:
            tried = torch.nn.functional.one_hot(t.actions, num_actions).double()  # [B, n, A]
            found.append((tried * t.rewards[..., None]).sum(1) / tried.sum(1).clamp(min=1))
        return torch.stack(found, 1)

    def columns(self, states: list[int]) -> Transitions:
        """All samples at these states, state by state: x [B, m, d], actions and rewards [B, m], m = S n."""
        some = [self.samples[s] for s in states]
        return Transitions(
            torch.cat([t.x for t in some], 1),
            torch.cat([t.actions for t in some], 1),
            torch.cat([t.rewards for t in some], 1),
        )
