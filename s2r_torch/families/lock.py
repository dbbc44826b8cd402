"""`lock`: two secret lists of actions, either may pay; how noisy the sensor is says which. Exploring is dear.

States are the start, and per layer `a`, `b` and `dead`. The first action of list a leads to a, that of list b to b; the
next action of its own list keeps a chain alive, any other action ends it for good. In the last layer the last action of
list a pays Bernoulli(w) at a, that of list b Bernoulli(1 - w) at b; nothing else ever pays.

theta = (offset, w), with the offset uniform in [-offset, offset] and w uniform in [0, 1].

Observation: the number of the state within its layer (a 0, b 1, dead 2; the start 0) + offset + (low + (high - low) w)
bump noise. V* = E max(w, 1 - w) = 0.75, the best fixed list earns 0.5, random actions A^-H: a learner from rewards must
find both lists first, one who looks need not act on any reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.defaults import plainly
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.layered import (
    LayeredSimulators,
    LayeredWorld,
    depth_first,
    require_one,
    require_range,
    require_theta,
)
from s2r_torch.families.likelihood import midpoints, offset_evidence
from s2r_torch.families.noise import bump_draws, bump_nodes, require_smoothness
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.plain import require_count

A_, B_, DEAD = 0, 1, 2  # numbers of the states within their layer
MARGIN = 0.05  # around the box that readings can reach
THETA = ("offset", "w")


@plainly("prior", "simulators", "world", "truth")
@dataclass(frozen=True)
class Lock:
    """The family `lock`.

    Args:
        horizon: H >= 2.
        num_actions: A >= 3, so that some first action is on no list.
        secret: which two lists; any integer.
        noise_low: half-width of the noise at w = 0, in units of the distance of two states, > 0.
        noise_high: half-width at w = 1, below 0.5, so that supports of different states are disjoint within one theta.
        offset: largest calibration error.
        smoothness: k of the bump density (`noise.py`).
        quadrature: points in the ground truth.

    Raises:
        SettingError: a parameter is out of range.
    """

    horizon: int = 5
    num_actions: int = 4
    secret: int = 0
    noise_low: float = 0.15
    noise_high: float = 0.45
    offset: float = 0.2
    smoothness: int = 2
    quadrature: int = 5

    name = "lock"
    payment = 1.0

    def __post_init__(self):
        require_range("horizon", self.horizon, 2, 64)
        require_range("num_actions", self.num_actions, 3, 64)
        if not 0 < self.noise_low <= self.noise_high < 0.5:
            raise SettingError(
                expected="0 < noise_low <= noise_high < 0.5",
                got=f"{self.noise_low}, {self.noise_high}",
                cause="states are 1 apart: wider noise makes their supports overlap",
            )
        require_range("offset", self.offset, 0.0, 10.0)
        require_range("quadrature", self.quadrature, 1, 64)
        require_smoothness(self.smoothness)

    @cached_property
    def spec(self) -> ProblemSpec:
        reach = self.offset + self.noise_high + MARGIN
        return ProblemSpec(
            num_actions=self.num_actions,
            horizon=self.horizon,
            max_states_per_layer=3,
            obs_dim=1,
            low=(-reach,),
            high=(DEAD + reach,),
            obs_names=("position",),
        )

    @cached_property
    def graph(self) -> StateGraph:
        return self._numbered[0]

    @cached_property
    def number(self) -> Tensor:
        """The number [xi] of every state within its layer."""
        return torch.tensor([number for _, number in self._numbered[1]])

    @property
    def lists(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The two secret lists of H actions; they begin differently."""
        generator = torch.Generator().manual_seed(self.secret)
        first = torch.randperm(self.num_actions, generator=generator)[:2].tolist()
        rest = torch.randint(self.num_actions, (2, self.horizon - 1), generator=generator).tolist()
        a, b = ((start, *others) for start, others in zip(first, rest, strict=True))
        return a, b

    @taking()
    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, 2]; consumes the generator."""
        u = torch.rand(require_count("n", n, least=0), 2, dtype=torch.float64, generator=generator)
        return torch.cat([self.offset * (2 * u[:, :1] - 1), u[:, 1:]], 1)

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> LayeredSimulators:
        return LayeredSimulators(self, require_theta(theta, THETA), ids)

    def world(self, theta: Tensor, generator: torch.Generator) -> LayeredWorld:
        return LayeredWorld(self, require_one(theta, THETA), generator)

    def truth(self, theta: Tensor) -> GroundTruth:
        """The ground truth; exact for policies whose actions are smooth in x, and for V* and Q* always."""
        theta = require_theta(theta, THETA)
        nodes, weights = bump_nodes(self.quadrature, self.smoothness)
        centres = self.number + theta[:, :1]  # [B, xi]
        x = centres[..., None] + self._half_width(theta)[:, None, None] * nodes
        B, xi, m = x.shape
        reward = self._payoffs(theta)[:, :, None].expand(B, xi, m, self.num_actions)
        return GroundTruth(self.graph, x[..., None], weights.expand(B, xi, m), reward)

    def payoff_grid(self, count: int) -> Tensor:
        """w; the offset pays nothing."""
        return torch.stack([torch.zeros(count, dtype=torch.float64), midpoints(0.0, 1.0, count)], 1)

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """One coordinate with an unknown offset."""
        residual = x[..., 0] - self.number[states]
        return offset_evidence(residual, self._half_width(theta), self.offset, self.smoothness)

    def parameters(self) -> dict:
        """Keyword arguments that rebuild this family."""
        return asdict(self)

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws readings [B, n, 1] at states [B, n]."""
        x = bump_draws(state.shape[1], self.smoothness, generators)
        return x.mul_(self._half_width(theta)[:, None]).add_(theta[:, :1]).add_(self.number[state])[..., None]

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        """What the last action of a list pays [B, n], whatever is read."""
        return self._payoffs(theta)[torch.arange(len(theta))[:, None], state, actions]

    @cached_property
    def _numbered(self) -> tuple[StateGraph, list[tuple[int, int]]]:
        """The graph, and (layer, number) of every state."""
        return depth_first((0, A_), self._moves, self.horizon)

    def _half_width(self, theta: Tensor) -> Tensor:
        return self.noise_low + (self.noise_high - self.noise_low) * theta[:, 1]

    def _payoffs(self, theta: Tensor) -> Tensor:
        """The mean reward [B, xi, A] of every action in every state."""
        payoffs = torch.zeros(len(theta), self.graph.num_states, self.num_actions, dtype=torch.float64)
        for number, pay in ((A_, theta[:, 1]), (B_, 1 - theta[:, 1])):
            (state,) = [s for s in self.graph.states_of(self.horizon - 1) if int(self.number[s]) == number]
            payoffs[:, state, self.lists[number][-1]] = pay
        return payoffs

    def _moves(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        """Where actions lead from (layer, number)."""
        layer, number = key
        lists = dict(enumerate(self.lists))
        alive = (A_, B_) if layer == 0 else (number,)
        following = [DEAD] * self.num_actions
        for chain in alive:
            if chain != DEAD:
                following[lists[chain][layer]] = chain
        return [(layer + 1, state) for state in following]
