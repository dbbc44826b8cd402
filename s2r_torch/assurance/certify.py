r"""What can be promised of a policy, from fresh simulators, and under which assumptions (theory.md 4).

M fresh theta are drawn; in each, the whole deploy procedure is rehearsed and the policy acts for k episodes. With G_i
the mean return in simulator i, and Q_g(x, a) = g(D~_i, x, a) for a survivor g on an accurate density D~_i:

    value    lower bound on E G, the mean over worlds; assumes nothing but i.i.d. theta
    used     likewise of what is earned if worlds unlike the simulators are refused, as `deploy` does by default
    worlds   v such that a given share of worlds is worth at least v; likewise
    gap      upper bounds on V* - V of the deployed policy; they assume A1, A2 (f* survives) and A4:
                 performance difference   max_g UCB E sum_h (max_a Q_g(x_h, a) - Q_g(x_h, a_h)) + 2 H phi_T
                 paired                   max_g UCB E (u_g - G) + phi_T,   u_g = mean_x max_a Q_g(x_0, a)
                 upper minus lower        max_g UCB E u_g + phi_T - LCB E G

No union over survivors is needed: only the bound of g = f* must hold, and the maximum lies above it. Each of the three
spends a third of delta, so that all hold together and the smallest may be quoted. Each of the four promises spends
delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal

import scipy
import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.assurance import confidence
from s2r_torch.assurance.rehearsal import Rehearsal, passed_again
from s2r_torch.density.patches import Densities
from s2r_torch.deployment.certificate import Certificate, Gap, Refusals
from s2r_torch.deployment.likeness import REFUSE
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard
from s2r_torch.given import taking
from s2r_torch.learning.estimator import estimate_halves
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import Drawable, OneOf, Range, Settings, Several, Share, Size


@dataclass(frozen=True)
class CertificateSettings(Settings):
    """Sizes and confidence of a certificate.

    Args:
        simulators: M, fresh simulators; 0 makes no certificate, and no scores to compare worlds with.
        known: of the training simulators, that show what is normal in one that is compared (`likeness.py`).
        scores: further fresh simulators that are only looked at, to compare worlds with.
        n_rollouts: k, episodes in each of the M.
        n_accurate: observations per state and simulator for the accurate densities of the gap bounds; episodes along
            the path cover.
        delta: failure probability of each promise.
        bound: of the mean, chosen before the draws: `betting`, or `clopper_pearson` where every mean return is 0 or 1.
        share: of worlds, for the promise on most worlds.
        delta_world: failure probability of the bound on each single simulator's value; `share_bound` allows for it, and
            it is no part of delta. Between 0.1 and 0.4 the promise hardly depends on it.
        values: what rehearsed policies are worth: mean returns of `episodes`, or `exact`, where the family knows its
            ground truth; a quadrature that is only close makes the promises approximate.
        refused: what is done in a world that is refused: `nothing`, which earns 0, or the best fixed `list` of actions.
        density_error: phi_T, a bound on E |f*(D~, .) - f*(D, .)|, where somebody knows it; None measures a proxy, which
            is heuristic.

    Raises:
        SettingError: a size or probability out of range.
    """

    simulators: Several = 200
    known: Annotated[int, Drawable(2)] = 80
    scores: Size = 400
    n_rollouts: Size = 500
    n_accurate: Annotated[int, Drawable(4)] = 100
    delta: Share = 0.05
    bound: Annotated[str, OneOf(confidence.BOUNDS)] = "betting"
    share: Share = 0.9
    delta_world: Share = 0.3
    values: Literal["episodes", "exact"] = "episodes"
    refused: Literal["nothing", "list"] = "nothing"
    density_error: Annotated[float, Range(0)] | None = None


@taking(simulators=object)
def certify(
    meta_policy: MetaPolicy,
    simulators: Guard,
    rehearsal: Rehearsal,
    settings: CertificateSettings,
    seed: Seed,
    *,
    exact_values: Tensor | None = None,
    refused_values: Tensor | float = 0.0,
) -> Certificate:
    """Makes the promises that a rehearsal on M fresh simulators allows.

    Args:
        meta_policy: frozen before these simulators were drawn, its reference included; all its survivors enter the gap
            bounds.
        simulators: those of the rehearsal, unused in training, calibration, elimination and the reference.
        rehearsal: the deploy procedure on them.
        settings: sizes and confidence; fixed before the draws.
        seed: named stream.
        exact_values: `[M]` the true values of the rehearsed policies, where the family knows them exactly; they take
            the place of mean returns. A quadrature that is only close would make the promises approximate.
        refused_values: what a refused world earns, one number or `[M]`, in [0, 1]: 0, or the mean returns of what is
            done there instead.

    Returns:
        The certificate.

    Cost:
        w n_accurate episodes per simulator, for accurate densities.
    """
    graph, ensemble = meta_policy.problem.graph, meta_policy.ensemble
    values = rehearsal.values if exact_values is None else exact_values.double()
    check_shape("values", values, (len(simulators),), "those of other simulators")
    refused = _refused(meta_policy, rehearsal)
    instead = torch.as_tensor(refused_values, dtype=torch.float64).expand_as(values)
    used = torch.where(refused, instead, values)
    half, seeds = -(-settings.n_accurate // 2), (seed.child("half"), seed.child("other half"))
    D_accurate, D_half = estimate_halves(simulators, graph, meta_policy.estimator, half, seeds)
    return Certificate(
        simulators=len(simulators),
        n_rollouts=settings.n_rollouts,
        n_real=meta_policy.n_real,
        sequences=len(meta_policy.cover),
        delta=settings.delta,
        bound=settings.bound,
        value_mean=float(values.mean()),
        value_lower=_mean_bound(values, settings),
        share=settings.share,
        share_value=share_bound(rehearsal.rollouts.returns, settings, exact_values),
        gap=gap_bounds(ensemble, rehearsal, D_accurate, D_half, settings),
        used_mean=float(used.mean()),
        used_lower=_mean_bound(used, settings),
        refused=int(refused.sum()),
        refused_value=float(instead.mean()),
        refusals=_refusals(meta_policy),
    )


def share_bound(returns: Tensor, settings: CertificateSettings, exact_values: Tensor | None = None) -> float:
    """The value v that at least a share of worlds reaches, with probability 1 - delta; returns [M, k] in [0, 1].

    Let t be the quantile: P(V <= t) >= 1 - share, and no v <= t is too much. A simulator's own lower bound L, which is
    <= V with probability 1 - delta_world given theta, is at most t with probability at least q = (1 - share)
    (1 - delta_world). So the r-th smallest of M bounds lies above t with probability at most P(Bin(M, q) < r); r is the
    largest number for which that is <= delta, fixed before the draws. Where values are exact, L = V and q = 1 - share.
    """
    M, right = len(returns), 1 - settings.delta_world if exact_values is None else 1.0
    q = (1 - settings.share) * right
    r = int(
        (scipy.special.bdtrc(torch.arange(M).numpy(), M, q) >= 1 - settings.delta).sum()
    )  # P(Bin > k) for k = 0..M-1
    if r == 0:
        return 0.0
    each = confidence.lower(returns, settings.delta_world) if exact_values is None else exact_values
    return max(0.0, float(each.sort().values[r - 1]))


def _mean_bound(values: Tensor, settings: CertificateSettings) -> float:
    return max(0.0, float(confidence.lower(values, settings.delta, bound=settings.bound)))


def _refused(meta_policy: MetaPolicy, rehearsal: Rehearsal) -> Tensor:
    """[M] bool: in which simulators `deploy` would refuse to act."""
    if meta_policy.reference is None:
        return torch.zeros(len(rehearsal.D_hat), dtype=torch.bool)
    return meta_policy.reference.refuses(rehearsal.sight, passed_again(meta_policy))


def _refusals(meta_policy: MetaPolicy) -> Refusals | None:
    """At which rate worlds like the simulators are refused; None where none can be."""
    reference = meta_policy.reference
    if reference is None or not reference.can_refuse:
        return None
    return Refusals(len(reference.scores), *reference.false_alarms(REFUSE))


def gap_bounds(
    ensemble: Ensemble, rehearsal: Rehearsal, D_accurate: Densities, D_half: Densities, settings: CertificateSettings
) -> Gap:
    """The three gap bounds of theory.md 4.2, with the maximum over all survivors.

    Args:
        ensemble: the survivors.
        rehearsal: M simulators, k episodes of the deployed policy in each.
        D_accurate: `[M, xi, G]` accurate densities, from draws that the rehearsal did not use.
        D_half: `[M, xi, G]` the estimate from half of these draws, for phi_T.
        settings: confidence, and phi_T where it is known.

    phi_T is measured as what two independent estimates of the size of D_accurate would differ by. The error of a half
    against the whole is that of the whole against the truth, and sqrt(2) times as much lies between two of them, where
    f is about linear in errors of D.
    """
    horizon, delta = ensemble.problem.graph.horizon, settings.delta / 3
    advantage, start, moved = survivor_values(ensemble, rehearsal, D_accurate, D_half)
    measured = math.sqrt(2) * float(moved.mean(1).max())
    phi_T = settings.density_error if settings.density_error is not None else measured
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
        pruned=ensemble.problem.graph.pruned,
    )


def survivor_values(
    ensemble: Ensemble, rehearsal: Rehearsal, D_accurate: Densities, D_half: Densities
) -> tuple[Tensor, Tensor, Tensor]:
    """What every survivor thinks of the deployed policy, on its own trajectories; three tensors [F, M], float64.

    Returns:
        Summed advantages sum_h (max_a Q - Q(a_h)), averaged over episodes; greedy values at the start; the largest
        |f(D~, x, a) - f(D_half, x, a)| over the episodes, steps and actions.
    """
    episodes, horizon = rehearsal.rollouts, ensemble.problem.graph.horizon
    whole, half = ensemble.evaluator(D_accurate), ensemble.evaluator(D_half)
    found = [
        whole.opinions(half, step, episodes.x[:, :, step], episodes.actions[:, :, step]) for step in range(horizon)
    ]
    advantages, greedy, moved = zip(*found, strict=True)
    return reduce(torch.add, advantages), greedy[0], reduce(torch.maximum, moved)
