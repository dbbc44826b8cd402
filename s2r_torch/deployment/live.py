"""The one door to reality: every episode counted before it is drawn, every reading checked, every call bounded, and the
world closed at the end, whatever happens."""

from __future__ import annotations

import contextvars
import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.base import UnlabelledWorld
from s2r_torch.defaults import defaults_now, torch_with
from s2r_torch.deployment.ranges import within
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, S2RError, SettingError, SimulatorError
from s2r_torch.graph import after
from s2r_torch.plain import require_count
from s2r_torch.signals import handled, handlers, our_signals
from s2r_torch.text import printable

AGAIN = 1.0  # seconds until a call that swallowed its alarm gets another one
SOON = 1e-6  # seconds until an alarm that is late


class GuardedWorld:
    """A world without rewards whose every episode is counted and checked.

    It is called with the torch defaults that there are when the guard is made: its user's, whatever ours are by then.
    A world that cannot run any number of episodes side by side says how many it can: `episodes_at_once`.

    Args:
        world: what to guard.
        ledger: where episodes are counted, before each is drawn.
        purpose: what they are counted as.
        time_limit: seconds that a call of the world may take; None for any time.
    """

    def __init__(self, world: UnlabelledWorld, ledger: Ledger, purpose: str = "real", time_limit: float | None = None):
        self.inner, self.ledger, self.purpose = world, ledger, purpose
        self._limit = None if time_limit is None else float(time_limit)  # a number of NumPy's is none for alarms
        self.spec, self._defaults = world.spec, defaults_now()
        at_once = getattr(world, "episodes_at_once", None)
        self.episodes_at_once = None if at_once is None else require_count("episodes_at_once", at_once)
        self._n, self._first = 0, 0
        self._actions: list[Tensor] = []

    def reset(self, n: int) -> Tensor:
        """Starts n episodes; returns x [n, d].

        Raises:
            SettingError: n < 1.
            ObservationError: readings that are not finite, or of another shape or type.
            SimulatorError: the world raised, or did not answer within the time limit.
        """
        if n < 1:
            raise SettingError(expected="n >= 1 episodes", got=str(n), cause="an empty budget")
        self._n, self._first, self._actions = n, self.ledger.counts[self.purpose] + 1, []
        self.ledger.add(self.purpose, n)
        return self._checked(self._call(self.inner.reset, "reset", n))

    def step(self, actions: Tensor) -> Tensor:
        """Takes actions [n]; returns the next x [n, d]. Raises as `reset`."""
        self._actions.append(actions)
        self.ledger.walked(self.purpose, self._n)
        return self._checked(self._call(self.inner.step, "step", actions))

    def _call(self, function: Callable[..., Tensor], name: str, argument: object) -> Tensor:
        try:
            with torch_with(*self._defaults):
                return bounded(function, self._limit, argument)
        except (SimulatorError, ObservationError) as error:
            raise type(error)(
                expected=error.expected, got=f"{error.got} {self._where(0)}", cause=error.cause
            ) from error
        except (S2RError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a SystemExit of the world is not ours
            raise SimulatorError(
                expected=f"{name} to succeed",
                got=f"{type(error).__name__}: {printable(error)} {self._where(0)}",
                cause="a fault in the world or in its connection",
            ) from error

    def _checked(self, x: Tensor) -> Tensor:
        plain = isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta
        if not (plain and x.dtype in (torch.float32, torch.float64)):
            got = f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
            raise ObservationError(
                expected="observations as a float32 or float64 tensor",
                got=f"{got} {self._where(0)}",
                cause="the world's sensors",
            )
        check_shape("observations", x, (self._n, self.spec.width), "the world and the policy differ in sensors")
        x = within(x.detach().to("cpu", copy=True), self.spec)  # a copy: a world may use its buffer again
        bad = (~torch.isfinite(x)).nonzero()
        if len(bad):
            i, j = bad[0].tolist()
            raise ObservationError(
                expected="finite observations",
                got=f"NaN or inf from the world: sensor {self.spec.obs_names[j]!r} shows {float(x[i, j])} "
                f"{self._where(i)}",
                cause="a broken or stuck sensor",
            )
        return x

    def _where(self, i: int) -> str:
        path = tuple(int(actions[i]) for actions in self._actions)
        return f"at step {len(path)} of {self.purpose} episode {self._first + i}, {after(path)}"


Answer = TypeVar("Answer")


class _Late(BaseException):
    """A call took too long. No `except Exception` of the world may take it for one of its own."""


def bounded(function: Callable[..., Answer], seconds: float | None, *arguments: object) -> Answer:
    """Calls a function that must return within so many seconds.

    An alarm of the system ends it, so that whatever waits in Python is interrupted: sleeps, sockets, locks, loops.
    Signals are handled afterwards as before, whatever handlers it put in, as drivers do: Ctrl-C must end an episode.
    Outside the main thread, which alone gets alarms, it is called in a thread of its own, and that is let go.

    Raises:
        SimulatorError: it did not.
    """
    if seconds is None:
        with _one_process(), our_signals():
            return function(*arguments)
    require_time_limit(seconds)
    try:
        with _one_process(), our_signals():
            if threading.current_thread() is not threading.main_thread():
                return _elsewhere(function, seconds, *arguments)
            with _alarm(seconds):
                return function(*arguments)
    except _Late:
        raise SimulatorError(
            expected=f"an answer within {seconds:g} s",
            got="none",
            cause="a world that hangs (cable, emergency stop, a dialogue), or a time_limit that is too short",
        ) from None


def _elsewhere(function: Callable[..., Answer], seconds: float, *arguments: object) -> Answer:
    """Calls it in another thread, as here; late, it is interrupted there as soon as it is in Python."""
    answer: Future[Answer] = Future()
    context, device, grad = contextvars.copy_context(), torch.get_default_device(), torch.is_grad_enabled()

    def call() -> None:
        with suppress(InvalidStateError, _Late), device, torch.set_grad_enabled(grad):
            try:
                answer.set_result(context.run(function, *arguments))
            except BaseException as error:
                answer.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():  # one of its own
            raise
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Late))
        raise _Late from None


def require_time_limit(seconds: float | None) -> None:
    """Raises SettingError unless it is None or a positive number."""
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise SettingError(expected="time_limit > 0 seconds, or null", got=str(seconds), cause="null is no limit")


@contextmanager
def _one_process() -> Iterator[None]:
    """A copy of this process that code in the block makes, and does not end there, ends with it: one robot, one log."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    running = True

    def ring(number: int, frame: object) -> None:
        if running:
            raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    began = time.monotonic()
    try:
        try:
            yield
        finally:
            running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # an alarm that somebody else had set: when it was to come, or now
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), SOON), interval)


@contextmanager
def closing(world: object, time_limit: float | None = None) -> Iterator[None]:
    """Closes a world once, where it can be closed, however the block ends: motors must not stay powered.

    A Ctrl-C, SIGTERM or SIGHUP that comes while it closes waits until it has; the one after that ends a close that
    hangs.

    Raises:
        SimulatorError: closing fails after a block that did not; else the block's own error is the one that counts.
    """
    try:
        yield
    except S2RError as error:
        try:
            _close(world, time_limit)
        except SimulatorError as also:
            cause = f"{error.cause}; and then the world could not be closed: {also.got}"
            raise type(error)(expected=error.expected, got=error.got, cause=cause) from error
        raise
    except BaseException:
        with suppress(SimulatorError):
            _close(world, time_limit)
        raise
    else:
        _close(world, time_limit)


def _close(world: object, time_limit: float | None) -> None:
    close = getattr(world, "close", None)
    if close is None:
        return
    try:
        with _impatience_waits():
            bounded(close, time_limit)
    except (S2RError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SimulatorError(
            expected="the world to be closed",
            got=f"{type(error).__name__}: {printable(error)}",
            cause="a fault in its close(); see to the machine",
        ) from error


@contextmanager
def _impatience_waits() -> Iterator[None]:
    """The first signal that would end the block is handled after it, the second at once."""
    before = handlers()
    came: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            before[number](number, frame)

    with handled(dict.fromkeys(before, wait)):
        yield
    if came:
        before[came[0]](came[0], None)
