"""Whole runs side by side: one row per run, one line per entry (a network, a rule, ...), one figure."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from s2r_torch.files.whole import replacing, write_bytes, write_text
from s2r_torch.predictors.registry import NETS
from s2r_torch.reports.page import comparison_page
from s2r_torch.reports.style import new_figure, png
from s2r_torch.reports.summary import Summary
from s2r_torch.runs.folder import write_json

REACHED, MISSED = "#1b6ca8", "#c8553d"


def row_of(entry: str, seed: int, summary: Summary) -> dict:
    """One run as a flat row of JSON values.

    `regret` is 1 - deployed / optimal, in the same held-out worlds; `parameters` are learned numbers per member.
    """
    worth, ensemble = summary.value.worth, summary.ensemble
    return {
        "entry": entry,
        "seed": seed,
        "regret": 1 - summary.value.share,
        "deployed": worth.value,
        "optimal": worth.optimal,
        "optimal_kind": worth.optimal_kind,
        "lipschitz_bound": ensemble.lipschitz_bound,
        "certified": ensemble.certified,
        "parameters": ensemble.parameters,
        "members": ensemble.size,
        "survivors": ensemble.survivors,
        "cpu_seconds": summary.cpu_seconds,
    }


def by_entry(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows grouped by entry, in order of their mean regret."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["entry"], []).append(row)
    return dict(sorted(groups.items(), key=lambda item: _mean(item[1], "regret")))


def comparison_table(rows: list[dict], title: str, wanted: float) -> Table:
    """One line per entry, best first; who misses the wanted regret says why, as its network's `limits` knows."""
    view = Table(title=title, title_justify="left")
    for name in ("entry", "regret, mean (worst)", "C_L", "parameters", "survivors", "CPU s", f"regret <= {wanted:g}"):
        view.add_column(name, justify="left" if name in ("entry", f"regret <= {wanted:g}") else "right")
    for entry, group in by_entry(rows).items():
        bounds = [row["lipschitz_bound"] for row in group]
        view.add_row(
            entry,
            f"{_mean(group, 'regret'):.4f} ({max(row['regret'] for row in group):.4f})",
            f"{max(bounds):.3g}" if all(row["certified"] for row in group) else "NOT certified",
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


def write_comparison(rows: list[dict], title: str, wanted: float, folder: Path) -> None:
    """rows.csv and rows.json with one row per finished run, comparison.png, and report.html with all of it."""
    picture = png(comparison_figure(rows, title, wanted))
    write_bytes(folder / "comparison.png", picture)
    write_text(folder / "report.html", comparison_page(title, rows, picture))
    write_json(folder / "rows.json", rows)
    with replacing(folder / "rows.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def comparison_figure(rows: list[dict], title: str, wanted: float) -> Figure:
    """The regret of every run, the one wanted, and what an entry's runs cost."""
    figure = new_figure(10, 1.6 + 0.42 * len(by_entry(rows)))
    regrets, costs = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    groups = by_entry(rows)
    names = []
    for y, (entry, group) in enumerate(groups.items()):
        colour = REACHED if _mean(group, "regret") <= wanted else MISSED
        numbers = [max(row["regret"], 1e-4) for row in group]  # a logarithmic axis shows no 0
        regrets.plot(numbers, [y] * len(numbers), "o", color=colour, alpha=0.7, markersize=6, markeredgewidth=0)
        costs.barh(y, _mean(group, "cpu_seconds"), height=0.55, color="#b0b0b0")
        names.append(entry if all(row["certified"] for row in group) else f"{entry}\n(not certified)")
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


def _mean(rows: list[dict], key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)
