"""The figure of `plan.py`: real-world episodes against the wanted suboptimality."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from s2r_torch.planner.curves import Curves, real_world_curves
from s2r_torch.planner.orders import WITH_REWARD, crossings, leading_orders
from s2r_torch.planner.plan import Setting
from s2r_torch.reports.plan_tables import NAMES, headline, number

COLORS = {
    "paper": "#3b6fb6",
    "paper_cover": "#8db4e0",
    "loops_cover": "#e08a1e",
    "sweep_cover": "#1b8a5a",
    "real_as_stated": "#8db4e0",
    "real": "#3b6fb6",
    "real_sweep": "#1b8a5a",
    "krishnamurthy2016": "#a0459b",
    "jiang2017": "#e3a09c",
    "jiang2017_layered": "#c8413b",
}
OUTLINE = [withStroke(linewidth=3, foreground="white")]
LABEL: dict[str, Any] = {
    "textcoords": "offset points",
    "fontsize": 8.5,
    "ha": "right",
    "va": "top",
    "path_effects": OUTLINE,
}


def draw(setting: Setting, curves: Curves) -> Figure:
    """Real-world episodes against epsilon: exact budgets on the left, orders on the right, never mixed."""
    figure = Figure(figsize=(12.5, 5.6), layout="constrained")
    figure.suptitle(headline(setting), fontsize=10, color="#555555")
    exact, orders = figure.subplots(1, 2, sharex=True)
    draw_panel(exact, setting, curves.epsilons, curves.exact, "Exact budgets, constants included")
    exact.set_ylabel("real-world episodes")
    draw_panel(orders, setting, curves.epsilons, curves.orders, "Orders of growth, without constants")
    orders.set_ylabel("leading term of real-world episodes, not a count")
    mark_epsilon(exact, setting)
    mark_crossings(orders, setting, curves)
    return figure


def draw_panel(axes: Axes, setting: Setting, epsilons: tuple[float, ...], curves: dict, title: str) -> None:
    for name, values in curves.items():
        points = [(x, float(y)) for x, y in zip(epsilons, values, strict=True) if y is not None]
        if points:
            style = "--" if name in WITH_REWARD else "-"
            axes.plot(*zip(*points, strict=True), style, color=COLORS[name], linewidth=2, label=NAMES[name])
    axes.axvline(setting.epsilon, color="#777777", linewidth=1.2, linestyle=":", zorder=1)
    axes.set(xscale="log", yscale="log", xlabel=r"wanted suboptimality $\epsilon$")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(which="major", color="#ebebeb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")


def mark_epsilon(axes: Axes, setting: Setting) -> None:
    """The exact numbers at the setting's own epsilon."""
    here = real_world_curves(setting, [setting.epsilon])
    for name, (episodes,) in here.exact.items():
        if episodes is not None:
            axes.plot(setting.epsilon, float(episodes), "o", color=COLORS[name], markersize=5)
            place: dict[str, Any] = (
                {"xytext": (6, 4), "ha": "left", "va": "bottom"} if name == "paper" else {"xytext": (-6, -4)}
            )
            axes.annotate(number(episodes), (setting.epsilon, float(episodes)), color=COLORS[name], **(LABEL | place))


def mark_crossings(axes: Axes, setting: Setting, curves: Curves) -> None:
    low, high = curves.epsilons[0], curves.epsilons[-1]
    for crossing in crossings(setting):
        pair = (crossing.cheaper_below, crossing.cheaper_above)
        if low <= crossing.epsilon <= high and set(pair) <= curves.orders.keys():
            height = getattr(leading_orders(replace(setting, epsilon=crossing.epsilon)), pair[0])
            axes.plot(crossing.epsilon, height, "o", markerfacecolor="white", markeredgecolor="black", zorder=5)
            axes.annotate(rf"$\epsilon$ = {crossing.epsilon:.2g}", (crossing.epsilon, height), (-6, -4), **LABEL)
