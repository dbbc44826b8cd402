"""How many samples are enough, exactly: decimal arithmetic where a float cannot decide a ceiling.

Numbers are taken as the user wrote them (0.1 means one tenth). With 200 digits, integers are exact up to 1e150.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, getcontext, localcontext

from s2r_torch.errors import SettingError

DIGITS = 200
ROUGH = 60  # digits of a first solution; the rest double with every step of Newton's method
Number = int | float | str | Decimal


def exact(value: Number) -> Decimal:
    """The decimal number that the user wrote: `exact(0.1)` is one tenth, not the nearest binary fraction."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


@contextmanager
def precision() -> Iterator[None]:
    """Decimal arithmetic of 200 digits, independent of the caller's decimal context."""
    with localcontext(Context(prec=DIGITS, rounding=ROUND_HALF_EVEN, Emax=10**12, Emin=-(10**12))):
        yield


def log(value: Decimal) -> Decimal:
    """The natural logarithm.

    Raises:
        SettingError: value <= 0.
    """
    if value <= 0:
        raise SettingError(
            expected="a positive number under the logarithm", got=f"{value:.6g}", cause="delta or epsilon out of range"
        )
    return value.ln()


def ceiling(value: Decimal) -> int:
    """The least integer that is at least `value` and at least 1."""
    return max(1, int(value.to_integral_value(rounding=ROUND_CEILING)))


def density_root(radius: Number, constant: Number, log_term: Decimal, order: Number, obs_dim: int) -> Decimal | None:
    r"""The real number of samples at which the density error reaches `radius`, from below.

    Paper eq. (requisite-ndist), with a = alpha / (2 alpha + d), q = (radius / constant)^2, y = log n + log_term:

        constant n^-a sqrt(log n + log_term) = radius    <=>    y = log_term + (log y - log q) / (2 a)

    the larger root of which is y = -W_{-1}(-2 a q exp(-2 a log_term)) / (2 a). Newton's method from above is stable
    where the exponential underflows: the equation is convex there, and the iterates decrease to the root.

    Args:
        radius: wanted sup-norm error, > 0, in the unit of `constant`.
        constant: C_dist, or C_L C_dist when `radius` is in units of reward, > 0.
        log_term: logarithm of the number of densities over the failure probability.
        order: alpha > 0.
        obs_dim: d >= 0.

    Returns:
        n as a decimal number, or None when the error never exceeds `radius`.
    """
    a = exact(order) / (2 * exact(order) + obs_dim)
    log_q = 2 * (log(exact(radius)) - log(exact(constant)))

    def excess(y: Decimal) -> Decimal:
        return y - log_term - (log(y) - log_q) / (2 * a)

    def newton(y: Decimal) -> Decimal:
        tolerance = exact(10) ** (8 - getcontext().prec)
        while True:
            step = excess(y) / (1 - 1 / (2 * a * y))
            y -= step
            if abs(step) <= tolerance * y:
                return y

    y = 1 / (2 * a)
    if excess(y) > 0:
        return None
    with localcontext(prec=ROUGH):
        while excess(y) <= 0:
            y *= 2
        y = newton(y)
    return (newton(y) - log_term).exp()


def density_samples(radius: Number, constant: Number, log_term: Decimal, order: Number, obs_dim: int) -> int:
    r"""The least n0 with constant n^-a sqrt(log n + log_term) <= radius for every n >= n0.

    Paper eq. (requisite-ndist); theory.md section 6, "closed form" and section 7, "least n". Arguments as in
    `density_root`; C_dist is not given in the paper (theory.md C13) and is the caller's.

    >>> with precision():
    ...     density_samples("0.01", 1, log(Decimal(640)), 2, 1)
    4718214
    """
    root = density_root(radius, constant, log_term, order, obs_dim)
    if root is None:
        return 1
    n = ceiling(root)
    peak = (1 + obs_dim / (2 * exact(order)) - log_term).exp()  # where the error turns from rising to falling
    if 1 <= n - 1 < peak and _density_error(n - 1, constant, log_term, order, obs_dim) <= exact(radius):
        return 1  # the error exceeds the radius only strictly between two integers
    return n


def _density_error(n: int, constant: Number, log_term: Decimal, order: Number, obs_dim: int) -> Decimal:
    a = exact(order) / (2 * exact(order) + obs_dim)
    y = max(log(exact(n)) + log_term, exact(0))
    return exact(constant) * (-a * log(exact(n))).exp() * y.sqrt()


def log_events(factor: int, F: int, B: int, delta: float) -> float:
    """L = log(factor F B / delta), the union bound over members and simulators (theory.md 2.3), without overflow."""
    return math.log(factor) + math.log(F) + math.log(B) - math.log(delta)


def printed_threshold(phi: float, n: int, F: int, B: int, delta: float) -> float:
    """2 phi^2 + 8 phi + (22 / n) log(2 F B / delta): Algorithm 5, line 5, as printed; too large (theory.md F2)."""
    return 2 * phi**2 + 8 * phi + 22 / n * log_events(2, F, B, delta)


def erratum_threshold(phi: float, n: int, F: int, B: int, delta: float) -> float:
    """2 phi^2 + 8 phi^2 + (22 / n) log(2 F B / delta): the least repair of Algorithm 5 (theory.md 2.3, minimal fix)."""
    return 10 * phi**2 + 22 / n * log_events(2, F, B, delta)


def sharp_threshold(b_bar: float, n: int, L: float, reward_width: float = 1.0) -> float:
    r"""The least safe threshold of TD-Eliminate (theory.md 2.3, sharp).

        tau = (b_bar + reward_width sqrt(L / (2 n)))^2

    Args:
        b_bar: bound on the bias of f*'s residual, or its root mean square for the pooled rule (theory.md 2.6).
        n: samples per simulator, or over all simulators for the pooled rule.
        L: log(4 F B / delta), or log(F / delta) for the pooled rule.
        reward_width: width of the range of one step's reward.

    Returns:
        The threshold on the excess risk.

    >>> sharp_threshold(1.5, 2, 1.0)
    4.0
    """
    return (b_bar + reward_width * math.sqrt(L / (2 * n))) ** 2
