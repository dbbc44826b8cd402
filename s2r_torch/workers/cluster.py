"""Many machines, by Ray (the extra `ray`): a part whose machine is lost is done again on another one.

This is the only module that imports Ray. The library and the plugins must be importable on every machine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import torch

from s2r_torch.errors import SettingError
from s2r_torch.signals import our_signals
from s2r_torch.workers.engines import LOSSES, Task, Tell, died, unheard
from s2r_torch.workers.parcels import do, pack, unpack

WAITING = 2  # parts per core that are handed out at once


class Cluster:
    """The machines of a Ray cluster: the one at RAY_ADDRESS, else one of this machine alone."""

    def __init__(self):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise SettingError(
                expected="the package ray for workers=ray", got="none", cause="install the extra: pip install '.[ray]'"
            ) from error
        self._ray, self.cpu_seconds, self.threads = ray, 0.0, 1
        self._begun = not ray.is_initialized()
        if self._begun:
            with our_signals():  # Ray puts a handler of SIGTERM in, which ends the process with code 15
                ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        self._do = ray.remote(max_retries=LOSSES - 1)(do)

    def map(self, task: Task, shared: Any, payloads: Sequence[Any], hear: Tell = unheard) -> Generator[Any, None, None]:
        """See `Workers`; what all parts share is put once into the memory of every machine that needs it."""
        common, threads = self._ray.put(pack((task, shared))), torch.get_num_threads()
        doing = self._do.options(num_cpus=min(threads, self._largest_node()))
        most = WAITING * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        waiting: deque = deque()
        for part in range(len(payloads)):
            while len(waiting) < most and part + len(waiting) < len(payloads):
                waiting.append(doing.remote(common, pack(payloads[part + len(waiting)]), threads))
            answer = unpack(self._got(waiting.popleft(), part, len(payloads)))
            self.cpu_seconds += answer.cpu_seconds
            yield answer.opened(hear)

    def start(self, task: Task) -> None:
        """Ray has processes of its own begin, on whichever machine."""

    def close(self) -> None:
        """Leaves the cluster; one that was begun here ends."""
        if self._begun:
            self._ray.shutdown()

    def _largest_node(self) -> int:
        """Cores of the largest machine: a part that asks for more than any machine has would wait for ever."""
        cores = max((int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]), default=0)
        if not cores:
            raise SettingError(
                expected="a Ray cluster with a machine that has a core to work on",
                got="none",
                cause="start one: ray start --address=HEAD --num-cpus=CORES",
            )
        return cores

    def _got(self, promised: Any, part: int, parts: int) -> Any:
        """A packed answer."""
        lost = self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError
        try:
            return self._ray.get(promised)
        except lost as error:
            raise died(part, parts) from error
