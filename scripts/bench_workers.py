"""What workers buy: tasks of a whole run timed one by one, and how long so many workers would take over them.

    python scripts/bench.py workers grid frozenlake --count 2 64

Every task is done here, alone, and its CPU time taken; list scheduling, in the order of the tasks, then says when so
many workers would be done with each map, and what is done between maps stays as it is. So the figures do not depend on
what else runs on this machine; starting workers and moving what they need is not in them. Bytes are those of tasks,
payloads and results on their way.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from s2r_torch.families import make_family
from s2r_torch.progress import Silent
from s2r_torch.runs.run import Stages, all_stages
from s2r_torch.runs.settings import RunSettings
from s2r_torch.workers.engines import Task, Tell, unheard
from s2r_torch.workers.parcels import Parcel, pack


@dataclass
class Timed:
    """This process, with a stop-watch."""

    cpu_seconds: float = 0.0
    threads: int = 1
    maps: list[list[float]] = field(default_factory=list)  # CPU seconds of every task of every map
    moved: int = 0  # bytes
    packing: float = 0.0  # CPU seconds that measuring bytes took

    def map(self, task: Task, shared: Any, payloads: Sequence[Any], hear: Tell = unheard) -> Generator[Any, None, None]:
        times: list[float] = []
        self.maps.append(times)
        self._move((task, shared))
        for payload in payloads:
            self._move(payload)
            start = time.process_time()
            result = task(shared, payload, hear)
            times.append(time.process_time() - start)
            self._move(result)
            yield result

    def start(self, task: Task) -> None:
        pass

    def close(self) -> None:
        pass

    def _move(self, value: Any) -> None:
        start = time.process_time()
        self.moved += size_of(pack(value))
        self.packing += time.process_time() - start

    def take(self) -> tuple[list[list[float]], int, float]:
        """What was timed since it was asked last."""
        found = self.maps, self.moved, self.packing
        self.maps, self.moved, self.packing = [], 0, 0.0
        return found


def size_of(parcel: Parcel) -> int:
    return len(parcel.head) + sum(part.nbytes for part in parcel.body)


def makespan(times: Sequence[float], workers: int) -> float:
    """When the last of these tasks is done, if each goes, in order, to the worker that is free first.

    >>> makespan([3, 1, 1, 1], 2)
    3.0
    """
    free = [0.0] * workers
    for seconds in times:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


class Watched(Stages):
    """Stages, each with what its tasks took."""

    def __init__(self, name: str):
        self.watch = Timed()
        super().__init__(RunSettings(name=name), make_family(name), None, Silent(), workers=self.watch)
        self.found: dict[str, tuple[float, list[list[float]], int]] = defaultdict(lambda: (0.0, [], 0))

    def do(self, stage, *earlier, **more):
        start = time.process_time()
        result = super().do(stage, *earlier, **more)
        maps, moved, packing = self.watch.take()
        self.found[stage.__name__] = time.process_time() - start - packing, maps, moved
        return result


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("families", nargs="+")
    parser.add_argument("--count", type=int, nargs="+", default=[2, 64])


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 150)
    for name in options.families:
        run = Watched(name)
        all_stages(run)
        console.print(table(name, run.found, options.count))


def table(name: str, found: dict[str, tuple[float, list[list[float]], int]], counts: Sequence[int]) -> Table:
    """Seconds by stage and workers, and the speed-up of the whole."""
    columns = ["stage", "CPU s", "in tasks", "tasks", "longest s", "MB moved", *(f"{n} workers" for n in counts)]
    shown = Table(*columns, title=f"{name}: seconds by list scheduling of measured tasks", title_justify="left")
    sums = [0.0] * (1 + len(counts))
    for stage, (seconds, maps, moved) in found.items():
        inside = sum(map(sum, maps))
        ends = [seconds - inside + sum(makespan(times, n) for times in maps) for n in counts]
        longest = max((max(times, default=0.0) for times in maps), default=0.0)
        row = f"{seconds:.1f}", f"{inside:.1f}", str(sum(map(len, maps))), f"{longest:.1f}", f"{moved / 1e6:.1f}"
        shown.add_row(stage, *row, *(f"{end:.1f}" for end in ends))
        sums = [before + more for before, more in zip(sums, [seconds, *ends], strict=True)]
    whole, *ends = sums
    speed = (f"{end:.1f} ({whole / end:.2f} x, {whole / end / n:.0%})" for end, n in zip(ends, counts, strict=True))
    shown.add_row("all", f"{whole:.1f}", "", "", "", "", *speed)
    return shown
