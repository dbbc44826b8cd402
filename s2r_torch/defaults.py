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

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """float32 and the CPU are the defaults inside, as torch starts; also a decorator. Costs nothing where they are."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype is torch.float32 and device.type == "cpu":
        yield
        return
    try:
        torch.set_default_dtype(torch.float32)
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
