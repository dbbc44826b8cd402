"""Everything fast, in one report: beside peers and hardware, how time grows with every size, how long commands start.

    python scripts/bench.py speed                 # five minutes; peers: pip install -e '.[bench]'
    python scripts/bench.py speed --parts growth

Times are CPU seconds of one thread, candidates in turn; read the ratios. Exponents of growth are slopes of log time
over log size. A slope of 1 or less is what sums over simulators, samples and members cost; where more is asked for by
the mathematics (episodes to H layers have H steps), the table says so. Exit code 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import bench_density
import bench_deploy
import bench_ensemble
import torch
from bench_density import Gate
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.episodes import Guard, Ledger, Transitions
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.learning.exploration import explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import fit
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed
from s2r_torch.tours import readings

ROOT = Path(__file__).resolve().parents[1]
MOST = 1.05  # slope of what a sum costs
DEMO = ("scripts/deploy.py", "checkpoint=checkpoints/grid.safetensors", "world=grid", "world.seed=7")
STARTS = {  # what is started -> (command, CPU seconds at most)
    "import torch": (("-c", "import torch"), math.inf),
    "deploy.py, the README's world": (DEMO, 1.5),
    "check.py --help": (("scripts/check.py", "--help"), 1.5),
    "run.py --help": (("scripts/run.py", "--help"), 3.0),
}
Work = Callable[[], object]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--repeats", type=int, default=5, help="times that everything is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; below 1 to try the script")


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 130)
    gates = [gate for part in options.parts for gate in PARTS[part](console, options)]
    return bench_density.verdict(console, gates)


# -- beside others ---------------------------------------------------------------------------------------------------


def densities(console: Console, options: argparse.Namespace) -> list[Gate]:
    """Kernel density estimates beside scipy, scikit-learn and KDEpy."""
    sizes = argparse.Namespace(samples=int(100_000 * options.scale), repeats=options.repeats)
    return [*bench_density.line(console, sizes), *bench_density.plane(console, sizes)]


def classes(console: Console, options: argparse.Namespace) -> list[Gate]:
    """Members of a class side by side, beside a loop over them, vmap, and the core's peak; gates: bench.py ensemble."""
    names = ("loop", "vmap", "folded")
    table = Table("F", "n", *names, "share of GEMM peak", title="million predictions a second")
    for members, n in ((64, 256), (64, 4096), (256, 4096)):
        case = bench_ensemble.Case(max(2, int(members * options.scale)), 32, n)
        rates, peak, _ = bench_ensemble.measure(case, options.repeats)
        share = rates["folded"] * bench_ensemble.flops(case) / peak
        row = (f"{rates[name] / 1e6:.1f}" for name in names)
        table.add_row(str(case.members), str(n), *row, f"{share:.0%}")
    console.print(table)
    return []


def decisions(console: Console, options: argparse.Namespace) -> list[Gate]:
    """What `policy.act` costs beside a bare network with argmax."""
    meta = bench_deploy.untrained()
    graph, grid, generator = meta.problem.graph, meta.problem.grid, torch.Generator().manual_seed(0)
    policy = meta.condition(bench_deploy.any_densities(meta.problem, generator))
    ways, seconds = {"bare network, argmax": bench_deploy.bare(policy), "policy.act": policy.act}, 0.2 * options.scale
    table, times = Table("CPU microseconds", *(f"batch {n}" for n in bench_deploy.BATCHES)), {}
    with torch.inference_mode():
        for how, act in ways.items():
            for n in bench_deploy.BATCHES:
                x = bench_deploy.around(grid, n, generator, 0.0).float()
                times[how, n] = bench_deploy.microseconds(act, graph.horizon, x, seconds)
            table.add_row(how, *(f"{times[how, n]:,.0f}" for n in bench_deploy.BATCHES))
    console.print(table)
    bare, ours = ({n: times[how, n] for n in bench_deploy.BATCHES} for how in ways)
    return [
        Gate("policy.act, one reading, microseconds", ours[1], 60, False),
        Gate("policy.act / bare network, 4096 readings", ours[4096] / bare[4096], 2, False),
    ]


# -- growth ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """How the time of something grows with a size."""

    what: str
    size: str
    sizes: Sequence[int]
    make: Callable[[int], Work]
    wanted: float = MOST
    why: str = ""  # more than a sum costs
    least: int = 2  # size that there is

    def scaled(self, scale: float) -> list[int]:
        """Other sizes to try the script with, no two alike."""
        return [max(self.least + i, int(size * scale)) for i, size in enumerate(self.sizes)]


def growth(console: Console, options: argparse.Namespace) -> list[Gate]:
    """Exponents of all that runs do most."""
    table, gates = Table("what", "size", "sizes", "CPU ms", "exponent", "wanted", "why", title="growth"), []
    for case in cases():
        sizes = case.scaled(options.scale)
        times = in_turn([case.make(size) for size in sizes], options.repeats)
        exponent = slope(sizes, times)
        each = ", ".join(f"{1e3 * seconds:.3g}" for seconds in times)
        table.add_row(
            case.what, case.size, ", ".join(map(str, sizes)), each, f"{exponent:.2f}", str(case.wanted), case.why
        )
        gates.append(Gate(f"exponent of {case.what} in {case.size}", exponent, case.wanted, False))
    console.print(table)
    return gates


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Of log time over log size, by least squares.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, times)]).slope


def in_turn(work: Sequence[Work], repeats: int) -> list[float]:
    """The least CPU seconds of each, after one run that warms up."""
    times: list[list[float]] = [[] for _ in work]
    for repeat in range(repeats + 1):
        for one, seconds in zip(work, times, strict=True):
            start = time.process_time()
            one()
            if repeat:
                seconds.append(time.process_time() - start)
    return [min(seconds) for seconds in times]


def cases() -> list[Growth]:
    """What is measured; each size from where fixed costs are small."""
    depth = "paths to H layers have up to H actions, and there are H layers"
    return [
        Growth("estimates", "B", (64, 128, 256, 512), lambda B: estimates(B=B)),
        Growth("estimates", "n", (2000, 4000, 8000, 16000), lambda n: estimates(n=n)),
        Growth("estimates", "G", (16**2, 32**2, 64**2, 128**2), lambda G: estimates(nodes=math.isqrt(G)), least=3**2),
        Growth("risks", "F", (64, 128, 256, 512), lambda F: risks(F=F)),
        Growth("risks", "B", (8, 16, 32, 64), lambda B: risks(B=B)),
        Growth("risks", "n", (1000, 2000, 4000, 8000), lambda n: risks(n=n)),
        Growth("embedding", "B", (16, 32, 64, 128), lambda B: embedding(B=B)),
        Growth("embedding", "G", (16**2, 32**2, 64**2, 128**2), lambda G: embedding(nodes=math.isqrt(G)), least=3**2),
        Growth("exploration", "B", (64, 128, 256, 512), lambda B: exploration(B=B)),
        Growth("exploration", "H, xi", (8, 16, 32), lambda H: exploration(H=H), 2.05, depth),
        Growth("looking", "n", (400, 800, 1600, 3200), lambda n: looking(n=n)),
        Growth("looking", "H, xi", (8, 16, 32), lambda H: looking(H=H), 1.05),
        Growth("training", "F", (32, 64, 128), lambda F: training(F=F)),
        Growth("training", "B", (64, 256, 1024), lambda B: training(B=B)),
        Growth("training", "n", (64, 256, 1024), lambda n: training(n=n)),
        Growth("path cover", "xi", (5**2, 9**2, 17**2), cover, 2.3, "the closure of a graph of xi states", least=3**2),
    ]


def estimates(B: int = 64, n: int = 1000, nodes: int = 32) -> Work:
    """Densities in the plane, of readings that fill a fifth of the box along either axis."""
    grid = DensityGrid.uniform((-1.0, -1.0), (1.0, 1.0), nodes)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(1.2 * s for s in grid.spacing))
    x = 0.4 * torch.rand(B, n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.2
    return lambda: estimator(x)


def risks(F: int = 64, B: int = 8, n: int = 1000) -> Work:
    """Bellman risks of a class on a batch of decisions."""
    net, D, g = of_grid(F, B)
    evaluator = Ensemble(net.problem, (net,)).evaluator(D)
    x = 3 * torch.rand(B, n, 2, generator=g, dtype=torch.float64) - 0.5
    actions = torch.randint(2, (B, n), generator=g)
    data = Transitions(x, actions, torch.rand(B, n, generator=g, dtype=torch.float64))
    V_next = torch.rand(F, B, 2, generator=g, dtype=torch.float64)
    return lambda: evaluator.bellman_risks(2, data, V_next)


def embedding(B: int = 16, nodes: int = 32) -> Work:
    """What a class makes of densities before it sees a reading."""
    net, D, _ = of_grid(16, B, nodes)
    return lambda: net.condition(D)


def training(F: int = 16, B: int = 64, n: int = 64) -> Work:
    """One round of a fit, 10 steps a layer, on rewards that hang on where a reading is."""
    net, D, g = of_grid(F, B)
    samples = []
    for _ in range(net.problem.graph.num_states):
        x, actions = (
            3 * torch.rand(B, n, 2, generator=g, dtype=torch.float64) - 0.5,
            torch.randint(2, (B, n), generator=g),
        )
        samples.append(Transitions(x, actions, (x[..., 0] > 1).double() / 5))
    data, settings = TrainingData(D, tuple(samples), 100.0), TrainingSettings(F, 1, 40, 1)

    def work() -> object:
        fresh = LookupNet(net.problem, F, torch.Generator().manual_seed(1))
        return fit(fresh, data, settings, Seed.root(0))

    return work


def of_grid(F: int, B: int, nodes: int = 24) -> tuple[LookupNet, Tensor, torch.Generator]:
    """Members on the grid family, densities [B, xi, G], and a generator."""
    family, g = make_family("grid"), torch.Generator().manual_seed(0)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, nodes)
    net = LookupNet(Problem(family.spec, family.graph, grid), F, g)
    D = torch.rand(B, family.graph.num_states, grid.num_points, generator=g, dtype=torch.float64)
    net.fit_scales(D.float())
    return net.requires_grad_(False), D, g


def of_lock(B: int, H: int) -> tuple[Guard, DensityEstimator]:
    """Simulators of `lock`, whose layers have three states whatever H is."""
    draws = Draws(make_family("lock", horizon=H, num_actions=3), Seed.root(0), Ledger())
    grid = DensityGrid.uniform(draws.family.spec.low, draws.family.spec.high, 64)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(1.5 * s for s in grid.spacing))
    return draws.simulators("speed", B), estimator


def exploration(B: int = 64, H: int = 5) -> Work:
    """Algorithm 2."""
    simulators, estimator = of_lock(B, H)
    return lambda: explore(simulators, estimator, MergeSettings(), 100, Seed.root(1))


def looking(n: int = 400, H: int = 5) -> Work:
    """Readings of every state along a path cover."""
    simulators, graph = of_lock(16, H)[0], make_family("lock", horizon=H, num_actions=3).graph
    return lambda: readings(simulators, graph, n, Seed.root(2))


def cover(xi: int) -> Work:
    """Of the grid family, so many cells wide and deep."""
    graph = make_family("grid", width=math.isqrt(xi)).graph
    return lambda: path_cover(graph)


# -- start -----------------------------------------------------------------------------------------------------------


def starts(console: Console, options: argparse.Namespace) -> list[Gate]:
    """CPU seconds from nothing to the end of short commands."""
    table, gates = Table("what", "CPU seconds", "beside import torch", title="start-up"), []
    least = None
    for what, (command, bound) in STARTS.items():
        seconds = min(of_children(command) for _ in range(options.repeats))
        least = least or seconds
        table.add_row(what, f"{seconds:.2f}", f"{seconds / least:.2f}")
        if bound < math.inf:
            gates.append(Gate(f"{what}, CPU seconds", seconds, bound, False))
    console.print(table)
    return gates


def of_children(command: Sequence[str]) -> float:
    """CPU seconds, in user mode, of one Python process."""
    before = os.times().children_user
    subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, check=True)
    return os.times().children_user - before


PARTS = {"densities": densities, "classes": classes, "decisions": decisions, "growth": growth, "starts": starts}
