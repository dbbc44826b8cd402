"""JSON with one spelling, and tables of what its values may be."""

import math

import pytest

from s2r_torch.errors import CheckpointError
from s2r_torch.files.json_schema import (
    Choice,
    Either,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Maybe,
    Number,
    Record,
    Text,
    Values,
    check,
    like,
)
from s2r_torch.files.strict_json import DEEPEST, depth, parsed, spelt


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


RIGHT = [
    (Integer(0, 5), 5),
    (Number(0, 5), 5),
    (Number(0, 5), 0.0),
    (Flag(), False),
    (Text(3), "abc"),
    (Text(3, letters="01"), "010"),
    (Choice((1, "a", None)), None),
    (Either((Choice(("auto",)), Number(0, 1))), "auto"),
    (Maybe(Flag()), None),
    (ListOf(Flag(), 2), [True, False]),
    (MapOf(Flag(), 2), {"a": True}),
    (Record({"a": Flag(), "b": Text(1)}), {"b": "x", "a": True}),
    (Values(5, 2), {"a": [1, None]}),
]
WRONG = [
    (Integer(0, 5), [6, -1, True, 1.0, "1", None, [], 10**400]),
    (Number(0, 5), [6, -0.1, True, "1", None, math.nan, math.inf, 10**400, -(10**400)]),
    (Number(0, 5, above=True), [0, 0.0, -0.0]),
    (Number(0, 1e40), [10**30, 2**53 + 1]),
    (Flag(), [0, 1, None, "true"]),
    (Text(3, least=1), ["", "abcd", 1, None, ["a"]]),
    (Text(3, letters="01"), ["012"]),
    (Choice((1, "a", None)), [True, 1.0, "b", 0, [], {}]),
    (Either((Choice(("auto",)), Number(0, 1))), ["car", 2, None]),
    (ListOf(Flag(), 2, least=1), [[], [True] * 3, [1], {}, "ab", None]),
    (MapOf(Flag(), 1, longest=3), [{"a": 1}, {"a": True, "b": True}, {"long": True}, [], None]),
    (Record({"a": Flag()}), [{}, {"a": True, "b": 1}, {"b": True}, [], None, {"a": None}]),
    (Values(3, 2, longest=3, largest=10), [nested(3), [1] * 4, "long", 11, {"long": 1}, 10**400]),
]


@pytest.mark.parametrize("schema, value", RIGHT)
def test_legal_values_pass(schema, value):
    check(schema, value, "x")


@pytest.mark.parametrize("schema, value", [(schema, value) for schema, values in WRONG for value in values])
def test_others_are_one_short_printable_error(schema, value):
    with pytest.raises(CheckpointError) as raised:
        check(schema, value, "\x1b[31mplace" + 5000 * "x")
    assert len(str(raised.value)) < 900 and str(raised.value).isprintable()


def test_the_place_is_told():
    schema = Record({"spec": Record({"low": ListOf(Number(0, 1), 3)})})
    with pytest.raises(CheckpointError, match=r"header\.spec\.low\[1\]: a number in 0 .. 1; got 'x'"):
        check(schema, {"spec": {"low": [0, "x"]}}, "header")


def test_settings_are_of_the_kind_of_their_defaults():
    for default, right, wrong in ((8, 9, 9.0), (0.5, 1, True), (True, False, 1), ("a", "b", 1), (8, -5, 100)):
        check(like(default, 99), right, "x")
        with pytest.raises(CheckpointError):
            check(like(default, 99), wrong, "x")


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "1e999", "[1,", "", "{'a':1}", '{"a":1,"a":1}', "9" * 5000, "[" * 10**6]
)
def test_texts_that_stand_for_no_value(text):
    with pytest.raises(ValueError):
        parsed(text)


def test_depth_is_bounded_in_both_directions():
    assert depth(nested(DEEPEST)) == DEEPEST and parsed(spelt(nested(DEEPEST))) == nested(DEEPEST)
    with pytest.raises(ValueError, match="nested deeper"):
        parsed("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))
    with pytest.raises(ValueError, match="nested deeper"):
        spelt(nested(10**5))


@pytest.mark.parametrize("value", [math.nan, math.inf, [math.nan], {"a": {1, 2}}, object()])
def test_values_that_have_no_text(value):
    with pytest.raises((ValueError, TypeError)):
        spelt(value)
