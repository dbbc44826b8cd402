"""The states of stacked members that join the class: of every span of training, the last that is not known worse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from s2r_torch.predictors.nets.net import Net

WORSE = 2.0  # standard errors by which a state must be worse to be passed over

Weights = dict[str, Tensor]  # by name, the members as first axis


class Snapshots:
    """One state of every member for each span of a layer's steps.

    A later state replaces the one kept of its span unless it is worse on held-out simulators, by more than `WORSE`
    standard errors of the paired difference. So a fit that converges keeps its last, annealed state, not the luckiest
    one, and a member that diverges is kept from before. The first state of a span is kept, whatever its risk.

    Args:
        steps: of a layer.
        spans: how many spans of about the same length a layer's steps are cut into, at most `steps`.
    """

    def __init__(self, steps: int, spans: int):
        self.ends = [round(steps * (k + 1) / spans) for k in range(spans)]  # last step of each, counted from 1
        self.kept: list[Weights] = [{} for _ in range(spans)]
        self.risks: Tensor | None = None  # [F, b] of what is kept of the current span

    def look(self, step: int, weights: Weights, risks: Tensor) -> None:
        """Looks at the members' states after `step` steps of the layer, counted from 1.

        Args:
            step: steps of the layer that are done.
            weights: the layer's, [F, ...]; copied.
            risks: `[F, b]` Bellman risks on b simulators.
        """
        kept = self.kept[next(k for k, end in enumerate(self.ends) if step <= end)]
        if self.risks is None:
            kept.update({name: value.clone() for name, value in weights.items()})
            self.risks = risks
        else:
            replaced = not_worse(risks, self.risks)
            for name, value in weights.items():
                kept[name] = torch.where(replaced.view(-1, *[1] * (value.ndim - 1)), value, kept[name])
            self.risks = torch.where(replaced[:, None], risks, self.risks)
        if step in self.ends:
            self.risks = None

    def finish(self, weights: Weights) -> None:
        """Ends early: spans without a state get this one."""
        for kept in self.kept:
            for name, value in weights.items():
                kept.setdefault(name, value.clone())
        self.risks = None

    def stacked(self) -> Weights:
        """All snapshots as members of one class, span by span, on the CPU."""
        return {name: torch.cat([kept[name] for kept in self.kept]).cpu() for name in self.kept[0]}

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        named = {f"{k}.{name}": value for k, kept in enumerate(self.kept) for name, value in kept.items()}
        return named if self.risks is None else {**named, "risks": self.risks}

    def load(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Takes up what `tensors` gave."""
        for place, value in tensors.items():
            span, _, name = place.partition(".")
            if name:
                self.kept[int(span)][name] = value.to(device)
            else:
                self.risks = value.to(device)


def not_worse(risks: Tensor, before: Tensor) -> Tensor:
    """Which members' risks [F, b] are not larger than before by more than chance explains: [F] bool.

    A risk that is not finite is worse, unless it was not finite before.
    """
    more = risks - before
    error = more.std(1) / math.sqrt(more.shape[1]) if more.shape[1] > 1 else torch.zeros_like(more[:, 0])
    return (more.mean(1) <= WORSE * error) | ~torch.isfinite(before).all(1)


def layer_weights(net: Net, layer: int) -> Weights:
    """The weights of one layer, by name, members first; views, not copies."""
    return {name: value for name, value in net.stacked().items() if name.startswith(f"steps.{layer}.")}
