r"""Confidence bounds on the mean of independent values in [0, 1] (theory.md 4.1).

Every bound in `BOUNDS` is called alike:

    bound(samples, delta, *, candidates=1) -> lower bounds [...], float64

    samples     `[..., M]` values in [0, 1], one row per candidate or quantity; independent along M, of equal mean
    delta       failure probability, in (0, 1)
    candidates  q: delta / q is spent on each row, so that all of q rows hold together (one chosen among q with
                the same data, say)

With probability at least 1 - delta over the samples, the mean is at least the bound. Nothing else is assumed of the
distribution, except that `clopper_pearson` needs zeros and ones. Nothing is clipped: a bound below 0 says nothing.

`lower`, `upper` and `interval` choose a bound by name and take values in any interval. `betting` is the default; prefer
`clopper_pearson` for zeros and ones. Nothing here is random.

>>> wins = torch.tensor([1.0] * 35 + [0.0] * 15)
>>> round(clopper_pearson(wins, 0.05).item(), 4), round(hoeffding(wins, 0.05).item(), 4)
(0.5763, 0.5269)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
import torch
from torch import Tensor

from s2r_torch.errors import RewardError, SettingError

Bound = Callable[..., Tensor]
BOUNDS: dict[str, Bound] = {}
BISECTIONS = 60  # halvings of [0, 1]: below float64's resolution
CHUNK = 2**21  # values that one step of a bisection works on at once


def _bound(core: Callable[[np.ndarray, float], np.ndarray]) -> Bound:
    """Registers a bound: checks its input, splits delta, and works row by row on [N, M]."""

    @functools.wraps(core)
    def bound(samples: Tensor, delta: float, *, candidates: int = 1) -> Tensor:
        G = _checked(samples)
        share = _share(delta, candidates)
        rows = G.reshape(-1, G.shape[-1])
        return torch.from_numpy(core(rows, share).reshape(G.shape[:-1]).astype(np.float64))

    BOUNDS[core.__name__] = bound
    return bound


@_bound
def hoeffding(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""mean - sqrt(log(1 / delta) / (2 M)): Hoeffding (1963)."""
    return samples.mean(-1) - math.sqrt(-math.log(delta) / (2 * samples.shape[-1]))


@_bound
def chernoff_kl(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""The least q with M kl(mean || q) <= log(1 / delta): Chernoff; never below `hoeffding`."""
    mean, limit = samples.mean(-1), -math.log(delta) / samples.shape[-1]

    def is_too_low(q: np.ndarray) -> np.ndarray:
        return _kl(mean, q) > limit

    return _largest(is_too_low, np.zeros_like(mean), mean)


@_bound
def hoeffding_bentkus(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""The q with e P(Bin(M, q) >= floor(M mean)) = delta: Bentkus (2004).

    The floor, not the ceiling, which is invalid for means near 0 (theory.md 4.1); a sum that misses an integer by
    rounding alone counts as that integer.
    """
    M = samples.shape[-1]
    wins = np.floor(samples.sum(-1) + 1e-12 * M)
    return _binomial_lower(wins, M, delta / math.e)


@_bound
def maurer_pontil(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""mean - sqrt(2 V log(2 / delta) / M) - 7 log(2 / delta) / (3 (M - 1)): empirical Bernstein, V unbiased.

    Raises:
        SettingError: fewer than 2 samples, which have no variance.
    """
    M, L = samples.shape[-1], math.log(2 / delta)
    if M < 2:
        raise SettingError(expected="at least 2 samples", got=str(M), cause="one sample has no variance")
    return samples.mean(-1) - np.sqrt(2 * samples.var(-1, ddof=1) * L / M) - 7 * L / (3 * (M - 1))


@_bound
def anderson_dkw(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""The integral of 1 - min(1, F_M(x) + sqrt(log(1 / delta) / (2 M))) over [0, 1]: Anderson (1969), Massart (1990).

    Never below `hoeffding`.

    Raises:
        SettingError: delta > 1/2 per candidate, for which the one-sided inequality is not proved.
    """
    if delta > 0.5:
        raise SettingError(expected="delta <= 1/2", got=str(delta), cause="the one-sided DKW inequality needs it")
    M = samples.shape[-1]
    steps = np.diff(np.sort(samples, -1), axis=-1, prepend=0.0)  # [N, M] lengths on which F_M = 0, 1/M, ..
    above = np.maximum(0.0, 1 - np.arange(M) / M - math.sqrt(-math.log(delta) / (2 * M)))
    return steps @ above


@_bound
def clopper_pearson(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""The delta-quantile of Beta(k, M - k + 1), k = number of ones; 0 for k = 0: exact for zeros and ones.

    Raises:
        RewardError: a value other than 0 and 1.
    """
    if not np.isin(samples, (0.0, 1.0)).all():
        other = samples[~np.isin(samples, (0.0, 1.0))][0]
        raise RewardError(
            expected="zeros and ones only", got=str(other), cause="returns that are not win or lose; use betting"
        )
    return _binomial_lower(samples.sum(-1), samples.shape[-1], delta)


@_bound
def betting(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""The largest m at which betting against "the mean is m" ever multiplied the capital by 1 / delta.

    Waudby-Smith and Ramdas (2024), theory.md 4.1:

        K_t(m)   = prod_{i <= t} (1 + min(lambda_i, 3 / (4 m)) (G_i - m))
        lambda_i = sqrt(2 log(1 / delta) / (M s2_{i-1})),   s2_0 = 1/4
        mu_t     = (1/2 + sum_{i <= t} G_i) / (t + 1),      s2_t = (1/4 + sum_{i <= t} (G_i - mu_i)^2) / (t + 1)
        L        = max {m : max_t K_t(m) >= 1 / delta}

    The order of the samples counts, and must be fixed before they are seen. 0 when no m is refuted.
    """
    return _betting(samples, delta, lambda log_capital: np.maximum.accumulate(log_capital, axis=-1)[..., -1])


@_bound
def betting_final(samples: np.ndarray, delta: float) -> np.ndarray:
    r"""As `betting`, with the capital after the last sample, K_M(m), for the largest along the way; never above it."""
    return _betting(samples, delta, lambda log_capital: log_capital[..., -1])


def lower(
    samples: Tensor,
    delta: float,
    *,
    bound: str = "betting",
    candidates: int = 1,
    low: float = 0.0,
    high: float = 1.0,
) -> Tensor:
    """A lower bound on the mean, by the name of the bound.

    Args:
        samples: `[..., M]` values in [low, high].
        delta: failure probability, in (0, 1).
        bound: a name in `BOUNDS`.
        candidates: q, the number of bounds that hold together.
        low: least possible value.
        high: largest possible value.

    Returns:
        `[...]` float64.

    Raises:
        SettingError: an unknown bound, no samples, or delta, candidates or low and high out of range.
        RewardError: a value that is not finite or not in [low, high].

    >>> lower(torch.full((2, 100), 0.5), 0.05, bound="hoeffding")
    tensor([0.3776, 0.3776], dtype=torch.float64)
    """
    return low + (high - low) * _named(bound)(_scaled(samples, low, high), delta, candidates=candidates)


def upper(
    samples: Tensor,
    delta: float,
    *,
    bound: str = "betting",
    candidates: int = 1,
    low: float = 0.0,
    high: float = 1.0,
) -> Tensor:
    """An upper bound on the mean: minus the lower bound of the mirrored values. Arguments as in `lower`.

    >>> upper(torch.full((100,), 0.5), 0.05, bound="hoeffding")
    tensor(0.6224, dtype=torch.float64)
    """
    mirrored = 1 - _scaled(samples, low, high)
    return high - (high - low) * _named(bound)(mirrored, delta, candidates=candidates)


def interval(
    samples: Tensor,
    delta: float,
    *,
    bound: str = "betting",
    candidates: int = 1,
    low: float = 0.0,
    high: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds that hold together: delta / 2 for each. Arguments as in `lower`."""
    least, most = (
        side(samples, delta / 2, bound=bound, candidates=candidates, low=low, high=high) for side in (lower, upper)
    )
    return least, most


def _checked(samples: Tensor) -> np.ndarray:
    G = torch.as_tensor(samples).detach().cpu().to(torch.float64).numpy()
    if G.ndim == 0 or G.shape[-1] == 0:
        raise SettingError(
            expected="samples [..., M] with M >= 1", got=str(list(G.shape)), cause="nothing was evaluated"
        )
    wrong = ~((G >= 0) & (G <= 1))  # NaN included
    if wrong.any():
        raise RewardError(
            expected="values in [0, 1]",
            got=str(G[wrong][0]),
            cause="returns not scaled, or another range: see low, high",
        )
    return G


def _share(delta: float, candidates: int) -> float:
    if not 0 < delta < 1:
        raise SettingError(expected="delta in (0, 1)", got=str(delta), cause="a confidence given for a failure rate")
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise SettingError(expected="candidates: an integer >= 1", got=repr(candidates), cause="an empty class")
    return delta / candidates


def _named(bound: str) -> Bound:
    if bound not in BOUNDS:
        raise SettingError(expected=f"a bound of {sorted(BOUNDS)}", got=repr(bound), cause="a typing error")
    return BOUNDS[bound]


def _scaled(samples: Tensor, low: float, high: float) -> Tensor:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingError(expected="finite low < high", got=f"{low}, {high}", cause="an empty or unbounded range")
    samples = torch.as_tensor(samples).to(torch.float64)
    wrong = ~((samples >= low) & (samples <= high))
    if wrong.any():
        raise RewardError(
            expected=f"values in [{low}, {high}]", got=str(samples[wrong][0].item()), cause="a wrong range, or NaN"
        )
    return ((samples - low) / (high - low)).clamp(0, 1)


def _kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """kl(p || q) of two coins, for 0 < q <= p <= 1."""
    xlogy, xlog1py = scipy.special.xlogy, scipy.special.xlog1py
    return xlogy(p, p) - xlogy(p, q) + xlog1py(1 - p, -p) - xlog1py(1 - p, -q)


def _binomial_lower(wins: np.ndarray, M: int, delta: float) -> np.ndarray:
    """The q with P(Bin(M, q) >= wins) = delta, and 0 for no wins."""
    return np.where(wins > 0, scipy.special.betaincinv(np.maximum(wins, 1), M - np.maximum(wins, 1) + 1, delta), 0.0)


def _largest(holds: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The end of the interval from `low` on which a monotone condition holds, from below; `low` where it never does."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = holds(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return low


def _betting(samples: np.ndarray, delta: float, of_path: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    M = samples.shape[-1]
    rows = max(1, CHUNK // M)
    return np.concatenate(
        [_betting_rows(samples[i : i + rows], delta, of_path) for i in range(0, max(len(samples), 1), rows)]
    )


def _betting_rows(samples: np.ndarray, delta: float, of_path: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    N, M = samples.shape
    t = np.arange(1, M + 1)
    mean = (0.5 + samples.cumsum(-1)) / (t + 1)
    variance = (0.25 + ((samples - mean) ** 2).cumsum(-1)) / (t + 1)  # [N, M] s2_1 .. s2_M
    before = np.concatenate([np.full((N, 1), 0.25), variance[:, :-1]], axis=-1)
    stake = np.sqrt(-2 * math.log(delta) / (M * before))  # [N, M] lambda

    def is_refuted(m: np.ndarray) -> np.ndarray:
        m = m[:, None]
        gains = np.minimum(stake, 0.75 / m) * (samples - m)
        return of_path(np.log1p(gains).cumsum(-1)) >= -math.log(delta)

    return _largest(is_refuted, np.zeros(N), np.ones(N))
