"""Tables in Parquet files. Ours have a checksum per page, so that no flipped bit is another reading.

Files of other programs have none, as a rule: `pyarrow.parquet.write_table(..., write_page_checksum=True)` writes them,
and they are compared here. Without them, a flipped bit of a number is another reading, unnoticed. The least and largest
value of a column, which files state, would tell some of them; but pyarrow 26 ends the process where these are damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from s2r_torch.deployment.recording.columns import Columns, damaged
from s2r_torch.errors import SettingError


def require() -> None:
    """Raises SettingError unless pyarrow, an optional extra, is there."""
    _pyarrow()


def read(path: Path) -> Columns:
    """The columns of a file."""
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names, rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error
    if rows < 0:
        raise damaged(path, f"{rows} rows")
    return Columns(names, rows, lambda name: _column(path, name))


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a table; NaN becomes null."""
    pyarrow, parquet = _pyarrow()
    table = pyarrow.table({name: _array(pyarrow, column) for name, column in columns.items()})
    parquet.write_table(table, path, write_page_checksum=True)


def _column(path: Path, name: str) -> np.ndarray:
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            chunks = file.read(columns=[name], use_threads=False)[name]
            if pyarrow.types.is_fixed_size_list(chunks.type) and not chunks.null_count:
                flat = chunks.combine_chunks().flatten().to_numpy(zero_copy_only=False)
                return flat.reshape(len(chunks), chunks.type.list_size)
            column = chunks.to_numpy(zero_copy_only=False)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(path, str(error).split("\n")[0], column=name) from error
    lists = column.dtype == object and len(column) and all(isinstance(cell, np.ndarray) for cell in column)
    return np.stack(column) if lists and len({cell.shape for cell in column}) == 1 else column


def _array(pyarrow, column: np.ndarray):
    """A column, [rows] or [rows, k], as Arrow has it; NaN becomes null."""
    flat = pyarrow.array(column.ravel(), from_pandas=True)
    return flat if column.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, column.shape[1])


def _pyarrow():
    """pyarrow and its Parquet module."""
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
