"""Plain Q-functions for learners from real rewards: predictors, each frozen at the densities of one simulator.

    q[(f, b)](x, a) = f(D_b, x, a)        for members f of our class and simulators b of the bank

This is what our own method knew before deployment, nothing more. A bank holds near-optimal Q-functions of its own
simulators, not of the world: its misspecification is a learner's b_bar, which must be above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from s2r_torch.base import PredictorGroup
from s2r_torch.comparators.contract import Known
from s2r_torch.density.patches import Densities
from s2r_torch.predictors.ensemble import Ensemble, conditioned
from s2r_torch.predictors.nets.net import Conditioned, Net
from s2r_torch.problem import Problem


@dataclass(frozen=True, eq=False)
class Whole:
    """All members at all simulators, which every bank is a part of."""

    group: PredictorGroup
    D: Densities  # [N, xi, G]

    @cached_property
    def conditioned(self) -> object:
        """What the members make of the densities."""
        return conditioned(self.group, self.D)


class Bank:
    """Members of a group at densities of simulators, as a class that sees no density (`base.PredictorGroup`).

    Args:
        whole: predictors, and densities of the bank's simulators.
        pairs: `[size, 2]` int64 (member, simulator) of every Q-function.
    """

    def __init__(self, whole: Whole, pairs: Tensor):
        members, self._member = pairs[:, 0].unique(return_inverse=True)
        self._rows, self._simulator = pairs[:, 1].unique(return_inverse=True)
        everyone = len(members) == whole.group.size
        self._group = whole.group if everyone else whole.group.subset(members.tolist())
        self._whole, self._pairs, self.size = whole, pairs, len(pairs)

    @staticmethod
    def ensemble(group: PredictorGroup, D: Densities, problem: Problem) -> Ensemble:
        """The class of all members at all simulators."""
        pairs = torch.cartesian_prod(torch.arange(group.size), torch.arange(len(D)))
        bank = cast(PredictorGroup, Bank(Whole(group, D), pairs))  # but for `recipe` and its like: nobody saves a bank
        return Ensemble(problem, (bank,))

    @cached_property
    def _conditioned(self) -> object:
        if isinstance(self._group, Net):
            return self._group.condition_like(cast(Conditioned, self._whole.conditioned), self._rows)
        return conditioned(self._group, self._whole.D[self._rows])

    def condition(self, D: Tensor, readings: float | None = None) -> object:
        """Ignores both: the densities are the bank's own, of as many readings as F was trained on."""
        return self._conditioned

    def q(self, conditioned: object, step: int, x: Tensor) -> Tensor:
        """x [1, n, d] -> [size, 1, n, A]; for one world at a time."""
        q = self._group.q(conditioned, step, x.expand(len(self._rows), -1, -1))  # [f, N, n, A]
        return q[self._member, self._simulator][:, None]

    def subset(self, members: Sequence[int]) -> Bank:
        """The Q-functions of these positions only."""
        return Bank(self._whole, self._pairs[list(members)])


def bank_of(known: Known, size: int) -> tuple[Ensemble, Densities]:
    """What a bank is made of: our acting predictor alone, and densities [size, xi, G] of training simulators."""
    acting = known.policy.ensemble.subset([known.policy.chosen])
    return acting, known.data.D[:size]
