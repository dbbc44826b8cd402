"""One process at a time: a lock on a file or a folder, named by who holds it, and gone with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s2r_torch.errors import FileError
from s2r_torch.files.whole import real_path, told
from s2r_torch.text import printable


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Holds a file or a folder for this block alone.

    The lock is the system's, on a small file beside it (within it, for a folder), so that it ends with its process,
    however that ends. The same process asking twice is refused, too.

    Raises:
        FileError: another holds it; the message names the process.
    """
    target = real_path(path)
    side = target / ".lock" if target.is_dir() else target.with_name(f".{target.name[:80]}.lock")
    with told(side, "to be written, the lock of " + printable(path)):
        side.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _taken(side, path)
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _HELD:  # not so in a copy of the process
            _HELD.remove(descriptor)
            side.unlink(missing_ok=True)  # still held: nobody can take it between these lines
            os.close(descriptor)


_HELD: set[int] = set()  # descriptors


def _let_go() -> None:
    """In a forked process, which holds nothing: one that outlives a killed parent would else keep its locks."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go)


def _taken(side: Path, path: Path | str) -> int:
    """A descriptor that holds the lock of a side file."""
    while True:
        descriptor = os.open(side, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, side):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "(just starting)"
            os.close(descriptor)
            raise FileError(
                expected=f"{printable(path)} for this process alone",
                got=f"{printable(Path(path).name)} is in use by process {printable(holder)}",
                cause="the same command was started twice; wait for the other to end",
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder ended and removed it between the two calls


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
