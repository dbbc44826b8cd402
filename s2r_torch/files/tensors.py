"""Files of named tensors with one JSON header (safetensors): nothing in them is imported, unpickled or executed.

What is read is what was written, or an error. The header lists every tensor with its type and shape; a checksum covers
the header and the bytes of every tensor, and is compared before anything in the file is used. It guards against
damage, not against intent: whoever edits a file can compute another one (docs/policy-files.md).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from s2r_torch.defaults import plain_torch
from s2r_torch.errors import CheckpointError
from s2r_torch.files.foreign import require_file
from s2r_torch.files.layout import DTYPES, MOST_HEADER, NAMES, Layout, damaged
from s2r_torch.files.strict_json import parsed, spelt
from s2r_torch.files.whole import replacing
from s2r_torch.text import printable

KEY = "s2r_torch"
FORMAT = 6
MOST_OWN_HEADER = 2**26
OURS = ("format", "kind", "tensors", "digest")  # names in the header that belong to this module


def write(path: Path, tensors: dict[str, Tensor], header: dict, kind: str = "tensors") -> None:
    """One file, under a temporary name until it is complete, so that a crash never leaves half of one.

    Args:
        path: where; an existing file is replaced only when the new one is complete.
        tensors: by name; they may share memory.
        header: JSON values.
        kind: what the file is, as `read` asks for it.

    Raises:
        CheckpointError: a type of tensor or a value of the header that no file holds.
    """
    store(path, encoded(tensors, header, kind))


def store(path: Path, data: bytes) -> None:
    """Writes what `encoded` made, and reads its header back before it takes the place of an older file."""
    with replacing(path) as partial, partial.open("w+b") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a power cut after the renaming must find the contents, too
        file.seek(0)
        before = Layout.read(file, os.fstat(file.fileno()).st_size, path, MOST_OWN_HEADER).before
        if before != data[: len(before)]:
            raise damaged(f"another header than was written to {printable(path)}")


def encoded(tensors: dict[str, Tensor], header: dict, kind: str = "tensors") -> bytes:
    """The bytes of a whole file; arguments and errors as in `write`."""
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    try:
        listed = {**parsed(spelt(header)), "format": FORMAT, "kind": kind, "tensors": _listing(contiguous)}
        text = spelt(listed | {"digest": _digest(listed, contiguous)})
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(
            expected="a header of JSON values, and tensors of plain numbers",
            got=printable(error),
            cause="parameters or notes that JSON does not have: text, finite numbers, lists and records only",
        ) from error
    if len(text) > _most(kind):
        got, cause = f"one of {len(text)} bytes", "notes that are too long for a header"
        raise CheckpointError(expected=f"a header of at most {_most(kind)} bytes", got=got, cause=cause)
    return save(contiguous, {KEY: text})


def read(path: Path, kind: str = "tensors") -> tuple[dict, dict[str, Tensor]]:
    """The header and all tensors of a file, as they were written.

    Raises:
        CheckpointError: missing, cut, damaged, changed, of another format, or another kind of file.
    """
    with _opened(Path(path)) as (file, size):
        return decoded(file, size, Path(path), kind)


def header(path: Path, kind: str = "tensors") -> dict:
    """The header of a file alone, in a moment: the checksum, which needs all the tensors, is not compared.

    Raises:
        CheckpointError: missing, cut, of another format, or another kind of file.
    """
    with _opened(Path(path)) as (file, size):
        return _header(Layout.read(file, size, path, _most(kind)), kind, path)


@plain_torch()
def decoded(file: BinaryIO, size: int, path: Path, kind: str = "tensors") -> tuple[dict, dict[str, Tensor]]:
    """The header and all tensors of an open file of that size; `path` is for messages, errors as in `read`."""
    layout = Layout.read(file, size, path, _most(kind))
    header = _header(layout, kind, path)
    _require_listed(header["tensors"], layout.entries, path)
    try:
        tensors = load(layout.before + file.read())
    except SafetensorError as error:
        raise damaged(f"{printable(error)} in {printable(path)}") from error
    if header["digest"] != _digest(header, tensors):
        raise CheckpointError(
            expected="the numbers that were written",
            got=f"others in {printable(path)}",
            cause="a damaged copy, or an edited file",
        )
    return header, tensors


def digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of names, types, shapes and contents: one flipped bit changes it."""
    return _digest({"tensors": _listing(tensors)}, tensors)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file to be read, and its size; whatever the system refuses is a CheckpointError."""
    try:
        require_file(path)
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise damaged(f"{type(error).__name__}: {printable(error)} in {printable(path)}") from error


def _most(kind: str) -> int:
    """Bytes that the header of a file may have: what strangers send is small, curves of a run of one's own are long."""
    return MOST_OWN_HEADER if kind == "tensors" else MOST_HEADER


def _digest(header: dict, tensors: dict[str, Tensor]) -> str:
    """The checksum of a header that lists these tensors, and of their bytes in the order of their names."""
    found = hashlib.blake2b(digest_size=32)
    found.update(spelt({name: value for name, value in header.items() if name != "digest"}).encode())
    for name in sorted(tensors):
        numbers = tensors[name].detach().cpu().contiguous().reshape(-1)
        if len(numbers):  # nothing may have any stride, and is no view of bytes then
            found.update(numbers.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _listing(tensors: dict[str, Tensor]) -> dict[str, list]:
    return {name: [NAMES[value.dtype], list(value.shape)] for name, value in tensors.items()}


def _header(layout: Layout, kind: str, path: Path) -> dict:
    """The header of a file of this format and kind, in the one spelling that it has."""
    if KEY not in layout.metadata:
        raise CheckpointError(
            expected=f"a safetensors file with a {KEY} header",
            got=f"one without, in {printable(path)}",
            cause="another safetensors file, or one that another program wrote again without its header",
        )
    text = layout.metadata[KEY]
    try:
        header = parsed(text)
    except ValueError as error:
        raise damaged(f"a header with {printable(error)} in {printable(path)}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found is None or type(found) is int and 0 < found < FORMAT:
        raise CheckpointError(
            expected=f"format {FORMAT}",
            got=f"{'an older one' if found is None else found} in {printable(path)}",
            cause="a file from an older s2r_torch, of other networks or another checksum: write it again by a run of "
            "this version (checkpoints/: scripts/make_checkpoints.py)",
        )
    if type(found) is not int or found != FORMAT:
        raise CheckpointError(
            expected=f"format {FORMAT}",
            got=printable(found, 40),
            cause="a file from a newer s2r_torch",
        )
    if not {*OURS} <= {*header} or not isinstance(header["tensors"], dict) or not isinstance(header["digest"], str):
        raise damaged(f"a header without {', '.join(OURS)} in {printable(path)}")
    if not layout.exact or {*layout.metadata} != {KEY} or spelt(header) != text:
        raise damaged(f"a header that is spelt otherwise, or holds more, in {printable(path)}")
    if header["kind"] != kind:
        raise CheckpointError(
            expected=f"a file of kind {kind!r}",
            got=f"{printable(repr(header['kind']), 60)} in {printable(path)}",
            cause="another file of the same run",
        )
    return header


def _require_listed(listed: dict, entries: dict[str, tuple[str, list[int]]], path: Path) -> None:
    """Raises CheckpointError unless the tensors that are there are those that the header lists."""
    missing = sorted({*listed} ^ {*entries})
    if missing:
        raise CheckpointError(
            expected="every listed tensor",
            got=f"missing or unlisted in {printable(path)}: {printable(missing[:5])}",
            cause="a damaged file",
        )
    for name, (dtype, shape) in entries.items():
        if listed[name] != [dtype, shape] or dtype not in DTYPES:
            raise CheckpointError(
                expected=f"{printable(name, 60)} as it was written: {printable(listed[name], 60)}",
                got=f"{printable([dtype, shape], 60)} in {printable(path)}",
                cause="numbers were changed: another program stored them in another type or shape",
            )
