"""Names to classes: ours are imported when they are first asked for, a plugin's when it registers itself.

Configurations and policy files hold names, never modules: nothing that a file says is imported.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from s2r_torch.defaults import plain_torch
from s2r_torch.errors import S2RError, SettingError
from s2r_torch.text import NAME, printable


def require_name(name: object, kind: str, cause: str = "") -> str:
    """Returns a name that can stand in command lines, keys, tables and files, else raises SettingError."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise SettingError(
            expected=f"a name for a {kind}: at most 64 letters, digits, underscores and hyphens, a letter first",
            got=printable(repr(name), 80),
            cause=cause or "names stand in command lines, keys, tables and files",
        )
    return name


class Registry(Mapping[str, Any]):
    """One open set of names.

    Args:
        kind: what the names stand for, in messages: "network".
        base: the name of the class that all of them derive from, if they do.
        parts: what all of them have.
        ours: name -> "module:attribute" of those that ship; imported when first looked up.
    """

    def __init__(self, kind: str, ours: Mapping[str, str], base: str = "", parts: tuple[str, ...] = ()):
        self.kind, self.base, self.parts = kind, base, parts
        self._ours = dict(ours)
        self._known: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """A decorator that makes a class known by name, to configurations and to policy files; it sets `cls.name`.

        Raises:
            SettingError: something else has that name.
        """

        require_name(name, self.kind, "" if isinstance(name, str) else "a decorator without its name in brackets")

        def add(cls: Any) -> Any:
            if not callable(cls) or not hasattr(cls, "__qualname__"):
                expected, got = f"a class or a function as {self.kind} {name!r}", printable(repr(cls), 80)
                raise SettingError(expected=expected, got=got, cause="an object that was made already")
            if self.base and self.base not in {kind.__name__ for kind in getattr(cls, "__mro__", ())}:
                expected = f"a {self.kind} {name!r} that is a class derived from {self.base}"
                raise SettingError(expected=expected, got=printable(repr(cls), 80), cause="another base class")
            place = f"{cls.__module__}:{cls.__qualname__}"
            taken = self._ours.get(name, place)
            if name in self._known:
                taken = f"{self._known[name].__module__}:{self._known[name].__qualname__}"
            if taken != place:
                raise SettingError(
                    expected=f"a name that no other {self.kind} has",
                    got=f"{name!r} for {cls.__qualname__}, which is {taken}",
                    cause="a plugin that would replace one that files rely on",
                )
            missing = [part for part in self.parts if not hasattr(cls, part)]
            if missing:
                raise SettingError(
                    expected=f"{', '.join(self.parts)} of {self.kind} {name!r}",
                    got=f"{printable(repr(cls), 80)} without {', '.join(missing)}",
                    cause="another contract, or a function in place of a class",
                )
            cls.name = name
            self._known[name] = cls
            return cls

        return add

    def __getitem__(self, name: str) -> Any:
        if name not in self._known and name in self._ours:
            module, _, attribute = self._ours[name].partition(":")
            self._known.setdefault(name, getattr(importlib.import_module(module), attribute))
        return self._known[name]

    def named(self, name: str) -> Any:
        """The class of that name.

        Raises:
            SettingError: there is none; it names all, and the nearest one.
        """
        if not isinstance(name, str) or name not in self:
            near = difflib.get_close_matches(str(name), list(self), 1)
            hint = f"a typo for {near[0]!r}" if near else "a typo"
            raise SettingError(
                expected=f"one of the {self._plural} {sorted(self)}",
                got=repr(name),
                cause=f"{hint}, or a plugin not imported",
            )
        return self[name]

    @property
    def _plural(self) -> str:
        return f"{self.kind[:-1]}ies" if self.kind.endswith("y") else f"{self.kind}s"

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._ours

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._ours, *self._known]))

    def __len__(self) -> int:
        return len({*self._ours, *self._known})


def search_working_folder() -> None:
    """Makes the working folder the first place where modules are, whatever command runs."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def import_namesake(registry: Registry, name: str) -> None:
    """Imports NAME.py of the working folder where a person asks for a NAME that nothing has registered yet.

    For what is typed, never for what a file says.

    Raises:
        SettingError: that module cannot be imported.
    """
    if name not in registry and name.isidentifier() and Path(f"{name}.py").is_file():
        import_plugins([name])


@contextmanager
def _no_shallower() -> Iterator[None]:
    """Python's recursion limit, of which libraries need what there is, is afterwards no lower than before."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(max(limit, sys.getrecursionlimit()))


def import_of_users(name: str) -> ModuleType:
    """A module that a person named: the working folder's, where it has one of that name.

    Raises:
        SettingError: another module of that name was there first, such as Python's own `calendar`.
    """
    with _no_shallower():
        module = importlib.import_module(name)
    place = Path.cwd().joinpath(*name.split("."))
    mine = next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)
    taken = getattr(module, "__file__", None)
    if mine is not None and not (taken and Path(taken).parent.resolve() == mine.parent.resolve()):  # or compiled
        raise SettingError(
            expected=f"the module {name!r} of the working folder",
            got=printable(taken or "one that is built into Python"),
            cause="another module of that name, which was imported first: give yours another name",
        )
    return module


@plain_torch()
def import_plugins(modules: Iterable[str]) -> None:
    """Imports users' modules, which register families, networks and comparators; before anything is built or loaded.

    The working folder is the first place where modules are, whatever command runs. torch's defaults stay as they are.

    Raises:
        SettingError: a module cannot be imported, whatever it raises.
    """
    if isinstance(modules, str) or not isinstance(modules, Iterable):
        raise SettingError(expected="a list of modules", got=repr(modules), cause=f"[{modules!r}] was meant")
    for name in modules:
        search_working_folder()
        try:
            import_of_users(name)
        except (S2RError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a SystemExit of theirs would be an end of ours
            raise SettingError(
                expected=f"an importable module {name!r}",
                got=f"{type(error).__name__}: {printable(error)}",
                cause="a typo in plugins, a module that is not on the Python path, or a fault in it",
            ) from error
