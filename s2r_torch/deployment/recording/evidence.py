"""A log as arrays, and how many coincidences in it are more than chance: what rules on its contents need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.graph import StateGraph

CHANCE = 1e-6  # level of rules that count coincidences
PEAK = 2.0  # how much likelier a density's most likely values are than the average ones
FUZZ = 1e-9  # of a range: gaps below come from rounding in the last digit
ROUNDED = 4  # readings per different value from which they count as rounded


@dataclass(frozen=True)
class Finding:
    """Something that must be known of a log.

    Args:
        text: for people.
        doubt: whether a verdict `consistent` would promise too much.
    """

    text: str
    doubt: bool


@dataclass(frozen=True, eq=False)
class Contents:
    """Readings as numpy arrays, with what all rules need.

    Args:
        recording: the episodes of one world.
        names: of the sensors.
        states: `[N, H]` the state of every reading, -1 where there is none.
        x: `[N, H, d]`, NaN where there is none.
        values: `[d]` how many different values each sensor could show within a state, at least.
    """

    recording: Recording
    names: tuple[str, ...]
    states: np.ndarray
    x: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(recording: Recording, graph: StateGraph, names: tuple[str, ...]) -> Contents:
        states = recording.states(graph).numpy()
        x = np.where((states >= 0)[..., None], recording.x.double().numpy(), np.nan)
        values = np.ones(len(names))
        for j in range(len(names)):
            gap = smallest_gap(x[..., j])
            column = x[..., j].ravel()
            values[j] = max(1.0, min(possible(column[rows], gap) for _, rows in by_state(states)))
        return Contents(recording, names, states, x, values)

    def readings(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """(state, episodes [n], steps [n], x [n, d]) in the order of the episodes."""
        for s, rows in by_state(self.states):
            i, step = np.divmod(rows, self.states.shape[1])
            yield s, i, step, self.x[i, step]

    def at(self, i: int, step: int) -> str:
        return self.recording.at(int(i), int(step))


def by_state(states: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(state, where it is in the flattened array, in order) of all states in it but -1."""
    order = np.argsort(states, axis=None, kind="stable")
    found, first = np.unique(states.ravel()[order], return_index=True)
    yield from ((s, rows) for s, rows in zip(found.tolist(), np.split(order, first)[1:], strict=True) if s >= 0)


def possible(x: np.ndarray, gap: float) -> float:
    """How many different values readings [n] of a state could take: those seen, if they are few; else by the gap."""
    different = len(np.unique(x))
    few = len(x) >= ROUNDED * different or different < 2
    return different if few else np.ptp(x) / gap


def smallest_gap(x: np.ndarray) -> float:
    """The smallest difference between two values, but for their last digits: what a sensor can tell apart."""
    values = np.unique(x[np.isfinite(x)])
    gaps = np.diff(values)
    gaps = gaps[gaps > FUZZ * np.ptp(values)] if len(values) else gaps
    return float(gaps.min(initial=np.inf)) if len(gaps) else 0.0


def more_than_chance(count: int, pairs: float, values: np.ndarray, times: int = 1) -> bool:
    """Whether so many coincidences among `pairs` of readings, of `times` steps each, are beyond chance."""
    rate = float(np.prod(np.minimum(1.0, PEAK / values))) ** times
    return count > 0 and scipy.special.pdtrc(count - 1, pairs * rate) < CHANCE
