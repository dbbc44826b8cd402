"""Tasks for workers: functions of a module, as those that travel must be."""

import gc
import os
import signal
import time
import warnings
from pathlib import Path

import torch

from s2r_torch.episodes import observe
from s2r_torch.errors import SimulatorError


def power(base, exponent, tell):
    tell(("asked", exponent))
    return base**exponent


def fails_at_three(shared, number, tell):
    if number >= 3:
        raise SimulatorError(expected="a number below 3", got=str(number), cause="a test")
    return number


def warns(shared, number, tell):
    warnings.warn(f"number {number}", UserWarning, stacklevel=2)
    return torch.get_num_threads()


def looked_through(shared, number, tell):
    """The share of objects that a search for garbage looks at."""
    searched = len(gc.get_objects())
    return searched / (searched + gc.get_freeze_count())


def readied(shared, payload, tell):
    """Readies a worker, which takes a while."""
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass


def dies_readied(shared, payload, tell):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(marker: Path, number, tell):
    """Kills its process the first time that somebody comes to number 2."""
    if number == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def seen(simulators, path, n, seed):
    """Readings of some simulators."""
    return observe(simulators, path, n, seed)


def seen_unless(simulators, path, n, seed, poisoned):
    """The same, unless one of them kills its process."""
    if poisoned in simulators.ids:
        os.kill(os.getpid(), signal.SIGKILL)
    return observe(simulators, path, n, seed)


class Faulty:
    """Simulators one of which raises."""

    def __init__(self, inner, bad):
        self.inner, self.bad, self.spec, self.ids = inner, bad, inner.spec, inner.ids

    def reset(self, n, generators):
        if self.bad in self.ids:
            raise RuntimeError("the arm is stuck")
        return self.inner.reset(n, generators)

    def step(self, actions):
        return self.inner.step(actions)

    def select(self, indices):
        return Faulty(self.inner.select(indices), self.bad)


def reset_of(simulators, n, seed):
    """Readings at the start, of simulators one of which is broken."""
    simulators.inner = Faulty(simulators.inner, 21)
    return observe(simulators, (), n, seed)


def slowly_seen(simulators, path, n, seed):
    """Readings of some simulators, after a while."""
    time.sleep(0.3)
    return observe(simulators, path, n, seed)


def process_of(shared, payload, tell):
    """Which process does this; slowly, so that others get their share."""
    time.sleep(0.2)
    return os.getpid()


def for_so_long(shared, seconds: float, tell) -> float:
    """Takes that many seconds."""
    time.sleep(seconds)
    return seconds
