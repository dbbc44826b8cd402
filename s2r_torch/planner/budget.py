"""Budgets: every sample size and threshold of one run, and what accuracy the sizes buy.

`planner.py` makes the budgets that the theorems ask for; `practical` makes one from the caller's own sample sizes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from s2r_torch.errors import SettingError
from s2r_torch.planner.sample_sizes import log_events, sharp_threshold

SCHEDULES = ("paper", "loops", "sweep", "practical")
# theory.md 2.3, sharp rule: survivors have ||g_f||_2 <= RHO phi, and two of them differ by at most C_TD phi
RHO = 1 + math.sqrt(1 + (2 + 2 * math.sqrt(2)) ** 2)
C_TD = 2 * RHO


@dataclass(frozen=True)
class SampleSizes:
    """How many simulators, and how many observations, samples and episodes of each kind.

    Args:
        num_simulators: B.
        n_merge: observations per path and simulator that decide a merge (Algorithm 2, line 4).
        n_dist: observations per state and simulator for the density estimate on the simulators.
        n_test: observations per path and simulator in Consensus.
        n_train: samples per state and simulator in TD-Eliminate.
        n_rollouts: n_1, episodes per simulator that measure a policy in Learn-on-Simulators.
        n_probes: N_2, episodes in total whose visited states Learn-on-Simulators learns (theory.md C3).
        n_real: observations per state in the real world.

    Raises:
        SettingError: a size below 1.
    """

    num_simulators: int
    n_merge: int
    n_dist: int
    n_test: int
    n_train: int
    n_rollouts: int
    n_probes: int
    n_real: int

    def __post_init__(self):
        for field in fields(SampleSizes):
            _require_size(field.name, getattr(self, field.name))


@dataclass(frozen=True)
class Budget(SampleSizes):
    """Every sample size, threshold and failure probability of one run (theory.md section 6), beside `SampleSizes`.

    Args:
        schedule: `paper`, `loops`, `sweep` or `practical`.
        horizon: H.
        num_actions: A.
        num_members: F, the size of the class before any elimination.
        phi: accuracy of one state's estimates, in units of total episode reward, > 0.
        b_bar: bound on the bias |h_{f*} - rho| of f*'s Bellman residual (theory.md 2.1), >= 0.
        epsilon: wanted suboptimality, in units of total episode reward, > 0.
        delta: wanted failure probability of the whole run, in (0, 1).
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
        super().__post_init__()
        for name in ("horizon", "num_actions", "num_members"):
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
        return math.exp(-math.log(n) / (2 * self.order + self.obs_dim))


def practical(
    horizon: int,
    num_actions: int,
    num_members: int,
    *,
    epsilon: float,
    delta: float,
    phi: float | None = None,
    b_bar: float | None = None,
    epsilon_test_step: float | None = None,
    num_states: int | None = None,
    order: float | None = None,
    obs_dim: int | None = None,
    **sizes: int,
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
        epsilon: wanted suboptimality.
        delta: wanted failure probability.
        phi: accuracy; derived when None.
        b_bar: bias bound; derived when None.
        epsilon_test_step: Consensus threshold per layer; derived when None.
        num_states: bound on the states of all layers together, for the union bound over calls; when None, the number
            of nodes of the action tree, which enters through its logarithm only.
        order: alpha, if the paper's bandwidth rule is wanted.
        obs_dim: d, if the paper's bandwidth rule is wanted.
        sizes: all of `SampleSizes`, by name.

    Returns:
        A `Budget` of schedule `practical`.

    Raises:
        SettingError: a size below 1, or a number out of range.

    >>> sizes = dict(num_simulators=48, n_merge=300, n_dist=300, n_test=500, n_train=2000, n_rollouts=4, n_probes=64)
    >>> budget = practical(3, 2, 64, **sizes, n_real=100, epsilon=0.1, delta=0.1)
    >>> round(budget.phi, 3), round(budget.epsilon_test(0), 2)
    (0.125, 4.46)
    """
    own = SampleSizes(**sizes)
    for name, value in {"horizon": horizon, "num_actions": num_actions, "num_members": num_members}.items():
        _require_size(name, value)
    _require_probability("delta", delta)
    if num_states is None:
        num_states = sum(num_actions**step for step in range(horizon))
    _require_size("num_states", num_states)
    delta_td = delta / (8 * num_states)
    if phi is None:
        phi = math.sqrt(2 * log_events(4, num_members, own.num_simulators, delta_td) / own.n_train)
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
        epsilon_demand=epsilon / 2,
        delta_td=delta_td,
        delta_consensus=delta_td / num_actions,
        epsilon_test_last=epsilon_test_step,
        epsilon_test_step=epsilon_test_step,
        order=order,
        obs_dim=obs_dim,
        **asdict(own),
    )


@dataclass(frozen=True)
class Accuracy:
    """What a budget buys, by the general form of the recursion over layers (theory.md 2.5).

    Args:
        threshold: of the sharp rule on the excess risk, at the budget's own b_bar and n_train.
        density_error: phi_D, error of a predictor through the estimated densities.
        value_error: omega, Monte-Carlo error of a state's value.
        survivor_l2: R, bound on ||h_f - h_{f*}||_2 of every survivor f.
        value_spread: `[H]` T_h, bound on the disagreement of two survivors' values at step h.
        loss: `[H]` Loss_h, bound on what one greedy action at step h costs.
        generalisation: how much the mean over B simulators may flatter any member.
        deployment: 2 H (phi_D + phi_R) + delta_R, loss from acting on the real world's own density estimate.
        suboptimality: sum of the losses, generalisation and deployment; 1 or more says nothing.
        confidence: 1 - delta.
    """

    threshold: float
    density_error: float
    value_error: float
    survivor_l2: float
    value_spread: tuple[float, ...]  # [H]
    loss: tuple[float, ...]  # [H]
    generalisation: float
    deployment: float
    suboptimality: float
    confidence: float

    @property
    def is_vacuous(self) -> bool:
        """Whether the bound says nothing, because no policy loses more than 1."""
        return self.suboptimality >= 1


def accuracy_of(
    budget: Budget,
    *,
    consensus: bool | None = None,
    density_error_real: float | None = None,
    delta_real: float = 0.0,
    reward_width: float = 1.0,
    residual_width: float = 2.0,
) -> Accuracy:
    r"""The accuracy that a budget's sizes buy, whatever they are (theory.md 2.5 general form, 3.3).

        K = 2 b_bar + s,   s = reward_width s_0,   s_0 = sqrt(2 L / n_train),   L = log(4 F B / delta_td)
        R      = (m s_0 + sqrt(m^2 s_0^2 + (1 + sqrt 2)^2 K^2)) / 2
        T_h    = 2 sqrt(A) R + T_{h+1} + 2 omega,               T_H = 0
        Loss_h = 2 sqrt(A) R + 2 phi_D + 2 T_{h+1}
        V* - V <= sqrt(log(3 F / delta) / (2 B)) + sum_h Loss_h + 2 H (phi_D + phi_R) + delta_R

    b_bar is an input of the budget. Where it was derived from n_train, the result holds if the density error is at most
    phi_D = (b_bar - omega) / 2, which no sample size can promise without C_L and C_dist.

    Args:
        budget: any budget.
        consensus: whether values may come from Consensus too, whose omega then counts; None: for `paper` and `loops`.
        density_error_real: phi_R, C_L times the density error in the real world; phi_D when None.
        delta_real: probability that the real world's estimate is worse than that.
        reward_width: width of the range of one step's reward, <= 1.
        residual_width: m, bound on |h_f - h_g|, <= 2.

    Returns:
        An `Accuracy`.

    >>> sizes = {"num_simulators": 5000, "n_merge": 1, "n_dist": 1, "n_test": 1, "n_rollouts": 1, "n_probes": 1}
    >>> budget = practical(2, 2, 16, **sizes, n_train=20_000_000, n_real=1, epsilon=0.2, delta=0.1)
    >>> round(accuracy_of(budget).suboptimality, 3), accuracy_of(budget).is_vacuous
    (0.126, False)
    """
    A, F, B, H = budget.num_actions, budget.num_members, budget.num_simulators, budget.horizon
    L = log_events(4, F, B, budget.delta_td)
    noise = math.sqrt(2 * L / budget.n_train)  # s_0
    omega = noise / 2
    if consensus or (consensus is None and budget.schedule in ("paper", "loops")):
        omega = max(omega, math.sqrt(log_events(2, F, B, budget.delta_consensus) / (2 * budget.n_test)))
    phi_D = max(0.0, (budget.b_bar - omega) / 2)
    K = 2 * budget.b_bar + reward_width * noise
    R = (residual_width * noise + math.hypot(residual_width * noise, (1 + math.sqrt(2)) * K)) / 2
    spread = [0.0]  # T_H, then upwards
    for _ in range(H):
        spread.append(2 * math.sqrt(A) * R + spread[-1] + 2 * omega)
    loss = [2 * math.sqrt(A) * R + 2 * phi_D + 2 * below for below in spread[:-1]]
    generalisation = math.sqrt(log_events(3, F, 1, budget.delta) / (2 * B))
    phi_R = phi_D if density_error_real is None else density_error_real
    deployment = 2 * H * (phi_D + phi_R) + delta_real
    return Accuracy(
        threshold=sharp_threshold(budget.b_bar, budget.n_train, L, reward_width),
        density_error=phi_D,
        value_error=omega,
        survivor_l2=R,
        value_spread=tuple(reversed(spread[1:])),
        loss=tuple(reversed(loss)),
        generalisation=generalisation,
        deployment=deployment,
        suboptimality=sum(loss) + generalisation + deployment,
        confidence=1 - budget.delta,
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
