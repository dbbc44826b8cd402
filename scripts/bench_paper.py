"""Theorem P: the paper's own constants with the erratum (theory.md 3.5), on a mixture with S = A = 2.

As `bench.py theorems`: n observations of a state are one multinomial draw, and densities err by all that is allowed.
At H = 1 with the B of the theorem, a part at a time. At H = 2, where the loop has something to learn, on some of the B
simulators, each with the theorem's phi, n_train, n_test, thresholds, n_1 and N_2: all of its proof but generalisation.
The class is all sign flips; its worst member loses more than epsilon, so that the promise is not empty.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from bench_theorems import WORLDS, Environments, Learner, setting_of
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.families import make_family
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.planner.budget import Budget
from s2r_torch.planner.schedules import paper
from s2r_torch.rng import Seed

AT_ONCE = 250_000  # simulators


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=float, default=0.7)
    parser.add_argument("--simulators", type=int, default=2000, help="at H = 2")
    parser.add_argument("--seed", type=int, default=0)


def main(options: argparse.Namespace) -> None:
    names = "H, phi, B, of them run, n_train, n_1, rounds, f* kept, survivors, V* - E V, promised, worst"
    table = Table(*names.split(", "), title="Theorem P at its own sizes")
    for horizon, most in ((1, None), (2, options.simulators)):
        problem, seed = Problem.of(horizon, options.epsilon), Seed.root(options.seed).child(horizon)
        b = problem.budget
        run = learned(problem, most or b.num_simulators, seed.child("simulators"))
        worlds = problem.environments(WORLDS, seed.child("worlds"))
        counts = (b.num_simulators, most or b.num_simulators, b.n_train, b.n_rollouts, run.rounds)
        kept = ("yes" if bool(run.alive[0]) else "NO", f"{int(run.alive.sum())} of {len(run.alive)}")
        losses = [float(worlds.losses(member).mean()) for member in (run.chosen, len(run.alive) - 1)]
        ends = (f"{losses[0]:.5f}", f"{options.epsilon:g}", f"{losses[1]:.2f}")
        table.add_row(str(horizon), f"{b.phi:.2e}", *(f"{count:,}" for count in counts), *kept, *ends)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


@dataclass(frozen=True, eq=False)
class Problem:
    """A mixture, all sign flips of f*, of which the last loses most, and the sizes of Theorem P."""

    mixture: Mixture
    members: MixturePredictors
    budget: Budget

    @staticmethod
    def of(horizon: int, epsilon: float) -> Problem:
        mixture = make_family("mixture", horizon=horizon, base="stacked", theta_law="two_point")
        grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 301)
        members = MixturePredictors.build(mixture, grid, gains=(1.0,))
        return Problem(mixture, members, paper(setting_of(mixture, members.size, epsilon)).budget)

    def environments(self, B: int, seed: Seed) -> Environments:
        error = self.budget.phi / 2 / (1 + float(self.mixture.ahead.max()))  # of z: M_h errs, too
        return Environments.draw(self.mixture, self.members, B, error, seed)


@dataclass(frozen=True)
class Accepted:
    """How Algorithm 1 ended."""

    chosen: int
    alive: Tensor  # [F]
    rounds: int


def learned(problem: Problem, simulators: int, seed: Seed) -> Accepted:
    """Algorithm 1 with the erratum's rule."""
    if problem.mixture.horizon == 1:
        return in_parts(problem, simulators, seed)
    rounds: list[float] = []
    environments = problem.environments(simulators, seed)
    learner = Learner(environments, problem.budget, "erratum", lambda member, V_star, value: rounds.append(value))
    (chosen,) = learner.sim2real()
    return Accepted(chosen, learner.alive, len(rounds))


def in_parts(problem: Problem, simulators: int, seed: Seed) -> Accepted:
    """The same for H = 1, where the root is all that is learned, with few simulators in memory."""
    budget, F = problem.budget, problem.members.size
    sizes = [min(AT_ONCE, simulators - start) for start in range(0, simulators, AT_ONCE)]

    def total(part: Callable[[Environments], Tensor]) -> Tensor:
        return torch.stack([part(problem.environments(n, seed.child(k))) for k, n in enumerate(sizes)]).sum(0)

    def rejected_and_values(environments: Environments) -> Tensor:
        learner = Learner(environments, budget, "erratum")
        learner.td_eliminate(0)
        return torch.stack([(~learner.alive).double(), learner.V_hat[:, :, 0].sum(1)])

    def earned(environments: Environments) -> Tensor:
        """By n_1 episodes, each of which pays `payment` or nothing."""
        payment = problem.mixture.payment
        chance = (environments.values(chosen)[1] / payment).clamp(0, 1)
        return torch.tensor(float(environments.draws.binomial(budget.n_rollouts, chance).sum()) * payment)

    rejected, V_hat = total(rejected_and_values)
    alive = rejected == 0
    assert bool(alive.any()) and alive.shape == (F,), "an empty class"
    chosen = int(alive.nonzero()[-1])  # any survivor will do; f* is the first
    lacking = V_hat[alive.nonzero()[0]] / simulators - total(earned) / (budget.n_rollouts * simulators)
    assert float(lacking) <= budget.epsilon_demand, "another round, with nothing left to learn"
    return Accepted(chosen, alive, 1)
