"""What JSON values may be, declared as a table: types, ranges and closed keys, checked before anything uses them.

>>> point = Record({"x": Number(0, 1), "label": Maybe(Text(10))})
>>> check(point, {"x": 0.5, "label": None}, "point")
>>> check(point, {"x": 10**400, "label": None}, "point")
Traceback (most recent call last):
    ...
s2r_torch.errors.CheckpointError: expected point.x: a number in 0 .. 1; got an integer of 401 digits; likely cause: \
a file edited by hand, or written by another program
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from s2r_torch.errors import CheckpointError
from s2r_torch.files.strict_json import depth
from s2r_torch.text import printable

Fault = tuple[str, str, object]  # place, what was expected there, what came
CAUSE = "a file edited by hand, or written by another program"


class Schema(Protocol):
    """One kind of value."""

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        """Everything that is wrong with a value."""


def check(schema: Schema, value: object, place: str, cause: str = CAUSE) -> None:
    """Raises CheckpointError for the first thing that is wrong with a value; it says where."""
    for where, expected, got in schema.faults(value, place):
        raise CheckpointError(expected=f"{printable(where)}: {expected}", got=described(got), cause=cause)


def described(value: object) -> str:
    """A value in few printable words, whatever its size."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a record of {len(value)}: {printable(', '.join(map(str, sorted(value)[:5])), 80)}"
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"an integer of {len(str(abs(value)))} digits"
    return printable(repr(value), 80)


@dataclass(frozen=True)
class Integer:
    """A whole number from low to high; true and 1.0 are none."""

    low: int
    high: int

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if type(value) is not int or not self.low <= value <= self.high:
            yield place, f"an integer in {self.low} .. {self.high}", value


@dataclass(frozen=True)
class Number:
    """A finite number from low to high that a float can hold; low itself is left out where `above` says so."""

    low: float
    high: float
    above: bool = False

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        known = type(value) in (int, float) and value == value
        if not known or not self.low <= value <= self.high or (self.above and value == self.low):
            words = f"> {self.low:g}, at most {self.high:g}" if self.above else f"in {self.low:g} .. {self.high:g}"
            yield place, f"a number {words}", value
        elif float(value) != value:
            yield place, "a number that a float can hold", value


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if type(value) is not bool:
            yield place, "true or false", value


@dataclass(frozen=True)
class Text:
    """Text of bounded length; of some letters only, where they are given."""

    most: int
    least: int = 0
    letters: str = ""

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        known = isinstance(value, str) and self.least <= len(value) <= self.most
        if not known or (self.letters and not {*value} <= {*self.letters}):
            yield (
                place,
                f"text of {self.least} to {self.most} characters {self.letters and f'of {self.letters!r}'}",
                value,
            )


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if not any(type(value) is type(one) and value == one for one in self.values):
            yield place, f"one of {', '.join(map(repr, self.values))}", value


@dataclass(frozen=True)
class Either:
    """Null, or one of several kinds; the last one's faults are told."""

    kinds: tuple[Schema, ...]

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if not any(not list(kind.faults(value, place)) for kind in self.kinds):
            yield from self.kinds[-1].faults(value, place)


def Maybe(kind: Schema) -> Either:  # noqa: N802 (a schema among schemas)
    """Null, or that kind."""
    return Either((Choice((None,)), kind))


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind."""

    kind: Schema
    most: int
    least: int = 0

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            yield place, f"a list of {self.least} to {self.most}", value
            return
        for i, inner in enumerate(value):
            yield from self.kind.faults(inner, f"{place}[{i}]")


@dataclass(frozen=True)
class MapOf:
    """Names to values of one kind."""

    kind: Schema
    most: int
    longest: int = 200  # characters of a name

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if not isinstance(value, dict) or len(value) > self.most:
            yield place, f"a record of at most {self.most}", value
            return
        for name, inner in value.items():
            if len(name) > self.longest:
                yield place, f"names of at most {self.longest} characters", name
            yield from self.kind.faults(inner, f"{place}.{name}")


@dataclass(frozen=True)
class Record:
    """Exactly these names."""

    fields: Mapping[str, Schema]

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield place, f"a record of {', '.join(sorted(self.fields))}", value
            return
        for name in sorted({*self.fields} - {*value}):
            yield f"{place}.{name}", "a value", None
        for name in sorted({*value} - {*self.fields}):
            yield f"{place}.{name}", "no such field", value[name]
        for name, kind in self.fields.items():
            if name in value:
                yield from kind.faults(value[name], f"{place}.{name}")


@dataclass(frozen=True)
class Values:
    """Any JSON values, few and not deep, for people and for classes that check them."""

    most: int
    deepest: int
    longest: int = 10_000  # characters of one text
    largest: float = 1e18

    def faults(self, value: Any, place: str) -> Iterator[Fault]:
        if depth(value) > self.deepest:
            yield place, f"values nested at most {self.deepest} deep", value
            return
        found = list(_plain(value))
        if len(found) > self.most:
            yield place, f"at most {self.most} values", f"{len(found)} values"
        for one in found:
            if isinstance(one, str) and len(one) > self.longest:
                yield place, f"text of at most {self.longest} characters", one
            if isinstance(one, int | float) and not abs(one) <= self.largest:
                yield place, f"numbers of size at most {self.largest:g}", one


def _plain(value: object) -> Iterator[object]:
    """All values and names inside, depth first; for values that are known not to be deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _plain(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _plain(inner)
    else:
        yield value


def like(default: object, largest: int) -> Schema:
    """The kind of a setting whose default is known: the same type, of bounded size."""
    if type(default) is bool:
        return Flag()
    if type(default) is int:
        return Integer(-largest, largest)
    if type(default) is float:
        return Number(-largest, largest)
    if isinstance(default, str):
        return Text(200)
    return Values(1000, 4)
