"""Tables in NPZ files: an archive of arrays, one per column. Only arrays that are asked for are read, never objects."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from s2r_torch.deployment.recording.columns import Columns, damaged

ENDING = ".npy"
DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, SyntaxError, MemoryError, RecursionError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, OverflowError),
)


def require() -> None:
    """Nothing beyond numpy is needed."""


def read(path: Path) -> Columns:
    """The columns of an archive; its rows are those of `step`, or of its first array."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(ENDING)]
    except DAMAGE as error:
        raise damaged(path, error) from error
    names = tuple(name.removesuffix(ENDING) for name in members)
    counted = "step" if "step" in names else names[0] if names else None
    rows = 0 if counted is None else np.atleast_1d(_column(path, counted)).shape[0]
    return Columns(names, rows, lambda name: _column(path, name))


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes an archive of one array per column; any name is allowed, unlike with `np.savez`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in columns.items():
            with archive.open(name + ENDING, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(column), allow_pickle=False)


def _column(path: Path, name: str) -> np.ndarray:
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(name + ENDING)
            if info.flag_bits & 0x1:
                raise ValueError("an encrypted member")
            with archive.open(info) as member:
                shape, fortran, dtype = _header(member)
                size = math.prod(shape) * dtype.itemsize
                if dtype.hasobject:
                    raise ValueError("Python objects, which are not read,")
                data = member.read()  # to its end, where the checksum is compared
    except DAMAGE as error:
        raise damaged(path, error, column=name) from error
    if len(data) != size:
        raise damaged(path, f"{len(data)} bytes for {size} declared ones", column=name)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _header(member) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape of an array, whether its first axis runs fastest, and its dtype."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise ValueError(f"an array of format {version}")
