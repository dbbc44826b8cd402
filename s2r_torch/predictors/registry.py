"""Networks by name, for configurations and policy files: files name networks, never modules."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from s2r_torch.errors import SettingError

NETS: dict[str, type] = {}  # subclasses of `nets.Net`


def register(name: str) -> Callable[[type], type]:
    """Makes an architecture known by name, to configurations and to policy files.

    Raises:
        SettingError: another architecture has that name.
    """

    def add(cls: type) -> type:
        known = NETS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise SettingError(
                expected="a name that no other network has",
                got=f"{name!r} for {cls.__qualname__}, which is {known.__module__}.{known.__qualname__}",
                cause="a plugin that would replace a network that files rely on",
            )
        cls.name = name
        NETS[name] = cls
        return cls

    return add


def net_class(name: str) -> type:
    """The architecture of that name."""
    if name not in NETS:
        raise SettingError(
            expected=f"one of the networks {sorted(NETS)}", got=repr(name), cause="a typo, or a plugin not imported"
        )
    return NETS[name]


def search_working_folder() -> None:
    """Makes the working folder a place where modules are, whatever script runs."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def import_plugins(modules: Iterable[str]) -> None:
    """Imports users' modules, which register their networks; call it before anything is built or loaded.

    The working folder counts as a place where modules are, whatever script runs.

    Raises:
        SettingError: a module cannot be imported.
    """
    for name in modules:
        search_working_folder()
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingError(
                expected=f"an importable module {name!r}",
                got=f"{type(error).__name__}: {error}",
                cause="a typo in plugins, or a module that is not on the Python path",
            ) from error


def variants(settings: Mapping) -> list[dict]:
    """Every combination of the values that are given as lists, each a network of its own.

    >>> variants({"lipschitz_bound": [5.0, 20.0], "depth": 2})
    [{'lipschitz_bound': 5.0, 'depth': 2}, {'lipschitz_bound': 20.0, 'depth': 2}]
    """
    choices = [value if isinstance(value, list | tuple) else [value] for value in settings.values()]
    return [dict(zip(settings, combination, strict=True)) for combination in itertools.product(*choices)]
