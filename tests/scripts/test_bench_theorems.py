"""Theorems at their own sizes, on counts: the erratum keeps its claims, the printed rule breaks them; L and R hold."""

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from s2r_torch.density.grid import DensityGrid
from s2r_torch.families import make_family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.planner.budget import C_TD
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


# -- Theorem L, part by part ----------------------------------------------------------------------------------------

STACKED = make_family("mixture", horizon=2, base="stacked", theta_law="two_point")
CHAIN = make_family("mixture", horizon=2, kind="chain", theta_law="two_point")
OF_LOOPS = Setting(2, 2, 2, 64, 0.3, 0.1, 2.0, 1, 1.9, 1.0, 0.28, cover_width=2)


def flips(mixture):
    """All 64 sign flips; the last survivor of the root call flips all that follows it, and loses most."""
    grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 301)
    return MixturePredictors.build(mixture, grid, gains=(1.0,))


def flips_and_rivals(mixture):
    """f* first, then 16 members whose gain is just below 1, then all other flips."""
    every = flips(mixture)
    straight = every.flips[:1].expand(1 + len(bench.RIVALS), -1, -1)
    gains = torch.cat([torch.ones(1), 1 - bench.RIVALS, torch.ones(63)])
    return MixturePredictors(mixture, every.grid, torch.cat([straight, every.flips[1:]]), gains)


def enumerated(environments, member, learned):
    """V_b(pi^f) and the probability that pi^f visits a state that is not learned, over all sequences of cells."""
    mixture, rows = environments.mixture, torch.arange(len(environments.theta))
    graph, W, r = mixture.graph, environments.cells, environments.rewards
    alone = replace(environments, members=environments.members.subset([member]))
    actions = torch.stack([alone.q(s)[0].argmax(-1) for s in range(graph.num_states)])  # [xi, B, J]
    value, escape = torch.zeros(len(rows)), torch.zeros(len(rows))
    for cells in itertools.product(range(mixture.num_cells), repeat=graph.horizon):
        state, p, total = torch.zeros(len(rows), dtype=torch.int64), torch.ones(len(rows)), torch.zeros(len(rows))
        escaped = torch.zeros(len(rows), dtype=torch.bool)
        for j in cells:
            escaped |= ~torch.isin(state, torch.tensor(learned))
            p, a = p * W[rows, state, j], actions[state, rows, j]
            total, state = total + r[rows, state, j, a], graph.next_state[state, a]
        value, escape = value + p * total, escape + p * escaped
    return value, escape


PARTS = {  # of phi and epsilon: (a), (b), (c), (d)
    "L": (4 * (C_TD * math.sqrt(2) + 1), 2 * (C_TD * math.sqrt(2) + 1) + 1, 1 / 16, 1 / 8),
    "P": (100 * math.sqrt(2), 50 * math.sqrt(2) + 1, 1 / 8, 1 / 4),
}


OF_PAPER = paper(replace(OF_LOOPS, num_members=80, epsilon=0.7))


@pytest.mark.parametrize(
    ("theorem", "plan", "rule", "members", "most"),
    [
        pytest.param("L", loops(OF_LOOPS), "sharp", flips, None, marks=pytest.mark.slow),
        ("P", OF_PAPER, "erratum", flips, 300),
        ("P", OF_PAPER, "erratum", flips_and_rivals, 300),
    ],
    ids=["L", "P", "P with rivals"],
)
def test_lemmas_8_to_10_and_the_corollary_at_their_own_sizes(theorem, plan, rule, members, most):
    """theory.md 3.2 and 3.5, (a) to (e), on every survivor, simulator and round.

    Among flips the first policy is found out. Rivals of f* let no successor pass Consensus: all is learned at once, and
    the printed rule would keep one whose value breaks (b). Of Theorem P's B only some: B is for generalisation.
    """
    budget, epsilon, horizon, rounds = plan.budget, plan.setting.epsilon, 2, []
    off_policy, off_value, off_rollouts, escaping = PARTS[theorem]
    phi, G = budget.phi, (STACKED.offsets * STACKED.amplitudes).sum(-1)
    error = phi / 2 / (1 + float(STACKED.ahead.max()))  # in z; M_h errs too: together f* errs by phi / 2 at most
    B = most or budget.num_simulators
    environments = bench.Environments.draw(STACKED, members(STACKED), B, error, Seed.root(5))
    best = STACKED.unit * (1 + environments.theta.abs() / 2 * (G[0] + G.max()))  # V* (theory.md 5.2)

    def on_round(member, V_star, measured):
        value, escape = enumerated(environments, member, learner.learned)
        for f in learner.alive.nonzero().flatten().tolist():
            V, P = enumerated(environments, f, learner.learned)
            assert bool((best - V <= off_policy * phi + P).all())  # (a) Lemma 8
            V_hat = float(learner.V_hat[f, :, 0].mean())
            assert abs(V_hat - float(best.mean())) <= off_value * phi  # (b) Corollary V*
        assert abs(measured - float(value.mean())) <= epsilon * off_rollouts  # (c)
        loss, accepted = float((best - value).mean()), V_star - measured <= budget.epsilon_demand
        if accepted:
            assert loss <= off_value * phi + epsilon / 2 + epsilon * off_rollouts  # (e) Lemma 10
        else:
            assert float(escape.mean()) > epsilon * escaping  # (d) Lemma 9
            assert loss > off_policy * phi  # (a) needs its second term
        rounds.append((accepted, len(learner.learned)))

    learner = bench.Learner(environments, budget, rule, on_round)
    (chosen,) = learner.sim2real()
    found, learned = zip(*rounds, strict=True)
    assert bool(learner.alive[0]) and found == (False,) * (len(found) - 1) + (True,)
    assert (len(found) >= 2) == (members is flips)
    assert all(a < b for a, b in itertools.pairwise(learned)) and len(found) <= horizon * 2  # a hit in every round
    worlds = bench.fresh_worlds(STACKED, members(STACKED), plan, Seed.root(6))
    assert float(worlds.losses(chosen).mean()) <= epsilon


def test_lemma_8_where_some_states_are_learned():
    """Of two states below the start one is learned: survivors lose what meeting the other costs, and no more."""
    budget, kappa = loops(OF_LOOPS).budget, C_TD * math.sqrt(2) + 1
    environments = bench.Environments.draw(CHAIN, flips(CHAIN), 500, 0.0, Seed.root(7))
    amplitude = (environments.cells[:, 0] * CHAIN.amplitudes).sum(-1)
    best = CHAIN.unit * (1.5 + environments.theta.abs() / 2 * amplitude)  # V* (theory.md 5.2)
    learner, partly = bench.Learner(environments, budget, "sharp"), 0
    learner.consensus(1, 0)
    for state in (2, 0):
        learner.td_eliminate(state)
    for f in learner.alive.nonzero().flatten().tolist():
        V, P = enumerated(environments, f, learner.learned)
        assert bool((best - V <= 4 * kappa * budget.phi + P).all())
        partly += bool(((P > 0.1) & (P < 0.9) & (best - V > 4 * kappa * budget.phi)).any())
    assert bool(learner.alive[0]) and partly >= 1


def test_counts_are_those_of_observations():
    """Shares of cells, actions and payments have the means of the family's own simulators."""
    environments = bench.Environments.draw(MIXTURE, MEMBERS, 3, 0.0, Seed.root(3))
    tried = environments.tried(0, 10**12)
    assert torch.allclose(tried.sum((-1, -2)), environments.cells[:, 0], atol=1e-5)
    paid = tried[..., 1] / tried.sum(-1) * MIXTURE.payment
    assert torch.allclose(paid, environments.rewards[:, 0], atol=1e-5)
