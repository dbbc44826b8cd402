"""What is given to the functions that people call: objects of another kind are one error that says what was meant.

>>> @taking()
... def twice(count: int) -> int:
...     return 2 * count
>>> twice("3")
Traceback (most recent call last):
    ...
s2r_torch.errors.SettingError: expected count: a whole number; got str: '3'; likely cause: an object of another kind
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, NoReturn, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.held import faults_of
from s2r_torch.schema.values import bound_to
from s2r_torch.text import printable

P = ParamSpec("P")
R = TypeVar("R")
FILE = (str, os.PathLike)
LOOSE: dict[object, tuple[type, ...]] = {  # annotations that take more than they name
    bool: (bool, np.bool),
    int: (Integral,),
    float: (Real,),
    None: (NoneType,),
    object: (),
    Any: (),
}
WORDS: dict[object, str] = {Integral: "a whole number", Real: "a number", Callable: "a function", bool: "True or False"}
MEANT = {  # what was given, by the names of its classes, and what was wanted
    ("Policy", "MetaPolicy"): "a policy that was conditioned already: the one that load_policy gave is meant",
    ("MetaPolicy", "Policy"): "a policy before it has seen a world: deploy, deploy_recorded or condition_on come first",
    ("str", "Recording"): "read_recording(path, policy.spec) reads a file",
    ("Path", "Recording"): "read_recording(path, policy.spec) reads a file",
    ("MetaPolicy", "ProblemSpec"): "policy.spec is meant",
    ("PolicyFile", "MetaPolicy"): "a policy file that was read: its .policy is meant",
    ("str", "MetaPolicy"): "load_policy(path) reads a file",
    ("Deployment", "Policy"): "what deploy gave: its .policy is meant",
    ("Problem", "ProblemSpec"): "problem.spec is meant",
    ("dict", "RunSettings"): "s2r_torch.RunSettings(name=..., ...)",
    ("dict", "Stopping"): "Stopping(alpha=..., ...) of s2r_torch.deployment.stopping",
    ("str", "a family"): "make_family(name) makes a family",
    ("ndarray", "Tensor"): "an array: torch.as_tensor(...)",
    ("bytes", "a path"): "the path of a file, not what is in it",
}


def taking(**kinds: type | tuple[type | None, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: arguments must be of these kinds, or SettingError says which was not; of a class, its constructor's.

    Of arguments that are not named here, annotations say the kind, as far as they name types and classes.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, type):
            function.__init__ = taking(**kinds)(function.__init__)  # type: ignore[misc]
            return function
        signature = inspect.signature(function)

        @functools.cache
        def wanted() -> dict[str, tuple[type, ...]]:  # when it is first called: annotations may name what comes later
            told = get_type_hints(function)
            return {name: _classes(told[name]) for name in signature.parameters if name in told} | {
                name: tuple(itertools.chain(*map(_classes, kind if isinstance(kind, tuple) else (kind,))))
                for name, kind in kinds.items()
            }

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = bound_to(function.__qualname__.removesuffix(".__init__"), signature, args, kwargs)
            for name, value in bound.arguments.items():
                kinds = wanted().get(name, ())
                if isinstance(value, Tensor) and value.ndim == 0 and {Integral, Real} & {*kinds}:
                    bound.arguments[name] = value = value.item()  # a number of torch's is a number
                if not fits(value, kinds):
                    refuse_kind(name, value, _spelt(kinds))
            return function(*bound.args, **bound.kwargs)

        return checked

    return decorate


def fits(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these kinds; of any, where there are none. True and false are no numbers."""
    return not kinds or (isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds))


def _classes(annotation: object) -> tuple[type, ...]:
    """The classes that an annotation allows; none where it says more than that."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        several = [_classes(part) for part in parts]
        return tuple(itertools.chain(*several)) if all(several) else ()
    if annotation in LOOSE:
        return LOOSE[annotation]
    kind = origin or annotation
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return ()
    if origin is not None:  # tensors and arrays are sequences, too
        return (kind,) if issubclass(kind, Callable | Mapping) else ()  # type: ignore[arg-type]
    return (os.PathLike,) if issubclass(kind, PurePath) else (kind,)


class NoSuchPartError(SettingError, AttributeError):
    """An object was asked for a part that another one has."""


def without(**meant: str) -> Callable[[type[R]], type[R]]:
    """A decorator of classes: asked for one of these parts, which another class has, an object says what is meant."""

    def decorate(cls: type[R]) -> type[R]:
        def missing(self: object, name: str) -> object:
            if name not in meant:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise NoSuchPartError(expected=meant[name], got=f"{name} of a {cls.__name__}", cause="a step left out")

        cls.__getattr__ = missing  # type: ignore[attr-defined]
        return cls

    return decorate


def require_having(name: str, value: object, parts: tuple[str, ...], kind: str) -> None:
    """Raises SettingError unless it is an object, no class, and has what every one of its kind has."""
    with faults_of(f"{name}: {kind}", "a part of it that raises when it is asked for"):
        missing = [part for part in parts if not hasattr(value, part)]
    if isinstance(value, type) or missing:
        refuse_kind(name, value, kind, f"it has no {', '.join(missing)}" if 0 < len(missing) < len(parts) else "")


def refuse_kind(name: str, value: object, kind: str, cause: str = "") -> NoReturn:
    """Raises SettingError for an argument of another kind."""
    given = type(value).__mro__
    if isinstance(value, type):
        cause = "a class: make one first, with its brackets"
    meant = next((MEANT[c.__name__, kind] for c in given if (c.__name__, kind) in MEANT), "an object of another kind")
    raise SettingError(
        expected=f"{name}: {kind}",
        got=printable(f"{given[0].__name__}: {value!r}", 80),
        cause=cause or meant,
    )


def _spelt(kinds: tuple[type, ...]) -> str:
    if {*FILE} <= {*kinds}:
        return "a path"
    named = [WORDS.get(kind, kind.__name__) for kind in kinds if kind not in (NoneType, np.bool)]
    return " or ".join(dict.fromkeys(named))
