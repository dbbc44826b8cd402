"""What is given to the functions that people call: objects of another kind are one error that says what was meant.

>>> @taking(count=int)
... def twice(count):
...     return 2 * count
>>> twice("3")
Traceback (most recent call last):
    ...
s2r_torch.errors.SettingError: expected count: int; got str: '3'; likely cause: an object of another kind
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import PurePath
from typing import ParamSpec, TypeVar

from s2r_torch.errors import SettingError
from s2r_torch.text import printable

P = ParamSpec("P")
R = TypeVar("R")
FILE = (str, PurePath)
MEANT = {  # what was given, by the names of its classes, and what was wanted
    ("Policy", "MetaPolicy"): "a policy that was conditioned already: the one that load_policy gave is meant",
    ("MetaPolicy", "Policy"): "a policy before it has seen a world: deploy, deploy_recorded or condition_on come first",
    ("str", "Recording"): "read_recording(path, policy.spec) reads a file",
    ("Path", "Recording"): "read_recording(path, policy.spec) reads a file",
    ("MetaPolicy", "ProblemSpec"): "policy.spec is meant",
    ("dict", "RunSettings"): "s2r_torch.RunSettings(name=..., ...)",
    ("dict", "Stopping"): "Stopping(alpha=..., ...) of s2r_torch.deployment.stopping",
    ("str", "a family"): "make_family(name) makes a family",
    ("ndarray", "Tensor"): "an array: torch.as_tensor(...)",
    ("bytes", "a path"): "the path of a file, not what is in it",
}


def taking(**kinds: type | tuple[type, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: arguments of these names must be of these kinds, or SettingError says which was not."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in kinds and not isinstance(value, kinds[name]):
                    refuse_kind(name, value, _spelt(kinds[name]))
            return function(*args, **kwargs)

        return checked

    return decorate


def require_having(name: str, value: object, parts: tuple[str, ...], kind: str) -> None:
    """Raises SettingError unless an object has what every one of its kind has."""
    if any(not hasattr(value, part) for part in parts):
        refuse_kind(name, value, kind)


def refuse_kind(name: str, value: object, kind: str, cause: str = "") -> None:
    """Raises SettingError for an argument of another kind."""
    given = type(value).__mro__
    meant = next((MEANT[c.__name__, kind] for c in given if (c.__name__, kind) in MEANT), "an object of another kind")
    raise SettingError(
        expected=f"{name}: {kind}",
        got=printable(f"{given[0].__name__}: {value!r}", 80),
        cause=cause or meant,
    )


def _spelt(kinds: type | tuple[type, ...]) -> str:
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if kinds[: len(FILE)] == FILE:
        return "a path"
    return " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
