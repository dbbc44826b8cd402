"""Families of environments, by name. Importing this package imports no family, and never Gymnasium.

>>> from s2r_torch.families import make_family
>>> make_family("grid", width=5).spec.horizon
9
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from s2r_torch.defaults import plain_torch
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family, require_family
from s2r_torch.given import taking
from s2r_torch.registry import Registry
from s2r_torch.schema import arguments
from s2r_torch.text import printable

FAMILIES = Registry(
    "family",
    {
        "grid": "s2r_torch.families.grid:Grid",
        "mixture": "s2r_torch.families.mixture.family:Mixture",
        "lock": "s2r_torch.families.lock:Lock",
        "frozenlake": "s2r_torch.families.frozenlake:FrozenLake",
        "cliffwalking": "s2r_torch.families.cliffwalking:CliffWalking",
        "minigrid": "s2r_torch.families.minigrid:MiniGrid",
        "minigrid_images": "s2r_torch.families.minigrid_images:MiniGridImages",
        "treasure": "s2r_torch.families.treasure:Treasure",
        "pendulum": "s2r_torch.families.pendulum:Pendulum",
        "digits": "s2r_torch.families.digits:Digits",
    },
)


@taking(name=object)
def register_family(name: str) -> Callable[[Any], Any]:
    """A decorator that makes a family known by name: on its class, or on a function that returns it.

    Raises:
        SettingError: the name cannot stand in a command line, or is taken.
    """
    return FAMILIES.register(name)


@taking(name=object)
def make_family(name: str, **parameters) -> Family:
    """Builds a family from its name and `parameters()`, as configurations and policy files hold them.

    Raises:
        SettingError: there is no family of that name, it has no such parameter, or it says a name that there is not.
    """
    return family_named(name, parameters, name)


@plain_torch()
def family_named(name: str, parameters: Mapping[str, Any], key: str) -> Family:
    """The same for parameters that a person gave; `key` is where, in messages: `env`.

    Raises:
        SettingError: as above, or a value that is not of the parameter's type.
    """
    build = FAMILIES.named(name)
    try:
        family = build(**arguments(build, parameters, key))
    except TypeError as error:
        raise SettingError(
            expected=f"parameters of {name}", got=", ".join(map(str, parameters)), cause=str(error)
        ) from error
    require_family(f"what {name}(...) returned", family)
    if FAMILIES.get(family.name) is None:
        raise SettingError(
            expected=f"a family whose name is a registered one, as {name} is",
            got=printable(family.name),
            cause="policy files and workers make a family again from its name",
        )
    return family
