r"""What training has not learned: the regret of every layer against the targets it was fitted to.

The performance difference of greedy f against the values Q_hat that it was fitted to (data.py) is a sum over layers:

    V_hat(start) - V_hat^f(start) = sum over h of  E_{s ~ f}[ max_a Q_hat(s, x, a) - Q_hat(s, x, greedy f(x)) ]

with s drawn as f itself walks the graph. So it tells at which layer more steps would help. It is measured on simulators
that no batch used; what it cannot see is an error of the rewards that Q_hat was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import StateGraph
from s2r_torch.predictors.ensemble import greedy_actions


@dataclass(frozen=True, eq=False)
class Shortfall:
    """Regret by layer [F, H] of every member, in units of an episode's total reward, and the value V_hat [F] missed."""

    regret: Tensor
    value: Tensor

    @property
    def of_class(self) -> Tensor:
        """The median member's, by layer: [H]."""
        return self.regret.quantile(0.5, dim=0)

    def layers_above(self, tolerance: float) -> list[int]:
        """The fewest layers without which the median member loses at most that share of the value."""
        by_layer, allowed = self.of_class, tolerance * float(self.value.median())
        chosen: list[int] = []
        for layer in by_layer.argsort(descending=True).tolist():
            if float(by_layer.sum() - by_layer[chosen].sum()) <= allowed:
                break
            chosen.append(layer)
        return sorted(chosen, reverse=True)

    def sentence(self, tolerance: float) -> str:
        """What to tell a user, or nothing."""
        layers = self.layers_above(tolerance)
        lost = float(self.of_class.sum() / self.value.median().clamp(min=1e-9))
        if not layers:
            return ""
        named = ", ".join(map(str, sorted(layers)))
        return (
            f"training falls short at layer{'s' * (len(layers) > 1)} {named}: the median member loses {lost:.1%} of "
            "what its own targets promise; more predictors.training.rounds or steps, or another network"
        )


def shortfall(graph: StateGraph, of_layer: Callable[[int], tuple[Tensor, Tensor]], value: Tensor, b: int) -> Shortfall:
    """Walks every member's greedy policy through the graph, on samples.

    Args:
        graph: the state graph.
        of_layer: h -> (what f says [F, b, S, n, A], its targets Q_hat of that shape).
        value: V_hat [F] of the start.
        b: how many simulators.
    """
    visited = torch.zeros(len(value), b, graph.num_states, dtype=torch.float64)
    visited[:, :, 0] = 1
    regret = torch.zeros(len(value), graph.horizon, dtype=torch.float64)
    for layer in range(graph.horizon):
        states = graph.states_of(layer)
        q, target = of_layer(layer)
        action = greedy_actions(q)  # [F, b, S, n]
        lost = target.amax(-1) - target.gather(-1, action[..., None]).squeeze(-1)
        here = visited[:, :, states]  # [F, b, S]
        regret[:, layer] = (here * lost.double().mean(-1)).sum(2).mean(1)
        for a in range(graph.num_actions if layer + 1 < graph.horizon else 0):
            share = here * (action == a).double().mean(-1)
            visited.index_add_(2, graph.next_state[states, a], share)
    return Shortfall(regret, value.double())
