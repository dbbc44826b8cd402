"""Curves: every cell in the same worlds, kept when interrupted, done again only where what it is made of changed."""

from dataclasses import fields, replace

import pytest
import torch
from omegaconf import OmegaConf
from support.known import FAST, PARAMETERS, known_on
from support.smoke import composed, small_settings

from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.progress import Silent
from s2r_torch.runs.curves import Curve, Measured, _fitting, measure
from s2r_torch.runs.settings import ComparisonSettings
from s2r_torch.schema import build

PLAN = {
    "ours": Curve((5, 40)),
    "bayes": Curve((2,), settings={"points": 16}),
    "open_loop": Curve(),
    "real_list": Curve((3, 30), worlds=6),
}


def measured(folder=None, plan=PLAN, progress=None) -> Measured:
    settings = small_settings("+experiment=mixture", *FAST["mixture"], "~comparators.blind")
    found = Measured()
    family = make_family("mixture", **PARAMETERS["mixture"])
    measure(settings, family, plan, 12, folder, progress or Silent(), found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("curves")


@pytest.fixture(scope="module")
def whole(folder) -> Measured:
    return measured(folder)


def numbers(found: Measured) -> list:
    return [(c.name, c.n, c.episodes, c.values.tolist(), c.optimal.tolist()) for c in found.cells]


def test_every_cell_is_measured_in_the_same_worlds(whole):
    assert [(c.name, c.n) for c in whole.cells] == [
        ("ours", 5), ("ours", 40), ("bayes", 2), ("open_loop", None), ("real_list", 3), ("real_list", 30)
    ]  # fmt: skip
    optimal = whole.cells[0].optimal
    assert all(torch.equal(c.optimal, optimal[: len(c.optimal)]) for c in whole.cells)
    assert [len(c.values) for c in whole.cells] == [12, 12, 12, 12, 6, 6]
    assert [c.episodes for c in whole.cells] == [10, 80, 2, 0, 12, 120]
    assert set(whole.seconds) == set(PLAN) and not whole.left_out


def stages_of(folder) -> dict[str, int]:
    return {path.stem: path.stat().st_mtime_ns for path in (folder / "stages").glob("*.safetensors")}


class Stopped(Silent):
    def __init__(self, at: str):
        self.at = at

    def stage(self, name, total):
        if name == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["ours, n = 40", "open_loop", "real_list, n = 30"])
def test_an_interrupted_comparison_goes_on(whole, tmp_path, at):
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, progress=Stopped(at))
    before = stages_of(tmp_path)
    assert numbers(measured(tmp_path)) == numbers(whole)
    after = stages_of(tmp_path)
    assert before and all(after[name] == time for name, time in before.items()) and len(after) > len(before)


def test_one_more_size_costs_that_one_alone(whole, folder):
    before = stages_of(folder)
    found = measured(folder, {**PLAN, "ours": Curve((5, 20, 40))})
    after = stages_of(folder)
    assert {name for name in after if before.get(name) != after[name]} == {"ours-20"} and len(found.cells) == 7


def test_other_settings_redo_that_comparator_alone(whole, folder):
    before = stages_of(folder)
    measured(folder, {**PLAN, "bayes": Curve((2,), settings={"points": 8})})
    after = stages_of(folder)
    assert {name for name in after if before.get(name) != after[name]} == {"fit-bayes", "bayes-2"}


def test_who_does_not_fit_the_family_is_left_out_and_named(monkeypatch):
    class Unknown:
        name = "unknown"

    known = known_on("mixture")
    bare = replace(known, draws=replace(known.draws, family=Unknown()))
    monkeypatch.setattr("s2r_torch.runs.stages.known_before", lambda *args: bare)
    fitted = _fitting("mine", COMPARATORS["bayes"]())(None, None, None, None)
    assert fitted.learner is None and "unknown" in fitted.left_out


def test_the_comparison_that_ships_is_one_that_can_be_run():
    config = OmegaConf.to_container(composed("compare=comparators", config="compare"))
    comparison = build(ComparisonSettings, config["compare"], "compare")
    assert set(comparison.curves) <= set(COMPARATORS) and {"ours", "bayes", "lsvee"} <= set(comparison.curves)
    for name, curve in comparison.curves.items():
        learns = "n" in {field.name for field in fields(COMPARATORS[name])} and name != "blind"
        assert COMPARATORS.named(name)(**curve.settings) and bool(curve.sizes) == learns


@pytest.mark.parametrize("wrong", [{"sizes": [5, 2]}, {"sizes": [0]}, {"seeds": 0}])
def test_wrong_curves_are_refused(wrong):
    with pytest.raises(SettingError):
        Curve(**wrong)


@pytest.mark.parametrize(
    ("name", "curve", "words"),
    [
        ("few_rewards", Curve((5,), settings={"looks": 1}), "compare.curves.few_rewards.looks: a whole number >= 3"),
        ("open_loop", Curve((3,)), "it has none; got compare.curves.open_loop.n"),
        ("bayes", Curve(settings={"points": "many"}), "compare.curves.bayes.points"),
    ],
)
def test_what_a_comparator_cannot_do_is_refused_before_anything_is_trained(name, curve, words):
    with pytest.raises(SettingError, match=words):
        ComparisonSettings("mine", curves={"ours": Curve((2,)), name: curve})
