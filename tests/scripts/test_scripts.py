"""The scripts as users start them: subprocesses at smoke size, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.smoke import SMALL

ROOT = Path(__file__).resolve().parents[2]


def script(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """One smoke-size run of the grid, from a folder that is not the repository."""
    cwd = tmp_path_factory.mktemp("user")
    done = script("run.py", "+experiment=grid", *SMALL, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deployed value" in done.stdout
    (folder,) = (cwd / "runs" / "grid").iterdir()
    return folder


def test_run_writes_one_complete_folder(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert names >= {"config.yaml", "policy.safetensors", "summary.json", "metrics.csv"}
    assert names >= {"run.png", "exploration.png", "learning.png"}
    assert json.loads((run_folder / "summary.json").read_text())["experiment"] == "grid"
    assert all(c.isalnum() or c in "._-" for c in run_folder.name)


def test_deploy_from_the_policy_file(run_folder, tmp_path):
    checkpoint = f"checkpoint={run_folder / 'policy.safetensors'}"
    done = script("deploy.py", checkpoint, "world=grid", "world.seed=7", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 episodes" in done.stdout and "edges left out" in done.stdout
    assert list(tmp_path.iterdir()) == []  # deploying leaves nothing behind


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("world=mixture",), "world=grid, which this policy was trained for"),
        (("world=grid", "+world.parameters.width=5"), "leave them out"),
    ],
)
def test_deploy_refuses_contradictions(run_folder, tmp_path, arguments, message):
    done = script("deploy.py", f"checkpoint={run_folder / 'policy.safetensors'}", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stdout.split())


def test_wrong_name_is_one_clear_line(tmp_path):
    done = script("run.py", "+experiment=grid", "rule=sharpest", cwd=tmp_path)
    assert done.returncode == 2
    assert "expected rule: one of" in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_training_ends_with_its_code_and_keeps_finished_stages(tmp_path, number):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "run.py"),
        "+experiment=grid",
        *SMALL,
        "predictors.training.steps=100000",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob("runs/grid/*/stages/explore.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2)  # into training
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output + errors
    (folder,) = (tmp_path / "runs" / "grid").iterdir()
    left = json.loads((folder / "summary.json").read_text())
    assert left["status"] == "unfinished" and left["finished_stages"] == ["encode", "check", "explore"]
    assert (
        f"interrupted; the same command with hydra.run.dir={folder.relative_to(tmp_path)} goes on from there" in output
    )
