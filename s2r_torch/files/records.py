"""Frozen records of tensors, numbers, text and each other, as JSON and named tensors, and back.

A file names the kinds of record in it; only those that the reader lists are made again, by their own constructors, so
that whatever is wrong with a value is refused where such a value is always refused.

>>> @dataclass(frozen=True)
... class Point:
...     x: float
...     path: tuple[int, ...]
>>> codec = Codec([Point])
>>> codec.unpack(*codec.pack(Point(float("inf"), (1, 0))))
Point(x=inf, path=(1, 0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2r_torch.errors import CheckpointError
from s2r_torch.files.sparse import other_than_zero

SPARSE = 2**16  # numbers from which a tensor that is mostly zero is written without its zeros


@dataclass(frozen=True)
class Made:
    """How values of a class that is no plain record are written and made again.

    Args:
        parts: value -> named parts that can be packed.
        make: the same parts, by name -> value.
    """

    parts: Callable[[Any], dict[str, Any]]
    make: Callable[..., Any]


@dataclass(frozen=True)
class Json:
    """JSON values that are kept as they are, lists included."""

    value: Any


class Codec:
    """Packs and unpacks values made of records, tensors, tuples, maps with text keys, text, numbers and None.

    Args:
        records: the dataclasses that may occur.
        made: classes that need more than their fields.
    """

    def __init__(self, records: Iterable[type], made: Mapping[type, Made] | None = None):
        self._made = {Json: Made(lambda json: {"json": json.value}, Json), **(made or {})}
        self._types = {_name(cls): cls for cls in [*records, *self._made]}

    def pack(self, value: Any) -> tuple[Any, dict[str, Tensor]]:
        """JSON, and the tensors that it refers to by name.

        Raises:
            TypeError: a value of another class; that is a fault of the program, not of a file.
        """
        tensors: dict[str, Tensor] = {}
        return self._packed(value, "", tensors), tensors

    def unpack(self, packed: Any, tensors: Mapping[str, Tensor]) -> Any:
        """The value again; sequences are tuples.

        Raises:
            CheckpointError: another kind of record, or fields and tensors that are not there.
        """
        try:
            return self._unpacked(packed, tensors)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                expected="records as this version writes them",
                got=f"{type(error).__name__}: {error}",
                cause="a file edited by hand, or written by another version",
            ) from error

    def _packed(self, value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return _tensor_packed(value, place or "value", tensors)
        if isinstance(value, list | tuple):
            return [self._packed(item, f"{place}.{i}".lstrip("."), tensors) for i, item in enumerate(value)]
        if isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise TypeError(f"keys that are no text at {place}")
            return {"map": self._all(value, place, tensors)}
        name = _name(type(value))
        if type(value) is Json:
            return {"json": value.value}
        if type(value) in self._made:
            return {"record": name, "fields": self._all(self._made[type(value)].parts(value), place, tensors)}
        if name not in self._types or not is_dataclass(value):
            raise TypeError(f"no record of this codec: {name} at {place}")
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {"record": name, "fields": self._all(parts, place, tensors)}

    def _all(self, values: Mapping[str, Any], place: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {name: self._packed(value, f"{place}.{name}".lstrip("."), tensors) for name, value in values.items()}

    def _unpacked(self, packed: Any, tensors: Mapping[str, Tensor]) -> Any:
        if isinstance(packed, list):
            return tuple(self._unpacked(item, tensors) for item in packed)
        if not isinstance(packed, dict):
            return packed
        if "float" in packed:
            return float(packed["float"])
        if "sparse" in packed:
            where, there = (tensors[f"{packed['sparse']}.{part}"] for part in ("where", "there"))
            dense = there.new_zeros(math.prod(packed["shape"]))
            dense[where] = there
            return dense.view(*packed["shape"])
        if "tensor" in packed:
            return tensors[packed["tensor"]]
        if "json" in packed:
            return Json(packed["json"])
        if "map" in packed:
            return {name: self._unpacked(value, tensors) for name, value in packed["map"].items()}
        cls = self._types[packed["record"]]
        parts = {name: self._unpacked(value, tensors) for name, value in packed["fields"].items()}
        return self._made[cls].make(**parts) if cls in self._made else cls(**parts)


def _tensor_packed(value: Tensor, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A tensor by its name; a large one that is mostly zero, as densities are, by what is not zero in it."""
    if value.numel() >= SPARSE:
        plain = value.detach().cpu().contiguous().flatten()
        rest = other_than_zero(plain.view(torch.uint8).numpy(), plain.element_size())
        if rest is not None:
            where, words = map(torch.from_numpy, rest)
            tensors[f"{name}.where"], tensors[f"{name}.there"] = where, words.view(plain.dtype)
            return {"sparse": name, "shape": list(value.shape)}
    tensors[name] = value
    return {"tensor": name}


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
