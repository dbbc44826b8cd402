"""Every configuration composes, builds its records and its family, and wrong ones say what is wrong."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf
from support.smoke import CONF, SMALL, composed, small_settings

from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family
from s2r_torch.learning.rules import RULES
from s2r_torch.learning.sim2real import METHODS
from s2r_torch.predictors.registry import NETS
from s2r_torch.runs.settings import settings_from

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds(experiment):
    cfg = composed(f"+experiment={experiment}")
    settings = settings_from(OmegaConf.to_container(cfg, resolve=True))
    family = instantiate(cfg.env)
    assert settings.name == experiment
    assert isinstance(family, Family)
    assert f"+experiment={experiment}" in (CONF / "experiment" / f"{experiment}.yaml").read_text()


@pytest.mark.parametrize(
    "group, names", [("rule", RULES), ("method", METHODS), ("net", [n for n in NETS if n != "blind"])]
)
def test_every_name_has_a_file(group, names):
    assert set(options(group)) == set(names)
    for name in options(group):
        small_settings(f"{group}={name}")


def test_net_replaces_or_combines():
    assert list(small_settings("net=mlp").nets) == ["mlp"]
    assert list(small_settings("net=[lookup,conv]").nets) == ["lookup", "conv"]
    assert small_settings("net.lookup.width=64").nets["lookup"]["width"] == 64
    assert small_settings("net=[lookup,conv]").net == "lookup+conv"


@pytest.mark.parametrize(
    "override, part",
    [
        ("rule.name=sharpest", "one of the rules"),
        ("method.name=magic", "one of the methods"),
        ("+net.transformer.width=8", "one of the networks"),
        ("density.bandwidth=wide", "a bandwidth"),
        ("density.boundary=open", "a boundary"),
        ("density.shrink=0", "shrink > 0"),
        ("density.merge.zeta=always", "zeta > 0, auto or null"),
        ("predictors.training.steps=0", "sizes >= 1"),
        ("budget.delta=5", "delta"),
        ("+budget.n_tain=5", "BudgetSettings"),
        ("density.merge.relative=2", "relative in"),
        ("world.num_worlds=1", "num_worlds"),
        ("rule.on_empty=ignore", "on_empty"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(override, part):
    with pytest.raises(SettingError, match=part):
        settings = small_settings(override)
        settings.budget.make(2, 2, 4, 3, 100)


def test_seed_zero_is_a_seed():
    assert small_settings("seed=0").seed == 0


def test_small_overrides_are_still_valid_keys():
    assert composed(*SMALL).world.num_worlds == 2
