r"""How fine a grid must be, for densities to tell one theta from another.

Bandwidths are no narrower than the node spacing. On a spacing of four times the scale of a state's readings all that is
left of a density is the kernel: the width of the noise, which is what often says what pays, moves D by less than its
noise does, and nothing is learned (`cliffwalking` on 24 nodes: 0.60 of the optimum). A density of one reading says
where it lies as exactly as nodes are apart, which is what few readings tell by (docs/density.md). On a line nodes cost
next to nothing, and where noise is three times as wide for one theta as for another, what is fine for the median is
coarse for the narrowest.
"""

from __future__ import annotations

import math

FINE, FINE_ON_A_LINE = 1.25, 0.5  # node spacings, at most, in scales of a state's readings; of one coordinate
LEAST, ON_A_LINE = 24, 97  # nodes per coordinate, where memory allows; of the one coordinate, where there is one
MOST_POINTS, MOST_ON_A_LINE = 2**14, 2**9  # of a whole grid


def nodes_for(
    nodes: int | str, low: tuple[float, ...], high: tuple[float, ...], scale: tuple[float, ...] | None = None
) -> tuple[int, ...]:
    """Nodes per coordinate: those given, or for `auto` as many as the scale of a state's readings asks for.

    >>> nodes_for(9, (0.0, 0.0), (6.0, 3.0)), nodes_for("auto", (0.0, 0.0), (6.0, 3.0), (0.05, 0.05))
    ((9, 9), (97, 49))
    >>> nodes_for("auto", (0.0,) * 3, (1.0,) * 3), nodes_for("auto", (0.0,) * 2, (1.0,) * 2, (1e-9, 1e-9))
    ((24, 24, 24), (128, 128))
    >>> nodes_for("auto", (0.0,), (6.0,), (1.0,)), nodes_for("auto", (0.0,), (6.0,), (0.05,))
    ((97,), (241,))

    Args:
        nodes: a number for every coordinate, or `auto`.
        low: lower edge of the box of readings, per coordinate.
        high: its upper edge.
        scale: standard deviation of a state's readings, per coordinate; None before there is a pilot, for the fewest.
    """
    d = len(low)
    if isinstance(nodes, int):
        return (nodes,) * d
    least = ON_A_LINE if d == 1 else min(LEAST, math.floor(MOST_POINTS ** (1 / d) + 1e-9))
    if scale is None:
        return (least,) * d
    spacing, most = (FINE_ON_A_LINE, MOST_ON_A_LINE) if d == 1 else (FINE, MOST_POINTS)
    while True:
        counts = tuple(max(least, _count(hi - lo, spacing * s)) for lo, hi, s in zip(low, high, scale, strict=True))
        if math.prod(counts) <= most:
            return counts
        spacing *= 1.05


def _count(width: float, spacing: float) -> int:
    return math.ceil(width / spacing) + 1
