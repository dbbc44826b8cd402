"""exploration.png: what a state is, which paths were merged into it, and how clear that was."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, dense
from s2r_torch.graph import Path, StateGraph, told
from s2r_torch.learning.exploration import Exploration
from s2r_torch.reports.style import new_figure, some_steps

NEW, MERGED = "#c8553d", "#1b6ca8"  # arrows and points of paths to new states, and of merged ones
MOST_LABELS = 40  # arrows that are all labelled; beyond, only those to new states
LEFT_OUT = "#bbbbbb"
HALO = [withStroke(linewidth=2, foreground="white")]


def exploration_figure(exploration: Exploration, grid: DensityGrid, obs_names: tuple[str, ...]) -> Figure:
    """Draws the state graph, the densities of two simulators, and the distances that decided merges.

    Args:
        exploration: what Algorithm 2 found.
        grid: where its densities live; of more than two coordinates the first two are shown.
        obs_names: what the coordinates are called.
    """
    graph = exploration.graph
    tall = max(1.6, 0.29 * max(graph.states_per_layer) + 0.5)
    shown = unlike_simulators(exploration.D_hat)
    D_hat = dense(exploration.D_hat[shown])
    steps, width = some_steps(graph.horizon), min(max(8.5, 2.1 * graph.horizon), 18.0)
    figure = new_figure(width, 2.3 + tall + 1.9 * len(shown) + 1.9)
    heights = (tall + 0.7, *(1.9 for _ in shown), 1.9)
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    draw_graph(parts[0].subplots(), exploration)
    top = float(D_hat.max())
    for part, b, D in zip(parts[1:-1], shown, D_hat, strict=True):
        part.suptitle(_density_title(b, grid), x=0.01, ha="left", fontsize=10)
        for step, axes in zip(steps, part.subplots(1, len(steps), squeeze=False)[0], strict=True):
            states = graph.states_of(step)
            draw_densities(axes, D[states], states, grid, obs_names, top, exploration.band)
            axes.set_title(f"step {step}", fontsize=8, color="#555555")
    parts[-1].suptitle(_why_merged(exploration), x=0.01, ha="left", fontsize=10)
    draw_distances(parts[-1].subplots(), exploration)
    return figure


def unlike_simulators(D_hat: Densities) -> list[int]:
    """The first simulator, and the one whose densities [B, xi, G] differ from its most."""
    first = dense(D_hat[:1])
    other = int(torch.cat([(dense(part) - first).abs().mean((1, 2)) for part in D_hat.split(1)]).argmax())
    return [0] if other == 0 else [0, other]


def draw_graph(axes: Axes, exploration: Exploration) -> None:
    """States in columns by step; one arrow per pair of states, labelled with the actions that lead along it."""
    graph, looked_at = exploration.whole, exploration.graph
    number = {graph.end(path): i for i, path in enumerate(looked_at.paths)}
    place = positions(graph)
    first = {visit.path for visit in exploration.visits if not visit.merged}
    arrows: dict[tuple[int, int], list[int]] = {}
    for s, following in enumerate(graph.next_state.tolist()):
        for a, t in enumerate(following):
            if t >= 0:
                arrows.setdefault((s, t), []).append(a)
    for (s, t), actions in arrows.items():
        new = any((*graph.paths[s], a) in first for a in actions)
        (x, y), (x_end, y_end) = place[s], place[t]
        style = {"arrowstyle": "-|>", "color": NEW if new else MERGED, "lw": 1.3 if new else 0.8}
        style |= {"shrinkA": 8, "shrinkB": 8, "linestyle": "-" if new else (0, (3, 2)), "alpha": 1 if new else 0.7}
        if not {s, t} <= number.keys():
            style |= {"alpha": 0.15}
        axes.annotate("", (x_end, y_end), (x, y), arrowprops=style, zorder=2 if new else 1)
        if {s, t} <= number.keys() and (new or len(arrows) <= MOST_LABELS):
            at = 0.34 if len(arrows) <= MOST_LABELS else 0.45
            label = ",".join(map(str, actions))
            point = (x + at * (x_end - x), y + at * (y_end - y))
            axes.text(*point, label, fontsize=7, ha="center", va="center", path_effects=HALO, zorder=4)
    for s, (x, y) in enumerate(place):
        if s in number:
            circle = {"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": "#333333"}
            axes.text(x, y, str(number[s]), ha="center", va="center", fontsize=8, bbox=circle, zorder=3)
        else:
            axes.plot(x, y, "o", ms=6, color=LEFT_OUT, zorder=3)
    half = max(max(abs(y) for _, y in place), 0.5) + 0.6
    axes.set(xlim=(-0.5, graph.horizon - 0.5), ylim=(-half, half), yticks=[])
    steps = some_steps(graph.horizon)
    axes.set_xticks(steps, [f"step {h}" for h in steps])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    merged = sum(visit.merged for visit in exploration.visits)
    pruned = f"Grey: {graph.num_states - len(number)} that no good list passes; they are not looked at. "
    met = f"Dashed blue: one of {merged} paths that end in a state already found; the two were merged."
    axes.set_title(
        f"{len(exploration.visits)} paths of actions were tried and lead to {graph.num_states} states. "
        f"Red arrow, its actions on it: a path that found a state.\n"
        + (pruned if looked_at.pruned else "")
        + (met if merged else "No two of them end in the same state."),
        loc="left",
        fontsize=10,
    )


def positions(graph: StateGraph) -> list[tuple[float, float]]:
    """A place (step, height) for each state; within a layer, near the states that lead there."""
    height: dict[int, float] = {}
    for step in range(graph.horizon):
        states = graph.states_of(step)

        def wanted(state: int) -> tuple[float, int]:
            before = [height[s] for s in height if state in graph.next_state[s].tolist()]
            return (-sum(before) / len(before) if before else 0.0, state)

        for rank, state in enumerate(sorted(states, key=wanted)):
            height[state] = (len(states) - 1) / 2 - rank
    return [(float(graph.layer[s]), height[s]) for s in range(graph.num_states)]


def draw_densities(
    axes: Axes, D: Tensor, states: list[int], grid: DensityGrid, names: tuple[str, ...], top: float, band: float
) -> None:
    """D [states, G] of one layer: lines with bands on a line, else a heat map of their pointwise maximum."""
    axes.tick_params(labelsize=7)
    axes.set_xlabel(names[0], fontsize=8)
    if grid.obs_dim == 1:
        x = grid.axes[0].numpy()
        for i, state in enumerate(states):
            colour, y = f"C{i % 10}", D[i].numpy()
            axes.plot(x, y, lw=1.2, color=colour)
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.2, lw=0)
            apart = D[i] - D[[j for j in range(len(states)) if j != i]].amax(0) if len(states) > 1 else D[i]
            peak = int(apart.argmax())  # where the state stands out
            axes.text(x[peak], y[peak], f"{state}", fontsize=9, weight="bold", color=colour, path_effects=HALO)
        axes.set_ylim(min(0.0, -band), 1.12 * top)
        axes.set_ylabel("density", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        return
    flat = D.reshape(len(states), *grid.shape)
    flat = flat.flatten(3).amax(-1) if grid.obs_dim > 2 else flat
    xs, ys = grid.axes[0].numpy(), grid.axes[1].numpy()
    axes.pcolormesh(xs, ys, flat.amax(0).T.numpy(), cmap="Blues", vmin=0, vmax=top, shading="nearest")
    for i, state in enumerate(states):
        row, column = divmod(int(flat[i].argmax()), len(ys))
        label = axes.text(xs[row], ys[column], str(state), fontsize=8, weight="bold", color=NEW, path_effects=HALO)
        label.set(ha="center", va="center")
    axes.set_aspect("equal")
    axes.set_ylabel(names[1], fontsize=8)


def draw_distances(axes: Axes, exploration: Exploration) -> None:
    """Distances to the nearest earlier state of the layer in units of noise, with the threshold between."""
    visits = [visit for visit in exploration.visits if math.isfinite(visit.distance)]
    rows = ((1, MERGED, "merged: same state", True), (0, NEW, "kept apart: new state", False))
    for row, colour, _, merged in rows:
        chosen = [v for v in visits if v.merged is merged]
        spread = torch.linspace(-0.28, 0.28, len(chosen)).tolist() if len(chosen) > 1 else [0.0]
        points = [(v.distance / v.noise, row + y) for v, y in zip(chosen, spread, strict=False)]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=5, alpha=0.7, markeredgewidth=0)
        else:
            axes.text(0.02, row, "none", transform=axes.get_yaxis_transform(), fontsize=8, color="#777777", va="center")
    thresholds = [v.threshold / v.noise for v in visits]
    if thresholds:
        low, high = min(thresholds), max(thresholds)
        axes.axvspan(low, high, color="#cccccc", lw=0, zorder=0)  # a declared zeta is not a multiple of each noise
        for edge in {low, high}:
            axes.axvline(edge, color="black", lw=1.5, zorder=0)
        label = "threshold" if high < 1.01 * low else "thresholds"
        axes.text(high * 1.03, 1.47, label, fontsize=8, va="top")
    axes.axvline(1, color="#999999", lw=1, ls=":", zorder=0)
    axes.text(0.97, 1.47, "noise", fontsize=8, va="top", ha="right", color="#777777")
    axes.set_xscale("log")
    reach = [v.distance / v.noise for v in visits]
    axes.set_xlim(0.7 * min([0.4, *reach]), 1.4 * max([3.0, *reach]))
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_yticks([row for row, *_ in rows], [label for *_, label, _ in rows])
    axes.set_ylim(-0.5, 1.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("distance to the nearest state of the step, in units of noise", fontsize=9)


def _why_merged(exploration: Exploration) -> str:
    """The rule in words, and the first merge as an example."""
    rule = "Why merged: two samples of one state differ by less than the noise, 95 % of the time. Each point is a path."
    for visit in exploration.visits:
        if visit.merged:
            found_by = exploration.whole.paths[visit.state]
            return (
                f"{rule}\nFor example, actions {_words(visit.path)} end where {_words(found_by)} did before: "
                f"the densities there differ by {visit.distance / visit.noise:.2f} of the noise."
            )
    return f"{rule}\nHere no two paths met."


def _words(path: Path) -> str:
    return told(path).strip("(),")


def _density_title(b: int, grid: DensityGrid) -> str:
    line = "with 95 % bands, numbered where it stands out"
    what = line if grid.obs_dim == 1 else "darker is more likely; a state's number stands at its peak"
    return f"Simulator {b}: how its readings are spread in each state, {what}"
