"""Random numbers that nobody handed out: the global generators, and those that an environment keeps for itself.

A fixed seed at every reset hides noise in the dynamics. To see it, all generators that can be reached from an
environment are put into other states behind its back, in place, so that methods that were kept of them follow.
"""

from __future__ import annotations

import functools
import pickle
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from s2r_torch.rng import kept_globals, seed_globals

MOST_OBJECTS = 5000  # looked at below one environment
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.Tensor, np.ndarray)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def global_states() -> dict[str, object]:
    """The states of the global generators, by the name of the library that owns them."""
    numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return {"torch": torch.get_rng_state().numpy().tobytes(), "numpy": numpy, "random": random.getstate()}


def used_since(before: dict[str, object]) -> list[str]:
    """The libraries whose global generator is in another state than before."""
    return [name for name, state in global_states().items() if state != before[name]]


@contextmanager
def shaken(root: object, seed: int) -> Iterator[None]:
    """Puts the global generators, and all that can be reached from an object, into other states; for a while."""
    found = [(generator, _shake(generator, seed)) for generator in reachable(root)]
    with kept_globals():
        seed_globals(seed)
        try:
            yield
        finally:
            for _, restore in found:
                restore()


def states(root: object) -> list[bytes]:
    """The states of the global generators, and of all that can be reached from an object, to be compared."""
    found: list[object] = [global_states()]
    for generator in reachable(root):
        if isinstance(generator, np.random.Generator):
            found.append(generator.bit_generator.state)
        elif isinstance(generator, torch.Generator):
            found.append(generator.get_state().numpy().tobytes())
        else:
            named = "get_state" if isinstance(generator, np.random.RandomState) else "getstate"
            found.append(getattr(generator, named)())
    return [pickle.dumps(state) for state in found]


def reachable(root: object) -> list[object]:
    """The generators below an object: in attributes, containers, closures, methods and globals of its functions."""
    seen: set[int] = set()
    found: list[object] = []
    waiting = [root]
    while waiting and len(seen) < MOST_OBJECTS:
        thing = waiting.pop()
        if isinstance(thing, PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, GENERATORS):
            found += [] if isinstance(thing, random.SystemRandom) else [thing]  # it has no state: it never repeats
        else:
            waiting += _below(thing)
    return found


def _below(thing: object) -> list[object]:
    """What one object holds."""
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.BuiltinMethodType):
        return [thing.__self__]
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType()]
        named = [thing.__globals__.get(name) for name in thing.__code__.co_names]
        return cells + list(thing.__defaults__ or ()) + [v for v in named if isinstance(v, GENERATORS)]
    slots = [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()) if isinstance(name, str)]
    try:
        return list(vars(thing).values()) + slots
    except TypeError:
        return slots


def _shake(generator: Any, seed: int) -> Callable[[], object]:
    """Puts one of `GENERATORS` into another state; returns what brings the old one back."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        before, bits.state = bits.state, type(bits)(seed).state
        return functools.partial(setattr, bits, "state", before)
    if isinstance(generator, torch.Generator):
        restore = functools.partial(generator.set_state, generator.get_state())
        generator.manual_seed(seed)
        return restore
    get, put = ("get_state", "set_state") if isinstance(generator, np.random.RandomState) else ("getstate", "setstate")
    restore = functools.partial(getattr(generator, put), getattr(generator, get)())
    generator.seed(seed)
    return restore
