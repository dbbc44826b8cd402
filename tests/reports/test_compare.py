"""Comparisons: every entry with every seed, kept when interrupted, and honest about who misses what is wanted."""

import csv
import json
from io import StringIO

import pytest
from hydra import initialize_config_dir
from rich.console import Console
from support.smoke import CONF, composed
from support.summaries import summary_by_hand

from s2r_torch.commands import compare as command
from s2r_torch.errors import FileError, FolderError
from s2r_torch.files.locks import locked
from s2r_torch.files.records import Codec
from s2r_torch.predictors.registry import NETS
from s2r_torch.reports.comparison import ComparedRun, by_entry, comparison_table, verdict, write_comparison
from s2r_torch.runs.folder import RunFolder, held


@pytest.fixture
def script(monkeypatch):
    """s2r-compare, whose runs take no time; `script.done` lists (entry, seed) of those that were run."""
    monkeypatch.setattr(command, "done", [], raising=False)
    monkeypatch.setattr(command, "stop_at", None, raising=False)

    def executed(settings, family, folder, progress, workers):
        if folder.name == command.stop_at:
            raise KeyboardInterrupt
        with held(folder):
            RunFolder(folder, {"steps": settings.predictors.training.steps}, Codec([]))
        command.done.append(folder.name)
        return settings

    monkeypatch.setattr(command, "execute", executed)
    shown = lambda settings: summary_by_hand(0.2 if "mlp" in settings.nets else 0.01)  # noqa: E731
    monkeypatch.setattr(command.Summary, "of", staticmethod(shown))
    return command


def compare(script, folder, *given):
    text = StringIO()
    few = [f"~compare.entries.{name}" for name in ("sets", "conv", "linear", "cones", "charfun")]
    cfg = composed("+experiment=grid", "compare.seeds=[0,1]", *few, config="compare")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        comparison = script.build(script.ComparisonSettings, script.plain_config(cfg)["compare"], "compare")
        given = ["+experiment=grid", *given]
        script.compare(comparison, "nets on grid", given, folder, Console(file=text, width=140))
    return text.getvalue()


def test_every_certified_network_is_compared():
    assert set(composed(config="compare").compare.entries) == {n for n in NETS if n != "blind"}


def test_stopped_comparisons_go_on(script, tmp_path):
    script.stop_at = "mlp-seed0"
    with pytest.raises(KeyboardInterrupt):
        compare(script, tmp_path)
    before = list(script.done)
    assert before and (tmp_path / "comparison.png").exists()
    assert len(json.loads((tmp_path / "rows.json").read_text())) == len(before)
    script.stop_at = None
    said = compare(script, tmp_path)
    assert len(set(script.done)) == 4 and script.done[: len(before)] == before
    assert "no: " in said and "yes" in said
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and float(rows[0]["regret"]) == pytest.approx(0.01)


def test_runs_with_other_settings_are_done_again(script, tmp_path):
    compare(script, tmp_path)
    origins = [json.loads(path.read_text())["steps"] for path in tmp_path.glob("*/stages/origin.json")]
    compare(script, tmp_path, "predictors.training.steps=7")
    later = [json.loads(path.read_text())["steps"] for path in tmp_path.glob("*/stages/origin.json")]
    assert len(origins) == len(later) == 4 and 7 not in origins and set(later) == {7}


def test_a_folder_in_use_is_never_cleared_and_a_users_own_files_never(script, tmp_path):
    compare(script, tmp_path)
    place = tmp_path / "mlp-seed0"
    (place / "notes.txt").write_text("mine")
    with locked(place), pytest.raises(FolderError, match="in use by process"):
        compare(script, tmp_path, "predictors.training.steps=7")
    assert json.loads((place / "stages" / "origin.json").read_text())["steps"] != 7
    compare(script, tmp_path, "predictors.training.steps=7")
    assert json.loads((place / "stages" / "origin.json").read_text())["steps"] == 7
    assert (place / "notes.txt").read_text() == "mine"


def test_rows_tables_and_figures(tmp_path):
    rows = [
        ComparedRun.of(entry, s, summary_by_hand(r)) for entry, r in (("mlp", 0.2), ("lookup", 0.0)) for s in (0, 1)
    ]
    rows.append(ComparedRun.of("mine", 0, summary_by_hand(certified=False)))
    assert list(by_entry(rows)) == ["lookup", "mine", "mlp"]
    console = Console(file=StringIO(), width=160)
    console.print(comparison_table(rows, "nets on grid", 0.05))
    text = console.file.getvalue()
    assert "NOT certified" in text and "0.2000 (0.2000)" in text
    write_comparison(rows, "nets on grid", 0.05, tmp_path)
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert "nets on grid" in (tmp_path / "report.html").read_text()


def test_a_miss_gives_the_networks_own_reason():
    assert verdict("lookup", 0.01, 0.05) == "yes" and verdict("unheard of", 0.2, 0.05) == "no"
    assert verdict("linear", 0.2, 0.05) == f"no: {NETS['linear'].limits}"


def test_a_comparison_holds_its_folder_and_looks_at_all_of_it_first(script, tmp_path, monkeypatch):
    """Of one that cannot be finished nothing is begun, and the tables of a whole one stay."""
    settings = type("Settings", (), {"trainer": type("Trainer", (), {"threads": 1})})
    seeds = [type("Seeded", (settings,), {"seed": seed})() for seed in (0, 1)]
    found = iter(seeds * 9)
    monkeypatch.setattr(script, "configured", lambda config: (next(found), None))
    monkeypatch.setattr(script, "composed", lambda overrides: {})
    monkeypatch.setattr(script, "plain_config", lambda config: {})
    measured = []

    def measure(settings, family, curves, worlds, place, reporter, into):
        measured.append(place.name)
        for seed in (0, 1):
            with pytest.raises(FolderError, match=f"seed{seed} is in use by process"), held(tmp_path / f"seed{seed}"):
                pass

    monkeypatch.setattr(script, "measure", measure)
    comparison = script.ComparisonSettings(name="a", curves={"random": {}}, seeds=[0, 1])
    script.compare_comparators(comparison, "", [], tmp_path, Console(file=StringIO()))
    assert measured == ["seed0", "seed1"]
    (tmp_path / "seed1" / "stages").mkdir()
    (tmp_path / "seed1" / "stages" / "learn.safetensors").write_text("cut")
    with pytest.raises(FolderError, match="a whole stage learn"):
        script.compare_comparators(comparison, "", [], tmp_path, Console(file=StringIO()))
    assert measured == ["seed0", "seed1"]


@pytest.mark.parametrize(("what", "name"), [("nets", "rows.csv"), ("comparators", "comparators.png")])
def test_what_a_comparison_cannot_write_is_told_before_it_begins(script, tmp_path, monkeypatch, what, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(script, "task_overrides", lambda: [])
    for begins in ("compare", "compare_comparators"):
        monkeypatch.setattr(script, begins, lambda *_: pytest.fail("it began"))
    with pytest.raises(FileError, match=f"{name}; got a folder"):
        script.job(composed(f"compare={what}", "+experiment=grid", config="compare"), tmp_path, Console())


def test_a_second_comparison_in_the_same_folder_is_refused(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "task_overrides", lambda: [])
    monkeypatch.setattr(script, "compare", lambda *_: pytest.fail("it began"))
    with locked(tmp_path), pytest.raises(FolderError, match="in use by process"):
        script.job(composed("+experiment=grid", config="compare"), tmp_path, Console())
