"""One seed, many named and order-independent random generators.

A `Seed` is a path of names. Its generator depends on the names alone: not on the order of calls, the number of
workers, or what else was drawn. So a retry, or another number of workers, gives the same bits.

>>> root = Seed.root(0)
>>> a = torch.rand(2, generator=root.child("explore", 3).generator())
>>> b = torch.rand(2, generator=root.child("explore").child(3).generator())
>>> bool((a == b).all())
True
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from s2r_torch.errors import SettingError
from s2r_torch.text import printable

Name = str | int | tuple


@contextmanager
def kept_globals() -> Iterator[None]:
    """The global generators of torch (on the CPU), numpy and random are afterwards as they were before."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_globals(seed: int) -> None:
    """Seeds the global generators of torch (on the CPU), numpy and random; inside `kept_globals`."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed queues calls for every device
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _name(name: object, *kinds: type) -> Name:
    """A name as Python's own text, whole number or tuple of them: streams of 3 and np.int64(3) are the same one.

    Raises:
        SettingError: it is none of `kinds`, or of all.
    """
    kinds = kinds or (int, str, tuple)
    if isinstance(name, tuple) and tuple in kinds:
        return tuple(map(_name, name))
    if isinstance(name, str) and str in kinds:
        return str(name)
    try:
        return operator.index(name)  # type: ignore[arg-type]
    except TypeError:
        wanted = "a whole number as the seed" if kinds == (int,) else "names of streams: text and whole numbers"
        raise SettingError(
            expected=wanted, got=printable(repr(name), 80), cause="a number in halves, or text"
        ) from None


@dataclass(frozen=True)
class Seed:
    """A named place in the tree of random streams."""

    names: tuple[Name, ...]

    def __post_init__(self):
        if not isinstance(self.names, tuple):
            got, cause = (
                printable(f"Seed({self.names!r})", 80),
                "the class itself: Seed.root(0) begins the streams of 0",
            )
            raise SettingError(expected="a seed from Seed.root, or one of its children", got=got, cause=cause)
        if not all(type(name) in (int, str, tuple) for name in self.names):
            object.__setattr__(self, "names", tuple(map(_name, self.names)))

    @staticmethod
    def root(seed: int) -> Seed:
        """The root of a run's streams; `seed` is any integer, 0 included."""
        return Seed((_name(seed, int),))

    def child(self, *names: Name) -> Seed:
        """The stream of that name below this one."""
        return Seed(self.names + tuple(name if type(name) in (int, str) else _name(name) for name in names))

    def integer(self) -> int:
        """A 63-bit integer that depends on the names alone."""
        return int.from_bytes(hashlib.blake2b(repr(self.names).encode(), digest_size=8).digest(), "big") >> 1

    def generator(self) -> torch.Generator:
        """A fresh generator; two calls return generators in the same state."""
        return torch.Generator().manual_seed(self.integer())

    @contextmanager
    def as_global(self, device: torch.device) -> Iterator[None]:
        """The global generators of torch, numpy and random as this stream, for code that takes no generator.

        Afterwards they are as before.
        """
        with kept_globals(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed_globals(self.integer())
            if device.type == "cuda":
                torch.cuda.manual_seed(self.integer())
            yield

    def generators(self, ids: Iterable[int]) -> list[torch.Generator]:
        """One generator per simulator, a function of the simulator's own id."""
        return [self.child("simulator", int(i)).generator() for i in ids]
