"""A command line before Hydra reads it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from s2r_torch.errors import SettingError
from s2r_torch.text import printable


def refusing(expected: str, cause: str) -> Callable[[str], NoReturn]:
    """What a parser does with its message instead of printing how it is used: one SettingError."""

    def refuse(message: str) -> NoReturn:
        raise SettingError(expected=expected, got=printable(message), cause=cause)

    return refuse


def settings_first(arguments: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """A command line with all settings before its options: Hydra's parser takes none on both sides of them.

    Raises:
        SettingError: an option that there is not, or a value without its key.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("overrides", nargs="*"), parser.add_argument("-m", action="store_true")
    >>> settings_first(["env=grid", "-m", "seed=0,1"], parser)
    ['env=grid', 'seed=0,1', '-m']
    """

    cause = "a dash before a setting, which has none: KEY=VALUE; or an option that there is not (--help)"
    parser.error = refusing("settings KEY=VALUE and options of Hydra", cause)  # type: ignore[assignment]
    found, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        parser.error(unknown[0])
    for setting in found.overrides:
        if re.match(r"[+~]*=", setting):
            refusing("a setting KEY=VALUE", "a value without its key, or a blank beside the =")(setting)
    settings, options = list(found.overrides), []
    for argument in arguments:
        if settings and argument == settings[0]:
            settings.pop(0)
        else:
            options.append(argument)
    return [*found.overrides, *options]


def with_home(argument: str) -> str:
    """A folder that Hydra makes, written out where it begins with `~`: it would make one of that name.

    >>> with_home('hydra.run.dir="~/runs"') == f'hydra.run.dir="{Path.home()}/runs"'
    True
    """
    return re.sub(r"""^(hydra\.(?:run|sweep)\.dir=["']?)~(?=[/"']|$)""", lambda m: f"{m[1]}{Path.home()}", argument)


def require_one_of_each(overrides: Iterable[str]) -> None:
    """A run has one family, one encoder, one world: of several, Hydra would silently take the last.

    Args:
        overrides: of one job, as the command line has them.

    Raises:
        SettingError: several were given.

    >>> require_one_of_each(["env=grid", "net=[lookup,conv]", "world.readings=[1,2]"])
    """
    for override in overrides:
        several = re.match(r"\+?(env|encoder|world)=\[.*,", override)
        if several:
            raise SettingError(
                expected=f"one name: {several[1]}=NAME",
                got=printable(override),
                cause="a list where one value belongs; for one after another, -m and no brackets",
            )


def said_twice(overrides: Iterable[str]) -> list[str]:
    """In words, settings that others take the place of, as of a command line and what was put behind it.

    >>> said_twice(["seed=1", "+experiment=grid", "++seed=2"])
    ['seed=1 does not count: ++seed=2 comes after it']
    """
    last: dict[str, str] = {}
    found = []
    for override in overrides:
        key, is_one, _ = override.lstrip("+").partition("=")
        if is_one and last.get(key, override) != override:
            found.append(printable(f"{last[key]} does not count: {override} comes after it"))
        last[key] = override
    return found
