r"""`pendulum`: MuJoCo's InvertedPendulum-v5 with three forces, under an uncalibrated camera (camera.py).

A pole stands on a cart. Actions 0 left, 1 none, 2 right push the cart for four steps of the environment, H = 7. A pole
that leans by more than 0.2 has fallen, and stays where it lies. With the pole up after the last push, a cart on the
right of where it began pays Bernoulli(w), one on the left Bernoulli(1 - w). So a fixed list of actions earns 0.5,
V* = E max(w, 1 - w) = 0.75, and few sequences keep the pole up at all. Needs the extra `worlds`.
"""

from __future__ import annotations

from torch import Tensor

from s2r_torch.families.camera import Camera, CameraFamily
from s2r_torch.families.extras import from_worlds
from s2r_torch.families.gym.family import held_actions, make_env
from s2r_torch.families.replay.simulators import Moves

HORIZON = 7
FORCE = 0.3  # of a push, where the motor takes up to 3
HELD = 4  # steps of the environment
LEANS = 0.2  # more, and it falls
FALLEN = (0.0, 0.3, 0)  # where a pole that fell lies, on no place of one that stands, whenever it fell


class Pendulum(CameraFamily):
    """The family `pendulum`; arguments are those of `Camera`, lengths in metres and radians.

    Raises:
        SettingError: a parameter is out of range, or MuJoCo is not installed.
    """

    def __init__(
        self,
        noise_low: float = 0.008,
        noise_high: float = 0.016,
        gain_low: float = 1.0,
        gain_high: float = 1.2,
        smoothness: int = 2,
        quadrature: int = 7,
    ):
        super().__init__(
            name="pendulum",
            make=lambda theta: _made(),
            latent=place,
            reward=side_payoffs,
            horizon=HORIZON,
            corners=((-0.2, -0.2), (0.2, 0.3)),
            camera=Camera(noise_low, noise_high, gain_low, gain_high, smoothness, quadrature),
            apart=0.05,
        )


def side_payoffs(theta: Tensor, moves: Moves) -> Tensor:
    """w for a pole that stands on the right after the last push, 1 - w for one on the left."""
    w, (position, _, pushes) = theta[:, 2:], moves.following.unbind(-1)
    return (pushes == HORIZON) * ((position > 0) * w + (position < 0) * (1 - w))


def place(env, observation) -> tuple[float, ...]:
    """Where the cart is, how the pole leans, and how many pushes it has had."""
    position, angle = map(float, observation[:2])
    return FALLEN if abs(angle) > LEANS else (position, angle, round(env.data.time / (env.dt * HELD)))


def _made():
    with from_worlds("gymnasium[mujoco]", "pendulum"):
        env = make_env("InvertedPendulum-v5", reset_noise_scale=0.0)
    return held_actions(env, [[-FORCE], [0.0], [FORCE]], HELD)
