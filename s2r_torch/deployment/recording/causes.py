"""Why readings lie off a sensor's range: the mistakes that people make with axes, units, angles and bytes.

>>> x = np.array([[500.0], [1500.0], [2500.0]])
>>> off_range(x, 0, (0.0,), (4.0,), ("row",))
'other units: readings 1000 times as large'
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

UNITS = (1 / 0.3048, 10.0, 12.0, 1 / 0.0254, 180 / math.pi, 100.0, 1000.0, 1e6)  # metric, feet, inches, degrees
TURNS = ((2 * math.pi, "2 pi"), (360.0, "360"))
MOST = 0.98  # of the readings that a cause must explain
SPREAD = 0.2  # of the range: anything fits once it is divided by enough
OTHER_UNITS = 0.2  # of the readings that are off, where all are in other units
CLEARLY = 10  # readings before a change is worth a line of its own


def off_range(x: np.ndarray, j: int, low: Sequence[float], high: Sequence[float], names: Sequence[str]) -> str:
    """The likely cause, in words.

    Args:
        x: `[n, d]` readings in the order in which they were taken, NaN where there is none.
        j: the sensor that is off its range.
        low: lower edges of the ranges, per sensor.
        high: upper edges.
        names: of the sensors.
    """
    x = x[np.isfinite(x).all(1)].astype(np.float64)
    with np.errstate(all="ignore"):
        return _cause(x, j, low, high, names)


def _cause(x: np.ndarray, j: int, low: Sequence[float], high: Sequence[float], names: Sequence[str]) -> str:
    off = (x[:, j] < low[j]) | (x[:, j] > high[j])
    if not off.any():
        return "a broken or stuck sensor"
    values, spot = x[off, j], _changed(off)
    for k, name in enumerate(names):
        if k != j and _fits(values, low[k], high[k]) and _fits(x[off, k], low[j], high[j]):
            return f"{spot}the columns {names[j]!r} and {name!r} under each other's names (axes swapped)"
    for turn, words in TURNS:
        if _fits(values - turn, low[j], high[j]) or _fits(values + turn, low[j], high[j]):
            return f"{spot}angles that are wrapped elsewhere: {words} too much or too little"
    many = bool(spot) or off.mean() > OTHER_UNITS
    for words, scaled in (("large", lambda factor: values / factor), ("small", lambda factor: values * factor)):
        factors = [f"{factor:.4g}" for factor in UNITS if _fits(scaled(factor), low[j], high[j], SPREAD)]
        if factors and many:
            return f"{spot}other units: readings {' or '.join(factors[:2])} times as {words}"
    if float(np.median(values)) > high[j] and (values == np.round(values)).all():
        return f"{spot}raw counts of a converter, before they become units"
    if _fits(values.byteswap(), low[j], high[j]):
        return "numbers written in another byte order"
    if spot:
        return f"{spot}other units, another zero, or another sensor"
    return "other units, a sensor that is off its range, or columns under each other's names"


def _fits(x: np.ndarray, low: float, high: float, spread: float = 0.0) -> bool:
    """Whether values lie in a range, and are spread over more than a share of it."""
    x = x[np.isfinite(x)]
    inside = x[(x >= low) & (x <= high)]
    return len(inside) >= max(1, MOST * len(x)) and float(np.ptp(inside)) > spread * (high - low)


def _changed(off: np.ndarray) -> str:
    """Words for a change in the middle: readings were in range, and from some place on most are not."""
    first = int(off.argmax())
    if first >= CLEARLY and off[first:].mean() > 0.5 and off[first:].sum() >= CLEARLY:
        return "a change half-way: "
    return ""
