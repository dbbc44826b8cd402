r"""What the sample sizes of a run buy: before it, for any class that holds f*; after it, from its own survivors.

    before   V* - V <= sum_h Loss_h + ..., sharp rule               (theory.md 2.5, `planner.budget.accuracy_of`)
    after    Loss(s) <= 2 sqrt(A) R(s) + b_bar + 2 max_a T(s a)     (theory.md 2.7; b_bar >= 2 phi_D)

with R the accuracy that the survivors' spread shows and T their largest disagreement on V_hat. The latter needs f*
among the survivors, so trained classes have none, and every state learned, which the sweep does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2r_torch.graph import StateGraph
from s2r_torch.learning.elimination import Knowledge
from s2r_torch.planner.budget import Budget, accuracy_of


@dataclass(frozen=True)
class Bought:
    """Bounds on what a survivor loses, in units of total reward; 1 or more says nothing."""

    before: float  # on real worlds, for any class that holds f*, by the sharp rule
    after: float | None  # on the run's own simulators; None for trained classes, or where a state was not learned
    unlearned: int  # states at which TD-Eliminate was never called


def bought(knowledge: Knowledge, graph: StateGraph, budget: Budget, consensus: bool, reward_width: float) -> Bought:
    """What a run's sizes bought.

    Args:
        knowledge: at its end.
        graph: its state graph.
        budget: its budget.
        consensus: whether values came from Consensus too.
        reward_width: width of the range of one step's reward.
    """
    before = accuracy_of(budget, consensus=consensus, reward_width=reward_width).suboptimality
    unlearned = int((~knowledge.learned).sum())
    known = unlearned == 0 and all(call.shown is not None for call in knowledge.history)
    return Bought(before, shown_loss(knowledge, graph) if known else None, unlearned)


def shown_loss(knowledge: Knowledge, graph: StateGraph) -> float:
    """sum_h max over states of Loss(s): what any survivor loses at most on the run's simulators, if f* is one.

    Every state was learned, by an exact class.
    """
    root, loss = 2 * math.sqrt(graph.num_actions), [0.0] * graph.horizon
    values = knowledge.V_hat[knowledge.alive]
    spread = (values.amax(0) - values.amin(0)).amax(0)  # [xi] T
    for call in knowledge.history:
        step, following = int(graph.layer[call.state]), graph.next_state[call.state]
        below = float((spread[following.clamp(min=0)] * (following >= 0)).max())
        loss[step] = max(loss[step], root * (call.shown or 0.0) + call.b_bar + 2 * below)
    return sum(loss)
