"""Settings from plain values: right ones are taken as they were meant, wrong ones are named with their whole key."""

import inspect
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from s2r_torch.errors import SettingError
from s2r_torch.schema import Name, OneOf, Range, Settings, Size, build, defaults, describe, explained, plain

OPEN_SET = {"first": 1}


@dataclass(frozen=True)
class Inner(Settings):
    """A record in a record.

    Args:
        low: the lower end.
        high: the upper end,
            on two lines.
    """

    low: float = 0.0
    high: float = 1.0

    def check_rules(self):
        if self.low > self.high:
            raise SettingError(expected="low <= high", got=str(self), cause="swapped")


@dataclass(frozen=True)
class Outer(Settings):
    size: Size = 3
    share: Annotated[float, Range(0, 1, open="high")] = 0.5
    quick: bool = False
    text: str = ""
    name: Name = "run"
    kind: Literal["error", "best"] = "error"
    entry: Annotated[str, OneOf(OPEN_SET)] = "first"
    zeta: Annotated[float, Range(0, open="low")] | Literal["auto"] | None = "auto"
    sizes: tuple[Size, ...] = (5, 10)
    pair: tuple[float, float] = (0.0, 1.0)
    modules: tuple[str, ...] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("size", 1e2, 100),
        ("size", 20.0, 20),
        ("size", np.int64(7), 7),
        ("share", 0, 0.0),
        ("quick", "yes", True),
        ("quick", "Off", False),
        ("quick", True, True),
        ("text", "012", "012"),
        ("name", "größe-1.b", "größe-1.b"),
        ("zeta", None, None),
        ("zeta", 2, 2.0),
        ("zeta", "auto", "auto"),
        ("sizes", 100, (100,)),
        ("sizes", [1, 2e1], (1, 20)),
        ("pair", [1, 2], (1.0, 2.0)),
        ("modules", "my_networks", ("my_networks",)),
        ("table", {"a": 1.0}, {"a": 1}),
        ("free", {"a": [1, None]}, {"a": [1, None]}),
        ("inner", {"high": 2}, Inner(high=2.0)),
    ],
)
def test_what_is_meant_is_taken(key, given, meant):
    found = getattr(build(Outer, {key: given}), key)
    assert found == meant and type(found) is type(meant)
    assert getattr(Outer(**{key: given}) if key != "inner" else Outer(inner=meant), key) == meant


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("size", 2.5, "a whole number >= 1; got 2.5; likely cause: not a whole number"),
        ("size", 0, "a whole number >= 1; got 0; likely cause: a value out of range"),
        ("size", "012", "got '012'.*write 12"),
        ("size", "5", "a number in quotes"),
        ("size", "50%", "a percent sign"),
        ("size", "abc", "a word where a number belongs"),
        ("size", None, "got null; likely cause: null where a value is needed"),
        ("size", "None", "write null"),
        ("size", True, "true or false where a number belongs"),
        ("size", math.inf, "not a whole number"),
        ("size", math.nan, "not a whole number"),
        ("size", 10**30, "too many digits"),
        ("size", [3], "a list where one value belongs"),
        ("share", 1, r"a number in \[0, 1\); got 1"),
        ("share", math.nan, "not a finite number"),
        ("share", False, "true or false where a number belongs"),
        ("quick", 1, "true or false; got 1"),
        ("quick", "maybe", "neither yes nor no"),
        ("quick", None, "null where a value is needed"),
        ("text", 1000.0, "read as float; put it in quotes"),
        ("text", "a\nb", "cannot be printed"),
        ("name", "x" * 201, "a name of at most 200 letters"),
        ("name", "../up", "a name of at most 200 letters"),
        ("name", "..", "a name of at most 200 letters"),
        ("name", "", "a name of at most 200 letters"),
        ("kind", "bset", "one of error, best; got 'bset'; likely cause: a typo for best"),
        ("entry", "frist", "one of first; got 'frist'; likely cause: a typo for first"),
        ("zeta", "atuo", "a number > 0 or one of auto or null; got 'atuo'; likely cause: a typo for auto"),
        ("zeta", 0, "got 0; likely cause: a value out of range"),
        ("sizes", None, "a list, each a whole number >= 1; got null"),
        ("sizes", {"a": 1}, "keys where a list belongs"),
        ("pair", [1, 2, 3], "a list of 3 where 2 belong"),
        ("table", [1], "names, each with a whole number"),
        ("table", {1: 1}, "the key 1 is not text"),
        ("inner", 3, r"inner: settings \(low, high\); got 3; likely cause: a value where keys belong"),
        ("inner", {"low": 2}, "in top.inner, low <= high"),
    ],
)
def test_what_is_wrong_is_named(key, given, message):
    with pytest.raises(SettingError, match=f"expected (in )?top.{key}.*{message}|{message}"):
        build(Outer, {key: given}, "top")


@pytest.mark.parametrize(
    ("values", "whole_key"),
    [
        ({"sizes": [5, "x"]}, r"top.sizes\[1\]"),
        ({"inner": {"low": "x"}}, "top.inner.low"),
        ({"table": {"a": "x"}}, "top.table.a"),
        ({"inner": {"lwo": 1}}, "a key of top.inner: low, high; got top.inner.lwo; likely cause: a typo for low"),
    ],
)
def test_the_whole_key_is_named(values, whole_key):
    with pytest.raises(SettingError, match=f"expected {whole_key}"):
        build(Outer, values, "top")


def test_records_built_in_python_are_checked_too():
    with pytest.raises(SettingError, match="expected size: a whole number >= 1; got 0"):
        Outer(size=0)
    with pytest.raises(SettingError, match="expected low <= high"):
        Inner(low=2)
    with pytest.raises(
        SettingError, match="arguments of Inner: low, high; got .*'hihg'; likely cause: a typo for high"
    ):
        Inner(hihg=2)
    with pytest.raises(SettingError, match="got multiple values for argument 'low'"):
        Inner(1, low=0)
    assert [*inspect.signature(Inner).parameters] == ["low", "high"] and pickle.loads(pickle.dumps(Inner())) == Inner()


def test_a_value_without_a_default_must_be_given():
    @dataclass(frozen=True)
    class Needy:
        file: str

    for values in ({}, {"file": "???"}):
        with pytest.raises(SettingError, match="expected log.file: text; got nothing"):
            build(Needy, values, "log")
    assert defaults(Needy) == {}

    @dataclass(frozen=True)
    class NeedySettings(Settings):
        file: str

    with pytest.raises(SettingError, match="arguments of NeedySettings: file; got missing a required argument"):
        NeedySettings()


def test_plain_values_make_the_record_again():
    record = build(Outer, {"sizes": 7, "inner": {"high": 3}, "table": {"a": 1}})
    assert build(Outer, plain(record)) == record
    assert defaults(Outer) == plain(Outer())
    assert plain(record)["sizes"] == [7] and plain(record)["inner"] == {"low": 0.0, "high": 3.0}


def test_records_explain_themselves():
    assert explained(Inner) == {"low": "the lower end.", "high": "the upper end, on two lines."}
    assert describe(Annotated[str, OneOf(OPEN_SET)]) == "one of first"
    with pytest.raises(KeyError):
        explained(Outer)
