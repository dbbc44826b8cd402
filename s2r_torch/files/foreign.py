"""Other kinds of file, by how they begin: what lies in a file's place is named as what it is."""

from __future__ import annotations

from pathlib import Path

from s2r_torch.errors import CheckpointError
from s2r_torch.text import printable

BEGINNING = 64  # bytes looked at
DAMAGED = "a copy that was cut short or damaged, or another kind of file"
UNPICKLED = (
    "another kind of file, which could run code when it is opened, and is not; or a copy that was cut short or damaged"
)

# How a file begins (lower case, blanks before it left out), what that is, and the likely cause.
KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "a clone without Git LFS: git lfs pull"),
    (b"<!doctype html", "a web page", "a page that was saved in place of the file: use its download link"),
    (b"<html", "a web page", "a page that was saved in place of the file: use its download link"),
    (
        b"<?xml",
        "an XML document",
        "a server's error message in place of the file: download it again",
    ),
    (b"pk\x03\x04", "a zip archive, as torch.save writes", UNPICKLED),
    (b"\x80\x02", "a pickle, as older PyTorch writes", UNPICKLED),
    (b"\x80\x03", "a pickle", UNPICKLED),
    (b"\x80\x04", "a pickle", UNPICKLED),
    (b"\x80\x05", "a pickle", UNPICKLED),
    (b"\x93numpy", "a NumPy array", "another kind of file"),
    (b"\x89hdf", "an HDF5 file", "another kind of file"),
    (b"\x1f\x8b", "a gzip archive", "a file that is still compressed: gunzip it first"),
    (b"gguf", "a GGUF file", "another kind of file"),
    (b"{", "a JSON text", "another kind of file"),
)


def require_file(path: Path, what: str = "a file of tensors") -> None:
    """Raises CheckpointError unless there is a file that can be read at all."""
    if not path.is_file():
        instead, cause = "", "a typo, or a run not finished"
        if path.is_dir():
            instead, cause = ", but a folder", "the folder of a run, not its policy.safetensors"
        elif path.exists():
            instead, cause = ", but a device or a pipe", "another path was meant"
        raise CheckpointError(expected=what, got=f"no file {printable(path)}{instead}", cause=cause)


def require_known(beginning: bytes, size: int, path: Path) -> None:
    """Raises CheckpointError for a file that is empty, or whose first bytes are those of another kind."""
    start = beginning.lstrip(b" \t\r\n\xef\xbb\xbf").lower()
    found = next(((what, cause) for prefix, what, cause in KINDS if start.startswith(prefix)), None)
    if size == 0:
        found = "an empty file", f"a download that failed, or {DAMAGED}"
    if found:
        raise CheckpointError(
            expected="a safetensors file that this library wrote",
            got=f"{found[0]}, in {printable(path)} ({size} bytes)",
            cause=found[1],
        )
