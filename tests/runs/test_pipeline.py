"""Whole runs at smoke size: what they write, that they repeat bit by bit, and what they say when things go wrong."""

import json
from io import StringIO

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from support.smoke import small_settings

from s2r_torch.deployment.policy_file import load_policy
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.families.exact import optimal, policy_values
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.training import fit as training
from s2r_torch.reports import run_figure
from s2r_torch.reports.console import table, write_metrics
from s2r_torch.reports.summary import estimates, partial_summary, summary
from s2r_torch.runs.draws import Draws
from s2r_torch.runs.evaluation import member_regrets
from s2r_torch.runs.pipeline import Run, Silent, explore_family, train_predictors

MIXTURE = (
    "+experiment=mixture",
    "density.merge.n_merge=5000",
    "budget.n_dist=4000",
    "budget.n_real=400",
    "budget.n_train=4000",
    "budget.n_test=500",
    "budget.num_simulators=4",
)


def grid_run(*overrides: str, folder=None) -> Run:
    return Run(small_settings("+experiment=grid", *overrides), make_family("grid"), folder).execute()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    return grid_run(folder=tmp_path_factory.mktemp("run"))


def without_seconds(run: Run) -> str:
    return json.dumps({k: v for k, v in summary(run).items() if k != "seconds"}, sort_keys=True)


def test_same_seed_same_summary(finished):
    assert without_seconds(grid_run()) == without_seconds(finished)
    assert without_seconds(grid_run("seed=1")) != without_seconds(finished)


def test_summary_has_what_users_read(finished):
    found = summary(finished)
    assert set(found) >= {"experiment", "seed", "method", "rule", "net", "problem", "ensemble", "value", "episodes"}
    assert found["problem"]["states_per_layer"] == [1, 2, 3, 2, 1]
    assert found["ensemble"]["size"] == 4
    value = found["value"]
    assert 0 <= value["deployed_low"] <= value["deployed"] <= value["deployed_high"] <= value["optimal"] <= 1
    assert value["open_loop"] == pytest.approx(0.5, abs=0.1)  # of 20 draws of theta
    assert found["episodes"]["real_per_world"] == 3 * 100  # w n_real
    assert found["episodes"]["real_one_path_per_state"] == 9 * 100
    assert found["episodes"]["real_as_stated"] == 5 * 3 * 2 * 100  # n H S A
    merging = found["merging"]
    assert merging["largest_merged"] < merging["noise"] < merging["zeta_hat"] / 3
    assert merging["largest_z"] < 6
    bias, layers = found["elimination"]["density_bias"], finished.exploration.graph.layer.tolist()
    assert len(bias) == len(found["elimination"]["slack"]) == 9
    assert all(b == (1 if step == 4 else 2) * bias[layers.index(4)] for b, step in zip(bias, layers, strict=True))
    json.dumps(found)


def test_every_episode_is_counted(finished):
    """explore: a pilot per layer, deciders x n_merge per path, simulators x n_dist per state; judges explore again."""
    visits = len(finished.exploration.visits) + len(finished.outcome.exploration.visits)
    counts = finished.ledger.counts
    assert counts["explore"] == 5 * 24 * 500 + visits * 4 * 1000 + (24 + 4) * 9 * 100
    assert counts["train"] == 24 * 9 * 16
    assert counts["calibrate"] == 4 * (9 * 50 * 2 + 9 * 100 + 2)  # the class and the blind one, densities, rollouts
    assert counts["real"] == 2 * 300
    assert counts["certify"] == 8 * (3 * 100 + 4 + 2 * 9 * 50)  # rehearsals, their episodes, two accurate densities
    assert counts["evaluate"] == 20 * 3 * (5 + 10 + 20 + 50 + 100 + 200)  # the curve; this family's values are exact


def test_run_folder_has_every_stage(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names >= {"exploration.safetensors", "class.safetensors", "calibration.json", "policy.safetensors"}
    loaded = load_policy(finished.folder / "policy.safetensors")
    x = torch.rand(2, 50, 2, dtype=torch.float64)
    theirs, ours = (policy.condition(finished.D_real).act(1, x) for policy in (loaded, finished.meta_policy))
    assert torch.equal(theirs, ours)


def test_table_figure_and_metrics(finished, tmp_path):
    found = summary(finished)
    assert table(found).row_count >= 8
    run_figure.run_figure(
        found, [("bellman_risk/lookup", 20, 0.1), ("bellman_risk/lookup", 40, 0.05)], tmp_path / "run.png"
    )
    assert (tmp_path / "run.png").stat().st_size > 10_000
    write_metrics(tmp_path / "metrics.csv", [("survivors", 1, 3)])
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["series,step,value", "survivors,1,3"]


@pytest.mark.parametrize("method, rule", [("sim2real", "erratum"), ("sweep", "sharp")])
def test_mixture_keeps_f_star_and_deploys_it(method, rule):
    run = Run(small_settings(*MIXTURE, f"method={method}", f"rule={rule}"), make_family("mixture", horizon=2)).execute()
    found = summary(run)
    assert found["ensemble"]["f_star_survives"] and found["net"] == "known"
    assert found["value"]["optimal"] - found["value"]["deployed"] <= 0.02
    assert any("true theta" in notice for notice in found["notices"])


def test_printed_rule_eliminates_nothing_and_says_so():
    run = Run(small_settings(*MIXTURE, "rule=paper"), make_family("mixture", horizon=2)).execute()
    found = summary(run)
    assert found["ensemble"]["survivors"] == found["ensemble"]["size"]
    assert any("eliminated nothing" in notice for notice in found["notices"])


def test_interrupted_run_leaves_finished_stages(tmp_path):
    class Impatient(Silent):
        def stage(self, name, total):
            if name == "calibrate":
                raise KeyboardInterrupt

    run = Run(small_settings("+experiment=grid"), make_family("grid"), tmp_path, Impatient())
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert (tmp_path / "exploration.safetensors").exists()
    assert load_policy(tmp_path / "class.safetensors").ensemble.size == 4
    assert not (tmp_path / "policy.safetensors").exists()
    left = partial_summary(run, "KeyboardInterrupt")
    assert left["finished_stages"] == ["explore_family", "train_predictors"] and left["status"] == "unfinished"


def test_interrupted_training_goes_on_in_its_folder(finished, tmp_path, monkeypatch):
    """In the middle of the second fit: the first one is not done again, and the summary is the uninterrupted run's."""
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)

    class Impatient(Silent):
        def record(self, series, step, value):
            if series.startswith("held_out_risk/blind/") and step == 50:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(small_settings("+experiment=grid"), make_family("grid"), tmp_path, Impatient()).execute()
    assert {path.name for path in (tmp_path / "training").iterdir()} == {"lookup.safetensors", "blind.safetensors"}
    whole = grid_run(folder=tmp_path)
    assert without_seconds(whole) == without_seconds(finished) and not (tmp_path / "training").exists()


def test_a_class_without_a_certificate_is_marked_everywhere(finished, monkeypatch):
    """In the table, the summary, the notes and the figures' titles; a certified one nowhere."""
    for certified in (True, False):
        monkeypatch.setattr(Ensemble, "certified", certified)
        found, console, axes = summary(finished), Console(width=200, file=StringIO()), Figure().subplots()
        console.print(table(found))
        run_figure._draw_values(axes, found)
        assert found["ensemble"]["certified"] is certified
        assert console.file.getvalue().count("NOT certified") == (0 if certified else 2)
        assert ("NOT certified" in axes.get_title("left")) is not certified


def test_variants_of_one_network_are_told_apart():
    told = set()

    class Listening(Silent):
        def record(self, series, step, value):
            told.add(series)

    settings = small_settings("+experiment=grid", "net.lookup.lipschitz_bound=[5,auto]")
    run = Run(settings, make_family("grid"), None, Listening())
    explore_family(run)
    train_predictors(run)
    assert {"bellman_risk/lookup", "bellman_risk/lookup-1", "held_out_risk/lookup-1/1"} <= told
    assert run.ensemble.size == 8
    (estimate,) = estimates(run)  # of the variant that asked for it
    wanted = estimate["factor"] * (estimate["significant"] or estimate["largest"])
    assert run.ensemble.groups[1].declared_bound == pytest.approx(wanted) and run.ensemble.groups[0].declared_bound == 5


def test_assumptions_are_reported():
    run = grid_run("diagnose=2")
    found = summary(run)
    assert list(found["assumptions"]) == ["A1", "A2", "A3", "A4", "A5"]
    assert found["assumptions"]["A5"]["verdict"] == "plausible"
    assert found["episodes"]["diagnose"] > 0
    assert table(found).row_count > table({**found, "assumptions": {}}).row_count


def test_tensorboard_on_request(tmp_path):
    pytest.importorskip("tensorboard")
    grid_run("trainer.tensorboard=true", folder=tmp_path)
    assert list(tmp_path.glob("tensorboard/lookup/events*"))


def test_tensorboard_missing_is_a_clear_error(tmp_path, monkeypatch):
    def missing(*args, **settings):
        raise ModuleNotFoundError("tensorboard")

    monkeypatch.setattr("s2r_torch.predictors.training.fit.TensorBoardLogger", missing)
    with pytest.raises(SettingError, match=r"\[tensorboard\]"):
        grid_run("trainer.tensorboard=true", folder=tmp_path)


def test_known_class_needs_a_family_that_ships_one():
    """Refused before anything is drawn."""
    with pytest.raises(SettingError, match="ready-made class"):
        Run(small_settings("+experiment=grid", "predictors=known"), make_family("grid"))


def test_stages_never_share_a_draw_of_theta(finished):
    draws = Draws(finished.family, finished.seed, finished.ledger)
    thetas = [draws.theta(name, 4) for name in ("train", "calibrate", "judge", "worlds", "population")]
    for i, one in enumerate(thetas):
        for other in thetas[i + 1 :]:
            assert not bool((one == other).any())


def test_regrets_of_members_are_what_deployment_loses(finished):
    truth = finished.family.truth(finished.draws.theta("worlds", 2))
    regret = member_regrets(finished.meta_policy.ensemble, finished.D_real, truth)
    assert len(regret) == finished.meta_policy.ensemble.size
    lost = 1 - finished.deployed.value / finished.deployed.optimal
    assert float(regret[finished.meta_policy.chosen]) == pytest.approx(lost, abs=1e-9)


def test_family_without_ground_truth_is_valued_by_episodes():
    """Values by rollouts agree with the exact ones of the same worlds; the optimum is a named bound."""

    class Unknown:
        def __init__(self):
            self.inner = make_family("grid")
            self.name, self.spec = self.inner.name, self.inner.spec
            self.prior, self.simulators = self.inner.prior, self.inner.simulators
            self.world, self.parameters = self.inner.world, self.inner.parameters

        def truth(self, theta):
            return None

    settings = small_settings("+experiment=grid", "world.num_worlds=8", "world.n_rollouts=4000")
    run = Run(settings, Unknown()).execute()
    found = summary(run)["value"]
    assert found["optimal_kind"].startswith("bound") and found["optimal"] == 1.0
    truth = run.family.inner.truth(run.draws.theta("worlds", 8))
    exact = float(policy_values(truth, run.meta_policy.condition(run.D_real).act)[:, 0].mean())
    assert found["deployed"] == pytest.approx(exact, abs=4.5 * 0.5 / (8 * 4000) ** 0.5)
    assert exact <= float(optimal(truth)[0][:, 0].mean())
    assert found["random"] == pytest.approx(0.475, abs=0.06)
