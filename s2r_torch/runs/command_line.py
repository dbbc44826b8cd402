"""Command lines as people type them, made into what the configuration's grammar takes."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence


def completed(arguments: Sequence[str], worlds: Container[str]) -> list[str]:
    """Expands `~` after an equals sign, and takes `world=NAME` for a family where no file has that name.

    >>> completed(["seed=1", "world=mine"], {"grid"})
    ['seed=1', 'world=family', 'world.family=mine']

    Args:
        arguments: without the program's name.
        worlds: names that are files of the group `world`.
    """
    found: list[str] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and re.match(r"~[\w.-]*(/|$)", value):
            quoted = os.path.expanduser(value).replace("\\", "\\\\").replace('"', '\\"')
            found.append(f'{key}="{quoted}"')
        elif key == "world" and re.fullmatch(r"[\w.-]+", value) and value not in worlds:
            found += ["world=family", f"world.family={value}"]
        else:
            found.append(argument)
    return found
