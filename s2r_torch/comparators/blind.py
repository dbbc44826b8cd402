"""A class that sees no density, trained in the same way on the same draws: what densities are worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import PredictorGroup
from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.learning.calibration import bellman_table
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.schema import Settings, Size


@dataclass(frozen=True, eq=False)
class BlindPolicy:
    """One predictor that sees x and the step alone."""

    ensemble: Ensemble  # of that one

    def attempt(self, worlds: Worlds) -> Attempt:
        """Its greedy policy, the same in every world."""
        problem = self.ensemble.problem
        policy = self.ensemble.evaluator(torch.zeros(1, problem.graph.num_states, problem.grid.num_points)).policy_of(0)

        def act(step: int, x: Tensor) -> Tensor:
            return policy(step, x.reshape(1, -1, x.shape[-1])).reshape(x.shape[:2])

        return Attempt(act)


@register_comparator("blind")
@dataclass(frozen=True)
class Blind(Settings):
    """The member of least Bellman risk, on the calibration simulators, of a density-blind class.

    Args:
        members: networks trained side by side; fewer than in F, because it sees less and needs less.
        simulators: on which its member is picked.
        n: samples per state and simulator for that.

    Raises:
        SettingError: a size below 1.
    """

    members: Size = 4
    simulators: Size = 32
    n: Size = 500

    label = "density-blind ensemble"
    access = Access(simulators="yes, with reward", graph="discovered there", predictors="own networks")
    learner = BlindPolicy

    def fit(self, known: Known) -> BlindPolicy:
        """Cost: n decisions at every state of every one of its simulators (`tours.decisions`)."""
        problem = known.problem
        trained: tuple[PredictorGroup, ...] = (known.train("blind", {}, self.members),)
        ensemble = Ensemble(problem, trained)
        simulators = known.draws.simulators("calibrate", self.simulators)
        unseen = torch.zeros(len(simulators), problem.graph.num_states, problem.grid.num_points)
        risks, _ = bellman_table(simulators, unseen, ensemble, self.n, known.seed.child("calibrate", "blind"))
        return BlindPolicy(ensemble.subset([int(risks.mean(1).sum(1).argmin())]))
