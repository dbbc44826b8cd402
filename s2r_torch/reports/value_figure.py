"""value.png: what real-world episodes are worth, although none shows a reward."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

OURS = "#1b6ca8"


def value_figure(summary: dict, path: Path) -> None:
    """value.png: what deployed policies are worth against the number of real-world episodes that were looked at."""
    value, certificate = summary["value"], summary["certificate"]
    curve = value["looking"]
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    levels = {
        "best possible": (curve["optimal"], "#2a9d55", "-"),
        "density-blind": (value["blind"], "#b07a3f", "--"),
        "best fixed action list": (value["open_loop"], "#8a8a8a", "--"),
    }
    for name, (level, colour, style) in levels.items():
        axes.axhline(level, color=colour, linestyle=style, lw=1.5, label=f"{name}, {level:.3f}")
    axes.fill_between(curve["episodes"], curve["low"], curve["high"], color=OURS, alpha=0.2, lw=0)
    axes.plot(curve["episodes"], curve["value"], "o-", color=OURS, lw=2, label=f"ours, up to {curve['value'][-1]:.3f}")
    if certificate:
        sure = f"ours, certified: {certificate['value_lower']:.3f} ({1 - certificate['delta']:.0%} sure)"
        axes.plot(summary["episodes"]["real_per_world"], certificate["value_lower"], "v", color="black", label=sure)
    axes.set_xscale("log")
    axes.set_xticks(curve["episodes"], [f"{episodes:,}" for episodes in curve["episodes"]])
    axes.minorticks_off()
    axes.set_xlabel("real-world episodes, none with a reward")
    axes.set_ylabel("expected total reward per episode")
    axes.set_title(f"{summary['experiment']}: what looking is worth", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
