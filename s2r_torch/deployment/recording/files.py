"""Recorded episodes as tables: one row per step, columns `episode`, `step`, `action` and one per sensor.

    episode,step,action,row,column
    0,0,1,0.31,0.12
    0,1,0,1.22,0.18
    ...

An episode is any label; its rows stand together, steps 0 .. H-1 in order. `action` is the one taken after the reading
(after the last one it may be empty). Sensors have the schema's names, so that columns in another order are no mistake;
`x_1 .. x_d` are accepted, too, and in NPZ and Parquet files one column `x` whose cells are arrays of all d numbers,
such as images. Other columns, rewards above all, are not looked at. An episode without any reading is
one that is still to be run, as in a template. Every error names the row. What good-looking readings may hide is
looked for later (`contents.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from s2r_torch.base import ProblemSpec
from s2r_torch.coverage import Walks
from s2r_torch.defaults import plain_torch
from s2r_torch.deployment.ranges import within
from s2r_torch.deployment.recording.causes import off_range
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.tables import Table, read_table, write_table
from s2r_torch.errors import RecordingError, SettingError
from s2r_torch.files.whole import real_path
from s2r_torch.given import taking
from s2r_torch.plain import require_count
from s2r_torch.text import printable

KEYS = ("episode", "step", "action")
ARRAYS = "x"  # a column of arrays in place of one column per sensor
NONE = (-1, 255, 65535, -128, -32768, -999, -9999)  # what stands for no number where a type has none
MANY = 22  # sensors; files that can hold arrays get one column of them where there are more


@taking()
@plain_torch()
def read_recording(
    path: Path | str, spec: ProblemSpec, *, short_episodes: bool = False, empty: bool = False
) -> Recording:
    """Reads episodes from a CSV, NPZ or Parquet file and checks every row.

    Args:
        path: the file.
        spec: sizes, sensor names and their ranges.
        short_episodes: accept episodes that were interrupted; the readings that they have are used.
        empty: accept a file without any reading.

    Returns:
        The episodes that have readings, in the order of the file.

    Raises:
        RecordingError: whatever is wrong with the file, with the row and the likely cause.
        SettingError: an unknown kind of file.
    """
    table = read_table(path)
    names = sensor_columns(table, spec)
    if len(table) == 0 and empty:
        return Recording.empty(spec)
    if len(table) == 0:
        raise RecordingError(
            expected=f"rows in {printable(path)}", got="a header only", cause="a logger that never wrote"
        )
    starts = _episode_starts(table, spec)
    x = _readings(table, names, spec)
    names = list(spec.obs_names) if names == [ARRAYS] else names
    length = _lengths(table, starts, x, spec, short_episodes)
    if not length.any() and empty:
        return Recording.empty(spec)
    if not length.any():
        raise RecordingError(expected="readings", got="none in any row", cause="a template that was not filled in")
    _require_finite(table, names, x, _among_first(table, starts, length))
    actions = _actions(table, starts, length, spec)
    _require_in_range(table, names, x, spec)
    return _assemble(table, starts, length, actions, x, spec)


@taking()
@plain_torch()
def write_recording(path: Path | str, recording: Recording, spec: ProblemSpec) -> None:
    """Writes episodes so that `read_recording` gives them back, bit for bit; the format follows the file's ending."""
    recording.require_of(spec)
    _write(path, columns_of(recording, spec), spec)


def columns_of(recording: Recording, spec: ProblemSpec, first: int = 0) -> dict[str, np.ndarray]:
    """The rows of episodes as columns `[rows]`, in the order of a file of ours; episodes are counted from `first`."""
    N, H = recording.x.shape[:2]
    seen = (torch.arange(H) < recording.length[:, None]).flatten()
    action = torch.cat([recording.actions.double(), torch.full((N, 1), torch.nan, dtype=torch.float64)], 1)
    x = recording.x.double().flatten(0, 1)[seen].numpy()
    columns = {
        "episode": torch.arange(first, first + N).repeat_interleave(H)[seen].numpy(),
        "step": torch.arange(H).repeat(N)[seen].numpy(),
        "action": action.flatten()[seen].numpy(),
    }
    return columns | {name: x[:, j] for j, name in enumerate(spec.obs_names)}


@taking()
@plain_torch()
def write_template(path: Path | str, walks: Walks, spec: ProblemSpec) -> None:
    """Writes these episodes, (actions, how many) each, with empty readings to be filled in.

    Raises:
        RecordingError: the file is there and not an empty form (`require_empty_form`).
    """
    require_empty_form(path, spec)
    walks = tuple(walks)
    if not all(isinstance(walk, tuple | list) and len(walk) == 2 for walk in walks):
        cause = "paths without numbers: ((0, 1, 1), 100)"
        raise SettingError(expected="walks: (actions, how many episodes) each", got=printable(walks, 80), cause=cause)
    rows = [actions for actions, count in walks for _ in range(require_count("episodes of a walk", count, least=0))]
    N, H = len(rows), spec.horizon
    action = np.full((N, H), np.nan)
    action[:, : H - 1] = np.asarray(rows, dtype=np.float64).reshape(N, H - 1)
    columns = {
        "episode": np.repeat(np.arange(N), H),
        "step": np.tile(np.arange(H), N),
        "action": action.ravel(),
    }
    _write(path, columns | {name: np.full(N * H, np.nan) for name in spec.obs_names}, spec)


def require_empty_form(path: Path | str, spec: ProblemSpec) -> None:
    """Raises RecordingError unless a template may be written there: over nothing, or over a form without readings."""
    if not real_path(path).exists():
        return
    try:
        table = read_table(path)
        names = sensor_columns(table, spec)
        filled = ~np.isnan(_readings(table, names, spec)).all(1)
        labels = table.labels("episode")
    except RecordingError as error:
        raise RecordingError(
            expected=f"no file {printable(path)}, or an empty form, to write a template",
            got=f"another file ({error.got})",
            cause="a file that is to be kept; give the template another name",
        ) from error
    others = sorted(set(table.names) - {*KEYS, *names})
    if filled.any() or others:
        what = f"{len(set(labels[filled]))} episodes with readings" if filled.any() else f"columns {_listed(others)}"
        raise RecordingError(
            expected=f"no file {printable(path)}, or an empty form, to write a template",
            got=f"{printable(Path(path).name)} holds {what}",
            cause="a form that was filled in; world=recorded world.file=... reads it",
        )


def sensor_columns(table: Table, spec: ProblemSpec) -> list[str]:
    """The columns of the d sensors, in the schema's order; one alone where it holds arrays."""
    if ARRAYS in table.names and ARRAYS not in spec.obs_names and not set(spec.obs_names) & set(table.names):
        table.require_different((*KEYS, ARRAYS))
        missing = [name for name in KEYS if name not in table.names]
        if not missing:
            return [ARRAYS]
    generic = [f"x_{j + 1}" for j in range(spec.obs_dim + 1)]
    named = list(spec.obs_names)
    names = generic[:-1] if not set(named) & set(table.names) and generic[0] in table.names else named
    table.require_different((*KEYS, *names))
    missing = [name for name in (*KEYS, *names) if name not in table.names]
    if missing:
        raise RecordingError(
            expected=f"columns {_listed([*KEYS, *names])} in {printable(table.path)}",
            got=f"{_listed(table.names) or 'none'} (missing: {_listed(missing)})",
            cause="a header that is missing or misspelt, or sensors of another machine",
        )
    if names == generic[:-1] and generic[-1] in table.names:
        raise RecordingError(
            expected=f"{spec.obs_dim} sensors, {', '.join(names)}",
            got=f"also {generic[-1]} in {printable(table.path)}",
            cause="readings of another dimension than the policy was trained for",
        )
    return names


def _readings(table: Table, names: list[str], spec: ProblemSpec) -> np.ndarray:
    """Readings [rows, d], NaN where there are none."""
    x = table.arrays(ARRAYS, spec.obs_dim) if names == [ARRAYS] else np.stack([table.numbers(n) for n in names], 1)
    return within(torch.from_numpy(x), spec).numpy()


def _write(path: Path | str, columns: dict[str, np.ndarray], spec: ProblemSpec) -> None:
    """Writes rows; those of many sensors as arrays, where the format has them."""
    if spec.obs_dim > MANY and Path(path).suffix.lower() != ".csv":
        arrays = np.stack([columns.pop(name) for name in spec.obs_names], 1)
        columns[ARRAYS] = arrays
    write_table(path, columns)


def _whole(table: Table, name: str, values: np.ndarray, largest: int, what: str) -> None:
    """Raises unless the values that are not NaN are integers in 0 .. largest."""
    known = np.nan_to_num(values, nan=0.0)
    bad = np.flatnonzero((known != np.round(known)) | (known < 0) | (known > largest))
    if len(bad):
        odd = bool((values[bad] == values[bad[0]]).all()) and values[bad[0]] in NONE
        none = "a number that stands for none: leave it empty, or any action at the last step; or " if odd else ""
        raise RecordingError(
            expected=f"{what} in 0 .. {largest} at {table.at(int(bad[0]))}",
            got=_exactly(float(values[bad[0]])),
            cause=f"{none}another meaning of {name!r}, counted from 1, or shifted columns",
        )


def _exactly(value: float) -> str:
    """A number as it is, and short where that says the same: 0.9999999 is not 1."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _episode_starts(table: Table, spec: ProblemSpec) -> np.ndarray:
    """The first row of every episode, after checking that its steps are 0, 1, ... and all its rows together."""
    step, labels = table.numbers("step"), table.labels("episode")
    empty = np.flatnonzero(np.isnan(step))
    if len(empty):
        raise RecordingError(
            expected=f"a step at {table.at(int(empty[0]))}", got="nothing", cause="a row that was not filled in"
        )
    _whole(table, "step", step, spec.horizon - 1, "an integer step")
    first = np.r_[True, labels[1:] != labels[:-1]]
    expected = np.where(first, 0, np.r_[0, step[:-1] + 1])
    starts = np.flatnonzero(first)
    again = starts[np.setdiff1d(np.arange(len(starts)), np.unique(labels[starts], return_index=True)[1])]
    wrong = np.flatnonzero(step != expected)
    row = min([*again[:1].tolist(), *wrong[:1].tolist()], default=None)
    if row is not None:
        raise _disorder(table, labels, step, row, seen_before=row in again)
    return starts


def _disorder(table: Table, labels: np.ndarray, step: np.ndarray, row: int, seen_before: bool) -> RecordingError:
    """What is wrong with the order of rows at a row."""
    label, here = labels[row], int(step[row])
    if seen_before:
        before = np.flatnonzero((labels[:row] == label) & (step[:row] == here))
        return RecordingError(
            expected=f"all rows of episode {label} together, steps in order",
            got=f"episode {label}, step {here} at {table.at(row)}, after other episodes",
            cause=f"a duplicate of {table.at(int(before[0]))}" if len(before) else "rows in mixed order; sort them",
        )
    if row == 0 or labels[row - 1] != label:
        return RecordingError(
            expected=f"episode {label} to begin with step 0",
            got=f"step {here} at {table.at(row)}",
            cause="its first rows are missing, or rows in mixed order",
        )
    last = int(step[row - 1])
    cause = "steps were skipped" if here > last else "rows in mixed order, or two episodes of one name"
    return RecordingError(
        expected=f"step {last + 1} of episode {label} at {table.at(row)}",
        got=f"step {here}",
        cause="a duplicated row" if here == last else cause,
    )


def _lengths(table: Table, starts: np.ndarray, x: np.ndarray, spec: ProblemSpec, short_episodes: bool) -> np.ndarray:
    """How many readings every episode has, 0 for those still to be run; raises where an episode is too short."""
    empty = np.isnan(x).all(1)
    length = np.empty(len(starts), dtype=np.int64)
    for i, (start, end) in enumerate(zip(starts.tolist(), _ends(table, starts).tolist(), strict=True)):
        filled = np.flatnonzero(~empty[start:end])
        length[i] = 0 if not len(filled) else filled[-1] + 1 if short_episodes else end - start
        if 0 < length[i] < spec.horizon and not short_episodes:
            raise RecordingError(
                expected=f"{spec.horizon} steps in every episode",
                got=f"{length[i]} in one that ends at {table.at(end - 1)}",
                cause=(
                    "the file was cut short, or is still being written"
                    if end == len(table)
                    else "an episode that was interrupted; short_episodes=true uses the readings that it has"
                ),
            )
    return length


def _ends(table: Table, starts: np.ndarray) -> np.ndarray:
    """One beyond the last row of every episode."""
    return np.r_[starts[1:], len(table)]


def _among_first(table: Table, starts: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Which rows are among the first count[i] of their episode i: `[rows]` bool."""
    sizes = _ends(table, starts) - starts
    return np.arange(len(table)) - np.repeat(starts, sizes) < np.repeat(count, sizes)


def _require_finite(table: Table, names: list[str], x: np.ndarray, needed: np.ndarray) -> None:
    bad = np.flatnonzero(needed & ~np.isfinite(x).all(1))
    if len(bad):
        row = int(bad[0])
        j = int(np.flatnonzero(~np.isfinite(x[row]))[0])
        raise RecordingError(
            expected=f"a finite reading in column {names[j]!r} at {table.at(row)}",
            got=f"{x[row, j]}; {len(bad)} of {int(needed.sum())} rows have one that is not",
            cause="a sensor that dropped out, or a cell that was not filled in; leave out the whole episode",
        )


def _actions(table: Table, starts: np.ndarray, length: np.ndarray, spec: ProblemSpec) -> np.ndarray:
    """The actions `[rows]`, -1 where none is needed."""
    action = table.numbers("action")
    _whole(table, "action", action, spec.num_actions - 1, "an action")
    needed = _among_first(table, starts, length - 1)
    bad = np.flatnonzero(needed & np.isnan(action))
    if len(bad):
        raise RecordingError(
            expected=f"the action taken after the reading at {table.at(int(bad[0]))}",
            got="nothing",
            cause="a row that was not filled in; without it, nobody knows which state comes next",
        )
    return np.where(needed, action, -1).astype(np.int64)


def _require_in_range(table: Table, names: list[str], x: np.ndarray, spec: ProblemSpec) -> None:
    """Raises when most readings of a sensor are off its range; a few outliers are judged with the densities."""
    with np.errstate(invalid="ignore"):
        off = (x < np.asarray(spec.low)) | (x > np.asarray(spec.high))
    share = off.sum(0) / np.isfinite(x).sum(0)
    if share.max() > 0.5:
        j = int(share.argmax())
        row = int(np.flatnonzero(off[:, j])[0])
        raise RecordingError(
            expected=f"readings of {names[j]!r} in {spec.low[j]:g} .. {spec.high[j]:g}",
            got=f"{share[j]:.0%} of them outside, the first {x[row, j]:g} at {table.at(row)}",
            cause=off_range(x, j, spec.low, spec.high, names),
        )


def _assemble(
    table: Table, starts: np.ndarray, length: np.ndarray, actions: np.ndarray, x: np.ndarray, spec: ProblemSpec
) -> Recording:
    H = spec.horizon
    kept = np.flatnonzero(length)
    rows = starts[kept, None] + np.arange(H)
    seen = np.arange(H) < length[kept, None]
    rows = np.where(seen, rows, 0)
    readings = np.where(seen[..., None], x[rows], np.nan)
    taken = np.where(seen[:, : H - 1], actions[rows[:, : H - 1]], -1)
    return Recording(
        actions=torch.from_numpy(np.maximum(taken, 0)),
        x=torch.from_numpy(readings),
        length=torch.from_numpy(length[kept]),
        places=torch.from_numpy(np.where(seen, table.places[rows], 0)),
        unit=table.source.unit,
    )


def _listed(names: Sequence[str], most: int = 12) -> str:
    return printable(", ".join(names[:most]) + (", ..." if len(names) > most else ""))
