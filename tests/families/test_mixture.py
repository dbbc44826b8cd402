"""The mixture family: golden values, backward design, and the finite class around f*."""

import dataclasses
import json
from itertools import product
from pathlib import Path

import pytest
import torch

from s2r_torch.density.grid import DensityGrid
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.families import exact
from s2r_torch.families.mixture.family import Mixture, _min_max_affine
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.families.noise import bump_density
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())["mix_romdp_family"]


THREE = Mixture(horizon=3)


def name(golden):
    return "-".join(str(golden[key]) for key in ("H", "S", "A", "k", "kind", "base"))


every_golden = pytest.mark.parametrize("golden", GOLDEN, ids=name)


def family(golden, **changes):
    names = {"horizon": "H", "max_states": "S", "num_actions": "A", "smoothness": "k", "kind": "kind", "base": "base"}
    return Mixture(**({name: golden[key] for name, key in names.items()} | changes))


def column(values):
    return torch.tensor([[float(v)] for v in values], dtype=torch.float64)


def numbers(values):
    return [pytest.approx(float(v), rel=1e-12) for v in values]


def densities(mixture, grid, theta):
    """The true densities [B, xi, G] of theta [B, 1] on a grid."""
    centres = torch.arange(mixture.num_cells) + 0.5
    bumps = bump_density((grid.nodes - centres) / 0.5, mixture.smoothness) / 0.5  # [G, J]
    return mixture.cell_probabilities(theta) @ bumps.T


@every_golden
def test_constants(golden):
    mixture = family(golden)
    for key, value in golden["constants"].items():
        if key != "xi":
            assert getattr(mixture.constants(), key) == pytest.approx(float(value), rel=1e-12), key
    assert mixture.graph.num_states == float(golden["constants"]["xi"])
    assert mixture.unit == pytest.approx(float(golden["w"]), rel=1e-14)
    assert mixture.payment == pytest.approx(float(golden["reward_cap"]), rel=1e-14)
    assert [sorted(layer.tolist()) for layer in mixture._labels_per_layer()] == golden["layers"]


@every_golden
def test_optimal_values(golden):
    V, _ = exact.optimal(family(golden).truth(column(golden["Vstar_theta"])))
    assert V[:, 0].tolist() == numbers(golden["Vstar_theta"].values())


@every_golden
def test_value_of_a_cell_policy(golden):
    mixture, (values,) = family(golden), golden["V_pi_test"].values()
    V = exact.policy_values(mixture.truth(column(values)), lambda h, x: (h + mixture.cell(x)) % mixture.num_actions)
    assert V[:, 0].tolist() == numbers(values.values())


@every_golden
def test_blind_bayes_optimum(golden):
    truth = family(golden, quadrature=1).truth(column([0.8, -0.8]))
    assert exact.best_blind(truth) == pytest.approx(
        float(golden["two_point_0_8"]["best_blind_history_dependent"]), rel=1e-12
    )
    optimal = float(exact.optimal(truth)[0][:, 0].mean())
    assert optimal == pytest.approx(float(golden["two_point_0_8"]["Vstar"]), rel=1e-12)


def test_blind_does_not_depend_on_how_finely_cells_are_cut():
    mixture = Mixture(horizon=2)
    fine = exact.best_blind(mixture.truth(column([0.8, -0.8])))
    assert fine == pytest.approx(
        exact.best_blind(dataclasses.replace(mixture, quadrature=1).truth(column([0.8, -0.8])))
    )


@every_golden
def test_backward_design(golden):
    """Q* is the designed q in every state of a layer (Assumption 1 holds on all overlaps), rewards stay in range."""
    mixture = family(golden)
    theta = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    truth = mixture.truth(theta)
    V, Q = exact.optimal(truth)
    designed = mixture.q_table(theta[:, 0]).repeat_interleave(mixture.quadrature, 2)[:, mixture.graph.layer]
    assert torch.allclose(Q, designed, rtol=0, atol=1e-14)
    after = V[:, mixture.graph.next_state.clamp(min=0)] * (mixture.graph.next_state >= 0)
    assert torch.allclose(truth.reward, designed - after[:, :, None], rtol=0, atol=1e-14)  # the clamp does nothing
    cap = 1.5 * mixture.unit if mixture.base == "flat" else mixture.payment
    assert float(truth.reward.min()) >= 0 and float(truth.reward.max()) <= cap + 1e-14


@every_golden
def test_stated_density_constants_hold(golden):
    """P_inf and zeta from densities on a fine grid, zeta attained, and the k-th differences below C_alpha."""
    mixture, constants = family(golden), family(golden).constants()
    points = 2000 * mixture.num_cells + 1
    grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, points)
    D = densities(mixture, grid, torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None])
    assert float(D.max()) == pytest.approx(constants.P_inf, rel=1e-6)
    layer = mixture.graph.layer
    gaps = [
        float((D[:, s] - D[:, t]).abs().amax(-1).min())
        for s, t in product(range(len(layer)), repeat=2)
        if s < t and layer[s] == layer[t]
    ]
    assert min(gaps) == pytest.approx(constants.zeta, rel=1e-6)
    spacing = 1 / 2000
    steepest = D[[0, -1]].diff(n=mixture.smoothness, dim=-1).abs().max() / spacing**mixture.smoothness
    assert float(steepest) <= constants.C_alpha and float(steepest) > 0.9 * constants.C_alpha


def test_min_max_affine_against_a_fine_scan():
    g = Seed.root(0).generator()
    theta = torch.linspace(-1, 1, 20001, dtype=torch.float64)[:, None]
    for _ in range(20):
        u, v = torch.randn(2, 4, generator=g, dtype=torch.float64)
        assert _min_max_affine(u, v) == pytest.approx(float((u + theta * v).abs().amax(-1).min()), abs=1e-3)


def test_two_point_prior():
    theta = Mixture(horizon=3, theta_law="two_point").prior(1000, Seed.root(0).generator())
    assert set(theta.flatten().tolist()) == {-0.8, 0.8} and abs(float(theta.mean())) < 0.1


CLASSES = [
    Mixture(horizon=2),
    Mixture(horizon=3, max_states=3, base="stacked"),
    Mixture(horizon=3, max_states=3, num_actions=3, kind="chain"),
    Mixture(horizon=2, num_actions=4, smoothness=3),
]
every_class = pytest.mark.parametrize("mixture", CLASSES, ids=lambda m: f"{m.kind}-{m.base}-{m.num_actions}")


def grid_of(mixture, nodes=97):
    return DensityGrid.uniform(mixture.spec.low, mixture.spec.high, nodes)


@every_class
def test_the_first_member_is_f_star(mixture):
    grid, theta = grid_of(mixture), torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    group = MixturePredictors.build(mixture, grid, flips=8)
    assert group.size == 24
    conditioned = group.condition(densities(mixture, grid, theta))
    assert torch.allclose(conditioned[0], theta[:, 0], atol=1e-4)
    truth = mixture.truth(theta)
    _, Q = exact.optimal(truth)
    for step in range(mixture.horizon):
        for state in truth.graph.states_of(step):
            q = group.q(conditioned, step, truth.x[:, state])
            assert q.shape == (24, 9, truth.x.shape[2], mixture.num_actions)
            assert torch.allclose(q[0], Q[:, state], atol=1e-4)
            assert float(q.min()) >= 0 and float(q.max()) <= 1


@every_class
def test_members_are_flips_times_gains(mixture):
    """Against the formula of theory.md 5.2, written out member by member."""
    grid, theta = grid_of(mixture), column([-0.7, 0.4])
    group = MixturePredictors.build(mixture, grid, flips=5, gains=(1.0, 0.5))
    D, x = densities(mixture, grid, theta), torch.rand(2, 6, 1, dtype=torch.float64) * mixture.num_cells
    theta_hat, signs = group.theta_hat(D), mixture.signs
    for member in range(group.size):
        for step in range(mixture.horizon):
            q = group.q(group.condition(D), step, x)[member]
            for b, i, a in product(range(2), range(6), range(mixture.num_actions)):
                t, j = float(theta_hat[b] * group.gains[member]), int(x[b, i, 0])
                c = float(group.flips[member, step, j] * signs[step, j, a])
                z = 0.5 + 0.5 * t * float(mixture.amplitudes[j]) * c
                later = mixture.horizon - step - 1
                if mixture.base == "stacked":
                    later = 0.5 * later + 0.5 * abs(t) * float(mixture.ahead[step])
                assert float(q[b, i, a]) == pytest.approx(mixture.unit * (later + z), abs=1e-14)


def test_all_flips_have_the_same_greedy_values():
    mixture = Mixture(horizon=2)
    grid, theta = grid_of(mixture), column([-0.6, 0.9])
    group = MixturePredictors.build(mixture, grid)
    assert group.size == 3 * 2**6 and len(group.flips.flatten(1).unique(dim=0)) == 2**6
    q = group.q(group.condition(densities(mixture, grid, theta)), 0, mixture.truth(theta).x[:, 0])
    greedy = q.amax(-1).reshape(3, 64, 2, -1)
    assert torch.allclose(greedy, greedy[:, :1].expand_as(greedy), atol=1e-14)


@every_class
def test_lipschitz_bound_holds_and_is_attained(mixture):
    grid = grid_of(mixture, nodes=41)
    group = MixturePredictors.build(mixture, grid, flips=4)
    bound = group.lipschitz_bound()
    assert bound.dtype == torch.float64 and bool((bound[8:] == 0).all())
    assert torch.allclose(bound[4:8], bound[:4] / 2)
    assert float(bound[0]) <= mixture.constants().C_L * (1 + 1e-12)
    worst = torch.zeros(group.size, dtype=torch.float64)
    D = densities(mixture, grid, column([0.3]))
    x = torch.rand(1, 200, 1, generator=Seed.root(0).generator(), dtype=torch.float64) * mixture.num_cells
    for attack in range(40):
        noise = torch.randn(D.shape, generator=Seed.root(attack).generator(), dtype=torch.float64)
        direction = group._functional.sign().expand_as(D) if attack == 0 else noise.sign()
        moved = D + 0.01 * direction
        for step in range(mixture.horizon):
            change = (group.q(group.condition(moved), step, x) - group.q(group.condition(D), step, x)).abs()
            worst = torch.maximum(worst, change.amax((1, 2, 3)) / 0.01)
    assert bool((worst <= bound + 1e-12).all())
    assert float(worst[0]) == pytest.approx(float(bound[0]), rel=1e-9)


def test_recipe_rebuilds_the_members():
    mixture = Mixture(horizon=3, max_states=3, kind="chain")
    grid = grid_of(mixture)
    group = MixturePredictors.build(mixture, grid, flips=10, seed=3).subset([0, 4, 21])
    rebuilt = MixturePredictors.from_recipe(
        json.loads(json.dumps(group.recipe())), {}, Problem(group.mixture.spec, group.mixture.graph, grid)
    )
    assert torch.equal(rebuilt.flips, group.flips) and torch.equal(rebuilt.gains, group.gains)
    assert rebuilt.mixture == mixture and rebuilt.gains.tolist() == [1.0, 1.0, 0.0]
    again = MixturePredictors.build(mixture, grid, flips=10, seed=3)
    assert torch.equal(again.flips[[0, 4, 21]], group.flips)
    assert not torch.equal(again.flips, MixturePredictors.build(mixture, grid, flips=10, seed=4).flips)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Mixture(kind="ring"), "full or chain"),
        (lambda: Mixture(base="stacked", kind="chain", max_states=3), "negative"),
        (lambda: Mixture(max_states=4), "max_states <= 3"),
        (lambda: Mixture(num_actions=5), "num_actions <= 4"),
        (lambda: Mixture(smoothness=99), "smoothness"),
        (lambda: THREE.truth(column([1.5])), "theta <= 1"),
        (lambda: MixturePredictors.build(Mixture(horizon=8), grid_of(THREE), "all"), "H J = 24"),
        (lambda: MixturePredictors.build(THREE, grid_of(THREE), 0), "flips"),
        (
            lambda: MixturePredictors.build(
                Mixture(horizon=3), grid_of(Mixture(horizon=3, max_states=1, kind="chain"))
            ),
            "covers",
        ),
        (
            lambda: MixturePredictors(Mixture(horizon=3), grid_of(THREE), torch.ones(1, 2, 3), torch.ones(1)),
            "flips of sh",
        ),
    ],
)
def test_settings_are_validated(build, match):
    with pytest.raises(SettingError, match=match):
        build()


def test_densities_of_another_grid_are_refused():
    group = MixturePredictors.build(THREE, grid_of(THREE))
    with pytest.raises(ObservationError, match="another grid"):
        group.condition(torch.zeros(1, 5, 7, dtype=torch.float64))
