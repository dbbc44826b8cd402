r"""`treasure`: MO-Gymnasium's deep-sea-treasure-v0 under an uncalibrated camera (camera.py); w says how dear time is.

A submarine starts at the top left; treasures lie on the sea floor, larger ones deeper, and end the episode. Actions 0
up, 1 down, 2 left, 3 right, H = 9. A treasure of value v (0.7 to 16.1) taken with move t pays

    (1 - w) v / 16.1 + w (1 - (t - 1) / H)

so that the best of six treasures depends on w, which shows in the width of the densities only: from the nearest at
w = 1 to the one that takes all nine moves at w = 0. Needs the extra `worlds`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from s2r_torch.families.camera import Camera, CameraFamily
from s2r_torch.families.extras import from_worlds
from s2r_torch.families.replay.simulators import Moves

HORIZON = 9
TREASURES = {(1, 0): 0.7, (2, 1): 8.2, (3, 2): 11.5, (4, 3): 14.0, (4, 4): 15.1, (4, 5): 16.1}  # within H moves
LARGEST = 16.1
WORTH = torch.zeros(HORIZON + 1, HORIZON + 1, dtype=torch.float64)  # by row and column, as far as H moves lead
WORTH[tuple(zip(*TREASURES, strict=True))] = torch.tensor([*TREASURES.values()], dtype=torch.float64)
ENDED = -1


class Treasure(CameraFamily):
    """The family `treasure`; arguments are those of `Camera`.

    Raises:
        SettingError: a parameter is out of range, or MO-Gymnasium is not installed.
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
            name="treasure",
            make=lambda theta: _timed(),
            latent=lambda env, observation: (*map(int, env.current_state), env.moves),
            reward=treasure_payoffs,
            horizon=HORIZON,
            corners=((0, 0), (4, 9)),
            camera=Camera(noise_low, noise_high, gain_low, gain_high, smoothness, quadrature),
            bernoulli_rewards=False,
        )


def treasure_payoffs(theta: Tensor, moves: Moves) -> Tensor:
    """What a treasure is worth with the move that takes it."""
    w, before = theta[:, 2:], moves.latent[..., 2]
    row, column = moves.following[..., :2].long().unbind(-1)
    value = WORTH.take(row * WORTH.shape[1] + column)
    return (value > 0) * ((1 - w) * value / LARGEST + w * (1 - before / HORIZON))


def _timed():
    """The environment, which also says how many moves were made before now; `ENDED` where a treasure was taken."""
    with from_worlds("mo-gymnasium", "treasure"):
        from mo_gymnasium.envs.deep_sea_treasure.deep_sea_treasure import DeepSeaTreasure

    class Timed(DeepSeaTreasure):
        def reset(self, seed=None, **given):
            self.moves = 0
            return super().reset(seed=seed, **given)

        def step(self, action):
            observation, reward, terminated, *rest = super().step(action)
            self.moves = ENDED if terminated else self.moves + 1
            return observation, reward, terminated, *rest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Gymnasium about the observation space, which is not used
        return Timed()
