"""Families of environments, by name. Importing this package imports no family, and never Gymnasium.

>>> from s2r_torch.families import make_family
>>> make_family("grid", width=5).spec.horizon
9
"""

from __future__ import annotations

from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family
from s2r_torch.registry import Registry

FAMILIES = Registry(
    "family",
    {
        "grid": "s2r_torch.families.grid:Grid",
        "mixture": "s2r_torch.families.mixture.family:Mixture",
        "lock": "s2r_torch.families.lock:Lock",
        "frozenlake": "s2r_torch.families.frozenlake:FrozenLake",
    },
)
register_family = FAMILIES.register


def make_family(name: str, **parameters) -> Family:
    """Builds a family from its name and `parameters()`, as configurations and policy files hold them.

    Raises:
        SettingError: there is no family of that name, or it has no such parameter.
    """
    build = FAMILIES.named(name)
    try:
        return build(**parameters)
    except TypeError as error:
        raise SettingError(
            expected=f"parameters of {build.__name__}", got=", ".join(map(str, parameters)), cause=str(error)
        ) from error
