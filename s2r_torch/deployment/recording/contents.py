r"""Logs that look well: what readings say of how they were taken, before anything is estimated from them.

Given the actions, readings of a state are independent draws of one law with a density. Then, whatever the law is:

    copies      two readings with the same d numbers, or whole episodes of them, have probability 0; so have, about,
                two episodes that agree in all numbers but for the last digits
    values      a number that recurs has probability 0, on or off the grid (-999, 65535, the end of a range)
    repeats     so has a reading equal to that of the step before
    rounded     n readings take n different values, with more than `DIGITS` binary digits
    drift       the order of episodes along one action sequence says nothing: ranks against order, a permutation test
    shifted     readings spread least around their states when each is assigned to its own

Digital sensors have a resolution, so that coincidences do occur: they are counted against what a resolution of the
smallest gap between values, or the few values seen, explain (`more_than_chance`), each at a level of 1e-6. Drift is
tested at 1e-3 for all sensors together. `shifted` asks for half the spread, which a right assignment never allows for.
So good logs get a note from `drift` in 1 of 1000, and from all others together in fewer than 1 of 10,000; logs of
families whose simulators round, clip or repeat readings themselves get them always.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
import torch

from s2r_torch.density.estimator import DensityEstimator, more_than_a_share
from s2r_torch.deployment.recording.causes import off_range
from s2r_torch.deployment.recording.copies import copied, require_different_episodes
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.evidence import (
    CHANCE,
    FUZZ,
    PEAK,
    ROUNDED,
    Contents,
    Finding,
    by_state,
    more_than_chance,
    smallest_gap,
)
from s2r_torch.errors import ObservationError
from s2r_torch.graph import StateGraph, after

DRIFT = 1e-3  # level of the test for drift, over all sensors
DIGITS = 11  # binary ones, of a number in half precision
LEAST = 20  # readings of a state, or episodes of a sequence, for rules that compare many


def examine(
    recording: Recording, graph: StateGraph, estimator: DensityEstimator, names: tuple[str, ...]
) -> tuple[Finding, ...]:
    """What must be known of a recording before it is relied on.

    Args:
        recording: the episodes of one world.
        graph: the state graph.
        estimator: of densities: its grid, and what it allows.
        names: of the sensors.

    Returns:
        The findings; none for a good log, but for the rates above.

    Raises:
        RecordingError: episodes that are there twice.
        ObservationError: a value that recurs off the grid, too many readings off it, or a sensor that is stuck or
            copies another.

    Cost:
        No episodes. O(N H d log N).
    """
    if not len(recording):
        return ()
    contents = Contents.of(recording, graph, names)
    if not estimator.allow_constant:
        require_different_episodes(contents)
    outside = off_grid(contents, graph, estimator)
    if estimator.allow_constant:
        return tuple(outside)
    require_varying(contents, graph)
    coarse = rounded(contents)
    fine = [] if coarse else [*recurring(contents), *repeated(contents)]
    return (*outside, *coarse, *fine, *copied(contents), *drifting(contents), *shifted(contents, graph))


# -- what is refused --------------------------------------------------------------------------------------------------


def off_grid(contents: Contents, graph: StateGraph, estimator: DensityEstimator) -> list[Finding]:
    """Readings that no density sees: refused where a value recurs or they are too many, else told."""
    low, high = np.asarray(estimator.grid.low), np.asarray(estimator.grid.high)
    with np.errstate(invalid="ignore"):
        off = (contents.x < low) | (contents.x > high)  # [N, H, d]
    if not off.any():
        return []
    i, step, j = np.argwhere(off)[0].tolist()
    name, value = contents.names[j], contents.x[i, step, j]
    where, box = f"{value:g} at {contents.at(i, step)}", f"{low[j]:g} .. {high[j]:g}"
    sensor = contents.x[..., j]
    counts = dict(zip(*np.unique(sensor[off[..., j]], return_counts=True), strict=True))
    recurs = max(counts, key=lambda value: counts[value])
    possible = (high[j : j + 1] - low[j]) / max(smallest_gap(sensor), FUZZ)
    if counts[recurs] > 1 and more_than_chance(counts[recurs] - 1, off.sum() ** 2 / 2, possible):
        i, step = np.argwhere(sensor == recurs)[0].tolist()
        raise ObservationError(
            expected=f"readings of {name!r} on the grid, {box}",
            got=f"{recurs:g}, {counts[recurs]} times exactly, the first at {contents.at(i, step)}",
            cause="a value that stands for none (a fault, a time-out, the end of a range); leave out these episodes",
        )
    for s, rows, steps, _ in contents.readings():
        those = off[rows, steps].any(1)
        if bool(more_than_a_share(torch.tensor(those.sum()), len(those), estimator.off_grid_limit)):
            raise ObservationError(
                expected=f"at most {estimator.off_grid_limit:.2%} of a state's samples off the grid",
                got=f"{those.mean():.2%} {after(graph.paths[s])}; the first of all is {name!r} = {where}, "
                f"the grid's is {box}",
                cause=off_range(contents.x.reshape(-1, len(contents.names)), j, [*low], [*high], contents.names),
            )
    return [Finding(f"{int(off.any(-1).sum())} readings lie off the grid, the first {name!r} = {where}", False)]


def require_varying(contents: Contents, graph: StateGraph) -> None:
    """Raises ObservationError for a sensor that shows one value in a state, or always what another one shows."""
    for s, i, step, x in contents.readings():
        if len(x) < 2:
            continue
        stuck = np.flatnonzero(np.ptp(x, 0) == 0)
        if len(stuck):
            j = int(stuck[0])
            raise ObservationError(
                expected=f"readings of {contents.names[j]!r} that vary {after(graph.paths[s])}",
                got=f"{x[0, j]:g} {len(x)} times, from {contents.at(i[0], step[0])} on",
                cause="a stuck sensor, or one without noise, which has no density",
            )
    seen = contents.x[contents.states >= 0]
    for j, name in enumerate(contents.names):
        for k in range(j):
            if len(seen) > 1 and (seen[:, j] == seen[:, k]).all():
                raise ObservationError(
                    expected="sensors that show different things",
                    got=f"{name!r} equal to {contents.names[k]!r} in every reading",
                    cause="one column copied into another",
                )


# -- what is told -----------------------------------------------------------------------------------------------------


def rounded(contents: Contents) -> list[Finding]:
    """Sensors whose readings take few different values, or have few digits."""
    found = []
    for j, name in enumerate(contents.names):
        seen = contents.x[..., j][contents.states >= 0]
        few_digits = len(seen) >= LEAST and not (np.frexp(seen)[0] * 2**DIGITS % 1).any()
        if few_digits and np.ptp(seen) > 2**DIGITS * smallest_gap(seen):  # else a converter of as many bits
            text = f"{name!r} has at most {DIGITS} binary digits, as in half precision (float16): rounded?"
            found.append(Finding(text, True))
            continue
        per_state = [(len(np.unique(x[:, j])), len(x)) for _, _, _, x in contents.readings() if len(x) >= LEAST]
        coarse = [(m, n) for m, n in per_state if n >= ROUNDED * m]
        if per_state and len(coarse) > len(per_state) / 2:
            m, n = min(coarse)
            found.append(
                Finding(f"{name!r} takes only {m} different values in {n} readings of a state: rounded?", True)
            )
    return found


def recurring(contents: Contents) -> list[Finding]:
    """Values on the grid that recur exactly."""
    found = []
    for j, name in enumerate(contents.names):
        seen = contents.x[..., j][contents.states >= 0]
        values, counts = np.unique(seen, return_counts=True)
        for value, count in zip(values[counts > 2].tolist(), counts[counts > 2].tolist(), strict=True):
            expected = PEAK * len(seen) / contents.values[j]
            if len(values) * scipy.special.pdtrc(count - 1, min(expected, count)) < CHANCE:
                end = " (its largest)" if value == values[-1] else " (its smallest)" if value == values[0] else ""
                i, step = np.argwhere(contents.x[..., j] == value)[0].tolist()
                found.append(
                    Finding(
                        f"{name!r} is {value:g}{end} {count} times exactly, first at {contents.at(i, step)}: a value "
                        "that stands for none, or a range that was clipped?",
                        False,
                    )
                )
    return found[:6]


def repeated(contents: Contents) -> list[Finding]:
    """Readings equal to those of the step before: a sensor that was not read again, or one that is a step late."""
    found = []
    same = contents.x[:, 1:] == contents.x[:, :-1]  # [N, H - 1, d]
    ended = same.all(-1) & (np.cumsum(~same.all(-1)[:, ::-1], 1)[:, ::-1] == 0) & (contents.states[:, 1:] >= 0)
    if more_than_chance(int(ended[:, :-1].any(1).sum()), len(same), contents.values):
        i, h = np.argwhere(ended)[0].tolist()
        count = int(ended.any(1).sum())
        found.append(
            Finding(
                f"{count} episodes repeat one reading to their end, first at {contents.at(i, h + 1)}: ended early?",
                False,
            )
        )
    same &= ~ended[..., None]
    for j, name in enumerate(contents.names):
        for h in range(same.shape[1]):
            count, seen = int(same[:, h, j].sum()), int((contents.states[:, h + 1] >= 0).sum())
            if more_than_chance(count, seen, contents.values[j : j + 1]):
                i = int(np.flatnonzero(same[:, h, j])[0])
                found.append(
                    Finding(
                        f"{name!r} at step {h + 1} repeats step {h} exactly in {count} of {seen} episodes, first at "
                        f"{contents.at(i, h + 1)}: readings that are a step late, or a sensor that was not read again?",
                        True,
                    )
                )
    return found[:6]


def drifting(contents: Contents) -> list[Finding]:
    """Sensors whose readings depend on when they were taken: a recalibration, another session, a slow drift.

    Every reading is ranked within its state, an episode's score is the mean of its ranks (or of their distances from
    the middle, for a change of noise), and scores are correlated with the order of episodes along the same actions.
    """
    N, H, d = contents.x.shape
    score = np.full((2, N, H, d), np.nan)
    for _, i, step, x in contents.readings():
        ranks = x.argsort(0, kind="stable").argsort(0, kind="stable") / max(1, len(x) - 1) - 0.5
        score[:, i, step] = np.stack([ranks, np.abs(ranks)])
    episodes = np.nanmean(score, 2)  # [2, N, d]
    whole = np.flatnonzero(contents.recording.length.numpy() == H)
    _, sequence = np.unique(contents.recording.actions.numpy()[whole], axis=0, return_inverse=True)
    above, variance = np.zeros((2, d)), np.zeros((2, d))
    for k in range(sequence.max(initial=-1) + 1):
        rows = whole[sequence.ravel() == k]
        if len(rows) < LEAST:
            continue
        order = np.arange(len(rows)) - (len(rows) - 1) / 2
        centred = episodes[:, rows] - episodes[:, rows].mean(1, keepdims=True)
        above += np.einsum("cnd,n->cd", centred, order)
        variance += (centred**2).sum(1) * (order**2).sum() / (len(rows) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * scipy.special.ndtr(-np.abs(above) / np.sqrt(variance))
    words = ("readings", "noise")
    return [
        Finding(
            f"first and second half of the episodes differ ({contents.names[j]!r}: its {words[c]} change with time, "
            f"p = {p[c, j]:.1g}): recalibrated, or two sessions in one file?",
            True,
        )
        for j in range(d)
        for c in range(2)
        if p[c, j] < DRIFT / (2 * d)
    ][:6]


def shifted(contents: Contents, graph: StateGraph) -> list[Finding]:
    """Whether readings fit the states better when actions or readings are moved by one row."""
    N, H, d = contents.x.shape
    whole = np.flatnonzero(contents.recording.length.numpy() == H)
    if H < 3 or len(whole) < LEAST:
        return []
    actions, x, states = contents.recording.actions[whole], contents.x[whole], contents.states[whole]
    later = graph.visited(torch.cat([actions[:, 1:], actions[:, -1:]], 1)).numpy()
    moved = {
        "actions are read one row later": (states[:, :-1], later[:, :-1], x[:, :-1]),
        "readings are read one row later": (states[:, 1:], states[:, :-1], x[:, 1:]),
        "readings are read one row earlier": (states[:, :-1], states[:, 1:], x[:, :-1]),
    }
    found = []
    for words, (as_logged, otherwise, readings) in moved.items():
        known = (as_logged >= 0) & (otherwise >= 0)  # and not outside of a pruned graph
        if 2 * known.sum() < known.size:
            continue
        spread, less = (_spread(np.where(known, states, -1), readings) for states in (as_logged, otherwise))
        if less < spread / 2:
            found.append(
                Finding(f"readings of a state lie {math.sqrt(spread / less):.1f} times as close when {words}", True)
            )
    return found


def _spread(states: np.ndarray, x: np.ndarray) -> float:
    """Mean squared distance of readings [N, h, d] from the mean of their state, in units of the sensors' variances."""
    x = x.reshape(-1, x.shape[-1])
    scale, total = x.var(0), np.zeros(x.shape[-1])
    for _, here in by_state(states):
        rows = x[here]
        total += len(rows) / max(1, len(rows) - 1) * ((rows - rows.mean(0)) ** 2).sum(0)
    return float((total / np.where(scale > 0, scale, 1)).sum() / (states >= 0).sum())
