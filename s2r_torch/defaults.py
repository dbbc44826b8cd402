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
    return torch.get_default_dtype(), torch.get_default_device()


@contextmanager
def torch_with(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """These are the defaults inside. Costs nothing where they are.

    Whatever users' code in the block makes of them, they are afterwards what they were before.
    """
    before = defaults_now()
    there = before == (dtype, device)
    try:
        if there:
            yield
        else:
            torch.set_default_dtype(dtype)
            with device:
                yield
    finally:
        torch.set_default_dtype(before[0])
        if there and torch.get_default_device() != before[1]:
            torch.set_default_device(None if before[1].type == "cpu" else before[1])
