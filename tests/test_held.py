"""What a call reads from files, and what it does not count as that."""

import sys
import threading
from pathlib import Path

import pytest

from s2r_torch.held import opened


@pytest.mark.parametrize("folder", ["dev", "etc", "inductor", "triton", "sys", "proc"])
def test_files_in_folders_named_like_the_systems_are_a_user_s(folder, tmp_path):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "scale.txt").write_text("2")
    with opened() as files:
        (tmp_path / folder / "scale.txt").read_text()
    assert files == {str(tmp_path / folder / "scale.txt")}


def test_what_is_imported_installed_or_the_system_s_is_none(tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "table.json").write_text("{}")
    (tmp_path / "mine.py").write_text("x = 1")
    with opened() as files:
        (tmp_path / "site-packages" / "table.json").read_text()
        (tmp_path / "mine.py").read_text()
        Path("/dev/null").read_text()
        Path(sys.base_prefix, "nothing.txt").exists() or open(sys.executable, "rb").close()
    assert not files


def test_another_thread_s_files_are_its_own(tmp_path):
    def reads():
        with opened() as theirs:
            (tmp_path / "theirs.txt").read_text()
        found.append(theirs)

    found: list[set[str]] = []
    for name in ("theirs.txt", "ours.txt"):
        (tmp_path / name).write_text("2")
    with opened() as ours:
        thread = threading.Thread(target=reads)
        thread.start()
        thread.join()
        with opened() as inner:
            (tmp_path / "ours.txt").read_text()
    assert found == [{str(tmp_path / "theirs.txt")}] and ours == inner == {str(tmp_path / "ours.txt")}
