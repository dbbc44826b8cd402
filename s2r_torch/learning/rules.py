r"""Elimination rules: which predictors survive one call of TD-Eliminate (Algorithm 5, line 5).

With residual h_f = f - V_hat, excess g_f = h_f - h_{f*} and bias bound b_bar >= |h_{f*} - rho| (theory.md 2.1):

    paper       Risk_b(f) <= min Risk_b + 2 phi^2 + 8 phi   + (22 / n) log(2 F B / delta)    for every simulator b
    erratum     Risk_b(f) <= min Risk_b + 2 phi^2 + 8 phi^2 + (22 / n) log(2 F B / delta)    for every simulator b
    krishnamurthy  Risk_b(f) <= min Risk_b + 2 phi^2 + (22 / n) log(2 F B / delta)           for every simulator b
    sharp       Risk_b(f) <= min Risk_b + (b_bar + width sqrt(L / (2 n)))^2                  for every simulator b
    pairwise    Risk_b(f) <= Risk_b(g) + K d - d^2,   d = ||h_f - h_g||_n                    for all g and b
    pooled      mean_b Risk_b(f) <= min + (b_bar + width sqrt(L' / (2 n B)))^2
    calibrated  pooled, with b_bar measured on calibration simulators: heuristic
    both        pooled and sharp, each with delta / 2

where K = 2 b_bar + width sqrt(2 L / n), L = log(4 F B / delta), L' = log(F / delta). When b_bar holds, f* survives with
probability 1 - delta / 4, or 1 - delta for `pooled` (theory.md 2.3, 2.6). `paper` keeps it too, if b_bar <= 3 phi / 2,
and keeps far too much (theory.md F2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.given import refuse_kind
from s2r_torch.held import faults_of
from s2r_torch.plain import as_python, is_real
from s2r_torch.planner.sample_sizes import erratum_threshold, log_events, printed_threshold, sharp_threshold
from s2r_torch.text import printable


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one call of TD-Eliminate measured, for the F' members alive at entry."""

    risks: Tensor  # [F', B]
    n: int  # samples per simulator
    distances: Callable[[], Tensor]  # () -> ||h_f - h_g||_n, [F', F', B]; computed only if asked for


@dataclass(frozen=True)
class RuleSettings:
    """What every rule is told.

    Args:
        phi: accuracy of the estimates, in units of total episode reward (paper and erratum).
        b_bar: bound on f*'s bias; in pooled rules, on its root mean square.
        num_members: F at the start of the run, for union bounds (theory.md 1.3).
        delta: failure probability of this call, in (0, 1).
        reward_width: width of the reward's range, rho_R.
        residual_width: sup |g_f|, at most 2 (1 in the last layer).

    Raises:
        SettingError: a number out of range.
    """

    phi: float
    b_bar: float
    num_members: int
    delta: float
    reward_width: float = 1.0
    residual_width: float = 2.0

    def __post_init__(self):
        if not (self.phi >= 0 and self.b_bar >= 0 and self.num_members >= 1 and 0 < self.delta < 1):
            raise SettingError(
                expected="phi, b_bar >= 0, num_members >= 1 and delta in (0, 1)",
                got=str(self),
                cause="a budget that was not validated",
            )


@dataclass(frozen=True, eq=False)
class Verdict:
    """The outcome of a rule.

    `accuracy` bounds ||f - f* - (V_hat^f - V_hat^f*)||_2 for every survivor, on every simulator (on average over
    simulators for pooled rules), where the rule is proved; infinite otherwise.
    """

    keep: Tensor  # [F'] bool
    threshold: float  # excess risk allowed; for pairwise, K^2 / 4, the most it ever allows
    accuracy: float


Rule = Callable[[Evidence, RuleSettings], Verdict]


def paper(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """The box as printed. Safe, but its accuracy claim is false (theory.md F2): survivors may err by sqrt(phi).

    Paper deviation:
        None. The claim E[Y] <= 130 phi^2 is not repeated; `accuracy` is what (E1) and (E2) prove for this threshold.
    """
    B = evidence.risks.shape[1]
    tau = printed_threshold(settings.phi, evidence.n, settings.num_members, B, settings.delta)
    return _per_simulator(evidence, tau, _accuracy(evidence, settings, tau))


def erratum(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """The box with 8 phi replaced by 8 phi^2: all four claims of Theorem TD-Eliminate hold (theory.md 2.3).

    Paper deviation:
        One exponent. phi is raised to 2 b_bar / 3 where a larger bias is declared.
    """
    phi, B = max(settings.phi, 2 * settings.b_bar / 3), evidence.risks.shape[1]
    tau = erratum_threshold(phi, evidence.n, settings.num_members, B, settings.delta)
    return _per_simulator(evidence, tau, _accuracy(evidence, settings, tau))


def krishnamurthy(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """The box of LSVEE (Krishnamurthy et al. 2016), which the paper's adds 8 phi to: for a class that sees no density.

    Paper deviation:
        Without density errors b_bar is the noise of V_hat alone, and 2 phi^2 + 22 / 24 phi^2 <= 2.92 phi^2: theory.md
        F2 does not touch it. For the record; `sharp` is smaller. Never with densities: their bias is not forgiven.
    """
    B = evidence.risks.shape[1]
    tau = 2 * settings.phi**2 + 22 / evidence.n * log_events(2, settings.num_members, B, settings.delta)
    return _per_simulator(evidence, tau, _accuracy(evidence, settings, tau))


def sharp(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """The smallest threshold of its form that is safe: K^2 / 4 (theory.md 2.3)."""
    tau = sharp_threshold(settings.b_bar, evidence.n, _log_term(evidence, settings), settings.reward_width)
    return _per_simulator(evidence, tau, _accuracy(evidence, settings, tau))


def pairwise(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """Tests every pair at its own distance; never weaker than `sharp`. Cost O(F^2 n) per simulator (theory.md 2.3)."""
    K = 2 * settings.b_bar + _noise(evidence, settings)
    distance = evidence.distances()
    excess = evidence.risks[:, None] - evidence.risks[None]
    keep = (excess <= K * distance - distance.square() + 1e-12).all(2).all(1)
    return Verdict(keep, K**2 / 4, _in_mean_square(K, evidence, settings))


def pooled(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """Averages risks over simulators: noise shrinks by sqrt(B); the accuracy holds on average only (theory.md 2.6)."""
    n = evidence.n * evidence.risks.shape[1]
    L = log_events(1, settings.num_members, 1, settings.delta)
    tau = sharp_threshold(settings.b_bar, n, L, settings.reward_width)
    risk = evidence.risks.mean(1)
    norm = (1 + math.sqrt(2)) * math.sqrt(tau)
    return Verdict(risk <= risk.min() + tau, tau, _in_mean_square(norm, evidence, settings, n))


def calibrated(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """`pooled` with the misspecification of a trained class measured on calibration simulators. Heuristic.

    b_bar^2 is a conformal quantile (`calibration.measured_b_bar`) of the excess  Risk_b(f0) - min_f Risk_b(f)  at the
    state, f0 the one member that stands for f* everywhere. Were f0 chosen on other simulators, the excess of a fresh
    one, from as many samples, would lie below it with probability at least the quantile, on average over calibrations.
    f0 is chosen on the same ones, which makes that approximate; more samples for judges than for calibration err on the
    safe side. f0's excess of pooled risk is at most the judges' average excess, so f0, and whoever is as good, stays
    unless a few judges carry most of it.

    Not promised: anything about f*, which is not in a trained class; all judges or all states at once; that a bad
    member goes: where f0 fits simulators unevenly, one that is wrong everywhere may stay. Regret is bounded by the true
    residual of f0, unknown (theory.md 2.9), so `accuracy` is infinite. `scripts/bench.py slack` measures what stays.
    """
    verdict = pooled(evidence, settings)
    return Verdict(verdict.keep, verdict.threshold, math.inf)


def both(evidence: Evidence, settings: RuleSettings) -> Verdict:
    """Survivors of `pooled` and of `sharp`: less noise on average, and a bound on every simulator (theory.md 2.6)."""
    half = replace(settings, delta=settings.delta / 2)
    on_average, on_each = pooled(evidence, half), sharp(evidence, half)
    return Verdict(on_average.keep & on_each.keep, on_each.threshold, on_each.accuracy)


RULES: dict[str, Rule] = {
    "paper": paper,
    "erratum": erratum,
    "krishnamurthy": krishnamurthy,
    "sharp": sharp,
    "pairwise": pairwise,
    "pooled": pooled,
    "both": both,
    "calibrated": calibrated,
}


def rule_named(name: str) -> Rule:
    """The rule of that name, maybe a user's: whatever it raises, or returns in a verdict's place, is one error."""
    if name not in RULES:
        raise SettingError(expected=f"one of the rules {sorted(RULES)}", got=repr(name), cause="a typo")
    return partial(_verdict, name, RULES[name])


def _verdict(name: str, rule: Rule, evidence: Evidence, settings: RuleSettings) -> Verdict:
    with faults_of(f"rule {name} to judge members", "a fault in its own code"):
        verdict = rule(evidence, settings)
    if not isinstance(verdict, Verdict):
        refuse_kind(f"what rule {name} returned", verdict, "a Verdict")
    keep, F = verdict.keep, len(evidence.risks)
    if not (isinstance(keep, Tensor) and keep.dtype == torch.bool and keep.shape == (F,)):
        got = f"{keep.dtype} of shape {list(keep.shape)}" if isinstance(keep, Tensor) else type(keep).__name__
        cause = "indices in place of a mask, or a mask of the whole class"
        raise SettingError(expected=f"keep [{F}] of bool from rule {name}, one per member alive", got=got, cause=cause)
    numbers: dict[str, Any] = {part: as_python(getattr(verdict, part)) for part in ("threshold", "accuracy")}
    for part, value in numbers.items():
        if not is_real(value) or math.isnan(value):
            cause = "math.inf where nothing is claimed"
            raise SettingError(expected=f"a number as {part} from rule {name}", got=printable(repr(value)), cause=cause)
    return Verdict(keep, **numbers)


def _log_term(evidence: Evidence, settings: RuleSettings) -> float:
    return log_events(4, settings.num_members, evidence.risks.shape[1], settings.delta)


def _noise(evidence: Evidence, settings: RuleSettings) -> float:
    """s = reward width x sqrt(2 L / n)."""
    return settings.reward_width * math.sqrt(2 * _log_term(evidence, settings) / evidence.n)


def _per_simulator(evidence: Evidence, tau: float, accuracy: float) -> Verdict:
    lowest = evidence.risks.min(0).values
    return Verdict((evidence.risks <= lowest + tau).all(1), tau, accuracy)


def _accuracy(evidence: Evidence, settings: RuleSettings, tau: float) -> float:
    """||g||_n <= (K + sqrt(K^2 + 4 tau)) / 2 by (E1), then ||g||_2 by (E2)."""
    K = 2 * settings.b_bar + _noise(evidence, settings)
    return _in_mean_square((K + math.sqrt(K**2 + 4 * tau)) / 2, evidence, settings)


def _in_mean_square(norm_n: float, evidence: Evidence, settings: RuleSettings, n: int | None = None) -> float:
    """(E2): ||g||_2 <= (m s_0 + sqrt(m^2 s_0^2 + 4 ||g||_n^2)) / 2, s_0 = sqrt(2 L / n) (theory.md 2.2)."""
    noise = settings.residual_width * math.sqrt(2 * _log_term(evidence, settings) / (n or evidence.n))
    return (noise + math.sqrt(noise**2 + 4 * norm_n**2)) / 2


def a_posteriori_accuracy(evidence: Evidence, keep: Tensor, settings: RuleSettings) -> float:
    """The accuracy that the survivors' own spread shows, given that f* is one of them (theory.md 2.7)."""
    survivors = evidence.distances()[keep][:, keep]
    return _in_mean_square(float(torch.as_tensor(survivors).max()), evidence, settings)
