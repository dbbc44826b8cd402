"""The best policy that sees no density: what densities are worth is what ours earns beyond it.

Two candidates: a class without densities, trained in the same way on the same draws, and the best fixed list of
actions, which training need not find where rewards are rare. The better one on simulators of the run is it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import Path, PredictorGroup
from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.open_loop import best_action_list
from s2r_torch.comparators.policies import follow
from s2r_torch.episodes import Act, rollout
from s2r_torch.learning.calibration import bellman_table
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.schema import Settings, Size


@dataclass(frozen=True, eq=False)
class BlindPolicy:
    """One predictor that sees x and the step alone, or a list of actions that earns as much."""

    ensemble: Ensemble  # of that one
    actions: Path | None = None  # [H]; None where the predictor earns more

    @property
    def act(self) -> Act:
        """Its policy, the same in every world."""
        return reactive(self.ensemble) if self.actions is None else follow(self.actions)

    def attempt(self, worlds: Worlds) -> Attempt:
        """No real episodes."""
        if self.actions is None:
            return Attempt(self.act)
        return Attempt(self.act, note=f"the best fixed list earns as much: actions {' '.join(map(str, self.actions))}")


def reactive(ensemble: Ensemble) -> Act:
    """The greedy policy of a lone member that sees no density, in any number of worlds."""
    problem = ensemble.problem
    policy = ensemble.evaluator(torch.zeros(1, problem.graph.num_states, problem.grid.num_points)).policy_of(0)

    def act(step: int, x: Tensor) -> Tensor:
        return policy(step, x.reshape(1, -1, x.shape[-1])).reshape(x.shape[:2])

    return act


@register_comparator("blind")
@dataclass(frozen=True)
class Blind(Settings):
    """The member of least Bellman risk of a density-blind class, or the best fixed list if that earns as much.

    Args:
        members: networks trained side by side; fewer than in F, because it sees less and needs less.
        simulators: of the calibration, on which the member is picked, and then the better one of both.
        n: samples per state and simulator for the former, episodes per simulator and candidate for the latter.

    Raises:
        SettingError: a size below 1.
    """

    members: Size = 4
    simulators: Size = 32
    n: Size = 500

    label = "best without densities"
    access = Access(simulators="yes, with reward", graph="discovered there", predictors="own networks, lists")
    learner = BlindPolicy

    def fit(self, known: Known) -> BlindPolicy:
        """Cost: n decisions at every state of every one of its simulators (`tours.decisions`), and 2 n rollouts."""
        problem = known.problem
        trained: tuple[PredictorGroup, ...] = (known.train("blind", {}, self.members),)
        ensemble = Ensemble(problem, trained)
        simulators = known.draws.simulators("calibrate", self.simulators)
        unseen = torch.zeros(len(simulators), problem.graph.num_states, problem.grid.num_points)
        risks, _ = bellman_table(simulators, unseen, ensemble, self.n, known.seed.child("calibrate", "blind"))
        member = ensemble.subset([int(risks.mean(1).sum(1).argmin())])
        actions, seed = best_action_list(problem.graph, known.data.samples), known.seed.child("calibrate", "candidates")
        earned = [
            float(rollout(simulators, act, self.n, seed).returns.mean()) for act in (reactive(member), follow(actions))
        ]
        return BlindPolicy(member, None if earned[0] > earned[1] else actions)
