"""Code that is in no file, of a notebook or an interactive session: what a run is a function of there."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digests_of_code(things: Iterable[Any]) -> dict[str, str]:
    """Name -> a checksum of the code of those functions and classes that are in no file.

    Of what they call, too, and of the plain numbers and texts that they use, as far as that is in no file.
    """
    found: dict[str, str] = {}
    for thing in things:
        if _in_no_file(thing):
            told = hashlib.blake2b(digest_size=8)
            for part in _parts(thing, set()):
                told.update(part)
            found[thing.__qualname__] = told.hexdigest()
    return found


def _in_no_file(thing: object) -> bool:
    if not isinstance(thing, FunctionType | type) or thing.__module__ != "__main__":
        return False
    return not Path(getattr(inspect.getmodule(thing), "__file__", None) or "/").is_file()


def _parts(thing: object, seen: set[int]) -> Iterator[bytes]:
    """The code of a function, or of a class's methods, and what it is about."""
    function = getattr(thing, "__func__", getattr(thing, "fget", thing))
    if isinstance(function, PLAIN) or (isinstance(function, tuple) and all(isinstance(v, PLAIN) for v in function)):
        yield repr(function).encode()
    elif id(function) in seen or not _in_no_file(function):
        return
    elif isinstance(function, type):
        seen.add(id(function))
        for name, value in sorted(vars(function).items()):
            if callable(value) or not name.startswith("__"):  # not the line that it is written in
                yield name.encode()
                yield from _parts(value, seen)
    elif isinstance(function, FunctionType):
        seen.add(id(function))
        yield from _of_code(function.__code__)
        used = [function.__globals__.get(name) for name in function.__code__.co_names]
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
        for value in (*used, *cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from _parts(value, seen)


def _of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        else:  # sets have no order
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()
