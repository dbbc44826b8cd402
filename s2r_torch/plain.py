"""Numbers and lists that callers give, as Python's own; without NumPy and torch, which plans do not wait for."""

from __future__ import annotations

from numbers import Real
from typing import cast

from s2r_torch.errors import SettingError
from s2r_torch.text import printable

ARRAYS = ("numpy", "torch")


def as_python(value: object) -> object:
    """Numbers and lists of Python's for those of NumPy or torch; anything else as it is."""
    arrays = not isinstance(value, type) and any(
        base.__module__.partition(".")[0] in ARRAYS for base in type(value).__mro__
    )
    return value.tolist() if arrays and hasattr(value, "tolist") else value


def require_count(name: str, value: object, most: int | None = None, cause: str = "", *, least: int = 1) -> int:
    """Returns it as an int if it is a whole number from `least` to `most`, else raises SettingError.

    Args:
        name: what it counts.
        value: the number.
        most: the largest; None for any.
        cause: likely one of a number above that.
        least: the smallest.
    """
    value = as_python(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(
            expected=f"{name} >= {least}, a whole number",
            got=printable(repr(value)),
            cause="an empty problem" if least else "counted from the end, or a mask",
        )
    if most is not None and value > most:
        raise SettingError(expected=f"{name} <= {most}", got=printable(value), cause=cause)
    return int(value)


def is_real(value: object) -> bool:
    """Whether something is a real number, of whatever library; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def real_numbers(name: str, values: object) -> tuple[float, ...]:
    """Numbers in a list, a tuple, an array or a tensor as Python's; raises SettingError for anything else.

    >>> real_numbers("low", [0, 0.5])
    (0, 0.5)
    """
    listed = as_python(values)
    numbers = tuple(map(as_python, listed)) if isinstance(listed, tuple | list) else (None,)
    if not all(map(is_real, numbers)):
        expected, got = f"{name}: a number per coordinate, in a tuple", printable(repr(values), 80)
        raise SettingError(expected=expected, got=got, cause="one number alone, or text")
    return cast(tuple[float, ...], numbers)
