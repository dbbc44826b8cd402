r"""How many fresh simulators does a certificate need? A forecast, not a bound (theory.md 4.1).

The betting bound on the mean of M returns with standard deviation sigma lies below that mean by about

    slack(M) = sigma sqrt(2 log(1 / delta) / M) + (3 / 4) log(1 / delta) / M,

the second term fitted to six laws of returns: the true slack is 0.6 to 1.1 times this. No returns in [0, 1] have a
sigma above 1/2.

>>> certification_simulators(0.1, 0.05), certification_simulators(0.1, 0.05, spread=0.1)
(193, 38)
"""

from __future__ import annotations

import math

from s2r_torch.errors import SettingError
from s2r_torch.plain import is_real, require_count

START_UP = 0.75  # what the bettor pays before it knows the spread, in units of log(1 / delta) / M


def certification_slack(num_simulators: int, delta: float, spread: float = 0.5) -> float:
    """How far the certified value is expected to lie below the mean, in units of total episode reward."""
    require_count("num_simulators", num_simulators)
    _require_shares(0.5, delta, spread)
    L = -math.log(delta)
    return spread * math.sqrt(2 * L / num_simulators) + START_UP * L / num_simulators


def certification_simulators(epsilon: float, delta: float, spread: float = 0.5) -> int:
    """The least M whose expected slack is at most epsilon.

    Args:
        epsilon: wanted slack, in (0, 1).
        delta: failure probability of the certificate, in (0, 1).
        spread: standard deviation of mean returns over simulators, in [0, 1/2]; 1/2 if nothing is known.

    Raises:
        SettingError: a number out of range.
    """
    _require_shares(epsilon, delta, spread)
    L = -math.log(delta)
    linear = spread * math.sqrt(2 * L)
    root = 2 * epsilon / (linear + math.sqrt(linear**2 + 4 * START_UP * L * epsilon))  # 1 / sqrt(M)
    return math.ceil(root**-2 - 1e-9)


def _require_shares(epsilon: float, delta: float, spread: float) -> None:
    """Raises SettingError for a number out of range, or none."""
    numbers = all(map(is_real, (epsilon, delta, spread)))
    if not (numbers and 0 < epsilon < 1 and 0 < delta < 1 and 0 <= spread <= 0.5):
        raise SettingError(
            expected="epsilon, delta in (0, 1) and spread in [0, 1/2]",
            got=f"{epsilon}, {delta}, {spread}",
            cause="a percentage, or a variance for a standard deviation",
        )
