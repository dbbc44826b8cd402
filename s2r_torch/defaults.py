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
    """float32 and the CPU are the defaults inside, as torch starts; also a decorator. Costs nothing where they are.

    Whatever users' code in the block makes of them, they are afterwards what they were before.
    """
    before = torch.get_default_dtype(), torch.get_default_device()
    plain = before[0] is torch.float32 and before[1].type == "cpu"
    try:
        if plain:
            yield
        else:
            torch.set_default_dtype(torch.float32)
            with torch.device("cpu"):
                yield
    finally:
        torch.set_default_dtype(before[0])
        if plain and torch.get_default_device().type != "cpu":
            torch.set_default_device(None)
