"""The first thing that a command imports: Ctrl-C and SIGTERM end it well from the first moment on.

While libraries are imported nothing is open and nothing is lost, so a signal ends the process at once; then
`s2r_torch.reports.endings` takes over. This module knows the standard library and the list of signals, and a command
imports what it needs and nothing else.
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import sys
import threading
from functools import partial
from importlib import import_module

from s2r_torch.libraries import not_searched
from s2r_torch.signals import ENDING, ignore_signals

LEAST = 1 << 30  # bytes: a policy is deployed with 0.8 of it
PATIENCE = 1.0  # seconds that a thread may take to end before anybody is told


def end_on_signals() -> None:
    """A signal that the process was started to ignore stays ignored."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130 if number in (signal.SIGINT, signal.SIGQUIT) else 143)


def have_outputs() -> None:
    """What was started with its outputs closed, as some services are, gets the null device in their places.

    Else printing fails, and a file that is opened later takes the number of an output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def have_addresses() -> None:
    """With too few for the libraries (`ulimit -v`), some say anything, and OpenBLAS waits for ever: one line before."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST:
        print(f"MemoryError: expected ulimit -v of {LEAST >> 10} at least; got {limit >> 10}", file=sys.stderr)
        sys.exit(2)


def _start(name: str) -> None:
    have_outputs()
    end_on_signals()
    have_addresses()
    atexit.register(ignore_signals)  # last of all: Python would then put defaults back, which kill
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores
    try:
        with not_searched():
            command = import_module(f"s2r_torch.commands.{name}")
    except Exception as error:
        cause = "a library that is not installed, or damaged, or cannot read a variable of yours; or too little memory"
        print(f"{type(error).__name__}: {' '.join(str(error).split())}; likely cause: {cause}", file=sys.stderr)
        sys.exit(2)
    atexit.register(gc.freeze)  # the process is about to end, and its memory with it
    try:
        command.main()
    except SystemExit as ended:
        end_with(ended.code)
        raise
    end_with(0)


def end_with(code: str | int | None) -> None:
    """Python ends when the last thread that is no daemon does, whoever began it: it is said whom it waits for."""
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread != threading.main_thread()]
    for thread in others:
        thread.join(PATIENCE)
    if names := [thread.name for thread in others if thread.is_alive()]:
        sys.stdout.flush()
        print(f"waits for threads of code of yours or of a driver: {', '.join(names)}; Ctrl-C ends it", file=sys.stderr)
        for number in ENDING:
            signal.signal(number, lambda *_: os._exit(code if isinstance(code, int) else 0))


run, deploy, plan, compare, check, new = (
    partial(_start, name) for name in ("run", "deploy", "plan", "compare", "check", "new")
)  # of `s2r-run` and the others
