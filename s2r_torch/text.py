"""Text that came from outside - files, worlds, users' code - on its way to a terminal, a table or a message.

>>> printable("log[copy].csv")
'log[copy].csv'
>>> printable("a\\x1b[31mred\\n" + 50 * "x", most=20)
'a\\\\x1b[31mred\\\\n...xxx'
"""

from __future__ import annotations

import re
from pathlib import Path

NAME = re.compile(r"[a-z_][\w-]{0,63}", re.ASCII | re.IGNORECASE)  # what Hydra takes as a key, and every file system


def printable(text: object, most: int = 200) -> str:
    """One line of at most `most` characters: control and unprintable characters escaped, the middle left out.

    It is still plain text: print it with `markup=False`, or through `rich.markup.escape`.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in _words(text))
    if len(line) <= most:
        return line
    tail = max(0, (most - 3) // 5)
    return f"{line[: most - 3 - tail]}...{line[len(line) - tail :]}"


def _words(text: object) -> str:
    """Its text, or that it has none: users' errors fail at this, too."""
    try:
        return str(text)
    except Exception as error:
        return f"(no text: {type(error).__name__})"


def from_here(path: Path) -> str:
    """A path as one would type it where one is: without the working folder, if it lies there.

    >>> from_here(Path.cwd() / "runs" / "grid"), from_here(Path("/elsewhere"))
    ('runs/grid', '/elsewhere')
    """
    here = Path.cwd()
    return str(path.relative_to(here) if path != here and path.is_relative_to(here) else path)
