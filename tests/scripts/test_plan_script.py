"""scripts/plan.py: the table, the JSON, the figure, and nothing else left behind."""

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from support.policies import policy_of

from s2r_torch.deployment.policy_file import save_policy
from s2r_torch.errors import CheckpointError, SettingError
from s2r_torch.planner.curves import EXACT, ORDERS, Curves, exact_crossings, log_range, real_world_curves
from s2r_torch.planner.looking import Looking, looking_of
from s2r_torch.planner.orders import leading_orders
from s2r_torch.planner.schedules import Setting, loops, paper, sweep
from s2r_torch.planner.settings import PlanSettings
from s2r_torch.reports.plan_figure import draw
from s2r_torch.reports.plan_tables import NAMES, number

SCRIPT = Path(__file__).parents[2] / "scripts" / "plan.py"
SETTING = Setting(3, 3, 3, 100, 0.1, 0.05, 2.0, 1, 1.0, 1.0, 0.5, cover_width=4)  # the defaults of conf/plan.yaml


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), "epsilon_points=3", *overrides]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "120"}
    )


def test_json_and_nothing_else(tmp_path):
    done = run(tmp_path, "json=true", "figure=figures/mine.png")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["setting"] == asdict(SETTING)
    for plan in (paper, loops, sweep):
        assert data["plans"][plan.__name__] == asdict(plan(SETTING))
    assert data["orders"] == asdict(leading_orders(SETTING))
    assert data["curves"]["epsilons"] == log_range(1e-3, 1.0, 3)
    assert (tmp_path / "figures" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == ["figures", "figures/mine.png"]


def test_table(tmp_path):
    done = run(tmp_path, "figure=null", "cover_width=null", "num_members=50")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    for text in ("Theorem R", "path cover (w)", "w = 9", "F = 50", "Krishnamurthy 2016", "without constants", "cross"):
        assert text in done.stdout


def test_settings_outside_the_assumptions(tmp_path):
    done = run(tmp_path, "order=0.5")
    assert done.returncode == 2 and not done.stdout
    assert "Assumption 3" in done.stderr and "Traceback" not in done.stderr
    done = run(tmp_path, "order=0.5", "check_range=false", "figure=null", "lipschitz_bound=1e-4")
    assert done.returncode == 0, done.stderr
    assert "Outside the assumptions: paper, loops, sweep" in done.stdout
    assert "n_real of sweep is no advice" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["epsilon=1e-320", "figure=null"], "expected epsilon"),
        (["epsilon=1e-100", "figure=null"], "got epsilon = 1e-100; "),  # sizes that no float holds
        (["delta=1e-320", "figure=null", "json=true"], "got delta = 1e-320; "),  # JSON has no infinity
        (["order=1.0001", "obs_dim=50"], "got order = 1.0001, obs_dim = 50; "),  # nor has a figure
        (["epsilon=5"], "expected epsilon, delta in (0, 1)"),  # what a formula says of its own stays
    ],
)
def test_numbers_too_extreme_for_any_size_are_one_line_about_what_was_asked(tmp_path, given, told):
    done = run(tmp_path, *given)
    assert done.returncode == 2 and not done.stdout.strip()
    assert done.stderr.startswith("SettingError") and told in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("figure", ["plan.xyz", "plan", ""])
def test_a_figure_of_another_kind_is_refused_before_it_is_drawn(figure):
    with pytest.raises(SettingError, match="figure: a file that ends in .png, .pdf, .svg, or null"):
        PlanSettings(figure=figure)
    assert PlanSettings(figure="plan.PNG").figure == "plan.PNG" and PlanSettings(figure=None).figure is None


def test_exact_budgets_and_orders_are_never_in_one_panel():
    figure = draw(SETTING, real_world_curves(SETTING, log_range(1e-3, 1.0, 3)))
    exact, orders = figure.axes
    for axes, names in ((exact, EXACT), (orders, ORDERS)):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [NAMES[name] for name in names]
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title("left")


def test_curves_leave_out_what_is_out_of_range():
    narrow = Setting(2, 2, 2, 16, 0.2, 0.1, 2.0, 1, 0.5, 1.0, 1e-3, cover_width=2)
    curves = real_world_curves(narrow, [0.5 * narrow.epsilon_max, 1.5 * narrow.epsilon_max])
    assert curves.exact["paper"][0] > 0 and curves.exact["paper"][1] is None
    assert all(curves.exact["sweep_cover"])


def test_curves_need_an_increasing_range():
    for epsilons in ([], [0.1, 0.1], [0.2, 0.1]):
        with pytest.raises(SettingError, match="increasing"):
            real_world_curves(SETTING, epsilons)
    for low, high, count in ((0.0, 1.0, 3), (1.0, 0.1, 3), (0.1, 1.0, 1), (0.1, math.inf, 3)):
        with pytest.raises(SettingError, match="low < high"):
            log_range(low, high, count)


def test_exact_crossings_are_found_between_points():
    nothing = dict.fromkeys(EXACT, (None, None, None))
    exact = nothing | {"paper": (1000, 100, 10), "sweep_cover": (200, 120, 80)}
    ((below, above, epsilon),) = exact_crossings(Curves((0.01, 0.1, 1.0), exact, {}))
    assert (below, above) == ("sweep_cover", "paper") and 0.01 < epsilon < 0.1
    assert not exact_crossings(real_world_curves(SETTING, log_range(1e-3, 1.0, 5)))


def test_numbers_are_short_and_never_overflow():
    shown = [number(value) for value in (None, 999_999, 10**6, 10**400, 0.000123)]
    assert shown == ["-", "999 999", "1.00e6", "1.00e400", "1.23e-4"]


@pytest.mark.slow
def test_how_many_real_episodes_a_policy_file_needs(tmp_path):
    """The fewest measured from which on the lower end of the interval stays within epsilon; or that none are enough."""
    curve = Looking((5, 10, 20), (15, 30, 60), (0.60, 0.66, 0.67), (0.59, 0.65, 0.66), (0.61, 0.67, 0.68), 0.68)
    save_policy(tmp_path / "p.safetensors", policy_of(), notes={"looking": asdict(curve)})
    save_policy(tmp_path / "none.safetensors", policy_of())
    for file, epsilon, words in (
        ("p.safetensors", 0.04, "30 real episodes without reward are enough to lose at most 0.04"),
        ("none.safetensors", 0.1, "holds no curve"),
    ):
        done = run(tmp_path, f"policy={file}", f"epsilon={epsilon}")
        assert done.returncode == 0 and words in " ".join(done.stdout.split()), done.stdout + done.stderr
        assert "Theorem" not in done.stdout and not (tmp_path / "plan.png").exists()  # sizes of no file of this problem
    data = json.loads(run(tmp_path, "figure=null", "policy=p.safetensors", "json=true").stdout)
    assert data["looking"]["episodes"] == [15, 30, 60]
    assert run(tmp_path, "policy=no.safetensors").returncode == 2


@pytest.mark.parametrize("change", [{"optimal": -1}, {"low": [0.5]}, {"episodes": [30, 15]}, {"episodes": "15"}])
def test_a_curve_that_no_run_measured_is_refused(change):
    curve = {"readings": [5, 10], "episodes": [15, 30], "value": [0.5, 0.6], "low": [0.4, 0.5], "high": [0.6, 0.7]}
    assert looking_of({"looking": curve | {"optimal": 0.7}}, "p").episodes_for(0.2) == 30
    with pytest.raises(CheckpointError):
        looking_of({"looking": curve | {"optimal": 0.7} | change}, "p")
