r"""When has a world been looked at enough? Sequential deployment stops when more episodes cannot change what is done.

At look k n_k episodes were run along every sequence of the cover, D_hat is estimated from them, and a* is the greedy
action there. Had the looks gone on without end, the estimate would be E D_hat (the density, smoothed by the kernel).
How much worse a* could then be, at a reading x that was seen,

    loss(x) = max_a f(E D_hat, x, a) - f(E D_hat, x, a*),      f told of look k's number of readings throughout,

is bounded with confidence 1 - alpha / K at each of the K looks planned, in one of two ways:

    certified  |D_hat - E D_hat| <= r everywhere (a sup-norm band), so loss(x) <= 2 C_L r - gap(x), at least 0,
               with gap(x) the lead of a* over the next action: only Assumption 4 and the band are used.
    bootstrap  E D_hat is replaced by D_hat + Z, Z the band's Gaussian multiplier noise, drawn many times; the bound is
               a quantile of the largest loss.

It is enough when the largest loss over all readings seen is at most `tolerance`, in units of an episode's total reward.

What is promised: with probability at least 1 - alpha, a union over the K looks, so that stopping early costs nothing,
every action at the readings seen is within `tolerance` of what unlimited looking would do, as the predictor f values
it. Bands are approximate (their coverage is tested, not proved); `bootstrap` is, beyond that, a first-order argument.

What is not: that f is right; anything on readings not seen; and the certificate and the comparison with simulators,
which hold for n_real readings of every state, not for a number that the readings themselves decide. `certified`
promises more and asks for a great deal more: with C_L = 10 it rarely stops below a million readings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from s2r_torch.defaults import plain_torch
from s2r_torch.density.direct import kernel_values
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.errors import SettingError
from s2r_torch.predictors.ensemble import greedy_actions
from s2r_torch.rng import Seed
from s2r_torch.schema import Drawable, Range, Settings, Share, Size

MOST_NUMBERS = 2**22  # float64 numbers of noise held at once, 32 MiB


@dataclass(frozen=True)
class Stopping(Settings):
    """When to stop looking.

    Args:
        alpha: the probability that the promise fails, in (0, 1); alpha / K is spent at each of the K looks planned.
        looks: K + 1 evenly spaced numbers of readings per state, the last one n_real, where there is nothing to test.
        tolerance: how much worse an action may be, in units of an episode's total reward, >= 0.
        by: `bootstrap` or `certified`.
        draws: of the noise; at least 2 K / alpha, or the quantile is that of the largest draw.
        most_readings: readings per state that actions are compared at, the first ones.
        seed: of the noise; the same readings always give the same verdict.

    Raises:
        SettingError: a number out of range.
    """

    alpha: Share = 0.05
    looks: Annotated[int, Drawable(2)] = 4
    tolerance: Annotated[float, Range(0)] = 0.01
    by: Literal["bootstrap", "certified"] = "bootstrap"
    draws: Size = 500
    most_readings: Size = 100
    seed: int = 0

    def check_rules(self) -> None:
        least = math.ceil(2 * (self.looks - 1) / self.alpha)
        if self.draws < least:
            raise SettingError(
                expected=f"at least {least} draws for alpha = {self.alpha} and {self.looks} looks",
                got=str(self.draws),
                cause="too few to see so rare a quantile",
            )

    def schedule(self, n_real: int) -> list[int]:
        """Readings per state at each look, ascending; the last is n_real."""
        return sorted({math.ceil(n_real * k / self.looks) for k in range(1, self.looks + 1)} - {1}) or [n_real]


@dataclass(frozen=True)
class Look:
    """What one look found."""

    n: int  # episodes along every sequence of the cover
    loss: float  # bound on the largest loss, at confidence 1 - alpha / K
    enough: bool


@plain_torch()
def look(meta_policy: MetaPolicy, n: int, samples: list[Tensor], stopping: Stopping) -> Look:
    """Judges one look.

    Args:
        meta_policy: what is deployed.
        n: episodes along every sequence of the cover, at least 2.
        samples: `[n_s, d]` readings of every state that they show.
        stopping: how.

    Raises:
        SettingError: `certified` with a network that has no certificate.

    Cost:
        No episodes. O(draws n xi G), and draws * min(n, most_readings) * xi predictions for `bootstrap`.
    """
    bound = _certified if stopping.by == "certified" else _bootstrap
    losses = bound(meta_policy, samples, stopping, Seed.root(stopping.seed).child("look", n).generator())
    level = 1 - stopping.alpha / (stopping.looks - 1)
    rank = min(math.ceil((len(losses) + 1) * level), len(losses)) - 1
    loss = float(losses.sort().values[rank])
    return Look(n, loss, loss <= stopping.tolerance)


def multiplier_noise(
    estimator: DensityEstimator, samples: list[Tensor], draws: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draws of Z = 1/n sum_i xi_i (K_h(X_i - x_g) - D_hat_g), independent across states, in parts [r, xi, G].

    Args:
        estimator: what is estimated.
        samples: `[n_s, d]` per state.
        draws: how many in all.
        generator: consumed.
    """
    centred = []
    for x in samples:
        K = kernel_values(estimator.windows(x.dtype), x)  # [n, G]
        centred.append(estimator.normalised(K - K.mean(0), len(x)))
    rows = max(1, MOST_NUMBERS // (len(samples) * estimator.grid.num_points))
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        xi = (torch.randn(size, len(K), dtype=torch.float64, generator=generator) for K in centred)
        yield torch.stack([one @ K for one, K in zip(xi, centred, strict=True)], 1)


def _readings(meta_policy: MetaPolicy, samples: list[Tensor], most: int) -> Iterator[tuple[int, Tensor]]:
    """(step, x) of every state."""
    for step, x in zip(meta_policy.problem.graph.layer.tolist(), samples, strict=True):
        yield step, x[:most]


def _certified(
    meta_policy: MetaPolicy, samples: list[Tensor], stopping: Stopping, generator: torch.Generator
) -> Tensor:
    """Draws [R] of the largest loss that Assumption 4 allows."""
    C_L = float(meta_policy.ensemble.subset([meta_policy.chosen]).lipschitz_bound()[0])
    if not math.isfinite(C_L):
        raise SettingError(
            expected="a network with a certified Lipschitz bound",
            got="one without",
            cause="a network of your own; take stopping.by=bootstrap",
        )
    policy = meta_policy.condition_on(samples)
    gaps = []
    for step, x in _readings(meta_policy, samples, stopping.most_readings):
        best = policy.q(step, x).topk(min(2, meta_policy.problem.spec.num_actions), -1).values
        gaps.append((best[:, 0] - best[:, -1]).amin())
    noise = multiplier_noise(meta_policy.estimator, samples, stopping.draws, generator)
    radius = torch.cat([Z.abs().flatten(1).amax(1) for Z in noise])  # [R]
    if meta_policy.problem.spec.num_actions == 1:
        return torch.zeros_like(radius)
    return (2 * C_L * radius - torch.stack(gaps).amin()).clamp(min=0)


def _bootstrap(
    meta_policy: MetaPolicy, samples: list[Tensor], stopping: Stopping, generator: torch.Generator
) -> Tensor:
    """Draws [R] of the largest loss under D_hat + Z."""
    D_hat, used = meta_policy.densities(samples), torch.tensor([len(x) for x in samples])
    policy, losses = meta_policy.condition(D_hat, used), []
    for Z in multiplier_noise(meta_policy.estimator, samples, stopping.draws, generator):
        disturbed, largest = meta_policy.condition(D_hat + Z, used), []
        for step, x in _readings(meta_policy, samples, stopping.most_readings):
            actions = greedy_actions(policy.q(step, x))  # [n]
            q = disturbed.q(step, x.expand(len(Z), *x.shape))  # [r, n, A]
            taken = q.gather(-1, actions.expand(len(Z), -1)[..., None])[..., 0]
            largest.append((q.amax(-1) - taken).amax(-1))
        losses.append(torch.stack(largest).amax(0))
    return torch.cat(losses).double()
