"""Runs killed at random moments: the same command goes on, repeats no finished stage, and ends as if never stopped.

An uninterrupted run is the reference. Then runs of the same command are killed, by SIGKILL, SIGTERM and SIGINT in turn,
at moments drawn uniformly over its time, and started again in the same folder until they end; then in a fresh folder,
until enough were killed. Exit code 1 if a finished stage was ever written twice, an exit code was another than the
signal's, or an end differs from the reference in anything but seconds. A signal is too late where the run was at its
end already, and too early where Python had not taken it over yet, so that it ended the process by itself. Told is, too,
after which stages the kills came.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

RUN = Path(__file__).resolve().parent / "run.py"
SIGNALS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
SMALL = (  # every stage takes about a second
    "predictors.num_simulators=48",
    "predictors.n_samples=32",
    "predictors.training.members=4",
    "predictors.training.snapshots=2",
    "predictors.training.steps=40",
    "predictors.calibration.simulators=8",
    "budget.num_simulators=8",
    "budget.n_train=300",
    "diagnostics.simulators=8",
    "certificate.simulators=24",
    "certificate.scores=50",
    "certificate.n_accurate=100",
    "comparators.blind.sweeps=1",
    "comparators.blind.simulators=16",
    "evaluation.num_worlds=8",
    "evaluation.population=100",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--experiment", default="grid")
    parser.add_argument("overrides", nargs="*", help="settings of run.py; small ones by default")


def main(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would runs
    console, moments = Console(width=110), random.Random(options.seed)
    command = [f"+experiment={options.experiment}", *(options.overrides or SMALL)]
    with tempfile.TemporaryDirectory() as place:
        reference = Path(place) / "reference"
        start = time.perf_counter()
        process = started(command, reference)
        if process.wait() != 0:
            raise RuntimeError(process.stdout.read())
        whole = time.perf_counter() - start
        console.print(f"uninterrupted: {whole:.0f} s")
        names = ("kills", "too early", "too late", "wrong exit codes", "stages done twice", "runs", "other ends")
        found, after = dict.fromkeys(names, 0), Counter[str]()
        while found["kills"] < options.kills:
            folder = Path(place) / f"run{found['runs']}"
            whole = killed_until_done(command, folder, whole, options.kills, moments, found, after) or whole
            found["runs"] += 1
            found["other ends"] += ending(folder) != ending(reference)
            console.print(", ".join(f"{count} {name}" for name, count in found.items()))
    table = Table(*found)
    table.add_row(*map(str, found.values()))
    console.print(table)
    console.print("killed after: " + ", ".join(f"{stage} {count}" for stage, count in after.most_common()))
    failed = found["wrong exit codes"] + found["stages done twice"] + found["other ends"]
    return int(failed > 0)


def killed_until_done(
    command: list[str],
    folder: Path,
    whole: float,
    most: int,
    moments: random.Random,
    found: dict[str, int],
    after: Counter[str],
) -> float | None:
    """Kills one run again and again, until it ends before it is killed or enough were.

    Returns:
        How long a run takes, in seconds, if this one never was killed: the machine may be less busy than before.
    """
    stages: dict[str, int] = {}
    start, before = time.perf_counter(), found["kills"]
    while True:
        process, sent = started(command, folder), False
        number = list(SIGNALS)[(found["kills"] + found["too late"]) % len(SIGNALS)]
        try:
            code = process.wait(moments.uniform(0.0, whole) if found["kills"] < most else None)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            sent = True
            code = process.wait()
        process.stdout.close()
        now = times(folder)
        found["stages done twice"] += sum(now.get(name) != moment for name, moment in stages.items())
        stages = now
        if code == 0:
            found["too late"] += sent
            return None if sent or found["kills"] > before else time.perf_counter() - start
        found["kills"] += 1
        after[max(now, key=now.__getitem__, default="nothing")] += 1
        found["too early"] += code == -number != SIGNALS[number]
        found["wrong exit codes"] += code not in (SIGNALS[number], -number)


def started(command: list[str], folder: Path) -> subprocess.Popen:
    """The command in that folder."""
    line = [sys.executable, str(RUN), *command, f"hydra.run.dir={folder}"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def times(folder: Path) -> dict[str, int]:
    """When each finished stage was written."""
    return {path.stem: path.stat().st_mtime_ns for path in (folder / "stages").glob("*.safetensors")}


def ending(folder: Path) -> tuple[dict, bytes]:
    """What a run left, but for seconds."""
    summary = json.loads((folder / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in ("seconds", "cpu_seconds")}
    return kept, (folder / "policy.safetensors").read_bytes()
