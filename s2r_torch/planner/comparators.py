r"""What the rivals' own theorems ask for in the real world, with reward: worst-case sizes, constants included.

M is the number of states of a layer. Their rank is at most max_h |S_h| here, not H S: a layer's Bellman errors
E(f, pi, h) = sum_s P(s_h = s | pi) term(s, f) factor through its states, because T is shared and deterministic.

    LSVEE (Krishnamurthy 2016)   phi = epsilon / (320 H^2 sqrt A)
                                 n_train = 24 / phi^2 log(8 M H F / (delta/2)),  n_test = 2 / phi^2 log(2 F / delta')
                                 delta' = (delta/4) / (M A H);   one pass learns H M states and tests H M A paths
    OLIVE (Jiang 2017)           T = H M log(6 H sqrt(M) zeta / epsilon) / log(5/3) rounds of n_eval + n episodes
    Sun 2019 (witness rank)      T = H M log(beta / 2 phi) / log(5/3) rounds of n episodes

with zeta = beta = 2 sqrt(M) and kappa = 1. LSVEE's and OLIVE's constants are re-derived, not quoted; Sun's are those of
the paper, without n_e. Sun 2019 is not run: where T is shared and known, its models are (D_theta, R_theta), of which
the part about readings is system identification and the part about rewards is LSVEE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2r_torch.errors import AssumptionError
from s2r_torch.planner.plan import Setting

SHRINK = math.log(5 / 3)  # of the volume, per round of OLIVE and of Sun 2019
KAPPA = 1.0  # realizability constant of the witness


@dataclass(frozen=True)
class LSVEESizes:
    """LSVEE: one full pass of DFS-Learn."""

    phi: float
    n_train: float  # episodes per learned state
    n_test: float  # per tested path
    n_rollouts: float  # n_1
    n_probes: float  # n_2
    total: float  # of the pass


@dataclass(frozen=True)
class RoundSizes:
    """A method that goes through rounds: OLIVE, or Sun 2019."""

    phi: float
    rounds: float
    n_first: float  # before the first round
    n_test: float  # per round, to see whether the policy is as good as predicted
    n_learn: float  # per round, to eliminate
    total: float


@dataclass(frozen=True)
class RivalSizes:
    """Real episodes with reward."""

    lsvee: LSVEESizes
    olive: RoundSizes
    sun: RoundSizes


def rival_sizes(setting: Setting) -> RivalSizes:
    """The sizes above in a setting.

    Raises:
        AssumptionError: delta >= 1.

    >>> sizes = rival_sizes(Setting(5, 3, 2, 64, 0.1, 0.1, 2.0, 2, 5.0, 1.0, 1.0, cover_width=3))
    >>> f"{sizes.olive.total:.1e} {sizes.lsvee.total:.1e} {sizes.sun.total:.1e}"
    '2.1e+11 6.4e+13 2.1e+12'
    """
    if setting.delta >= 1:
        raise AssumptionError(expected="delta in (0, 1)", got=f"delta = {setting.delta}", cause="not a probability")
    return RivalSizes(_lsvee(setting), _olive(setting), _sun(setting))


def _lsvee(setting: Setting) -> LSVEESizes:
    H, M, A, F = _sizes(setting)
    epsilon, delta = setting.epsilon, setting.delta
    phi = epsilon / (320 * H**2 * math.sqrt(A))
    n_train = 24 / phi**2 * math.log(8 * M * H * F / (delta / 2))
    n_test = 2 / phi**2 * math.log(2 * F / (delta / 4 / (M * A * H)))
    return LSVEESizes(
        phi,
        n_train,
        n_test,
        32 * math.log(12 * M * H / delta) / epsilon**2,
        8 * math.log(6 * M * H / delta) / epsilon,
        H * M * n_train + H * M * A * n_test,
    )


def _olive(setting: Setting) -> RoundSizes:
    H, M, A, F = _sizes(setting)
    epsilon, delta, zeta = setting.epsilon, setting.delta, 2 * math.sqrt(M)
    log_volume = math.log(6 * H * math.sqrt(M) * zeta / epsilon)
    rounds = H * M * log_volume / SHRINK
    n_first = 32 / epsilon**2 * math.log(6 * F / delta)
    n_test = 288 * H**2 / epsilon**2 * math.log(12 * H**2 * M * log_volume / delta)
    n_learn = 4608 * H**2 * M * A / epsilon**2 * math.log(12 * F * H * M * log_volume / delta)
    phi = epsilon / (12 * H * math.sqrt(M))
    return RoundSizes(phi, rounds, n_first, n_test, n_learn, n_first + rounds * (n_test + n_learn))


def _sun(setting: Setting) -> RoundSizes:
    """|F| = |M| models, and Scheffe sets as witnesses: 2 |M|^3 H of them."""
    H, M, A, F = _sizes(setting)
    epsilon, delta, beta = setting.epsilon, setting.delta, 2 * math.sqrt(M)
    phi = KAPPA * epsilon / (48 * H * math.sqrt(M))
    rounds = H * M * math.log(beta / (2 * phi)) / SHRINK
    witnesses = 2 * F**3 * H
    events = math.log(12 * rounds * F) + math.log(witnesses) - math.log(delta)
    n_learn = 18432 * H**2 * A * M * events / (KAPPA * epsilon) ** 2
    return RoundSizes(phi, rounds, 0.0, 0.0, n_learn, rounds * n_learn)


def _sizes(setting: Setting) -> tuple[int, int, int, int]:
    return setting.horizon, setting.max_states_per_layer, setting.num_actions, setting.num_members
