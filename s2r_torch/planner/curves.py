"""Real-world episodes against epsilon: exact budgets and orders, kept apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from s2r_torch.errors import SettingError
from s2r_torch.planner.orders import leading_orders
from s2r_torch.planner.plan import Setting
from s2r_torch.planner.schedules import loops, paper, sweep

EXACT = ("paper", "paper_cover", "loops_cover", "sweep_cover")
ORDERS = ("real_as_stated", "real", "real_sweep", "krishnamurthy2016", "jiang2017", "jiang2017_layered")


@dataclass(frozen=True)
class Curves:
    """Real-world episodes of every method at every epsilon.

    Args:
        epsilons: `[E]` increasing.
        exact: name -> `[E]` episodes without reward that a theorem's budget counts, constants included; None outside
            the theorem's range. `paper` is n_dist H S A; `_cover` follows a path cover.
        orders: name -> `[E]` leading terms without constants (see `Orders`); comparable with each other only.
    """

    epsilons: tuple[float, ...]
    exact: dict[str, tuple[int | None, ...]]
    orders: dict[str, tuple[float, ...]]


def real_world_curves(setting: Setting, epsilons: Sequence[float]) -> Curves:
    """The curves of a setting whose epsilon varies and all else is kept.

    Args:
        setting: the problem; its own epsilon is not used.
        epsilons: `[E]` increasing, > 0.

    Returns:
        `Curves`.

    Raises:
        SettingError: epsilons that do not increase.
    """
    if not epsilons or any(low >= high for low, high in zip(epsilons, epsilons[1:], strict=False)):
        raise SettingError(expected="increasing epsilons", got=str(list(epsilons)), cause="an empty or reversed range")
    settings = [replace(setting, epsilon=epsilon) for epsilon in epsilons]
    exact = [_exact(each) for each in settings]
    orders = [leading_orders(each) for each in settings]
    return Curves(
        epsilons=tuple(epsilons),
        exact={name: tuple(row[name] for row in exact) for name in EXACT},
        orders={name: tuple(getattr(row, name) for row in orders) for name in ORDERS},
    )


def log_range(low: float, high: float, count: int) -> list[float]:
    """`count` numbers from low to high, evenly spaced on a logarithmic scale.

    >>> log_range(0.01, 1.0, 3)
    [0.01, 0.1, 1.0]
    """
    if not (0 < low < high and math.isfinite(high) and count >= 2):
        raise SettingError(
            expected="0 < low < high and count >= 2", got=f"{low}, {high}, {count}", cause="an empty epsilon range"
        )
    points = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return [low, *(round(point, 12 - math.floor(math.log10(point))) for point in points[1:-1]), high]


def exact_crossings(curves: Curves) -> list[tuple[str, str, float]]:
    """Where two exact curves change order: their names, the one cheaper for smaller epsilon first, and epsilon."""
    found = []
    for i, first in enumerate(EXACT):
        for second in EXACT[i + 1 :]:
            points = [
                (math.log(epsilon), math.log(a) - math.log(b))
                for epsilon, a, b in zip(curves.epsilons, curves.exact[first], curves.exact[second], strict=True)
                if a and b and a != b
            ]
            for (x, gap), (x_next, gap_next) in zip(points, points[1:], strict=False):
                if gap * gap_next < 0:
                    names = (first, second) if gap < 0 else (second, first)
                    found.append((*names, math.exp(x + (x_next - x) * gap / (gap - gap_next))))
    return found


def _exact(setting: Setting) -> dict[str, int | None]:
    printed, loop, swept = (plan(setting, check_range=False) for plan in (paper, loops, sweep))
    return {
        "paper": printed.episodes.real_paths if printed.in_range else None,
        "paper_cover": printed.episodes.real_cover if printed.in_range else None,
        "loops_cover": loop.episodes.real_cover if loop.in_range else None,
        "sweep_cover": swept.episodes.real_cover if swept.in_range else None,
    }
