"""Misspecification in the open: who survives the calibrated rule at which slack, and what the worst survivor loses.

A class on the grid family with members of every quality (`lookup`, `mlp` and, blind to densities, `blind`) is judged
by fresh simulators with n samples a state. Regrets are exact. The claim: at n from 500 to 20 000 the survivors never
empty, never keep a member whose regret is above 0.1, and their number falls as n grows. Finished seeds are kept in the
folder. Exit code 1 if the claim fails for the rule's own slack.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.files import tensors as tensor_files
from s2r_torch.learning.calibration import (
    BellmanTable,
    CalibrationSettings,
    bellman_table,
    measured_b_bar,
    replay,
    stand_in,
)
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.progress import Silent
from s2r_torch.rng import Seed
from s2r_torch.runs import stages
from s2r_torch.runs.evaluation import member_regrets
from s2r_torch.runs.run import Stages
from s2r_torch.runs.settings import PredictorSettings, RunSettings

GRID = [0.0, *torch.logspace(-5, -1, 25, dtype=torch.float64).tolist()]  # slacks of the curve
WORST, WORLDS = 0.1, 100
DELTA = 0.1


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="classes, each trained on draws of its own")
    parser.add_argument("--draws", type=int, default=2, help="sets of judges per class")
    parser.add_argument("--samples", default="500,2000,6000,20000", help="n per state and judge")
    parser.add_argument("--members", type=int, default=6, help="per network")
    parser.add_argument("--steps", type=int, default=300, help="of training, per layer")
    parser.add_argument("--simulators", type=int, default=32, help="judges, and calibration simulators")
    parser.add_argument("--folder", type=Path, default=Path("runs/slack"))


def main(options: argparse.Namespace) -> int:
    console = Console(width=120)
    samples = [int(n) for n in options.samples.split(",")]
    results = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("classes", total=options.seeds)
        for seed in range(options.seeds):
            results.append(measured(seed, samples, options))
            progress.advance(task)
    failed = report(console, results, samples, options.draws)
    draw_curve(results, samples, options.draws, options.folder / "slack.png")
    console.print(f"written to {options.folder}", soft_wrap=True)
    return int(failed)


def measured(seed: int, samples: list[int], options: argparse.Namespace) -> dict[str, Tensor]:
    """Regrets, and risks of calibration simulators and judges, of one class; read if they were measured before."""
    sizes = {name: value for name, value in vars(options).items() if name not in ("folder", "seeds")}
    path = options.folder / f"seed{seed}.safetensors"
    if path.exists():
        header, tensors = tensor_files.read(path)
        if header["sizes"] == sizes:
            return tensors
    tensors = measure(seed, samples, options)
    tensor_files.write(path, tensors, {"sizes": sizes})
    return tensors


def measure(seed: int, samples: list[int], options: argparse.Namespace) -> dict[str, Tensor]:
    predictors = PredictorSettings()
    training = replace(predictors.training, members=options.members, steps=options.steps)
    nets = {"lookup": {}, "mlp": {}, "blind": {}}
    settings = RunSettings(seed=seed, nets=nets, predictors=replace(predictors, training=training))
    family, root = make_family("grid"), Seed.root(seed)
    run = Stages(settings, family, options.folder / f"seed{seed}", Silent())  # an unfinished class goes on
    explored = run.do(stages.explore)
    ensemble = run.do(stages.train, explored).ensemble
    draws, graph = Draws(family, root, Ledger()), explored.exploration.graph

    def drawn(purpose: str, count: int) -> tuple[Guard, Tensor]:
        simulators, n_dist = draws.simulators(purpose, count), settings.budget.n_dist
        stream = root.child(purpose, "density")
        return simulators, estimate_densities(simulators, graph, explored.estimator, n_dist, stream)

    def table(purpose: str, n: int) -> BellmanTable:
        return bellman_table(*drawn(purpose, options.simulators), ensemble, n, root.child(purpose, n))

    _, D = drawn("worlds", WORLDS)
    regret = member_regrets(ensemble, D, family.truth(draws.theta("worlds", WORLDS)))
    judged = {f"judge/{k}/{n}": table(f"judge{k}", n).risks for k in range(options.draws) for n in samples}
    measured = table("calibrate", settings.predictors.calibration.n)
    calibration = {"calibrate": measured.risks, "f0": torch.tensor(stand_in(measured)[0])}
    return {"regret": regret, "layer": graph.layer, **calibration, **judged}


def half_slack(risks: Tensor, splits: int = 64) -> Tensor:
    """The excess of pooled risk, [xi], on one half of the simulators, of the member that is best on the other half.

    The 0.9 quantile over random halves: what noise in pooled risks alone can cost the best member.
    """
    generator, (_, B, xi) = torch.Generator().manual_seed(0), risks.shape
    excess = []
    for _ in range(splits):
        order = torch.randperm(B, generator=generator)
        best = risks[:, order[: B // 2]].mean(1).argmin(0)
        other = risks[:, order[B // 2 :]].mean(1)  # [F, xi]
        excess.append(other[best, torch.arange(xi)] - other.amin(0))
    return torch.quantile(torch.stack(excess), 0.9, dim=0)


def own_slack(found: dict[str, Tensor]) -> Tensor:
    """The rule's own, [xi]."""
    return measured_b_bar(found["calibrate"], int(found["f0"]), CalibrationSettings().quantile) ** 2


SLACKS = {  # what the rule could allow for, from risks [F, B, xi] of calibration simulators
    "none": lambda found: torch.zeros(found["calibrate"].shape[2], dtype=torch.float64),
    "halves": lambda found: half_slack(found["calibrate"]),
    "quantile": own_slack,
}


def alive(found: dict[str, Tensor], n: int, draw: int, slacks: Tensor) -> Tensor:
    """Survivors [K, F] among one set of judges at slacks [K, xi]."""
    return replay(found[f"judge/{draw}/{n}"], found["layer"], n, slacks.sqrt(), DELTA)


def report(console: Console, results: list[dict[str, Tensor]], samples: list[int], draws: int) -> bool:
    """One line per slack and n; whether the claim fails for the rule's own slack."""
    regrets = torch.cat([found["regret"] for found in results])
    bad = float((regrets > WORST).double().mean())
    table = Table(
        *("slack", "n", "survivors", "emptied", "worst regret", "least regret", "claim"),
        title=f"{len(results)} classes of {len(results[0]['regret'])} members, of which {bad:.0%} lose more than "
        f"{WORST}; {draws} sets of judges each",
    )
    failed = False
    for name, slack_of in SLACKS.items():
        before = float("inf")
        for n in samples:
            kept = survivors(results, n, draws, slack_of)
            counts, mean = [len(k) for k in kept], sum(map(len, kept)) / len(kept)
            worst = max((float(k.max()) for k in kept if len(k)), default=float("nan"))
            least = max((float(k.min()) for k in kept if len(k)), default=float("nan"))
            holds = min(counts) >= 1 and worst <= WORST and mean <= before
            failed |= name == "quantile" and not holds
            before = mean
            table.add_row(
                name,
                f"{n:,}",
                f"{mean:.1f} ({min(counts)} .. {max(counts)})",
                str(counts.count(0)),
                f"{worst:.4f}",
                f"{least:.4f}",
                "holds" if holds else "FAILS",
            )
    console.print(table)
    return failed


def survivors(results: list[dict[str, Tensor]], n: int, draws: int, slack_of: Callable) -> list[Tensor]:
    """Regrets of the survivors, for every class and every set of judges."""
    return [
        found["regret"][alive(found, n, draw, slack_of(found)[None])[0]] for found in results for draw in range(draws)
    ]


def draw_curve(results: list[dict[str, Tensor]], samples: list[int], draws: int, path: Path) -> None:
    """slack.png: survivors and the worst survivor's regret against one slack for all states."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    count_axes, regret_axes = figure.subplots(1, 2)
    own = torch.cat([own_slack(found) for found in results])
    for i, n in enumerate(samples):
        colour = f"C{i}"
        kept = torch.stack(
            [
                alive(found, n, draw, torch.tensor(GRID)[:, None].expand(-1, len(found["layer"])))
                for found in results
                for draw in range(draws)
            ]
        )  # [runs, K, F]
        regret = torch.stack([found["regret"] for found in results for _ in range(draws)])[:, None]
        worst = torch.where(kept, regret, -torch.inf).amax(-1)  # [runs, K]
        label = f"n = {n:,}"
        count_axes.plot(GRID[1:], kept.sum(-1).double().mean(0)[1:], color=colour, label=label)
        regret_axes.plot(GRID[1:], worst.amax(0)[1:], color=colour, label=label)
    for axes in (count_axes, regret_axes):
        axes.axvspan(max(float(own.min()), GRID[1]), float(own.max()), color="#cccccc", lw=0, zorder=0)
        axes.set_xscale("log")
        axes.set_xlabel("slack: squared bias that the rule allows, all states alike")
        axes.spines[["top", "right"]].set_visible(False)
    regret_axes.axhline(WORST, color="#c8553d", lw=1, ls=":")
    regret_axes.set_yscale("log")
    count_axes.set_title("survivors on average (grey: what calibration allowed)", loc="left", fontsize=10)
    regret_axes.set_title("regret of the worst survivor (dotted: most allowed)", loc="left", fontsize=10)
    count_axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
