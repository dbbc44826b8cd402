"""Where the tensors of a safetensors file lie, read from its header alone and checked against the file's size.

    8 bytes: length n of the header | n bytes: JSON {"__metadata__": {...}, name: {dtype, shape, data_offsets}} | data

Strict where the format is lax: no byte of the data belongs to no tensor or to two, and the header has one spelling, so
that nothing can hide in a file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from s2r_torch.errors import CheckpointError
from s2r_torch.files.foreign import BEGINNING, DAMAGED, require_known
from s2r_torch.files.json_schema import Integer, ListOf, MapOf, Record, Text
from s2r_torch.files.strict_json import parsed
from s2r_torch.text import printable

MOST_HEADER = 2**23  # bytes; a class of 200 000 known members needs 6 MB
MOST_DATA = 2**36
ENTRY = Record(
    {
        "dtype": Text(16),
        "shape": ListOf(Integer(0, MOST_DATA), most=8),
        "data_offsets": ListOf(Integer(0, MOST_DATA), least=2, most=2),
    }
)
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Layout:
    """What the header of a safetensors file says.

    Args:
        metadata: texts by name.
        entries: name -> (dtype as safetensors calls it, shape) of every tensor.
        before: the bytes before the data.
        exact: whether they are spelt as they are when they are written.
    """

    metadata: dict[str, str]
    entries: dict[str, tuple[str, list[int]]]
    before: bytes
    exact: bool

    @staticmethod
    def read(file: BinaryIO, size: int, path: Path, most: int = MOST_HEADER) -> Layout:
        """Reads the header, of at most `most` bytes, of a file of `size` bytes, and stops where the data begins.

        Raises:
            CheckpointError: cut, damaged, another kind of file, or bytes that no tensor accounts for.
        """
        beginning = file.read(BEGINNING)
        length = int.from_bytes(beginning[:8], "little")
        if len(beginning) < 9 or beginning[8:9] != b"{" or not 2 <= length <= min(size - 8, most):
            require_known(beginning, size, path)
            raise damaged(f"no header of a safetensors file in {printable(path)} ({size} bytes)")
        file.seek(8)
        raw = file.read(length)
        try:
            values = parsed(raw)
        except ValueError as error:
            raise damaged(f"a header with {printable(error)} in {printable(path)} ({size} bytes)") from error
        spelling = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        exact = raw == spelling + b" " * (-len(spelling) % 8)
        metadata, entries = _checked(values, size - 8 - length, path)
        return Layout(metadata, entries, beginning[:8] + raw, exact)


def _checked(values: Any, size: int, path: Path) -> tuple[dict, dict]:
    """Metadata and entries; their tensors fill the data, of that size in bytes, without a gap."""
    metadata = values.pop("__metadata__", {}) if isinstance(values, dict) else {}
    for schema, value in ((MapOf(Text(MOST_DATA), 100), metadata), (MapOf(ENTRY, 2**16, 1000), values)):
        for where, expected, _ in schema.faults(value, "header"):
            raise damaged(f"a header without {expected} at {printable(where)} in {printable(path)}")
    end = 0
    for name, entry in sorted(values.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        if begin != end or stop < begin:
            raise damaged(f"bytes of tensor {printable(name)} that are missing or used twice in {printable(path)}")
        end = stop
    if end != size:
        what = f"{size} of {end} bytes of data" if size < end else f"{size - end} bytes too many"
        raise damaged(f"{what} in {printable(path)}")
    return metadata, {name: (entry["dtype"], entry["shape"]) for name, entry in values.items()}


def damaged(got: str) -> CheckpointError:
    """The error for a file that is not as it was written, whatever the reason."""
    return CheckpointError(expected="a safetensors file that this library wrote", got=got, cause=DAMAGED)
