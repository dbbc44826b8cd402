"""What readings say about theta, where a family can tell: the limit of all that can be learned by looking.

A family may know its likelihood. Then it has two more functions (`families.contract.Likelihood`), and this is what
those with bump noise around moving centres share.
"""

from __future__ import annotations

import math
from functools import cache

import scipy
import torch
from torch import Tensor

from s2r_torch.families.noise import bump_constant

NODES = 32  # of the integral over an offset
STEPS, FAR = 24, 5.0  # midpoints per axis of a camera, and how many standard errors they reach
ENTRIES = 2**23  # numbers at once
AT_ONCE = 2**16  # of a camera's: they stay in the cache
READINGS = 32  # whose product has a logarithm, far from underflow unless it is nothing beside others


def midpoints(low: float, high: float, count: int) -> Tensor:
    """The centres [count] of equal parts of an interval: equally likely values of a uniform number."""
    return low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / count


def offset_evidence(residual: Tensor, half_width: Tensor, reach: float, smoothness: int) -> Tensor:
    r"""log of  integral over o in [-reach, reach] of  prod_i b((r_i - o) / h) / h  do / (2 reach).

    The log-likelihood of one coordinate of readings, r = reading - centre, under an unknown offset that all share,
    uniform in [-reach, reach], and bump noise of half-width h. The integrand lives where no reading is further than h
    away; Gauss-Legendre nodes are placed there.

    Args:
        residual: `[W, N]`.
        half_width: `[K]` values of h.
        reach: > 0.
        smoothness: k of the bump.

    Returns:
        `[W, K]`; -inf where readings lie further apart than 2 h.
    """
    nodes, weights = _legendre()
    parts = []
    for r in residual.split(max(1, ENTRIES // (len(half_width) * NODES * residual.shape[1]))):
        low = (r.amax(1)[:, None] - half_width).clamp(min=-reach)  # [W, K]
        length = ((r.amin(1)[:, None] + half_width).clamp(max=reach) - low).clamp(min=0)
        o = low[..., None] + length[..., None] * nodes  # [W, K, q]
        h = half_width[:, None, None]
        t = (r[:, None, None] - o[..., None]) / h
        log_b = smoothness * (1 - t.square()).clamp(min=0).log().sum(-1)
        inside = (log_b + weights.log()).logsumexp(-1) + (length / (2 * reach)).log()
        parts.append(inside + r.shape[1] * (math.log(bump_constant(smoothness)) - half_width.log()))
    return torch.cat(parts)


@cache
def _legendre() -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = scipy.special.roots_legendre(NODES)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def camera_evidence(
    x: Tensor, places: Tensor, half_width: Tensor, gains: tuple[float, float], smoothness: int
) -> Tensor:
    r"""log of  integral over heading and gain of  prod_i prod_c b((x_ic - gain (R(heading) place_i)_c) / h) / h.

    The log-likelihood of readings of two coordinates under an unknown rotation, uniform on the circle, and an unknown
    gain, uniform between `gains`, that all share. Midpoints are placed around the least-squares fit, `STEPS` per axis.

    Args:
        x: `[W, N, 2]`.
        places: `[N, 2]` what is turned and scaled, not all of them 0.
        half_width: `[K]` values of h.
        gains: least and largest.
        smoothness: k of the bump.

    Returns:
        `[W, K]`.
    """
    row, column = places.T
    size = places.square().sum()
    cosine = (row * x[..., 0] + column * x[..., 1]).sum(1) / size  # gain cos(heading), by least squares
    sine = (row * x[..., 1] - column * x[..., 0]).sum(1) / size
    heading, gain = torch.atan2(sine, cosine), torch.hypot(cosine, sine).clamp(*gains)
    reach = FAR * float(half_width.max()) / math.sqrt((2 * smoothness + 3) * float(size))
    turn = (reach / gain).clamp(max=math.pi)
    low, high = (gain - reach).clamp(min=gains[0]), (gain + reach).clamp(max=gains[1])
    steps, parts = midpoints(0.0, 1.0, STEPS), []
    for w in torch.arange(len(x)).split(max(1, AT_ONCE // (len(half_width) * STEPS**2))):
        angles = heading[w, None] + turn[w, None] * (2 * steps - 1)  # [w, q]
        gained = low[w, None] + (high - low)[w, None] * steps
        a, b = (gained[:, None] * f(angles)[..., None] for f in (torch.cos, torch.sin))  # [w, q, q]
        log_b = smoothness * _log_product(x[w], places, a.flatten(1), b.flatten(1), half_width)
        area = (2 * turn * (high - low))[w] / (STEPS**2 * 2 * math.pi * (gains[1] - gains[0]))
        parts.append(log_b.logsumexp(-1) + area.log()[:, None])
    constant = math.log(bump_constant(smoothness)) - half_width.log()
    return torch.cat(parts) + 2 * len(places) * constant


def _log_product(x: Tensor, places: Tensor, a: Tensor, b: Tensor, half_width: Tensor) -> Tensor:
    """log prod_i prod_c (1 - t_ic^2)_+ [w, K, Q] of readings x [w, N, 2] seen by cameras a, b [w, Q].

    Reading by reading, so that all stays in the cache, and one logarithm for many readings: it costs ten products.
    """
    total, product = (torch.full((len(x), len(half_width), a.shape[1]), v, dtype=torch.float64) for v in (0.0, 1.0))
    for i, (row, column) in enumerate(places.tolist()):
        for c, centre in enumerate((row * a - column * b, row * b + column * a)):
            t = (x[:, i, c, None] - centre)[:, None] / half_width[:, None]
            product *= t.square_().neg_().add_(1).clamp_(min=0)
        if i % READINGS == READINGS - 1:
            total += product.log()
            product.fill_(1.0)
    return total + product.log()
