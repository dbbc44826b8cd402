r"""`digits`: a corridor of numbered rooms, seen as handwritten digits by an uncalibrated camera (64 numbers a reading).

    room   0    1    2    3    4      Start in room 2. Actions 0 left, 1 right, 2 open the chest that is there; H = 4.
    pays   A              .    B      Opening one ends the day: the robot stands outside, before number 6.

The chest in room 0 pays Bernoulli(w), that in room 4 Bernoulli(1 - w), all others nothing. So a fixed list of actions
earns 0.5 and V* = E max(w, 1 - w) = 0.75.

theta = (tilt, exposure, w): tilt uniform in [-tilt, tilt] degrees, exposure uniform in its range, w in [0, 1].

Observation: one of about 180 handwritten images of the room's number (scikit-learn's digits, 8 x 8), turned by the
tilt, times exposure (1 + flicker * bump noise), where flicker = flicker_low + (flicker_high - flicker_low) w, plus
grain * bump noise in every pixel. One image hardly says what w is, since a bright one may be due to the exposure; the
density of many does. Needs the extra `worlds`, and an encoder (`encoder=learned`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from s2r_torch.families.extras import from_worlds
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.layered import require_range
from s2r_torch.families.noise import bump_draws, bump_nodes, uniforms
from s2r_torch.families.sensors import uniform_prior
from s2r_torch.rng import Seed

START, LAST, OUTSIDE = 2, 4, 6  # rooms, by their numbers
OPEN = 2  # the action
SIDE, SMOOTHNESS = 8, 2  # pixels; of all noise
BULBS = 3  # quadrature nodes of the flicker


@dataclass(frozen=True)
class DigitCamera:
    """Handwritten digits under theta = (tilt, exposure, w) (`sensors.Sensor`).

    Args:
        exposure_low: the least brightness, > 0.
        exposure_high: the largest.
        flicker_low: half-width of the brightness from one image to the next, as a share, at w = 0.
        flicker_high: at w = 1, below 1.
        grain: half-width of the noise of every pixel; pixels are 0 .. 1 in plain light.
        points: images of a state in the ground truth, of the 180 or so that there are, under different flickers.
    """

    exposure_low: float = 0.7
    exposure_high: float = 1.3
    flicker_low: float = 0.05
    flicker_high: float = 0.7
    grain: float = 0.1
    points: int = 240

    names = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))

    @property
    def low(self) -> tuple[float, ...]:
        return (-2 * self.grain,) * SIDE**2

    @property
    def high(self) -> tuple[float, ...]:
        return (self.exposure_high * (1 + self.flicker_high) + 2 * self.grain,) * SIDE**2

    def read(self, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, 64] in rooms latent [B, n, 1] under theta [B, 3]; row b consumes generator b alone."""
        n = latent.shape[1]
        images = _images(latent[..., 0], uniforms(n, generators))
        flicker = bump_draws(n, SMOOTHNESS, generators)
        return self._shot(theta, images, flicker, generators)

    def quadrature(self, theta: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Points [B, xi, m, 64] and weights [B, xi, m] in rooms latent [xi, 1]: images evenly spaced, grain drawn."""
        B, xi, m = len(theta), len(latent), self.points
        seed = Seed.root(0).child("digits")
        generators = [seed.child(*map(repr, row)).generator() for row in theta.tolist()]
        place = (torch.arange(m) + uniforms(xi, generators)[..., None]) / m  # [B, xi, m]
        nodes, weights = bump_nodes(BULBS, SMOOTHNESS)
        bulb = torch.arange(m) % BULBS
        images = _images(latent[:, 0].expand(B, xi)[..., None].expand(B, xi, m), place).flatten(1, 2)
        x = self._shot(theta, images, nodes[bulb].repeat(xi).expand(B, -1), generators)
        weight = weights[bulb] / torch.bincount(bulb)[bulb]
        return x.unflatten(1, (xi, m)), weight.expand(B, xi, m)

    def _shot(self, theta: Tensor, images: Tensor, flicker: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """What the camera makes of images [B, n, 64] under flickers [B, n] in -1 .. 1."""
        width = self.flicker_low + (self.flicker_high - self.flicker_low) * theta[:, 2:]
        light = theta[:, 1:2] * (1 + width * flicker)
        x = torch.bmm(images, torch.stack([_turn(tilt) for tilt in theta[:, 0].tolist()])).mul_(light[..., None])
        n = images.shape[1]
        return x.add_(bump_draws(n * SIDE**2, SMOOTHNESS, generators).view_as(x), alpha=self.grain)


class Digits(FunctionFamily):
    """The family `digits`; arguments are those of `DigitCamera`, and the largest tilt.

    Raises:
        SettingError: a parameter is out of range, or scikit-learn is not installed.
    """

    def __init__(
        self,
        tilt: float = 20.0,
        exposure_low: float = 0.7,
        exposure_high: float = 1.3,
        flicker_low: float = 0.05,
        flicker_high: float = 0.7,
        grain: float = 0.1,
        points: int = 240,
    ):
        require_range("tilt", tilt, 0.0, 180.0)
        require_range("exposure_low", exposure_low, 0.01, 100.0)
        require_range("exposure_high", exposure_high, exposure_low, 100.0)
        require_range("flicker_low", flicker_low, 0.0, 1.0)
        require_range("flicker_high", flicker_high, flicker_low, 1.0)
        require_range("grain", grain, 0.001, 10.0)
        require_range("points", points, BULBS, 10_000)
        _bank()
        camera = DigitCamera(exposure_low, exposure_high, flicker_low, flicker_high, grain, points)
        super().__init__(
            name="digits",
            step=step,
            start=START,
            num_actions=3,
            theta_names=("tilt", "exposure", "w"),
            prior=uniform_prior((-tilt, tilt), (exposure_low, exposure_high), (0.0, 1.0)),
            sensor=camera,
            horizon=4,
            settings={"tilt": tilt, **asdict(camera)},
        )


def step(theta: tuple, room: int, action: int) -> tuple[int, float, bool]:
    """The next room, the mean reward, and whether the day has ended."""
    if action == OPEN:
        return OUTSIDE, {0: theta.w, LAST: 1 - theta.w}.get(room, 0.0), True  # type: ignore[attr-defined]
    return min(max(room + (1 if action else -1), 0), LAST), 0.0, False


def _images(rooms: Tensor, place: Tensor) -> Tensor:
    """The image [..., 64] at a place 0 .. 1 among those of each room's number [...]."""
    bank, first, count = _bank()
    number = rooms.round().long()
    return bank[first[number] + (place * count[number]).long()]


def _turn(tilt: float) -> Tensor:
    """The matrix [64, 64] by which an image, a row, is turned around its middle by `tilt` degrees, bilinearly."""
    cosine, sine = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    turn = torch.tensor([[[cosine, -sine, 0.0], [sine, cosine, 0.0]]], dtype=torch.float64)
    pixels = torch.eye(SIDE**2, dtype=torch.float64).view(1, SIDE**2, SIDE, SIDE)
    grid = torch.nn.functional.affine_grid(turn, [1, SIDE**2, SIDE, SIDE], align_corners=False)
    return torch.nn.functional.grid_sample(pixels, grid, align_corners=False)[0].flatten(1)


@functools.cache
def _bank() -> tuple[Tensor, Tensor, Tensor]:
    """All images [N, 64] in 0 .. 1 in the order of their numbers; the first image, and how many, of every number."""
    with from_worlds("scikit-learn", "digits"):
        from sklearn.datasets import load_digits
    found = load_digits()
    order = torch.from_numpy(found.target).argsort(stable=True)
    count = torch.bincount(torch.from_numpy(found.target))
    return torch.from_numpy(found.data)[order] / 16, count.cumsum(0) - count, count
