"""comparators.png: value against real episodes, where reality shows no reward (left) and where it does (right)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from s2r_torch.reports.comparators_table import Line
from s2r_torch.reports.style import new_figure

OURS = {"ours": ("#1b6ca8", "o"), "bayes": ("#111111", ".")}  # in both panels: colour and marker
COLOURS = (
    "#c8553d", "#2a9d55", "#7a5195", "#a0703c", "#17a2b8", "#d4a017", "#e377c2", "#5c6670", "#8db600", "#3f51b5",
    "#6d2e46",
)  # fmt: skip
MARKERS = "sD^vP<>XhpH"
LEVELS = {"open_loop": ("#8a8a8a", "--", 3), "random": ("#8a8a8a", ":", -11)}  # line, and where its text is
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
EDGE = 1.0015  # where the stretched axis would become infinite


def comparators_figure(lines: Sequence[Line], title: str) -> Figure:
    """Two panels with the same axes; ours in both."""
    figure = new_figure(13.0, 6.4)
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    drawn = [line for line in lines if line.name not in LEVELS]
    unseen = [line for line in drawn if line.access.reward == "no"]
    seen = [line for line in drawn if line.access.reward != "no"]
    ours = [line for line in drawn if line.name in OURS]
    looks = dict(zip((line.name for line in drawn if line.name not in OURS), _looks(), strict=False)) | OURS
    most = max((point.episodes for line in drawn for point in line.points), default=1.0)
    for axes, chosen, name in zip(
        panels, (unseen, [*ours, *seen]), ("reality shows no reward", "reality shows rewards"), strict=True
    ):
        _panel(axes, chosen, looks, name, "-" if axes is panels[0] else ":")
        for line in lines:
            if line.name in LEVELS:
                _level(axes, line, most)
    _scales(panels[0], most)
    panels[0].set_ylabel("mean value / mean V*  (axis stretched towards 1)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _looks() -> Iterator[tuple[str, str]]:
    """Colours and markers, again from the first one after the last."""
    return itertools.cycle(zip(COLOURS, MARKERS, strict=True))


def _panel(axes: Axes, lines: Sequence[Line], looks: dict[str, tuple[str, str]], name: str, ours: str) -> None:
    """One panel; `ours` is the style of those lines that both panels have."""
    for line in lines:
        _draw(axes, line, *looks[line.name], ours if line.name in OURS else "-", 3.0 if line.name == "ours" else 1.5)
    axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("all real episodes before it acts, per world")
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2)


def _draw(axes: Axes, line: Line, colour: str, marker: str, style: str, width: float) -> None:
    """A curve with its 95 % intervals; a point is hollow where the learner's own test failed in most worlds."""
    x = [_place(point.episodes) for point in line.points]
    y, half = ([getattr(point, name) for point in line.points] for name in ("share", "half"))
    low, high = ([min(1.0, max(0.0, a + sign * b)) for a, b in zip(y, half, strict=True)] for sign in (-1, 1))
    above = 3 if line.name == "ours" else 2
    axes.vlines(x, low, high, color=colour, alpha=0.3, lw=width)
    axes.plot(x, y, style, marker=marker, color=colour, lw=width, markersize=6, label=line.label, zorder=above)
    for a, b, point in zip(x, y, line.points, strict=True):
        if point.accepted < 0.5:
            axes.plot(a, b, marker, color=colour, markerfacecolor="white", markersize=6, zorder=above)


def _level(axes: Axes, line: Line, most: float) -> None:
    colour, style, height = LEVELS[line.name]
    share = line.points[0].share
    axes.axhline(share, color=colour, linestyle=style, lw=1.2)
    axes.annotate(
        f"{line.label}, {share:.3f}",
        (most, share),
        (0, height),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=colour,
    )


def _scales(axes: Axes, most: float) -> None:
    """A log axis of episodes with 0 as a tick of its own; shares stretched towards 1."""
    axes.set_xscale("log")
    ticks = [n for n in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000) if n <= 1.5 * most]
    axes.set_xticks([_place(0), *ticks], ["0", *(f"{n:,}" for n in ticks)])
    axes.minorticks_off()
    axes.set_xlim(_place(0) * 0.8, 1.6 * max(most, 10))
    axes.set_yscale("function", functions=(_stretch, lambda y: EDGE - 10 ** (-y)))
    axes.set_yticks(SHARES, [f"{share:g}" for share in SHARES])
    axes.set_ylim(0.45, 1.0003)


def _place(episodes: float) -> float:
    """Where a number of episodes lies on the axis: 0 has a place of its own."""
    return episodes if episodes > 0 else 0.4


def _stretch(share):
    return -np.log10(np.clip(EDGE - share, 1e-6, None))
