"""What the class F is trained on, and what networks are fitted to: rewards first, then values.

    r_hat[f, b, s, i, a]  what a network says, where an action's reward varies; elsewhere what was always paid
    Q_hat[f, b, s, i, a]  = r_hat[f, b, s, i, a] + V_hat[f, b, T(s, a)]
    V_hat[f, b, s]        = mean over i of max_a clamp(Q_hat[f, b, s, i, a], 0, 1)

The state graph is known, so values follow from rewards by backward induction, exactly: a layer's targets hold no fit of
a layer below, and errors of layers do not add up (docs/networks.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import StateGraph
from s2r_torch.episodes import Transitions


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Draws of theta that train F, and judge nothing."""

    D: Tensor  # [B, xi, G] estimated densities
    samples: tuple[Transitions, ...]  # [xi] transitions at every state

    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [self.D, *(part for t in self.samples for part in (t.x, t.actions, t.rewards))]

    def readings(self, states: list[int]) -> Tensor:
        """x [B, S, n, d] at these states."""
        return torch.stack([self.samples[s].x for s in states], 1)

    def actions(self, states: list[int]) -> Tensor:
        """The actions [B, S, n] that were tried there."""
        return torch.stack([self.samples[s].actions for s in states], 1)

    def rewards(self, states: list[int]) -> Tensor:
        """What they were paid, [B, S, n] float32."""
        return torch.stack([self.samples[s].rewards for s in states], 1).float()


@dataclass(frozen=True, eq=False)
class Payments:
    """Which actions are paid differently from sample to sample, and what the others are always paid.

    A reward that no sample shows is not known here: rare ones need more samples.
    """

    varies: Tensor  # [xi, A] bool
    constant: Tensor  # [xi, A] float32; 0 for an action that was never tried

    @staticmethod
    def of(data: TrainingData, num_actions: int) -> Payments:
        """From all samples of all simulators."""
        varies = torch.zeros(len(data.samples), num_actions, dtype=torch.bool)
        constant = torch.zeros(len(data.samples), num_actions, dtype=torch.float32)
        for s, sample in enumerate(data.samples):
            for a in range(num_actions):
                paid = sample.rewards[sample.actions == a].float()
                if len(paid):
                    constant[s, a], varies[s, a] = paid[0], bool((paid != paid[0]).any())
        return Payments(varies, constant)

    def layers(self, graph: StateGraph) -> list[int]:
        """The layers in which some reward varies, from the last one."""
        return [h for h in reversed(range(graph.horizon)) if bool(self.varies[graph.states_of(h)].any())]

    def completed(self, predicted: Tensor | None, states: list[int]) -> Tensor:
        """r_hat [..., S, n, A]: predictions, which None leaves out, where rewards vary; constants elsewhere."""
        constant = self.constant[states][:, None]  # [S, 1, A]
        return constant if predicted is None else torch.where(self.varies[states][:, None], predicted, constant)


def next_values(graph: StateGraph, V_hat: Tensor, states: list[int]) -> Tensor:
    """V_hat [F, B, xi] after every action: [F, B, S, 1, A]; 0 after the last layer."""
    following = graph.next_state[states]
    return (V_hat[:, :, following.clamp(min=0)] * (following >= 0))[..., None, :]


def values(Q_hat: Tensor) -> Tensor:
    """V_hat [F, B, S] of Q_hat [F, B, S, n, A]."""
    return Q_hat.clamp(0, 1).amax(-1).mean(-1)
