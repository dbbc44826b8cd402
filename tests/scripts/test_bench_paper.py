"""Theorem P on counts (theory.md 3.5): its own sizes, but few of its B simulators. `bench.py paper` runs all, H = 1."""

import sys
from pathlib import Path

import pytest
import torch

from s2r_torch.rng import Seed

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_paper as bench  # noqa: E402

EPSILON = 0.7


@pytest.mark.parametrize(("horizon", "rounds"), [(1, 1), (2, 2)])
def test_what_is_accepted_loses_less_than_is_promised(horizon, rounds, monkeypatch):
    """The worst member loses more; at H = 2 the first round finds a policy out that errs in the second layer."""
    monkeypatch.setattr(bench, "AT_ONCE", 200)
    problem = bench.Problem.of(horizon, EPSILON)
    run = bench.learned(problem, 500, Seed.root(0))
    worlds = problem.environments(2000, Seed.root(1))
    assert bool(run.alive[0]) and run.rounds == rounds and bool(run.alive[run.chosen])
    assert float(worlds.losses(run.chosen).mean()) <= EPSILON < float(worlds.losses(len(run.alive) - 1).mean())


def test_parts_see_what_one_would_see():
    """Of one part, sums are those of a learner that holds all simulators."""
    problem = bench.Problem.of(1, EPSILON)
    learner = bench.Learner(problem.environments(500, Seed.root(3).child(0)), problem.budget, "erratum")
    learner.td_eliminate(0)
    run = bench.in_parts(problem, 500, Seed.root(3))
    assert torch.equal(run.alive, learner.alive) and run.chosen == int(learner.alive.nonzero()[-1])
