"""The sample sizes of a run: those that are set, or those that a theorem asks for (planner/schedules.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from s2r_torch.coverage import path_cover
from s2r_torch.errors import SettingError
from s2r_torch.planner.budget import SCHEDULES, Budget, practical
from s2r_torch.planner.schedules import PLANS, Setting
from s2r_torch.problem import Problem
from s2r_torch.schema import OneOf, Positive, Range, Settings, Share, Size


@dataclass(frozen=True)
class BudgetSettings(Settings):
    """The sample sizes of a run (planner/budget.py).

    Args:
        schedule: `practical`, the sizes below; or those that a theorem asks for, for a class that holds f* and at an
            epsilon that can be run: `sweep` (theory.md 3.3), `loops` (3.2), `paper` (3.5). Then epsilon and delta count
            below, and n_dist for simulators that do not judge.
        density_constant: C_dist of the theorems, which nobody knows (theory.md C13).
        num_simulators: B, judges of the class.
        n_dist: readings per state and simulator for a density.
        n_test: readings per path and simulator in Consensus.
        n_train: samples per state and simulator in TD-Eliminate.
        n_rollouts: n_1, episodes per simulator that measure a policy.
        n_probes: N_2, episodes in total whose visited states are learned.
        n_real: episodes along every sequence of the path cover in the real world. null takes half of n_dist for a class
            that is trained, on densities of fewer readings, too: more add nothing to what it earns (docs/run.md). For
            a class that holds f* null takes n_dist, so that D_real has no more noise than the densities that F is
            judged on.
        epsilon: wanted suboptimality, in units of an episode's total reward.
        delta: wanted failure probability.
        phi: accuracy of one state's estimates; null takes what the sizes buy.
        b_bar: bound on f*'s bias; null takes what the sizes buy.
        epsilon_test_step: what each layer adds to Consensus' threshold; auto takes epsilon / H, so that survivors who
            agree on all layers agree on values within epsilon; null takes what theory.md 2.5 asks for.

    Raises:
        SettingError: a value out of range.
    """

    schedule: Annotated[str, OneOf(SCHEDULES)] = "practical"
    density_constant: Positive = 1.0
    num_simulators: Size = 32
    n_dist: Size = 100
    n_test: Size = 500
    n_train: Size = 500
    n_rollouts: Size = 32
    n_probes: Size = 64
    n_real: Size | None = None
    epsilon: Positive = 0.1
    delta: Share = 0.1
    phi: Positive | None = None
    b_bar: Annotated[float, Range(0)] | None = None
    epsilon_test_step: Positive | Literal["auto"] | None = "auto"

    def make(self, problem: Problem, num_members: int, lipschitz_bound: float, order: float, n_merge: int) -> Budget:
        """The budget for a class of so many members, C_L (infinite for one that does not hold f*) and alpha.

        Raises:
            SettingError: a theorem's sizes for a family that states no zeta.
        """
        graph, spec = problem.graph, problem.spec
        if self.schedule != "practical":
            return PLANS[self.schedule](_setting(self, problem, num_members, lipschitz_bound, order)).budget
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("schedule", "density_constant")}
        own["n_real"] = self.n_real or (self.n_dist if math.isfinite(lipschitz_bound) else -(-self.n_dist // 2))
        if self.epsilon_test_step == "auto":
            own["epsilon_test_step"] = self.epsilon / spec.horizon
        return practical(
            spec.horizon, spec.num_actions, num_members, n_merge=n_merge, num_states=graph.num_states, **own
        )

    def check_covered(self, method: str, rule: str, kind: str) -> None:
        """A theorem's sizes go with its own method, a rule that it is proved for, and a class that holds f*.

        Raises:
            SettingError: they are combined with others.
        """
        if self.schedule == "practical":
            return
        wanted = "sweep" if self.schedule == "sweep" else "sim2real"
        proved = ("sharp", "pairwise", "erratum") if self.schedule == "paper" else ("sharp", "pairwise")
        given = [name for name in ("n_real", "phi", "b_bar") if getattr(self, name) is not None]
        if method != wanted or rule not in proved or kind != "known" or given:
            raise SettingError(
                expected=f"method={wanted}, rule={' or '.join(proved)}, predictors=known, sizes left to the theorem",
                got=f"method={method}, rule={rule}, predictors.kind={kind}"
                + "".join(f", budget.{name}={getattr(self, name)}" for name in given),
                cause=f"what the theorem of budget.schedule={self.schedule} does not cover; `budget={self.schedule}` "
                "sets method and rule, but those of an experiment come after it",
            )


def _setting(
    sizes: BudgetSettings, problem: Problem, num_members: int, lipschitz_bound: float, order: float
) -> Setting:
    """What the planner is told of a class, a family and its graph."""
    graph, spec = problem.graph, problem.spec
    if not spec.zeta:
        raise SettingError(
            expected="a family that states zeta, how far its states' densities are apart (Assumption 5)",
            got=f"budget.schedule={sizes.schedule} and no zeta",
            cause="sizes of theorems follow from constants: `mixture` knows its own",
        )
    return Setting(
        horizon=spec.horizon,
        max_states_per_layer=max(graph.states_per_layer),
        num_actions=spec.num_actions,
        num_members=num_members,
        epsilon=sizes.epsilon,
        delta=sizes.delta,
        order=order,
        obs_dim=spec.obs_dim,
        lipschitz_bound=lipschitz_bound,
        density_constant=sizes.density_constant,
        zeta=spec.zeta,
        cover_width=len(path_cover(graph)),
    )
