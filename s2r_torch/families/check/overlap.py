"""Does one reading tell what to do? Assumption 1, where what pays is known of every state.

A policy acts on one reading and its world's densities. Where readings of two states of a layer overlap and the two want
different actions, no policy acts right in both, and no predictor holds both values.

    overlap(s, s')   (share of readings of s nearer to one of s' than to another of s) + (vice versa), at most 1
    loss(s, s')      min_a max(V(s) - Q(s, a), V(s') - Q(s', a)), from mean rewards by dynamic programming

The first is 0 for readings that never overlap and 1 for states that show the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.encoders.choosing import nearer_to_others
from s2r_torch.families.check.probe import FEW, Probe
from s2r_torch.families.check.report import NOTE, OK, Finding
from s2r_torch.graph import StateGraph
from s2r_torch.tours import readings

READINGS = 48  # of every state
COSTS = 0.03  # of the optimum, that overlapping states must lose to be told


def check_overlap(probe: Probe, graph: StateGraph, theta: Tensor, rewards: Tensor) -> Finding:
    """Whether overlapping states want the same action.

    Args:
        probe: the family.
        graph: its states.
        theta: `[B, k]`.
        rewards: `[B, xi, A]` mean rewards.
    """
    checked = "one reading tells what to do"
    theta, rewards = theta[:FEW], rewards[:FEW]
    V, _ = graph.best_totals(rewards)  # [B, xi]
    drawn = readings(probe.simulators(theta), graph, READINGS, probe.seed.child("overlap"))
    worst = (0.0, 0.0, 0, 0)
    for step in range(graph.horizon):
        states = graph.states_of(step)
        lost = V[:, states, None] - rewards[:, states] - graph.values_after(V, states)  # [B, S, A]
        loss = torch.maximum(lost[:, :, None], lost[:, None]).amin(-1)  # [B, S, S]
        if float(loss.max()) <= 0.0:
            continue
        shared = overlaps(torch.stack([drawn[s] for s in states], 1))
        costs = (shared * loss).mean(0).fill_diagonal_(0.0)
        s, other = divmod(int(costs.argmax()), len(states))
        if float(costs.max()) > worst[0]:
            worst = float(costs.max()), float(shared.mean(0)[s, other]), states[s], states[other]
    cost, share, s, other = worst
    if cost <= COSTS * float(V[:, 0].mean()):
        return Finding(checked, OK, "where readings of two states overlap, the same actions are good in both")
    return Finding(
        checked,
        NOTE,
        f"readings after actions {graph.paths[s]} and {graph.paths[other]} overlap by {share:.0%}, and the best "
        f"actions differ: acting alike there loses {cost / share:.3f}",
        "a reading does not tell these states apart, whatever the densities are (Assumption 1)",
        "less noise, another sensor, or more of the state in a reading",
    )


def overlaps(x: Tensor) -> Tensor:
    """How far readings [B, S, n, d] of S states overlap: [B, S, S], 1 where two show the same, 0 where none is near."""
    scale = x.flatten(1, 2).std(1).clamp(min=1e-300)[:, None, None]  # [B, 1, 1, d]
    nearer = nearer_to_others(x / scale)
    return (nearer + nearer.mT).clamp(max=1)
