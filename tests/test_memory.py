"""What does not fit into memory is refused before it is filled."""

import pytest

from s2r_torch import memory
from s2r_torch.errors import SettingError

MEMINFO = "MemTotal:       16384 kB\nMemFree:   100 kB\nMemAvailable:    8192 kB\nHugePages_Total:  0\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files that say what memory there is."""
    monkeypatch.setattr(memory, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)

    def said(meminfo=None, **group):
        for name, text in {"meminfo": meminfo, **group}.items():
            if text is not None:
                (tmp_path / name.replace("_", ".")).write_text(text)

    return said


def test_where_nobody_says_nothing_is_refused(machine):
    assert memory.available_memory() is None
    memory.require_memory(10**18, "all", "none")


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 8 * 2**20),
        ({"memory_max": "max\n", "memory_current": "5\n"}, 8 * 2**20),
        ({"memory_max": "5000\n", "memory_current": "3000\n"}, 2000),
        ({"memory_max": "5000\n", "memory_current": "3000\n", "memory_stat": "anon 2200\nfile 800\n"}, 2800),
        ({"memory_max": f"{2**30}\n", "memory_current": "0\n"}, 8 * 2**20),
    ],
)
def test_the_machine_and_the_container_both_count(machine, group, free):
    machine(MEMINFO, **group)
    assert memory.available_memory() == free


def test_the_error_says_what_for_and_how_much(machine):
    machine(MEMINFO)
    memory.require_memory(8 * 2**20, "D", "B")
    with pytest.raises(
        SettingError, match=r"expected 0.0117 GiB of memory for D; got 0.00781 GiB free; likely cause: B"
    ):
        memory.require_memory(12 * 2**20, "D", "B")
