"""The b_bar of the calibrated rule against a loop, and what a class that holds f* needs."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from support.smoke import small_settings

from s2r_torch.density.grid import DensityGrid
from s2r_torch.episodes import Ledger, rollout
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.graph import START
from s2r_torch.learning.calibration import (
    BellmanTable,
    CalibrationSettings,
    bellman_table,
    calibrate,
    density_b_bar,
    earn_the_most,
    measured_b_bar,
    replay,
    stand_in,
)
from s2r_torch.learning.elimination import Elimination, Judges, Knowledge, dfs_learn
from s2r_torch.planner.budget import practical
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed


@pytest.fixture(scope="module")
def calibrated():
    """A mixture class on exact densities: settings, class, simulators, densities, seed."""
    family, seed = make_family("mixture", horizon=2), Seed.root(5)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 121)
    ensemble = Ensemble(Problem(family.spec, family.graph, grid), (MixturePredictors.build(family, grid, flips=8),))
    draws = Draws(family, seed, Ledger())
    simulators = draws.simulators("calibrate", 6)
    k = family.smoothness
    t = 2 * (grid.nodes[:, 0] % 1) - 1
    bump = math.factorial(2 * k + 1) / (2 ** (2 * k + 1) * math.factorial(k) ** 2) * (1 - t**2) ** k / 0.5
    weights = family.cell_probabilities(draws.theta("calibrate", 6))  # [B, xi, J]
    D = weights[..., grid.nodes[:, 0].long().clamp(max=family.num_cells - 1)] * bump
    return ensemble, simulators, D, seed


def test_b_bar_is_the_root_of_the_quantile_of_the_stand_ins_excess(calibrated):
    ensemble, simulators, D, seed = calibrated
    settings = CalibrationSettings(simulators=6, n=400, n_rollouts=3, quantile=0.75)
    found = calibrate(simulators, D, ensemble, settings, seed)
    table = bellman_table(simulators, D, ensemble, 400, seed.child("table"))
    total, earned = table.risks.mean(1).sum(1).tolist(), table.earned[:, :, 0].tolist()
    first = max(range(len(total)), key=lambda f: sum(earned[f]))
    earners = []
    for f, mine in enumerate(earned):
        behind = [a - b for a, b in zip(earned[first], mine, strict=True)]
        if statistics.mean(behind) <= statistics.stdev(behind) / math.sqrt(6):
            earners.append(f)
    assert found.earners == tuple(earners) and found.f0 == min(earners, key=lambda f: total[f])
    for s in range(table.risks.shape[2]):
        risks = table.risks[:, :, s].tolist()
        excess = sorted(risks[found.f0][b] - min(row[b] for row in risks) for b in range(6))
        assert found.b_bar[s] ** 2 == pytest.approx(excess[math.ceil(0.75 * 7) - 1])


def test_a_quantile_beyond_the_simulators_is_the_largest_excess():
    risks = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.15, 0.4]])[:, :, None]  # the first is best on average
    for quantile, wanted in ((0.5, 0.0), (0.75, 0.05), (0.9, 0.05), (1.0, 0.05)):
        assert float(measured_b_bar(risks, 0, quantile)) ** 2 == pytest.approx(wanted)


def test_a_replayed_sweep_is_the_sweep(calibrated):
    """Survivors at every b_bar, from one table, against the rule applied state by state in a loop."""
    ensemble, simulators, D, seed = calibrated
    risks = bellman_table(simulators, D, ensemble, 300, seed).risks
    layer = ensemble.problem.graph.layer
    F, B, xi = risks.shape
    b_bars = torch.tensor([[0.0] * xi, [1e-3] * xi, [1.0, 0.0, 0.0]]).sqrt()
    found = replay(risks, layer, 300, b_bars, 0.1)
    for k, b_bar in enumerate(b_bars.tolist()):
        alive = list(range(F))
        for s in (1, 2, 0):  # leaves first
            pooled = {f: float(risks[f, :, s].mean()) for f in alive}
            noise = math.sqrt(math.log(F / (0.1 / xi)) / (2 * 300 * B))
            limit = min(pooled.values()) + (b_bar[s] + noise) ** 2
            alive = [f for f in alive if pooled[f] <= limit]
        assert found[k].nonzero().flatten().tolist() == alive
    assert 1 <= int(found[0].sum()) < int(found[1].sum())


def test_f_star_hardly_overrates_itself(calibrated):
    """V_hat* minus what its policy earned is noise: 6 x 500 returns in [0, 1]."""
    ensemble, simulators, D, seed = calibrated
    only = ensemble.subset([0])
    found = calibrate(simulators, D, only, CalibrationSettings(n=2000, n_rollouts=500), seed)
    assert abs(found.value_bias) < 4.5 * 0.5 / math.sqrt(6 * 500)
    assert found.b_bar == (0.0,) * 3  # one member is always the best


def test_values_of_successors_enter_the_risk(calibrated):
    """Risk at the start with V_hat of the leaves differs from that without."""
    ensemble, simulators, D, seed = calibrated
    table = bellman_table(simulators, D, ensemble, 200, seed)
    assert bool((table.V_hat[:, :, 1:] > 0).all())
    assert float(table.risks[0, :, 0].mean()) < float(table.V_hat[0, :, 1:].mean())


def test_what_members_earn_is_what_their_episodes_earn(calibrated):
    """By others' decisions, against episodes of each member: 6 x 4000 returns in [0, 1], and as many decisions."""
    ensemble, simulators, D, seed = calibrated
    earned = bellman_table(simulators, D, ensemble, 4000, seed).earned[:, :, 0].mean(1)
    evaluator = ensemble.evaluator(D)
    for f in range(ensemble.size):
        returns = rollout(simulators, evaluator.policy_of(f), 4000, seed.child("episodes", f)).returns
        assert float(earned[f]) == pytest.approx(float(returns.mean()), abs=4.5 * 1.5 / math.sqrt(6 * 4000))
    assert float(earned.max() - earned.min()) > 0.1  # members differ


def test_who_is_more_than_one_standard_error_behind_earns_less():
    """By hand, over 16 simulators: all but the best are behind by 0.04; their standard errors are .042, .038, .025."""
    noise = torch.tensor([1.0, -1.0]).double().repeat(8) * (15 / 16) ** 0.5  # standard deviation 1, mean 0
    best = torch.full((16,), 0.8, dtype=torch.float64)
    earned = torch.stack([best, best - 0.04 - 0.168 * noise, best - 0.04 - 0.152 * noise, best - 0.04 - 0.1 * noise])
    assert earn_the_most(earned).tolist() == [True, True, False, False]


def test_who_fits_best_where_no_good_policy_goes_does_not_stand_for_f_star(calibrated):
    """Made-up tables: the first member fits better and earns less, on every simulator."""
    ensemble = calibrated[0]
    xi = ensemble.problem.graph.num_states
    risks = torch.tensor([0.1, 0.3, 0.2])[:, None, None].expand(3, 6, xi)
    earned = torch.tensor([0.5, 0.7, 0.7])[:, None, None].expand(3, 6, xi)
    f0, earners = stand_in(BellmanTable(risks, earned, earned))
    assert f0 == 2 and earners.tolist() == [False, True, True]


def test_the_choice_counts_the_risk_at_states_that_judges_never_see(calibrated):
    """Consensus everywhere, so that the start alone is learned."""
    ensemble, simulators, D, seed = calibrated
    graph = ensemble.problem.graph
    sizes = dict.fromkeys(("n_merge", "n_dist", "n_rollouts", "n_probes", "n_real"), 1)
    sizes |= {"num_simulators": 6, "n_test": 50, "n_train": 200}
    budget = practical(2, 2, 2, num_states=3, epsilon=0.1, delta=0.1, epsilon_test_step=1.0, **sizes)

    chosen = {}
    for counted in (None, (0.5, 0.1)):
        rule = Elimination("calibrated", b_bar=(1.0,) * graph.num_states, risk=counted)
        judges = Judges(simulators, D, graph, ensemble.subset([0, 1]), budget, rule, seed)
        knowledge = dfs_learn(START, Knowledge.blank(judges), judges)
        assert [call.state for call in knowledge.history] == [START]
        chosen[counted] = knowledge
    plain, counting = chosen.values()
    assert torch.allclose(counting.risk - plain.risk, torch.tensor([0.5, 0.1], dtype=torch.float64))
    assert plain.best() == 0 and counting.best() == 1


def test_the_choice_is_among_those_that_earn_the_most_while_one_survives():
    blank = Knowledge(torch.ones(3, dtype=torch.bool), *([torch.zeros(3)] * 2), torch.tensor([0.1, 0.3, 0.2]), None)
    earning = replace(blank, earners=torch.tensor([False, True, True]))
    assert earning.best() == 2
    assert replace(earning, alive=torch.tensor([True, True, False])).best() == 1
    assert replace(earning, alive=torch.tensor([True, False, False])).best() == 0  # none of them is left


def test_density_b_bar_is_no_more_than_a_value_can_be(calibrated):
    graph = calibrated[0].problem.graph
    assert density_b_bar(graph, 2.0, 0.1) == pytest.approx((0.4, 0.2, 0.2))  # the start, and two leaves
    assert density_b_bar(graph, 50.0, 0.1) == (2.0, 1.0, 1.0)
    assert density_b_bar(graph, 0.0, 0.1) == (0.0, 0.0, 0.0)


def test_settings_are_validated():
    with pytest.raises(SettingError):
        CalibrationSettings(quantile=0.0)
    with pytest.raises(SettingError):
        small_settings("predictors.calibration.n=0")


def test_calibration_draws_are_counted_apart():
    draws = Draws(make_family("grid"), Seed.root(0), Ledger())
    assert draws.ledger.counts["calibrate"] == 0
    assert torch.equal(draws.theta("calibrate", 3), draws.theta("calibrate", 3))
