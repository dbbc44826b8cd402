"""The best fixed list of actions: what can be had without looking at anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.policies import follow
from s2r_torch.episodes import Transitions
from s2r_torch.families.exact import best_list
from s2r_torch.graph import Path, StateGraph


def best_action_list(graph: StateGraph, samples: Sequence[Transitions]) -> Path:
    """The best fixed list of H actions, from transitions [B, n] with uniform actions at every state [xi]."""
    taken = [torch.nn.functional.one_hot(data.actions.flatten(), graph.num_actions).double() for data in samples]
    reward = [data.rewards.flatten() @ one / one.sum(0).clamp(min=1) for data, one in zip(samples, taken, strict=True)]
    return best_list(graph, torch.stack(reward))[0]


@dataclass(frozen=True)
class ActionList:
    """A list of H actions."""

    actions: Path

    def attempt(self, worlds: Worlds) -> Attempt:
        """The same list in every world."""
        return Attempt(follow(self.actions), note=f"actions {' '.join(map(str, self.actions))}")


@register_comparator("open_loop")
@dataclass(frozen=True)
class OpenLoop:
    """The list of most mean reward over the training simulators, by dynamic programming on the discovered graph."""

    label = "best fixed action list"
    access = Access(simulators="yes, with reward", graph="discovered there", predictors="lists")
    learner = ActionList

    def fit(self, known: Known) -> ActionList:
        """No episodes: it uses the training transitions."""
        return ActionList(best_action_list(known.problem.graph, known.data.samples))
