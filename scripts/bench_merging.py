"""Is the true partition into states found? Seeded explorations at the default budgets, also with corrupted simulators.

Every exploration draws fresh simulators, takes its bandwidth from a pilot, and must find the family's own graph.
Merging is by the measured noise, also where the family declares zeta, unless --zeta family. A corrupted simulator shows
uniform readings in a box that it draws anew at every reset: its density is replaced. Exit code 1 if one is wrong.

    python scripts/bench.py merging                       # 200 seeds of each; about an hour of CPU
    python scripts/bench.py merging --families grid --seeds 20
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.base import Simulators
from s2r_torch.commands.configuration import CONF, plain_config
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import S2RError
from s2r_torch.families.contract import Family
from s2r_torch.families.draws import Draws
from s2r_torch.learning.estimator import PILOTS, make_estimator
from s2r_torch.learning.exploration import Exploration, explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.rng import Seed
from s2r_torch.runs.configuring import configured
from s2r_torch.runs.settings import RunSettings

FAMILIES = {
    "grid": ("+experiment=grid",),
    "frozenlake": ("+experiment=frozenlake",),
    "mixture": ("+experiment=mixture",),
    "mixture4": ("+experiment=mixture", "env.horizon=4"),  # at the default horizon no two paths meet
}
N_DIST = 8  # D_hat is not looked at
PART = 0.3  # of each side of the box, that a corrupted simulator's readings fill


class Corrupted:
    """Simulators of which some show readings that have nothing to do with the state (`base.Simulators`)."""

    def __init__(self, inner: Simulators, bad: Sequence[int]):
        self.inner, self.bad, self.spec, self.ids = inner, set(bad), inner.spec, inner.ids
        self._generators: Sequence[torch.Generator] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        self._generators = generators
        return self._spoil(self.inner.reset(n, generators))

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        x, reward = self.inner.step(actions)
        return (None if x is None else self._spoil(x)), reward

    def select(self, indices: Sequence[int]) -> Corrupted:
        return Corrupted(self.inner.select(indices), self.bad)

    def _spoil(self, x: Tensor) -> Tensor:
        low, high = (torch.tensor(edge, dtype=x.dtype) for edge in (self.spec.low, self.spec.high))
        x = x.clone()
        for b, name in enumerate(self.ids):
            if name in self.bad:
                u = torch.rand(2, *x.shape[1:], dtype=x.dtype, generator=self._generators[b])
                x[b] = low + (high - low) * ((1 - PART) * u[0, :1] + PART * u[1])
        return x


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    family: str
    share: float  # of deciders that are corrupted
    seeds: int
    zeta: str


@dataclass(frozen=True)
class Found:
    """One exploration: what it found, or what stopped it."""

    exploration: Exploration | None
    trouble: str
    seconds: float  # of CPU


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--corrupted", default="0,0.05", help="shares of deciders, comma-separated")
    parser.add_argument("--zeta", choices=("auto", "family"), default="auto")


def defaults(seeds: int) -> argparse.Namespace:
    """The options of every family, clean and corrupted, with that many seeds of each."""
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(["--seeds", str(seeds)])


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    cases = [
        Case(family, float(share), options.seeds, options.zeta)
        for family in options.families.split(",")
        for share in options.corrupted.split(",")
    ]
    console = Console(width=150)
    table = Table("family", "corrupted", "found", "largest same / noise", "smallest different / noise", "CPU s each")
    wrong = 0
    for case in cases:
        settings, family = made(case.family)
        results = [search(settings, family, case, seed) for seed in range(case.seeds)]
        troubles = [f"{case.family} seed {seed}: {r.trouble}" for seed, r in enumerate(results) if r.trouble]
        wrong += len(troubles)
        for line in troubles:
            console.print(line, soft_wrap=True, highlight=False)
        table.add_row(*row(case, results))
        console.print(f"{case.family}, {case.share:.0%} corrupted: {case.seeds - len(troubles)} of {case.seeds}")
    console.print(table)
    return int(wrong > 0)


def made(name: str) -> tuple[RunSettings, Family]:
    """The settings and the family of a run."""
    with initialize_config_dir(str(CONF / "run"), version_base="1.3"):
        return configured(plain_config(compose("run", overrides=list(FAMILIES[name]))))


def search(settings: RunSettings, family: Family, case: Case, seed: int) -> Found:
    """One exploration of the deciders alone, held against the family's own graph."""
    start, root = time.process_time(), Seed.root(seed)
    draws, merge = Draws(family, root, Ledger()), settings.density.merge
    if case.zeta == "family":
        merge = replace(merge, zeta=family.spec.zeta or "auto")
    simulators = corrupt(draws.simulators("train", max(PILOTS, merge.deciders)), case.share, merge, root)
    exploration, trouble = None, ""
    try:
        estimator = make_estimator(settings.density, simulators, settings.budget.n_dist, root)
        deciders = simulators.select(range(merge.deciders))
        exploration = explore(deciders, estimator, merge, N_DIST, root.child("explore"))
        family.truth(draws.theta("train", 1)).graph.require_same(exploration.graph)
    except S2RError as error:
        trouble = f"{type(error).__name__}: {error}"
    return Found(exploration, trouble, time.process_time() - start)


def corrupt(simulators: Guard, share: float, merge: MergeSettings, root: Seed) -> Guard:
    """Corrupts that share of the deciders, rounded up, at places that the seed draws."""
    count = math.ceil(share * merge.deciders)
    places = torch.randperm(merge.deciders, generator=root.child("corrupt").generator())[:count].tolist()
    inner = Corrupted(simulators.inner, [simulators.ids[i] for i in places])
    return Guard(inner, simulators.ledger, simulators.purpose)


def row(case: Case, results: list[Found]) -> list[str]:
    """A line of the table; ratios over all visits of all seeds, thresholds are at 1.125 and 1.875 with zeta auto."""
    visits = [v for r in results if r.exploration for v in r.exploration.visits]
    same = max((v.distance / v.noise for v in visits if v.merged), default=math.nan)
    different = min((v.distance / v.noise for v in visits if not v.merged), default=math.nan)
    found = sum(not r.trouble for r in results)
    seconds = sum(r.seconds for r in results) / len(results)
    return [
        case.family,
        f"{math.ceil(case.share * 16)} of 16" if case.share else "none",
        f"{found} of {len(results)}",
        f"{same:.2f}",
        f"{different:.2f}",
        f"{seconds:.2f}",
    ]
