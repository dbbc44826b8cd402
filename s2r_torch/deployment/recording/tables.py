"""Tables of named columns in CSV, NPZ or Parquet files, with the place of every row for error messages.

Nothing in a file is executed: NPZ is read without pickle. Files are written under a temporary name and renamed.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from s2r_torch.errors import RecordingError, SettingError
from s2r_torch.files.whole import replacing


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length; those of a CSV file are still text.

    Args:
        columns: `[rows]` each.
        unit: what a row is called, "line" or "row".
        places: `[rows]` the number of each row, as an editor counts.
    """

    columns: dict[str, np.ndarray]
    unit: str
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def at(self, row: int) -> str:
        """Where a row is, such as "line 17"."""
        return f"{self.unit} {self.places[row]}"

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64 `[rows]`, NaN where it is empty; RecordingError where it is not a number."""
        values = self.columns[name]
        try:
            if values.dtype.kind in "OU":
                values = ["nan" if value is None or value == "" else value for value in values]
            return np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            bad = next(i for i, value in enumerate(values) if not _is_number(value))
            raise RecordingError(
                expected=f"a number in column {name!r} at {self.at(bad)}",
                got=repr(values[bad]),
                cause="text among the readings, a decimal comma, or shifted columns",
            ) from None

    def labels(self, name: str) -> np.ndarray:
        """A column as text `[rows]`; RecordingError where it is empty."""
        values = np.asarray([_label(value) for value in self.columns[name]])
        empty = np.flatnonzero(values == "")
        if len(empty):
            raise RecordingError(
                expected=f"a name or number in column {name!r} at {self.at(int(empty[0]))}",
                got="nothing",
                cause="a row that was not filled in",
            )
        return values


def read_table(path: Path | str) -> Table:
    """Reads a table; the file's ending says its format.

    Raises:
        RecordingError: no such file, an empty or damaged one, or columns of different lengths.
        SettingError: an unknown ending, or Parquet without pyarrow.
    """
    path = Path(path)
    read, _ = _format(path)
    if not path.is_file():
        raise RecordingError(expected="a file of recorded episodes", got=f"no file {path}", cause="a typo in the path")
    if path.stat().st_size == 0:
        raise RecordingError(expected=f"rows in {path}", got="an empty file", cause="a logger that never wrote")
    return read(path)


def write_table(path: Path | str, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a table, atomically: NaN becomes an empty cell in CSV.

    Raises:
        SettingError: an unknown ending, or Parquet without pyarrow.
    """
    path = Path(path)
    _, write = _format(path)
    with replacing(path) as partial:
        write(partial, columns)


def check_ending(path: Path | str) -> None:
    """Raises SettingError unless tables can be read from and written to a file with this ending."""
    _format(Path(path))


def _format(path: Path) -> tuple[Callable[[Path], Table], Callable[[Path, Mapping], None]]:
    if path.suffix.lower() not in FORMATS:
        raise SettingError(
            expected=f"a file that ends in {', '.join(FORMATS)}", got=str(path), cause="another kind of file"
        )
    read, write = FORMATS[path.suffix.lower()]
    if path.suffix.lower() == ".parquet":
        _pyarrow()
    return read, write


def _damaged(path: Path, error: object, cause: str = "a copy that was cut short, or another kind of file"):
    return RecordingError(expected=f"a readable {path.suffix} file", got=f"{error} in {path}", cause=cause)


# -- CSV --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Table:
    rows, places = [], []
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        whole = stream.read() in (b"\n", b"\r")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            reader = csv.reader(file, strict=True)
            for row in reader:
                if any(map(str.strip, row)):
                    rows.append(row), places.append(reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if not rows:
        raise RecordingError(expected=f"rows in {path}", got="blank lines only", cause="a logger that never wrote")
    header = [name.strip() for name in rows[0]]
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise RecordingError(
            expected="columns separated by commas",
            got=f"{header[0][:60]!r} at line {places[0]}",
            cause="a spreadsheet that separates by semicolons or tabs",
        )
    _require_different(header, path)
    if not whole:
        raise RecordingError(
            expected=f"a line break at the end of line {places[-1]}",
            got="the end of the file",
            cause="the file was cut short, or is still being written; if that row is whole, add the line break",
        )
    for row, place in zip(rows[1:], places[1:], strict=True):
        if len(row) != len(header):
            cut = place == places[-1] and len(row) < len(header)
            raise RecordingError(
                expected=f"{len(header)} columns at line {place}",
                got=f"{len(row)}",
                cause="the file was cut short, or is still being written" if cut else "a stray comma, or a lost one",
            )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(header)
    texts = (np.asarray([cell.strip() for cell in column], dtype=object) for column in columns)
    return Table(dict(zip(header, texts, strict=True)), "line", np.asarray(places[1:], dtype=np.int64))


def _write_csv(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(map(_cell, column.tolist()) for column in columns.values()), strict=True))


def _cell(value: object) -> str:
    """Shortest text that reads back as the same number; empty for NaN."""
    return "" if value != value else repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _label(value: object) -> str:
    """An episode's name: "7" for 7, "7" and 7.0 alike."""
    if value is None or value != value:
        return ""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _is_number(value: object) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _require_different(names: list[str], path: Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecordingError(
            expected=f"columns with different names in {path}",
            got=f"{twice[0]!r} twice",
            cause="two exports joined side by side",
        )


# -- NPZ and Parquet --------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> Table:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from error
    for name, column in columns.items():
        if column.ndim != 1:
            raise RecordingError(
                expected=f"one number per row in column {name!r} of {path}",
                got=f"an array of shape {list(column.shape)}",
                cause="one array per column is wanted, named as in a CSV file",
            )
    return _numbered(columns, path)


def _write_npz(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **columns)


def _read_parquet(path: Path) -> Table:
    pyarrow, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, str(error).split("\n")[0]) from error
    _require_different(table.column_names, path)
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    return _numbered(columns, path)


def _write_parquet(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    pyarrow, parquet = _pyarrow()
    parquet.write_table(pyarrow.table({name: pyarrow.array(c, from_pandas=True) for name, c in columns.items()}), path)


def _pyarrow():
    """pyarrow and its Parquet module, an optional extra."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise SettingError(
            expected="pyarrow, to read and write Parquet files",
            got=str(error),
            cause="an optional extra: pip install 's2r_torch[parquet]', or use CSV or NPZ",
        ) from error
    return pyarrow, parquet


def _numbered(columns: dict[str, np.ndarray], path: Path) -> Table:
    """Columns whose rows are counted from 1."""
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise RecordingError(
            expected=f"columns of one length in {path}", got=str(sizes), cause="columns of different recordings"
        )
    rows = next(iter(sizes.values()), 0)
    return Table(columns, "row", np.arange(1, rows + 1))


FORMATS = {
    ".csv": (_read_csv, _write_csv),
    ".npz": (_read_npz, _write_npz),
    ".parquet": (_read_parquet, _write_parquet),
}
