"""How scripts end: 0 when they did what was asked, 2 with one line that says what is wrong, 130 after Ctrl-C or SIGQUIT
and 143 after SIGTERM, SIGHUP, or the SIGUSR1, SIGUSR2, SIGXCPU or SIGALRM of a scheduler. Nothing else: a fault that
nobody foresaw is 2 as well, with its traceback on stderr."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from s2r_torch.errors import S2RError, Terminated
from s2r_torch.signals import ENDING, handled, ignore_signals
from s2r_torch.text import printable

LONGEST = 2000  # characters of a message
NARROWEST = 60  # characters of a line: on narrower terminals it is folded, and no word is cut


def terminal(*, stderr: bool = False) -> Console:
    """Where a command prints: as wide as the terminal says, 80 where it says nothing (COLUMNS=0), never too narrow."""
    own = sys.stderr if stderr else sys.stdout  # for good: drivers put others in their places
    console = Console(file=own, stderr=stderr)
    if console.width < NARROWEST:
        console.width = NARROWEST if console.width else 80
    return console


class Ended(SystemExit):
    """A script has said why it ends, and with which code."""


@contextmanager
def clear_ending(console: Console, kept: str, *, exits: bool = False) -> Iterator[None]:
    """Turns whatever ends the block early into one line and an exit code.

    Args:
        console: where the line goes; to stderr where that fails.
        kept: what an interruption leaves, in words.
        exits: whether SystemExit is meant, as that of a parser of arguments is; else it comes from a user's code, and
            leaving without a result is no success.

    Raises:
        Ended: 130 after Ctrl-C, 143 after SIGTERM, 2 after anything else.
    """
    with _signals_raise():
        try:
            yield
            console.file.flush()
        except Ended:
            raise
        except BaseException as error:
            ignore_signals()
            raise Ended(_tell(console, error, kept, exits)) from None


def say(console: Console, text: str | Text) -> None:
    """Prints a line as it is; on stderr where the console cannot be written to."""
    try:
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        console.file.flush()
    except (OSError, ValueError):  # ValueError: users' code closed it
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
        with suppress(OSError, ValueError):  # else Python tries again at its end, and exits with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), console.file.fileno())


def _tell(console: Console, error: BaseException, kept: str, exits: bool) -> int:
    """Says what happened; the exit code."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # rich makes an exit of it
        error = error.__context__
    if type(error) is ValueError and console.file.closed:
        error = OSError("the output was closed by code of yours or of a driver")
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # of torch, which has no other
        error = MemoryError(f"expected less memory to be asked for; got {printable(error)}")
    if isinstance(error, KeyboardInterrupt):
        say(console, f"interrupted; {kept}")
        return 143 if isinstance(error, Terminated) else 130
    if isinstance(error, SystemExit) and exits:
        return 0 if error.code in (0, None) else 2
    if isinstance(error, SystemExit):
        say(console, _line("SystemExit", f"code {error.code!r} before the work was done; likely cause: code of yours"))
    elif isinstance(error, S2RError | OSError | MemoryError):
        say(console, _line(type(error).__name__, str(error) or "no more memory"))
        for note in getattr(error, "__notes__", ()):
            say(console, printable(note, LONGEST))
    else:
        with suppress(OSError):
            traceback.print_exception(error)
        what = f"{type(error).__name__}: {printable(error, LONGEST)}"
        say(console, _line("unforeseen", f"{what}; likely cause: a fault in code of yours or in this library (stderr)"))
    return 2


def _line(name: str, message: str) -> Text:
    return Text.assemble((name, "bold red"), f": {printable(message, LONGEST)}")


# -- signals ---------------------------------------------------------------------------------------------------------

SIGNALS = dict.fromkeys(ENDING, Terminated) | {signal.SIGINT: KeyboardInterrupt, signal.SIGQUIT: KeyboardInterrupt}


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Ctrl-C and SIGTERM as exceptions; a signal that the process was started to ignore stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled({number: _raise for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}):
        yield


def _raise(number: int, frame: object) -> None:
    raise SIGNALS[signal.Signals(number)]
