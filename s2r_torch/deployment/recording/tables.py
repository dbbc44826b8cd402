"""Tables of named columns in CSV, NPZ or Parquet files, with the place of every row for error messages.

Nothing in a file is executed, and only columns that are asked for are read. Files are written whole (`files.whole`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from s2r_torch.deployment.recording import csv_files, npz_files, parquet_files
from s2r_torch.deployment.recording.columns import Columns, damaged, one_per_row
from s2r_torch.deployment.recording.numbers import numbers, why_no_number
from s2r_torch.errors import RecordingError, SettingError
from s2r_torch.files.whole import real_path, replacing
from s2r_torch.text import printable

FORMATS = {".csv": csv_files, ".npz": npz_files, ".parquet": parquet_files}

# What files that were saved under a wrong name begin with.
FOREIGN = {
    b"PK\x03\x04\x00\x00\x08\x08": (None, "a file of torch.save; numpy.savez writes columns as arrays"),
    b"PK\x03\x04": (".npz", "a zip archive, such as a spreadsheet; export it as CSV"),
    b"PAR1": (".parquet", "a Parquet file; its name must end in .parquet"),
    b"\x93NUMPY": (None, "one array, not an archive of columns: np.savez, not np.save"),
    b"version https://git-lfs": (None, "a Git LFS pointer: git lfs pull"),
    b"<!DOCTYPE": (None, "a web page"),
    b"<html": (None, "a web page"),
    b"{": (None, "a JSON text: one row a step is wanted, with a header of names"),
    b"[": (None, "a JSON text: one row a step is wanted, with a header of names"),
    b"\x1f\x8b": (None, "a gzip file; unpack it"),
    b"ARROW1": (None, "an Arrow (Feather) file; pyarrow.parquet.write_table writes Parquet"),
    b"MATLAB ": (None, "a MATLAB file; export it as CSV"),
    b"\x80\x04\x95": (None, "a pickle; export it as CSV"),
    b"\x89HDF": (None, "an HDF5 file; export it as CSV, NPZ or Parquet"),
}


UNITS = "; or a line of units under the header"
OTHER_ENDINGS = dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".zst", ".7z"), "a packed file; unpack it")
OTHER_ENDINGS |= dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet; export it as CSV")
OTHER_ENDINGS |= dict.fromkeys((".h5", ".hdf5", ".bag", ".mcap", ".mat", ".pkl"), "export it as CSV, NPZ or Parquet")
OTHER_ENDINGS |= dict.fromkeys(FORMATS, "a blank behind the name")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length.

    Args:
        path: the file.
        source: its columns, read when they are asked for.
    """

    path: Path
    source: Columns

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have a name."""
        return self.source.names

    def __len__(self) -> int:
        return self.source.rows

    def place(self, row: int) -> int:
        """The number of a row, as an editor counts."""
        return int(self.places[row])

    @property
    def places(self) -> np.ndarray:
        """The number of every row, `[rows]`."""
        return np.arange(1, len(self) + 1) if self.source.lines is None else self.source.lines

    def at(self, row: int) -> str:
        """Where a row is, such as "line 17"."""
        return f"{self.source.unit} {self.place(row)}"

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64 `[rows]`, NaN where it is empty; RecordingError where it is not a number."""
        return self._numbers(name, one_per_row(self._column(name), name, self.path))

    def arrays(self, name: str, size: int) -> np.ndarray:
        """A column whose cells are arrays of `size` numbers as float64 `[rows, size]`, whatever the arrays' shape."""
        column = self._column(name)
        if column.dtype == object and column.ndim == 1:  # cells of several shapes
            row = next((row for row, cell in enumerate(column) if np.size(cell) != size or cell is None), 0)
            raise RecordingError(
                expected=f"an array of {size} numbers in column {name!r} at {self.at(row)}",
                got=f"one of shape {list(column[row].shape)}" if isinstance(column[row], np.ndarray) else "nothing",
                cause="a row that was not filled in, or images of several sizes",
            )
        if column.ndim < 2 or column[:1].size not in (0, size):
            raise RecordingError(
                expected=f"an array of {size} numbers in every row of column {name!r} of {printable(self.path)}",
                got=f"a column of shape {list(column.shape)}",
                cause="images of another size, or of rows of different sizes",
            )
        return self._numbers(name, column.reshape(-1)).reshape(len(self), size)

    def _numbers(self, name: str, values: np.ndarray) -> np.ndarray:
        """Cells as float64; RecordingError where one is no number."""
        found, bad = numbers(values)
        if bad is not None:
            value, row = values[bad], bad * len(self) // len(values)
            raise RecordingError(
                expected=f"a number in column {name!r} at {self.at(row)}",
                got=printable(repr(value), 60),
                cause=_why(value, name, row),
            )
        return found

    def labels(self, name: str) -> np.ndarray:
        """A column as text `[rows]`; RecordingError where it is empty."""
        values = np.asarray(
            [_label(value) for value in one_per_row(self._column(name), name, self.path).tolist()], dtype=object
        )
        empty = np.flatnonzero(values == "")
        if len(empty):
            raise RecordingError(
                expected=f"a name or number in column {name!r} at {self.at(int(empty[0]))}",
                got="nothing",
                cause="a row that was not filled in" + (UNITS if empty[0] == 0 else ""),
            )
        return values

    def require_different(self, names: Sequence[str]) -> None:
        """Raises RecordingError where one of these columns is there twice."""
        twice = [name for name in names if self.source.all_names.count(name) > 1]
        if twice:
            raise RecordingError(
                expected=f"columns with different names in {printable(self.path)}",
                got=f"{twice[0]!r} twice",
                cause="two exports joined side by side",
            )

    def _column(self, name: str) -> np.ndarray:
        values = self.source.load(name)
        if values.ndim == 0:
            values = one_per_row(values, name, self.path)
        if len(values) != len(self):
            raise RecordingError(
                expected=f"columns of one length in {printable(self.path)}",
                got=f"{len(self)} rows, but {len(values)} in column {name!r}",
                cause="columns of different recordings",
            )
        return values


def read_table(path: Path | str) -> Table:
    """Opens a table; the file's ending says its format.

    Raises:
        RecordingError: no such file, an empty or damaged one, or another kind of file.
        SettingError: an unknown ending, or Parquet without pyarrow.
    """
    form, file = _format(path), real_path(path)
    kind = "a folder" if file.is_dir() else "something that is not a file" if file.exists() else "no file"
    if not file.is_file():
        cause = "a typo in the path" if kind == "no file" else "a file of episodes was meant, not what it is in"
        raise RecordingError(expected="a file of recorded episodes", got=f"{kind} {printable(path)}", cause=cause)
    try:
        with file.open("rb") as stream:
            start = stream.read(32)
        if not start:
            raise RecordingError(
                expected=f"rows in {printable(path)}", got="an empty file", cause="a logger that never wrote"
            )
        for magic, (ending, what) in FOREIGN.items():
            if start.lower().startswith(magic.lower()) and ending != file.suffix.lower():
                raise damaged(path, "another kind of file", what)
        return Table(Path(path), form.read(file))
    except OSError as error:
        raise damaged(path, error, "no permission to read it, or a fault of the disk") from error


def write_table(path: Path | str, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a table, whole or not at all: NaN becomes an empty cell in CSV.

    Raises:
        SettingError: an unknown ending, or Parquet without pyarrow.
        FileError: the file cannot be written.
    """
    form = _format(path)
    with replacing(path) as partial:
        form.write(partial, columns)


def check_ending(path: Path | str) -> None:
    """Raises SettingError unless tables can be read from and written to a file with this ending."""
    _format(path)


def _format(path: Path | str):
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise SettingError(
            expected=f"a file that ends in {', '.join(FORMATS)}",
            got=printable(path),
            cause=OTHER_ENDINGS.get(ending.rstrip(), "another kind of file"),
        )
    FORMATS[ending].require()
    return FORMATS[ending]


def _why(value: object, name: str, row: int) -> str:
    """What a cell that is no number most likely is, where it stands."""
    if isinstance(value, str) and value == name:
        return "a second header, of a file that was appended to another; remove that line"
    known = why_no_number(value)
    return known + UNITS if row == 0 and isinstance(value, str) else known


def _label(value: object) -> str:
    """An episode's name: "7" for 7, "7" and 7.0 alike."""
    if value is None or value != value:
        return ""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
