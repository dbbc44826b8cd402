"""Tables in Parquet files. Ours have a checksum per page and per column, so that no flipped bit is another reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from s2r_torch.deployment.recording.columns import Columns, damaged, one_per_row
from s2r_torch.errors import SettingError

KEY = b"s2r_torch"  # of our checksums among the file's own metadata


def require() -> None:
    """Raises SettingError unless pyarrow, an optional extra, is there."""
    _pyarrow()


def read(path: Path) -> Columns:
    """The columns of a file."""
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        digests = dict(json.loads((schema.metadata or {}).get(KEY, b"{}")))
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error
    return Columns(tuple(schema.names), rows, lambda name: _column(path, name, digests))


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a table; NaN becomes null."""
    pyarrow, parquet = _pyarrow()
    digests = json.dumps({name: _digest(column) for name, column in columns.items() if column.dtype.kind in "iuf"})
    table = pyarrow.table({name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()})
    table = table.replace_schema_metadata({KEY: digests.encode()})
    parquet.write_table(table, path, write_page_checksum=True)


def _column(path: Path, name: str, digests: dict[str, str]) -> np.ndarray:
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            column = file.read(columns=[name], use_threads=False)[name].to_numpy(zero_copy_only=False)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error
    column = one_per_row(column, name, path)
    if name in digests and (column.dtype.kind not in "iuf" or _digest(column) != digests[name]):
        raise damaged(
            path,
            f"column {name!r} with another checksum",
            "a damaged file, or one that was edited and kept our checksums (its metadata s2r_torch)",
        )
    return column


def _digest(column: np.ndarray) -> str:
    """A checksum of numbers; all that are not there count alike."""
    values = column.astype(np.float64)
    values[np.isnan(values)] = np.nan
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


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
