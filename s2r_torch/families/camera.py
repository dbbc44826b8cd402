"""Gymnasium's worlds of cells under an uncalibrated camera; how noisy it is says what pays.

theta = (heading, gain, w): heading uniform on the circle, gain uniform in [gain_low, gain_high], w uniform in [0, 1].
Observation: gain R(heading) (place - centre) + (noise_low + (noise_high - noise_low) w) * bump noise in each
coordinate. Turned worlds look alike, so a reading alone does not tell the place, and w shows in the width of the
densities only; a subclass says what it pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.families.gym.family import GymFamily, Latent, Make
from s2r_torch.families.layered import require_range
from s2r_torch.families.likelihood import camera_evidence, midpoints
from s2r_torch.families.noise import require_smoothness
from s2r_torch.families.replay.simulators import RewardModel
from s2r_torch.families.sensors import AffineSensor

MARGIN = 0.05  # around the box that readings can reach


@dataclass(frozen=True)
class Camera:
    """What a camera may be like.

    Args:
        noise_low: half-width of the noise at w = 0, in cells, > 0.
        noise_high: half-width at w = 1; below gain_low / sqrt(8) times the least distance of two places, so that
            supports of different ones are disjoint within one theta whatever the heading is.
        gain_low: smallest gain.
        gain_high: largest gain.
        smoothness: k of the bump density (`noise.py`).
        quadrature: points per coordinate in the ground truth.
    """

    noise_low: float = 0.15
    noise_high: float = 0.34
    gain_low: float = 1.0
    gain_high: float = 1.2
    smoothness: int = 2
    quadrature: int = 7

    def check(self, apart: float) -> None:
        """Raises SettingError, given the least distance of two places of a layer."""
        most = self.gain_low * apart / math.sqrt(8)
        if not 0 < self.noise_low <= self.noise_high < most:
            raise SettingError(
                expected=f"0 < noise_low <= noise_high < {apart:g} gain_low / sqrt(8) = {most:g}",
                got=f"{self.noise_low}, {self.noise_high}",
                cause="wider noise makes the supports of neighbouring places overlap at a heading of 45 degrees",
            )
        require_range("gain_high", self.gain_high, self.gain_low, 100.0)
        require_range("quadrature", self.quadrature, 1, 64)
        require_smoothness(self.smoothness)

    def sensor(self, centre: Sequence[float], reach: float) -> AffineSensor:
        """Reads places up to `reach` away from `centre`."""
        edge = self.gain_high * reach + self.noise_high + MARGIN  # in any direction
        return AffineSensor(
            ("camera_1", "camera_2"),
            low=(-edge, -edge),
            high=(edge, edge),
            columns=(0, 1),
            centre=tuple(centre),
            gain=lambda theta: theta[:, 1],
            rotation=lambda theta: theta[:, 0],
            width=self.width,
            smoothness=self.smoothness,
            points=self.quadrature,
        )

    def width(self, theta: Tensor) -> Tensor:
        """Half-width [B] of the noise under theta [B, 3]."""
        return self.noise_low + (self.noise_high - self.noise_low) * theta[:, 2]

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """The prior: theta [n, 3]."""
        u = torch.rand(n, 3, dtype=torch.float64, generator=generator)
        widths, low = [2 * math.pi, self.gain_high - self.gain_low, 1.0], [0.0, self.gain_low, 0.0]
        return u * torch.tensor(widths, dtype=torch.float32) + torch.tensor(low, dtype=torch.float32)


class CameraFamily(GymFamily):
    """A Gymnasium environment seen by a camera.

    Args:
        name: of the family.
        make: theta [3] -> environment.
        latent: (environment, observation) -> (row, column, ..), the place first.
        reward: theta and moves -> mean rewards in [0, 1], whose total is in [0, 1], too.
        horizon: H.
        corners: places whose box holds all others.
        camera: what it may be like.
        apart: the least distance of two places of a layer.

    Raises:
        SettingError: noise under which places overlap, or another value out of range.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        latent: Latent,
        reward: RewardModel,
        horizon: int,
        corners: tuple[tuple[float, float], tuple[float, float]],
        camera: Camera,
        apart: float = 1.0,
        max_states_per_layer: int | None = None,
        bernoulli_rewards: bool = True,
    ):
        camera.check(apart)
        (top, left), (bottom, right) = corners
        self.centre, self.camera = ((top + bottom) / 2, (left + right) / 2), camera
        super().__init__(
            name=name,
            make=make,
            prior=camera.draw,
            theta_names=("heading", "gain", "w"),
            sensor=camera.sensor(self.centre, math.hypot(bottom - top, right - left) / 2),
            horizon=horizon,
            max_states_per_layer=max_states_per_layer,
            reward=reward,
            bernoulli_rewards=bernoulli_rewards,
            reward_scale=1.0,
            latent=latent,
            settings=asdict(camera),
        )

    def payoff_grid(self, count: int) -> Tensor:
        """w; the camera pays nothing."""
        w = midpoints(0.0, 1.0, count)
        return torch.stack([torch.zeros_like(w), torch.full_like(w, self.camera.gain_low), w], 1)

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """All readings share the camera, whose heading and gain are integrated over."""
        places = self._tree.latent(self._merged[1])[states, :2] - torch.tensor(self.centre, dtype=torch.float64)
        gains = (self.camera.gain_low, self.camera.gain_high)
        return camera_evidence(x, places, self.camera.width(theta), gains, self.camera.smoothness)


def entering(place: Tensor, row: float, column: float) -> Tensor:
    """Whether places [..., l] are in that cell, 0 or 1 [...]."""
    return ((place[..., 0].round() == row) & (place[..., 1].round() == column)).double()
