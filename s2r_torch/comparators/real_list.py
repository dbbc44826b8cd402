"""The best fixed list of actions from rewards of the real world itself, on the known state graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.comparators.contract import REWARDED, Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.policies import follow_each
from s2r_torch.coverage import path_cover
from s2r_torch.episodes import Rollouts
from s2r_torch.families.exact import best_list
from s2r_torch.graph import Path, StateGraph
from s2r_torch.schema import Settings, Size


def action_cover(graph: StateGraph) -> tuple[Path, ...]:
    """The fewest sequences of H actions that take every action in every state.

    A path cover (`coverage.py`) of the graph in which every layer is two: choose an action, then carry it out.
    """
    S, A = graph.num_states, graph.num_actions
    chosen = S + torch.arange(S * A).reshape(S, A)  # the node of (state, action)
    done = graph.next_state.reshape(-1, 1).expand(-1, A)
    doubled = StateGraph(
        torch.cat([chosen, done]),
        torch.cat([2 * graph.layer, (2 * graph.layer + 1).repeat_interleave(A)]),
        tuple(_stretched(path) for path in graph.paths)
        + tuple(_stretched(path) + (a,) for path in graph.paths for a in range(A)),
    )
    return tuple(path[::2] for path in path_cover(doubled))


def mean_rewards(graph: StateGraph, seen: Rollouts) -> Tensor:
    """Mean rewards [W, xi, A] of every action in every state; 0 where it was never taken."""
    W, xi, A = len(seen.actions), graph.num_states, graph.num_actions
    pair = (graph.visited(seen.actions) * A + seen.actions).flatten(1)  # [W, n H]
    total = torch.zeros(W, xi * A, dtype=torch.float64).scatter_add(1, pair, seen.rewards.flatten(1))
    once = torch.ones(pair.shape, dtype=torch.float64)
    count = torch.zeros(W, xi * A, dtype=torch.float64).scatter_add(1, pair, once)
    return (total / count.clamp(min=1)).reshape(W, xi, A)


@dataclass(frozen=True, eq=False)
class RewardedLists:
    """n episodes along every sequence of the action cover; then the list of most mean reward."""

    graph: StateGraph
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Another list in every world."""
        cover = action_cover(self.graph)
        seen = worlds.walk(cover, self.n, worlds.seed.child("real_list", self.n), REWARDED)
        lists = [best_list(self.graph, reward)[0] for reward in mean_rewards(self.graph, seen)]
        return Attempt(follow_each(torch.tensor(lists)), rewarded=len(cover) * self.n)


@register_comparator("real_list")
@dataclass(frozen=True)
class RealList(Settings):
    """Tabular learning of the one thing unknown, what actions pay, on the discovered graph.

    Args:
        n: episodes along every sequence that it walks, its one knob.
    """

    n: Size = 10

    label = "best list from real rewards"
    access = Access(reward="yes", graph="discovered there", predictors="lists", memory="own actions")
    learner = RewardedLists

    def fit(self, known: Known) -> RewardedLists:
        """No episodes."""
        return RewardedLists(known.whole, self.n)


def _stretched(path: Path) -> Path:
    """A path of the doubled graph: after every action, carry it out (any action does)."""
    return tuple(step for a in path for step in (a, 0))
