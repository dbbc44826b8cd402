"""How long one full Sim2Real run takes on the smallest mixture problem: hundreds of seeds must be cheap."""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.episodes import Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.learning.elimination import Elimination
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.sim2real import METHODS, Trial
from s2r_torch.planner.budget import practical
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20)


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    table = Table(
        "method", "median CPU ms", "slowest", "episodes a run", "f* kept",
        title="mixture H = S = A = 2, F = 192, B = 8, n_train = 4000, one thread", title_justify="left",
    )  # fmt: skip
    for method in METHODS:
        times, kept, episodes = [], 0, 0
        for seed in range(options.runs):
            start = time.process_time()
            outcome, episodes = once(method, seed)
            times.append(1e3 * (time.process_time() - start))
            kept += bool(outcome.choice.knowledge.alive[0])
        row = (f"{statistics.median(times):.0f}", f"{max(times):.0f}", f"{episodes:,}", f"{kept} of {options.runs}")
        table.add_row(method, *row)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def once(method: str, number: int):
    """One run of Algorithm 1, exploration included, and its episodes."""
    family, seed, ledger = make_family("mixture", horizon=2), Seed.root(number), Ledger()
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 97)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), (0.2,))
    ensemble = Ensemble(Problem(family.spec, family.graph, grid), (MixturePredictors.build(family, grid),), exact=True)
    budget = practical(
        2, 2, ensemble.size, num_simulators=8, n_merge=20000, n_dist=5000, n_test=1000, n_train=4000, n_rollouts=50,
        n_probes=16, n_real=500, epsilon=0.05, delta=0.1, b_bar=0.02, num_states=3,
    )  # fmt: skip
    merge = MergeSettings(n_merge=20000, zeta=family.spec.zeta, deciders=4)
    draws = Draws(family, seed, ledger)
    trial = Trial(estimator, merge, budget, Elimination("sharp"), seed.child("learn"))
    outcome = METHODS[method](lambda count: draws.simulators("judge", count), ensemble, trial)
    return outcome, sum(ledger.counts.values())
