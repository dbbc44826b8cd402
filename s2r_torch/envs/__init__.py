"""Families of environments, by name. Importing this package imports no family, and never Gymnasium.

>>> from s2r_torch.envs import make_family
>>> make_family("grid", width=5).spec.horizon
9
"""

from __future__ import annotations

from importlib import import_module

from s2r_torch.errors import SettingError

FAMILIES = {"grid": "grid.Grid", "mixture": "mixture.Mixture", "frozenlake": "frozenlake.FrozenLake"}


def make_family(name: str, **parameters):
    """Builds a family from its name and `parameters()`, as stored in policy files.

    Raises:
        SettingError: there is no family of that name, or it has no such parameter.
    """
    if name not in FAMILIES:
        raise SettingError(expected=f"a family out of {', '.join(FAMILIES)}", got=repr(name), cause="a typing error")
    module, cls = FAMILIES[name].split(".")
    build = getattr(import_module(f"s2r_torch.envs.{module}"), cls)
    try:
        return build(**parameters)
    except TypeError as error:
        raise SettingError(
            expected=f"parameters of {cls}", got=", ".join(map(str, parameters)), cause=str(error)
        ) from error
