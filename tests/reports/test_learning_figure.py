"""learning.png: every member's curve, every call's survivors, and two simulators in which the policy differs."""

import pytest
import torch
from matplotlib.figure import Figure
from support.attacks import bumps, make_net, problem
from support.summaries import summary_by_hand

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.reports.learning_figure import draw_curves, draw_survivors, layer_fits, learning_figure, surfaces
from s2r_torch.reports.style import save_figure, some_steps

LABELS = ("lookup", "lookup-1")
RISKS = [
    (f"held_out_risk/{label}/{member}", step, 0.1 / step + member / 100)
    for label in LABELS
    for member in range(2)
    for step in range(1, 31)
]
ENDS = (("rewards", 2, 5), ("values", 2, 12), ("values", 1, 20), ("values", 0, 30))  # kind, layer, last step
ROWS = RISKS + [(f"{kind}_layer/{label}", end, float(layer)) for label in LABELS for kind, layer, end in ENDS]


def policy(where):
    estimator = DensityEstimator(where.grid, make_kernel("legendre", 2), tuple(where.grid.spacing))
    net = make_net("lookup", where, members=2, loud=3.0).requires_grad_(False)
    return MetaPolicy(Ensemble(where, (net,)), 1, estimator, path_cover(where.graph), 10)


@pytest.mark.parametrize("shape", ["line", "plane", "beside"])
def test_surfaces_are_of_the_two_simulators_whose_policies_differ_most(shape, tmp_path):
    where, g = problem(shape), torch.Generator().manual_seed(0)
    D, theta, meta_policy = bumps(where, 5, g), torch.rand(5, 3, generator=g), policy(where)
    D[3] = D[1]  # a twin, so not the pair
    shown = surfaces(meta_policy, D, theta)
    assert shown.q.shape == (2, where.graph.horizon, where.grid.num_points, where.spec.num_actions)
    assert set(shown.simulators) != {1, 3} and torch.equal(shown.theta, theta[list(shown.simulators)])
    x = where.spec.widened(where.grid.nodes[:4])
    torch.testing.assert_close(shown.q[1, 1, :4], meta_policy.condition(D[shown.simulators[1]]).q(1, x))
    save_figure(learning_figure(summary_by_hand(), ROWS, shown), tmp_path / "learning.png")
    assert (tmp_path / "learning.png").stat().st_size > 30_000


def test_every_member_has_a_curve_for_every_fit_at_its_own_steps():
    """Rewards come first, layers end early, and a second net goes on where the first one ended."""
    axes = Figure().subplots()
    draw_curves(axes, ROWS)
    curves = [tuple(int(step) for step in line.get_xdata()) for line in axes.lines if len(line.get_xdata()) > 2]
    starts = {tuple(range(a + 1, b + 1)) for a, b in ((0, 5), (5, 12), (12, 20), (20, 30))}
    wanted = starts | {tuple(step + 30 for step in one) for one in starts}
    assert {*curves} == wanted and len(curves) == 2 * len(wanted)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["lookup", "lookup-1"]
    named = sorted((text.get_position()[0], text.get_text()) for text in axes.texts)
    assert named[:6] == [(2.5, "2"), (2.5, "rewards"), (8.5, "2"), (16.0, "1"), (17.5, "values"), (25.0, "0")]
    draw_curves(axes, [])


def test_layers_fitted_again_are_a_round_of_their_own():
    again = [("values_layer/lookup", 40, 2.0), ("values_layer/lookup", 60, 0.0)]
    fits = layer_fits([*again[::-1], *ROWS])["lookup"]
    assert [(fit.kind, fit.layer, fit.start, fit.end) for fit in fits[-3:]] == [
        ("values", 0, 20, 30),
        ("values", 2, 30, 40),
        ("values", 0, 40, 60),
    ]


def test_survivors_after_every_call():
    axes = Figure().subplots()
    draw_survivors(axes, summary_by_hand(calls=((3, 5), (1, 2))))
    assert axes.lines[0].get_ydata().tolist() == [8, 5, 2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "3", "1"]


def test_of_many_steps_as_many_are_drawn_as_can_be_read():
    for horizon in (1, 2, 9, 10, 25, 65):
        steps = some_steps(horizon)
        assert steps == sorted({*steps}) and len(steps) == min(horizon, 9)
        assert steps[0] == 0 and steps[-1] == horizon - 1
