"""learning.png: how every member learned, who survived, and how the chosen one's policy changes with the densities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, dense
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.problem import Problem
from s2r_torch.progress import Row
from s2r_torch.reports.style import new_figure, some_steps
from s2r_torch.reports.summary import Summary

CANDIDATES = 32  # simulators among which two unlike ones are looked for
SEEN = 0.02  # share of a layer's highest density below which no reading is to be expected
ACTIONS = ("#2166ac", "#b2182b", "#1b7837", "#e08214", "#762a83", "#8c510a")  # colours of actions
FITTED = {"rewards_layer": "rewards", "values_layer": "values"}  # series of where fits end -> what was fitted
NARROW = 0.015  # share of the axis below which a fit has no room for its name
HALO = [withStroke(linewidth=2, foreground="white")]


@dataclass(frozen=True, eq=False)
class Surfaces:
    """What the chosen member makes of two simulators."""

    problem: Problem
    simulators: tuple[int, ...]  # [2] their places among the judges
    theta: Tensor  # [2, k]
    D: Tensor  # [2, xi, G]
    q: Tensor  # [2, H, G, A] f(D, node, a)

    def seen(self, row: int, step: int) -> Tensor:
        """The highest density of the step's states [G], as a share of its maximum."""
        D = self.D[row, self.problem.graph.states_of(step)].amax(0)
        return (D / D.amax().clamp(min=1e-12)).clamp(min=0)


def surfaces(meta_policy: MetaPolicy, D_hat: Densities, theta: Tensor) -> Surfaces:
    """The chosen member on the whole grid, in the two simulators in which its policies differ most.

    Args:
        meta_policy: whose chosen member is looked at.
        D_hat: `[B, xi, G]` densities of the judges.
        theta: `[B, k]` their parameters; for titles alone.
    """
    problem, count = meta_policy.problem, min(len(D_hat), CANDIDATES)
    alone = meta_policy.ensemble.subset([meta_policy.chosen])
    nodes = problem.spec.widened(problem.grid.nodes).expand(count, -1, -1)
    values = alone.evaluator(D_hat[:count])
    q = torch.stack([values.q_of(0, step, nodes) for step in range(problem.graph.horizon)], 1)  # [B, H, G, A]
    seen = torch.stack([dense(D_hat[:count, problem.graph.states_of(h)]).amax(1) for h in range(q.shape[1])], 1)
    preference = ((q - q.mean(-1, keepdim=True)) * (seen > SEEN * seen.amax())[..., None]).flatten(1)
    distance = torch.cdist(preference, preference)
    pair = tuple(sorted(divmod(int(distance.argmax()), count)))
    return Surfaces(problem, pair, theta[list(pair)], dense(D_hat[list(pair)]), q[list(pair)])


def learning_figure(summary: Summary, rows: list[Row], shown: Surfaces) -> Figure:
    """Draws learning curves, survivors, and the chosen member's values in two simulators.

    Args:
        summary: of a run.
        rows: its curves.
        shown: two simulators.
    """
    steps = some_steps(shown.problem.graph.horizon)
    figure = new_figure(min(max(10.0, 2.3 * len(steps)), 20.0), 9.4)
    top, *below = figure.subfigures(3, 1, squeeze=False, height_ratios=(1.15, 1, 1))[:, 0]
    curves, survivors = top.subplots(1, 2, width_ratios=(2, 1))
    draw_curves(curves, rows)
    draw_survivors(survivors, summary)
    mark = "" if summary.ensemble.certified else ", NOT certified"
    title = f"{summary.experiment}, seed {summary.seed}: {summary.ensemble.size} members ({summary.net}){mark}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    for row, part in enumerate(below):
        numbers = ", ".join(f"{value:.2f}" for value in shown.theta[row].tolist())
        which = "The chosen member" if row == 0 else "The same member"
        part.suptitle(
            f"{which} in simulator {shown.simulators[row]}, whose hidden theta is ({numbers}). {_legend(shown)}",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        for step, axes in zip(steps, part.subplots(1, len(steps), squeeze=False)[0], strict=True):
            draw_values(axes, shown, row, step)
            axes.set_title(f"step {step}", fontsize=8, color="#555555")
    return figure


@dataclass(frozen=True)
class LayerFit:
    """The fit of one layer's networks, by the steps of its net."""

    kind: str  # "rewards" or "values"
    layer: int
    start: int
    end: int  # its last step


def layer_fits(rows: list[Row]) -> dict[str, list[LayerFit]]:
    """Every net's fits in the order in which they were done."""
    ends: dict[str, list[tuple[int, str, int]]] = {}
    for name, step, value in rows:
        kind, _, label = name.partition("/")
        if kind in FITTED:
            ends.setdefault(label, []).append((step, FITTED[kind], int(value)))
    fits: dict[str, list[LayerFit]] = {}
    for label, several in ends.items():
        starts = [0, *(end for end, *_ in sorted(several))]
        fits[label] = [LayerFit(kind, h, a, end) for a, (end, kind, h) in zip(starts, sorted(several), strict=False)]
    return fits


def draw_curves(axes: Axes, rows: list[Row]) -> None:
    """Held-out Bellman risk of every member over all steps that were done, one line per layer's fit; nets in turn.

    A risk is against what a fit is for, rewards or values of the next step, so only curves of one fit compare.
    """
    fits = layer_fits(rows)
    offsets, total = {}, 0
    for label, several in fits.items():
        offsets[label] = total
        total += several[-1].end
    for name, points in _risks(rows).items():
        label, member = name.rsplit("/", 1)
        for number, fit in enumerate(fits[label]):
            part = [(step + offsets[label], value) for step, value in points if fit.start < step <= fit.end]
            if part:
                named = label if member == "0" and number == 0 else None
                colour = f"C{[*fits].index(label) % 10}"
                axes.plot(*zip(*part, strict=True), lw=0.9, alpha=0.6, color=colour, label=named)
    axes.set_yscale("log")
    for label, several in fits.items():
        _mark_fits(axes, several, offsets[label], total)
    axes.set_xlim(0, max(total, 1))
    axes.set_xlabel("gradient steps; numbers: the step of an episode whose networks are fitted", fontsize=9)
    axes.set_title("Bellman risk of every member on simulators that no batch uses", loc="left", fontsize=10, pad=24)
    axes.spines[["top", "right"]].set_visible(False)
    if fits:
        axes.legend(frameon=False, fontsize=8)


def _risks(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """LABEL/MEMBER -> its held-out risks, step by step."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in rows:
        kind, _, rest = name.partition("/")
        if kind == "held_out_risk":
            found.setdefault(rest, []).append((step, value))
    return found


def _mark_fits(axes: Axes, fits: list[LayerFit], offset: int, total: int) -> None:
    """Where the fits of a net end, whose they are, and above them what is fitted; what is too narrow stays unnamed."""
    rounds: list[list[LayerFit]] = []
    for fit in fits:
        if not rounds or rounds[-1][-1].kind != fit.kind or rounds[-1][-1].layer <= fit.layer:
            rounds.append([])  # layers of a round descend
        rounds[-1].append(fit)
        axes.axvline(offset + fit.end, color="#dddddd", lw=0.8, zorder=0)
        if fit.end - fit.start > NARROW * total:
            _above(axes, offset + (fit.start + fit.end) / 2, 1.0, str(fit.layer))
    for several in rounds:
        start, end = several[0].start, several[-1].end
        axes.axvline(offset + end, color="#999999", lw=1.0, zorder=0)
        if end - start > 3 * NARROW * total:
            _above(axes, offset + (start + end) / 2, 1.06, several[0].kind)


def _above(axes: Axes, x: float, height: float, text: str) -> None:
    """Writes above the axes, whose own height is 1."""
    at = axes.get_xaxis_transform()
    axes.text(x, height, text, transform=at, ha="center", va="bottom", fontsize=7, color="#555555")


def draw_survivors(axes: Axes, summary: Summary) -> None:
    """How many members are left after every call of TD-Eliminate, and at which state it was called."""
    calls, size = summary.elimination.calls, summary.ensemble.size
    counts = [size, *(call.survivors for call in calls)]
    axes.step(range(len(counts)), counts, where="post", color=ACTIONS[0])
    axes.plot(range(len(counts)), counts, "o", color=ACTIONS[0], markersize=4)
    for k in {0, len(counts) - 1}:
        axes.annotate(
            str(counts[k]), (k, counts[k]), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=9
        )
    shown = range(0, len(counts), max(1, math.ceil(len(counts) / 10)))
    axes.set_xticks(list(shown), ["all" if k == 0 else f"{calls[k - 1].state}" for k in shown])
    axes.set_ylim(0, size * 1.15)
    axes.set_xlabel("calls of TD-Eliminate, by their state", fontsize=9)
    axes.set_title(f"Survivors, rule {summary.rule}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def draw_values(axes: Axes, shown: Surfaces, row: int, step: int) -> None:
    """f(D, x, .) of one step: lines on a line, else a map of the greedy action where readings are to be expected."""
    problem = shown.problem
    axes.tick_params(labelsize=7)
    axes.set_xlabel(problem.spec.obs_names[0], fontsize=8)
    draw = _draw_lines if problem.grid.obs_dim == 1 else _draw_map
    draw(axes, shown, row, step)


def _draw_lines(axes: Axes, shown: Surfaces, row: int, step: int) -> None:
    x, seen = shown.problem.grid.axes[0].numpy(), shown.seen(row, step)
    low, high = float(shown.q[:, step].min()), float(shown.q[:, step].max())
    pad = 0.08 * max(high - low, 1e-3)
    for a, q in enumerate(shown.q[row, step].T):
        axes.plot(x, torch.where(seen > SEEN, q, torch.nan).numpy(), lw=1.6, color=ACTIONS[a % len(ACTIONS)])
    axes.fill_between(x, low - pad, low - pad + 0.3 * (high - low) * seen.numpy(), color="#dddddd", lw=0, zorder=0)
    axes.set_ylim(low - pad, high + pad)
    axes.set_ylabel("value", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_map(axes: Axes, shown: Surfaces, row: int, step: int) -> None:
    """Colour: the greedy action; strength: its lead over the next one, where a reading is to be expected."""
    grid = shown.problem.grid
    best = shown.q.topk(2, -1).values
    lead = best[..., 0] - best[..., 1]  # [2, H, G]
    expected = torch.stack([shown.seen(r, h) > SEEN for r in range(2) for h in range(lead.shape[1])]).view_as(lead)
    top = float(lead[expected].max().clamp(min=1e-6))
    strength = _plane((lead[row, step] / top).clamp(max=1) * expected[row, step], grid)
    action = _plane(shown.q[row, step].argmax(-1), grid)
    colours = torch.tensor([_rgb(ACTIONS[a % len(ACTIONS)]) for a in range(shown.q.shape[-1])])
    image = 1 - strength[..., None] * (1 - colours[action])  # [n_1, n_2, 3]
    xs, ys = grid.axes[0].numpy(), grid.axes[1].numpy()
    axes.pcolormesh(xs, ys, image.transpose(0, 1).numpy(), shading="nearest")
    for state in shown.problem.graph.states_of(step):
        D = _plane(shown.D[row, state], grid)
        axes.contour(xs, ys, D.T.numpy(), levels=[0.2 * float(D.max())], colors="#555555", linewidths=0.7)
        i, j = divmod(int(D.argmax()), len(ys))
        axes.text(xs[i], ys[j], str(state), fontsize=8, ha="center", va="center", path_effects=HALO)
    axes.set_aspect("equal")
    axes.set_ylabel(shown.problem.spec.obs_names[1], fontsize=8)


def _plane(values: Tensor, grid: DensityGrid) -> Tensor:
    """Values [G] on the first two coordinates, the others in the middle of the box: [n_1, n_2]."""
    values = values.view(grid.shape)
    for size in grid.shape[2:]:
        values = values[:, :, size // 2]
    return values


def _rgb(colour: str) -> list[float]:
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]


def _legend(shown: Surfaces) -> str:
    names = ("blue", "red", "green", "orange", "purple", "brown")
    count = min(shown.problem.spec.num_actions, len(names))
    actions = ", ".join(f"{a} {names[a]}" for a in range(count))
    if shown.problem.grid.obs_dim == 1:
        return f"Value of every action (action {actions});\ngrey: where readings are."
    return (
        f"Colour: the best action (action {actions});\n"
        "stronger: it leads by more; white: no matter, or no readings. Outlined: where readings of a state are."
    )
