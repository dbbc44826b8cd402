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

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
    with not_searched():
        import_module("s2r_torch.workers.processes")
