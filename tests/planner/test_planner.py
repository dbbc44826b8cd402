"""Planner against golden/theory.json: integers exactly up to 2^50, everything else to 1e-12."""

import json
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path

import pytest

from s2r_torch.errors import AssumptionError, SettingError
from s2r_torch.planner.orders import crossings, leading_orders
from s2r_torch.planner.sample_sizes import density_root, density_samples, exact, log, precision
from s2r_torch.planner.schedules import C_TD, RHO, Budget, Setting, accuracy_of, loops, paper, practical, sweep

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())
SETTINGS = {entry["inputs"]["name"]: entry for entry in GOLDEN["settings"]}
NAMES = list(SETTINGS)


def setting_of(name: str) -> Setting:
    given = SETTINGS[name]["inputs"]
    return Setting(
        horizon=given["H"],
        max_states_per_layer=given["S"],
        num_actions=given["A"],
        num_members=given["F"],
        epsilon=float(given["eps"]),
        delta=float(given["delta"]),
        order=float(given["alpha"]),
        obs_dim=given["d"],
        lipschitz_bound=float(given["C_L"]),
        density_constant=float(given["C_dist"]),
        zeta=float(given["zeta"]),
        cover_width=given["width"],
    )


def assert_agrees(got: dict, golden: dict) -> None:
    """Every golden field is there and equal; none of ours is left over."""
    assert got.keys() == golden.keys()
    for name, wanted in golden.items():
        if isinstance(wanted, dict):
            assert_agrees(got[name], wanted)
        elif isinstance(wanted, bool):
            assert got[name] is wanted, name
        elif isinstance(got[name], int):
            with localcontext(prec=200):
                difference = abs(got[name] - Decimal(wanted))
                exactly = "." not in wanted and "e" not in wanted  # golden integers; some of ours round golden reals up
                assert difference == 0 if exactly else difference <= max(1, Decimal(wanted) * Decimal("1e-25")), name
        else:
            assert math.isclose(got[name], float(wanted), rel_tol=1e-12, abs_tol=0), (name, got[name], wanted)


def paper_fields(setting: Setting) -> dict:
    plan = paper(setting, check_range=False)
    b, a, t, e = plan.budget, plan.audit, plan.thresholds, plan.episodes
    depths = range(setting.horizon - 1)
    return {
        "phi": b.phi,
        "eps_max": setting.epsilon_max,
        "eps_in_range": plan.in_range,
        "eps_per_real_trick_A_typo_rhs": a.radius_as_printed,
        "rhs_ndist_correct": plan.phi_real,
        "B_raw": a.num_simulators_raw,
        "B": b.num_simulators,
        "B_thm5_quarter": a.num_simulators_generalisation,
        "B_thm6_with_delta_quarter": a.num_simulators_quarter,
        "delta_dist": plan.delta_density,
        "delta_learn_root": plan.delta_learning,
        "delta_los": plan.delta_loop,
        "n_dist": b.n_dist,
        "n_dist_real_root": a.n_dist_root,
        "n_dist_with_merge_guard": b.n_merge,
        "h": b.bandwidth(b.n_dist),
        "eps_dist": plan.merge_threshold,
        "delta_consensus": b.delta_consensus,
        "delta_td": b.delta_td,
        "n_test": b.n_test,
        "n_train": b.n_train,
        "n_train_2FB_variant": a.n_train_lemma,
        "threshold_box": t.printed,
        "threshold_proof": t.proof,
        "threshold_minfix": t.erratum,
        "L_td": math.log(4 * setting.num_members * b.num_simulators / b.delta_td),
        "threshold_corrected": t.sharp,
        "threshold_corrected_upper_4phi2": t.sharp_limit,
        "survivor_L2_corrected": plan.survivors.sharp,
        "survivor_L2_minfix": plan.survivors.erratum,
        "lemma_bound_true_paper_threshold": plan.survivors.printed_square,
        "lemma_bound_claimed": plan.survivors.claimed_square,
        "eps_test_paper": {str(p): b.epsilon_test(p) for p in depths}
        | {str(setting.horizon - 1): a.epsilon_test_beyond},
        "eps_test_corrected": {str(p): (setting.horizon - p - 1) * a.epsilon_test_repaired for p in depths},
        "eps_demand": b.epsilon_demand,
        "n_1": b.n_rollouts,
        "n_2_raw": a.n_probes_raw,
        "n_2_ceil": math.ceil(a.n_probes_raw),
        "N_2_total": b.n_probes,
        "delta_dfs_in_los": a.delta_learn_in_loop,
        "delta_pp_los": a.delta_rollouts,
        "episodes_sim_kde_bound": e.sim_density,
        "episodes_real_corollary_bound": e.real_paths,
        "episodes_real_representatives": e.real_states,
        "episodes_real_pathcover": e.real_cover,
        "episodes_dfs_learn_bound": e.sim_learning,
        "n_test_in_los": a.n_test_in_loop,
        "n_train_in_los": a.n_train_in_loop,
        "episodes_los_bound_fractional_n2": e.sim_loop,
    }


def sweep_fields(setting: Setting) -> dict:
    plan, printed = sweep(setting, check_range=False), paper(setting, check_range=False)
    b = plan.budget
    return {
        "c_td": C_TD,
        "kappa": plan.kappa,
        "phi": b.phi,
        "c_phi_equiv": plan.phi_divisor,
        "delta_dist": plan.delta_density,
        "delta_gen": plan.delta_generalisation,
        "delta_td_total": plan.delta_learning,
        "phi_gen": plan.phi_generalisation,
        "B": b.num_simulators,
        "sim_kde_radius": plan.density_radius,
        "n_dist_sim": b.n_dist,
        "phi_real": plan.phi_real,
        "delta_real": plan.delta_real,
        "n_dist_real": b.n_real,
        "h_sim": b.bandwidth(b.n_dist),
        "h_real": b.bandwidth(b.n_real),
        "delta_td_each": b.delta_td,
        "n_train": b.n_train,
        "threshold": plan.thresholds.sharp,
        "budget_check_total": plan.guarantee,
        "episodes_real": plan.episodes.real_cover,
        "episodes_real_vs_paper_ratio": printed.episodes.real_paths / plan.episodes.real_cover,
        "episodes_sim_kde": plan.episodes.sim_density,
        "episodes_sim_td": plan.episodes.sim_learning,
    }


def loops_fields(setting: Setting) -> dict:
    plan = loops(setting, check_range=False)
    b = plan.budget
    return {
        "phi": b.phi,
        "c_phi_equiv": plan.phi_divisor,
        "delta_each": plan.delta_density,
        "phi_gen": plan.phi_generalisation,
        "phi_mc": plan.phi_rollouts,
        "B": b.num_simulators,
        "n_1": b.n_rollouts,
        "N_2_total": b.n_probes,
        "delta_td": b.delta_td,
        "delta_consensus": b.delta_consensus,
        "n_train": b.n_train,
        "n_test": b.n_test,
        "threshold": plan.thresholds.sharp,
        "eps_test": {str(p): b.epsilon_test(p) for p in range(setting.horizon - 1)},
        "eps_demand": b.epsilon_demand,
    }


def order_fields(setting: Setting) -> dict:
    o = leading_orders(setting)
    return {
        "sim_los": o.sim_loop,
        "num_sim": o.num_simulators,
        "real_as_stated": o.real_as_stated,
        "sim_kde_as_stated": o.sim_density_as_stated,
        "real_with_missing_HSA": o.real,
        "real_with_pathcover": o.real_cover,
        "sim_kde_with_missing_HSA": o.sim_density,
        "real_alpha_inf_as_stated": o.real_smooth_as_stated,
        "krishnamurthy2016": o.krishnamurthy2016,
        "jiang2017": o.jiang2017,
        "sun2019": o.sun2019,
    }


SECTIONS = {
    "paper": paper_fields,
    "recommended_sweep": sweep_fields,
    "repaired_los": loops_fields,
    "theorem1_leading": order_fields,
}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_golden(name, section):
    got, golden = SECTIONS[section](setting_of(name)), dict(SETTINGS[name][section])
    for key in golden:
        if key.startswith("eps_test"):  # golden has selected depths only
            got[key] = {depth: got[key][depth] for depth in golden[key]}
    assert_agrees(got, golden)


def test_constants_agree_with_golden():
    constants = list(map(float, GOLDEN["constants"].values()))
    ours = [RHO, C_TD, 1 + math.sqrt(50), 1 + math.sqrt(17), (RHO + 2.5) ** 2, (3.5 + math.sqrt(50)) ** 2, 2 + 2**1.5]
    assert ours == pytest.approx(constants, rel=1e-14)


@pytest.mark.parametrize("schedule", [paper, loops, sweep])
@pytest.mark.parametrize(
    ("change", "assumption"),
    [
        ({"delta": 1.5}, "delta in"),
        ({"order": 1.0}, "Assumption 3.*alpha > 1"),
        ({"obs_dim": 0}, "Assumption 3.*d >= 1"),
    ],
)
def test_broken_assumptions_are_named(schedule, change, assumption):
    setting = replace(setting_of("tiny"), **change)
    with pytest.raises(AssumptionError, match=assumption):
        schedule(setting)
    assert not schedule(setting, check_range=False).in_range


def test_epsilon_has_a_largest_value_in_the_paper_only():
    setting = replace(setting_of("tiny"), zeta=1e-4)
    assert paper(replace(setting, epsilon=setting.epsilon_max)).in_range
    with pytest.raises(AssumptionError, match="250 H.2 sqrt.A. C_L zeta.*Assumption 5"):
        paper(replace(setting, epsilon=1.001 * setting.epsilon_max))
    assert loops(setting).in_range and sweep(setting).in_range


def test_all_broken_assumptions_are_told_at_once():
    with pytest.raises(AssumptionError, match="delta in.*alpha > 1.*got delta = 1.5, order = 0.5"):
        sweep(replace(setting_of("tiny"), delta=1.5, order=0.5))


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": 0},
        {"num_members": 2.5},
        {"num_actions": True},
        {"epsilon": 0.0},
        {"epsilon": "a tenth"},
        {"delta": -0.1},
        {"zeta": math.nan},
        {"lipschitz_bound": math.inf},
        {"cover_width": 5},
        {"cover_width": 0},
        {"obs_dim": 1.5},
        {"obs_dim": -1},
        {"cover_width": 1.5},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(SettingError):
        replace(setting_of("tiny"), **change)


def test_a_delta_for_which_no_formula_has_a_value():
    with pytest.raises(SettingError, match="logarithm"):
        paper(replace(setting_of("h1_edge"), delta=5.0), check_range=False)


def test_the_cover_is_at_most_one_sequence_per_state():
    assert replace(setting_of("small"), cover_width=None).cover_width == 9


@pytest.mark.parametrize("radius", ["0.9", "0.3", "0.05", "0.011"])
@pytest.mark.parametrize(("order", "obs_dim"), [(1.5, 1), (2.0, 3), (4.0, 1)])
def test_density_samples_are_the_least(radius, order, obs_dim):
    """Brute force: the largest n whose error exceeds the radius, plus one."""
    a, log_term = order / (2 * order + obs_dim), 1.25
    above = [n for n in range(1, 60_000) if n**-a * math.sqrt(math.log(n) + log_term) > float(radius)]
    with precision():
        n = density_samples(radius, 1, exact(log_term), order, obs_dim)
    if n < 60_000:
        assert n == (above[-1] + 1 if above else 1)
    else:
        assert above[-1] == 59_999


def test_density_samples_do_not_stop_at_the_first_dip():
    """For small log_term the error rises before it falls: n = 1 satisfies the inequality, n = 2 does not."""
    a, radius = 0.25, 0.7
    error = [n**-a * math.sqrt(math.log(n) + 0.1) for n in range(1, 100)]
    assert error[0] < radius < error[1]
    with precision():
        assert density_samples("0.8794", 1, exact("0.1"), 1.0, 2) == 1  # exceeded near 6.69 only
        n = density_samples(radius, 1, exact("0.1"), 1.0, 2)
    assert n > 2 and error[n - 2] > radius > max(error[n - 1 :])


def test_density_root_is_the_lower_branch_of_lambert_w():
    from scipy.special import lambertw

    a, radius, log_term = 2.0 / 5, 0.2, 3.0
    y = -lambertw(-2 * a * radius**2 * math.exp(-2 * a * log_term), -1).real / (2 * a)
    with precision():
        assert float(density_root("0.2", 1, exact(log_term), 2, 1)) == pytest.approx(math.exp(y - log_term), rel=1e-12)


def test_integers_are_exact_where_a_float_cannot_decide():
    """n / phi^2 around 2^50 and far beyond: exact arithmetic puts the ceiling between n - 1 and n."""
    setting = replace(setting_of("tiny"), epsilon=0.000484)
    plan = paper(setting)
    with precision():
        phi = exact("0.000484") / (500 * 4 * exact(2).sqrt())
        root = 2 * log(4 * 16 * plan.budget.num_simulators / (exact("0.1") / 32)) / phi**2
        assert plan.budget.n_train > 2**50
        assert plan.budget.n_train - 1 < root <= plan.budget.n_train


def test_no_overflow_far_beyond_a_float():
    setting = Setting(50, 1000, 100, 10**400, 1e-9, 1e-12, 1.01, 50, 1e6, 1e6, 1e-6)
    for schedule in (paper, loops, sweep):
        plan = schedule(setting)
        assert plan.budget.n_dist > 10**308 and plan.episodes.sim_density > plan.budget.n_dist
        assert 0 < plan.budget.bandwidth(plan.budget.n_dist) < 1
        assert math.isfinite(plan.thresholds.printed)


def test_the_callers_decimal_context_does_not_matter():
    with localcontext(prec=3):
        assert sweep(setting_of("large")) == sweep(setting_of("large"))
        assert sweep(setting_of("large")).budget.n_dist == 1424117661576075


@pytest.mark.parametrize("name", NAMES)
def test_theorem_r_adds_up(name):
    """The general recursion, at the sweep's sizes, gives the theorem's epsilon, up to rounding of sizes."""
    plan = sweep(setting_of(name))
    accuracy = accuracy_of(plan.budget, density_error_real=plan.phi_real, delta_real=plan.delta_real)
    assert plan.guarantee == pytest.approx(plan.setting.epsilon, rel=1e-12)
    assert 0.98 * plan.setting.epsilon < accuracy.suboptimality <= plan.setting.epsilon * (1 + 1e-9)
    assert accuracy.threshold == plan.thresholds.sharp <= plan.thresholds.sharp_limit * (1 + 1e-12)
    kappa_phi = plan.kappa * plan.budget.phi
    horizon = plan.setting.horizon
    assert accuracy.value_spread == pytest.approx([(horizon - h) * kappa_phi for h in range(horizon)], rel=1e-4)
    assert accuracy.loss == pytest.approx([(2 * (horizon - h) - 1) * kappa_phi for h in range(horizon)], rel=1e-4)


def test_an_n_real_for_which_the_density_bound_fails_is_told():
    """theory.md 7: golden n_dist_real = 1 is formula output; n^(2a) >= log n + l is needed as well."""
    plan, log_term = sweep(setting_of("tiny_CL_merge_binds")), math.log(8 * 12 / 0.3)
    assert plan.budget.n_real == 1 < plan.n_real_floor
    assert plan.n_real_floor**0.75 >= math.log(plan.n_real_floor) + log_term
    assert (plan.n_real_floor - 1) ** 0.75 < math.log(plan.n_real_floor - 1) + log_term
    assert sweep(setting_of("small")).n_real_floor < sweep(setting_of("small")).budget.n_real


@pytest.mark.parametrize("name", NAMES)
def test_theorem_l_adds_up(name):
    assert loops(setting_of(name)).guarantee <= setting_of(name).epsilon * (1 + 1e-12)


@pytest.mark.parametrize("schedule", [paper, loops, sweep])
def test_halving_epsilon_costs_more(schedule):
    coarse, fine = schedule(setting_of("small")), schedule(replace(setting_of("small"), epsilon=0.05))
    assert fine.episodes.real_cover > 4 * coarse.episodes.real_cover
    assert fine.budget.num_simulators > 3.9 * coarse.budget.num_simulators


def test_consensus_has_no_threshold_beyond_the_last_layer():
    budget = paper(setting_of("small")).budget
    assert budget.epsilon_test(0) > budget.epsilon_test(1) > 0
    for depth in (-1, 2, 3):
        with pytest.raises(SettingError, match="C1"):
            budget.epsilon_test(depth)
    with pytest.raises(SettingError, match="C1"):
        paper(setting_of("h1_edge")).budget.epsilon_test(0)


SIZES = {
    "num_simulators": 48,
    "n_merge": 300,
    "n_dist": 300,
    "n_test": 500,
    "n_train": 2000,
    "n_rollouts": 4,
    "n_probes": 64,
    "n_real": 100,
}


def some_budget(**changes) -> Budget:
    return practical(3, 2, 64, **{**SIZES, "epsilon": 0.1, "delta": 0.1, **changes})


def test_practical_derives_what_is_not_given():
    budget = some_budget(num_states=5)
    assert budget.delta_td == pytest.approx(0.1 / 40) and budget.delta_consensus == pytest.approx(0.1 / 80)
    assert budget.phi**2 * 2000 == pytest.approx(2 * math.log(4 * 64 * 48 / budget.delta_td))
    assert budget.b_bar == 1.5 * budget.phi
    assert budget.epsilon_test(0) == pytest.approx(2 * (C_TD * math.sqrt(2) + 1) * budget.phi)


def test_practical_takes_what_is_given():
    budget = some_budget(phi=0.01, b_bar=0.0, epsilon_test_step=0.2)
    assert (budget.phi, budget.b_bar, budget.epsilon_test(1)) == (0.01, 0.0, 0.2)
    with pytest.raises(SettingError, match="order"):
        budget.bandwidth(100)
    assert some_budget(order=2.0, obs_dim=1).bandwidth(32) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"n_train": 0},
        {"n_dist": 10.0},
        {"n_real": -1},
        {"num_simulators": True},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"phi": math.nan},
        {"b_bar": -0.1},
        {"epsilon_test_step": 0.0},
        {"num_states": 0},
        {"order": 2.0},
    ],
)
def test_practical_refuses_impossible_numbers(change):
    with pytest.raises(SettingError):
        some_budget(**change)


def test_unknown_schedules_are_refused():
    with pytest.raises(SettingError, match="schedule"):
        replace(some_budget(), schedule="fast")


def test_practical_sizes_say_when_they_buy_nothing():
    assert accuracy_of(some_budget()).is_vacuous
    rich = accuracy_of(some_budget(n_train=10**9, num_simulators=10**5))
    assert not rich.is_vacuous and rich.confidence == 0.9


def test_consensus_values_count_where_there_is_consensus():
    budget = some_budget(n_train=10**6)
    assert accuracy_of(budget, consensus=True).value_error > accuracy_of(budget).value_error


def test_crossings_are_where_the_orders_are_equal():
    setting = setting_of("medium")
    found = crossings(setting)
    assert len(found) == 12
    for crossing in found:
        for factor, cheaper in ((0.9, crossing.cheaper_below), (1.1, crossing.cheaper_above)):
            orders = leading_orders(replace(setting, epsilon=factor * crossing.epsilon))
            pair = (crossing.cheaper_below, crossing.cheaper_above)
            assert min(pair, key=lambda name: getattr(orders, name)) == cheaper  # noqa: B023


def test_orders_need_a_probability():
    with pytest.raises(AssumptionError, match="delta"):
        leading_orders(replace(setting_of("tiny"), delta=1.0))
    assert crossings(replace(setting_of("tiny"), num_members=1))  # Krishnamurthy's order is 0 there: skipped
