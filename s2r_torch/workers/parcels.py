"""How values travel between processes: functions and classes by name, tensors as plain memory that can be shared.

Only what an importable module defines can travel: a closure, which would carry whatever it has seen, is refused. The
memory of tensors lies apart from the rest, as arrays that engines share between processes without copies; of large
tensors that are mostly zero only the rest travels, to the bit: a density is 0 wherever no reading was near, which is
99.6 % of the nodes where 115 states share a grid of 3080.
"""

from __future__ import annotations

import io
import pickle
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from s2r_torch.files.sparse import other_than_zero
from s2r_torch.registry import search_working_folder
from s2r_torch.text import printable
from s2r_torch.workers.engines import Tell

SPARSE = 2**16  # bytes from which on a tensor's zeros are looked for


@dataclass(frozen=True, eq=False)
class Parcel:
    """A value on its way."""

    head: bytes
    body: tuple[np.ndarray, ...]  # uint8: the memory of its tensors and arrays


@dataclass(frozen=True, eq=False)
class Answer:
    """What a task left: its result or its error, what it warned of, and how long it took."""

    result: Any
    error: Exception | None
    news: tuple[Any, ...]  # what it told
    warned: tuple[tuple[type[Warning], str], ...]
    cpu_seconds: float

    def opened(self, hear: Tell) -> Any:
        """The result; tells, warns and raises as the task did.

        Raises:
            Exception: the task's.
        """
        for news in self.news:
            hear(news)
        for category, text in self.warned:
            warnings.warn(text, category, stacklevel=3)
        if self.error is not None:
            raise self.error
        return self.result


def pack(value: Any) -> Parcel:
    """A value as bytes and arrays.

    Raises:
        TypeError: something in it is no record, number, tensor or named function: a closure, an open file.
    """
    buffers: list[pickle.PickleBuffer] = []
    with io.BytesIO() as file:
        try:
            _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(f"no recipe: {error}") from error
        return Parcel(file.getvalue(), tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


def unpack(parcel: Parcel) -> Any:
    """The value again; where its memory is shared and cannot be written to, a copy."""
    body = (array if array.flags.writeable else array.copy() for array in parcel.body)
    return pickle.loads(parcel.head, buffers=body)


def do(common: Parcel, parcel: Parcel, threads: int) -> Parcel:
    """Does a task where it has travelled to.

    Args:
        common: (task, shared).
        parcel: the payload.
        threads: of torch, as many as where the task comes from: their number decides the last digits.

    Returns:
        An `Answer`.
    """
    search_working_folder()  # plugins lie there
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    started, result, error = time.process_time(), None, None
    news: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        try:
            task, shared = unpack(common)
            result = task(shared, unpack(parcel), news.append)
        except Exception as found:  # it is raised where the task comes from
            error = _portable(found)
    warned = tuple((warning.category, str(warning.message)) for warning in caught)
    return pack(Answer(result, error, tuple(news), warned, time.process_time() - started))


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same, where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {printable(error, 2000)}")


class _Pickler(pickle.Pickler):
    """Writes tensors as memory and layout."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or type(value) not in (Tensor, nn.Parameter, nn.Buffer):
            return NotImplemented
        learned = isinstance(value, nn.Parameter)
        plain = value.detach().cpu()
        if plain.untyped_storage().nbytes() != plain.numel() * plain.element_size():
            plain = plain.clone(memory_format=torch.preserve_format)  # not what else its memory holds
        memory = torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage()).numpy()
        layout = plain.dtype, tuple(plain.shape), plain.stride(), learned, value.requires_grad
        rest = other_than_zero(memory, plain.element_size()) if memory.nbytes >= SPARSE else None
        if rest is not None:
            (where, words), size = rest, memory.nbytes // plain.element_size()
            return _mostly_zero, (where.astype(np.min_scalar_type(size)), words, size, *layout)
        return _tensor, (memory, *layout)


def _mostly_zero(where: np.ndarray, words: np.ndarray, size: int, *layout: Any) -> Tensor:
    """A tensor of so many words, of which these are not 0."""
    memory = np.zeros(size, words.dtype)
    memory[where] = words
    return _tensor(memory.view(np.uint8), *layout)


def _tensor(
    memory: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], learned: bool, grad: bool
) -> Tensor:
    """A tensor of this memory and layout."""
    empty = 0 in shape
    found = torch.empty(shape, dtype=dtype) if empty else torch.from_numpy(memory).view(dtype).as_strided(shape, stride)
    return nn.Parameter(found, requires_grad=grad) if learned else found.requires_grad_(grad)
