"""How many simulators and episodes each theorem asks for (theory.md section 6).

Four schedules make a `Budget`, which holds every number that the algorithms need:

    paper      the algorithm boxes as printed, with the corrections C1-C15 of theory.md
    loops      Theorem L: Learn-on-Simulators, repaired
    sweep      Theorem R: one backward sweep, recommended
    practical  the caller's own sample sizes; `accuracy_of` says what they buy

The first three take a `Setting` and return a `Plan`. All integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from s2r_torch.errors import AssumptionError
from s2r_torch.planner.budget import C_TD, RHO, Budget, accuracy_of, practical
from s2r_torch.planner.plan import Episodes, PaperAudit, Plan, Setting, Survivors, Thresholds
from s2r_torch.planner.sample_sizes import (
    ceiling,
    density_root,
    density_samples,
    exact,
    log,
    precision,
)

__all__ = ["C_TD", "PLANS", "RHO", "Budget", "Plan", "Setting", "accuracy_of", "loops", "paper", "practical", "sweep"]


def paper(setting: Setting, *, check_range: bool = True) -> Plan:
    r"""The algorithm boxes as printed, with the corrections C1-C15 (theory.md section 1).

        phi     = epsilon / (500 H^2 sqrt(A))
        B       = 2 / phi^2 log(256 H^2 S F log(4 H S / delta) / (epsilon delta))
        n_dist  : C_L C_dist n^-a sqrt(log n + log((B + 1) H S A / (delta / 4))) <= phi / 2
        n_test  = 2 log(2 F B / delta_consensus) / phi^2,   n_train = 2 log(4 F B / delta_td) / phi^2
        n_1     = 32 log(6 H S B / (delta / 4)) / epsilon^2,   N_2 = 8 log(3 S H / (delta / 4)) / epsilon

    each rounded up; later lines use the rounded B.

    Args:
        setting: the problem.
        check_range: whether a setting outside Theorem 1's range is an error.

    Returns:
        A `Plan`; its budget's `in_range` says whether the theorem's assumptions on the numbers hold.

    Raises:
        AssumptionError: an assumption on the numbers fails, named in the message, and `check_range`.

    Paper deviation:
        sqrt(A) for A in eq. (requisite-ndist) (C4); N_2 probes in total, not n_2 < 1 per simulator (C3); n_merge uses
        the radius that merges need (C12). Real-world episodes carry the factor that Theorem 1 omits (F3).

    >>> setting = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1.0, cover_width=2)
    >>> paper(setting).budget.num_simulators
    6373436595
    """
    in_range = _check_range(setting, check_range, limit_epsilon=True)
    with precision():
        t = _Terms(setting)
        phi = t.epsilon / (500 * t.H**2 * t.root_A)
        B = ceiling(_paper_simulators(t, phi, t.delta))
        quarter = t.delta / 4
        delta_td, delta_consensus = quarter / 2 / t.HS, quarter / 2 / t.HSA
        densities = (B + 1) * t.HSA / quarter
        n_dist = t.density_samples(phi / 2, t.C_L * t.C_dist, densities)
        audit = _audit(t, phi, B, quarter)
        budget = _budget(
            "paper",
            setting,
            in_range,
            phi=phi,
            num_simulators=B,
            n_merge=audit.n_dist_merge,
            n_dist=n_dist,
            n_test=ceiling(2 * log(2 * t.F * B / delta_consensus) / phi**2),
            n_train=ceiling(2 * log(4 * t.F * B / delta_td) / phi**2),
            n_rollouts=ceiling(32 * log(6 * t.HS * B / quarter) / t.epsilon**2),
            n_probes=ceiling(8 * log(3 * t.HS / quarter) / t.epsilon),
            n_real=n_dist,
            delta_td=delta_td,
            delta_consensus=delta_consensus,
            epsilon_test_last=21 * t.root_A * phi,
            epsilon_test_step=25 * t.root_A * phi,
        )
        calls = t.H * (t.S * B * audit.n_train_in_loop + t.S * t.A * B * audit.n_test_in_loop)  # one DFS-Learn
        loop = t.HS * (budget.n_rollouts * B + t.H * 8 * log(3 * t.HS / quarter) / t.epsilon * calls)
        return _plan(
            setting,
            budget,
            sim_learning=t.H * (t.S * B * budget.n_train + t.S * t.A * B * budget.n_test),
            sim_loop=ceiling(loop),
            delta_density=float(quarter),
            delta_learning=float(quarter),
            delta_generalisation=float(quarter),
            delta_loop=float(quarter),
            density_radius=float(phi / (2 * t.C_L)),
            phi_generalisation=float(phi),
            phi_rollouts=float(t.epsilon / 8),
            phi_real=float(phi / 2),
            delta_real=0.0,
            n_real_floor=t.density_samples(exact(1), exact(1), densities),
            guarantee=None,
            audit=audit,
        )


def loops(setting: Setting, *, check_range: bool = True) -> Plan:
    r"""Theorem L: Learn-on-Simulators, repaired (theory.md 3.2).

        phi = (5 / 16) epsilon / ((H^2 + H) kappa + 1),   kappa = 11.8618 sqrt(A) + 1
        B   = log(2 (F + 1) / (delta / 4)) / (2 (epsilon / 16)^2)
        n_1 = log(2 H S / (delta / 8)) / (2 (epsilon / 16)^2 B),   N_2 = 8 log(H S / (delta / 8)) / epsilon
        n_dist : C_dist n^-a sqrt(log n + log((B + 1) H S A / (delta / 4))) <= min(phi / (2 C_L), zeta / 4)

    each rounded up; the real world uses the same n_dist.

    Args:
        setting: the problem.
        check_range: whether a setting that violates an assumption is an error.

    Returns:
        A `Plan`; with probability at least 1 - delta, V* - V <= epsilon.

    Raises:
        AssumptionError: an assumption on the numbers fails, named in the message, and `check_range`.

    >>> setting = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1.0, cover_width=2)
    >>> loops(setting).budget.n_train
    118515391
    """
    in_range = _check_range(setting, check_range, limit_epsilon=False)
    with precision():
        t = _Terms(setting)
        phi = 5 * t.epsilon / (16 * ((t.H**2 + t.H) * t.kappa + 1))
        small, quarter = t.epsilon / 16, t.delta / 4
        B = ceiling(log(2 * (t.F + 1) / quarter) / (2 * small**2))
        delta_td, delta_consensus = quarter / 2 / t.HS, quarter / 2 / t.HSA
        radius = min(phi / (2 * t.C_L), t.zeta / 4)
        densities = (B + 1) * t.HSA / quarter
        n_dist = t.density_samples(radius, t.C_dist, densities)
        budget = _budget(
            "loops",
            setting,
            in_range,
            phi=phi,
            num_simulators=B,
            n_merge=n_dist,
            n_dist=n_dist,
            n_test=ceiling(2 * log(2 * t.F * B / delta_consensus) / phi**2),
            n_train=ceiling(2 * log(4 * t.F * B / delta_td) / phi**2),
            n_rollouts=ceiling(log(4 * t.HS / quarter) / (2 * small**2 * B)),
            n_probes=ceiling(8 * log(2 * t.HS / quarter) / t.epsilon),
            n_real=n_dist,
            delta_td=delta_td,
            delta_consensus=delta_consensus,
            epsilon_test_last=t.kappa * phi,
            epsilon_test_step=t.kappa * phi,
        )
        return _plan(
            setting,
            budget,
            sim_learning=t.HS * B * budget.n_train + t.HSA * B * budget.n_test,
            sim_loop=t.HS * budget.n_rollouts * B,
            delta_density=float(quarter),
            delta_learning=float(quarter),
            delta_generalisation=float(quarter),
            delta_loop=float(quarter),
            density_radius=float(radius),
            phi_generalisation=float(small),
            phi_rollouts=float(small),
            phi_real=float(phi / 2),
            delta_real=0.0,
            n_real_floor=t.density_samples(exact(1), exact(1), densities),
            guarantee=float(t.epsilon / 2 + 3 * small + (t.H * t.kappa + 1) * phi),
        )


def sweep(setting: Setting, *, check_range: bool = True) -> Plan:
    r"""Theorem R: one backward sweep, and a sample size of its own for the real world (theory.md 3.3).

        phi     = 5 epsilon / (8 (H^2 kappa + H)),   kappa = 11.8618 sqrt(A) + 1
        B       = 32 log(3 F / delta) / epsilon^2
        n_dist  : C_dist n^-a sqrt(log n + log(B H S A / (delta / 3))) <= min(phi / (2 C_L), zeta / 4)
        n_train = 2 log(4 F B / delta_td) / phi^2,   delta_td = (delta / 3) / (H S)
        n_real  : C_L C_dist n^-a sqrt(log n + log(8 H S / epsilon)) <= epsilon / (16 H)

    each rounded up. The sweep calls neither Consensus nor Learn-on-Simulators; so that the budget serves a loop too,
    n_test = n_train, and n_1 and N_2 are those of Theorem L at this B.

    Args:
        setting: the problem.
        check_range: whether a setting that violates an assumption is an error.

    Returns:
        A `Plan`; with probability at least 1 - delta, V* - V <= epsilon.

    Raises:
        AssumptionError: an assumption on the numbers fails, named in the message, and `check_range`.

    >>> setting = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1.0, cover_width=2)
    >>> plan = sweep(setting)
    >>> plan.budget.num_simulators, plan.episodes.real_cover
    (4940, 4769614)
    """
    in_range = _check_range(setting, check_range, limit_epsilon=False)
    with precision():
        t = _Terms(setting)
        phi = 5 * t.epsilon / (8 * (t.H**2 * t.kappa + t.H))
        third = t.delta / 3
        B = ceiling(32 * log(t.F / third) / t.epsilon**2)
        delta_td = third / t.HS
        n_train = ceiling(2 * log(4 * t.F * B / delta_td) / phi**2)
        radius = min(phi / (2 * t.C_L), t.zeta / 4)
        n_dist = t.density_samples(radius, t.C_dist, B * t.HSA / third)
        phi_real, delta_real = t.epsilon / (16 * t.H), t.epsilon / 8
        budget = _budget(
            "sweep",
            setting,
            in_range,
            phi=phi,
            num_simulators=B,
            n_merge=n_dist,
            n_dist=n_dist,
            n_test=n_train,
            n_train=n_train,
            n_rollouts=ceiling(log(16 * t.HS / t.delta) / (2 * (t.epsilon / 16) ** 2 * B)),
            n_probes=ceiling(8 * log(8 * t.HS / t.delta) / t.epsilon),
            n_real=t.density_samples(phi_real, t.C_L * t.C_dist, t.HS / delta_real),
            delta_td=delta_td,
            delta_consensus=delta_td / t.A,
            epsilon_test_last=t.kappa * phi,
            epsilon_test_step=t.kappa * phi,
        )
        return _plan(
            setting,
            budget,
            sim_learning=t.HS * B * n_train,
            sim_loop=0,
            delta_density=float(third),
            delta_learning=float(third),
            delta_generalisation=float(third),
            delta_loop=0.0,
            density_radius=float(radius),
            phi_generalisation=float(t.epsilon / 8),
            phi_rollouts=0.0,
            phi_real=float(phi_real),
            delta_real=float(delta_real),
            n_real_floor=t.density_samples(exact(1), exact(1), t.HS / delta_real),
            guarantee=float((t.H**2 * t.kappa + t.H) * phi + 2 * t.H * phi_real + delta_real + t.epsilon / 8),
        )


PLANS: dict[str, Callable[..., Plan]] = {"paper": paper, "loops": loops, "sweep": sweep}


class _Terms:
    """A setting's numbers, exact; used within `precision()`."""

    def __init__(self, setting: Setting):
        self.H, self.S, self.A = setting.horizon, setting.max_states_per_layer, setting.num_actions
        self.F = exact(setting.num_members)
        self.HS, self.HSA = self.H * self.S, self.H * self.S * self.A
        self.epsilon, self.delta, self.order = exact(setting.epsilon), exact(setting.delta), exact(setting.order)
        self.C_L, self.C_dist = exact(setting.lipschitz_bound), exact(setting.density_constant)
        self.zeta, self.obs_dim = exact(setting.zeta), setting.obs_dim
        self.root_A = exact(self.A).sqrt()
        self.kappa = 2 * (1 + (1 + (2 + 2 * exact(2).sqrt()) ** 2).sqrt()) * self.root_A + 1

    def density_samples(self, radius: Decimal, constant: Decimal, densities_over_delta: Decimal) -> int:
        return density_samples(radius, constant, log(densities_over_delta), self.order, self.obs_dim)


def _check_range(setting: Setting, check_range: bool, *, limit_epsilon: bool) -> bool:
    violations = setting.violations(limit_epsilon=limit_epsilon)
    if violations and check_range:
        raise AssumptionError(
            expected="; ".join(wanted for wanted, _ in violations),
            got=", ".join(got for _, got in violations),
            cause="the theorem does not cover this setting; check_range=False computes its formulas all the same",
        )
    return not violations


def _paper_simulators(t: _Terms, phi: Decimal, delta: Decimal, scale: int = 256, inner: int = 4) -> Decimal:
    """Algorithm 1, line 1; Theorem Learn-on-Simulators has scale 192 and inner 3."""
    loops_log = log(inner * t.HS / delta)
    return 2 / phi**2 * log(scale * t.H**2 * t.S * t.F * loops_log / (t.epsilon * delta))


def _audit(t: _Terms, phi: Decimal, B: int, quarter: Decimal) -> PaperAudit:
    densities = (B + 1) * t.HSA / quarter
    merge_radius = min(phi / (2 * t.C_L), t.zeta / 4)
    root = density_root(phi / 2, t.C_L * t.C_dist, log(densities), t.order, t.obs_dim)
    delta_learn = t.epsilon * quarter / (48 * t.H**2 * t.S * log(3 * t.HS / quarter))
    return PaperAudit(
        radius_as_printed=float(t.epsilon / (1000 * t.H**2 * t.A)),
        num_simulators_raw=float(_paper_simulators(t, phi, t.delta)),
        num_simulators_generalisation=ceiling(log(4 * t.F / quarter) / (2 * phi**2)),
        num_simulators_quarter=ceiling(_paper_simulators(t, phi, quarter, scale=192, inner=3)),
        n_dist_root=None if root is None else float(root),
        n_dist_merge=t.density_samples(merge_radius, t.C_dist, densities),
        n_train_lemma=ceiling(2 * log(2 * t.F * B * 2 * t.HS / quarter) / phi**2),
        n_probes_raw=float(8 * log(3 * t.HS / quarter) / (t.epsilon * B)),
        delta_learn_in_loop=float(delta_learn),
        delta_rollouts=float(quarter / (3 * t.HS)),
        n_test_in_loop=ceiling(2 * log(2 * t.F * B * 2 * t.HSA / delta_learn) / phi**2),
        n_train_in_loop=ceiling(2 * log(4 * t.F * B * 2 * t.HS / delta_learn) / phi**2),
        epsilon_test_beyond=float(-4 * t.root_A * phi),
        epsilon_test_repaired=float(t.kappa * phi),
    )


def _budget(schedule: str, setting: Setting, in_range: bool, *, phi: Decimal, **numbers: Decimal | int) -> Budget:
    plain: dict[str, Any] = {name: float(v) if isinstance(v, Decimal) else v for name, v in numbers.items()}
    return Budget(
        schedule=schedule,
        horizon=setting.horizon,
        num_actions=setting.num_actions,
        num_members=setting.num_members,
        phi=float(phi),
        b_bar=float(3 * phi / 2),
        epsilon=setting.epsilon,
        delta=setting.delta,
        epsilon_demand=float(exact(setting.epsilon) / 2),
        order=setting.order,
        obs_dim=setting.obs_dim,
        in_range=in_range,
        **plain,
    )


def _plan(setting: Setting, budget: Budget, *, sim_learning: int, sim_loop: int, **parts: Any) -> Plan:
    calls = setting.max_num_states * setting.num_actions
    episodes = Episodes(
        sim_density=budget.n_dist * budget.num_simulators * calls,
        sim_learning=sim_learning,
        sim_loop=sim_loop,
        real_paths=budget.n_real * calls,
        real_states=budget.n_real * setting.max_num_states,
        real_cover=budget.n_real * setting.cover_width,
    )
    return Plan(
        setting=setting,
        budget=budget,
        thresholds=Thresholds.of(budget),
        survivors=Survivors.of(budget.phi),
        episodes=episodes,
        merge_threshold=setting.zeta / 2,
        **parts,
    )
