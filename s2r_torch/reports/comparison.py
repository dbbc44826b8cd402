"""Whole runs side by side: one row per run, one line per entry (a network, a rule, ...), one figure."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from s2r_torch.files.whole import replacing, write_bytes, write_text
from s2r_torch.predictors.registry import NETS
from s2r_torch.reports.page import comparison_page
from s2r_torch.reports.style import new_figure, plain_look, png
from s2r_torch.reports.summary import Summary
from s2r_torch.runs.folder import write_json

REACHED, MISSED = "#1b6ca8", "#c8553d"

ROWS = ("comparison.png", "report.html", "rows.json", "rows.csv")  # the files of a comparison, beside folders of runs


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison: a row of `rows.csv`."""

    entry: str
    seed: int
    regret: float  # 1 - deployed / optimal, in the same held-out worlds
    deployed: float
    optimal: float
    optimal_kind: str
    lipschitz_bound: float | None
    certified: bool
    parameters: int  # learned numbers per member
    members: int
    survivors: int
    cpu_seconds: float

    @staticmethod
    def of(entry: str, seed: int, summary: Summary) -> ComparedRun:
        """What a comparison tells of a run."""
        worth, ensemble = summary.value.worth, summary.ensemble
        return ComparedRun(
            entry,
            seed,
            1 - summary.value.share,
            worth.value,
            worth.optimal,
            worth.optimal_kind,
            ensemble.lipschitz_bound,
            ensemble.certified,
            ensemble.parameters,
            ensemble.size,
            ensemble.survivors,
            summary.cpu_seconds,
        )


def by_entry(rows: list[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Rows grouped by entry, in order of their mean regret."""
    groups: dict[str, list[ComparedRun]] = {}
    for row in rows:
        groups.setdefault(row.entry, []).append(row)
    return dict(sorted(groups.items(), key=lambda item: _mean(item[1], "regret")))


def comparison_table(rows: list[ComparedRun], title: str, wanted: float) -> Table:
    """One line per entry, best first; who misses the wanted regret says why, as its network's `limits` knows."""
    view = Table(title=title, title_justify="left")
    for name in ("entry", "regret, mean (worst)", "C_L", "parameters", "survivors", "CPU s", f"regret <= {wanted:g}"):
        view.add_column(name, justify="left" if name in ("entry", f"regret <= {wanted:g}") else "right")
    for entry, group in by_entry(rows).items():
        bounds = [row.lipschitz_bound for row in group if row.certified and row.lipschitz_bound is not None]
        view.add_row(
            entry,
            f"{_mean(group, 'regret'):.4f} ({max(row.regret for row in group):.4f})",
            f"{max(bounds):.3g}" if len(bounds) == len(group) else "NOT certified",
            f"{_mean(group, 'parameters'):,.0f}",
            f"{_mean(group, 'survivors'):.0f} of {_mean(group, 'members'):.0f}",
            f"{_mean(group, 'cpu_seconds'):.0f}",
            verdict(entry, _mean(group, "regret"), wanted),
        )
    return view


def verdict(entry: str, regret: float, wanted: float) -> str:
    """`yes`, or `no` and the reason that the network of that name gives."""
    if regret <= wanted:
        return "yes"
    limits = getattr(NETS.get(entry), "limits", "")
    return f"no: {limits}" if limits else "no"


def write_comparison(rows: list[ComparedRun], title: str, wanted: float, folder: Path) -> None:
    """rows.csv and rows.json with one row per finished run, comparison.png, and report.html with all of it."""
    with plain_look():
        picture = png(comparison_figure(rows, title, wanted))
    write_bytes(folder / "comparison.png", picture)
    plain = [asdict(row) for row in rows]
    write_text(folder / "report.html", comparison_page(title, plain, picture))
    write_json(folder / "rows.json", plain)
    with replacing(folder / "rows.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(plain[0]))
        writer.writeheader()
        writer.writerows(plain)


def comparison_figure(rows: list[ComparedRun], title: str, wanted: float) -> Figure:
    """The regret of every run, the one wanted, and what an entry's runs cost."""
    figure = new_figure(10, 1.6 + 0.42 * len(by_entry(rows)))
    regrets, costs = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    groups = by_entry(rows)
    names = []
    for y, (entry, group) in enumerate(groups.items()):
        colour = REACHED if _mean(group, "regret") <= wanted else MISSED
        numbers = [max(row.regret, 1e-4) for row in group]  # a logarithmic axis shows no 0
        regrets.plot(numbers, [y] * len(numbers), "o", color=colour, alpha=0.7, markersize=6, markeredgewidth=0)
        costs.barh(y, _mean(group, "cpu_seconds"), height=0.55, color="#b0b0b0")
        names.append(entry if all(row.certified for row in group) else f"{entry}\n(not certified)")
    regrets.axvline(wanted, color="#555555", lw=1, ls=":")
    regrets.set_xscale("log")
    regrets.set_xlabel("regret, share of the optimal value; one point per seed")
    regrets.set_title(f"{title}; dotted: the most that is wanted", loc="left", fontsize=10)
    costs.set_xlabel("CPU seconds per run")
    regrets.set_yticks(range(len(groups)), names)
    regrets.invert_yaxis()
    for axes in (regrets, costs):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _mean(rows: list[ComparedRun], field: str) -> float:
    return sum(getattr(row, field) for row in rows) / len(rows)
