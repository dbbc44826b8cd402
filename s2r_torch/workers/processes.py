"""Processes of this machine, by joblib: they share large tensors through files in memory, and come back when they die.

This is the only module that imports joblib.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import BACKENDS

from s2r_torch.libraries import not_searched
from s2r_torch.signals import ENDING
from s2r_torch.workers.beginning import begin
from s2r_torch.workers.engines import LOSSES, Made, Task, Tell, died, unheard
from s2r_torch.workers.parcels import Parcel, do, pack, unpack

LIMIT = "LOKY_MAX_CPU_COUNT"
SHARED = "256K"  # arrays from this size on are shared, not copied
MANAGER = "ExecutorManagerThread"  # joblib's, which hands on tasks


class Processes:
    """So many processes, started with the first task; idle ones end after minutes, all of them when this one is killed.

    Args:
        count: how many, at least 2.

    Raises:
        ValueError: joblib has no processes here, or cannot read a variable of the environment.
    """

    def __init__(self, count: int):
        int(os.environ.get(LIMIT, "1"))
        if "loky" not in BACKENDS:
            raise ValueError("no processes, but threads")
        _have_tracker()
        self.count, self.threads, self.cpu_seconds = count, count, 0.0
        self._starting: Generator[Any, None, None] | None = None

    def map(self, task: Task, shared: Any, payloads: Sequence[Any], hear: Tell = unheard) -> Generator[Any, None, None]:
        """See `Workers`. What a process that died had not finished is done again; alone, when it happens again."""
        self._started()
        common, done, losses = pack((task, shared)), 0, 0
        while done < len(payloads):
            at_once = self.count if losses < LOSSES - 1 else 1
            try:
                with _let_go(self._answers(common, Made(pack, payloads[done:]), at_once)) as answers:
                    for parcel in answers:
                        answer = unpack(parcel)
                        done, losses = done + 1, 0
                        self.cpu_seconds += answer.cpu_seconds
                        yield answer.opened(hear)
            except TerminatedWorkerError as error:
                losses += 1
                if losses == LOSSES:
                    raise died(done, len(payloads)) from error

    def start(self, task: Task) -> None:
        """See `Workers`."""
        self._starting = self._answers(pack((task, None)), [pack(None)] * self.count, self.count, _ready)

    def close(self) -> None:
        """Ends the processes, in the middle of a task too."""
        executor = get_reusable_executor(reuse=True)  # as it is: for other settings it would wait for every task first
        with _killing():
            executor.shutdown(wait=True, kill_workers=True)
        if self._starting is not None:
            with _let_go(self._starting):
                self._starting = None

    def _started(self) -> None:
        """Waits for what `start` began; a process that died is replaced when there is work for it."""
        starting, self._starting = self._starting, None
        with suppress(TerminatedWorkerError):
            for parcel in starting or ():
                self.cpu_seconds += unpack(parcel).cpu_seconds

    def _answers(
        self, common: Parcel, parcels: Sequence[Any], at_once: int, doing: Callable[..., Parcel] = do
    ) -> Generator[Any, None, None]:
        """Packed answers, in order, to parcels that are handed out from now on."""
        threads = torch.get_num_threads()
        with parallel_config("loky", inner_max_num_threads=threads, initializer=begin, initargs=(os.getpid(),)):
            run = Parallel(
                n_jobs=self.count,
                return_as="generator",
                pre_dispatch=at_once if at_once == 1 else 2 * self.count,
                batch_size=1,
                max_nbytes=SHARED,
                mmap_mode="c",  # in memory; what a task writes is its own
            )
            return run(delayed(doing)(common, parcel, threads) for parcel in parcels)


def _have_tracker() -> None:
    """Starts the process that cleans up after joblib's, deaf to the signals that a terminal sends to all of them.

    Of joblib 1.6: it is deaf to SIGINT and SIGTERM alone, dies of others, and a new one does not know what to clean up.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # which it inherits
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready(common: Parcel, parcel: Parcel, threads: int) -> Parcel:
    """`parcels.do` of a task that loads libraries."""
    with not_searched():
        return do(common, parcel, threads)


@contextmanager
def _let_go(answers: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """Cancels what is not wanted any more, of which joblib warns: whoever stops reading means it."""
    try:
        yield answers
    finally:
        with warnings.catch_warnings(), _killing():
            warnings.filterwarnings("ignore", r"\d+ tasks ", UserWarning)
            answers.close()


@contextmanager
def _killing() -> Iterator[None]:
    """While processes are killed, joblib's own thread may look for a task that is cancelled already, and say so.

    Of joblib 1.6: it forgets what is pending, then reads the numbers that wait to be handed on.
    """
    hook = threading.excepthook

    def without_that(failed: threading.ExceptHookArgs) -> None:
        if not (failed.exc_type is KeyError and getattr(failed.thread, "name", "") == MANAGER):
            hook(failed)

    threading.excepthook = without_that
    try:
        yield
    finally:
        threading.excepthook = hook
