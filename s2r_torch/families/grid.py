"""`grid`: cross a grid of cells with an uncalibrated position sensor; how noisy it is says which treasure pays.

States are the cells (row, column) of a width x width grid, start (0, 0). Action 0 moves right, action 1 down; at the
border the other direction is taken instead, so every action advances one anti-diagonal: H = 2 width - 1 layers.

theta = (offset_row, offset_col, w), with offsets uniform in [-offset, offset] and w uniform in [0, 1].

Observation: (row, col) + (offset_row, offset_col) + (low + (high - low) w) * bump noise in each coordinate. The offset
exceeds half a cell, so a reading alone does not tell the cell; only the densities of all cells together do.

Rewards are Bernoulli, paid for any action at a cell of the middle anti-diagonal: 0.9 w at the top right, 0.9 (1 - w) at
the bottom left, 0.5 in the middle (of two middle cells, at the upper one), else 0. An episode passes one such cell, so
its total is in [0, 1]. The best first move depends on w, which only the width of the densities shows: V* = 0.678 on
average, the best fixed list of actions earns 0.5.
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
from s2r_torch.families.noise import require_smoothness
from s2r_torch.families.sensors import AffineSensor
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.plain import require_count

TREASURE, SAFE = 0.9, 0.5
MARGIN = 0.05  # of a cell, around the box that readings can reach
THETA = ("offset_row", "offset_col", "w")


@plainly("prior", "simulators", "world", "truth")
@dataclass(frozen=True)
class Grid:
    """The family `grid`.

    Args:
        width: W, at least 3; the grid has W x W cells.
        noise_low: half-width of the noise at w = 0, in cells, > 0.
        noise_high: half-width at w = 1, below 0.5, so that supports of different cells are disjoint within one theta.
        offset: largest calibration error of each coordinate, in cells.
        smoothness: k of the bump density (`noise.py`); its derivatives of order < k are continuous.
        quadrature: points per coordinate in the ground truth.

    Raises:
        SettingError: a parameter is out of range.
    """

    width: int = 3
    noise_low: float = 0.15
    noise_high: float = 0.45
    offset: float = 0.6
    smoothness: int = 2
    quadrature: int = 9

    name = "grid"
    theta_names = THETA
    payment = 1.0

    def __post_init__(self):
        if self.width < 3:
            raise SettingError(
                expected="a width >= 3", got=str(self.width), cause="the safe cell lies between the two treasures"
            )
        if not 0 < self.noise_low <= self.noise_high < 0.5:
            raise SettingError(
                expected="0 < noise_low <= noise_high < 0.5",
                got=f"{self.noise_low}, {self.noise_high}",
                cause="cells are 1 apart: wider noise makes their supports overlap",
            )
        require_range("offset", self.offset, 0.0, 10.0 * self.width)
        require_range("quadrature", self.quadrature, 1, 64)
        require_smoothness(self.smoothness)

    @cached_property
    def spec(self) -> ProblemSpec:
        reach = self.offset + self.noise_high + MARGIN
        return ProblemSpec(
            num_actions=2,
            horizon=2 * self.width - 1,
            max_states_per_layer=self.width,
            obs_dim=2,
            low=(-reach, -reach),
            high=(self.width - 1 + reach, self.width - 1 + reach),
            obs_names=("row", "column"),
        )

    @cached_property
    def graph(self) -> StateGraph:
        return self._numbered[0]

    @cached_property
    def cells(self) -> Tensor:
        """(row, column) [xi, 2] of every state."""
        return torch.tensor(self._numbered[1], dtype=torch.float64)

    @cached_property
    def sensor(self) -> AffineSensor:
        return AffineSensor(
            self.spec.obs_names,
            self.spec.low,
            self.spec.high,
            offset=lambda theta: theta[:, :2],
            width=self._half_width,
            smoothness=self.smoothness,
            points=self.quadrature,
        )

    @taking()
    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, 3]; consumes the generator."""
        u = torch.rand(require_count("n", n, least=0), 3, dtype=torch.float64, generator=generator)
        return torch.cat([self.offset * (2 * u[:, :2] - 1), u[:, 2:]], 1)

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> LayeredSimulators:
        return LayeredSimulators(self, require_theta(theta, THETA), ids)

    def world(self, theta: Tensor, generator: torch.Generator) -> LayeredWorld:
        return LayeredWorld(self, require_one(theta, THETA), generator)

    def truth(self, theta: Tensor) -> GroundTruth:
        """The ground truth; exact for policies whose actions are smooth in x, and for V* and Q* always."""
        theta = require_theta(theta, THETA)
        x, weight = self.sensor.quadrature(theta, self.cells)
        reward = self._payoffs(theta)[:, :, None, None].expand(*weight.shape, 2)
        return GroundTruth(self.graph, x, weight, reward)

    def payoff_grid(self, count: int) -> Tensor:
        """w; offsets pay nothing."""
        w = midpoints(0.0, 1.0, count)[:, None]
        return torch.cat([torch.zeros(count, 2, dtype=torch.float64), w], 1)

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """Coordinates are independent given w, each with an offset of its own."""
        residual, h = x - self.cells[states], self._half_width(theta)
        row, column = (offset_evidence(residual[..., c], h, self.offset, self.smoothness) for c in range(2))
        return row + column

    def parameters(self) -> dict:
        """Keyword arguments that rebuild this family."""
        return asdict(self)

    def emit(self, theta: Tensor, state: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws readings [B, n, 2] at states [B, n]."""
        return self.sensor.read(theta, self.cells[state], generators)

    def mean_reward(self, theta: Tensor, state: Tensor, x: Tensor, actions: Tensor) -> Tensor:
        """What the cell pays [B, n], whatever action is taken."""
        return self._payoffs(theta).gather(1, state)

    @cached_property
    def _numbered(self) -> tuple[StateGraph, list[tuple[int, int]]]:
        """The graph, and the cell of every state."""
        return depth_first((0, 0), self._moves, 2 * self.width - 1)

    def _half_width(self, theta: Tensor) -> Tensor:
        return self.noise_low + (self.noise_high - self.noise_low) * theta[:, 2]

    def _payoffs(self, theta: Tensor) -> Tensor:
        """The mean reward [B, xi] of every cell."""
        row, column = self.cells.T
        last, w = self.width - 1, theta[:, 2:]
        payoff = TREASURE * w * ((row == 0) & (column == last))
        payoff = payoff + TREASURE * (1 - w) * ((row == last) & (column == 0))
        return payoff + SAFE * ((row == last // 2) & (row + column == last))

    def _moves(self, cell: tuple[int, int]) -> list[tuple[int, int]]:
        row, column = cell
        right, down = (row, column + 1), (row + 1, column)
        if column == self.width - 1:
            right = down
        elif row == self.width - 1:
            down = right
        return [right, down]
