"""torch's global defaults, which are the user's: what this library computes does not depend on them.

>>> torch.set_default_dtype(torch.float64)
>>> with plain_torch():
...     torch.ones(1).dtype
torch.float32
>>> torch.get_default_dtype()
torch.float64
>>> torch.set_default_dtype(torch.float32)
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def plain_torch() -> Iterator[None]:
    """float32 and the CPU are the defaults inside, as torch starts; also a decorator.

    Autocast, which would compute something else, is off.
    """
    with torch_with(torch.float32, torch.device("cpu")), full_precision():
        yield


def plainly(*methods: str) -> Callable[[type[T]], type[T]]:
    """A decorator of classes: within these methods, torch's defaults are as it starts."""

    def decorate(cls: type[T]) -> type[T]:
        for name in methods:
            setattr(cls, name, plain_torch()(getattr(cls, name)))
        return cls

    return decorate


@contextmanager
def trainable() -> Iterator[None]:
    """Gradients can be taken inside, whatever mode torch is in; also a decorator."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def outside_inference() -> Iterator[None]:
    """Gradients are taken or not as before, and inference mode is off, of which users' code would see something."""
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        yield


def full_precision() -> AbstractContextManager:
    """No autocast inside; costs nothing where there is none."""
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


def defaults_now() -> tuple[torch.dtype, torch.device]:
    """What users' code that is called within `plain_torch` is to find: `with torch_with(*these)`."""
    with _LOCK:
        return _dtype_of_this_thread(), torch.get_default_device()


@contextmanager
def torch_with(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """These are the defaults inside. Costs little where they are.

    Whatever users' code in the block makes of them, they are afterwards what they were before. All threads share the
    default dtype: while another one is in a block, which may compute, it is float32, whatever is asked for here.
    """
    before = _enter(dtype), torch.get_default_device()
    try:
        with nullcontext() if before[1] == device else device:
            yield
    finally:
        _leave(before[0])
        if torch.get_default_device() != before[1]:
            torch.set_default_device(None if before[1].type == "cpu" else before[1])


_LOCK = threading.RLock()  # a handler of a signal may come while it is held
_BLOCKS: Counter[int] = Counter()  # thread -> the blocks that it is in
_THEIRS = [torch.float32]  # the default dtype before there was any


def _dtype_of_this_thread() -> torch.dtype:
    """The default dtype as it is without the blocks of other threads."""
    alone = not _BLOCKS or threading.get_ident() in _BLOCKS
    return torch.get_default_dtype() if alone else _THEIRS[0]


def _enter(dtype: torch.dtype) -> torch.dtype:
    """Sets the default dtype for a block, and returns what this thread is to find after it."""
    with _LOCK:
        before = _dtype_of_this_thread()
        if not _BLOCKS:
            _THEIRS[0] = before
        _BLOCKS[threading.get_ident()] += 1
        torch.set_default_dtype(dtype if len(_BLOCKS) == 1 else torch.float32)
        return before


def _leave(before: torch.dtype) -> None:
    """Sets it again, unless other threads are in blocks still: the last one does."""
    with _LOCK:
        thread = threading.get_ident()
        _BLOCKS[thread] -= 1
        if not _BLOCKS[thread]:
            del _BLOCKS[thread]
        if thread in _BLOCKS or not _BLOCKS:
            torch.set_default_dtype(before)


def _alone() -> None:
    """In a forked process, which has one thread: OpenMP's, which any larger computation waits for, are gone."""
    global _LOCK
    _LOCK = threading.RLock()
    torch.set_default_dtype(_dtype_of_this_thread())
    for thread in {*_BLOCKS} - {threading.get_ident()}:
        del _BLOCKS[thread]
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_alone)
