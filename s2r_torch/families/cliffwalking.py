r"""`cliffwalking`: Gymnasium's CliffWalking-v1 with two toll gates under an uncalibrated camera (camera.py).

    . . . . B . . .      Start S at the bottom left; a step to the right of it falls off the cliff C and is back at S.
    . . . . . . . .      Actions 0 up, 1 right, 2 down, 3 left. Both gates are seven moves away, H = 7: gate A along
    . . . . . . A .      the edge, one way only; gate B through the upper rows.
    S C C C C C C C

Reaching A with the last move pays Bernoulli(w), B Bernoulli(1 - w). So a fixed list of actions earns 0.5,
V* = E max(w, 1 - w) = 0.75, and one wrong step early on loses everything.
"""

from __future__ import annotations

from torch import Tensor

from s2r_torch.families.camera import Camera, CameraFamily, entering
from s2r_torch.families.gym.family import make_env
from s2r_torch.families.replay.simulators import Moves

COLUMNS = 12  # of the environment, of which H moves reach the first ones
GATES = ((2, 6), (0, 4))


class CliffWalking(CameraFamily):
    """The family `cliffwalking`; arguments are those of `Camera`.

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
            name="cliffwalking",
            make=lambda theta: make_env("CliffWalking-v1"),
            latent=lambda env, observation: divmod(int(observation), COLUMNS),
            reward=gate_payoffs,
            horizon=7,
            corners=((0, 0), (3, 6)),
            camera=Camera(noise_low, noise_high, gain_low, gain_high, smoothness, quadrature),
        )


def gate_payoffs(theta: Tensor, moves: Moves) -> Tensor:
    """w for entering gate A, 1 - w for gate B."""
    w = theta[:, 2:]
    return entering(moves.following, *GATES[0]) * w + entering(moves.following, *GATES[1]) * (1 - w)
