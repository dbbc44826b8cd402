"""What every format of tables gives: names, the number of rows, and columns that are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from s2r_torch.errors import RecordingError
from s2r_torch.text import printable


@dataclass(frozen=True, eq=False)
class Columns:
    """One open table.

    Args:
        all_names: of its columns, in the order of the file; empty ones and repetitions included.
        rows: how many.
        load: name -> the column `[rows]`, still text where the format is, or `[rows, ...]` where a cell holds an array;
            RecordingError where it is damaged.
        lines: `[rows]` the line of each row, for formats that have lines.
    """

    all_names: tuple[str, ...]
    rows: int
    load: Callable[[str], np.ndarray]
    lines: np.ndarray | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that there are, each once."""
        return tuple(dict.fromkeys(name for name in self.all_names if name))

    @property
    def unit(self) -> str:
        return "row" if self.lines is None else "line"


def damaged(
    path: Path | str,
    error: object,
    cause: str = "a copy that was cut short, or another kind of file",
    *,
    column: str | None = None,
) -> RecordingError:
    """The error for a file that cannot be read at all, or not in this column."""
    where = "" if column is None else f" in column {printable(repr(column))}"
    what = (printable(error) or type(error).__name__) + where
    return RecordingError(
        expected=f"a readable {Path(path).suffix} file", got=f"{what} in {printable(path)}", cause=cause
    )


def one_per_row(column: np.ndarray, name: str, path: Path) -> np.ndarray:
    """A column of shape [rows], or [rows, 1], as [rows]; RecordingError for any other."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise RecordingError(
            expected=f"one number per row in column {name!r} of {printable(path)}",
            got=f"an array of shape {list(column.shape)}",
            cause="one array per column is wanted, named as in a CSV file",
        )
    return column
