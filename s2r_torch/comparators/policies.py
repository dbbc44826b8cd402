"""Kinds of policies beside the reactive one, act(step, x): fixed lists, one per world, those that know their actions.

Whoever acts knows what it did, so a policy may depend on its own actions, hence on the state (T is known), and on what
it saw in this episode. Such a policy remembers, and says so: `has_memory`. Values layer by layer
(`exact.policy_values`) are wrong for it and refuse it; its values come from `StateAware.values`, or from episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.episodes import Act
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.exact import action_values
from s2r_torch.graph import Path, StateGraph


@dataclass(frozen=True, eq=False)
class Pointwise:
    """What pays where, in K environments whose readings can be told apart at the same points, or need not be."""

    graph: StateGraph
    points: Tensor | None  # [xi, m, d]; None for m = 1, where rewards do not depend on readings
    weight: Tensor  # [K, xi, m]
    reward: Tensor  # [K, xi, m, A]

    @staticmethod
    def of(truth: GroundTruth) -> Pointwise:
        """The truth without the readings that no reward depends on.

        Raises:
            SettingError: rewards depend on readings, and these are at other points in other environments.
        """
        if bool((truth.reward == truth.reward[:, :, :1]).all()):
            return Pointwise(truth.graph, None, torch.ones_like(truth.weight[..., :1]), truth.reward[:, :, :1])
        if not bool((truth.x == truth.x[:1]).all()):
            raise SettingError(
                expected="rewards of (state, action), or the same quadrature points in every environment",
                got="points that move with theta, and rewards that depend on them",
                cause="such a family has no table of actions",
            )
        return Pointwise(truth.graph, truth.x[0], truth.weight, truth.reward)


def follow(actions: Path) -> Act:
    """The policy that takes a fixed list of actions."""
    return lambda step, x: torch.full(x.shape[:2], actions[step], dtype=torch.int64)


def follow_each(lists: Tensor) -> Act:
    """Fixed lists of actions [W, H], one per world."""
    return lambda step, x: lists[:, step, None].expand(x.shape[:2]).contiguous()


def each(acts: Sequence[Act]) -> Act:
    """One policy per world, for all of them side by side."""
    return lambda step, x: torch.cat([act(step, x[w : w + 1]) for w, act in enumerate(acts)])


@dataclass(eq=False)
class StateAware:
    """Acts on the state that its own actions lead to, and on the nearest of given points in it.

    Args:
        graph: the state graph.
        actions: `[W, xi, m]` the action at every state and point.
        points: `[xi, m, d]` those points; None where m = 1.
    """

    graph: StateGraph
    actions: Tensor
    points: Tensor | None = None
    _state: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)

    has_memory = True

    def __call__(self, step: int, x: Tensor) -> Tensor:
        """Actions [W, n] at x [W, n, d]; step 0 starts afresh."""
        if step == 0:
            self._state = torch.zeros(x.shape[:2], dtype=torch.int64)
        state = self._state
        actions = self.actions[torch.arange(len(x))[:, None], state, self._nearest(state, x)]
        self._state = self.graph.next_state[state, actions]
        return actions

    def values(self, truth: GroundTruth) -> Tensor:
        """Exact values [W], where the truth has these points in these states (or actions do not depend on them)."""
        truth.graph.require_same(self.graph)
        return action_values(truth, self.actions.expand(truth.weight.shape))[:, 0]

    def _nearest(self, state: Tensor, x: Tensor) -> Tensor:
        if self.points is None:
            return torch.zeros_like(state)
        return (self.points[state] - x[:, :, None]).square().sum(-1).argmin(-1)
