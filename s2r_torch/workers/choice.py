"""Workers by what a person writes: `workers=1`, `workers=auto`, `workers=8`, `workers=ray`."""

from __future__ import annotations

import os
from typing import Literal

import torch

from s2r_torch.errors import SettingError
from s2r_torch.plain import require_count
from s2r_torch.text import printable
from s2r_torch.workers.engines import SERIAL, Workers


def workers_of(wanted: int | Literal["auto", "ray"]) -> Workers:
    """This process for 1, so many processes, as many as cores allow for `auto`, or a Ray cluster.

    `auto` gives every process torch's present number of threads: processes times threads is the number of cores.

    Raises:
        SettingError: Ray is wanted, and is not installed; or joblib has no processes in this environment.
    """
    if wanted == "ray":
        from s2r_torch.workers.cluster import Cluster  # takes seconds

        return Cluster()
    if wanted != "auto":
        require_count("workers, auto or ray", wanted)
    count = max(1, len(os.sched_getaffinity(0)) // torch.get_num_threads()) if wanted == "auto" else wanted
    if count == 1:
        return SERIAL
    try:
        from s2r_torch.workers.processes import Processes

        return Processes(count)
    except ValueError as error:
        said = {name: value for name, value in os.environ.items() if name.startswith(("JOBLIB_", "LOKY_"))}
        raise SettingError(
            expected=f"{count} processes of joblib",
            got=printable(error, 80),
            cause=f"a variable of the environment that joblib reads: {printable(said, 120)}; or workers=1",
        ) from error
