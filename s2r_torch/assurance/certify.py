r"""What can be promised of a policy, from fresh simulators, and under which assumptions (theory.md 4).

M fresh theta are drawn; in each, the whole deploy procedure is rehearsed and the policy acts for k episodes. With G_i
the mean return in simulator i, and Q_g(x, a) = g(D~_i, x, a) for a survivor g on an accurate density D~_i:

    value    lower bound on E G, the mean over worlds; assumes nothing but i.i.d. theta
    worlds   v such that a given share of worlds is worth at least v; likewise
    gap      upper bounds on V* - V of the deployed policy; they assume A1, A2 (f* survives) and A4:
                 performance difference   max_g UCB E sum_h (max_a Q_g(x_h, a) - Q_g(x_h, a_h)) + 2 H phi_T
                 paired                   max_g UCB E (u_g - G) + phi_T,   u_g = mean_x max_a Q_g(x_0, a)
                 upper minus lower        max_g UCB E u_g + phi_T - LCB E G

No union over survivors is needed: only the bound of g = f* must hold, and the maximum lies above it. Each of the three
spends a third of delta, so that all hold together and the smallest may be quoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from scipy import stats
from torch import Tensor

from s2r_torch.assurance import confidence
from s2r_torch.assurance.rehearsal import Rehearsal
from s2r_torch.deployment.certificate import Certificate, Gap
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard
from s2r_torch.errors import SettingError
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import OneOf, Range, Settings, Several, Share, Size


@dataclass(frozen=True)
class CertificateSettings(Settings):
    """Sizes and confidence of a certificate.

    Args:
        simulators: M, fresh simulators; 0 makes no certificate, and no scores to compare worlds with.
        n_rollouts: k, episodes in each.
        n_accurate: observations per state and simulator for the accurate densities of the gap bounds.
        delta: failure probability of each promise.
        bound: of the mean, chosen before the draws: `betting`, or `clopper_pearson` where every mean return is 0 or 1.
        share: of worlds, for the promise on most worlds.
        delta_world: failure probability of the bound on each single simulator's value, at most 1 - share.
        density_error: phi_T, a bound on E |f*(D~, .) - f*(D, .)|, where somebody knows it; None measures a proxy, which
            is heuristic.

    Raises:
        SettingError: a size or probability out of range.
    """

    simulators: Several = 200
    n_rollouts: Size = 200
    n_accurate: Size = 1000
    delta: Share = 0.05
    bound: Annotated[str, OneOf(confidence.BOUNDS)] = "betting"
    share: Share = 0.9
    delta_world: Share = 0.01
    density_error: Annotated[float, Range(0)] | None = None

    def check(self) -> None:
        if self.delta_world >= 1 - self.share:
            raise SettingError(
                expected="delta_world < 1 - share",
                got=f"delta_world={self.delta_world}, share={self.share}",
                cause="a confidence given for a failure probability",
            )


def certify(
    meta_policy: MetaPolicy, simulators: Guard, rehearsal: Rehearsal, settings: CertificateSettings, seed: Seed
) -> Certificate:
    """Makes the promises that a rehearsal on M fresh simulators allows.

    Args:
        meta_policy: frozen before these simulators were drawn; all its survivors enter the gap bounds.
        simulators: those of the rehearsal, unused in training, calibration and elimination.
        rehearsal: the deploy procedure on them.
        settings: sizes and confidence; fixed before the draws.
        seed: named stream.

    Returns:
        The certificate.

    Cost:
        2 xi n_accurate episodes per simulator, for two accurate densities.
    """
    graph, ensemble = meta_policy.problem.graph, meta_policy.ensemble
    D_accurate, D_other = (
        estimate_densities(simulators, graph, meta_policy.estimator, settings.n_accurate, seed.child("density", i))
        for i in (0, 1)
    )
    values = rehearsal.values
    lower = float(confidence.lower(values, settings.delta, bound=settings.bound))
    return Certificate(
        simulators=len(simulators),
        n_rollouts=settings.n_rollouts,
        n_real=meta_policy.n_real,
        sequences=len(meta_policy.cover),
        delta=settings.delta,
        bound=settings.bound,
        value_mean=float(values.mean()),
        value_lower=max(0.0, lower),
        share=settings.share,
        share_value=share_bound(rehearsal.rollouts.returns, settings),
        gap=gap_bounds(ensemble, rehearsal, D_accurate, D_other, settings),
    )


def share_bound(returns: Tensor, settings: CertificateSettings) -> float:
    """The value v that at least a share of worlds reaches, with probability 1 - delta; returns [M, k] in [0, 1].

    Every simulator's own lower bound L_i holds with probability 1 - delta_world. The r-th smallest L_i, with r the
    largest number for which P(Bin(M, 1 - q) >= r) >= 1 - delta, lies below a share q = share + delta_world of all L
    with probability 1 - delta (a distribution-free tolerance limit; r is fixed before the draws), and L <= V except
    for a share delta_world of worlds.
    """
    M, q = len(returns), settings.share + settings.delta_world
    r = int(stats.binom.ppf(settings.delta, M, 1 - q))
    while r > 0 and stats.binom.sf(r - 1, M, 1 - q) < 1 - settings.delta:
        r -= 1
    if r == 0:
        return 0.0
    each = confidence.lower(returns, settings.delta_world)
    return max(0.0, float(each.sort().values[r - 1]))


def gap_bounds(
    ensemble: Ensemble, rehearsal: Rehearsal, D_accurate: Tensor, D_other: Tensor, settings: CertificateSettings
) -> Gap:
    """The three gap bounds of theory.md 4.2, with the maximum over all survivors.

    Args:
        ensemble: the survivors.
        rehearsal: M simulators, k episodes of the deployed policy in each.
        D_accurate: `[M, xi, G]` accurate densities, from draws that the rehearsal did not use.
        D_other: `[M, xi, G]` an independent second estimate, for phi_T.
        settings: confidence, and phi_T where it is known.
    """
    horizon, delta = ensemble.problem.graph.horizon, settings.delta / 3
    advantage, start, moved = survivor_values(ensemble, rehearsal, D_accurate, D_other)
    phi_T = settings.density_error if settings.density_error is not None else float(moved.mean(1).max())
    G = rehearsal.values
    difference = confidence.upper(advantage, delta, low=0.0, high=float(horizon)).max()
    paired = confidence.upper((start - G).clamp(-1, 1), delta, low=-1.0, high=1.0).max()
    U = confidence.upper(start, delta / 2).max()
    L = confidence.lower(G, delta / 2, bound=settings.bound)
    return Gap(
        performance_difference=min(1.0, float(difference) + 2 * horizon * phi_T),
        paired=min(1.0, float(paired) + phi_T),
        upper_minus_lower=min(1.0, float(U + phi_T - L)),
        density_error=phi_T,
        density_error_kind="measured" if settings.density_error is None else "given",
        survivors=ensemble.size,
        realizable=ensemble.exact,
    )


def survivor_values(
    ensemble: Ensemble, rehearsal: Rehearsal, D_accurate: Tensor, D_other: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What every survivor thinks of the deployed policy, on its own trajectories; three tensors [F, M], float64.

    Returns:
        Summed advantages sum_h (max_a Q - Q(a_h)), averaged over episodes; greedy values at the start; the largest
        |f(D~_1, x, a) - f(D~_2, x, a)| over the episodes, steps and actions.
    """
    episodes, horizon = rehearsal.rollouts, ensemble.problem.graph.horizon
    one, two = ensemble.evaluator(D_accurate), ensemble.evaluator(D_other)
    steps = [(step, episodes.x[:, :, step]) for step in range(horizon)]
    advantage = sum(one.advantages(step, x, episodes.actions[:, :, step]) for step, x in steps)
    moved = torch.stack([one.largest_change(two, step, x) for step, x in steps]).amax(0)
    return advantage, one.greedy_values(*steps[0]), moved
