"""A small part of `bench.py fuzz`: no damaged or forged policy file loads in silence; one that did would be seen."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_fuzz

    return bench_fuzz


@pytest.mark.slow
def test_three_hundred_files(bench):
    counts, failures = bench.fuzz(300, seed=1)
    assert not failures
    kinds = {what: sum(count for (_, w), count in counts.items() if w == what) for what in bench.GOOD}
    assert sum(kinds.values()) == 300 and min(kinds.values()) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "door, open_door",
    [
        ("s2r_torch.deployment.policy_file.check_header", lambda header, tensors: None),
        ("s2r_torch.files.tensors._digest", lambda header, tensors: header.get("digest", "0" * 64)),
    ],
)
def test_a_loader_without_one_of_its_checks_is_caught(bench, monkeypatch, door, open_door):
    monkeypatch.setattr(door, open_door)
    _, failures = bench.fuzz(300, seed=1)
    assert failures


@pytest.mark.slow
def test_the_command_prints_a_table_and_its_code_says_so():
    command = [sys.executable, str(SCRIPTS / "bench.py"), "fuzz", "--count", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "SILENT" in done.stdout and "another valid file" in done.stdout
