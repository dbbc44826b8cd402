"""The door to reality: counted, checked, bounded in time, and closed however it ends."""

import contextlib
import contextvars
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.logs import WORLD

from s2r_torch.defaults import torch_with
from s2r_torch.deployment.live import GuardedWorld, bounded, closing
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, RecordingError, SettingError, SimulatorError


class World:
    """A world whose calls are spoilt."""

    def __init__(self, reset=lambda x: x, step=lambda x: x, close=lambda: None):
        self.inner, self.spec = WORLD.world(0.5, 0), WORLD.spec
        self._reset, self._step, self._close, self.closed = reset, step, close, 0

    def reset(self, n):
        return self._reset(self.inner.reset(n))

    def step(self, actions):
        return self._step(self.inner.step(actions))

    def close(self):
        self.closed += 1
        self._close()


def fails(error):
    def raise_it(*_):
        raise error

    return raise_it


ZERO = torch.zeros(7, dtype=torch.int64)


def test_a_world_is_counted_and_checked():
    ledger = Ledger()
    world = GuardedWorld(WORLD.world(0.5, 0), ledger)
    world.reset(7)
    assert world.step(ZERO).shape == (7, 1)
    assert ledger.counts == {"real": 7}
    for n in (0, -1):
        with pytest.raises(SettingError, match="n >= 1"):
            world.reset(n)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda x: x * torch.nan,
            "NaN or inf from the world: sensor 'x_1' shows nan at step 0 of real episode 1, at the",
        ),
        (lambda x: x[:3], r"shape \[7, 1\]"),
        (lambda x: x.repeat(1, 2), r"shape \[7, 1\]"),
        (lambda x: x.long(), "float64 tensor"),
        (lambda x: x.half(), "float64 tensor"),
        (lambda x: x.to_sparse(), "float64 tensor"),
        (lambda x: None, "float64 tensor; got NoneType at step 0 of real episode 1"),
        (lambda x: x.tolist(), "float64 tensor; got list"),
    ],
)
def test_what_a_world_shows_is_checked(spoil, message):
    with pytest.raises(ObservationError, match=message):
        GuardedWorld(World(reset=spoil), Ledger()).reset(7)


def test_what_float32_rounds_over_an_end_of_the_range_is_the_end():
    for end in (-1.1, 1.1):
        rounded = torch.tensor(end, dtype=torch.float32)
        beyond = float(rounded.nextafter(2 * rounded))
        for shown, seen in ((float(rounded), end), (beyond, beyond)):
            world = World(reset=lambda x, shown=shown: torch.full_like(x, shown, dtype=torch.float64))
            world.spec = replace(WORLD.spec, low=(-1.1,), high=(1.1,))
            assert float(GuardedWorld(world, Ledger()).reset(2)[0, 0]) == seen


def test_the_place_of_a_bad_reading_is_named():
    def spoil(x):
        x[3] = torch.inf
        return x

    world = GuardedWorld(World(step=spoil), Ledger())
    world.ledger.add("real", 20)
    world.reset(7)
    with pytest.raises(ObservationError, match="shows inf at step 1 of real episode 24, after actions 0"):
        world.step(ZERO)


class WordlessError(Exception):
    def __str__(self):
        return 1 / 0


@pytest.mark.parametrize(
    "error", [ConnectionError("cable"), SystemExit(0), GeneratorExit(), ValueError("[/] \x1b[31m"), WordlessError()]
)
def test_whatever_a_world_raises_is_an_error_that_says_where(error):
    world = GuardedWorld(World(step=fails(error)), Ledger())
    world.reset(7)
    with pytest.raises(SimulatorError, match=f"{type(error).__name__}: .*at step 1 of real episode 1") as caught:
        world.step(ZERO)
    assert caught.value.__cause__ is error and "\x1b" not in str(caught.value)


def test_an_interruption_stays_one():
    with pytest.raises(KeyboardInterrupt):
        GuardedWorld(World(reset=fails(KeyboardInterrupt())), Ledger()).reset(7)


def test_a_world_that_uses_its_buffer_again():
    buffer = torch.zeros(7, 1, dtype=torch.float64)
    world = GuardedWorld(World(reset=lambda x: buffer.copy_(x), step=lambda x: buffer.copy_(x)), Ledger())
    first = world.reset(7)
    assert not torch.equal(first, world.step(ZERO))


# -- time -------------------------------------------------------------------------------------------------------------


def sleeps(*_):
    time.sleep(30)


def swallows(*_):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(30)


def loops(*_):
    while True:
        pass


@pytest.mark.parametrize("hang", [sleeps, swallows, loops, lambda *_: threading.Event().wait()])
def test_a_world_that_hangs(hang):
    world = GuardedWorld(World(step=hang), Ledger(), time_limit=0.05)
    world.reset(7)
    with pytest.raises(SimulatorError, match="an answer within 0.05 s; got none at step 1 of real episode 1"):
        world.step(ZERO)
    time.sleep(0.1)  # no alarm is left


@pytest.mark.parametrize("limit", [np.float32(50), torch.tensor(50.0), 50])
def test_a_limit_is_a_number_of_whatever_library(limit):
    assert GuardedWorld(World(), Ledger(), time_limit=limit).reset(7).shape == (7, 1)


def test_limits():
    assert bounded(lambda: 3, 5.0) == 3 and bounded(lambda: 3, None) == 3
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(SettingError, match="time_limit > 0"):
            bounded(lambda: 3, limit)


def in_a_thread(function):
    """What it returns or raises there."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(30)


@pytest.mark.parametrize("hang", [sleeps, swallows, loops, lambda *_: threading.Event().wait()])
def test_a_world_that_hangs_in_a_thread_of_the_users(hang):
    def ask():
        world = GuardedWorld(World(step=hang), Ledger(), time_limit=0.05)
        world.reset(7)
        with pytest.raises(SimulatorError, match="an answer within 0.05 s; got none at step 1 of real episode 1"):
            world.step(ZERO)
        return True

    assert in_a_thread(ask)


def test_a_late_loop_in_a_thread_of_the_users_ends():
    begun: list[threading.Thread] = []

    def hang():
        begun.append(threading.current_thread())
        loops()

    with pytest.raises(SimulatorError, match="got none"):
        in_a_thread(lambda: bounded(hang, 0.05))
    begun[0].join(30)
    assert not begun[0].is_alive()


@pytest.mark.parametrize("error", [TimeoutError("the bus"), StopIteration(), KeyboardInterrupt(), SystemExit(0)])
def test_what_a_call_with_a_limit_raises_in_a_thread_is_its_own(error):
    def fails():
        raise error

    with pytest.raises(type(error)) as caught:
        in_a_thread(lambda: bounded(fails, 5.0))
    assert caught.value is error


def test_a_call_with_a_limit_in_a_thread_finds_what_its_caller_has():
    told = contextvars.ContextVar("told", default="nothing")

    def look():
        return told.get(), torch.get_default_device(), torch.is_grad_enabled(), torch.get_default_dtype()

    def ask():
        told.set("something")
        with torch.no_grad(), torch.device("meta"), torch_with(torch.float64, torch.device("meta")):
            return bounded(look, 5.0)

    assert in_a_thread(ask) == ("something", torch.device("meta"), False, torch.float64)


# -- closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [None, KeyboardInterrupt(), RecordingError(expected="a", got="b", cause="c"), OSError()]
)
def test_a_world_is_closed_once_however_it_ends(error):
    world = World()
    try:
        with closing(world):
            if error is not None:
                raise error
    except BaseException as caught:
        assert caught is error
    assert world.closed == 1


OURS = RecordingError(expected="a", got="b", cause="c")


def test_a_world_that_cannot_be_closed():
    stuck = World(close=fails(OSError("cable")))
    with pytest.raises(SimulatorError, match="the world to be closed; got OSError: cable"), closing(stuck):
        pass
    with pytest.raises(SimulatorError, match="an answer within 0.05 s"), closing(World(close=sleeps), 0.05):
        pass
    also = "cause: c; and then the world could not be closed: OSError: cable"
    with pytest.raises(RecordingError, match=also), closing(stuck):
        raise OURS
    with pytest.raises(KeyboardInterrupt), closing(stuck):
        raise KeyboardInterrupt
    with closing(object()):
        pass


@pytest.mark.parametrize("error", [None, KeyboardInterrupt("first"), OURS])
def test_an_impatient_signal_waits_until_the_world_is_closed(error):
    """Motors must not stay powered because somebody pressed Ctrl-C twice."""
    done = []

    def close():
        signal.raise_signal(signal.SIGINT)
        done.append("closed")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), closing(World(close=close)):
        if error is not None:
            raise error
    assert done == ["closed"] and signal.getsignal(signal.SIGINT) is before


def test_a_driver_that_takes_signals_gives_them_back():
    """ROS and SDL put handlers of their own in: Ctrl-C was swallowed, and the episodes went on."""

    def takes(x):
        signal.signal(signal.SIGINT, lambda *_: None)
        return x

    before = signal.getsignal(signal.SIGINT)
    for limit in (None, 5.0):
        GuardedWorld(World(reset=takes), Ledger(), time_limit=limit).reset(2)
        assert signal.getsignal(signal.SIGINT) is before


def test_a_driver_may_keep_the_signals_that_wake_its_threads():
    """Taken away from it, the next one would end the script that it works for."""

    def woken(number, frame):
        pass

    def takes(x):
        signal.signal(signal.SIGUSR1, woken)
        signal.signal(signal.SIGXCPU, woken)
        return x

    def ends(number, frame):
        raise AssertionError

    before = {number: signal.signal(number, ends) for number in (signal.SIGUSR1, signal.SIGXCPU)}
    try:
        GuardedWorld(World(reset=takes), Ledger()).reset(2)
        assert signal.getsignal(signal.SIGUSR1) is woken and signal.getsignal(signal.SIGXCPU) is ends
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("limit", [None, 5.0])
@pytest.mark.parametrize("end", [sys.exit, lambda: None])
def test_a_copy_of_the_process_that_a_driver_makes_does_not_go_on(tmp_path, limit, end):
    """It would close the robot, append to the log and count episodes a second time."""
    mine, copies = os.getpid(), []

    def forks(x):
        copies.append(os.fork())
        if copies[-1] == 0:
            end()
        else:
            os.waitpid(copies[-1], 0)
        return x

    try:
        GuardedWorld(World(reset=forks), Ledger(), time_limit=limit).reset(2)
    finally:
        if os.getpid() != mine:
            (tmp_path / "went on").touch()
            os._exit(0)
    assert copies and not (tmp_path / "went on").exists()


def test_a_thread_has_no_signals_to_give_back():
    def look():
        with closing(world):
            shown.append(GuardedWorld(world, Ledger()).reset(2))

    world, shown = World(), []
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(shown) == world.closed == 1


def test_a_close_that_hangs_is_ended_by_a_second_signal():
    def hangs():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("went on")

    with pytest.raises(KeyboardInterrupt), closing(World(close=hangs)):
        pass


@pytest.mark.parametrize("interval", [0, 10])
def test_an_alarm_that_somebody_else_set_comes_when_it_is_due(interval):
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        due = time.monotonic() + 0.3
        signal.setitimer(signal.ITIMER_REAL, 0.3, interval)
        world = GuardedWorld(World(), Ledger(), time_limit=5)
        while time.monotonic() < due - 0.1:
            world.reset(7)
        assert rang == []
        time.sleep(0.4)
        assert len(rang) == 1 and due - 0.01 < rang[0] < due + 0.2
        assert (signal.getitimer(signal.ITIMER_REAL)[0] > 5) == bool(interval)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_alarm_that_was_due_during_a_call_comes_after_it():
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        GuardedWorld(World(reset=lambda x: (time.sleep(0.2), x)[1]), Ledger(), time_limit=5).reset(7)
        time.sleep(0.05)
        assert len(rang) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
