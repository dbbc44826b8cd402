"""Numbers in files: one strict grammar, and what a text that is none most likely is.

Python's own parser takes `1_5` for 15 and full-width digits for plain ones; a slip of a finger must not become another
reading.

>>> number("-1.5e-3"), number(""), number("1_5")
(-0.0015, nan, None)
>>> why_no_number("1,5")
'a decimal comma; write a point'
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from numbers import Real

import numpy as np

NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)


NO_VALUE = {"na", "n/a", "#n/a", "<na>", "nat", "none", "null", "nil", "missing", "-", "--", "?"}


def number(value: object) -> float | None:
    """A cell as a number: NaN where it is empty, None where it is no number."""
    if isinstance(value, str):
        return float("nan") if value == "" else float(value) if NUMBER.fullmatch(value) else None
    if value is None:
        return float("nan")
    if isinstance(value, np.ndarray | list | tuple):
        return number(value[0]) if len(value) == 1 else None
    if isinstance(value, Real | Decimal) and not isinstance(value, bool | np.bool):
        return float(value)
    return None


def numbers(values: np.ndarray) -> tuple[np.ndarray, int | None]:
    """A column as float64 `[rows]`, and the first row that is no number, if there is one."""
    if values.dtype.kind in "iuf":
        return values.astype(np.float64), None
    if values.dtype.kind not in "OU":
        return np.empty(0), 0
    found = [number(value) for value in values.tolist()]
    bad = next((row for row, value in enumerate(found) if value is None), None)
    return (np.empty(0), bad) if bad is not None else (np.asarray(found, dtype=np.float64), None)


def why_no_number(value: object) -> str:
    """What a cell that is no number most likely is."""
    if isinstance(value, np.ndarray | list | tuple):
        return "several numbers in one cell; one column per sensor is wanted"
    if not isinstance(value, str):
        return "times, complex numbers, truth values or objects in place of readings"
    odd = next((c for c in value if not c.isascii()), None)
    if odd is not None and "\udc80" <= odd <= "\udcff":
        return f"not UTF-8 (byte 0x{ord(odd) - 0xDC00:02x}); save the file as UTF-8"
    if odd is not None:
        name = unicodedata.name(odd, "a character without a name")
        kind = (
            "a typographic sign or space in place of a plain one" if not odd.isdigit() else "digits of another script"
        )
        return f"{kind}: U+{ord(odd):04X}, {name.lower()}"
    if value.lower() in NO_VALUE:
        return "a word for no value; leave the cell empty"
    if "," in value or "'" in value or " " in value:
        return "a separator of thousands, or a decimal comma; write neither" if _grouped(value) else _comma(value)
    if "_" in value:
        return "an underscore among digits, a slip of a finger or of a text recognition"
    return "text among the readings, a decimal comma, or shifted columns"


def _grouped(value: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,3}([, ']\d{3})+(\.\d*)?", value) is not None


def _comma(value: str) -> str:
    if re.fullmatch(r"[+-]?\d*,\d+([eE][+-]?\d+)?", value):
        return "a decimal comma; write a point"
    return "text among the readings, or shifted columns"
