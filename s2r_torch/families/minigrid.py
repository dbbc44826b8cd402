r"""`minigrid`: MiniGrid-Empty-6x6-v0 seen by an uncalibrated camera (camera.py) that sees the tip of the agent's arrow.

The agent starts in the top left cell of 4 x 4, facing right. Actions 0 turn left, 1 turn right, 2 forward, H = 6.
Reaching the top right cell pays Bernoulli(w), the bottom left one Bernoulli(1 - w); H is too short for both, or for one
twice. So a fixed list of actions earns 0.5, V* = E max(w, 1 - w) = 0.75. Needs the extra `worlds`.
"""

from __future__ import annotations

import math

from torch import Tensor

from s2r_torch.families.camera import Camera, CameraFamily, entering
from s2r_torch.families.extras import from_worlds
from s2r_torch.families.gym.family import make_env
from s2r_torch.families.replay.simulators import Moves

ARROW = 0.25  # from the middle of a cell to the tip of the arrow, in cells
FAR = 4  # the last row and column; walls are at 0 and 5


class MiniGrid(CameraFamily):
    """The family `minigrid`; arguments are those of `Camera`.

    Raises:
        SettingError: a parameter is out of range, or MiniGrid is not installed.
    """

    def __init__(
        self,
        noise_low: float = 0.06,
        noise_high: float = 0.12,
        gain_low: float = 1.0,
        gain_high: float = 1.2,
        smoothness: int = 2,
        quadrature: int = 7,
    ):
        super().__init__(
            name="minigrid",
            make=lambda theta: empty_room(6),
            latent=tip,
            reward=corner_payoffs,
            horizon=6,
            corners=((1 - ARROW, 1 - ARROW), (FAR + ARROW, FAR + ARROW)),
            camera=Camera(noise_low, noise_high, gain_low, gain_high, smoothness, quadrature),
            apart=ARROW * math.sqrt(2),
        )


def tip(env, observation: object) -> tuple[float, float]:
    """Where the tip of the arrow is: (row, column)."""
    column, row = map(int, env.agent_pos)
    angle = env.agent_dir * math.pi / 2
    return row + ARROW * math.sin(angle), column + ARROW * math.cos(angle)


def corner_payoffs(theta: Tensor, moves: Moves, far: int = FAR) -> Tensor:
    """w for entering the cell in the first row and column `far`, 1 - w for that in row `far` and the first column."""
    w = theta[:, 2:]

    def enters(row: int, column: int) -> Tensor:
        return entering(moves.following, row, column) * (1 - entering(moves.latent, row, column))

    return enters(1, far) * w + enters(far, 1) * (1 - w)


def empty_room(size: int):
    """MiniGrid's room of so many cells along a wall, to turn and go forward in."""
    with from_worlds("minigrid", "minigrid"):
        return make_env(f"minigrid:MiniGrid-Empty-{size}x{size}-v0", actions=3)
