"""JSON with one spelling: what was read is what was written, to the letter.

Keys are sorted, nothing is spaced, numbers are finite, no key comes twice. So a text stands for one value, and two
texts that differ stand for two.

>>> spelt({"b": 1.0, "a": [True, None]})
'{"a":[true,null],"b":1.0}'
>>> parsed('{"a":[true,null],"b":1.0}')
{'a': [True, None], 'b': 1.0}
"""

from __future__ import annotations

import json
import math
from typing import Any

from s2r_torch.text import printable

DEEPEST = 32  # lists and records inside each other


def spelt(value: object) -> str:
    """The one text of JSON values; numpy's and torch's scalars count as numbers.

    Raises:
        ValueError: a number that is not finite, or values nested deeper than `DEEPEST`.
        TypeError: a value that JSON does not have.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_number)
    except RecursionError:
        raise ValueError(f"values nested deeper than {DEEPEST}") from None


def parsed(text: str | bytes) -> Any:
    """The values of any JSON text.

    Raises:
        ValueError: no JSON, a number that is not finite or has too many digits, a key that comes twice, or values
            nested deeper than `DEEPEST`.
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_record)
    except RecursionError:
        raise ValueError(f"values nested deeper than {DEEPEST}") from None
    if depth(value) > DEEPEST:
        raise ValueError(f"values nested deeper than {DEEPEST}")
    return value


def depth(value: object) -> int:
    """How many lists and records lie inside each other; 0 for a plain value.

    >>> depth(3), depth([]), depth({"a": [[1], 2]})
    (0, 1, 3)
    """
    level, found = [value], 0
    while level := [outer for outer in level if isinstance(outer, dict | list)]:
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        found += 1
    return found


def _record(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key that comes twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{printable(text, 20)}, which is no finite number")
    return number


def _number(value: object) -> object:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__}, which JSON does not have")
    try:
        return item()
    except (RuntimeError, ValueError) as error:  # of several numbers
        raise TypeError(f"{type(value).__name__} of several numbers, which JSON does not have") from error
