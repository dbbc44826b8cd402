"""Where tensors are made: on the CPU, whatever torch's default device is in a program that uses this library."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P, R = ParamSpec("P"), TypeVar("R")


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with new tensors on the CPU while it runs, in this thread alone.

    Only what is called from a robot's own program needs it: a stack that works on a GPU may have set a default device.

    >>> make = on_cpu(lambda: torch.zeros(2))
    >>> with torch.device("meta"):
    ...     make().device.type
    'cpu'
    """

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return inside
