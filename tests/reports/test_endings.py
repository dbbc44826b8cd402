"""However a script ends: a code out of four, and one line that can be printed."""

import errno
import io
import os
import signal
import sys

import pytest
from rich.console import Console

from s2r_torch.errors import SettingError, Terminated
from s2r_torch.reports.endings import Ended, clear_ending, say, terminal


def ending(error: BaseException, **how) -> tuple[int, str]:
    """The exit code after that error, and what was printed."""
    console = Console(width=60, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        with pytest.raises(Ended) as ended, clear_ending(console, "two stages are kept", **how):
            raise error
    finally:
        console.file.close()
    return ended.value.code, console.export_text()


WRONG = SettingError(expected="a file", got="log[copy].csv \x1b[31m", cause="[/] in\na name")
FULL = OSError(errno.ENOSPC, "No space left on device", "summary.json")
LOCKED = PermissionError(errno.EACCES, "Permission denied", "runs")
TOO_MUCH = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8064000000000 bytes.")
EXIT = "before the work was done; likely cause: code of yours"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted; two stages are kept"),
        (Terminated(), 143, "interrupted; two stages are kept"),
        (
            WRONG,
            2,
            r"SettingError: expected a file; got log[copy].csv \x1b[31m; likely cause: [/] in\na name",
        ),
        (FULL, 2, "OSError: [Errno 28] No space left on device: 'summary.json'"),
        (LOCKED, 2, "PermissionError: [Errno 13] Permission denied: 'runs'"),
        (MemoryError(), 2, "MemoryError: no more memory"),
        (TOO_MUCH, 2, f"MemoryError: expected less memory to be asked for; got {TOO_MUCH}"),
        (SystemExit(0), 2, f"SystemExit: code 0 {EXIT}"),
        (SystemExit(None), 2, f"SystemExit: code None {EXIT}"),
    ],
)
def test_every_ending_is_a_code_and_a_line(error, code, line):
    assert ending(error) == (code, f"{line}\n")


def test_what_nobody_foresaw_has_its_traceback_on_stderr(capsys):
    code, text = ending(ZeroDivisionError("by [zero]"))
    assert code == 2 and text.startswith("unforeseen: ZeroDivisionError: by [zero]; likely cause: a fault")
    assert text.count("\n") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_without_a_text_ends_like_others():
    class WordlessError(Exception):
        def __str__(self):
            return 1 / 0

    code, text = ending(WordlessError())
    assert code == 2 and text.startswith(
        "unforeseen: WordlessError: (no text: ZeroDivisionError); likely cause: a fault"
    )


@pytest.mark.parametrize(("given", "code"), [(0, 0), (None, 0), (1, 2), (2, 2), ("text", 2)])
def test_an_exit_that_is_meant_keeps_its_meaning(given, code):
    assert ending(SystemExit(given), exits=True) == (code, "")


def test_a_pipe_that_nobody_reads():
    closed = SystemExit(1)
    closed.__context__ = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert ending(closed) == (2, "BrokenPipeError: [Errno 32] Broken pipe\n")
    WRONG.__context__ = BrokenPipeError(
        errno.EPIPE, "Broken pipe"
    )  # a robot's cable: the error that tells of it counts
    assert ending(WRONG)[1].startswith("SettingError: expected a file")


def test_an_output_that_a_users_code_closed(capsys):
    closed = io.StringIO()
    closed.close()
    with pytest.raises(Ended) as ended, clear_ending(Console(file=closed, width=200), "nothing"):
        raise WRONG
    assert ended.value.code == 2 and "SettingError: expected a file" in capsys.readouterr().err


def test_a_result_for_an_output_that_a_users_code_closed_is_one_line(capsys):
    closed = io.StringIO()
    closed.close()
    with pytest.raises(Ended) as ended, clear_ending(console := Console(file=closed, width=200), "nothing"):
        console.print("the result")
    told = "OSError: the output was closed by code of yours or of a driver\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, told)


def test_an_output_that_users_code_replaced(monkeypatch, capsys):
    console = terminal()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with clear_ending(console, "nothing"):
        say(console, "the result")
    assert capsys.readouterr().out == "the result\n"


def test_an_ending_that_was_told_is_not_told_again():
    assert ending(Ended(130)) == (130, "")


def test_without_an_error_nothing_ends():
    with clear_ending(Console(quiet=True), "nothing"):
        pass


@pytest.mark.parametrize(
    ("name", "code"),
    [("INT", 130), ("QUIT", 130), ("TERM", 143), ("HUP", 143), ("USR1", 143), ("XCPU", 143), ("ALRM", 143)],
)
def test_signals_are_heard_inside_and_left_as_they_were(name, code):
    number = signal.Signals[f"SIG{name}"]
    before = signal.default_int_handler if name == "INT" else signal.SIG_DFL
    started_with = signal.signal(number, before)  # a shell that starts this in the background has some ignored
    try:
        with pytest.raises(Ended) as ended, clear_ending(Console(quiet=True), "nothing"):
            os.kill(os.getpid(), number)
            signal.pause()
        assert ended.value.code == code and signal.getsignal(number) == before
    finally:
        signal.signal(number, started_with)


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with clear_ending(Console(quiet=True), "nothing"):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("1", 60), ("20", 60), ("abc", 80), ("130", 130)])
def test_no_terminal_is_too_narrow_for_words(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal().width == width and terminal(stderr=True).stderr
