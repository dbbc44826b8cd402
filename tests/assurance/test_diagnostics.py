"""Each assumption is reported as plausible where it holds and as doubtful on a family built to violate it alone."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from support.exact_class import Exact
from support.worlds import Tabular, class_of, estimator_of, layered, random_class

from s2r_torch.assurance.diagnostics import _ever_wider, _movement, check_smoothness, diagnose, rough_readings
from s2r_torch.assurance.differences import _difference, _optimal_values, _verdict, in_halves
from s2r_torch.assurance.findings import DiagnosticSettings
from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.episodes import Guard, Ledger, try_actions
from s2r_torch.errors import SettingError
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.learning.exploration import explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.rng import Seed
from s2r_torch.tours import decision_tour, reading_tour

THETA = torch.linspace(-0.9, 0.8, 12, dtype=torch.float64).tolist()
SETTINGS, MERGE = DiagnosticSettings(n=500, n_rough=1000), MergeSettings(1000, zeta=None)


class Smooth(Tabular):
    """Noise that is the sum of three uniforms: smooth of order 2. (That of `Tabular` has kinks.)"""

    def emit(self, theta, state, generators):
        n = state.shape[1]
        noise = torch.stack([torch.rand(3, n, dtype=torch.float64, generator=g).sum(0) - 1.5 for g in generators])
        return (self.number[state] + 0.5 + 0.3 * noise)[..., None]


class Rough(Tabular):
    """Uniform noise: densities jump at both ends."""

    def emit(self, theta, state, generators):
        n = state.shape[1]
        noise = torch.stack([torch.rand(n, dtype=torch.float64, generator=g) - 0.5 for g in generators])
        return (self.number[state] + 0.5 + 0.7 * noise)[..., None]


class Overlapping(Smooth):
    """States of a layer show many of each other's readings: each next one is shifted by four tenths of a cell."""

    def emit(self, theta, state, generators):
        return super().emit(theta, state, generators) - 0.6 * self.number[state][..., None]


def two_states(kind, rewards):
    """A start that pays nothing and leads to two states, which pay these rewards [2]."""
    graph, number = layered([[[0, 1]]], 2)
    table = torch.zeros(3, 2, 2, dtype=torch.float64)
    table[1:] = torch.tensor(rewards, dtype=torch.float64)[:, None, None]
    return kind(graph, number, table, torch.zeros_like(table))


def true_class(world):
    """f* of `two_states`, by the cell of a reading, among others."""
    tables = torch.zeros(2, 2, 4, 2, dtype=torch.float64)
    pay = world.rewards[1:, 0, 0]
    tables[0, 0] = pay  # the action decides where one goes
    tables[0, 1] = pay.repeat_interleave(2)[:, None]
    tables[1] = 0.3
    return class_of(world, tables)


def diagnosed(world, ensemble, settings=SETTINGS, seed=0, theta=THETA, merge=None, estimator=None):
    estimator, root, ledger = estimator or estimator_of(world), Seed.root(seed), Ledger()
    guard = Guard(world.simulators(theta), ledger, "diagnose")
    found = explore(
        guard.for_purpose("explore"), estimator, merge or MergeSettings(1000, 2.0 if merge else None), 500, root
    )
    diagnosis = diagnose(guard, found.D_hat, found, ensemble, estimator, settings, root.child("diagnose"))
    return diagnosis, ledger


def test_where_all_assumptions_hold():
    world = two_states(Smooth, [0.4, 0.1])
    diagnosis, ledger = diagnosed(world, true_class(world), settings=DiagnosticSettings(n=500, n_rough=20_000))
    assert [f.assumption for f in diagnosis.findings] == ["A1", "A2", "A3", "A4", "A5"]
    assert [f.verdict for f in diagnosis.findings] == ["plausible"] * 5
    assert diagnosis["A1"].text == "no two states of a layer show the same readings"
    assert json.loads(json.dumps(asdict(diagnosis), allow_nan=False))["findings"][4]["assumption"] == "A5"
    lines = diagnosis.lines()
    assert len(lines) == 5 and all(line.startswith(f"A{i + 1} plausible: ") for i, line in enumerate(lines))
    graph = world.graph
    w, half = len(path_cover(graph)), len(decision_tour(graph))  # n / A episodes along each
    assert ledger.counts["diagnose"] == 12 * half * 500 // 2 + 4 * w * 20_000


def test_overlapping_states_that_agree_are_fine():
    """Assumption 1 asks for one Q* on the overlap, not for disjoint states."""
    world = two_states(Overlapping, [0.3, 0.3])
    a1 = diagnosed(world, true_class(world))[0]["A1"]
    assert a1.verdict == "plausible" and a1.numbers["pairs"] == 1 and a1.numbers["p"] > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_states_that_disagree_are_reported(seed):
    """Where both states show x, one pays 0.4 and the other 0.1: no predictor of (D, x, a) can be Q*."""
    world = two_states(Overlapping, [0.4, 0.1])
    a1 = diagnosed(world, true_class(world), seed=seed)[0]["A1"]
    assert a1.verdict == "violated" and a1.numbers["p"] <= 0.01
    assert a1.numbers["disagreement"] == pytest.approx(0.3, abs=0.06)
    assert "between paths (0,) and (1,)" in a1.text


def test_disagreement_about_what_follows_is_reported_too():
    """Rewards agree, but the successors of the overlapping states are worth 0.3 and 0: Q* differs by 0.3."""
    graph, number = layered([[[0, 1]], [[0, 0], [1, 1]]], 2)
    rewards = torch.zeros(graph.num_states, 2, 2, dtype=torch.float64)
    rewards[graph.end((0, 0))] = 0.3

    class Middle(Smooth):
        def emit(self, theta, state, generators):
            shift = 0.6 * (self.graph.layer[state] == 1) * self.number[state]
            return super().emit(theta, state, generators) - shift[..., None]

    world = Middle(graph, number, rewards, torch.zeros_like(rewards))
    a1 = diagnosed(world, random_class(world, 2, 0))[0]["A1"]
    assert a1.verdict == "violated" and a1.numbers["disagreement"] == pytest.approx(0.3, abs=0.06)
    assert {graph.paths[int(a1.numbers[key])] for key in ("state", "other")} == {(0,), (1,)}


@pytest.mark.parametrize("kind", ["full", "chain"])
def test_the_mixture_overlaps_everywhere_and_is_fine(kind):
    """theory.md 5.2: its states overlap, pay differently, and have the same Q*; its class holds f*."""
    problem = Exact(Mixture(horizon=2, kind=kind), 4)
    guard, graph = problem.guard(problem.theta(16, Seed.root(0))), problem.mixture.graph
    D_hat = estimate_densities(guard, graph, problem.estimator, 2000, Seed.root(0))
    merge = MergeSettings(20_000, problem.mixture.spec.zeta)
    found = explore(guard, problem.estimator, merge, 10, Seed.root(1))
    run = (guard, D_hat, found, problem.ensemble, problem.estimator)
    diagnosis = diagnose(*run, DiagnosticSettings(n=1000, n_rough=40_000), Seed.root(2))
    assert [f.verdict for f in diagnosis.findings] == ["plausible"] * 5
    assert diagnosis["A1"].numbers["pairs"] == 1


def test_a_class_without_f_star_is_reported():
    world = two_states(Smooth, [0.4, 0.1])
    ensemble = true_class(world)
    a2 = diagnosed(world, ensemble.subset([1]))[0]["A2"]
    assert a2.verdict == "violated" and a2.numbers["error"] == pytest.approx(0.2, abs=0.03)
    assert "the best of 1 members errs most" in a2.text and "path (1,)" in a2.text


SMOOTHNESS = [(Smooth, "plausible", 1.3, 2), (Tabular, "violated", 0.8, 1), (Rough, "violated", -0.1, 0.3)]


@pytest.mark.parametrize(("kind", "verdict", "low", "high"), SMOOTHNESS)
def test_densities_with_jumps_and_kinks_are_reported(kind, verdict, low, high):
    """A3 asks for more than order 1: sums of three uniforms have order 2, of two 1, and a uniform law 0."""
    world = two_states(kind, [0.4, 0.1])
    guard, ensemble = world.guard(THETA[:4]), true_class(world)
    a3 = check_smoothness(guard, ensemble, estimator_of(world), DiagnosticSettings(n_rough=40_000), Seed.root(0))
    assert a3.verdict == verdict and low < a3.numbers["order"] < high


@pytest.mark.parametrize(("below", "looked_at"), [(1, 2), (7, 8), (8, 8), (200, 8)])
def test_of_many_states_some_that_few_episodes_pass_are_looked_at(below, looked_at):
    """A start, and so many states below it, of which every sequence of actions passes one."""
    graph, _ = layered([[[*range(below)]]], below)
    needs = rough_readings(graph, 7)
    at = needs.nonzero().flatten()
    assert len(needs) == 1 + below and needs[at].tolist() == [7] * looked_at
    assert sum(n for _, n, _ in reading_tour(graph, needs.tolist())) <= 7 * looked_at


def test_few_observations_do_not_show_smoothness():
    world = two_states(Rough, [0.4, 0.1])
    guard, ensemble = world.guard(THETA[:4]), true_class(world)
    a3 = check_smoothness(guard, ensemble, estimator_of(world), DiagnosticSettings(n_rough=50), Seed.root(0))
    assert a3.verdict == "says nothing" and "50 observations do not show" in a3.text


@pytest.mark.parametrize("n_rough", [300, 1000, 5000])
def test_wide_bandwidths_do_not_make_a_smooth_density_rough(n_rough):
    """What stands out of the noise may be a bandwidth as wide as the density: that is no sign of roughness."""
    problem, settings = Exact(Mixture(horizon=2), 1), DiagnosticSettings(n_rough=n_rough)
    guard = problem.guard(problem.theta(4, Seed.root(0)))
    a3 = check_smoothness(guard, problem.ensemble, problem.estimator, settings, Seed.root(n_rough))
    assert a3.verdict in ("plausible", "says nothing")


def test_a_member_without_a_certificate_is_reported():
    world = two_states(Smooth, [0.4, 0.1])
    ensemble = true_class(world)
    ensemble.groups[0].gains[1] = 2.0
    a4 = diagnosed(world, ensemble)[0]["A4"]
    assert a4.verdict == "plausible" and a4.numbers["C_L"] == float(ensemble.lipschitz_bound().max()) > 0
    ensemble.groups[0].lipschitz_bound = lambda: torch.tensor([1.0, math.inf])
    assert diagnosed(world, ensemble)[0]["A4"].verdict == "violated"


def test_a_bound_that_excludes_nothing_says_nothing():
    """C_L times noise of 1 or more: values are in [0, 1] anyway. How far they really move stands beside it."""
    world = two_states(Smooth, [0.4, 0.1])
    ensemble = true_class(world)
    ensemble.groups[0].lipschitz_bound = lambda: torch.tensor([1.0, 40.0])
    a4 = diagnosed(world, ensemble)[0]["A4"]
    assert a4.verdict == "says nothing" and a4.numbers["error"] > 1 and a4.numbers["moved"] == 0.0
    assert "more than a value can move; measured, two estimates from 250 readings" in a4.text


def test_how_far_values_move_agrees_with_loops():
    """On the mixture, whose members read the densities."""
    problem = Exact(Mixture(horizon=2), 4)
    guard, estimator = problem.guard(problem.theta(5, Seed.root(0))), problem.estimator
    paths = problem.mixture.graph.paths
    data = [in_halves(try_actions(guard, path, 200, Seed.root(s))) for s, path in enumerate(paths)]
    one, other = (torch.stack([estimator(halves[h].x) for halves in data], 1) for h in (0, 1))
    (group,) = problem.ensemble.groups
    largest, apart = torch.zeros(5), torch.zeros(5)
    for b in range(5):
        for s, halves in enumerate(data):
            step, x = int(problem.mixture.graph.layer[s]), halves[0].x[b : b + 1]
            q, p = (group.q(group.condition(D[b : b + 1]), step, x) for D in (one, other))
            largest[b] = max(largest[b], float((q - p).abs().max()))
            apart[b] = max(apart[b], float((one[b, s] - other[b, s]).abs().max()))
    moved = _movement(guard, data, problem.ensemble, estimator)
    assert moved == pytest.approx((float(largest.mean()), float(apart.mean())), abs=1e-6) and moved[0] > 0


VERDICTS = [
    ([0.09, 0.1, 0.08, 0.09], "violated"),  # 0.3, surely
    ([0.0004, 0.0005, 0.0004, 0.0005], "doubtful"),  # 0.02, surely, but below the tolerance
    ([0.5, -0.5, 0.4, -0.3], "says nothing"),  # 0.5 could be missed
    ([0.001, -0.001, 0.0005, -0.0004], "plausible"),
]


@pytest.mark.parametrize(("squares", "verdict"), VERDICTS, ids=[v for _, v in VERDICTS])
def test_differences_follow_the_rules(squares, verdict):
    """One place of that kind beside a harmless one."""
    seen = {"fine": _difference(torch.tensor([0.0, 0.0001, -0.0001, 0.0])), "place": _difference(torch.tensor(squares))}
    found, place = _verdict(seen, SETTINGS)
    assert found == verdict and (place == "place" or verdict == "plausible")


def test_a_real_difference_outweighs_one_that_is_unknown():
    real, unknown = (
        _difference(torch.tensor([0.09, 0.1, 0.08, 0.09])),
        _difference(torch.tensor([0.5, -0.5, 0.4, -0.3])),
    )
    assert _verdict({1: unknown, 2: real}, SETTINGS) == ("violated", 2)


def test_an_order_in_between_is_doubtful():
    """Densities that look smooth of order 1.6, where at least nine tenths of the kernel's order of 2 are asked for."""
    world = two_states(Smooth, [0.4, 0.1])
    guard, ensemble, settings = world.guard(THETA[:4]), true_class(world), DiagnosticSettings(n_rough=40_000)
    strict = replace(settings, least_share=0.9)
    assert check_smoothness(guard, ensemble, estimator_of(world), strict, Seed.root(0)).verdict == "doubtful"


def test_states_that_do_not_overlap_cost_no_regression(monkeypatch):
    """Q* is regressed only where two states of a layer show the same readings."""
    calls = []
    watched = lambda *args: calls.append(1) or _optimal_values(*args)  # noqa: E731
    monkeypatch.setattr("s2r_torch.assurance.differences._optimal_values", watched)
    for kind, count in ((Smooth, 0), (Overlapping, 2)):  # once for either half of the data
        world = two_states(kind, [0.3, 0.3])
        diagnosed(world, true_class(world))
        assert len(calls) == count


def test_states_that_are_hardly_apart_are_reported():
    """Found thanks to a declared zeta; but their distance is of the size of the noise."""

    class Alike(Smooth):
        def emit(self, theta, state, generators):
            return super().emit(theta, state, generators) - 0.97 * self.number[state][..., None]

    world = two_states(Alike, [0.3, 0.3])
    merge = MergeSettings(n_merge=2000, zeta=0.2, margin=0.0)
    a5 = diagnosed(world, true_class(world), merge=merge)[0]["A5"]
    assert a5.verdict == "doubtful" and a5.numbers["zeta"] < 3 * a5.numbers["noise"]
    roomy = diagnosed(two_states(Smooth, [0.3, 0.3]), true_class(world))[0]["A5"]
    assert roomy.verdict == "plausible" and roomy.numbers["least"] > 1


def test_one_state_per_layer_is_always_separated():
    graph, number = layered([[[0, 0]]], 2)
    world = Tabular(graph, number, torch.full((2, 2, 2), 0.2).double(), torch.zeros(2, 2, 2).double())
    diagnosis = diagnosed(world, class_of(world, torch.full((1, 2, 2, 2), 0.2).double()))[0]
    assert diagnosis["A5"].text == "no layer has two states"


def test_the_seed_decides_everything():
    world = two_states(Overlapping, [0.4, 0.1])
    first, again = (diagnosed(world, true_class(world))[0] for _ in range(2))
    assert first.lines() == again.lines() != diagnosed(world, true_class(world), seed=1)[0].lines()


def test_one_simulator_has_no_standard_error():
    world = two_states(Smooth, [0.4, 0.1])
    with pytest.raises(SettingError, match="at least 2 simulators"):
        diagnosed(world, true_class(world), theta=[0.1])


@pytest.mark.parametrize("wrong", [{"n": 3}, {"few": 0}, {"reach": 0.0}, {"level": math.nan}, {"tolerance": -1.0}])
def test_settings_are_validated(wrong):
    with pytest.raises(SettingError, match=f"expected {next(iter(wrong))}: a .*number"):
        DiagnosticSettings(**wrong)


@pytest.mark.parametrize("obs_dim", [1, 2, 3, 4])
def test_smoothness_is_looked_at_below_the_width_of_the_box(obs_dim):
    grid = DensityGrid.uniform((0.0,) * obs_dim, (1.0,) * obs_dim, 12)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2), (0.2,) * obs_dim)
    widths = [max(wider.bandwidth) for wider in _ever_wider(estimator)]
    assert len(widths) >= 10 and widths == sorted(widths) and widths[-1] < 1
