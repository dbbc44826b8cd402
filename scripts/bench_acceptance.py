"""Gates over many seeds: what a release must reach. Prints tables; exit code 1 if a gate fails.

All gates are about whole runs but one: `merging` is about explorations alone, as in `bench.py merging`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_merging
from rich.console import Console
from rich.table import Table

from s2r_torch.reports.summary import Summary

RUN = Path(__file__).resolve().parent / "run.py"


@dataclass(frozen=True)
class Result:
    """One finished run."""

    summary: Summary
    seconds: float  # wall, imports included
    gibibytes: float  # peak resident memory

    @property
    def share(self) -> float:
        """Deployed value over the optimal one in the same worlds: 400 where values are exact, else those of the run.

        40 worlds would fail one run in ten whose policy earns 0.98 where some worlds pay nothing.
        """
        curve, n_real = self.summary.value.looking, self.summary.real.n_real
        if n_real not in curve.readings:
            return self.summary.value.share
        return curve.value[curve.readings.index(n_real)] / curve.optimal

    def of_prior(self, name: str) -> float:
        """A comparator's value over the optimal one, over the prior."""
        policies = self.summary.value.policies
        return policies[name] / policies["optimal"]


@dataclass(frozen=True)
class Gate:
    """What a configuration must reach in how many of how many seeds."""

    name: str
    overrides: tuple[str, ...]
    wanted: str
    passes: Callable[[Result], bool]
    seeds: int = 1
    allowed_failures: int = 0


def beats_baselines(
    deployed: float, baselines: float, seconds: float, gibibytes: float = 3
) -> Callable[[Result], bool]:
    """Deployed near the optimum, density-free policies well below it, within time and memory."""
    return lambda r: (
        r.share >= deployed
        and max(r.of_prior("open_loop"), r.of_prior("blind")) <= baselines
        and r.seconds <= seconds
        and r.gibibytes < gibibytes
    )


def keeps_f_star(r: Result) -> bool:
    """f* survives and the returned policy is within 0.02 of V*."""
    worth = r.summary.value.worth
    return bool(r.summary.ensemble.f_star_survives) and worth.optimal - worth.value <= 0.02


def eliminates_nothing_and_says_so(r: Result) -> bool:
    ensemble = r.summary.ensemble
    said = any("eliminated nothing" in notice for notice in r.summary.notices)
    return ensemble.survivors == ensemble.size and said


def covers(r: Result) -> bool:
    """Real episodes per world are at most w n_real."""
    return r.summary.real.drawn <= r.summary.real.sequences * r.summary.real.n_real


def lake(r: Result) -> bool:
    return beats_baselines(0.95, 0.75, 360)(r) and covers(r)


WORLDS = ("lock", "cliffwalking", "treasure", "minigrid", "digits", "pendulum")  # at defaults, tuned to nowhere

GATES = (
    *(
        Gate(
            name,
            (f"+experiment={name}",),
            "deployed >= 0.97, blind and list <= 0.85, 300 s, 8 GiB",
            beats_baselines(0.97, 0.85, 300, gibibytes=8),
            3,
        )
        for name in WORLDS
    ),
    Gate(
        "grid",
        ("+experiment=grid",),
        "deployed >= 0.97, blind and list <= 0.85",
        beats_baselines(0.97, 0.85, 180),
        10,
        1,
    ),
    Gate("frozenlake", ("+experiment=frozenlake",), "deployed >= 0.95, blind and list <= 0.75", lake, 5, 1),
    Gate(
        "mixture-sweep",
        ("+experiment=mixture", "method=sweep", "rule=sharp"),
        "f* survives, gap <= 0.02",
        keeps_f_star,
        3,
    ),
    Gate(
        "mixture-loop",
        ("+experiment=mixture", "method=sim2real", "rule=erratum"),
        "f* survives, gap <= 0.02",
        keeps_f_star,
        3,
    ),
    Gate(
        "mixture-paper",
        ("+experiment=mixture", "rule=paper"),
        "nothing eliminated, said",
        eliminates_nothing_and_says_so,
    ),
    Gate("grid-paper", ("+experiment=grid", "rule=paper"), "nothing eliminated, said", eliminates_nothing_and_says_so),
)

MERGING, MERGING_SEEDS = "merging", 200
NAMES = (*(gate.name for gate in GATES), MERGING)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gates", type=names, default=NAMES, help="comma-separated, all if left out: " + ", ".join(NAMES)
    )
    parser.add_argument("--seeds", type=int, help="fewer or more seeds than the gate asks for")
    parser.add_argument("--threads", type=int, default=1, help="of each of as many processes as cores allow")


def names(text: str) -> tuple[str, ...]:
    """Names of gates, refused where one is unknown: a gate that is not run must not count as passed."""
    chosen = tuple(text.split(","))
    unknown = set(chosen) - set(NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} not among {', '.join(NAMES)}")
    return chosen


def main(options: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table("gate", "wanted", "passed", "deployed / optimal", "blind", "list", "seconds", "GiB")
    failed = 0
    for gate in GATES:
        if gate.name not in options.gates:
            continue
        results = []
        for seed in range(options.seeds or gate.seeds):
            few = ("workers=auto", f"trainer.threads={options.threads}")
            results.append(run((*gate.overrides, f"seed={seed}", *few)))
            last = results[-1]
            verdict = "passed" if gate.passes(last) else "FAILED"
            console.print(f"{gate.name} seed {seed}: {last.share:.4f} of optimal, {last.seconds:.0f} s, {verdict}")
        passed = sum(gate.passes(r) for r in results)
        failed += passed < len(results) - gate.allowed_failures
        table.add_row(
            gate.name,
            gate.wanted,
            f"{passed} of {len(results)}",
            span([r.share for r in results]),
            span([r.of_prior("blind") for r in results]),
            span([r.of_prior("open_loop") for r in results]),
            span([r.seconds for r in results], 0),
            span([r.gibibytes for r in results], 2),
        )
    if table.row_count:
        console.print(table)
    if MERGING in options.gates:
        failed += bench_merging.main(bench_merging.defaults(seeds=options.seeds or MERGING_SEEDS))
    return int(failed > 0)


def run(overrides: tuple[str, ...]) -> Result:
    """One run in a new process, in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, str(RUN), *overrides, f"hydra.run.dir={folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
        summary = Summary.from_json(json.loads((Path(folder) / "run" / "summary.json").read_text()))
        return Result(summary, time.perf_counter() - start, usage.ru_maxrss / 2**20)


def span(numbers: list[float], digits: int = 3) -> str:
    """Least and largest."""
    low, high = min(numbers), max(numbers)
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} .. {high:.{digits}f}"
