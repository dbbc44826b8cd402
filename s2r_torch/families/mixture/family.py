r"""`mixture`: the MixROMDP of theory.md 5.2, whose optimal predictor, constants and values are known in closed form.

theta in [-1, 1]. An observation is one number in [0, J]: J cells of half-width 1/2, cell j around j + 1/2, the same in
every layer. In state s the cell is drawn with probability W[s, j] = u[s, j] + theta v[s, j], and x is bump noise within
it. Latent states are 0 .. S-1, start 0, T(s, a) = (s + a) mod S. With h counted from 0:

    z_h(theta, j, a) = 1/2 + 1/2 theta amp[j] c[h, j, a],    c[h, j, a] = Gamma_A[(a + h + shift[j]) mod A]
    flat:     Q*_h = w (H-h-1 + z_h)
    stacked:  Q*_h = M_h + w z_h,    M_h = w sum_{g > h} (1/2 + 1/2 |theta| max_s G[s]),    G[s] = sum_j u[s, j] amp[j]

So the best action flips with the sign of theta and differs between cells, and Q* does not depend on the state although
supports overlap. Rewards do: r(s, x, a) = Q*_h(theta, x, a) - V*_{h+1}(T(s, a)), paid as 1/H Bernoulli(H r) (5.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.defaults import plainly
from s2r_torch.density.grid import DensityGrid
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.layered import LayeredSimulators, LayeredWorld, depth_first, require_range, require_theta
from s2r_torch.families.likelihood import midpoints
from s2r_torch.families.mixture.predictors import GAINS, MixturePredictors
from s2r_torch.families.noise import bump_constant, bump_draws, bump_nodes, require_smoothness, uniforms
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.plain import require_count

HALF_WIDTH = 0.5
SLOPE = 0.25  # |v|
TWO_POINT = 0.8
MIDDLE = (0.10, 0.25, 0.40)  # m_s of kind `full`
GAMMA = {2: (1.0, -1.0), 3: (1.0, -1.0, 0.0), 4: (1.0, -1.0, 0.5, -0.5)}


@dataclass(frozen=True)
class Constants:
    """The paper's constants in closed form (theory.md 5.2).

    Args:
        alpha: order of smoothness of the densities (Assumption 3).
        C_alpha: their Lipschitz constant of that order.
        zeta: separation of two states of a layer in sup norm (Assumption 5, which is strict: stay below).
        C_L: Lipschitz constant of f* in the sup norm (Assumption 4).
        P_inf: largest density.
    """

    alpha: float
    C_alpha: float
    zeta: float
    C_L: float
    P_inf: float


@plainly("prior", "simulators", "world", "truth")
@dataclass(frozen=True)
class Mixture:
    """The family `mixture`.

    Args:
        horizon: H.
        max_states: S; 2 or 3 for kind `full`.
        num_actions: A, 2 to 4.
        smoothness: k of the bump density, which is alpha.
        kind: `full` (all states of a layer overlap everywhere) or `chain` (state i lives on cells i and i+1).
        base: `flat`, or `stacked` (gaps twice as large; with `full` only, else rewards would be negative).
        theta_law: `uniform` on [-1, 1], or `two_point`: +-0.8, equally likely.
        quadrature: points per cell in the ground truth.
        hidden_sign: `none`, or `last`: in the last layer c is multiplied by a fair sign, a second part of theta that no
            observation shows. It breaks "D determines theta" on purpose: only rewards can tell it.

    Raises:
        SettingError: a parameter is out of range, or `stacked` is asked for with `chain`.
    """

    horizon: int = 2
    max_states: int = 2
    num_actions: int = 2
    smoothness: int = 2
    kind: str = "full"
    base: str = "flat"
    theta_law: str = "uniform"
    quadrature: int = 5
    hidden_sign: str = "none"

    name = "mixture"
    theta_names = ("theta",)

    def __post_init__(self):
        self._validate()

    @cached_property
    def spec(self) -> ProblemSpec:
        return ProblemSpec(
            num_actions=self.num_actions,
            horizon=self.horizon,
            max_states_per_layer=self.max_states,
            obs_dim=1,
            low=(0.0,),
            high=(float(self.num_cells),),
            obs_names=("x",),
            zeta=self.constants().zeta,
            reward_width=self.payment,
        )

    @cached_property
    def graph(self) -> StateGraph:
        return self._numbered[0]

    @cached_property
    def labels(self) -> Tensor:
        """The latent label [xi] of every state."""
        return torch.tensor(self._numbered[1])

    def known_class(
        self, grid: DensityGrid, flips: int | Literal["all"] = "all", gains: tuple[float, ...] = GAINS, seed: int = 0
    ) -> MixturePredictors:
        """The finite class that holds f* as its first member; arguments are those of `MixturePredictors.build`."""
        return MixturePredictors.build(self, grid, flips, gains, seed)

    @property
    def num_cells(self) -> int:
        """J."""
        return 3 if self.kind == "full" else self.max_states + 1

    @property
    def payment(self) -> float:
        """The size of one Bernoulli reward, 1/H."""
        return 1 / self.horizon

    @property
    def offsets(self) -> Tensor:
        """u [S, J]."""
        if self.kind == "full":
            return torch.tensor([[(1 - m) / 2, m, (1 - m) / 2] for m in MIDDLE[: self.max_states]], dtype=torch.float64)
        return self._chain(0.5, 0.5)

    @property
    def slopes(self) -> Tensor:
        """v [S, J]."""
        if self.kind == "full":
            return torch.tensor([[SLOPE, 0.0, -SLOPE]], dtype=torch.float64).repeat(self.max_states, 1)
        return self._chain(SLOPE, -SLOPE)

    @property
    def amplitudes(self) -> Tensor:
        """amp [J]."""
        return torch.tensor([1.0 if j % 2 == 0 else 0.5 for j in range(self.num_cells)], dtype=torch.float64)

    @property
    def signs(self) -> Tensor:
        """c [H, J, A]."""
        shift = (0, 0, 1) if self.kind == "full" else range(self.num_cells)
        gamma, A = GAMMA[self.num_actions], self.num_actions
        table = [[[gamma[(a + h + s) % A] for a in range(A)] for s in shift] for h in range(self.horizon)]
        return torch.tensor(table, dtype=torch.float64)

    @property
    def unit(self) -> float:
        """w, the height of one layer's gap."""
        if self.base == "flat":
            return 1 / (2 * self.horizon)
        G = (self.offsets * self.amplitudes).sum(-1)
        spread = max(float(G[labels].max() - G[labels].min()) for labels in self._labels_per_layer())
        return 1 / (self.horizon * (1 + spread / 2))

    @property
    def ahead(self) -> Tensor:
        """sum_{g > h} max_s G[s] per layer h [H] (`stacked`), the factor of |theta| / 2 in M_h / w; 0 for `flat`."""
        G = (self.offsets * self.amplitudes).sum(-1)
        best = torch.stack([G[labels].max() for labels in self._labels_per_layer()])
        ahead = best.flip(0).cumsum(0).flip(0) - best
        return ahead if self.base == "stacked" else torch.zeros_like(ahead)

    def constants(self) -> Constants:
        """alpha, C_alpha, zeta, C_L and P_inf of the family."""
        k, peak = self.smoothness, bump_constant(self.smoothness) / HALF_WIDTH
        largest = float((self.offsets + self.slopes.abs()).max())
        derivative = math.factorial(2 * k + 1) / (2 ** (k + 1) * math.factorial(k))  # sup |b_k^(k)| (Rodrigues)
        measured = float((self.slopes[0] != 0).sum()) * 2 * HALF_WIDTH / float(self.slopes[0].abs().sum())
        return Constants(
            alpha=float(k),
            C_alpha=largest * derivative / HALF_WIDTH ** (k + 1),
            zeta=peak * self._separation(),
            C_L=self.unit / 2 * float(self.amplitudes.max() + self.ahead.max()) * measured,
            P_inf=largest * peak,
        )

    def cell(self, x: Tensor) -> Tensor:
        """The cell j(x) [...] of observations [..., 1]."""
        return x[..., 0].floor().clamp(0, self.num_cells - 1).long()

    def cell_probabilities(self, theta: Tensor) -> Tensor:
        """W [B, xi, J]."""
        return (self.offsets + theta[:, :1, None] * self.slopes)[:, self.labels]

    def level(self, step: int, theta: Tensor) -> Tensor:
        """The part of Q*_h that depends on neither x nor the action: the mean over +-c, for any theta [...]."""
        later = self.horizon - step - 1
        if self.base == "flat":
            return self.unit * (later + 0.5 + 0.0 * theta)
        return self.unit / 2 * (later + 1 + theta.abs() * self.ahead[step])

    def q_table(self, theta: Tensor, last_sign: Tensor | None = None) -> Tensor:
        """Q*_h(theta, j, a) [B, H, J, A] of theta [B], with c of the last layer times a sign [B] where one is given."""
        level = torch.stack([self.level(h, theta) for h in range(self.horizon)], -1)  # [B, H]
        gap = (self.amplitudes[:, None] * self.signs).expand(len(theta), -1, -1, -1)  # [B, H, J, A]
        if last_sign is not None:
            gap = torch.cat([gap[:, :-1], gap[:, -1:] * last_sign[:, None, None, None]], 1)
        return level[..., None, None] + self.unit / 2 * theta[:, None, None, None] * gap

    @taking()
    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, 1], or [n, 2] with the hidden sign; consumes the generator."""
        u = 2 * torch.rand(require_count("n", n, least=0), 1, dtype=torch.float64, generator=generator) - 1
        theta = u if self.theta_law == "uniform" else TWO_POINT * (1 - 2 * (u < 0).double())
        if self.hidden_sign == "none":
            return theta
        return torch.cat([theta, 1 - 2 * torch.randint(2, (n, 1), generator=generator).double()], 1)

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> LayeredSimulators:
        return LayeredSimulators(self, self._checked(theta), ids)

    def world(self, theta: Tensor, generator: torch.Generator) -> LayeredWorld:
        return LayeredWorld(self, self._checked(theta[None])[0], generator)

    def truth(self, theta: Tensor) -> GroundTruth:
        """The ground truth; exact for every policy whose action depends on the cell alone."""
        theta = self._checked(theta)
        nodes, weights = bump_nodes(self.quadrature, self.smoothness)
        centres = torch.arange(self.num_cells, dtype=torch.float64) + HALF_WIDTH
        x = (centres[:, None] + HALF_WIDTH * nodes).reshape(-1, 1)  # [J q, 1]
        W = self.cell_probabilities(theta)
        weight = (W[..., None] * weights).flatten(-2)
        reward = self._rewards(theta).repeat_interleave(self.quadrature, dim=2)
        return GroundTruth(self.graph, x.expand(*weight.shape, 1), weight, reward)

    def payoff_grid(self, count: int) -> Tensor:
        """Equally likely values of theta."""
        two = torch.tensor([TWO_POINT, -TWO_POINT], dtype=torch.float64)
        theta = (midpoints(-1.0, 1.0, count) if self.theta_law == "uniform" else two)[:, None]
        if self.hidden_sign == "none":
            return theta
        return torch.cat([torch.cat([theta, torch.full_like(theta, sign)], 1) for sign in (1.0, -1.0)])

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """Readings tell theta by their cells alone."""
        W = self.cell_probabilities(theta).log()  # [K, xi, J]
        seen = torch.zeros(len(x), W[0].numel(), dtype=torch.float64)
        seen.scatter_add_(1, states * self.num_cells + self.cell(x), torch.ones(x.shape[:2], dtype=torch.float64))
        return seen @ W.flatten(1).T

    def parameters(self) -> dict:
        """Keyword arguments that rebuild this family."""
        return asdict(self)

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws observations [B, n, 1] at states [B, n]: first the cell, then the place in it."""
        B, n = state.shape
        edges = self.cell_probabilities(theta).cumsum(-1)[..., :-1]  # [B, xi, J-1]
        below = edges[torch.arange(B)[:, None], state]
        cell = (uniforms(n, generators)[..., None] >= below).sum(-1)
        x = bump_draws(n, self.smoothness, generators).mul_(HALF_WIDTH).add_(HALF_WIDTH).add_(cell)
        return x[..., None]

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        """r(s, x, a) [B, n]."""
        rows = torch.arange(theta.shape[0])[:, None]
        return self._rewards(theta)[rows, state, self.cell(x), actions]

    def _rewards(self, theta: Tensor) -> Tensor:
        """r [B, xi, J, A] = Q*_h(theta, j, a) - V*_{h+1}(T(s, a))."""
        Q = self.q_table(theta[:, 0], self._last_sign(theta))[:, self.graph.layer]  # [B, xi, J, A]
        V = (self.cell_probabilities(theta) * Q.amax(-1)).sum(-1)  # [B, xi]
        after = self.graph.values_after(V, range(self.graph.num_states))
        return (Q - after[:, :, None]).clamp(0.0, self.payment)  # rounding only: the formula stays inside

    def _last_sign(self, theta: Tensor) -> Tensor | None:
        return None if self.hidden_sign == "none" else theta[:, 1]

    def _checked(self, theta: Tensor) -> Tensor:
        theta = require_theta(theta, ("theta",) if self.hidden_sign == "none" else ("theta", "hidden_sign"))
        require_range("theta", float(theta.abs().max()), 0.0, 1.0)
        return theta

    def _chain(self, left: float, right: float) -> Tensor:
        table = torch.zeros(self.max_states, self.num_cells, dtype=torch.float64)
        for s in range(self.max_states):
            table[s, s], table[s, s + 1] = left, right
        return table

    def _labels_per_layer(self) -> list[Tensor]:
        return [self.labels[self.graph.states_of(h)] for h in range(self.horizon)]

    def _separation(self) -> float:
        """min over theta and pairs of states that share a layer of max_j |W[s, j] - W[s', j]|."""
        labels = [set(layer.tolist()) for layer in self._labels_per_layer()]
        pairs = {(s, t) for layer in labels for s in layer for t in layer if s < t}
        u, v = self.offsets, self.slopes
        return min((_min_max_affine(u[s] - u[t], v[s] - v[t]) for s, t in pairs), default=1.0)

    @cached_property
    def _numbered(self) -> tuple[StateGraph, list[int]]:
        """The graph, and the label of every state."""
        states, actions = self.max_states, range(self.num_actions)
        return depth_first(0, lambda s: [(s + a) % states for a in actions], self.horizon)

    def _validate(self) -> None:
        choices = {
            "kind": ("full", "chain"),
            "base": ("flat", "stacked"),
            "theta_law": ("uniform", "two_point"),
            "hidden_sign": ("none", "last"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SettingError(
                    expected=f"{name} {' or '.join(allowed)}", got=repr(getattr(self, name)), cause="a typing error"
                )
        require_range("horizon", self.horizon, 1, 64)
        require_range("max_states", self.max_states, 1, 3 if self.kind == "full" else 64)
        require_range("num_actions", self.num_actions, 2, 4)
        require_range("quadrature", self.quadrature, 1, 64)
        require_smoothness(self.smoothness)
        if self.base == "stacked" and self.kind == "chain":
            raise SettingError(
                expected="base stacked with kind full only",
                got="kind chain",
                cause="stacked needs sum_j v[s, j] amp[j] = 0, else some rewards are negative (theory.md 5.2)",
            )


def _min_max_affine(u: Tensor, v: Tensor) -> float:
    """min over theta in [-1, 1] of max_j |u[j] + theta v[j]|: a convex piecewise linear function, so a corner."""
    u, v = torch.cat([u, -u]), torch.cat([v, -v])
    crossings = (u[:, None] - u) / (v - v[:, None])
    corners = torch.cat([torch.tensor([-1.0, 1.0], dtype=torch.float64), crossings.flatten()])
    corners = corners[torch.isfinite(corners) & (corners.abs() <= 1)]
    return float((u + corners[:, None] * v).amax(-1).min())
