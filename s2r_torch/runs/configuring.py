"""From a composed configuration to settings and a family: whatever is wrong in it is found before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from s2r_torch.base import PredictorGroup
from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.defaults import plain_torch
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.nodes import nodes_for
from s2r_torch.encoders import ENCODERS
from s2r_torch.encoders.encoding import IDENTITY, MOST_FEATURES
from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, family_named
from s2r_torch.families.contract import Family
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.registry import NETS, net_class, variants
from s2r_torch.predictors.training.settings import check_trainer
from s2r_torch.problem import Problem
from s2r_torch.registry import Registry, import_namesake, import_plugins
from s2r_torch.runs.settings import RunSettings
from s2r_torch.schema import arguments, build, value_of
from s2r_torch.text import printable


@plain_torch()
def configured(config: Mapping[str, Any]) -> tuple[RunSettings, Family]:
    """The settings and the family of a composed configuration, checked alone and together: the door of every run.

    Raises:
        SettingError: as `settings_from`, `family_from` and `check_together`.
    """
    settings, family = settings_from(config), family_from(config)
    check_together(settings, family)
    return settings, family


def settings_from(config: Mapping[str, Any]) -> RunSettings:
    """What a composed configuration (conf/run/run.yaml) says of a run; imports plugins, and looks for the device.

    Args:
        config: plain values: fields of `RunSettings`, with `net` for `nets`; `plugins`, modules that register families
            and networks; `env`, which `family_from` reads. NAME.py is imported for a network, an encoder or a
            comparator NAME that nothing has registered yet.

    Raises:
        SettingError: an unknown name or key, a value of the wrong type or out of range, or a device that is not here.
    """
    given = {key: value for key, value in config.items() if key not in ("env", "plugins", "net")}
    _import_plugins(config)
    nets = value_of(Mapping[str, Any], config.get("net"), "net")
    if not nets:
        raise SettingError(expected="net: at least one network", got="none", cause="net=[] was given")
    _import_namesakes(NETS, nets)
    _import_namesakes(ENCODERS, [value_of(Mapping[str, Any], given.get("encoder", {}), "encoder").get("name")])
    _import_namesakes(COMPARATORS, value_of(Mapping[str, Any], given.get("comparators", {}), "comparators"))
    settings = build(RunSettings, {**given, "nets": nets})
    check_trainer(settings.trainer)
    return settings


def family_from(config: Mapping[str, Any]) -> Family:
    """The family that `env` of a composed configuration names, with its parameters; NAME.py is imported for env=NAME.

    Raises:
        SettingError: an unknown family, or a parameter that it does not take.
    """
    _import_plugins(config)
    env = value_of(Mapping[str, Any], config.get("env"), "env")
    if "_target_" in env:
        raise SettingError(
            expected="env.name, the name of a registered family",
            got=f"env._target_={env['_target_']}",
            cause="a family of your own is registered by its module: @register_family('walk') in walk.py, then "
            "plugins=[walk] env=walk",
        )
    name = value_of(str, env.get("name"), "env.name")
    import_namesake(FAMILIES, name)
    return family_named(name, {key: value for key, value in env.items() if key != "name"}, "env")


def known_class(settings: RunSettings, family: Family) -> Callable[..., PredictorGroup] | None:
    """What builds the family's own class, where that is asked for.

    Raises:
        SettingError: it is asked for, and there is none; to be known before anything is drawn.
    """
    if settings.predictors.kind != "known":
        return None
    build = getattr(family, "known_class", None)
    if build is None:
        raise SettingError(
            expected="a family with a ready-made class, such as mixture",
            got=family.name,
            cause="predictors=known with a family whose f* is not known",
        )
    return build


def prunes(settings: RunSettings, family: Family) -> bool:
    """Whether a run looks for the states that are worth looking at: a known class holds f* at every one."""
    return bool(settings.pruning.tolerance) and known_class(settings, family) is None


def check_together(settings: RunSettings, family: Family) -> None:
    """Builds what depends on settings and family alone, for nothing: what cannot be built is known before any episode.

    That is the density grid, the family's ready-made class or, for a graph of one state per layer, one member of every
    network.

    Raises:
        SettingError: too many nodes, no ready-made class, its arguments, or a network that cannot be built.
    """
    phi = settings.encoding(family.spec)
    spec = phi.spec if phi else family.spec
    if spec.obs_dim > MOST_FEATURES:
        raise SettingError(
            expected=f"readings of at most {MOST_FEATURES} numbers, which densities can live on, or an encoder",
            got=f"{spec.obs_dim} numbers from env={family.name} and encoder={IDENTITY}",
            cause="images or many channels: encoder=learned, encoder=pca, or one of your own",
        )
    grid = DensityGrid.uniform(spec.low, spec.high, nodes_for(settings.density.nodes, spec.low, spec.high))
    build_known = known_class(settings, family)
    if build_known:
        arguments(partial(build_known, grid), settings.predictors.known, "predictors.known")
        return
    next_state = torch.full((spec.horizon, spec.num_actions), -1)
    next_state[:-1] = torch.arange(1, spec.horizon)[:, None]
    paths = tuple((0,) * step for step in range(spec.horizon))
    problem = Problem(spec, StateGraph(next_state, torch.arange(spec.horizon), paths), grid)
    for name, several in settings.nets.items():
        for values in variants(several):
            try:
                net_class(name)(problem, 1, torch.Generator(), **values)
            except SettingError:
                raise
            except Exception as error:
                raise SettingError(
                    expected=f"a network from net.{name}: {values}",
                    got=f"{type(error).__name__}: {printable(error)}",
                    cause="a size that makes no network, or a fault in a network of yours",
                ) from error


def _import_namesakes(registry: Registry, names: Iterable[object]) -> None:
    for name in names:
        if isinstance(name, str):
            import_namesake(registry, name)


def _import_plugins(config: Mapping[str, Any]) -> None:
    import_plugins(value_of(tuple[str, ...], config.get("plugins", ()), "plugins"))
