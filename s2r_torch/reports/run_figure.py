"""run.png: values beside their comparators, survivors, and training."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from s2r_torch.progress import Row
from s2r_torch.reports.style import new_figure
from s2r_torch.reports.summary import OPTIMAL, OURS, Summary, label_of

THERE = "optimal there"  # in the worlds that the deployed value is of
COLOURS = {OURS: "#1b6ca8", OPTIMAL: "#3a3a3a", THERE: "#3a3a3a", "random": "#b0b0b0"}
OTHER = "#8c9fb5"


def run_figure(summary: Summary, rows: list[Row]) -> Figure:
    """What the deployed policy is worth beside its comparators; survivors; training."""
    figure = new_figure(11, 3.4)
    values, survivors, training = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    draw_values(values, summary)
    draw_survivors(survivors, summary)
    draw_training(training, rows)
    for axes in (values, survivors, training):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_values(axes: Axes, summary: Summary) -> None:
    """One bar per policy, the worst below; the deployed one with its interval."""
    worth, policies = summary.value.worth, summary.value.policies
    others = sorted((name for name in policies if name != OPTIMAL), key=policies.__getitem__)
    prior = {name: policies[name] for name in [*others, OPTIMAL]}
    numbers = prior | {OURS: worth.value, THERE: worth.optimal}  # values of the same worlds stand beside each other
    names = list(numbers)
    colours = [COLOURS.get(name, OTHER) for name in names]
    axes.barh(range(len(names)), list(numbers.values()), color=colours, height=0.62)
    low, high = worth.value - worth.low, worth.high - worth.value
    axes.errorbar(worth.value, names.index(OURS), xerr=[[low], [high]], color="black", capsize=3, lw=1)
    most = max(numbers.values())
    for i, number in enumerate(numbers.values()):
        axes.text(most * 1.2, i, f"{number:.3f}", va="center", ha="right", fontsize=9)
    there = f"in {worth.num_worlds} worlds"
    labels = {OURS: f"{label_of(OURS)}, {there}", THERE: f"{label_of(OPTIMAL)}, {there}"}
    labels |= {OPTIMAL: f"{label_of(OPTIMAL)}, over the prior"}
    axes.set_yticks(range(len(names)), [labels.get(name) or label_of(name) for name in names])
    axes.set_xlim(0, most * 1.22)
    axes.set_xlabel("expected total reward per episode")
    mark = "" if summary.ensemble.certified else " (class NOT certified)"
    axes.set_title(f"{summary.experiment}: value{mark}", loc="left", fontsize=10)


def draw_survivors(axes: Axes, summary: Summary) -> None:
    """How many members are left after every call of TD-Eliminate."""
    counts = [summary.ensemble.size] + [call.survivors for call in summary.elimination.calls]
    axes.step(range(len(counts)), counts, where="post", color=COLOURS[OURS])
    axes.set_ylim(0, max(counts) * 1.08)
    axes.set_xlabel("calls of TD-Eliminate")
    axes.set_title(f"survivors, rule {summary.rule}", loc="left", fontsize=10)


def draw_training(axes: Axes, rows: list[Row]) -> None:
    """Bellman risk of every fit."""
    series: dict[str, list[tuple[int, float]]] = {}
    for name, step, number in rows:
        if name.startswith("bellman_risk/"):
            series.setdefault(name.removeprefix("bellman_risk/"), []).append((step, number))
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), lw=1, label=name)
    axes.set_xlabel("steps: rewards, then values,\nlast layer first")
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set_ylim(bottom=0)
    axes.set_title("Bellman risk in training", loc="left", fontsize=10)
    if series:
        axes.legend(frameon=False, fontsize=8)
