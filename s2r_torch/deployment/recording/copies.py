"""Episodes and readings that are there more than once: they would count as independent ones (`contents.py`)."""

from __future__ import annotations

import numpy as np
import scipy

from s2r_torch.deployment.recording.evidence import CHANCE, FUZZ, Contents, Finding, more_than_chance
from s2r_torch.errors import RecordingError

FAR = 1e6  # middle halves from the middle half: what lies farther out is cut there
AGREE = 0.01  # of the middle half of a state's readings: episodes that differ by more in any number are no copies


def require_different_episodes(contents: Contents) -> None:
    """Raises RecordingError where episodes are there more than once: they would count as independent ones."""
    first: dict[bytes, int] = {}
    copies = []
    length, actions = contents.recording.length.tolist(), contents.recording.actions.numpy()
    for i, n in enumerate(length):
        key = bytes([n % 251]) + actions[i, : n - 1].tobytes() + contents.x[i, :n].tobytes()
        if first.setdefault(key, i) != i:
            copies.append((first[key], i))
    shortest = min((length[i] for i, _ in copies), default=0)
    exact = bool(copies) and more_than_chance(len(copies), len(length) ** 2 / 2, contents.values, times=shortest)
    copies = copies if exact else near_copies(contents)
    if copies:
        (i, j), different = copies[0], len(length) - len(copies)
        digits = "" if exact else " but for the last digits"
        raise RecordingError(
            expected="episodes that are different draws",
            got=f"{len(copies)} of {len(length)} that repeat an earlier one in every number{digits}: the episode at "
            f"{contents.at(j, 0)} is that at {contents.at(i, 0)}; as good as {different}",
            cause="files joined with an overlap, a driver that repeats its last values, or a world with a fixed seed",
        )


def near_copies(contents: Contents) -> list[tuple[int, int]]:
    """Episodes (i, j), i before j, of the same actions that agree in every number more closely than chance explains.

    Numbers agree within `AGREE` of the middle half of their state's readings. How often two readings do is counted for
    every state and sensor; independent episodes do in all of theirs with the product of these shares.
    """
    x, share = np.zeros_like(contents.x), np.ones_like(contents.x)
    for _, i, step, readings in contents.readings():
        low, high = np.quantile(readings, (0.25, 0.75), axis=0)
        radius = AGREE * (high - low)
        near = np.clip(readings, low - FAR * (high - low), high + FAR * (high - low))  # 1e308 is no distance
        x[i, step] = near / np.where(radius > 0, radius, FUZZ * np.ptp(near, 0) + FUZZ)
        share[i, step] = [max(AGREE, _within_one(column)) for column in x[i, step].T]
    share[:, 1:][contents.x[:, 1:] == contents.x[:, :-1]] = 1.0  # no number of its own
    length, actions = contents.recording.length.numpy(), contents.recording.actions.numpy()
    found: list[tuple[int, int]] = []
    for n in np.unique(length[length > 0]).tolist():
        rows = np.flatnonzero(length == n)
        _, sequence = np.unique(actions[rows, : n - 1], axis=0, return_inverse=True)
        for s in range(sequence.max(initial=-1) + 1):
            same = rows[sequence.ravel() == s]
            if len(rows) ** 2 / 2 * share[same[0], :n].prod() > CHANCE:
                continue  # too few numbers, or too coarse ones, to tell copies from chance
            tree = scipy.spatial.cKDTree(x[same, :n].reshape(len(same), -1))
            close = {j: i for i, j in tree.query_pairs(1.0, p=np.inf)}  # i < j
            found += [(int(same[i]), int(same[j])) for j, i in close.items()]
    return sorted(found, key=lambda pair: pair[1])


def _within_one(x: np.ndarray) -> float:
    """The share of pairs of numbers [n] that differ by at most 1."""
    n, ordered = len(x), np.sort(x)
    above = np.searchsorted(ordered, ordered + 1, side="right") - np.arange(1, n + 1)
    return float(above.sum() / max(1, n * (n - 1) / 2))


def copied(contents: Contents) -> list[Finding]:
    """Readings of a state that repeat an earlier one in every sensor."""
    copies, total, pairs = 0, 0, 0.0
    for _, _, _, x in contents.readings():
        copies += len(x) - len(np.unique(x, axis=0))
        pairs += len(x) ** 2 / 2
        total += len(x)
    if not copies or not more_than_chance(copies, pairs, contents.values):
        return []
    return [Finding(f"{copies} of {total} readings are exact repeats of others: as good as {total - copies}", True)]
