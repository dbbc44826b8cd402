"""What a user's module holds beside its numbers, and what of it a call has changed: a function changes nothing.

>>> class Counting(nn.Linear):
...     def forward(self, x):
...         self.calls = getattr(self, "calls", 0) + 1
...         return super().forward(x)
>>> module = nn.Sequential(Counting(2, 1))
>>> before = attributes(module)
>>> _ = module(torch.zeros(1, 2))
>>> changed(before, attributes(module))
['0.calls']
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from s2r_torch.errors import S2RError, SettingError
from s2r_torch.text import printable

BOOKKEEPING = frozenset(vars(nn.Module()))  # torch's own: parameters, buffers, parts, hooks
DEEPEST = 4  # containers within containers
LIBRARIES = frozenset({"torch", "numpy", "s2r_torch"} | sys.stdlib_module_names)  # of which no call leaves anything


def attributes(module: nn.Module) -> dict[str, object]:
    """Copies of all attributes of a module and its parts, by name, but for parameters and buffers."""
    return {
        f"{name}.{key}".lstrip("."): _copied(value, DEEPEST)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in BOOKKEEPING
    }


def outside(module: nn.Module) -> dict[str, object]:
    """Copies of what a module's own functions can reach outside of it.

    That is globals that they name, cells of closures, default arguments, attributes of classes, and environment
    variables. Functions, classes and modules that they name are followed, but not those of libraries.
    """
    found: dict[str, object] = {}
    waiting: list[tuple[str, object]] = []
    for part in module.modules():
        hooks = [hook for key, table in vars(part).items() if key.endswith("_hooks") for hook in dict(table).values()]
        waiting += [
            ("", value) for value in (*vars(part).values(), *hooks) if isinstance(value, FunctionType | partial)
        ]
        waiting += [(kind.__name__, kind) for kind in type(part).__mro__]
    seen: set[int] = set()
    while waiting:
        name, thing = waiting.pop()
        if id(thing) in seen or not isinstance(thing, FunctionType | partial | type):
            continue
        seen.add(id(thing))
        named = list(_below(name, thing))
        waiting += named
        found |= {name: value for name, value in named if _data(value)}
    return {name: _copied(value, DEEPEST) for name, value in found.items()}


def _below(name: str, thing: FunctionType | partial | type) -> Iterator[tuple[str, object]]:
    """What a function, a partial or a class of the user's holds or names, by name."""
    if isinstance(thing, partial):
        yield name, thing.func
        yield from ((f"{name or 'partial'}, argument {k + 1}", value) for k, value in enumerate(thing.args))
        yield from ((f"{name or 'partial'}, {key}", value) for key, value in thing.keywords.items())
    elif isinstance(thing, FunctionType) and not _ours(thing.__module__ or ""):
        yield from _named(thing)
    elif isinstance(thing, type) and not _ours(thing.__module__):
        own = ((key, getattr(value, "__func__", value)) for key, value in vars(thing).items())
        yield from ((f"{name}.{key}", v) for key, v in own if key[:2] != "__" or isinstance(v, FunctionType))


def _ours(module: str) -> bool:
    """Whether a module is of a library, shipped with Python or installed: what it keeps is its own affair."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in LIBRARIES or "site-packages" in file or "dist-packages" in file


def _data(value: object) -> bool:
    """Whether a value is something that a call can change: no class, module or function."""
    plain = Tensor | np.ndarray | dict | list | set | int | float | complex | str | bytes | itertools.count
    return isinstance(value, plain) or _users(value)


def _users(value: object) -> bool:
    """Whether a value is an object of a class of the user's."""
    other = isinstance(value, type | ModuleType | FunctionType | nn.Module)
    kept = hasattr(value, "__dict__") or hasattr(type(value), "__slots__")
    return not other and kept and not _ours(type(value).__module__)


def _named(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function can reach beside its arguments, by name."""
    names = sorted(_names(function.__code__))
    if {"environ", "getenv", "putenv"} & {*names}:
        yield "os.environ", dict(os.environ)
    for name in names:
        value = function.__globals__.get(name)
        yield name, value
        if isinstance(value, ModuleType) and not _ours(value.__name__):
            yield from ((f"{name}.{key}", vars(value)[key]) for key in names if key in vars(value))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a cell that was never filled
            continue
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((f"default {k + 1} of {function.__name__}", value) for k, value in enumerate(defaults))


def _names(code: CodeType) -> set[str]:
    """Names that code, and code within it, looks up."""
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def numbers(module: nn.Module) -> dict[str, object]:
    """Copies of all parameters and buffers, by name, but for lazy ones that no call has made yet."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: value.detach().clone() for name, value in named if not is_lazy(value)}


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names of what is new, gone or of another value: numbers, text, tensors and containers of them; else another
    object."""
    return [name for name in {**before, **after} if not _same(before.get(name, changed), after.get(name, changed))]


@contextmanager
def faults_of(expected: str, cause: str) -> Iterator[None]:
    """Whatever a user's own code raises in the block becomes one SettingError; its SystemExit is no end of ours."""
    try:
        yield
    except S2RError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {printable(str(error).strip().partition(chr(10))[0])}"
        raise SettingError(expected=expected, got=reason, cause=cause) from error


@contextmanager
def untouched(whose: str, *given: object) -> Iterator[None]:
    """Refuses a block of a user's code that writes into tensors which others read, in `given` or in parts of it."""
    before = [(tensor, tensor._version) for tensor in _tensors(given, DEEPEST) if not tensor.is_inference()]
    yield
    if any(tensor._version != version for tensor, version in before):
        raise SettingError(
            expected=f"{whose} that leaves what it is given as it is",
            got="tensors that were written into",
            cause="an operation in place: work on a copy, x.clone()",
        )


def _tensors(value: object, depth: int) -> Iterator[Tensor]:
    """The tensors in a value: in containers and records of this library."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner, depth - 1)
    elif depth and is_dataclass(value) and _ours(type(value).__module__):
        yield from _tensors(vars(value), depth)


def stir() -> None:
    """Draws from every global generator, so that a seed that is set again is another state."""
    for draw in (partial(torch.rand, ()), np.random.rand, random.random):
        draw()


def streams() -> dict[str, object]:
    """The states of the global generators, by name."""
    _, keys, place, *_ = np.random.get_state(legacy=True)
    return {
        "torch's global generator": torch.get_rng_state(),
        "numpy's global generator": (np.asarray(keys).tobytes(), place),
        "random's global generator": hash(random.getstate()),
    }


@contextmanager
def opened() -> Iterator[set[str]]:
    """The files that this thread opens in the block, but for what is imported or compiled and the system's own."""
    _listening()
    found: set[str] = set()
    watching = _WATCHED.setdefault(threading.get_ident(), [])
    watching.append(found)
    try:
        yield found
    finally:
        watching.pop()


_WATCHED: dict[int, list[set[str]]] = {}  # thread -> what it has opened, in blocks within each other
_CODE = (".py", ".pyc", ".so", ".pth", ".nbi", ".nbc")
_PLACES = tuple(f"{place}{os.sep}" for place in ("/proc", "/sys", "/dev", "/etc", sys.prefix, sys.base_prefix))
_FOLDERS = ("site-packages", "dist-packages", "torchinductor_", ".triton")  # installed, or compiled and kept


@functools.cache
def _listening() -> None:
    sys.addaudithook(_hear)  # for good: there is no way to take it away


def _hear(event: str, arguments: tuple) -> None:
    if event == "open" and _WATCHED and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        theirs = path.startswith(_PLACES) or any(f"{os.sep}{folder}" in path for folder in _FOLDERS)
        if not theirs and not path.endswith(_CODE):
            for found in _WATCHED.get(threading.get_ident(), ()):
                found.add(path)


def _copied(value: object, depth: int) -> object:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict) and depth:
        return {key: _copied(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_copied(inner, depth - 1) for inner in value]
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, set):
        return set(value)
    return _copied(_attributes(value), depth - 1) if depth and _users(value) else value


def _attributes(value: object) -> dict[str, object]:
    """Those of an object of a class of the user's, in slots or not."""
    slots = [key for kind in type(value).__mro__ for key in vars(kind).get("__slots__", ())]
    return {**{key: getattr(value, key, None) for key in slots}, **getattr(value, "__dict__", {})}


def _same(a: object, b: object) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and (a.is_meta or torch.allclose(a, b, equal_nan=True))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))  # type: ignore[arg-type]
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, set):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, tuple):
        return a == b
    return isinstance(a, int | float | complex | str | bytes) and (a == b or a != a)
