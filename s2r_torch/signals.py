"""Signals that end a script, and whose business they are: a script's, whatever libraries and drivers put in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

ENDING = (  # signals that end a script
    *(signal.SIGINT, signal.SIGQUIT),  # of a keyboard
    *(signal.SIGTERM, signal.SIGHUP),  # of a service, a line that breaks
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),  # of a scheduler or a watch whose time is up
)
OF_DRIVERS = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}  # by which drivers wake threads and time calls, too


def handlers() -> dict[int, Callable[[int, FrameType | None], object]]:
    """What Python does at the signals that end a script; nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {int(number): handler for number in ENDING if callable(handler := signal.getsignal(number))}


@contextmanager
def handled(by: Mapping[int, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """In the block, signals are handled so; afterwards as before."""
    before = {number: signal.getsignal(number) for number in by}
    for number, handler in by.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def our_signals() -> Iterator[None]:
    """After the block, handlers are what they were: those that C code put in are not even seen from Python.

    Drivers may keep `OF_DRIVERS`, which they would not if these ended a script.
    """
    before = handlers()
    try:
        yield
    finally:
        for number in before.keys() - OF_DRIVERS:
            signal.signal(number, before[number])


def ignore_signals() -> None:
    """From here on the end is decided, and its code; nothing outside of the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
