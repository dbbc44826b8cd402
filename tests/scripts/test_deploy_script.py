"""scripts/deploy.py as an engineer on site starts it: plans, logs, robots, interruptions, and bad data."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from rich.console import Console
from support.policies import certificate_by_hand, judged_policy, policy_of
from support.smoke import CONF

from s2r_torch.deployment import deploy as deployment
from s2r_torch.deployment.likeness import Likeness
from s2r_torch.deployment.policy_file import save_policy
from s2r_torch.deployment.recording.files import read_recording
from s2r_torch.errors import RecordingError, S2RError, SettingError, UnlikeSimulatorsError
from s2r_torch.runs.command_line import completed

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "deploy.py"
LOADED = importlib.util.spec_from_file_location("deploy_script", SCRIPT)
deploy_script = importlib.util.module_from_spec(LOADED)
LOADED.loader.exec_module(deploy_script)

ROBOT = '''
import time
import gymnasium, numpy as np
from s2r_torch.families import make_family

class Robot(gymnasium.Env):
    """The grid family's world as a plain environment."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pause=0.0):
        import torch
        family, noise = make_family("grid"), torch.Generator()
        noise.seed()  # a robot that is started again shows other readings
        theta = family.prior(1, torch.Generator().manual_seed(5))[0]
        self.world, self.pause = family.world(theta, noise), pause

    def reset(self, seed=None, options=None):
        return self.world.reset(1)[0].numpy(), {}

    def step(self, action):
        import torch
        time.sleep(self.pause)
        return self.world.step(torch.tensor([action]))[0].numpy(), "paid", False, False, {}

def connect(**arguments):
    return Robot(**arguments)

def broken():
    return 7
'''


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder with a policy file and a robot."""
    save_policy(tmp_path / "policy.safetensors", policy_of(), family={"name": "grid", "parameters": {"width": 3}})
    (tmp_path / "robot.py").write_text(ROBOT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "robot", raising=False)
    return tmp_path


def deploy(*overrides: str) -> str:
    """Runs the script in this process; returns what it prints, on long lines."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(
            "deploy", overrides=completed(["checkpoint=policy.safetensors", *overrides], deploy_script.WORLDS)
        )
    console = Console(width=300, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        deploy_script.run(cfg, console)
    finally:
        console.file.close()
    return console.export_text()


def test_what_to_collect_is_said_before_anything_else(site):
    text = deploy("collect_only=true", "template=plan.csv")
    assert "to collect: 75 episodes, row, column at each of 5 steps" in text
    assert (site / "plan.csv").read_text().startswith("episode,step,action,row,column\n0,0,")
    assert len((site / "plan.csv").read_text().splitlines()) == 1 + 75 * 5
    with pytest.raises(RecordingError, match="a template that was not filled in"):
        deploy("world=recorded", "world.file=plan.csv")


def test_a_robot_is_looked_at_and_its_log_is_as_good_as_the_robot(site):
    live = deploy("world=gym", "world.make=robot:connect", "log=real.csv")
    assert "75, none with a reward" in live
    again = deploy("world=gym", "world.make=robot:broken_if_it_were_asked", "log=real.csv", "collect_only=true")
    assert "seen so far: 75 episodes, 25 to 75 readings per state" in again and "nothing more to collect" in again
    recorded = deploy("world=recorded", "world.file=real.csv", "export=policy.pt2")
    assert "75, none with a reward" in recorded and "policy of this world written to policy.pt2" in recorded
    assert (site / "policy.pt2").stat().st_size > 1000
    ledger = json.loads((site / "real.csv.ledger.json").read_text())
    assert ledger["real_episodes"] == 75 and ledger["status"] == "complete"


def test_a_log_with_too_little_says_what_is_missing_and_what_follows(site):
    deploy("world=gym", "world.make=robot:connect", "log=real.csv")
    lines = (site / "real.csv").read_text().splitlines(keepends=True)
    (site / "few.csv").write_text("".join(lines[: 1 + 5 * 3]))
    message = (
        "at least 7 readings of every state .*1.9 times as noisy.*got 3 at the start.*to be run: 4 of 0 0 0 0, 7 of"
    )
    with pytest.raises(RecordingError, match=message):
        deploy("world=recorded", "world.file=few.csv")
    starts = [1 + 125 * sequence for sequence in range(3)]
    (site / "some.csv").write_text(lines[0] + "".join("".join(lines[s : s + 50]) for s in starts))  # 10 of each
    text = deploy("world=recorded", "world.file=some.csv")
    assert "to collect: 45 episodes" in text and "10 to 25" in text
    assert "noise is up to 1.6 times as large, and no certificate holds" in text
    with pytest.raises(RecordingError, match="at least 11 readings"):
        deploy("world=recorded", "world.file=some.csv", "world.minimum=11")
    assert "nothing more" not in deploy(
        "world=recorded", "world.file=some.csv", "collect_only=true", "template=rest.csv"
    )
    assert len((site / "rest.csv").read_text().splitlines()) == 1 + 45 * 5


def test_sequential_looks_are_reported_and_kept(site):
    text = deploy("world=gym", "world.make=robot:connect", "log=real.csv", "sequential=true", "stopping.tolerance=1")
    assert "look at 7 per state" in text and "enough" in text and "21, none with a reward" in text
    ledger = json.loads((site / "real.csv.ledger.json").read_text())
    assert ledger["looks"][0]["n"] == 7 and ledger["looks"][0]["enough"] and ledger["real_episodes"] == 21


def test_a_simulated_world_that_is_gone_on_from_shows_other_episodes(site):
    deploy("world=grid", "log=real.csv", "sequential=true", "stopping.tolerance=1")
    deploy("world=grid", "log=real.csv")
    x = read_recording(site / "real.csv", policy_of().problem.spec).x
    assert len(x) == 75 and len(x.flatten().unique()) == x.numel()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["world=recorded"], "world.file=..."),
        (["world=gym"], "world.make=..."),
        (["world=gym", "world.make=robot"], "world.make=module:function"),
        (["world=gym", "world.make=robot:nobody"], "world.make=module:function.*nobody"),
        (["world=gym", "world.make=nowhere:connect"], "No module named 'nowhere'"),
        (["world=gym", "world.make=robot:broken"], "a gymnasium.Env, or an object with spec"),
        (["world=gym", "world.make=robot:connect", "log=real.xlsx"], "ends in .csv, .npz, .parquet"),
        (["template=plan.doc"], "ends in .csv, .npz, .parquet"),
        (["export=policy.bin"], "ends in .pt2 or .onnx"),
        (["world=recorded", "world.file=real.csv"], "no file real.csv"),
        (["world=recorded", "world.file=real.csv", "log=other.csv"], "recorded episodes are in world.file"),
        (["sequential=true", "stopping.looks=1"], "looks >= 2"),
        (["sequential=true", "stopping.by=luck"], "stopping.by among"),
        (
            ["sequential=true", "+stopping.tolerence=1"],
            "a key of stopping: .*; got stopping.tolerence; likely cause: a typo for tolerance",
        ),
        (["checkpoint=nothing.safetensors"], "no file nothing.safetensors"),
        (["world=gym", "world.make=robot:connect", "+world.arguments.speed=3"], "unexpected keyword argument 'speed'"),
    ],
)
def test_mistakes_on_the_command_line(site, overrides, message):
    with pytest.raises(S2RError, match=message):
        deploy(*overrides)
    assert sorted(p.name for p in site.iterdir() if p.suffix != "") == ["policy.safetensors", "robot.py"]


def test_a_checkpoint_must_be_named(site):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("deploy")
    with pytest.raises(SettingError, match="checkpoint: text; got nothing"):
        deploy_script.run(cfg, Console(quiet=True))


@pytest.fixture
def judged(site):
    """The site with a policy that knows what worlds look like, and what was promised of it."""
    certificate = certificate_by_hand(realizable=False)
    family = {"name": "grid", "parameters": {"width": 3}}
    save_policy(site / "policy.safetensors", judged_policy(), family=family, certificate=certificate)
    return site


def test_the_verdict_and_the_certificate_are_printed_together(judged):
    text = deploy("world=grid", "world.seed=1")
    assert "consistent (p = " in text and "WARNING" not in text
    assert "CERTIFICATE" in text and "at least 0.650" in text and "HEURISTIC" in text and "Not promised" in text


def test_no_promise_without_a_warning_in_a_doubtful_world(judged, monkeypatch):
    doubtful = Likeness("doubtful", 0.03, 0.03, 0.2, ("most unusual: height",))
    monkeypatch.setattr(deployment, "likeness_of", lambda *_: doubtful)
    text = deploy("world=grid", "world.seed=1")
    assert "doubtful (p = 0.03: densities 0.03, merging 0.2); most unusual: height" in text
    assert text.index("WARNING: this world is doubtful") < text.index("CERTIFICATE")


def test_an_unlike_world_is_refused_unless_one_insists(judged, monkeypatch):
    unlike = Likeness("refused", 0.005, 0.005, 0.2, ("most unusual: mean of row",))
    monkeypatch.setattr(deployment, "likeness_of", lambda *_: unlike)
    with pytest.raises(UnlikeSimulatorsError, match="mean of row"):
        deploy("world=grid", "world.seed=1")
    text = deploy("world=grid", "world.seed=1", "refuse=false")
    assert text.index("WARNING: this world is refused") < text.index("CERTIFICATE")


def test_a_certificate_covers_only_the_deployment_that_was_rehearsed(judged):
    text = deploy("world=grid", "world.seed=1", "sequential=true", "stopping.tolerance=1.0")
    assert "no certificate: it covers a fixed number of readings" in text and "CERTIFICATE" not in text
    assert "untested" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_with_130_and_the_next_call_goes_on(site, number):
    command = [sys.executable, str(SCRIPT), "checkpoint=policy.safetensors", "world=gym", "world.make=robot:connect"]
    command += ["log=real.csv", "+world.arguments.pause=0.05"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(SCRIPT.parents[1])])}
    process = subprocess.Popen(
        command, cwd=site, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not (site / "real.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "interrupted; what was seen is in real.csv: the same command goes on from there" in output
    ledger = json.loads((site / "real.csv.ledger.json").read_text())
    seen = ledger["real_episodes"]
    assert ledger["status"] == "interrupted" and 0 < seen < 75 and ledger["recorded_episodes"] >= seen - 1
    text = deploy("world=gym", "world.make=robot:connect", "log=real.csv")
    assert f"seen so far: {ledger['recorded_episodes']} episodes" in text
    whole = json.loads((site / "real.csv.ledger.json").read_text())
    assert whole["status"] == "complete" and 75 <= whole["real_episodes"] <= 76


def test_an_error_is_one_clear_line_and_exit_code_2(site):
    (site / "bad.csv").write_text("episode,step,action,row,column\n0,0,1,0.5,nan\n")
    command = [sys.executable, str(SCRIPT), "checkpoint=policy.safetensors", "world=recorded", "world.file=bad.csv"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert "RecordingError: expected 5 steps in every episode; got 1 in one that ends at line 2" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_brackets_in_a_message_are_printed(site):
    (site / "log.parquet").write_bytes(b"PAR1")
    command = [sys.executable, str(SCRIPT), "checkpoint=policy.safetensors", "world=recorded", "world.file=log.parquet"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "pip install 's2r_torch[parquet]'" in done.stdout
