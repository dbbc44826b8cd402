r"""`frozenlake`: Gymnasium's FrozenLake-v1 under an uncalibrated camera; how noisy it is says which goal pays.

    S F H G      Start top left, holes H, two goals G. Not slippery. Actions 0 left, 1 down, 2 right, 3 up; a move into
    F F F F      the border stays. Both goals are five moves away, H = 6, and a fall or a goal ends the episode, which
    H F F H      then stays where it is and pays nothing more.
    G F F F

theta = (heading, gain, w): heading uniform on the circle, gain uniform in [gain_low, gain_high], w uniform in [0, 1].

Observation: gain R(heading) (row - 1.5, column - 1.5) + (noise_low + (noise_high - noise_low) w) * bump noise in each
coordinate. Turning the lake by a quarter maps its cells onto each other, so a reading alone does not tell the cell.

Rewards: reaching the goal at the top right pays Bernoulli(w), at the bottom left Bernoulli(1 - w). So a fixed list of
actions earns 0.5, V* = E max(w, 1 - w) = 0.75, and w shows in the width of the densities only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.families.gym.family import GymFamily, make_env
from s2r_torch.families.layered import require_range
from s2r_torch.families.likelihood import camera_evidence, midpoints
from s2r_torch.families.noise import require_smoothness
from s2r_torch.families.replay.simulators import Moves
from s2r_torch.families.sensors import AffineSensor

MAP = ("SFHG", "FFFF", "HFFH", "GFFF")
CENTRE = (len(MAP) - 1) / 2
MARGIN = 0.05


class FrozenLake(GymFamily):
    """The family `frozenlake`.

    Args:
        noise_low: half-width of the noise at w = 0, in cells, > 0.
        noise_high: half-width at w = 1; below gain_low / sqrt(8), so that supports of different cells are disjoint
            within one theta whatever the heading is.
        gain_low: smallest gain of the camera.
        gain_high: largest gain.
        smoothness: k of the bump density (`noise.py`).
        quadrature: points per coordinate in the ground truth.

    Raises:
        SettingError: a parameter is out of range.
    """

    def __init__(
        self,
        noise_low: float = 0.15,
        noise_high: float = 0.34,
        gain_low: float = 1.0,
        gain_high: float = 1.2,
        smoothness: int = 2,
        quadrature: int = 7,
    ):
        if not 0 < noise_low <= noise_high < gain_low / math.sqrt(8):
            raise SettingError(
                expected=f"0 < noise_low <= noise_high < gain_low / sqrt(8) = {gain_low / math.sqrt(8):g}",
                got=f"{noise_low}, {noise_high}",
                cause="wider noise makes the supports of neighbouring cells overlap at a heading of 45 degrees",
            )
        require_range("gain_high", gain_high, gain_low, 100.0)
        require_range("quadrature", quadrature, 1, 64)
        self.gains = (gain_low, gain_high)
        reach = gain_high * math.sqrt(2) * CENTRE + noise_high + MARGIN  # a corner, in any direction
        self._half_width = lambda theta: noise_low + (noise_high - noise_low) * theta[:, 2]
        self._smoothness = require_smoothness(smoothness)
        super().__init__(
            name="frozenlake",
            make=lambda theta: make_env("FrozenLake-v1", desc=list(MAP), is_slippery=False),
            prior=self._draw,
            theta_names=("heading", "gain", "w"),
            sensor=AffineSensor(
                ("camera_1", "camera_2"),
                low=(-reach, -reach),
                high=(reach, reach),
                centre=CENTRE,
                gain=lambda theta: theta[:, 1],
                rotation=lambda theta: theta[:, 0],
                width=self._half_width,
                smoothness=self._smoothness,
                points=quadrature,
            ),
            horizon=6,
            max_states_per_layer=15,
            reward=goal_payoffs,
            bernoulli_rewards=True,
            reward_scale=1.0,
            latent=lambda env, observation: divmod(int(observation), len(MAP)),
            settings={
                "noise_low": noise_low,
                "noise_high": noise_high,
                "gain_low": gain_low,
                "gain_high": gain_high,
                "smoothness": smoothness,
                "quadrature": quadrature,
            },
        )

    def payoff_grid(self, count: int) -> Tensor:
        """w; the camera pays nothing."""
        w = midpoints(0.0, 1.0, count)
        return torch.stack([torch.zeros_like(w), torch.full_like(w, self.gains[0]), w], 1)

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """All readings share the camera, whose heading and gain are integrated over."""
        cells = self._tree.latent(self._merged[1])[states] - CENTRE
        return camera_evidence(x, cells, self._half_width(theta), self.gains, self._smoothness)

    def _draw(self, n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(n, 3, dtype=torch.float64, generator=generator)
        low, high = self.gains
        return u * torch.tensor([2 * math.pi, high - low, 1.0]) + torch.tensor([0.0, low, 0.0])


def goal_payoffs(theta: Tensor, moves: Moves) -> Tensor:
    """w for reaching the goal in the upper half, 1 - w in the lower; the lake's own reward says that it is a goal."""
    w = theta[:, 2:]
    return moves.raw * torch.where(moves.following[..., 0] < CENTRE, w, 1 - w)
