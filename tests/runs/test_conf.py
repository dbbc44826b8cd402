"""Defaults live once, configurations hold what differs from them, and wrong ones say what is wrong before any work."""

import sys
from pathlib import Path

import pytest
import torch
import yaml
from support.optional import needs
from support.smoke import CONF, SMALL, composed, small_settings

from s2r_torch.commands.configuration import plain_config
from s2r_torch.commands.help import help_on_runs
from s2r_torch.encoders import ENCODERS
from s2r_torch.encoders.encoding import MOST_FEATURES
from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, make_family
from s2r_torch.learning.rules import RULES
from s2r_torch.learning.sim2real import METHODS
from s2r_torch.planner.settings import PlanSettings
from s2r_torch.predictors.nets.settings import NetSettings
from s2r_torch.predictors.registry import NETS
from s2r_torch.runs.configuring import configured, settings_from
from s2r_torch.runs.deploy_settings import WORLDS, DeploySettings
from s2r_torch.runs.settings import ComparisonSettings, RunSettings
from s2r_torch.schema import build, defaults, explained, kinds_of

EXPERIMENTS = sorted(path.stem for path in (CONF / "run" / "experiment").glob("*.yaml"))
NODE_OF = {
    "density": "density",
    "predictors": "predictors",
    "env": "env",
    "experiment": None,
    "budget": None,
}  # folder -> its place


def leaves(values: dict, key: str = ""):
    """(whole key, value) of everything in a nested dictionary."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{key}{name}.")
        else:
            yield f"{key}{name}", value


# -- what ships --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds(experiment):
    needs(experiment)
    settings, family = configured(plain_config(composed(f"+experiment={experiment}")))
    assert settings.name == experiment
    assert family.name == experiment
    text = (CONF / "run" / "experiment" / f"{experiment}.yaml").read_text()
    assert f"+experiment={experiment}" in text


def test_without_overrides_everything_is_the_default():
    assert settings_from(plain_config(composed())) == RunSettings()


@pytest.mark.parametrize(
    "path", sorted((CONF / "run").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_configuration_holds_known_keys_and_no_defaults(path: Path):
    values = yaml.safe_load(path.read_text())
    values.pop("defaults", None)
    place = NODE_OF[path.parent.name]
    families = {name: defaults(FAMILIES[name]) for name in ("grid", "mixture")}  # both are dataclasses
    known = dict(leaves({**defaults(RunSettings), "env": {"name": None, **families.get(path.stem, {})}}))
    for key, value in leaves({place: values} if place else values):
        assert key in known, f"{path}: no such setting: {key}"
        assert value != known[key], f"{path}: {key}={value} is the default"


def test_every_setting_is_explained():
    def records(cls):
        yield cls
        for kind in kinds_of(cls).values():
            if hasattr(kind, "__dataclass_fields__"):
                yield from records(kind)

    for record in [
        *records(RunSettings),
        NetSettings,
        ComparisonSettings,
        PlanSettings,
        *records(DeploySettings),
        *WORLDS.values(),
    ]:
        assert all(explained(record).values()), record
    text = help_on_runs("What it does.")
    assert "budget.n_dist=100: a whole number >= 1\n    readings per state and simulator for a density." in text
    assert "env=grid env.width=3" in text and "peaks" not in text
    assert all(len(line) <= 120 for line in text.splitlines())


GROUPS = {"rule": RULES, "method": METHODS, "net": NETS, "env": FAMILIES, "encoder": ENCODERS}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in sorted(GROUPS[group])])
def test_every_name_is_chosen_by_itself(group, name):
    needs(name)
    images = group == "env" and make_family(name).spec.obs_dim > MOST_FEATURES
    settings, family = configured(plain_config(composed(f"{group}={name}", *["encoder=pca"] * images)))
    assert name in (settings.rule, settings.method, family.name, settings.encoder["name"], *settings.nets)


def test_a_name_with_a_hyphen_is_said_like_any_other(monkeypatch):
    for names in (NETS, ENCODERS, FAMILIES):
        monkeypatch.setattr(names, "_known", dict(names._known))
    NETS.register("my-net")(type("MyNet", (NETS["mlp"],), {}))
    FAMILIES.register("my-grid")(type("MyGrid", (FAMILIES["grid"],), {}))
    settings, family = configured(plain_config(composed("env=my-grid", "net=my-net", "net.my-net.width=8")))
    assert settings.nets == {"my-net": {"width": 8}} and family.name == "my-grid"


def test_net_replaces_or_combines():
    assert list(small_settings("net=mlp").nets) == ["mlp"]
    assert list(small_settings("net=[lookup,conv]").nets) == ["lookup", "conv"]
    assert small_settings("net.lookup.width=64").nets["lookup"]["width"] == 64
    assert small_settings("net.conv.width=64", "net=[lookup,conv]").nets == {"lookup": {}, "conv": {"width": 64}}
    assert small_settings("net=[lookup,conv]").net == "lookup+conv"


def test_a_comparison_is_typed_too():
    values = plain_config(composed("compare.seeds=0", config="compare"))["compare"]
    comparison = build(ComparisonSettings, values, "compare")
    assert comparison.seeds == (0,) and comparison.entries["conv"] == ("net=conv",)
    with pytest.raises(SettingError, match="compare.wanted: a number >= 0"):
        build(ComparisonSettings, {**values, "wanted": "little"}, "compare")
    for seeds in ([], [0, 0]):  # nothing at all, or one run counted as two
        with pytest.raises(SettingError, match="compare.seeds: .*different ones, at least one"):
            build(ComparisonSettings, {**values, "seeds": seeds}, "compare")


# -- what a user brings ------------------------------------------------------------------------------------------------

WALK = """
from s2r_torch.families import register_family
from s2r_torch.families.grid import Grid
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.predictors.registry import register

@register_family("walk")
def walk(width: int = 3):
    return Grid(width=width)

@register("peaks")
class Peaks(LookupNet):
    options = {"height": 2.0}
"""


@pytest.mark.parametrize("place", ["", "conf"])
def test_families_networks_and_experiments_of_a_working_folder(tmp_path, monkeypatch, place):
    (tmp_path / "my_walk.py").write_text(WALK)
    folder = tmp_path / place
    (folder / "experiment").mkdir(parents=True)
    (folder / "env").mkdir()
    (folder / "env" / "mine.yaml").write_text("name: walk\n")
    (folder / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /env: mine\nname: mine\nplugins: [my_walk]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_walk", raising=False)
    for registry in (FAMILIES, NETS):  # what is registered here is forgotten afterwards
        monkeypatch.setattr(registry, "_known", dict(registry._known))
    settings, family = configured(
        plain_config(composed("+experiment=mine", "env.width=5", "net=peaks", "net.peaks.height=1"))
    )
    assert settings.name == "mine" and settings.nets == {"peaks": {"height": 1}} and family.width == 5
    _, family = configured(plain_config(composed("plugins=my_walk", "env=walk")))
    assert family.width == 3
    with pytest.raises(SettingError, match="env.width: a whole number; got 'wide'"):
        configured(plain_config(composed("plugins=my_walk", "env=walk", "env.width=wide")))
    with pytest.raises(SettingError, match="net.peaks.height: a number; got 'high'"):
        configured(plain_config(composed("plugins=my_walk", "net=peaks", "net.peaks.height=high")))


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rule=sharpest", "expected rule: one of .*; got 'sharpest'; likely cause: a typo for sharp"),
        ("method=magic", "expected method: one of sim2real, sweep; got 'magic'"),
        ("net=lokup", "one of the networks .*; got 'lokup'; likely cause: a typo for 'lookup'"),
        ("+net.transformer.width=8", "one of the networks"),
        ("net.lookup.widht=64", "a key of net.lookup.*; got net.lookup.widht; likely cause: a typo for width"),
        ("net.lookup.width=33", r"net.lookup.width: a whole number in \[2, 16384\], even; got 33"),
        ("net.lookup.width=[32,33]", "net.lookup.width.*got 33"),
        ("net.lookup.lipschitz_bound=high", "net.lookup.lipschitz_bound: a number > 0 or one of auto"),
        ("env=gird", "one of the families .*; got 'gird'; likely cause: a typo for 'grid'"),
        ("env.width=2", "expected a width >= 3; got 2"),
        ("env.width=three", "expected env.width: a whole number; got 'three'"),
        ("env.nosuch=1", "a key of env: width, .*; got env.nosuch"),
        ("env._target_=walk.make", r"@register_family\('walk'\)"),
        ("density.bandwidth=wide", "expected density.bandwidth: .*lepski, reference, paper; got 'wide'"),
        ("density.boundary=open", "density.boundary: one of none, legendre; got 'open'"),
        ("density.shrink=0", "density.shrink: a number > 0 or null; got 0"),
        ("density.order=abc", "density.order: a number > 0; got 'abc'"),
        ("density.order=3.5 density.kernel=box", "in density, .*order 3.5"),
        ("density.nodes=1e5", "nodes"),
        ("density.merge.zeta=always", "density.merge.zeta: a number > 0 or one of auto or null; got 'always'"),
        ("density.merge.relative=2", r"density.merge.relative: a number in \(0, 1\); got 2"),
        ("predictors.training.steps=0", "predictors.training.steps: a whole number >= 1; got 0"),
        ("predictors.training.snapshots=21", "in predictors.training, snapshots <= steps"),
        ("predictors.training.bootstrap=2", "predictors.training.bootstrap: true or false; got 2"),
        ("predictors.kind=known", "a family with a ready-made class"),
        ("budget.delta=5", r"budget.delta: a number in \(0, 1\); got 5"),
        ("budget.n_tain=5", "a key of budget.*; got budget.n_tain; likely cause: a typo for n_train"),
        ("budget.n_dist=012", "budget.n_dist: a whole number >= 1; got '012'.*write 12"),
        ("budget.phi=null budget.epsilon=0", "budget.epsilon: a number > 0; got 0"),
        ("evaluation.num_worlds=1", "evaluation.num_worlds: a whole number >= 2; got 1"),
        ("evaluation.num_worlds=2.5", "evaluation.num_worlds: a whole number >= 2; got 2.5"),
        ("evaluation.readings=[5,4]", "in ascending order"),
        ("budget.n_dist=1e18", "budget.n_dist: a whole number >= 1; got 1e.18.*more than any run ends with"),
        ("evaluation.num_worlds=1e15", "num_worlds: a whole number >= 2; got 1000000000000000.*more than any run"),
        ("certificate.simulators=1e18", "certificate.simulators: a whole number that is 0 or >= 2.*more than any run"),
        ("evaluation.readings=0", "evaluation.readings: a whole number >= 1; got 0"),
        ("diagnostics.simulators=1", "diagnostics.simulators: a whole number that is 0 or >= 2"),
        ("certificate.delta_world=1.2", "certificate.delta_world"),
        ("on_empty=ignore", "on_empty: one of error, best"),
        ("seed=7.9", "seed: a whole number; got 7.9"),
        ("seed=null", "seed: a whole number; got null"),
        ("name=10e2", "name: a name of .*; got 1000.0"),
        ("name=../up", "name: a name of"),
        (f"name={'x' * 2000}", "name: a name of at most 200"),
        ("trainer=gpu", "trainer: settings .*; got 'gpu'; likely cause: trainer.accelerator=gpu was meant"),
        ("trainer.accelerator=banana", "trainer.accelerator: one of cpu, gpu; got 'banana'"),
        ("trainer.accelerator=tpu", "trainer.accelerator: one of cpu, gpu; got 'tpu'"),
        ("trainer.threads=0", "trainer.threads: a whole number in"),
        ("trainer.banana=1", "a key of trainer"),
        ("net=conv net.conv.channels=0", "net.conv.channels >= 1, a whole number; got 0"),
        ("comparators.blind.sweeps=0", "comparators.blind.sweeps: a whole number >= 1; got 0"),
        ("comparators.blind.sweps=2", "a key of comparators.blind: .*sweeps.*; likely cause: a typo for sweeps"),
        ("comparators.blidn.members=2", "one of the comparators .*; got 'blidn'"),
        ("plugins=nothing_there", "an importable module 'nothing_there'"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(override, message):
    with pytest.raises(SettingError, match=message):
        configured(plain_config(composed(*SMALL, *override.split(" "))))


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("budget.n_dist=1e2", ("budget", "n_dist"), 100),
        ("density.nodes=24.0", ("density", "nodes"), 24),
        ("trainer.tensorboard=off", ("trainer", "tensorboard"), False),
        ("predictors.training.bootstrap=no", ("predictors", "training", "bootstrap"), False),
        ("evaluation.readings=100", ("evaluation", "readings"), (100,)),
        ("seed=0", ("seed",), 0),
    ],
)
def test_what_is_meant_is_taken(override, place, value):
    found = small_settings(override)
    for name in place:
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


def test_known_classes_are_asked_for_what_they_take():
    known = ("env=mixture", "predictors=known", "density=line1d")
    configured(plain_config(composed(*known, "predictors.known.flips=2")))
    with pytest.raises(SettingError, match="predictors.known.flips: a whole number or one of all; got 'some'"):
        configured(plain_config(composed(*known, "predictors.known.flips=some")))
    with pytest.raises(SettingError, match="a key of predictors.known: flips, gains, seed; got predictors.known.flip"):
        configured(plain_config(composed(*known, "predictors.known.flip=2")))


@pytest.mark.parametrize(
    ("cuda", "mps", "message"),
    [(False, False, "got none; available: cpu"), (False, True, "MPS alone, which has no float64")],
)
def test_a_device_that_is_not_there(monkeypatch, cuda, mps, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    with pytest.raises(SettingError, match=message):
        small_settings("trainer.accelerator=gpu")
