"""Files are written whole or not at all, through links, and never over what is not ours."""

import errno
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from s2r_torch.errors import FileError, S2RError
from s2r_torch.files.locks import locked
from s2r_torch.files.whole import Appended, probe, real_path, replacing, write_text

ROOT = os.geteuid() == 0


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "one")
    with pytest.raises(RuntimeError), replacing(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "one" and partial.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "one" and names(path.parent) == ["a.txt"]


def test_links_are_written_through_and_modes_stay(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("one")
    real.chmod(0o640)
    link.symlink_to(real.name)
    write_text(link, "two")
    assert link.is_symlink() and real.read_text() == "two" and stat.S_IMODE(real.stat().st_mode) == 0o640
    (tmp_path / "dangling").symlink_to("later.txt")
    write_text(tmp_path / "dangling", "three")
    assert (tmp_path / "later.txt").read_text() == "three"


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_text("~/a.txt", "one")
    assert (tmp_path / "a.txt").read_text() == "one" and real_path("~") == tmp_path
    with pytest.raises(FileError, match="home"):
        real_path("~nobody_of_that_name/a.txt")


IMPOSSIBLE = {
    "in a file": (lambda folder: folder / "file.txt" / "a.txt", "Not a directory|File exists"),
    "a folder": (lambda folder: folder / "folder", "got a folder"),
    "a device": (lambda folder: "/dev/null", "a device or a pipe"),
    "in /proc": (lambda folder: "/proc/a.txt", "No such file|Permission|Operation not permitted"),
    "too long": (lambda folder: folder / ("a" * 300), "too long"),
    "in a circle": (lambda folder: folder / "circle" / "a.txt", "Too many levels|File exists"),
    "a zero byte": (lambda folder: "a\0b", "null"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("attempt", [probe, lambda path: write_text(path, "x"), lambda path: Appended(path).add(b"x")])
def test_what_can_never_be_written_is_one_error(tmp_path, kind, attempt):
    (tmp_path / "file.txt").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    before = names(tmp_path)
    path, reason = IMPOSSIBLE[kind]
    with pytest.raises(S2RError, match=reason) as caught:
        attempt(path(tmp_path))
    assert isinstance(caught.value, FileError) and "\n" not in str(caught.value) and "\0" not in str(caught.value)
    assert names(tmp_path) == before and (tmp_path / "file.txt").read_text() == "kept"


@pytest.mark.parametrize("name", ["x" * 300, "\0"], ids=["long", "zero"])
def test_a_path_that_cannot_be_followed_is_one_error_for_readers_too(name, tmp_path):
    with pytest.raises(FileError, match="a path that can be followed"):
        real_path(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.unlink(),
        lambda p: p.rename(p.with_name("b.csv")),
        lambda p: p.write_text(""),
        lambda p: p.write_bytes(p.read_bytes() + b"#"),
    ],
    ids=["removed", "moved", "cut", "written"],
)
def test_a_file_that_another_program_changes_is_not_gone_on_with(tmp_path, change):
    file = Appended(tmp_path / "a.csv")
    file.add(b"header\n1\n")
    file.add(b"2\n")
    change(file.path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileError, match="a.csv as it was left, 11 bytes; got .*; likely cause: another program"):
        file.add(b"3\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(ROOT, reason="root may write everything")
def test_a_protected_file_is_kept(tmp_path):
    (tmp_path / "a.txt").write_text("kept")
    (tmp_path / "a.txt").chmod(0o444)
    with pytest.raises(FileError, match="write-protected"):
        probe(tmp_path / "a.txt")


def test_a_probe_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    probe(tmp_path / "a.txt")
    probe(tmp_path / "b.txt")
    assert names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "one"


def test_a_probe_removes_what_killed_processes_left(tmp_path):
    code = "import os, sys; from s2r_torch.files.whole import replacing\n"
    code += "with replacing(sys.argv[1]) as partial: partial.touch(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], timeout=60).returncode == -9
    (tmp_path / f".a.{os.getppid()}.partial.txt").touch()  # of a process that runs
    assert len(names(tmp_path)) == 2
    probe(tmp_path / "a.txt")
    assert names(tmp_path) == [f".a.{os.getppid()}.partial.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a.txt"
    write_text(path, "one")
    monkeypatch.setattr(os, step, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(FileError, match="a.txt to be written; got No space left on device; likely cause: a full disk"):
        write_text(path, "two")
    monkeypatch.undo()
    assert path.read_text() == "one" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_cannot_wait_for_folders_is_no_fault(tmp_path, monkeypatch, reason):
    """FUSE and SMB refuse to; a folder that cannot be written is another matter, and so is a file."""
    flushed = os.fsync

    def refuses(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(reason, os.strerror(reason))
        flushed(descriptor)

    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(FileError, match="Input/output") if reason == errno.EIO else nullcontext():
        write_text(tmp_path / "a.txt", "whole")
        Appended(tmp_path / "log.csv").add(b"1\n")
        assert names(tmp_path) == ["a.txt", "log.csv"]


LIMITED = """
import resource, sys
from s2r_torch.errors import FileError
from s2r_torch.files.whole import Appended
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = Appended(sys.argv[1])
try:
    for _ in range(10):
        file.add(b"x" * 299 + b"\\n")
except FileError as error:
    print(error)
"""


def test_rows_that_do_not_fit_are_not_there_at_all(tmp_path):
    path = tmp_path / "log.csv"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout, done.stderr
    assert path.read_bytes() == 3 * (b"x" * 299 + b"\n") and names(tmp_path) == ["log.csv"]


# -- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_at_a_time_and_nothing_left(tmp_path, kind):
    path = tmp_path / "log.csv" if kind == "file" else tmp_path
    in_use = f"{path.name} is in use by process {os.getpid()}"
    with locked(path), pytest.raises(FileError, match=in_use), locked(path):
        pass
    with locked(path):
        pass
    assert names(tmp_path) == []


def test_another_name_of_the_same_file_is_the_same_lock(tmp_path, monkeypatch):
    (tmp_path / "log.csv").touch()
    (tmp_path / "link.csv").symlink_to("log.csv")
    monkeypatch.chdir(tmp_path)
    with locked("log.csv"), pytest.raises(FileError, match="in use"), locked(tmp_path / "link.csv"):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    path = tmp_path / "log.csv"
    code = "import os, sys; from s2r_torch.files.locks import locked\nwith locked(sys.argv[1]): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60).returncode == -9
    assert names(tmp_path) == [".log.csv.lock"]
    with locked(path):
        pass
    assert names(tmp_path) == []


FORKED = """
import os, sys, time
from s2r_torch.files.locks import locked
with locked(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        time.sleep(60)
    print(child, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_copy_of_a_process_does_not_keep_its_lock(tmp_path):
    path = tmp_path / "log.csv"
    done = subprocess.run([sys.executable, "-c", FORKED, str(path)], capture_output=True, text=True, timeout=60)
    child = int(done.stdout)
    try:
        os.kill(child, 0)  # it lives
        with locked(path):
            pass
    finally:
        os.kill(child, 9)


LEFT = """
import os, sys
from s2r_torch.files.locks import locked
with locked(sys.argv[1]):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(os.listdir(os.path.dirname(sys.argv[1])))
"""


def test_a_copy_of_a_process_that_leaves_the_block_takes_no_lock_away(tmp_path):
    command = [sys.executable, "-c", LEFT, str(tmp_path / "log.csv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['.log.csv.lock']\n" and done.stderr == "" and names(tmp_path) == []


def test_what_stands_in_the_place_of_a_lock_is_named(tmp_path):
    (tmp_path / ".log.csv.lock").mkdir()
    message = r"\.log\.csv\.lock to be written, the lock of .*log\.csv; got Is a dir"
    with pytest.raises(FileError, match=message), locked(tmp_path / "log.csv"):
        pass
