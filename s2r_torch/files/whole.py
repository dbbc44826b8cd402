"""The one door for files that are written: whole or not at all, durable, through links, never over what is not ours.

    probe(path)         before hours of work: can this ever be written?
    replacing(path)     a new file that takes the old one's place when it is complete
    write_text(path)    the same, for a text
    Appended(path)      a file that only grows: a row is there whole, and on the disk, or not at all

`~` is the home folder. A link is written through, a file's mode and owner stay. Whatever goes wrong is one `FileError`
with the path and the reason, and leaves neither half a file nor a temporary one.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> write_text(folder / "a.txt", "whole")
>>> (folder / "a.txt").read_text(), [p.name for p in folder.iterdir()]
('whole', ['a.txt'])
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from s2r_torch.errors import FileError, SettingError
from s2r_torch.text import printable


def real_path(path: Path | str) -> Path:
    """Where a path leads: `~` is the home folder, links are followed.

    Raises:
        FileError: there is no such home folder, links lead in a circle, a name is too long, a folder may not be looked
            into, or it is no path at all.
    """
    with told(path, "to be a path that can be followed", "a typo, or somebody else's folder"):
        try:
            found = Path(os.path.realpath(Path(path).expanduser()))
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.stat()
            return found
        except (RuntimeError, ValueError) as error:  # nobody's home; a zero byte
            raise OSError(str(error)) from error


def fixed_path(path: Path | str) -> Path:
    """The same path wherever users' code moves the process to; links are left to be followed. Raises as `real_path`."""
    if not os.fspath(path):
        raise SettingError(expected="a path", got="an empty text", cause="'.' is the working folder")
    real_path(path)
    return Path(path).expanduser().absolute()


def probe(path: Path | str) -> None:
    """Test-writes beside a file that will be written later, and leaves everything as it was.

    Only temporary files of it that killed processes left behind are removed.

    Raises:
        FileError: it could not be written: no folder, no permission, no space, a folder or a device of that name.
    """
    target = _writable(path)
    with told(path):
        partial = _partial(target)
        try:
            with partial.open("wb") as file:
                file.write(b"\0")
                file.flush()
                os.fsync(file.fileno())
        finally:
            partial.unlink(missing_ok=True)
        for left in target.parent.glob(glob.escape(partial.name).replace(f".{os.getpid()}.", ".*.")):
            if not _runs(left.name.removesuffix(f".partial{target.suffix}").rpartition(".")[2]):
                left.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`, of the same ending, that takes its place when the block ends without an error.

    An existing file is there until then, and a crash or a power cut never leaves half of a new one under its name.

    Raises:
        FileError: whatever the system refuses, in the block or at its end.
    """
    target = _writable(path)
    partial = _partial(target)
    with told(path):
        try:
            yield partial
            _flushed(partial)
            _keep_mode(target, partial)
            os.replace(partial, target)
            _flushed(target.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def require_ours(path: Path | str, is_ours: Callable[[bytes], bool], kind: str) -> None:
    """Raises FileError where a file is there that begins like another kind of file: it would be lost.

    Args:
        path: what is to be written.
        is_ours: what the first 16 bytes of such a file tell.
        kind: of file, in words.
    """
    file = real_path(path)
    if file.is_file():
        with file.open("rb") as stream:
            start = stream.read(16)
        if start and not is_ours(start):
            raise FileError(
                expected=f"no file {printable(path)}, or {kind} to replace",
                got="a file of something else",
                cause="a file of yours, which would be lost",
            )


def write_text(path: Path | str, text: str) -> None:
    """Writes a text file, whole or not at all, with the line breaks that the text has."""
    write_bytes(path, text.encode())


def write_bytes(path: Path | str, data: bytes) -> None:
    """Writes a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def removed(path: Path | str) -> None:
    """Removes a file of ours, for good."""
    target = real_path(path)
    with told(path):
        target.unlink(missing_ok=True)
        _flushed(target.parent)


class Appended:
    """A file that only grows. What `add` was given is on the disk when it returns, or not in the file.

    Args:
        path: where; the file is made by the first `add`.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._left = _size(self.path)  # as it was left

    def add(self, data: bytes) -> None:
        """Appends.

        Raises:
            FileError: the system refuses, or another program moved, cut or wrote the file; it is as it was before.
        """
        target, there = _writable(self.path), _size(self.path)
        new = there is None
        if there != self._left:
            raise FileError(
                expected=f"{printable(self.path)} as it was left, {_bytes(self._left)}",
                got=_bytes(there),
                cause="another program moved, cut or wrote it meanwhile",
            )
        with told(self.path):
            descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            size = os.fstat(descriptor).st_size
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
                if new:
                    _flushed(target.parent)
                self._left = size + len(data)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                    if new:
                        target.unlink()
                raise
            finally:
                os.close(descriptor)


@contextmanager
def told(
    path: Path | str,
    wanted: str = "to be written",
    cause: str = "a full disk or a quota, no permission, or a folder that is none",
) -> Iterator[None]:
    """Whatever the system refuses in the block becomes one FileError with that path."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            expected=f"{printable(path)} {wanted}", got=printable(error.strerror or error), cause=cause
        ) from error


def _writable(path: Path | str) -> Path:
    """Where a file will be, with its folder made; raises FileError where something else has its name."""
    target = real_path(path)
    with told(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            return target
        if not target.is_file():
            kind = "a folder" if target.is_dir() else "a device or a pipe"
            raise FileError(expected=f"a file {printable(path)}", got=kind, cause="another path was meant")
        if not os.access(target, os.W_OK):
            raise FileError(
                expected=f"{printable(path)} to be writable", got="a write-protected file", cause="it is to be kept"
            )
    return target


def _size(path: Path) -> int | None:
    """Bytes of the file that a path leads to; None where there is none."""
    target = real_path(path)
    return target.stat().st_size if target.exists() else None


def _bytes(size: int | None) -> str:
    return "no file" if size is None else f"{size} bytes"


def _partial(target: Path) -> Path:
    """A name beside the target that nobody else takes, of the same ending."""
    return target.with_name(f".{target.stem[:40]}.{os.getpid()}.partial{target.suffix}")


def _runs(process: str) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, OverflowError):
        return True  # somebody else's, or no number: not ours to judge
    return True


def _flushed(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # where the system has no such thing for folders, there is nothing to wait for
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def _keep_mode(target: Path, partial: Path) -> None:
    """Gives the new file the owner and the permissions of the one that it replaces."""
    if target.exists():
        old = target.stat()
        with contextlib.suppress(PermissionError):
            os.chown(partial, old.st_uid, old.st_gid)
        os.chmod(partial, stat.S_IMODE(old.st_mode))
