"""The states of stacked members that join the class: of every span of training, each member's best."""

from __future__ import annotations

import torch
from torch import Tensor

Weights = dict[str, Tensor]  # by name, the members as first axis


class BestStates:
    """Every member's state of least risk in each span of a layer's steps.

    The first state that is seen in a span is kept, whatever its risk; a risk that is not finite never improves on one.

    Args:
        members: F.
        steps: of a layer.
        spans: how many spans of about the same length a layer's steps are cut into, at most `steps`.
    """

    def __init__(self, members: int, steps: int, spans: int):
        self.ends = [round(steps * (k + 1) / spans) for k in range(spans)]  # last step of each, counted from 1
        self.kept: list[Weights] = [{} for _ in range(spans)]
        self.best = torch.full((members,), torch.inf)  # risks [F] of what is kept of the current span

    def look(self, step: int, weights: Weights, risks: Tensor) -> None:
        """Keeps the members that are better than before in the span of `step`, in 1 .. steps.

        Args:
            step: steps of the layer that are done.
            weights: the layer's, [F, ...]; copied.
            risks: `[F]`.
        """
        kept = self.kept[next(k for k, end in enumerate(self.ends) if step <= end)]
        for name, value in weights.items():
            better = (risks < self.best.to(risks.device)).view(-1, *[1] * (value.ndim - 1))
            kept[name] = torch.where(better, value, kept[name]) if name in kept else value.clone()
        self.best = torch.minimum(self.best.to(risks.device), risks.nan_to_num(torch.inf))
        if step in self.ends:
            self.best = torch.full_like(self.best, torch.inf)

    def stacked(self) -> Weights:
        """All snapshots as members of one class, span by span, on the CPU."""
        return {name: torch.cat([kept[name] for kept in self.kept]).cpu() for name in self.kept[0]}

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        named = {f"{k}.{name}": value for k, kept in enumerate(self.kept) for name, value in kept.items()}
        return {**named, "best": self.best}

    def load(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Takes up what `tensors` gave."""
        self.best = tensors["best"].to(device)
        for place, value in tensors.items():
            span, _, name = place.partition(".")
            if name:
                self.kept[int(span)][name] = value.to(device)
