"""The sample sizes of a run."""

import math

import pytest

from s2r_torch.density.grid import DensityGrid
from s2r_torch.families.grid import Grid
from s2r_torch.problem import Problem
from s2r_torch.runs.budgets import BudgetSettings


@pytest.mark.parametrize("width", [3, 7, 13])
def test_what_consensus_forgives_adds_up_to_epsilon_whatever_the_horizon_is(width):
    family = Grid(width=width)
    problem = Problem(family.spec, family.graph, DensityGrid.uniform(family.spec.low, family.spec.high, 3))

    def budget(**given):
        return BudgetSettings(epsilon=0.2, **given).make(problem, 8, 10.0, 2.0, 250)

    H = family.spec.horizon
    layers = [budget().epsilon_test(depth) for depth in range(H - 1)]
    assert layers[0] == pytest.approx(0.2 * (H - 1) / H) and layers[-1] == pytest.approx(0.2 / H)
    assert budget(epsilon_test_step=0.03).epsilon_test(H - 2) == 0.03
    assert budget(epsilon_test_step=None).epsilon_test(H - 2) > 0.03  # kappa phi


@pytest.mark.parametrize(("n_dist", "C_L", "n_real"), [(100, 10.0, 100), (100, math.inf, 50), (7, math.inf, 4)])
def test_a_class_that_is_trained_on_fewer_readings_looks_half_as_often(n_dist, C_L, n_real):
    """One that holds f* is told of no number of readings: its radius is that of n_dist."""
    family = Grid()
    problem = Problem(family.spec, family.graph, DensityGrid.uniform(family.spec.low, family.spec.high, 3))
    assert BudgetSettings(n_dist=n_dist).make(problem, 8, C_L, 2.0, 250).n_real == n_real
    assert BudgetSettings(n_dist=n_dist, n_real=3).make(problem, 8, C_L, 2.0, 250).n_real == 3
