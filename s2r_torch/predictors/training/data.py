"""What networks are trained on; it needs no trainer, so whoever passes it on waits for none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from s2r_torch.episodes import Transitions


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Draws of theta that train F, and judge nothing."""

    D: Tensor  # [B, xi, G] estimated densities
    samples: tuple[Transitions, ...]  # [xi] transitions at every state

    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [self.D, *(part for t in self.samples for part in (t.x, t.actions, t.rewards))]
