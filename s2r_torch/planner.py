"""Sample sizes and thresholds: frozen budgets for every schedule of theory.md section 6.

A `Budget` holds every number that the algorithms need. Four schedules make one:

    paper      the algorithm boxes as printed, with the corrections C1-C15 of theory.md
    loops      Theorem L: Learn-on-Simulators, repaired
    sweep      Theorem R: one backward sweep, recommended
    practical  the caller's own sample sizes; `Budget.accuracy` says what they buy
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2r_torch.errors import SettingError

SCHEDULES = ("paper", "loops", "sweep", "practical")
SIZES = ("num_simulators", "n_merge", "n_dist", "n_test", "n_train", "n_rollouts", "n_probes", "n_real")
# theory.md 2.3, sharp rule: survivors have ||g_f||_2 <= RHO phi, and two of them differ by at most C_TD phi
RHO = 1 + math.sqrt(1 + (2 + 2 * math.sqrt(2)) ** 2)
C_TD = 2 * RHO


@dataclass(frozen=True)
class Budget:
    """Every sample size, threshold and failure probability of one run (theory.md section 6).

    Args:
        schedule: `paper`, `loops`, `sweep` or `practical`.
        horizon: H.
        num_actions: A.
        num_members: F, the size of the class before any elimination.
        phi: accuracy of one state's estimates, in units of total episode reward, > 0.
        b_bar: bound on the bias |h_{f*} - rho| of f*'s Bellman residual (theory.md 2.1), >= 0.
        epsilon: wanted suboptimality, in units of total episode reward, > 0.
        delta: wanted failure probability of the whole run, in (0, 1).
        num_simulators: B.
        n_merge: observations per path and simulator that decide a merge (Algorithm 2, line 4).
        n_dist: observations per state and simulator for the density estimate on the simulators.
        n_test: observations per path and simulator in Consensus.
        n_train: samples per state and simulator in TD-Eliminate.
        n_rollouts: n_1, episodes per simulator that measure a policy in Learn-on-Simulators.
        n_probes: N_2, episodes in total whose visited states Learn-on-Simulators learns (theory.md C3).
        n_real: observations per state in the real world.
        epsilon_demand: gap at which Learn-on-Simulators stops, one-sided.
        delta_td: failure probability of one call of TD-Eliminate.
        delta_consensus: failure probability of one call of Consensus.
        epsilon_test_last: Consensus threshold where the parent is at depth H - 2.
        epsilon_test_step: what each layer above adds to that threshold.
        order: alpha, smoothness of the densities; None when the bandwidth is chosen otherwise.
        obs_dim: d; None when the bandwidth is chosen otherwise.
        in_range: False when computed outside a theorem's assumptions (`check_range=False`).

    Raises:
        SettingError: a size below 1, or a number that is not finite or out of range.
    """

    schedule: str
    horizon: int
    num_actions: int
    num_members: int
    phi: float
    b_bar: float
    epsilon: float
    delta: float
    num_simulators: int
    n_merge: int
    n_dist: int
    n_test: int
    n_train: int
    n_rollouts: int
    n_probes: int
    n_real: int
    epsilon_demand: float
    delta_td: float
    delta_consensus: float
    epsilon_test_last: float
    epsilon_test_step: float
    order: float | None = None
    obs_dim: int | None = None
    in_range: bool = True

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            raise SettingError(expected=f"a schedule of {SCHEDULES}", got=repr(self.schedule), cause="a typing error")
        for name in ("horizon", "num_actions", "num_members", *SIZES):
            _require_size(name, getattr(self, name))
        for name in ("phi", "epsilon", "epsilon_demand", "epsilon_test_last", "epsilon_test_step"):
            _require_number(name, getattr(self, name), low_is_open=True)
        _require_number("b_bar", self.b_bar, low_is_open=False)
        for name in ("delta", "delta_td", "delta_consensus") if self.in_range else ():
            _require_probability(name, getattr(self, name))
        if (self.order is None) != (self.obs_dim is None):
            raise SettingError(
                expected="both order and obs_dim, or neither",
                got=f"order={self.order}, obs_dim={self.obs_dim}",
                cause="the bandwidth n^(-1 / (2 order + obs_dim)) needs both",
            )

    def epsilon_test(self, depth: int) -> float:
        """The Consensus threshold for the children of a path with `depth` actions (Algorithm 3, line 1).

        paper: (25 (H - depth - 2) + 21) sqrt(A) phi; elsewhere (H - depth - 1) kappa phi (theory.md 2.5).

        Raises:
            SettingError: depth < 0 or depth > H - 2, where children have no state (theory.md C1).
        """
        if not 0 <= depth <= self.horizon - 2:
            raise SettingError(
                expected=f"a depth in 0 .. {self.horizon - 2} (H - 2)",
                got=str(depth),
                cause="Consensus was called beyond the last layer; values there are 0 (theory.md C1)",
            )
        return (self.horizon - depth - 2) * self.epsilon_test_step + self.epsilon_test_last

    def bandwidth(self, n: int) -> float:
        """h = n^(-1 / (2 alpha + d)) (Algorithm 2, line 1), a deterministic function of n.

        Raises:
            SettingError: this budget states no order and dimension.
        """
        if self.order is None or self.obs_dim is None:
            raise SettingError(
                expected="a budget with order and obs_dim",
                got="neither",
                cause="practical budgets leave the bandwidth to density.py unless both are given",
            )
        return float(n) ** (-1 / (2 * self.order + self.obs_dim))


def practical(
    horizon: int,
    num_actions: int,
    num_members: int,
    *,
    num_simulators: int,
    n_merge: int,
    n_dist: int,
    n_test: int,
    n_train: int,
    n_rollouts: int,
    n_probes: int,
    n_real: int,
    epsilon: float,
    delta: float,
    phi: float | None = None,
    b_bar: float | None = None,
    epsilon_test_step: float | None = None,
    num_states: int | None = None,
    order: float | None = None,
    obs_dim: int | None = None,
) -> Budget:
    r"""The budget of a run whose sample sizes the caller chooses.

    What is not given is what the sizes buy (theory.md 2.3, sharp rule):

        delta_td        = (delta / 8) / num_states,   delta_consensus = delta_td / A          (Theorem L)
        phi             = sqrt(2 log(4 F B / delta_td) / n_train)
        b_bar           = 3 phi / 2
        epsilon_test(p) = (H - |p| - 1) epsilon_test_step,   epsilon_test_step = kappa phi    (theory.md 2.5)

    Args:
        horizon: H.
        num_actions: A.
        num_members: F.
        num_simulators: B; this and the n_* are as in `Budget`.
        n_merge: observations that decide a merge.
        n_dist: observations per density estimate.
        n_test: observations per Consensus call.
        n_train: samples per TD-Eliminate call.
        n_rollouts: episodes per simulator and tested policy.
        n_probes: probing episodes in total.
        n_real: observations per state in the real world.
        epsilon: wanted suboptimality.
        delta: wanted failure probability.
        phi: accuracy; derived when None.
        b_bar: bias bound; derived when None.
        epsilon_test_step: Consensus threshold per layer; derived when None.
        num_states: bound on the states of all layers together, for the union bound over calls; when None, the number
            of nodes of the action tree, which enters through its logarithm only.
        order: alpha, if the paper's bandwidth rule is wanted.
        obs_dim: d, if the paper's bandwidth rule is wanted.

    Returns:
        A `Budget` of schedule `practical`.

    Raises:
        SettingError: a size below 1, or a number out of range.

    >>> sizes = dict(num_simulators=48, n_merge=300, n_dist=300, n_test=500, n_train=2000, n_rollouts=4, n_probes=64)
    >>> budget = practical(3, 2, 64, **sizes, n_real=100, epsilon=0.1, delta=0.1)
    >>> round(budget.phi, 3), round(budget.epsilon_test(0), 2)
    (0.125, 4.46)
    """
    for name, value in {
        "horizon": horizon,
        "num_actions": num_actions,
        "num_members": num_members,
        "num_simulators": num_simulators,
        "n_train": n_train,
    }.items():
        _require_size(name, value)
    _require_probability("delta", delta)
    if num_states is None:
        num_states = sum(num_actions**step for step in range(horizon))
    _require_size("num_states", num_states)
    delta_td = delta / (8 * num_states)
    if phi is None:
        phi = math.sqrt(2 * math.log(4 * num_members * num_simulators / delta_td) / n_train)
    if epsilon_test_step is None:
        epsilon_test_step = (C_TD * math.sqrt(num_actions) + 1) * phi
    return Budget(
        schedule="practical",
        horizon=horizon,
        num_actions=num_actions,
        num_members=num_members,
        phi=phi,
        b_bar=1.5 * phi if b_bar is None else b_bar,
        epsilon=epsilon,
        delta=delta,
        num_simulators=num_simulators,
        n_merge=n_merge,
        n_dist=n_dist,
        n_test=n_test,
        n_train=n_train,
        n_rollouts=n_rollouts,
        n_probes=n_probes,
        n_real=n_real,
        epsilon_demand=epsilon / 2,
        delta_td=delta_td,
        delta_consensus=delta_td / num_actions,
        epsilon_test_last=epsilon_test_step,
        epsilon_test_step=epsilon_test_step,
        order=order,
        obs_dim=obs_dim,
    )


def _require_size(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(expected=f"{name}: an integer >= 1", got=repr(value), cause="an empty or fractional size")


def _require_number(name: str, value: float, *, low_is_open: bool) -> None:
    if not (math.isfinite(value) and (value > 0 if low_is_open else value >= 0)):
        sign = ">" if low_is_open else ">="
        raise SettingError(expected=f"{name}: a finite number {sign} 0", got=repr(value), cause="a sign or unit error")


def _require_probability(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise SettingError(expected=f"{name} in (0, 1)", got=repr(value), cause="a probability given as a percentage")
