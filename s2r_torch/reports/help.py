"""What every setting means: its range, its default and its line in the docstring of its record."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator

from s2r_torch.schema import defaults, describe, explained, is_record, kinds_of

WIDTH = 110


def words_of(doc: str | None) -> str:
    """A command's own words: its docstring, which `python -OO` takes away."""
    return (doc or "(python -OO takes the words of this help away)").strip()


def settings_help(cls: type, key: str = "", leave_out: Collection[str] = ()) -> Iterator[str]:
    """Lines on every setting of a record and of the records in it, by its whole key.

    >>> from s2r_torch.learning.merging import MergeSettings
    >>> next(settings_help(MergeSettings, "density.merge"))
    'density.merge.n_merge=250: a whole number >= 4'
    """
    given, told = defaults(cls), explained(cls)
    for name, kind in kinds_of(cls).items():
        whole = f"{key}.{name}" if key else name
        if whole in leave_out:
            continue
        if is_record(kind):
            yield from settings_help(kind, whole)
            continue
        line = f"{whole}={_spelt(given[name]) if name in given else '???'}: {describe(kind)}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="        ", break_on_hyphens=False)
        yield from textwrap.wrap(told.get(name, ""), WIDTH, initial_indent="    ", subsequent_indent="    ")


def _spelt(value: object) -> str:
    """A value as a command line has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{_spelt(one)}' for name, one in value.items())}}}"
    return f"[{','.join(map(_spelt, value))}]" if isinstance(value, list) else str(value)
