"""What `scripts/plan.py` is asked: a problem, a range of accuracies, and how the answer is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from s2r_torch.errors import SettingError
from s2r_torch.planner.plan import Setting
from s2r_torch.schema import Positive, Range, Settings, Share, Where, Whole
from s2r_torch.text import printable

LEAST_EPSILON = 1e-300
FIGURES = (".png", ".pdf", ".svg")
ASCENDING = Where("low < high", lambda ends: ends[0] < ends[1])


@dataclass(frozen=True)
class PlanSettings(Settings):
    """A problem (`Setting`), and what is shown.

    Args:
        horizon: H.
        max_states_per_layer: S.
        num_actions: A.
        num_members: F.
        epsilon: wanted suboptimality, in units of an episode's total reward.
        delta: wanted failure probability.
        order: alpha, smoothness of the densities.
        obs_dim: d.
        lipschitz_bound: C_L.
        density_constant: C_dist, which the paper leaves unspecified.
        zeta: separation of states, sup norm.
        cover_width: w, action sequences that visit every state; null takes the most, horizon * max_states_per_layer.
        epsilon_range: of the figure.
        epsilon_points: of the figure.
        check_range: false computes outside a theorem's assumptions all the same.
        json: true prints JSON and nothing else.
        figure: file of the figure; null draws none.
        policy: a policy file: how many real episodes does it need for epsilon, as its run measured? Then no table and
            no figure; JSON has all.

    Raises:
        SettingError: a value of the wrong type or out of range.
    """

    horizon: Whole = 3
    max_states_per_layer: Whole = 3
    num_actions: Whole = 3
    num_members: Whole = 100
    epsilon: Positive = 0.1
    delta: Share = 0.05
    order: Positive = 2.0
    obs_dim: Whole = 1
    lipschitz_bound: Positive = 1.0
    density_constant: Positive = 1.0
    zeta: Positive = 0.5
    cover_width: Whole | None = 4
    epsilon_range: Annotated[tuple[Positive, Positive], ASCENDING] = (1e-3, 1.0)
    epsilon_points: Annotated[int, Range(2, 10_000)] = 41
    check_range: bool = True
    json: bool = False
    figure: str | None = "plan.png"
    policy: str | None = None

    def check_rules(self) -> None:
        if self.epsilon < LEAST_EPSILON:
            raise SettingError(
                expected=f"epsilon: {LEAST_EPSILON} or more, whose shares are numbers, too",
                got=repr(self.epsilon),
                cause="far too small for any budget",
            )
        if self.figure is not None and not self.figure.lower().endswith(FIGURES):
            raise SettingError(
                expected=f"figure: a file that ends in {', '.join(FIGURES)}, or null",
                got=printable(self.figure),
                cause="another kind of file",
            )

    @property
    def setting(self) -> Setting:
        """The problem alone."""
        return Setting(
            horizon=self.horizon,
            max_states_per_layer=self.max_states_per_layer,
            num_actions=self.num_actions,
            num_members=self.num_members,
            epsilon=self.epsilon,
            delta=self.delta,
            order=self.order,
            obs_dim=self.obs_dim,
            lipschitz_bound=self.lipschitz_bound,
            density_constant=self.density_constant,
            zeta=self.zeta,
            cover_width=self.cover_width or self.horizon * self.max_states_per_layer,
        )
