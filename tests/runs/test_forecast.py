"""Forecasts: within a fifth of what is counted, for families that know their graph and for those that do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.lanes import Lane
from support.smoke import small_settings

from s2r_torch.episodes import Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.learning.estimator import make_estimator
from s2r_torch.rng import Seed
from s2r_torch.runs.checking import check_for_a_run
from s2r_torch.runs.forecast import ForecastSettings, forecast, graph_of, largest_graph

SCRIPT = Path(__file__).parents[2] / "scripts" / "plan.py"


@pytest.mark.parametrize(
    ("family", "too_many"), [(make_family("grid"), 0.1), (Lane(), 0.2), (make_family("mixture"), 0.5)]
)
def test_the_check_of_a_family_is_forecast(family, too_many):
    """On mixture no statistics are taken: what pays depends on the reading at hand, which nobody knows before."""
    (part,) = (p for p in forecast(small_settings("check_family=true"), family).parts if p.stage == "check")
    report = check_for_a_run(family)
    assert 0.95 * report.episodes <= part.episodes <= (1 + too_many) * report.episodes


def test_hours_are_those_of_the_busiest_worker():
    told = ForecastSettings(step_seconds=0.5, reset_seconds=2.0)
    for part in forecast(small_settings(), make_family("grid")).parts:
        one = part.each.steps * 0.5 + part.each.episodes * 2.0
        assert part.hours(told, 1) == pytest.approx(part.simulators * one / 3600)
        assert part.hours(told, 3) == pytest.approx(-(-part.simulators // 3) * one / 3600)
        assert part.hours(told, 10**6) == pytest.approx(one / 3600)


def test_a_graph_that_nobody_knows_is_the_largest_allowed():
    graph, known = graph_of(make_family("grid"))
    assert known and graph.states_per_layer == [1, 2, 3, 2, 1]
    most = largest_graph(make_family("grid").spec)
    assert all(most.end(path) == s for s, path in enumerate(most.paths))
    assert most.num_states > graph.num_states


def test_the_script_tells_what_a_run_would_take(tmp_path):
    command = [sys.executable, str(SCRIPT), "+experiment=grid", "step_seconds=0.01", "json=true", "workers=[1,4]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["graph_known"] and {part["stage"] for part in found["parts"]} >= {"check", "explore", "certify"}
    for part in found["parts"]:
        assert part["hours"]["1"] == pytest.approx(part["steps"] * 0.01 / 3600)
        assert part["hours"]["4"] < part["hours"]["1"] / 2
    assert not list(tmp_path.iterdir())


def test_wrong_settings_end_with_2(tmp_path):
    command = [sys.executable, str(SCRIPT), "+experiment=grid", "step_seconds=-1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 2 and "step_seconds" in done.stderr and not done.stdout


@pytest.mark.parametrize(
    "overrides, drawn",
    [
        (["density.bandwidth=paper"], True),
        (["density.nodes=24"], True),
        (["density.bandwidth=0.3", "density.nodes=24"], False),
    ],
)
def test_a_pilot_is_told_wherever_one_is_drawn(overrides, drawn):
    """Nodes and bandwidth may each ask for it."""
    settings, family = small_settings(*overrides), make_family("grid")
    told = [p for p in forecast(settings, family).parts if p.stage == "explore" and p.each.episodes == 500]
    guard = Draws(family, Seed.root(0), Ledger()).simulators("train", 24)
    make_estimator(settings.density, guard, 100, Seed.root(0))
    assert bool(told) == drawn and guard.ledger.counts.total() == sum(part.episodes for part in told)
