"""Orders of growth without constants: what the papers quote, to be compared with each other and with nothing else.

An order tells how a bound grows, not how large it is: never draw it beside an exact count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from s2r_torch.errors import AssumptionError
from s2r_torch.planner.plan import Setting


@dataclass(frozen=True)
class Orders:
    """Leading terms of Theorem 1 and of learning directly in the real world (paper section 5), inside O-tilde.

    Args:
        sim_loop: H^11 S^2 A^3 / epsilon^5 log(F)^2 log(1 / delta)^3, simulator episodes of the learning part.
        num_simulators: H^4 A / epsilon^2 log(F S / delta).
        sim_density_as_stated: `num_simulators` times `real_as_stated`.
        sim_density: the same with the factor H S A that Theorem 1 omits (theory.md F3).
        real_as_stated: (H^2 sqrt(A) / epsilon log(S / delta))^(2 + d / alpha), as Theorem 1 has it.
        real_smooth_as_stated: its limit as alpha grows, H^4 A / epsilon^2 log(S / delta)^2.
        real: with the factor H S A of the paper's own Corollary.
        real_cover: with a path cover, w, instead of H S A (theory.md 3.1).
        real_sweep: w (H / epsilon)^(2 + d / alpha), Theorem R, its logarithms of H S / epsilon hidden (theory.md 3.3).
        krishnamurthy2016: H^6 A^2 S / epsilon^3 log(F) log(1 / delta)^2, with reward, in the real world.
        jiang2017: H^5 A S^2 / epsilon^2 log(F / delta), with reward, in the real world: as the paper quotes it, which
            takes H S for the Bellman rank.
        jiang2017_layered: H^3 A S^2 / epsilon^2 log(F / delta): the rank of a layered ROMDP is at most max_h |S_h|
            (planner/comparators.py).
        sun2019: the same order as `jiang2017`, and the same correction.
    """

    sim_loop: float
    num_simulators: float
    sim_density_as_stated: float
    sim_density: float
    real_as_stated: float
    real_smooth_as_stated: float
    real: float
    real_cover: float
    real_sweep: float
    krishnamurthy2016: float
    jiang2017: float
    jiang2017_layered: float
    sun2019: float


def leading_orders(setting: Setting) -> Orders:
    """The orders in a setting; other papers' are as quoted in this paper, not re-derived.

    Raises:
        AssumptionError: delta >= 1, where logarithms of 1 / delta turn negative.

    >>> setting = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1.0, cover_width=2)
    >>> round(leading_orders(setting).jiang2017)
    32481
    """
    if setting.delta >= 1:
        raise AssumptionError(expected="delta in (0, 1)", got=f"delta = {setting.delta}", cause="not a probability")
    H, S, A, F = setting.horizon, setting.max_states_per_layer, setting.num_actions, setting.num_members
    epsilon, delta, exponent = setting.epsilon, setting.delta, 2 + setting.obs_dim / setting.order
    log_F, log_inverse_delta, log_S = math.log(F), -math.log(delta), math.log(S) - math.log(delta)
    simulators = H**4 * A / epsilon**2 * (log_F + log_S)
    base = H**2 * math.sqrt(A) / epsilon * log_S
    jiang = H**5 * A * S**2 / epsilon**2 * (log_F + log_inverse_delta)
    return Orders(
        sim_loop=H**11 * S**2 * A**3 / epsilon**5 * log_F**2 * log_inverse_delta**3,
        num_simulators=simulators,
        sim_density_as_stated=simulators * base**exponent,
        sim_density=simulators * base**exponent * H * S * A,
        real_as_stated=base**exponent,
        real_smooth_as_stated=base**2,
        real=base**exponent * H * S * A,
        real_cover=base**exponent * setting.cover_width,
        real_sweep=setting.cover_width * (H / epsilon) ** exponent,
        krishnamurthy2016=H**6 * A**2 * S / epsilon**3 * log_F * log_inverse_delta**2,
        jiang2017=jiang,
        jiang2017_layered=jiang / H**2,
        sun2019=jiang,
    )


@dataclass(frozen=True)
class Crossing:
    """Where two orders are equal as epsilon varies.

    Args:
        cheaper_below: the one that needs fewer episodes for smaller epsilon, the harder problems.
        cheaper_above: the one that needs fewer for larger epsilon.
        epsilon: where they are equal; it may lie outside (0, 1], where no problem is.
    """

    cheaper_below: str
    cheaper_above: str
    epsilon: float


OURS = ("real_as_stated", "real", "real_cover", "real_sweep")
WITH_REWARD = ("krishnamurthy2016", "jiang2017", "jiang2017_layered")


def crossings(setting: Setting) -> list[Crossing]:
    """Where the orders without reward cross those with reward, as epsilon varies and all else is kept.

    Every order is a power of epsilon, so two of them cross once, or never where the powers are equal.

    >>> setting = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1.0, cover_width=2)
    >>> [(c.cheaper_below, c.cheaper_above, round(c.epsilon, 5)) for c in crossings(setting)][-1]
    ('jiang2017_layered', 'real_sweep', 0.00121)
    """
    here, finer = leading_orders(setting), leading_orders(replace(setting, epsilon=setting.epsilon / 2))
    found = []
    for ours in OURS:
        for theirs in WITH_REWARD:
            if getattr(here, theirs) == 0:  # F = 1: nothing to learn
                continue
            ratio = math.log(getattr(here, ours) / getattr(here, theirs))
            slope = math.log(getattr(finer, ours) / getattr(finer, theirs)) - ratio  # per halving of epsilon
            if abs(slope) < 1e-9:
                continue
            below, above = (theirs, ours) if slope > 0 else (ours, theirs)
            found.append(Crossing(below, above, setting.epsilon * 2 ** (ratio / slope)))
    return found
