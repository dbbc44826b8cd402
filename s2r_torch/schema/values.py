"""Plain values as what annotations want, or one error that names the key, what is allowed, what came and why."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from s2r_torch.errors import SettingError
from s2r_torch.plain import as_python
from s2r_torch.schema.kinds import describe, has_choices, is_known, is_record, kinds_of, shape_of, typo
from s2r_torch.text import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**63 - 1  # of whole numbers: what a tensor holds
LONGEST = 4096  # characters of a text: a path
MISSING_MARK = "???"  # how a composed configuration says that nothing was given
WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}

Record = TypeVar("Record", bound="DataclassInstance")


def build(cls: type[Record], values: Mapping[str, Any], key: str = "") -> Record:
    """A record, with the records in it, from plain values such as a composed configuration's.

    Args:
        cls: a dataclass.
        values: field -> value; fields that are left out take their defaults.
        key: where the record is, in messages: "density.merge".

    Raises:
        SettingError: an unknown key, or a value of the wrong type or out of range; it names the whole key.
    """
    if not isinstance(values, Mapping):
        raise _refused(cls, values, key or "the settings", _key_for(cls, values, key))
    kinds = kinds_of(cls)
    needed = [f.name for f in fields(cls) if f.init and f.default is MISSING and f.default_factory is MISSING]
    checked = _by_key(kinds, needed, values, key)
    try:
        return cls(**checked)
    except SettingError as error:  # a rule between fields, which does not know where the record is
        if not key:
            raise
        raise SettingError(expected=f"in {key}, {error.expected}", got=error.got, cause=error.cause) from error


def _key_for(cls: type, value: Any, key: str) -> str:
    """The likely cause of a value in place of a record: a key of it was meant that takes this very word."""
    for name, kind in kinds_of(cls).items():
        with suppress(SettingError):
            if isinstance(value, str) and has_choices(kind) and value_of(kind, value, name) == value:
                return f"{key}.{name}={value} was meant"
    return _other("a value where keys belong", value)


def arguments(function: Callable, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Keyword arguments of any function or class, checked against its signature as far as that says something.

    Raises:
        SettingError: an unknown or missing one, or a value that is not of the annotated type.
    """
    inner = getattr(function, "func", function)  # of a partial
    told = inner.__init__ if inspect.isclass(inner) and not is_dataclass(inner) else inner
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:  # a partial of arguments that are not taken
        name, taken = getattr(inner, "__name__", "it"), inspect.signature(inner)
        cause = "a constructor that leaves out what every one is given"
        raise SettingError(
            expected=f"{name} for {key} that can be called", got=f"{name}{taken}", cause=cause
        ) from error
    try:
        hints = get_type_hints(told, include_extras=True)
    except (NameError, TypeError, SyntaxError):  # annotations for type checkers alone
        hints = {}
    named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    kinds = {p.name: hints[p.name] if is_known(hints.get(p.name)) else Any for p in named}
    if len(named) < len(parameters):  # takes any
        kinds = {**dict.fromkeys(values, Any), **kinds}
    return _by_key(kinds, [p.name for p in named if p.default is p.empty], values, key)


def bound_to(name: str, signature: inspect.Signature, args: tuple, kwargs: dict) -> inspect.BoundArguments:
    """What each argument of a call is given.

    Raises:
        SettingError: one that there is not, or that is left out.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [each for each in signature.parameters if each != "self"]
        unknown = [given for given in kwargs if given not in names]
        raise SettingError(
            expected=f"arguments of {name}: {', '.join(names)}",
            got=str(error).removeprefix("got an "),
            cause=typo(unknown[0], names) if unknown else "one too many, or one left out",
        ) from None


def _by_key(kinds: Mapping[str, Any], needed: Collection[str], values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Every value as what its key wants; no other keys, and all that are needed."""
    prefix = f"{key}." if key else ""
    for name in values:
        if name not in kinds:
            raise SettingError(
                expected=f"a key of {key or 'the settings'}: {', '.join(kinds) or 'it has none'}",
                got=printable(f"{prefix}{name}"),
                cause=typo(name, kinds),
            )
    given = {name: value for name, value in values.items() if not (isinstance(value, str) and value == MISSING_MARK)}
    for name in needed:
        if name not in given:
            cause = "a setting that has no default"
            raise SettingError(expected=f"{prefix}{name}: {describe(kinds[name])}", got="nothing", cause=cause)
    return {name: value_of(kinds[name], value, prefix + name) for name, value in given.items()}


def value_of(kind: Any, value: Any, key: str, whole: Any = None) -> Any:
    """The value as what an annotation wants.

    Args:
        kind: bool, int, float, str, None, Literal, tuple, Mapping, a dataclass, a union or Annotated of these, or Any.
        value: what came.
        key: its full name, in messages.
        whole: the annotation that `kind` is a part of, in messages.

    Raises:
        SettingError: the value is not of that kind, or out of range.
    """
    origin, parts, whole = get_origin(kind), get_args(kind), whole or kind
    if kind is Any:
        return _copied(value)
    if origin is Annotated:
        made = value_of(parts[0], value, key, whole)
        for constraint in parts[1:]:
            if made not in constraint:
                hint = getattr(constraint, "hint", lambda _: "a value out of range")
                raise _refused(whole, value, key, hint(made))
        return made
    if origin in (Union, UnionType):
        return _of_union(parts, value, key, whole)
    if is_record(kind):
        return value if isinstance(value, kind) else build(kind, value, key)
    if kind is tuple or origin is tuple:
        return _of_list(parts, value, key, whole)
    if isinstance(origin or kind, type) and issubclass(origin or kind, Mapping):
        return _of_mapping(parts, value, key, whole)
    try:
        return _literal(parts, value) if origin is Literal else _SCALARS[kind](value)
    except ValueError as wrong:
        raise _refused(whole, value, key, str(wrong)) from None


def _copied(value: Any) -> Any:
    """The same lists and dictionaries anew: whoever gave them may write into them later."""
    if type(value) is dict:
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if type(value) is list else value


def _of_union(parts: tuple, value: Any, key: str, whole: Any) -> Any:
    """The first alternative that takes the value; else the refusal that has most to say."""
    if value is None and NoneType in parts:
        return None
    refusals = []
    for part in parts:
        try:
            return value_of(part, value, key, whole)
        except SettingError as refusal:
            refusals.append(refusal)
    shapes = (int, float) if is_number(value) else (type(value),)
    fits = [shape_of(part) in shapes for part in parts]
    taken = [refusal for fit, refusal in zip(fits, refusals, strict=True) if fit]
    close = [refusal for refusal in refusals if refusal.cause.startswith("a typo for")]
    raise [*close, *taken, *refusals][0]


def _of_list(parts: tuple, value: Any, key: str, whole: Any) -> tuple:
    """A tuple; one plain value is a list of one."""
    if value is None or isinstance(value, Mapping):
        raise _refused(whole, value, key, _other("keys where a list belongs", value))
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not parts or parts[-1] is Ellipsis:
        parts = (parts[0] if parts else Any,) * len(values)
    if len(values) != len(parts):
        raise _refused(whole, value, key, f"a list of {len(values)} where {len(parts)} belong")
    several = isinstance(value, list | tuple)
    return tuple(
        value_of(part, one, f"{key}[{i}]" if several else key)
        for i, (part, one) in enumerate(zip(parts, values, strict=True))
    )


def _of_mapping(parts: tuple, value: Any, key: str, whole: Any) -> dict:
    if not isinstance(value, Mapping):
        raise _refused(whole, value, key, _other("a value where keys belong", value))
    for name in value:
        if not isinstance(name, str):
            raise _refused(whole, value, key, f"the key {name!r} is not text; put it in quotes")
    kind = parts[1] if parts else Any
    return {name: value_of(kind, one, f"{key}.{name}") for name, one in value.items()}


def _literal(choices: tuple, value: Any) -> Any:
    if not isinstance(value, bool) and value in choices:
        return value
    raise ValueError(_other(typo(value, map(str, choices)), value))


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    raise ValueError(_other("a value that is neither yes nor no", value))


def is_number(value: object) -> bool:
    """Whether something is a real number, of whatever library; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    value = as_python(value)
    if is_number(value):
        if not isinstance(value, Integral) and not float(value).is_integer():  # also NaN and infinity
            raise ValueError("not a whole number")
        if abs(value) > LARGEST:
            raise ValueError("too many digits")
        return int(value)
    raise ValueError(_no_number(value))


def _number(value: Any) -> float:
    value = as_python(value)
    if is_number(value):
        if abs(value) > 1e300 or not math.isfinite(value):
            raise ValueError("not a finite number")
        return float(value)
    raise ValueError(_no_number(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(_other(f"read as {type(value).__name__}; put it in quotes of both kinds: '\"...\"'", value))
    if len(value) > LONGEST or not all(c.isprintable() for c in value):
        raise ValueError(f"more than {LONGEST} characters, or some that cannot be printed")
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise ValueError("a value where null belongs")


_SCALARS = {bool: _boolean, int: _whole, float: _number, str: _text, NoneType: _null, None: _null}


def _no_number(value: Any) -> str:
    """Why something is not a number."""
    if isinstance(value, bool):
        return "true or false where a number belongs"
    text = value if isinstance(value, str) else ""
    if text.lower() in ("none", "null", "~"):
        return "a word that stands for nothing; write null"
    if re.fullmatch(r"[+-]?0\d+", text):
        return f"a leading zero, which some read as octal; write {int(text)}"
    if re.fullmatch(r"[+-]?[\d_.]+(e[+-]?\d+)?", text, re.IGNORECASE):
        return "a number in quotes, which is text"
    if text.endswith("%"):
        return "a percent sign; write a share such as 0.5"
    return _other("a word where a number belongs" if text else "no number", value)


def _other(cause: str, value: Any) -> str:
    """The likely cause, which the value's very form may tell better."""
    if value is None:
        return "null where a value is needed"
    return "a list where one value belongs" if isinstance(value, list | tuple) else cause


def _refused(kind: Any, value: Any, key: str, cause: str) -> SettingError:
    got = "null" if value is None else printable(repr(value), 80)
    return SettingError(expected=f"{key}: {describe(kind)}", got=got, cause=cause)
