"""run.png: values beside their baselines, survivors, and training."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {
    "random": "#b0b0b0",
    "open_loop": "#8c9fb5",
    "blind": "#8c9fb5",
    "deployed": "#1b6ca8",
    "optimal": "#3a3a3a",
}
LABELS = {
    "random": "random actions",
    "open_loop": "best fixed action list",
    "blind": "density-blind ensemble",
    "deployed": "deployed, no reward seen",
    "optimal": "optimal, over the prior",
}


def run_figure(summary: dict, rows: list[tuple[str, int, float]], path: Path) -> None:
    """run.png: what the deployed policy is worth beside its baselines; survivors; training."""
    canvas = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(canvas)
    values, survivors, training = canvas.subplots(1, 3, width_ratios=(1.5, 1, 1))
    _draw_values(values, summary)
    _draw_survivors(survivors, summary)
    _draw_training(training, rows)
    for axes in (values, survivors, training):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=150)


def _draw_values(axes, summary: dict) -> None:
    value = summary["value"]
    names = list(LABELS)
    numbers = [value["optimal_population" if name == "optimal" else name] for name in names]
    axes.barh(range(len(names)), numbers, color=[COLOURS[name] for name in names], height=0.62)
    low, high = value["deployed"] - value["deployed_low"], value["deployed_high"] - value["deployed"]
    axes.errorbar(value["deployed"], names.index("deployed"), xerr=[[low], [high]], color="black", capsize=3, lw=1)
    for i, number in enumerate(numbers):
        axes.text(max(numbers) * 1.2, i, f"{number:.3f}", va="center", ha="right", fontsize=9)
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names])
    axes.set_xlim(0, max(numbers) * 1.22)
    axes.set_xlabel("expected total reward per episode")
    mark = "" if summary["ensemble"]["certified"] else " (class NOT certified)"
    axes.set_title(f"{summary['experiment']}: value{mark}", loc="left", fontsize=10)


def _draw_survivors(axes, summary: dict) -> None:
    counts = [summary["ensemble"]["size"]] + [call["survivors"] for call in summary["elimination"]["calls"]]
    axes.step(range(len(counts)), counts, where="post", color=COLOURS["deployed"])
    axes.set_ylim(0, max(counts) * 1.08)
    axes.set_xlabel("calls of TD-Eliminate")
    axes.set_title(f"survivors, rule {summary['rule']}", loc="left", fontsize=10)


def _draw_training(axes, rows: list[tuple[str, int, float]]) -> None:
    series: dict[str, list[tuple[int, float]]] = {}
    for name, step, number in rows:
        if name.startswith("bellman_risk/"):
            series.setdefault(name.removeprefix("bellman_risk/"), []).append((step, number))
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), lw=1, label=name)
    axes.set_xlabel("steps, last layer first")
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set_ylim(bottom=0)
    axes.set_title("Bellman risk in training", loc="left", fontsize=10)
    if series:
        axes.legend(frameon=False, fontsize=8)
