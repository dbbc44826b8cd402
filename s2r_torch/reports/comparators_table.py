"""Comparators side by side: who sees what, how many real episodes that takes, and what they are worth."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from rich.console import Group
from rich.table import Table

from s2r_torch.comparators.contract import COMPARATORS, Access
from s2r_torch.files.whole import replacing
from s2r_torch.runs.curves import Measured
from s2r_torch.runs.folder import write_json
from s2r_torch.student import half_width

LINES = ("curves.json", "curves.csv", "comparators.png")  # the files of a comparison, beside folders of runs
REACHED = (0.95, 0.99)  # shares of the optimum whose cost the table gives
SPENT = (30, 75, 300, 1000)  # real episodes whose worth it gives
HEADINGS = {
    "reward": "real reward",
    "looks": "real looks",
    "simulators": "simulators",
    "theta": "theta labels",
    "chosen": "sim. at chosen theta",
    "graph": "graph",
    "predictors": "class",
    "memory": "memory",
}


@dataclass(frozen=True)
class Point:
    """One comparator at one size, over the worlds of all seeds."""

    episodes: float  # real ones before it acts, per world
    share: float  # mean value / mean optimal value over the same worlds
    half: float  # half of its 95 % interval, from the paired gap to the optimum
    accepted: float  # share of worlds in which the learner's own test passed
    worlds: int


@dataclass(frozen=True)
class Line:
    """One comparator: its points in order of episodes."""

    name: str
    points: tuple[Point, ...]
    simulator: int  # most simulator episodes beyond our own method's, per world
    cpu_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return COMPARATORS[self.name].label

    @property
    def access(self) -> Access:
        return COMPARATORS[self.name].access

    def episodes_for(self, share: float) -> float | None:
        """Real episodes after which that share of the optimum is first reached, between points on a log axis."""
        before: Point | None = None
        for point in self.points:
            if point.share >= share:
                if before is None or min(before.episodes, point.episodes) <= 0:
                    return point.episodes
                part = (share - before.share) / (point.share - before.share)
                return before.episodes * (point.episodes / before.episodes) ** part
            before = point
        return None

    def share_after(self, episodes: float) -> float | None:
        """The share after so many real episodes, between points on a log axis; None outside of them."""
        if len(self.points) == 1 and self.points[0].episodes == 0:
            return self.points[0].share
        for a, b in zip(self.points, self.points[1:], strict=False):
            if 0 < a.episodes <= episodes <= b.episodes:
                part = math.log(episodes / a.episodes) / math.log(b.episodes / a.episodes)
                return a.share + part * (b.share - a.share)
        return None


def lines_of(measured: Measured) -> list[Line]:
    """One line per comparator, seeds pooled, in the order of the plan."""
    groups: dict[str, dict] = {}
    for cell in measured.cells:
        groups.setdefault(cell.name, {}).setdefault(cell.n, []).append(cell)
    return [
        Line(
            name,
            tuple(sorted((_point(cells) for cells in sizes.values()), key=lambda point: point.episodes)),
            max(cell.simulator // len(cell.values) for cells in sizes.values() for cell in cells),
            measured.seconds[name],
            tuple(dict.fromkeys(cell.note for cells in sizes.values() for cell in cells if cell.note)),
        )
        for name, sizes in groups.items()
    ]


def _point(cells: list) -> Point:
    values, optimal = (torch.cat([getattr(cell, name) for cell in cells]) for name in ("values", "optimal"))
    best, count = float(optimal.mean()), len(values)
    half = half_width(optimal - values) if count > 1 else math.nan
    return Point(
        sum(cell.episodes for cell in cells) / len(cells),
        float(values.mean()) / best,
        half / best,
        sum(cell.accepted for cell in cells) / len(cells),
        count,
    )


def comparators_table(lines: Sequence[Line], title: str, left_out: dict[str, str]) -> Group:
    """What every comparator is worth, and below it what each saw: no number is fair without."""
    return Group(_worth_table(lines, title, left_out), "", _access_table(lines))


def _access_table(lines: Sequence[Line]) -> Table:
    view = Table(title="who sees what", title_justify="left", padding=(0, 1))
    view.add_column("method")
    for heading in HEADINGS.values():
        view.add_column(heading)
    for line in lines:
        view.add_row(line.label, *(getattr(line.access, name) for name in HEADINGS))
    return view


def _worth_table(lines: Sequence[Line], title: str, left_out: dict[str, str]) -> Table:
    view = Table(title=f"{title}: mean value / mean V*", title_justify="left", padding=(0, 1))
    view.add_column("method")
    for share in REACHED:
        view.add_column(f"real episodes\nto {share:g}", justify="right")
    for episodes in SPENT:
        view.add_column(f"at {episodes:,}", justify="right")
    view.add_column("most (at)", justify="right")
    view.add_column("CPU s", justify="right")
    for line in lines:
        view.add_row(line.label, *_numbers(line))
    notes = [f"{line.label}: {'; '.join(line.notes)}" for line in lines if any(line.notes) and len(line.points) > 1]
    notes += [f"{COMPARATORS[name].label} is left out: {why}" for name, why in left_out.items()]
    view.caption, view.caption_justify = "\n".join(notes) or None, "left"
    return view


def _numbers(line: Line) -> list[str]:
    needed = []
    for share in REACHED:
        found = line.episodes_for(share)
        most = line.points[-1].episodes
        needed.append(f"{found:,.0f}" if found is not None else ("never" if most == 0 else f"> {most:,.0f}"))
    shares = [line.share_after(episodes) for episodes in SPENT]
    best = max(line.points, key=lambda point: point.share)
    worth = f"{best.share:.4f} ±{best.half:.3f} ({best.episodes:,.0f})"
    return [*needed, *("-" if s is None else f"{s:.3f}" for s in shares), worth, f"{line.cpu_seconds:.0f}"]


def write_lines(lines: Sequence[Line], folder: Path) -> None:
    """curves.json and curves.csv: every point, with what its method saw."""
    rows = [
        {"method": line.name, **asdict(line.access), "cpu_seconds": line.cpu_seconds, **asdict(point)}
        for line in lines
        for point in line.points
    ]
    write_json(folder / "curves.json", rows)
    names = ["method", *(f.name for f in fields(Access)), "cpu_seconds", *(f.name for f in fields(Point))]
    with replacing(folder / "curves.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def where_we_lose(lines: Sequence[Line]) -> list[str]:
    """In sentences, who needs fewer real episodes than ours for the same share of the optimum."""
    by_name = {line.name: line for line in lines}
    if "ours" not in by_name:
        return []
    found = []
    for share in REACHED:
        mine = by_name["ours"].episodes_for(share)
        others = {line.label: line.episodes_for(share) for line in lines if line.name not in ("ours", "bayes")}
        fewer = {label: n for label, n in others.items() if n is not None and (mine is None or n < mine)}
        if fewer:
            needs = "never reached" if mine is None else f"{mine:,.0f} episodes"
            named = ", ".join(f"{label} ({n:,.0f})" for label, n in sorted(fewer.items(), key=lambda item: item[1]))
            found.append(f"ours loses at {share:g} of V* ({needs}) to {named}")
    return found
