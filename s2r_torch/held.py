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

import numpy as np
import torch
from torch import Tensor, nn

BOOKKEEPING = frozenset(vars(nn.Module()))  # torch's own: parameters, buffers, parts, hooks
DEEPEST = 4  # containers within containers


def attributes(module: nn.Module) -> dict[str, object]:
    """Copies of all attributes of a module and its parts, by name, but for parameters and buffers."""
    return {
        f"{name}.{key}".lstrip("."): _copied(value, DEEPEST)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in BOOKKEEPING
    }


def numbers(module: nn.Module) -> dict[str, object]:
    """Copies of all parameters and buffers, by name."""
    return {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names of what is new, gone or of another value: numbers, text, tensors and containers of them; else another
    object."""
    return [name for name in {**before, **after} if not _same(before.get(name, changed), after.get(name, changed))]


def _copied(value: object, depth: int) -> object:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict) and depth:
        return {key: _copied(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_copied(inner, depth - 1) for inner in value]
    return value


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
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, int | float | complex | str | bytes) and (a == b or a != a)
