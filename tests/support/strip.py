"""`strip`: a spot of light on a strip of fourteen pixels: readings of many numbers, and no package.

Three places in a row, start in the middle, H = 3: left, right, or press. Pressing at the left end pays w, at the right
end 1 - w. The spot is moved by the calibration, and jitters the more the larger w is.
"""

import torch

from s2r_torch.families import register_family
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.noise import bump_draws, bump_nodes
from s2r_torch.families.sensors import uniform_prior

PIXELS = 14
OUTSIDE = 3
SPOT = torch.arange(PIXELS, dtype=torch.float64)


class Strip:
    names = tuple(f"pixel_{j}" for j in range(PIXELS))
    low, high = (-0.2,) * PIXELS, (1.2,) * PIXELS

    def read(self, theta, latent, generators):
        n = latent.shape[1]
        jitter = bump_draws(n, 2, generators)
        grain = bump_draws(n * PIXELS, 2, generators).view(-1, n, PIXELS)
        return self.shown(theta, latent[..., 0], jitter) + 0.1 * grain

    def quadrature(self, theta, latent):
        """Nine spots, each under sixty grains."""
        nodes, weights = (part.repeat_interleave(60) for part in bump_nodes(9, 2))
        xi, m = len(latent), len(nodes)
        places = latent[:, 0].repeat_interleave(m).expand(len(theta), -1)
        grain = bump_draws(xi * m * PIXELS, 2, [torch.Generator().manual_seed(0)]).view(xi * m, PIXELS)
        x = self.shown(theta, places, nodes.repeat(xi).expand(len(theta), -1)) + 0.1 * grain
        return x.unflatten(1, (xi, m)), (weights / 60).expand(len(theta), xi, m)

    def shown(self, theta, places, jitter):
        spot = 2.5 + 3 * places + theta[:, :1] + (0.2 + 0.9 * theta[:, 1:]) * jitter
        return (-(spot[..., None] - SPOT).square() / 2).exp()


def step(theta, place, action):
    if action == 2:
        return OUTSIDE, {0: theta.w, 2: 1 - theta.w}.get(place, 0.0), True
    return min(max(place + 2 * action - 1, 0), 2), 0.0, False


@register_family("strip")
def strip():
    prior = uniform_prior((-0.4, 0.4), (0.0, 1.0))
    return FunctionFamily(
        name="strip",
        step=step,
        start=1,
        num_actions=3,
        theta_names=("offset", "w"),
        prior=prior,
        sensor=Strip(),
        horizon=3,
    )
