r"""`minigrid_images`: MiniGrid-Empty in full images, red, green and blue, by an uncalibrated camera; needs an encoder.

The agent starts in the top left cell, facing right. Actions 0 turn left, 1 turn right, 2 forward, H = 4. Moving to the
cell two to the right of the start pays Bernoulli(w), to that two below it Bernoulli(1 - w); H is too short for both. So
a fixed list of actions earns 0.5, V* = E max(w, 1 - w) = 0.75.

theta = (light, warmth, w): light and warmth uniform in their ranges, w in [0, 1].

Observation: MiniGrid's own image of the whole room, `tile` pixels a cell, times
light (1 + warmth, 1, 1 - warmth) (1 + flicker * bump noise) in red, green and blue, where
flicker = flicker_low + (flicker_high - flicker_low) w, plus one of 1024 sheets of noise in every pixel. So one image
hardly says what w is; the density of many does. Needs the extra `worlds`, and an encoder (`encoder=learned`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.families.gym.family import GymFamily
from s2r_torch.families.layered import require_range
from s2r_torch.families.minigrid import corner_payoffs, empty_room
from s2r_torch.families.noise import bump_draws, bump_nodes, uniforms
from s2r_torch.families.sensors import uniform_prior
from s2r_torch.rng import Seed

SIZES = (5, 6, 8, 16)  # rooms that there are, walls included
FAR = 3  # row or column of the cells that pay
COLOURS = ("red", "green", "blue")
SHEETS, SMOOTHNESS = 1024, 2  # of noise
BULBS = 5  # quadrature nodes of the flicker


@dataclass(frozen=True)
class RoomCamera:
    """Images of a room under theta = (light, warmth, w) (`sensors.Sensor`).

    Args:
        size: cells along a wall.
        tile: pixels along a cell.
        flicker_low: half-width of the brightness from one image to the next, as a share, at w = 0.
        flicker_high: at w = 1, below 1.
        grain: half-width of the noise of every pixel; pixels are 0 .. 1 in plain light.
        light_high: the largest light.
        warmth: the largest.
        points: images of a state in the ground truth.
    """

    size: int
    tile: int
    flicker_low: float
    flicker_high: float
    grain: float
    light_high: float
    warmth: float
    points: int = 100

    @property
    def numbers(self) -> int:
        """D."""
        return 3 * (self.size * self.tile) ** 2

    @property
    def names(self) -> tuple[str, ...]:
        side = range(self.size * self.tile)
        return tuple(f"{colour}_{row}_{column}" for row in side for column in side for colour in COLOURS)

    @property
    def low(self) -> tuple[float, ...]:
        return (-2 * self.grain,) * self.numbers

    @property
    def high(self) -> tuple[float, ...]:
        return (self.light_high * (1 + self.warmth) * (1 + self.flicker_high) + 2 * self.grain,) * self.numbers

    def read(self, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, D] at (row, column, direction) [B, n, 3]; row b consumes generator b alone."""
        n = latent.shape[1]
        flicker = bump_draws(n, SMOOTHNESS, generators)
        return self._shot(theta, self._images(latent), flicker, (uniforms(n, generators) * SHEETS).long())

    def quadrature(self, theta: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Points [B, xi, m, D] and weights [B, xi, m] at latent [xi, 3]: flickers in turn, sheets of noise drawn."""
        B, xi, m = len(theta), len(latent), self.points
        nodes, weights = bump_nodes(BULBS, SMOOTHNESS)
        bulb = torch.arange(m) % BULBS
        images = self._images(latent)[None, :, None].expand(B, xi, m, -1).flatten(1, 2)
        seed = Seed.root(0).child("rooms")
        generators = [seed.child(*map(repr, row)).generator() for row in theta.tolist()]
        sheet = (uniforms(xi * m, generators) * SHEETS).long()
        x = self._shot(theta, images, nodes[bulb].repeat(xi).expand(B, -1), sheet)
        return x.unflatten(1, (xi, m)), (weights[bulb] / torch.bincount(bulb)[bulb]).expand(B, xi, m)

    def _shot(self, theta: Tensor, images: Tensor, flicker: Tensor, sheet: Tensor) -> Tensor:
        """What the camera makes, in place, of images [B, n, D] under flickers [B, n] in -1 .. 1 and sheets [B, n]."""
        light, warmth, w = theta.double().unbind(1)
        width = self.flicker_low + (self.flicker_high - self.flicker_low) * w
        bright = light[:, None] * (1 + width[:, None] * flicker)  # [B, n]
        tint = torch.stack([1 + warmth, torch.ones_like(warmth), 1 - warmth], 1)  # [B, 3]
        coloured = images.mul_(tint.float().repeat(1, images.shape[-1] // 3)[:, None])  # [B, n, D]
        return coloured.mul_(bright[..., None].float()).add_(_sheets(self.numbers)[sheet], alpha=self.grain)

    def _images(self, latent: Tensor) -> Tensor:
        """The images [..., D] at (row, column, direction) [..., 3]."""
        row, column, direction = latent.round().long().unbind(-1)
        return _rooms(self.size, self.tile)[(row * self.size + column) * 4 + direction]


class MiniGridImages(GymFamily):
    """The family `minigrid_images`.

    Args:
        size: cells along a wall, walls included: 5, 6, 8 or 16.
        tile: pixels along a cell, from 3 on; a reading is 3 (size x tile)^2 numbers.
        light_low: the least light, > 0.
        light_high: the largest.
        warmth: the largest, below 1.
        flicker_low: as of `RoomCamera`.
        flicker_high: as of `RoomCamera`.
        grain: as of `RoomCamera`.

    Raises:
        SettingError: a parameter is out of range, or MiniGrid is not installed.
    """

    def __init__(
        self,
        size: int = 5,
        tile: int = 4,
        light_low: float = 0.8,
        light_high: float = 1.2,
        warmth: float = 0.2,
        flicker_low: float = 0.05,
        flicker_high: float = 0.5,
        grain: float = 0.1,
    ):
        if size not in SIZES:
            raise SettingError(expected=f"size among {SIZES}", got=str(size), cause="rooms that MiniGrid does not have")
        require_range("tile", tile, 3, 32)
        require_range("light_low", light_low, 0.01, 100.0)
        require_range("light_high", light_high, light_low, 100.0)
        require_range("warmth", warmth, 0.0, 0.99)
        require_range("flicker_low", flicker_low, 0.001, 1.0)
        require_range("flicker_high", flicker_high, flicker_low, 1.0)
        require_range("grain", grain, 0.001, 10.0)
        own = {"light_low": light_low, "light_high": light_high, "warmth": warmth}
        camera = RoomCamera(size, tile, flicker_low, flicker_high, grain, light_high, warmth)
        settings = {key: value for key, value in asdict(camera).items() if key != "points"} | own
        super().__init__(
            name="minigrid_images",
            make=lambda theta: empty_room(size),
            prior=uniform_prior((light_low, light_high), (-warmth, warmth), (0.0, 1.0)),
            theta_names=("light", "warmth", "w"),
            sensor=camera,
            horizon=4,
            reward=functools.partial(corner_payoffs, far=FAR),
            bernoulli_rewards=True,
            reward_scale=1.0,
            latent=lambda env, observation: (int(env.agent_pos[1]), int(env.agent_pos[0]), int(env.agent_dir)),
            settings=settings,
        )


@functools.cache
def _rooms(size: int, tile: int) -> Tensor:
    """MiniGrid's images [size x size x 4, D] in 0 .. 1 of every place and direction; those of walls are black."""
    env = empty_room(size).unwrapped
    env.reset(seed=0)
    images = torch.zeros(size, size, 4, 3 * (size * tile) ** 2)
    for row in range(1, size - 1):
        for column in range(1, size - 1):
            for direction in range(4):
                env.agent_pos, env.agent_dir = (column, row), direction
                frame = torch.from_numpy(env.get_frame(highlight=False, tile_size=tile).copy())
                images[row, column, direction] = frame.flatten() / 255
    env.close()
    return images.flatten(0, 2)


@functools.cache
def _sheets(numbers: int) -> Tensor:
    """Sheets of bump noise [SHEETS, D]; the same ones in every world."""
    generator = Seed.root(0).child("sheets", numbers).generator()
    return bump_draws(SHEETS * numbers, SMOOTHNESS, [generator]).view(SHEETS, numbers).float()
