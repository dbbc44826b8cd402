"""How a worker of this machine begins, before it knows a library."""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module

from s2r_torch.libraries import not_searched

LOOKS = 1.0  # seconds between two looks of a worker at whether its parent is alive


def begin(parent: int) -> None:
    """Ends this process soon after its parent, which may be killed and then cannot; and loads what every task needs."""
    keep_memory()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
    with not_searched():
        import_module("s2r_torch.workers.processes")


def keep_memory() -> None:
    """Freed memory stays with this process, up to 62 MiB.

    The GNU C library gives back what lies free at the end of the heap, from twice the largest block on that was freed
    so far. In a step of training that were 5 MB, which the kernel cleared, page by page, for the next one.
    """
    bytearray(31 << 20)  # freed at once, and below the 32 MiB at which it learns no more
