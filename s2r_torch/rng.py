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
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

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


@dataclass(frozen=True)
class Seed:
    """A named place in the tree of random streams."""

    names: tuple[Name, ...]

    @staticmethod
    def root(seed: int) -> Seed:
        """The root of a run's streams; `seed` is any integer, 0 included."""
        return Seed((int(seed),))

    def child(self, *names: Name) -> Seed:
        """The stream of that name below this one."""
        return Seed(self.names + names)

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
