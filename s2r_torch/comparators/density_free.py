"""Baselines that use no density: the best fixed action list, a density-blind ensemble, uniform random actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from s2r_torch.base import Path, StateGraph
from s2r_torch.episodes import Act, Transitions
from s2r_torch.families.exact import best_list
from s2r_torch.predictors.ensemble import Ensemble, greedy_actions
from s2r_torch.rng import Seed


def best_action_list(graph: StateGraph, samples: Sequence[Transitions]) -> Path:
    """The best fixed list of H actions, from transitions [B, n] with uniform actions at every state [xi]."""
    taken = [torch.nn.functional.one_hot(data.actions.flatten(), graph.num_actions).double() for data in samples]
    reward = [data.rewards.flatten() @ one / one.sum(0).clamp(min=1) for data, one in zip(samples, taken, strict=True)]
    return best_list(graph, torch.stack(reward))[0]


def follow(actions: Path) -> Act:
    """The policy that takes a fixed list of actions."""
    return lambda step, x: torch.full(x.shape[:2], actions[step], dtype=torch.int64)


def uniform(num_actions: int, seed: Seed) -> Act:
    """The policy of uniformly random actions."""
    generator = seed.generator()
    return lambda step, x: torch.randint(num_actions, x.shape[:2], generator=generator)


def blind(ensemble: Ensemble, member: int) -> Callable[[int, Tensor], Tensor]:
    """The greedy policy of one member of a class that sees no density."""
    problem = ensemble.problem
    one = ensemble.subset([member])
    nothing = torch.zeros(1, problem.graph.num_states, problem.grid.num_points)
    evaluator = one.evaluator(nothing)

    def act(step: int, x: Tensor) -> Tensor:
        rows = x.reshape(1, -1, x.shape[-1])
        return greedy_actions(evaluator.q_of(0, step, rows)).reshape(x.shape[:2])

    return act
