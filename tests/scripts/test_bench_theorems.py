"""Theorems at their own sizes, on counts: the erratum keeps its claims, the printed rule breaks them; L and R hold."""

import sys
from pathlib import Path

import pytest
import torch

from s2r_torch.families import make_family
from s2r_torch.planner.schedules import Setting, loops, paper, sweep
from s2r_torch.rng import Seed

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_theorems as bench  # noqa: E402

MIXTURE = make_family("mixture", horizon=2)
MEMBERS = bench.the_class(MIXTURE)


def setting(epsilon):
    return Setting(2, 2, 2, MEMBERS.size, epsilon, 0.1, 2.0, 1, 0.5, 1.0, 0.28, cover_width=2)


@pytest.mark.parametrize(("rule", "holds"), [("erratum", True), ("paper", False)])
def test_claims_over_both_layers_at_the_papers_phi(rule, holds):
    """theory.md 2.8."""
    budget = paper(setting(0.2)).budget
    environments = bench.Environments.draw(MIXTURE, MEMBERS, 20, budget.phi / 2, Seed.root(0))
    learner, within = bench.Learner(environments, budget, rule), []
    for state in reversed(range(MIXTURE.graph.num_states)):
        learner.td_eliminate(state)
        bounds = bench.claimed(setting(0.2), budget.phi, int(MIXTURE.graph.layer[state]) + 1)
        measured = bench.claims(environments, learner.alive, state)
        within.append(all(m <= b for m, b in zip(measured, bounds, strict=True)))
    assert bool(learner.alive[0]) and all(within) == holds


@pytest.mark.parametrize("plan", [loops, sweep], ids=["L", "R"])
def test_guarantees_at_their_own_sizes(plan):
    """theory.md 3.2 and 3.3."""
    epsilon = 0.8
    plan = plan(setting(epsilon))
    b = plan.budget
    simulators = bench.Environments.draw(MIXTURE, MEMBERS, b.num_simulators, b.phi / 2, Seed.root(1))
    learner = bench.Learner(simulators, b, "sharp")
    chosen = learner.sim2real() if plan.budget.schedule == "loops" else learner.sweep()
    worlds = bench.fresh_worlds(MIXTURE, MEMBERS, plan, Seed.root(2))
    assert bool(learner.alive[0]) and int(learner.alive.sum()) < MEMBERS.size / 2
    assert max(float(worlds.losses(member).mean()) for member in chosen) <= epsilon


def test_counts_are_those_of_observations():
    """Shares of cells, actions and payments have the means of the family's own simulators."""
    environments = bench.Environments.draw(MIXTURE, MEMBERS, 3, 0.0, Seed.root(3))
    tried = environments.tried(0, 10**12)
    assert torch.allclose(tried.sum((-1, -2)), environments.cells[:, 0], atol=1e-5)
    paid = tried[..., 1] / tried.sum(-1) * MIXTURE.payment
    assert torch.allclose(paid, environments.rewards[:, 0], atol=1e-5)
