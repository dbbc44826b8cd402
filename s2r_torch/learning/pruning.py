r"""Which states of the graph are worth looking at: those that good lists of actions pass, and those that tell which.

Dynamics are shared and deterministic, so a simulator's optimum is a list of actions, unless rewards depend on the
readings at hand. Many lists earn the same, and few of them serve all theta: a state that none of these passes costs
real episodes along sequences of its own, and brings nothing. From the training simulators alone, by mean rewards R_A,
R_B of two halves of their draws, without what is noise in them (`signal`), and by statistics of readings:

    lists    greedily those that raise  mean_b max_{l in L} R_A[b, l]  most, the best fixed list first, until
             v(L) = mean_b R_B[b, argmax_{l in L} R_A[b, l]]  is within `tolerance` of v(all)
    telling  sequences of the path cover, greedily, until statistics at the states kept choose among L as well as those
             at all states, within `tolerance` and what noise of that size explains

The states on these are kept, with all edges between them. What leads elsewhere leads outside (`StateGraph`), where
nothing more is earned: the pruned problem is a lower bound on the whole, at every theta. Where rewards depend on
readings, nothing is pruned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.coverage import path_cover
from s2r_torch.encoders.regression import Regression, statistics_of
from s2r_torch.episodes import Guard
from s2r_torch.graph import Path, StateGraph
from s2r_torch.rng import Seed
from s2r_torch.schema import Range, Settings, Size
from s2r_torch.tours import decisions
from s2r_torch.workers.simulators import in_parts, map_simulators

MOST_LISTS, MOST_SEQUENCES = 64, 16  # that are tried
STATES = (1, 2, 4, 8, 16)  # that statistics are taken of together
QUANTILES = 5
SURELY = 2.0  # standard errors by which further states must tell more
LARGEST_Z = 4.0  # of one state's rewards, if they do not depend on readings: probability 3e-5


@dataclass(frozen=True)
class PruningSettings(Settings):
    """How states that are worth looking at are found.

    Args:
        tolerance: share of what all lists earn that may be lost; 0 keeps all states.
        simulators: of those that F is trained on.
        n: draws of every action behind either of two estimates of its reward, per state and simulator.

    Raises:
        SettingError: a number out of range.
    """

    tolerance: Annotated[float, Range(0, 1, open="high")] = 0.005
    simulators: Size = 128
    n: Size = 16


@dataclass(frozen=True, eq=False)
class Shown:
    """What simulators pay and show at every state."""

    halves: Tensor  # [2, B, xi, A] mean rewards of either half of the draws
    statistics: Tensor  # [B, xi, p]
    dependence: Tensor  # [B, xi] sums that have mean 0 where rewards do not depend on readings

    @staticmethod
    def joined(parts: Sequence[Shown]) -> Shown:
        """Of all simulators in the parts, in order."""
        halves = torch.cat([part.halves for part in parts], 1)
        return Shown(halves, *(torch.cat([getattr(p, name) for p in parts]) for name in ("statistics", "dependence")))


def prune(simulators: Guard, graph: StateGraph, settings: PruningSettings, seed: Seed) -> StateGraph:
    """The part of a state graph that is worth looking at.

    Args:
        simulators: training simulators.
        graph: the whole graph.
        settings: sizes and tolerance.
        seed: named stream.

    Returns:
        The pruned graph; the whole one where every state is of use, or rewards depend on readings.

    Cost:
        2 n episodes per simulator along each of the fewest sequences that walk every action of every state.
    """
    if not settings.tolerance or graph.num_states == graph.horizon:
        return graph
    some = simulators.select(range(min(settings.simulators, len(simulators))))
    parts = map_simulators(_shown, in_parts(some), graph, settings.n, seed)
    shown = Shown.joined(parts)
    if depends_on_readings(shown.dependence):
        return graph
    by, valued = signal(shown.halves)
    lists = serving(graph, by, valued, settings.tolerance)
    kept = on_lists(graph, lists)
    kept |= _telling(graph, shown, lists, kept, settings.tolerance)
    return part_of(graph, kept)


def part_of(graph: StateGraph, kept: set[int]) -> StateGraph:
    """The graph of these states; the graph itself where they are all of it."""
    return graph if len(kept) == graph.num_states else graph.restricted_to(kept)


def serving(graph: StateGraph, by: Tensor, valued: Tensor, tolerance: float) -> Tensor:
    """Few lists [K, H] of actions that serve all simulators: the best one for all, and those that add most to it.

    Args:
        graph: the state graph.
        by: `[B, xi, A]` mean rewards, by which lists are chosen.
        valued: `[B, xi, A]` an independent estimate, by which they are valued.
        tolerance: share of what all lists earn that may be lost.
    """
    lists = _candidates(graph, by)
    R_A, R_B = (graph.totals(reward, lists) for reward in (by, valued))
    chosen = [int((R_A + R_B).mean(0).argmax())]
    best, wanted = R_A[:, chosen[0]], (1 - tolerance) * _earned(R_A, R_B)
    while _earned(R_A[:, chosen], R_B[:, chosen]) < wanted and len(chosen) < len(lists):
        gains = torch.maximum(best[:, None], R_A).mean(0)
        gains[chosen] = -math.inf
        chosen.append(int(gains.argmax()))
        best = torch.maximum(best, R_A[:, chosen[-1]])
    return lists[chosen]


def on_lists(graph: StateGraph, lists: Tensor | Sequence[Path]) -> set[int]:
    """All states on some lists."""
    return set(graph.visited(torch.as_tensor(lists)).flatten().tolist())


def _shown(simulators: Guard, graph: StateGraph, n: int, seed: Seed) -> Shown:
    """Of some simulators."""
    A, found = graph.num_actions, []
    for drawn in decisions(simulators, graph, 2 * n * A, seed):
        x, r = drawn.by_action(A)
        halves = torch.stack([r[..., k::2].mean(-1) for k in range(2)])
        found.append((halves, statistics_of(drawn.x, QUANTILES), dependence(x, r).sum(1)))
    paid, *others = zip(*found, strict=True)
    return Shown(torch.stack(paid, 2), *(torch.stack(each, 1) for each in others))


def dependence(x: Tensor, r: Tensor) -> Tensor:
    """Sums [...] that have mean 0 where rewards r [..., n] do not depend on readings x [..., n, d].

        sum_{i != j} k_ij (e_i e_j + s^2 / n),    k_ij = exp(-4 |x_i - x_j|^2 / median)

    with e = r - mean of r, s^2 their variance: products of centred independent numbers have mean -s^2 / n.
    """
    scaled, n = x / x.std(-2, keepdim=True).clamp(min=1e-12), r.shape[-1]
    squared = torch.cdist(scaled, scaled).square()
    typical = squared.flatten(-2).median(-1).values[..., None, None].clamp(min=1e-12)
    near = (-4 * squared / typical).exp() - torch.eye(n, dtype=x.dtype)
    e = r - r.mean(-1, keepdim=True)
    expected = e.square().sum(-1) / (n - 1) / n
    return ((near @ e[..., None]).squeeze(-1) * e).sum(-1) + near.sum((-2, -1)) * expected


def depends_on_readings(sums: Tensor) -> bool:
    """Whether rewards at a state do, by sums [B, xi] over its actions; one simulator is one observation."""
    z = sums.sum(0) / sums.square().sum(0).sqrt().clamp(min=1e-12)
    return bool((z > LARGEST_Z).any())


def signal(halves: Tensor) -> Tensor:
    """Rewards [2, B, xi, A] of two halves without what is noise in them, as far as other edges and simulators tell it.

    Noise of the halves is independent, so that their covariance over simulators has none. Its eigenvectors of positive
    eigenvalues are how rewards vary with theta; noise makes as many negative ones, so that those count which are larger
    than the most negative one. Rewards are projected on these: edges that pay alike are averaged.
    """
    mean = halves.mean((0, 1))
    one, other = (halves - mean).flatten(2)
    small = len(one) < one.shape[1]  # then eigenvectors lie in the span of the rows
    span = torch.linalg.qr(torch.cat([one, other]).T)[0] if small else torch.eye(one.shape[1], dtype=one.dtype)
    a, b = one @ span, other @ span
    values, vectors = torch.linalg.eigh((a.T @ b + b.T @ a) / 2)
    directions = span @ vectors[:, values > -values[0].clamp(max=0)]
    return mean + ((halves - mean).flatten(2) @ directions @ directions.T).view_as(halves)


def _candidates(graph: StateGraph, reward: Tensor) -> Tensor:
    """The best list for the mean of rewards [B, xi, A], and the most frequent ones of those best for one simulator."""
    lists, times = graph.best_lists(reward).unique(dim=0, return_counts=True)
    frequent = lists[times.argsort(descending=True, stable=True)[:MOST_LISTS]]
    return torch.cat([graph.best_lists(reward.mean(0, keepdim=True)), frequent])


def _earned(by: Tensor, valued: Tensor) -> float:
    """What lists earn that are chosen by one estimate [B, K], valued by another."""
    return float(valued.gather(1, by.argmax(1, keepdim=True)).mean())


def _telling(graph: StateGraph, shown: Shown, lists: Tensor, kept: set[int], tolerance: float) -> set[int]:
    """States on sequences of the path cover that must be looked at, too, to choose among lists."""
    by, valued = (graph.totals(half, lists) for half in shown.halves)
    alone = [Regression(statistics).explained(by) for statistics in shown.statistics.unbind(1)]

    def told(states: set[int]) -> Tensor:
        """What lists earn [B] that are chosen by statistics of those of some states that tell most by themselves."""
        first = sorted(states, key=lambda s: -alone[s])
        looks = [Regression(shown.statistics[:, first[:k]].flatten(1)) for k in STATES if k // 2 < len(first)]
        best = max(looks, key=lambda look: look.explained(by))
        return valued.gather(1, best.held_out(by).argmax(1, keepdim=True))[:, 0]

    sequences = [on_lists(graph, [path]) for path in path_cover(graph)]
    every, added = kept.union(*sequences), set[int]()
    everywhere = told(every)
    while len(lists) > 1 and kept | added < every:
        lost = everywhere - told(kept | added)
        noise = float(lost.std()) / math.sqrt(len(lost))
        if float(lost.mean()) <= max(tolerance * float(everywhere.mean()), SURELY * noise):
            break
        further = sorted(
            (states for states in sequences if not states <= kept | added),
            key=lambda states: -max(alone[s] for s in states - kept - added),
        )
        added |= max(further[:MOST_SEQUENCES], key=lambda states: float(told(kept | added | states).mean()))
    return added
