"""What the judges of the class are given beside their sizes: a rule with its slack, and the bandwidth of a theorem."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.learning.elimination import Elimination
from s2r_torch.planner.budget import Budget
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.runs.context import Context
from s2r_torch.runs.results import Calibrated
from s2r_torch.runs.settings import RunSettings


def as_proved(estimator: DensityEstimator, budget: Budget, n: int) -> DensityEstimator:
    """The estimator with the bandwidth of the theorems for n readings (Algorithm 2, line 1)."""
    return replace(estimator, bandwidth=(budget.bandwidth(n),) * estimator.grid.obs_dim)


def elimination(settings: RunSettings, calibrated: Calibrated) -> Elimination:
    """The rule, with what calibration measured where the rule uses it."""
    found = calibrated.calibration
    if not found:
        return Elimination(settings.rule, settings.on_empty)
    b_bar = found.b_bar if settings.rule == "calibrated" else None
    return Elimination(settings.rule, settings.on_empty, b_bar, found.earners, found.risk, found.value_bias)


def oracle_b_bar(
    context: Context, num_states: int, ensemble: Ensemble, budget: Budget, notice: Callable[[str], None]
) -> Callable[[Tensor], float] | None:
    """b_bar from the judges' true theta, where the class is known: an oracle that only known families have.

    b_bar = 2 phi_D + omega (theory.md 2.1), with phi_D the true error of f* on the judges' densities and omega
    Hoeffding's bound on V_hat over all members, judges and states, with probability 1 - delta / 8.
    """
    bound = getattr(ensemble.groups[0], "density_error", None)
    chosen = context.settings.budget.b_bar is not None or budget.schedule != "practical"
    if not ensemble.exact or bound is None or chosen:
        return None
    theta = context.draws.theta("judge", budget.num_simulators)
    values = 2 * ensemble.size * budget.num_simulators * num_states
    n = min(budget.n_train, budget.n_test)
    omega = context.family.spec.reward_width * math.sqrt(math.log(8 * values / budget.delta) / (2 * n))

    def oracle(D_hat: Tensor) -> float:
        b_bar = 2 * bound(D_hat, theta) + omega
        notice(f"b_bar = {b_bar:.4g} is computed from the judges' true theta: only a known family can say it")
        return b_bar

    return oracle
