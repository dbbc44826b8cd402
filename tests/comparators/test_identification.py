"""System identification against explicit refits, loops, and the Fisher information of the mixture."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.known import known_on, worlds_of

from s2r_torch.comparators.identification import (
    RIDGES,
    Identification,
    IdentificationOracle,
    Identifying,
    Ridge,
    planned,
    readings_of_states,
    statistics,
)
from s2r_torch.coverage import path_cover
from s2r_torch.families import exact
from s2r_torch.families.grid import Grid
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.rng import Seed
from s2r_torch.runs.evaluation import attempt_values, optimal_values

MIXTURE = Mixture(horizon=2)


def test_statistics_are_means_and_the_pooled_spread():
    g = torch.Generator().manual_seed(0)
    readings = [torch.randn(3, n, 2, dtype=torch.float64, generator=g) for n in (4, 1, 6)]
    for b, row in enumerate(statistics(readings).tolist()):
        arrays = [x[b].numpy() for x in readings]
        means = [float(x[:, c].mean()) for x in arrays for c in range(2)]
        pooled = [sum(((x[:, c] - x[:, c].mean()) ** 2).sum() for x in arrays) / (3 + 0 + 5) for c in range(2)]
        assert row == pytest.approx([*means, *np.sqrt(pooled), *pooled])


def test_one_reading_a_state_has_no_spread():
    u = statistics([torch.ones(2, 1, 1, dtype=torch.float64)])
    assert u.tolist() == [[1.0, 0.0, 0.0]] * 2


def test_the_penalty_is_that_of_least_leave_one_out_error():
    """By explicit refits without every row in turn, with the standardisation of all rows."""
    g = torch.Generator().manual_seed(1)
    u = torch.randn(25, 4, dtype=torch.float64, generator=g)
    theta = u @ torch.randn(4, 2, dtype=torch.float64, generator=g) + torch.randn(
        25, 2, dtype=torch.float64, generator=g
    )
    z = ((u - u.mean(0)) / u.std(0)).numpy()
    centred = (theta - theta.mean(0)).numpy()
    design = np.concatenate([np.ones((25, 1)), z], 1)
    errors = []
    for penalty in RIDGES.tolist():
        shrink = penalty * np.diag([0.0, 1, 1, 1, 1])
        rows = []
        for i in range(25):
            kept = np.arange(25) != i
            A, y = design[kept], centred[kept]
            rows.append(centred[i] - design[i] @ np.linalg.solve(A.T @ A + shrink, A.T @ y))
        errors.append(np.square(rows).mean(0))
    best = np.argmin(errors, 0)
    model = Ridge.fit(u, theta)
    for j in range(2):
        shrink = float(RIDGES[best[j]]) * np.eye(4)
        wanted = np.linalg.solve(z.T @ z + shrink, z.T @ centred[:, j])
        assert model.weights[:, j].tolist() == pytest.approx(wanted.tolist(), rel=1e-6)


def test_predictions_stay_where_training_was():
    u, theta = torch.arange(9.0, dtype=torch.float64)[:, None], torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    assert Ridge.fit(u, theta)(torch.tensor([[-50.0], [100.0]], dtype=torch.float64)).flatten().tolist() == [-1.0, 1.0]


def test_readings_go_to_their_states():
    graph = Grid().graph
    actions = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]])
    states = graph.visited(actions)
    x = states.expand(3, 2, 5)[..., None].double()
    for s, readings in enumerate(readings_of_states(graph, x, actions)):
        assert readings.shape[1] == int((states == s).sum()) and bool((readings == s).all())


@pytest.mark.parametrize("family", [Grid(), MIXTURE], ids=["grid", "mixture"])
def test_planning_for_the_true_theta_is_optimal(family):
    truth = family.truth(family.prior(20, Seed.root(0).generator()))
    assert torch.allclose(planned(truth).values(truth), exact.optimal(truth)[0][:, 0])


def identifying(n: int, count: int) -> Identifying:
    """With many training simulators and readings, so that the regression itself is good."""
    theta = MIXTURE.prior(count, Seed.root(5).generator())
    states = torch.arange(3).expand(count, 3).repeat_interleave(100, 1)
    x = MIXTURE.emit(theta, states, Seed.root(6).generators(range(count)))
    samples = tuple(x[:, 100 * s : 100 * (s + 1)] for s in range(3))
    policy = known_on("mixture").policy
    return Identifying(policy, path_cover(MIXTURE.graph), samples, theta, "oracle", 1, n)


def test_errors_are_those_of_the_fisher_information():
    """Mixture, 100 episodes: sd^2 = 1 / (.278 * 100 + .333 * 50 + .278 * 50), E loss ~ .115 sd^2: 0.9955 of V*."""
    worlds = worlds_of(MIXTURE, 1000)
    values = attempt_values(identifying(50, 600).attempt(worlds), worlds, 1)
    loss = optimal_values(worlds) - values
    variance = 1 / (0.278 * 150 + 0.333 * 50)
    error = float(loss.std()) / len(loss) ** 0.5
    # a ridge on means loses a little of the information: between the bound and 1.6 times it
    assert 0.115 * variance - 4.5 * error <= float(loss.mean()) <= 1.6 * 0.115 * variance + 4.5 * error


def test_both_planners_see_the_same_readings():
    known, few = known_on("grid"), worlds_of(Grid(), 4)
    attempts = [C(n=3, probes=40).fit(known).attempt(few) for C in (Identification, IdentificationOracle)]
    assert [a.unlabelled for a in attempts] == [9, 9]
    assert attempts[0].simulator == 4 * 3 * 40 and attempts[1].simulator == 0
    assert few.draws.ledger.counts["identification"] == 4 * 3 * 40


def test_more_readings_than_training_had_are_used():
    learner = IdentificationOracle(n=2).fit(known_on("grid"))
    attempt = replace(learner, n=40).attempt(worlds_of(Grid(), 3))
    assert attempt.unlabelled == 120
