"""What annotations of settings say: types, ranges and open sets of names, and all of it in words."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

MOST_DRAWN = 10**9


@dataclass(frozen=True)
class Range:
    """Numbers between two ends; an end that is `open` does not belong to it.

    >>> str(Range(0, 1, open="low")), 0 in Range(0, 1, open="low"), 1 in Range(0, 1, open="low")
    ('in (0, 1]', False, True)
    """

    least: float = -math.inf
    most: float = math.inf
    open: Literal["", "low", "high", "both"] = ""

    def __contains__(self, value: float) -> bool:
        above = value > self.least if self.open in ("low", "both") else value >= self.least
        return above and (value < self.most if self.open in ("high", "both") else value <= self.most)

    def __str__(self) -> str:
        low, high = self.open in ("low", "both"), self.open in ("high", "both")
        if self.most == math.inf:
            return f"{'>' if low else '>='} {self.least}"
        return f"in {'(' if low else '['}{self.least}, {self.most}{')' if high else ']'}"


@dataclass(frozen=True)
class Drawable(Range):
    """Numbers of what is drawn, stored or done one after another: at most `MOST_DRAWN`, or none where `or_none`.

    >>> str(Drawable(1)), 10**6 in Drawable(1), 10**18 in Drawable(1)
    ('>= 1', True, False)
    """

    or_none: bool = False

    def __contains__(self, value: float) -> bool:
        return super().__contains__(value) and value <= MOST_DRAWN or self.or_none and value == 0

    def __str__(self) -> str:
        return f"that is 0 or {super().__str__()} (no standard error of one)" if self.or_none else super().__str__()

    def hint(self, value: float) -> str:
        """The likely cause of a number out of range."""
        return f"more than any run ends with: at most {MOST_DRAWN:,}" if value > MOST_DRAWN else "a value out of range"


@dataclass(frozen=True, eq=False)  # registries have no hash
class OneOf:
    """Names of an open set, such as a registry, looked at when a value comes."""

    names: Iterable[str]

    def __contains__(self, value: object) -> bool:
        return value in list(self.names)

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"

    def hint(self, value: object) -> str:
        """The likely cause of a wrong name."""
        return typo(value, self.names)


@dataclass(frozen=True)
class Where:
    """Values for which `test` is true, in words."""

    words: str
    test: Callable[[Any], bool]

    def __contains__(self, value: object) -> bool:
        return self.test(value)

    def __str__(self) -> str:
        return self.words


Whole = Annotated[int, Range(1)]
Size = Annotated[int, Drawable(1)]
Count = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open="low")]
Share = Annotated[float, Range(0, 1, open="both")]
Several = Annotated[int, Drawable(2, or_none=True)]
Name = Annotated[
    str,
    Where(
        "a name of at most 200 letters, digits and . _ - that starts with a letter or digit",
        lambda text: len(text.encode()) <= 200 and re.fullmatch(r"[^\W_][\w.-]*", text) is not None,
    ),
]


_WORDS_OF = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null", Any: "any"}


def describe(kind: Any) -> str:
    """What an annotation allows, in words.

    >>> describe(Size | None), describe(Literal["error", "best"]), describe(tuple[Count, ...])
    ('a whole number >= 1 or null', 'one of error, best', 'a list, each a whole number >= 0')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _WORDS_OF:
        return _WORDS_OF[kind]
    if origin is Annotated:
        words = [str(constraint) for constraint in parts[1:]]
        return ", ".join(words) if parts[0] is str else f"{describe(parts[0])} {', '.join(words)}"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in parts))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if is_record(kind):
        return f"settings ({', '.join(kinds_of(kind))})"
    if kind is tuple or origin is tuple:
        return f"a list, each {describe(parts[0])}" if parts else "a list"
    return f"names, each with {describe(parts[1])}" if parts and parts[1] is not Any else "names with values"


def has_choices(kind: Any) -> bool:
    """Whether an annotation names its values."""
    return get_origin(kind) is Literal or any(isinstance(part, OneOf) for part in get_args(kind)[1:])


def is_known(kind: Any) -> bool:
    """Whether values of an annotation can be checked."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated or origin in (Union, UnionType, tuple):
        return all(is_known(part) for part in (parts[:1] if origin is Annotated else parts) if part is not Ellipsis)
    return kind in _WORDS_OF or origin is Literal or is_record(kind)


def is_record(kind: Any) -> TypeGuard[type]:
    """Whether an annotation is a dataclass."""
    return isinstance(kind, type) and is_dataclass(kind)


def kinds_of(cls: type) -> dict[str, Any]:
    """Field -> annotation."""
    return _kinds_of(cls)


@functools.cache
def _kinds_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def typo(value: object, names: Iterable[str]) -> str:
    """The likely cause of an unknown name: "a typo for peaks", or "a typo"."""
    near = difflib.get_close_matches(str(value).lower(), list(names), 1)
    return f"a typo for {near[0]}" if near else "a typo"


def shape_of(kind: Any) -> type:
    """The Python type that an annotation's values have."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return str if get_origin(kind) is Literal else get_origin(kind) or kind
