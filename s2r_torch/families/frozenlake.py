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

import torch
from torch import Tensor

from s2r_torch.families.camera import Camera, CameraFamily
from s2r_torch.families.gym.family import make_env
from s2r_torch.families.replay.simulators import Moves

MAP = ("SFHG", "FFFF", "HFFH", "GFFF")
SIZE = len(MAP)


class FrozenLake(CameraFamily):
    """The family `frozenlake`; arguments are those of `Camera`.

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
        super().__init__(
            name="frozenlake",
            make=lambda theta: make_env("FrozenLake-v1", desc=list(MAP), is_slippery=False),
            latent=lambda env, observation: divmod(int(observation), SIZE),
            reward=goal_payoffs,
            horizon=6,
            corners=((0, 0), (SIZE - 1, SIZE - 1)),
            camera=Camera(noise_low, noise_high, gain_low, gain_high, smoothness, quadrature),
            max_states_per_layer=15,
        )


def goal_payoffs(theta: Tensor, moves: Moves) -> Tensor:
    """w for reaching the goal in the upper half, 1 - w in the lower; the lake's own reward says that it is a goal."""
    w = theta[:, 2:]
    return moves.raw * torch.where(moves.following[..., 0] < (SIZE - 1) / 2, w, 1 - w)
