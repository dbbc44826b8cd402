"""Arrays and tensors that people give: their numbers, and their shapes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s2r_torch.errors import ObservationError
from s2r_torch.text import printable


def unmasked(x: object) -> np.ndarray:
    """`np.asarray` of arrays and tensors, but NaN where a mask hides a value: what is hidden is no reading.

    Raises as NumPy does.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        x = x.float() if x.dtype == torch.bfloat16 else x
    if np.ma.isMaskedArray(x) and np.ma.is_masked(x):
        return np.ma.filled(np.ma.asarray(x, dtype=np.float64), np.nan)
    return np.asarray(x)


def real_tensor(values: object) -> Tensor:
    """Numbers of tensors, arrays and lists, as a float64 tensor on the CPU that nobody else has.

    Raises:
        ValueError: they are no real numbers, or nobody can look at them.
    """
    try:
        found = unmasked(values)
        if found.dtype.kind not in "iufb":
            raise TypeError(f"{found.dtype} of shape {list(found.shape)}")
        return torch.from_numpy(found.astype(np.float64, order="C"))  # a copy
    except (RuntimeError, TypeError, ValueError) as error:  # NumPy's words, and torch's of the device meta
        raise ValueError(f"{type(values).__name__}: {error}") from error


class Shaped(Protocol):
    """A tensor, or what stands for one."""

    @property
    def shape(self) -> torch.Size: ...


def require_numbers(name: str, tensor: Tensor) -> None:
    """Raises ObservationError for a tensor whose numbers nobody can look at."""
    try:
        tensor.detach().numpy()
    except (RuntimeError, TypeError) as error:
        cause = "torch.func.vmap, a program that is being exported, or the device meta: give all readings at once"
        got = printable(error, 80)
        raise ObservationError(expected=f"{name} whose numbers can be seen", got=got, cause=cause) from error


def check_shape(name: str, tensor: Shaped, expected: tuple[int | None, ...], cause: str) -> None:
    """Raises ObservationError unless `tensor` has that shape; None matches any size."""
    sizes = tensor.shape
    if len(sizes) != len(expected) or any(e not in (None, g) for g, e in zip(sizes, expected, strict=True)):
        wanted = "[" + ", ".join("any" if e is None else str(e) for e in expected) + "]"
        raise ObservationError(expected=f"{name} of shape {wanted}", got=str(list(sizes)), cause=cause)
