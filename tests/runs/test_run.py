"""Whole runs at smoke size: what they write, that they repeat bit by bit, and what they say when things go wrong."""

import json
import pickle
import shutil
from collections import Counter
from dataclasses import replace
from functools import wraps
from io import StringIO
from itertools import combinations
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from support.policies import certificate_by_hand
from support.smoke import small_settings

from s2r_torch.assurance.appraisal import FOLDS, Appraisal, AppraisalSettings, appraise
from s2r_torch.comparators.policies import follow
from s2r_torch.coverage import typical
from s2r_torch.deployment.policy_file import load_policy, read
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import FolderError, SettingError
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.families.exact import optimal, policy_values
from s2r_torch.families.grid import Grid
from s2r_torch.graph import StateGraph
from s2r_torch.learning.walks import walks_of
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.training import work
from s2r_torch.progress import Silent
from s2r_torch.reports import run_figure
from s2r_torch.reports.console import table
from s2r_torch.reports.files import write_reports
from s2r_torch.reports.summary import Summary, unfinished
from s2r_torch.rng import Seed
from s2r_torch.runs import evaluation, stages
from s2r_torch.runs.certifying import exact_values, refused_values
from s2r_torch.runs.evaluation import member_regrets
from s2r_torch.runs.folder import WRITTEN, finished_stages
from s2r_torch.runs.forecast import forecast
from s2r_torch.runs.results import Appraised
from s2r_torch.runs.run import Results, Stages, execute, learn_until_good
from s2r_torch.workers.engines import Serial
from s2r_torch.workers.processes import Processes

MIXTURE = (
    "+experiment=mixture",
    "density.merge.n_merge=5000",
    "budget.n_dist=4000",
    "budget.n_real=400",
    "budget.n_train=4000",
    "budget.n_test=500",
    "budget.num_simulators=4",
)


class ByHand:
    name = "by_hand"


def grid_run(*overrides: str, folder=None, progress=None) -> Results:
    return execute(small_settings("+experiment=grid", *overrides), make_family("grid"), folder, progress)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def titles() -> list[str]:
    """What `finished` shows as it goes."""
    return []


@pytest.fixture(scope="module")
def finished(folder, titles) -> Results:
    class Listening(Silent):
        def stage(self, name, total):
            titles.append(name)

    return grid_run(folder=folder, progress=Listening())


def without_seconds(results: Results) -> str:
    found = Summary.of(results).to_json()
    return json.dumps({k: v for k, v in found.items() if k not in ("seconds", "cpu_seconds")}, sort_keys=True)


@pytest.mark.slow
def test_same_seed_same_summary(finished):
    assert without_seconds(grid_run()) == without_seconds(finished)
    assert without_seconds(grid_run("seed=1")) != without_seconds(finished)


def test_the_forecast_is_what_a_run_counts(finished):
    """Stage by stage, and exactly, but for rounds of Learn-on-Simulators after the first."""
    parts = forecast(finished.settings, finished.family).parts
    rounds = len(finished.learned.outcome.choice.rounds)
    for kind in ("episodes", "steps"):
        expected: dict[str, Counter] = {stage: Counter() for stage in finished.finished}
        for part in parts:
            expected[part.stage][part.purpose] += getattr(part, kind) * (rounds if part.purpose == "rollout" else 1)
        counted = {stage: Counter(getattr(done, kind)) for stage, done in finished.finished.items()}
        assert counted.pop("deploy_worlds")["real"] > 0 and not expected.pop("deploy_worlds")
        assert counted == expected


def test_summary_has_what_users_read(finished):
    found = Summary.of(finished)
    assert found.problem.states_per_layer == (1, 2, 3, 2, 1)
    assert found.ensemble.size == 4
    worth = found.value.worth
    assert 0 <= worth.low <= worth.value <= worth.high <= worth.optimal <= 1
    assert list(found.value.policies) == ["optimal", "open_loop", "blind", "random"]
    assert found.value.policies["open_loop"] == pytest.approx(0.5, abs=0.13)  # of 20 draws of theta
    assert found.real.drawn == 3 * 50  # w n_real, half of n_dist
    assert found.real.one_path_per_state == 9 * 50
    assert found.real.as_stated == 5 * 3 * 2 * 50  # n H S A
    merging = found.merging
    assert merging.largest_merged < merging.noise < merging.zeta_hat / 3
    assert merging.largest_z < 6
    bias, layers = found.elimination.density_b_bar, finished.explored.exploration.graph.layer.tolist()
    assert len(bias) == len(found.elimination.b_bar) == 9
    assert all(b == (1 if step == 4 else 2) * bias[layers.index(4)] for b, step in zip(bias, layers, strict=True))
    assert Summary.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_falls_short_is_learned_again_with_twice_the_sizes(tmp_path):
    """One step is too few; every attempt is kept, and counted."""
    hasty = ("predictors.training.steps=1", "predictors.training.snapshots=1")
    looked = ("appraisal.simulators=32", "appraisal.n=16", "appraisal.n_rollouts=50")
    settings = small_settings("+experiment=grid", "appraisal.attempts=2", *hasty, *looked)
    results = execute(settings, make_family("grid"), tmp_path)
    again = [name for name in results.finished if name.endswith("-2")]
    assert again == ["explore-2", "train-2", "calibrate-2", "learn-2", "appraise-2"]
    sizes = results.settings.predictors
    assert (sizes.num_simulators, sizes.n_samples, sizes.training.steps) == (48, 32, 2)
    assert len(results.explored.exploration.D_hat) == 48
    assert results.episodes["appraise"] == 2 * 32 * (3 * 50 + 50 + 6 * 16)  # rehearsals, their episodes, rewards
    assert results.appraised.appraisal.attempts == 2
    assert without_seconds(execute(settings, make_family("grid"), tmp_path)) == without_seconds(results)  # all kept


@pytest.mark.parametrize("error", [SettingError(expected="memory", got="less", cause="more"), MemoryError("no")])
def test_a_further_attempt_that_cannot_be_made_is_given_up(monkeypatch, error):
    """What the first one left is gone on with; were it the first one, it would end the run."""
    hasty = ("predictors.training.steps=1", "predictors.training.snapshots=1", "appraisal.attempts=2")
    looked = ("appraisal.simulators=32", "appraisal.n=16", "appraisal.n_rollouts=50")
    settings, explore, begun = small_settings("+experiment=grid", *hasty, *looked), stages.explore, []

    @wraps(explore)
    def without_memory(context, *found):
        begun.append(context)
        if len(begun) == 2:
            raise error
        return explore(context, *found)

    monkeypatch.setattr(stages, "explore", without_memory)
    with pytest.warns(UserWarning, match="attempt 2 at learning was given up: .*(less|no)"):
        results = execute(settings, make_family("grid"))
    assert len(begun) == 2 and results.settings == settings and results.appraised.appraisal.attempts == 1
    assert "appraise-2" not in results.finished and "evaluate" in results.finished
    begun.insert(0, None)
    del begun[1:]
    with pytest.raises(type(error)):
        execute(settings, make_family("grid"))


@pytest.mark.parametrize(("experiment", "attempts"), [("mixture", 1), ("grid", 2)])
def test_a_ready_made_class_is_not_learned_again(monkeypatch, experiment, attempts):
    monkeypatch.setattr(Appraisal, "falls_short", True)
    results = execute(small_settings(f"+experiment={experiment}", "appraisal.attempts=2"), make_family(experiment))
    assert results.appraised.appraisal.attempts == attempts


@pytest.mark.parametrize(("told", "earned", "looks"), [(0, 0.49, 1), (1, 0.49, 2), (9, 0.49, 3), (9, 0.495, 1)])
def test_more_is_drawn_while_it_is_open_what_is_lost(monkeypatch, told, earned, looks):
    """At look `told` it is no longer open; three looks are allowed, and none more where little seems to be lost."""
    counts, purposes, simulators = [], [], Draws.simulators

    def drawing(draws, purpose, count):
        purposes.append(purpose)
        return simulators(draws, purpose, count)

    def planted(graph, policy, *rest):
        counts.append(len(policy))
        found = replace(appraise(graph, policy, *rest), optimum=0.5, policy=earned)  # 1 or 2 % seem to be lost
        return replace(found, lost=(-1.0, 1.0 if len(counts) <= told else -1.0))

    monkeypatch.setattr(stages, "appraise_policy", planted)
    monkeypatch.setattr(Draws, "simulators", drawing)
    results = execute(small_settings("+experiment=grid", "appraisal.looks=3"), make_family("grid"))
    assert counts == [4, 8, 16][:looks]
    each = [3 * 50 + 2 + 6 * n for n in (8, 32, 128)]  # a rehearsal, its episodes, rewards
    assert results.episodes["appraise"] == sum(count * n for count, n in zip(counts, each, strict=False))
    drawn = [results.draws.theta(purpose, 4) for purpose in purposes if purpose.startswith("appraise")]
    assert len(drawn) == looks and not any(torch.isclose(a, b).any() for a, b in combinations(drawn, 2))  # fresh ones


@pytest.mark.parametrize("adds", [-1.0, 1.0])
def test_what_does_better_without_densities_is_said_unless_the_appraisal_says_it(monkeypatch, adds):
    def planted(*found):
        return replace(appraise(*found), lost=(0.9, 0.9), needed=(adds, adds), over_list=(0.0, 0.0))

    monkeypatch.setattr(stages, "appraise_policy", planted)
    monkeypatch.setattr(evaluation, "worth_of_looking", lambda *_: ["a list does better"])
    results = execute(small_settings("+experiment=grid"), make_family("grid"))
    assert ("a list does better" in results.evaluated.notices) == (adds > 0)


@pytest.mark.parametrize(("earned", "best", "attempts"), [((0.5, 0.3, 0.4), 1, 3), ((0.3, 0.7, 0.1), 2, 2)])
def test_the_best_attempt_is_gone_on_with(earned, best, attempts):
    """Stages that only count; the second row's second attempt no longer falls short."""

    class Counting:
        attempt, settings = 1, replace(small_settings("+experiment=grid"), appraisal=AppraisalSettings(attempts=3))
        may_learn_again = Stages.may_learn_again

        def again(self):
            self.attempt += 1

        def do(self, stage, *earlier):
            if stage is not stages.appraise:
                return stage.__name__, self.attempt
            policy = torch.full((4,), earned[self.attempt - 1], dtype=torch.float64)
            graph, folds = single_state(), torch.full((FOLDS, 4, 1, 2), 0.7, dtype=torch.float64)
            self.tried = self.attempt
            return Appraised(appraise(graph, policy, (0,), folds, 0.03, self.attempt))

    run = Counting()
    found = learn_until_good(run)
    assert [number for _, number in found[:4]] == [best] * 4 and run.attempt == best and run.tried == attempts
    assert found[4].appraisal.policy == pytest.approx(earned[best - 1])
    said = found[4].after(attempts).appraisal.sentences()
    assert any(f"the best of {attempts} attempts" in text for text in said) == (attempts == 3)


def single_state() -> StateGraph:
    """One state, two actions."""
    return StateGraph(torch.tensor([[-1, -1]]), torch.tensor([0]), ((),))


def test_results_travel_with_their_family(finished):
    again = pickle.loads(pickle.dumps(finished))
    assert type(again.family) is Grid and again.family.parameters() == finished.family.parameters()
    assert Summary.of(again) == Summary.of(finished)
    assert torch.equal(again.draws.theta("test", 3), finished.draws.theta("test", 3))
    by_hand = pickle.loads(pickle.dumps(replace(finished, family=ByHand())))
    assert type(by_hand.family) is ByHand  # registered nowhere: as it is


def test_every_episode_is_counted(finished):
    """explore: a pilot, deciders x n_merge per sequence that finds the graph, simulators x n_dist along a cover of 3;
    judges explore again.

    Every action of every state is walked along 6 sequences, n / 2 times for n decisions.
    """
    walks, counts = len(walks_of(finished.explored.exploration.graph)), finished.episodes
    assert counts["explore"] == 24 * 500 + 2 * walks * 4 * 250 + (24 + 4) * 3 * 100
    few = 16 * 1 + 8 * 2 + 4 * 4 + 2 * 10 + 2 * 30  # densities of few, and how often
    assert counts["train"] == 24 * 6 * 16 // 2 + 24 * few * 3
    # decisions, densities, rollouts; and those of what is blind, and of the list beside it
    assert counts["calibrate"] == 4 * (6 * 50 // 2 + 3 * 100 + 2 + 2 * 50)
    assert counts["real"] == 2 * 3 * 50
    assert counts["certify"] == 8 * (3 * 50 + 4 + 3 * 50)  # rehearsals, their episodes, accurate densities
    assert counts["evaluate"] == 20 * 3 * 200  # the curve's most readings; this family's values are exact


def test_run_folder_has_every_stage(finished, folder):
    assert {path.stem for path in (folder / "stages").glob("*.safetensors")} == set(finished.finished)
    loaded = load_policy(folder / "policy.safetensors")
    x = torch.rand(2, 50, 2, dtype=torch.float64)
    theirs, ours = (p.condition(finished.deployed.D_real).act(1, x) for p in (loaded, finished.meta_policy))
    assert torch.equal(theirs, ours)


def test_reports_are_written_for_people(finished, tmp_path):
    found = write_reports(finished, tmp_path)
    assert table(found).row_count >= 8
    for name in ("run", "exploration", "learning", "value"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert Summary.from_json(json.loads((tmp_path / "summary.json").read_text())) == found
    curves = (tmp_path / "metrics.csv").read_text().splitlines()
    assert curves[0] == "series,step,value" and any(line.startswith("survivors,1,") for line in curves)


@pytest.mark.parametrize("method, rule", [("sim2real", "erratum"), ("sweep", "sharp")])
def test_mixture_keeps_f_star_and_deploys_it(method, rule):
    settings = small_settings(*MIXTURE, f"method={method}", f"rule={rule}")
    found = Summary.of(execute(settings, make_family("mixture", horizon=2)))
    assert found.ensemble.f_star_survives and found.net == "known"
    assert found.value.worth.optimal - found.value.worth.value <= 0.02
    assert any("true theta" in notice for notice in found.notices)


def test_printed_rule_eliminates_nothing_and_says_so():
    found = Summary.of(execute(small_settings(*MIXTURE, "rule=paper"), make_family("mixture", horizon=2)))
    assert found.ensemble.survivors == found.ensemble.size
    assert any("eliminated nothing" in notice for notice in found.notices)


class Impatient(Silent):
    """Ctrl-C as soon as a stage of that name begins, or a curve reaches a step."""

    def __init__(self, stage="", series="", step=None):
        self.at_stage, self.series, self.step = stage, series, step

    def stage(self, name, total):
        if self.at_stage and name.startswith(self.at_stage):
            raise KeyboardInterrupt

    def record(self, series, step, value):
        if self.series and series.startswith(self.series) and step == self.step:
            raise KeyboardInterrupt


def test_every_stage_has_a_row_of_its_own(finished, titles):
    """So that a row's seconds are of what it names; nothing is done under the name of the stage before."""
    first = ["explore (Algorithm 2)", "prune states that no good list passes", "draw what F is trained on"]
    assert titles[:5] == [*first, "train lookup: rewards", "train lookup: values"]
    assert titles[-3:] == ["deploy (Algorithm 7)", "fit comparators", "evaluate"]


STAGE_TITLES = ("train lookup", "calibrate", "sim2real", "appraise", "certify", "deploy", "evaluate")


def test_interrupted_anywhere_a_run_goes_on(finished, folder, tmp_path):
    """In every stage in turn, in one folder: nothing finished is done twice, and the end is the uninterrupted one's."""
    done = []
    for title in STAGE_TITLES:
        with pytest.raises(KeyboardInterrupt):
            grid_run(folder=tmp_path, progress=Impatient(title))
        left = unfinished("grid", 0, "KeyboardInterrupt", finished_stages(tmp_path))
        assert left["status"] == "unfinished" and left["finished_stages"][: len(done)] == done
        assert len(left["finished_stages"]) > len(done)
        done = left["finished_stages"]
        times = {name: (tmp_path / "stages" / f"{name}.safetensors").stat().st_mtime_ns for name in done}
    whole = grid_run(folder=tmp_path)
    assert without_seconds(whole) == without_seconds(finished) and whole.rows == finished.rows
    assert times == {n: (tmp_path / "stages" / f"{n}.safetensors").stat().st_mtime_ns for n in done}
    names = ("policy.safetensors", "certificate.txt")
    assert [(tmp_path / n).read_bytes() for n in names] == [(folder / n).read_bytes() for n in names]


@pytest.mark.parametrize("fault", [RuntimeError("no bar"), OSError(28, "full"), SystemExit(0)])
def test_a_fault_of_a_users_progress_is_named(fault):
    class Faulty(Silent):
        def stage(self, name, total):
            raise fault

    with pytest.raises(SettingError, match=f"Faulty.stage of the progress to succeed; got {type(fault).__name__}"):
        grid_run(progress=Faulty())


def test_reports_go_to_a_folder_that_was_named(finished):
    with pytest.raises(SettingError, match="a path; got an empty text"):
        write_reports(finished, "")


def test_a_finished_run_is_read_not_repeated(finished, folder):
    class Listening(Silent):
        notes = []

        def advance(self, done, note=""):
            self.notes.append(note)

    again = grid_run(folder=folder, progress=Listening())
    assert len(Listening.notes) == len(again.finished) and all("kept from before" in note for note in Listening.notes)
    assert Summary.of(again) == Summary.of(finished)


def test_a_folder_of_another_run_is_refused_by_name_and_left_as_it_is(finished, folder, monkeypatch):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match=r"budget\.n_test \(50 there, 60 now\)"):
        grid_run("budget.n_test=60", folder=folder)
    with pytest.raises(FolderError, match="seed"):
        grid_run("seed=1", folder=folder)
    monkeypatch.setattr("s2r_torch.runs.origin.code_digest", lambda: "another")
    with pytest.raises(FolderError, match="code"):
        grid_run(folder=folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("stage", ["train", "compare", "evaluate"])
def test_a_folder_with_a_damaged_stage_is_refused_and_left_as_it_is(finished, folder, tmp_path, stage):
    """Its policy holds what later stages found; those before the damaged one would write it without."""
    again = shutil.copytree(folder, tmp_path / "again")
    (again / "stages" / "._train.safetensors").write_bytes(b"of another system")
    damaged = again / "stages" / f"{stage}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    before = {path: path.read_bytes() for path in again.rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match=rf"a whole stage {stage}; .*{stage}\.safetensors.*: .*delete it"):
        grid_run(folder=again)
    assert before == {path: path.read_bytes() for path in again.rglob("*") if path.is_file()}
    damaged.unlink()
    assert {*finished_stages(again)} == {*finished_stages(folder)} - {stage}
    assert without_seconds(grid_run(folder=again)) == without_seconds(finished)
    assert (again / "policy.safetensors").read_bytes() == (folder / "policy.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["report.html", "config.yaml", "run.png", "policy.safetensors"])
def test_files_of_something_else_are_never_written_over(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FolderError, match=f"one without a run, and with {name}, which the run would write over"):
        grid_run(folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] in ([name], [name, "stages"])
    assert (tmp_path / name).read_text() == "mine"


def test_the_names_that_a_run_writes_are_all_there_are(finished, tmp_path):
    write_reports(finished, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {*WRITTEN}


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 10**5, "\xff"])
def test_a_folder_whose_origin_was_damaged_is_refused(tmp_path, text):
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "origin.json").write_text(text, encoding="latin-1")
    with pytest.raises(FolderError, match=r"what a run is a function of, in .*origin\.json"):
        grid_run(folder=tmp_path)


def states_of_fits(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "training").iterdir())


@pytest.mark.slow
def test_interrupted_training_goes_on_in_its_folder(finished, tmp_path, monkeypatch):
    """In the middle of a fit: the summary is the uninterrupted run's."""
    monkeypatch.setattr(work, "SAVE_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt):
        grid_run(folder=tmp_path, progress=Impatient(series="held_out_risk/lookup/", step=50))
    assert states_of_fits(tmp_path) == ["lookup", "lookup-1-3"]  # the fit, and its layer in work
    whole = grid_run(folder=tmp_path)
    assert without_seconds(whole) == without_seconds(finished) and not (tmp_path / "training").exists()


def test_a_class_without_a_certificate_is_marked_everywhere(finished, monkeypatch):
    """In the table, the summary, the notes and the figures' titles; a certified one nowhere."""
    for certified in (True, False):
        monkeypatch.setattr(Ensemble, "certified", certified)
        found, console, axes = Summary.of(finished), Console(width=200, file=StringIO()), Figure().subplots()
        console.print(table(found))
        run_figure.draw_values(axes, found)
        assert found.ensemble.certified is certified
        assert console.file.getvalue().count("NOT certified") == (0 if certified else 2)
        assert ("NOT certified" in axes.get_title("left")) is not certified


def test_the_figure_shows_the_deployed_value_beside_the_optimum_of_the_same_worlds(finished):
    axes, found = Figure().subplots(), Summary.of(finished)
    run_figure.draw_values(axes, found)
    names = [label.get_text() for label in axes.get_yticklabels()]
    shown = dict(zip(names, (bar.get_width() for bar in axes.patches), strict=True))
    worth = found.value.worth
    there = f"in {worth.num_worlds} worlds"
    assert names[-2:] == [f"deployed, no reward seen, {there}", f"optimal, {there}"]
    assert [shown[name] for name in names[-2:]] == [worth.value, worth.optimal]


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "told"), [((0.0, 0.02), 0), ((0.0, 0.05), 1), ((0.04, 0.06), 1), (None, 1)])
def test_what_training_falls_short_of_is_told_unless_the_policy_is_cleared(finished, lost, told):
    """Of an optimum of 0.9, of which 3 % may be lost."""
    found = lost and Appraisal(0.89, 0.5, 0.9, 0.92, (0.8, 1.0), lost, (0.3, 0.5), (0.3, 0.5), 0.03)
    trained = replace(finished.trained, notices=("training falls short",))
    results = replace(finished, trained=trained, appraised=Appraised(found))
    assert Summary.of(results).notices.count("training falls short") == told


@pytest.mark.slow
def test_too_few_scores_to_refuse_any_world_are_told_when_certifying(finished):
    said = []
    progress = type("Said", (Silent,), {"say": lambda self, text: said.append(text)})()
    grid_run(progress=progress)
    weakness = "no world can be refused with 20 scores of fresh simulators: 399 are needed for 4 tests"
    assert sum(text.endswith(weakness) for text in said) == 1
    assert f"{weakness}: raise certificate.scores" in Summary.of(finished).notices


@pytest.mark.slow
def test_a_certificate_of_exact_values_where_a_list_is_played_in_refused_worlds(finished, tmp_path):
    results = grid_run("certificate.values=exact", "certificate.refused=list", folder=tmp_path)
    sampled, certified = finished.certified.certificate, results.certified
    truth = make_family("grid").truth(results.draws.theta("certify", 8))
    best = policy_values(truth, follow(certified.fallback))[:, 0]
    assert certified.certificate.refused_value == pytest.approx(float(best.mean())) and sampled.refused_value == 0
    assert finished.certified.fallback == certified.fallback  # kept for refusals, counted on or not
    by_hand = certificate_by_hand()
    assert "counts as 0.500, what the best fixed list" in replace(by_hand, refused_value=0.5).page()
    assert "best fixed list" not in by_hand.page()
    header = read(tmp_path / "policy.safetensors")[0]
    assert header["notes"]["where a world is refused"] == list(certified.fallback)
    told = f"counts on the actions {' '.join(map(str, certified.fallback))} where a world is refused"
    counted = [any(told in notice for notice in Summary.of(run).notices) for run in (results, finished)]
    assert counted == [True, False]
    again = grid_run("certificate.values=exact", "certificate.refused=list", folder=tmp_path)
    assert again.certified.fallback == certified.fallback


def test_values_of_rehearsed_policies_are_exact_or_of_episodes(finished):
    family, theta = make_family("grid"), finished.draws.theta("certify", 6)
    guard, actions = Guard(family.simulators(theta, range(6)), Ledger(), "test"), (1, 1, 0, 0, 0)
    exactly = refused_values(actions, family.truth(theta), guard, 1, Seed.root(0))
    assert torch.equal(exactly, exact_values(family.truth(theta), follow(actions))) and not guard.ledger.counts
    by_episodes = refused_values(actions, None, guard, 4000, Seed.root(0))
    assert torch.allclose(exactly, by_episodes, atol=0.05) and not torch.equal(exactly, by_episodes)
    assert refused_values(None, None, guard, 1, Seed.root(0)) == 0.0 and exact_values(None, follow(actions)) is None


def test_exact_values_are_refused_where_nobody_knows_them():
    class Unknown(Grid):
        def truth(self, theta):
            return None

    with pytest.raises(SettingError, match="ground truth, for certificate.values=exact"):
        execute(small_settings("+experiment=grid", "certificate.values=exact"), Unknown())


def test_variants_of_one_network_are_told_apart():
    told = set()

    class Listening(Silent):
        def record(self, series, step, value):
            told.add(series)

    settings = small_settings("+experiment=grid", "net.lookup.lipschitz_bound=[5,auto]")
    run = Stages(settings, make_family("grid"), None, Listening())
    trained = run.do(stages.train, run.do(stages.explore))
    assert {"bellman_risk/lookup", "bellman_risk/lookup-1", "held_out_risk/lookup-1/1"} <= told
    assert trained.ensemble.size == 8
    (found,) = trained.estimates  # of the variant that asked for it
    wanted = found.factor * (found.estimate.significant or found.estimate.largest)
    groups = trained.ensemble.groups
    assert groups[1].declared_bound == pytest.approx(wanted) and groups[0].declared_bound == 5


def test_assumptions_are_reported():
    found = Summary.of(grid_run("diagnostics.simulators=2"))
    assert [finding.assumption for finding in found.assumptions] == ["A1", "A2", "A3", "A4", "A5"]
    assert found.assumptions[4].verdict == "plausible"
    assert found.episodes["diagnose"] > 0
    assert table(found).row_count > table(replace(found, assumptions=())).row_count


@pytest.mark.slow
def test_tensorboard_on_request(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    grid_run("trainer.tensorboard=true", folder=tmp_path)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard" / "lookup")).Reload()
    assert all(event.value > 0 for event in events.Scalars("train/bellman_risk"))
    assert {event.value for event in events.Scalars("train/layer")} == set(range(5))


def test_tensorboard_missing_is_a_clear_error(tmp_path, monkeypatch):
    def missing(*args, **settings):
        raise ModuleNotFoundError("tensorboard")

    monkeypatch.setattr("s2r_torch.predictors.training.trainer.TensorBoardLogger", missing)
    with pytest.raises(SettingError, match=r"\[tensorboard\]"):
        grid_run("trainer.tensorboard=true", folder=tmp_path)


def test_known_class_needs_a_family_that_ships_one():
    """Refused before anything is drawn."""
    with pytest.raises(SettingError, match="ready-made class"):
        execute(small_settings("+experiment=grid", "predictors=known"), make_family("grid"))


def test_stages_never_share_a_draw_of_theta(finished):
    draws = finished.draws
    thetas = [draws.theta(name, 4) for name in ("train", "calibrate", "judge", "worlds", "population")]
    for i, one in enumerate(thetas):
        for other in thetas[i + 1 :]:
            assert not bool((one == other).any())


def test_regrets_of_members_are_what_deployment_loses(finished):
    truth, worth = finished.family.truth(finished.draws.theta("worlds", 2)), finished.evaluated.worth
    policy = finished.meta_policy
    regret = member_regrets(policy.ensemble, finished.deployed.D_real, truth, typical(policy.readings))
    assert len(regret) == policy.ensemble.size
    lost = 1 - worth.value / worth.optimal
    assert float(regret[policy.chosen]) == pytest.approx(lost, abs=1e-9)


@pytest.mark.slow
def test_family_without_ground_truth_is_valued_by_episodes():
    """Values by rollouts agree with the exact ones of the same worlds; so does the estimated optimum."""

    class Unknown:
        def __init__(self):
            self.inner = make_family("grid")
            self.name, self.spec = self.inner.name, self.inner.spec
            self.prior, self.simulators = self.inner.prior, self.inner.simulators
            self.world, self.parameters = self.inner.world, self.inner.parameters

        def truth(self, theta):
            return None

    settings = small_settings(
        "+experiment=grid",
        "evaluation.num_worlds=8",
        "evaluation.n_rollouts=4000",
        "appraisal.simulators=64",
        "appraisal.n=32",
    )
    run = execute(settings, Unknown())
    worth, policies = run.evaluated.worth, run.evaluated.values
    best = run.family.inner.truth(run.draws.theta("appraise 1", 64))
    low, high = run.appraised.appraisal.between
    assert (
        worth.optimal_kind.startswith("estimated on simulators") and low < float(optimal(best)[0][:, 0].mean()) < high
    )
    assert worth.optimal == pytest.approx(float(optimal(best)[0][:, 0].mean()), abs=0.03)
    truth = run.family.inner.truth(run.draws.theta("worlds", 8))
    exact = float(policy_values(truth, run.meta_policy.condition(run.deployed.D_real).act)[:, 0].mean())
    assert worth.value == pytest.approx(exact, abs=4.5 * 0.5 / (8 * 4000) ** 0.5)
    assert exact <= float(optimal(truth)[0][:, 0].mean())
    assert policies["random"] == pytest.approx(0.475, abs=0.06)


@pytest.mark.parametrize(
    ("family", "more", "begun"),
    [
        ("grid", "predictors.training.members=1", [work.load_lightning]),
        ("mixture", "predictors=known", []),
    ],
)
def test_workers_load_what_trains_while_the_family_is_checked(family, more, begun):
    class Watched(Serial):
        def start(self, task):
            started.append(task)

    started = []
    run = Stages(small_settings(f"+experiment={family}", more), make_family(family), None, Silent(), workers=Watched())
    run.do(stages.check)
    assert started == begun


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_change_nothing(finished, count):
    """Same summary to the last digit, the counts of episodes included; and the same policy."""
    workers = Processes(count)
    settings = small_settings("+experiment=grid")
    found = execute(settings, make_family("grid"), workers=workers)
    assert without_seconds(found) == without_seconds(finished)
    assert workers.cpu_seconds > 0 and found.cpu_seconds > workers.cpu_seconds
    for mine, theirs in zip(found.meta_policy.ensemble.groups, finished.meta_policy.ensemble.groups, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.tensors().values(), theirs.tensors().values(), strict=True))


@pytest.mark.parametrize(
    "share, fixed, words",
    [(0.99, 0.5, None), (0.60, 0.5, "deploy the best fixed"), (0.99, 0.69, "not needed"), (0.60, 0.69, "not needed")],
)
def test_a_policy_below_a_list_is_told_from_densities_that_are_not_needed(share, fixed, words):
    """Only a list near the optimum says that densities are not needed; one above the policy alone says: deploy it."""
    said = evaluation.worth_of_looking(share, {"optimal": 0.7, "open_loop": fixed, "random": 0.2})
    assert len(said) == (words is not None) and all(words in line for line in said)
