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
        SettingError: an option that there is not.

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
