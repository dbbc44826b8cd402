"""What a plan is made of: the problem it is for, and the records it consists of.

`planner.py` computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from s2r_torch.errors import SettingError
from s2r_torch.planner.budget import C_TD, RHO, Budget
from s2r_torch.planner.sample_sizes import erratum_threshold, log_events, printed_threshold, sharp_threshold


@dataclass(frozen=True)
class Setting:
    """The problem that a plan is for (paper section 3, Assumptions 1-5).

    Args:
        horizon: H.
        max_states_per_layer: S.
        num_actions: A.
        num_members: F.
        epsilon: wanted suboptimality, in units of total episode reward, > 0.
        delta: wanted failure probability, in (0, 1).
        order: alpha, smoothness of the densities (Assumption 3), > 1.
        obs_dim: d >= 1.
        lipschitz_bound: C_L (Assumption 4), > 0.
        density_constant: C_dist > 0, which the paper leaves unspecified (theory.md C13).
        zeta: separation of states in sup norm (Assumption 5), > 0.
        cover_width: w, action sequences that visit every state (theory.md 3.1); None: its upper bound H S.

    Raises:
        SettingError: a size below 1, or a number that is not finite and positive.
    """

    horizon: int
    max_states_per_layer: int
    num_actions: int
    num_members: int
    epsilon: float
    delta: float
    order: float
    obs_dim: int
    lipschitz_bound: float
    density_constant: float
    zeta: float
    cover_width: int = None  # type: ignore[assignment]  # a number once built: None is filled in below

    def __post_init__(self):
        for name in ("horizon", "max_states_per_layer", "num_actions", "num_members"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(expected=f"{name}: an integer >= 1", got=repr(value), cause="an empty problem")
        for name in ("epsilon", "delta", "order", "lipschitz_bound", "density_constant", "zeta"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise SettingError(
                    expected=f"{name}: a finite number > 0", got=repr(value), cause="a sign or unit error"
                )
        if not isinstance(self.obs_dim, int) or self.obs_dim < 0:
            raise SettingError(expected="obs_dim: an integer >= 1", got=repr(self.obs_dim), cause="a fractional size")
        if self.cover_width is None:
            object.__setattr__(self, "cover_width", self.max_num_states)
        if not (isinstance(self.cover_width, int) and 1 <= self.cover_width <= self.max_num_states):
            raise SettingError(
                expected=f"cover_width in 1 .. {self.max_num_states} (H S)",
                got=repr(self.cover_width),
                cause="one action sequence per state always suffices (theory.md 3.1)",
            )

    @property
    def max_num_states(self) -> int:
        """H S, a bound on xi."""
        return self.horizon * self.max_states_per_layer

    @property
    def epsilon_max(self) -> float:
        """250 H^2 sqrt(A) C_L zeta, the upper end of Theorem 1's range of epsilon."""
        scale = 250 * self.horizon**2 * math.sqrt(self.num_actions)
        return scale * self.lipschitz_bound * self.zeta

    def violations(self, *, limit_epsilon: bool) -> list[tuple[str, str]]:
        """The assumptions that do not hold here, each with what came instead; `limit_epsilon` is Theorem 1's own."""
        rules = [
            (0 < self.delta < 1, "delta in (0, 1), a failure probability", f"delta = {self.delta}"),
            (self.order > 1, "Assumption 3 (Hoelder densities) of order alpha > 1", f"order = {self.order}"),
            (self.obs_dim >= 1, "Assumption 3 (densities on R^d) with d >= 1", f"obs_dim = {self.obs_dim}"),
        ]
        if limit_epsilon:
            wanted = f"epsilon <= 250 H^2 sqrt(A) C_L zeta = {self.epsilon_max:.6g} (Assumption 5, separation)"
            in_range = self.epsilon <= self.epsilon_max * (1 + 1e-12)
            rules.append((in_range, wanted, f"epsilon = {self.epsilon}"))
        return [(wanted, got) for holds, wanted, got in rules if not holds]


@dataclass(frozen=True)
class Thresholds:
    """What each elimination rule of theory.md 2.3 and 2.6 allows as excess risk, at a plan's phi, n_train and delta_td.

    Args:
        printed: 2 phi^2 + 8 phi + ..., Algorithm 5 as printed.
        proof: the same with 16 phi, as in the paper's proof (theory.md F1).
        erratum: the same with 8 phi^2, the least repair.
        sharp: (3 phi / 2 + sqrt(L / (2 n_train)))^2.
        sharp_limit: 4 phi^2, which bounds `sharp`.
        pairwise_width: K = 3 phi + sqrt(2 L / n_train) of the pairwise rule.
        pooled: (3 phi / 2 + sqrt(log(F / delta_td) / (2 n_train B)))^2 on the risk pooled over simulators.
    """

    printed: float
    proof: float
    erratum: float
    sharp: float
    sharp_limit: float
    pairwise_width: float
    pooled: float

    @staticmethod
    def of(budget: Budget) -> Thresholds:
        """The thresholds at a budget's phi, b_bar, n_train and delta_td."""
        phi, n, F, B = budget.phi, budget.n_train, budget.num_members, budget.num_simulators
        printed = printed_threshold(phi, n, F, B, budget.delta_td)
        L = log_events(4, F, B, budget.delta_td)
        return Thresholds(
            printed=printed,
            proof=printed + 8 * phi,
            erratum=erratum_threshold(phi, n, F, B, budget.delta_td),
            sharp=sharp_threshold(budget.b_bar, n, L),
            sharp_limit=4 * phi**2,
            pairwise_width=2 * budget.b_bar + math.sqrt(2 * L / n),
            pooled=sharp_threshold(budget.b_bar, n * B, log_events(1, F, 1, budget.delta_td)),
        )


@dataclass(frozen=True)
class Survivors:
    """How far survivors are from f* (theory.md 2.3): bounds on ||g_f||_2 by rule, and the paper's mean square.

    Args:
        sharp: 5.9309 phi.
        erratum: 8.0711 phi.
        pairwise: 5.1231 phi.
        printed_square: 66 phi^2 + 64 phi, all that the paper's proof gives for the printed rule (theory.md F2).
        claimed_square: 130 phi^2, what the paper claims; true for the three repairs.
    """

    sharp: float
    erratum: float
    pairwise: float
    printed_square: float
    claimed_square: float

    @staticmethod
    def of(phi: float) -> Survivors:
        """The bounds at accuracy phi."""
        return Survivors(
            sharp=RHO * phi,
            erratum=(1 + math.sqrt(50)) * phi,
            pairwise=(1 + math.sqrt(17)) * phi,
            printed_square=66 * phi**2 + 64 * phi,
            claimed_square=130 * phi**2,
        )


@dataclass(frozen=True)
class Episodes:
    """Bounds on the episodes drawn, exact integers.

    Args:
        sim_density: n_dist B H S A, exploration on all simulators.
        sim_learning: TD-Eliminate and Consensus: one DFS-Learn (paper), all calls (loops), the whole sweep (sweep).
        sim_loop: Learn-on-Simulators, its DFS-Learn calls included (paper); its rollouts (loops); 0 (sweep).
        real_paths: n_real H S A, as in the paper's Corollary.
        real_states: n_real H S, one path per state.
        real_cover: n_real w, a path cover (theory.md 3.1).
    """

    sim_density: int
    sim_learning: int
    sim_loop: int
    real_paths: int
    real_states: int
    real_cover: int


@dataclass(frozen=True)
class PaperAudit:
    """Numbers that only the audit of the paper needs (theory.md section 1).

    Args:
        radius_as_printed: epsilon / (1000 H^2 A), the right side of eq. (requisite-ndist); a typing error (C4).
        num_simulators_raw: B before its ceiling.
        num_simulators_generalisation: B that Theorem Simulators needs at delta / 4 (C5).
        num_simulators_quarter: B that Theorem Learn-on-Simulators needs at Algorithm 1's delta / 4 (C5).
        n_dist_root: real number of samples at which the density error is reached; None: no number is too small.
        n_dist_merge: n_dist when merges, too, must be right: radius min(phi / (2 C_L), zeta / 4) (C12).
        n_train_lemma: n_train with 2 F B for 4 F B, as in the proof of Lemma 2.
        n_probes_raw: n_2 as printed, per simulator and below 1 (C3).
        delta_learn_in_loop: failure probability of DFS-Learn inside Learn-on-Simulators.
        delta_rollouts: delta'' = delta / (3 H S) of one measured policy.
        n_test_in_loop: n_test inside Learn-on-Simulators.
        n_train_in_loop: n_train inside Learn-on-Simulators.
        epsilon_test_beyond: the printed Consensus threshold at depth H - 1, negative: never use it (C1).
        epsilon_test_repaired: kappa phi per layer, the repaired threshold at the paper's phi.
    """

    radius_as_printed: float
    num_simulators_raw: float
    num_simulators_generalisation: int
    num_simulators_quarter: int
    n_dist_root: float | None
    n_dist_merge: int
    n_train_lemma: int
    n_probes_raw: float
    delta_learn_in_loop: float
    delta_rollouts: float
    n_test_in_loop: int
    n_train_in_loop: int
    epsilon_test_beyond: float
    epsilon_test_repaired: float


@dataclass(frozen=True)
class Plan:
    """What one theorem asks for in one setting.

    Args:
        setting: the problem.
        budget: every number that the algorithms need.
        thresholds: of all elimination rules.
        survivors: how far survivors are from f*.
        episodes: bounds on the episodes drawn.
        delta_density: share of delta for the density estimates.
        delta_learning: share for TD-Eliminate and Consensus; the root call of DFS-Learn (paper).
        delta_generalisation: share for the mean over simulators.
        delta_loop: share for Learn-on-Simulators; 0 (sweep).
        density_radius: sup-norm error of the density estimates on the simulators.
        phi_generalisation: how much the mean over simulators may deviate.
        phi_rollouts: how much a measured policy value may deviate; 0 (sweep).
        phi_real: C_L times the density error in the real world.
        delta_real: probability that one real world's estimate is worse, as part of epsilon; 0 when part of delta.
        n_real_floor: least n_real at which the density bound holds at all, n^(2a) >= log n + l (theory.md 7); a smaller
            n_real is what the formula says, and no advice.
        merge_threshold: epsilon_dist = zeta / 2 (Algorithm 2, line 1).
        guarantee: the sum of the proof's error terms, at most epsilon; None (paper), whose proof has a gap (F2).
        audit: numbers of the audit (paper only).
    """

    setting: Setting
    budget: Budget
    thresholds: Thresholds
    survivors: Survivors
    episodes: Episodes
    delta_density: float
    delta_learning: float
    delta_generalisation: float
    delta_loop: float
    density_radius: float
    phi_generalisation: float
    phi_rollouts: float
    phi_real: float
    delta_real: float
    n_real_floor: int
    merge_threshold: float
    guarantee: float | None
    audit: PaperAudit | None = None

    @property
    def in_range(self) -> bool:
        """Whether all assumptions on the numbers hold."""
        return self.budget.in_range

    @property
    def kappa(self) -> float:
        """kappa = 11.8618 sqrt(A) + 1: disagreement of survivors per layer, in units of phi (theory.md 2.5)."""
        return C_TD * math.sqrt(self.setting.num_actions) + 1

    @property
    def phi_divisor(self) -> float:
        """epsilon / (phi H^2 sqrt(A)): 500 in the paper, about 20 in the sweep."""
        return self.setting.epsilon / (self.budget.phi * self.setting.horizon**2 * math.sqrt(self.setting.num_actions))
