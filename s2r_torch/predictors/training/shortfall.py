r"""What training has not learned: errors of rewards, and the regret of every layer against its targets.

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

from s2r_torch.graph import StateGraph
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


def shortfall(graph: StateGraph, of_layer: Callable[[int], tuple[Tensor, Tensor]], value: Tensor) -> Shortfall:
    """Walks every member's greedy policy through the graph, on samples.

    Args:
        graph: the state graph.
        of_layer: h -> (what f says [F, b, S, n, A], its targets Q_hat of that shape).
        value: V_hat [F] of the start.
    """
    leaving, lost = [], []
    for layer in range(graph.horizon):
        q, target = of_layer(layer)
        action = greedy_actions(q)  # [F, b, S, n]
        taken = target.gather(-1, action[..., None]).squeeze(-1)
        lost.append((target.amax(-1) - taken).double().mean(-1))
        leaving.append(torch.stack([(action == a).double().mean(-1) for a in range(graph.num_actions)], -1))
    visited = graph.walked(leaving)  # [F, b, xi]
    regret = [(visited[..., graph.states_of(h)] * missed).sum(2).mean(1) for h, missed in enumerate(lost)]
    return Shortfall(torch.stack(regret, 1), value.double())


def unexplained(said: Tensor, paid: Tensor, tried: Tensor) -> Tensor:
    r"""The mean squared error of mean rewards, free of the noise of single ones: [F].

    A cell holds the n samples of one state and action in one simulator. Their errors e_i = said_i - paid_i share a mean
    and have independent noise, so that products of different ones tell the square of their mean:

        E[e_i e_j] = (mean of e)^2      estimate = ((sum e)^2 - sum e^2) / (n (n - 1))

    Args:
        said: `[F, b, S, n, A]` what members say of rewards.
        paid: `[b, S, n, A]` rewards, of the action that was tried.
        tried: `[b, S, n, A]` 1 for the action tried, where its reward varies; else 0.
    """
    error = (said - paid) * tried
    sums, squares, count = error.sum(3), error.square().sum(3), tried.sum(2)  # [F, b, S, A], [b, S, A]
    known = count >= 2
    pairs = (sums.square() - squares) / (count * (count - 1)).clamp(min=1)
    return (pairs * known).sum((1, 2, 3)).double() / known.sum().clamp(min=1)


def spread(paid: Tensor, tried: Tensor) -> float:
    """The variance over simulators of mean rewards, free of the noise of single ones, averaged over states and actions.

    Shapes as for `unexplained`; 0 or less where rewards do not tell simulators apart.
    """
    count = tried.sum(2)
    known = (count >= 2).double()  # [b, S, A]
    mean = (paid * tried).sum(2).double() / count.clamp(min=1)
    b = known.sum(0)
    across = ((mean * known).sum(0).square() - (mean.square() * known).sum(0)) / (b * (b - 1)).clamp(min=1)
    within = unexplained(torch.zeros_like(paid)[None], paid, tried)
    cells = (b >= 2).double() * b
    return float(within - (across * cells).sum() / cells.sum().clamp(min=1))
