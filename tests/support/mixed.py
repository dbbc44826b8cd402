"""A known family shown as many numbers, and the encoder that undoes it: what holds of the one must hold of the other.

    X = H (x, noise),    phi(X) = the first rows of H / 32 times X,    H the Hadamard matrix of 32 rows

x are readings of `grid`, rounded to 2^-14, noise are 30 numbers that say nothing. All sums are exact in float32, so
phi(X) = x to the bit.
"""

from dataclasses import replace
from functools import cached_property

import scipy
import torch

from s2r_torch.base import ProblemSpec
from s2r_torch.encoders.contract import Encoder
from s2r_torch.families.grid import Grid

NUMBERS, STEP = 32, 2.0**-14
H = torch.from_numpy(scipy.linalg.hadamard(NUMBERS)).double()


def rounded(x):
    return (x / STEP).round() * STEP


class Unmix(Encoder):
    def forward(self, x):
        return x @ (H[:2].T / NUMBERS).float()


class Plain(Grid):
    """`grid` with rounded readings, in the box that features have."""

    def __init__(self, box: ProblemSpec):
        super().__init__()
        object.__setattr__(self, "spec", box)

    def emit(self, theta, state, generators):
        return rounded(super().emit(theta, state, generators))

    def truth(self, theta):
        truth = super().truth(theta)
        return replace(truth, x=rounded(truth.x))


class Mixed(Grid):
    """The same readings, as 32 numbers."""

    @cached_property
    def spec(self):
        names = tuple(f"channel_{j}" for j in range(NUMBERS))
        return replace(Grid().spec, obs_dim=NUMBERS, low=(-40.0,) * NUMBERS, high=(40.0,) * NUMBERS, obs_names=names)

    @cached_property
    def sensor(self):
        return Grid().sensor

    def emit(self, theta, state, generators):
        x = rounded(super().emit(theta, state, generators))
        return mixed(x, torch.stack([noise(x.shape[1], g) for g in generators]))

    def truth(self, theta):
        truth = super().truth(theta)
        x = rounded(truth.x)
        return replace(truth, x=mixed(x, torch.zeros(*x.shape[:-1], NUMBERS - 2, dtype=torch.float64)))


def mixed(x, noise):
    return torch.cat([x, noise], -1) @ H


def noise(n, generator):
    """Numbers [n, 30] from a stream of their own, so that the readings' goes on as it would without them."""
    ahead = torch.Generator()
    ahead.set_state(generator.get_state())
    own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=ahead)))
    return rounded(torch.rand(n, NUMBERS - 2, generator=own, dtype=torch.float64) - 0.5)
