"""scripts/deploy.py as an engineer on site starts it: plans, logs, robots, interruptions, and bad data."""

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
from rich.console import Console
from support.policies import certificate_by_hand, judged_policy, policy_of
from support.smoke import composed
from support.tampering import crafted

from s2r_torch.commands import deploy as deploy_script
from s2r_torch.deployment import deploy as deployment
from s2r_torch.deployment import policy_file
from s2r_torch.deployment.header import FALLBACK
from s2r_torch.deployment.likeness import Likeness
from s2r_torch.deployment.policy_file import save_policy
from s2r_torch.deployment.recording.files import read_recording
from s2r_torch.errors import (
    CheckpointError,
    FileError,
    RecordingError,
    S2RError,
    SettingError,
    SimulatorError,
    UnlikeSimulatorsError,
)
from s2r_torch.registry import import_of_users, import_plugins
from s2r_torch.reports.endings import Ended, clear_ending
from s2r_torch.runs.deploying import instead

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "deploy.py"

ROBOT = '''
import pathlib, time
import gymnasium, numpy as np
from s2r_torch.families import make_family

class Robot(gymnasium.Env):
    """The grid family's world as a plain environment."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pause=0.0):
        import torch
        family, noise = make_family("grid"), torch.Generator()
        resets = pathlib.Path("resets.txt")
        noise.manual_seed(resets.stat().st_size if resets.exists() else 0)  # started again, it shows other readings
        theta = family.prior(1, torch.Generator().manual_seed(5))[0]
        self.world, self.pause = family.world(theta, noise), pause

    def reset(self, seed=None, options=None):
        with open("resets.txt", "a") as file:
            file.write("x")
        return self.world.reset(1)[0].numpy(), {}

    def step(self, action):
        import torch
        time.sleep(self.pause)
        return self.world.step(torch.tensor([action]))[0].numpy(), "paid", False, False, {}

    def close(self):
        with open("closed.txt", "a") as file:
            file.write("x")

def connect(**arguments):
    return Robot(**arguments)

def broken():
    return 7

def rude():
    raise ValueError("[/] [red] \\x1b[31m")
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
    cfg = composed("checkpoint=policy.safetensors", "check=cover", *overrides, config="deploy")
    console = Console(width=300, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        deploy_script.run(cfg, Path(), console)
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


def test_edges_that_the_cover_leaves_out_are_walked_once_and_their_cost_is_told(site):
    robot = ("world=gym", "world.make=robot:connect", "log=real.csv")
    planned = deploy(*robot, "collect_only=true", "check=auto")
    most = int(planned.partition("then at most ")[2].partition(" ")[0])
    live = " ".join(deploy(*robot, "check=auto").split())
    cost = int(live.partition("compared, by ")[2].partition(" ")[0])
    assert 0 < cost <= most <= 75 and f"{75 + cost}, none with a reward" in live
    assert len((site / "resets.txt").read_text()) == 75 + cost
    lines = (site / "real.csv").read_text().splitlines(keepends=True)
    (site / "real.csv").write_text("".join(lines[: 1 + 5 * (75 + 3)]))  # as if it had been stopped among them
    assert f"by {cost - 3} further episodes" in " ".join(deploy(*robot, "check=auto").split())
    again = deploy("world=recorded", "world.file=real.csv", "check=auto")
    assert "edges left out" in again and "further episodes" not in again


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
    text = " ".join(deploy("world=recorded", "world.file=some.csv").replace("│", " ").split())
    assert "to collect: 45 episodes" in text and "10 to 30" in text
    assert "30 instead of 75: there the density's noise is 1.6 times as large, and no certificate holds" in text
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


SEEDED = """
import robot, torch

class Seeded(robot.Robot):
    def reset(self, seed=None, options=None):
        if seed is not None:
            self.world = robot.make_family("grid").world(self.theta, torch.Generator().manual_seed(seed))
        return super().reset()

def connect():
    made = Seeded()
    made.theta = robot.make_family("grid").prior(1, torch.Generator().manual_seed(5))[0]
    return made
"""


def test_an_environment_with_a_seed_that_is_gone_on_from_shows_other_episodes(site):
    (site / "seeded_robot.py").write_text(SEEDED)
    world = ("world=gym", "world.make=seeded_robot:connect", "world.seed=7", "log=real.csv")
    deploy(*world, "sequential=true", "stopping.tolerance=1")
    deploy(*world)
    x = read_recording(site / "real.csv", policy_of().problem.spec).x
    assert len(x) == 75 and len(x.flatten().unique()) == x.numel()


def test_a_module_that_another_one_hides_is_told(site):
    for name in ("calendar", "json"):
        (site / f"{name}.py").write_text("def connect():\n    return 3\n")
        with pytest.raises(SettingError, match=f"'{name}' of the working folder; got .*another module of that name"):
            deploy("world=gym", f"world.make={name}:connect")
        with pytest.raises(SettingError, match="of the working folder"):
            import_plugins([name])


def test_a_compiled_module_beside_its_source_is_the_working_folder_s(site, monkeypatch):
    compiled = ModuleType("fast")
    compiled.__file__ = str(site / "fast.cpython.so")
    (site / "fast.py").touch()
    monkeypatch.setitem(sys.modules, "fast", compiled)
    assert import_of_users("fast") is compiled


def test_a_log_from_before_ledgers_named_worlds_is_gone_on_from(site):
    deploy("world=grid", "world.seed=1", "log=real.csv")
    ledger = site / "real.csv.ledger.json"
    facts = json.loads(ledger.read_text())
    ledger.write_text(json.dumps({key: value for key, value in facts.items() if key != "world"}))
    deploy("world=grid", "world.seed=1", "log=real.csv")
    assert json.loads(ledger.read_text())["world"] == facts["world"] == "grid, world 1"


def test_a_log_is_of_one_world(site):
    """What one world shows says nothing of another: a log that was used for both passed for one."""
    deploy("world=grid", "world.seed=1", "log=real.csv")
    held = (site / "real.csv").read_bytes()
    for other in (["world=grid", "world.seed=2"], ["world=gym", "world.make=robot:connect"]):
        with pytest.raises(RecordingError, match="got one of grid, world 1, as .*real.csv.ledger.json says"):
            deploy(*other, "log=real.csv")
    deploy("world=grid", "world.seed=1", "log=real.csv")
    assert (site / "real.csv").read_bytes() == held


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
        (["sequential=true", "stopping.looks=1"], "stopping.looks: a whole number >= 2"),
        (["sequential=true", "stopping.by=luck"], "stopping.by: one of bootstrap, certified"),
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


def test_a_robot_that_moves_the_process_moves_no_file(site, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    (site / "roaming.py").write_text(
        f"import os, torch\nfrom robot import connect as c\ndef connect():\n    w = c()\n    os.chdir({str(other)!r})\n"
        "    torch.set_default_device('meta')\n    return w\n"
    )
    monkeypatch.delitem(sys.modules, "roaming", raising=False)
    deploy("world=gym", "world.make=roaming:connect", "log=real.csv", "export=policy.pt2")
    assert len((site / "real.csv").read_text().splitlines()) == 1 + 75 * 5 and (site / "policy.pt2").exists()
    assert sorted(path.name for path in other.iterdir()) == ["closed.txt", "resets.txt"]


def test_a_checkpoint_must_be_named(site):
    cfg = composed(config="deploy")
    with pytest.raises(SettingError, match="checkpoint: text; got nothing"):
        deploy_script.run(cfg, Path(), Console(quiet=True))


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


def test_a_policy_file_is_read_once(judged, monkeypatch):
    """So that the policy, its certificate and its family are of one file, also where another is put there meanwhile."""
    reads, real = [], policy_file.read
    monkeypatch.setattr(policy_file, "read", lambda path: reads.append(path) or real(path))
    assert "CERTIFICATE" in deploy("world=grid", "world.seed=1")
    assert len(reads) == 1


def test_an_unlike_world_is_refused_unless_one_insists(judged, monkeypatch):
    unlike = Likeness("refused", 0.005, 0.005, 0.2, ("most unusual: mean of row",))
    monkeypatch.setattr(deployment, "likeness_of", lambda *_: unlike)
    with pytest.raises(UnlikeSimulatorsError, match="mean of row") as refusal:
        deploy("world=grid", "world.seed=1")
    assert refusal.value.__notes__ == [instead(None, certified=True)]
    assert "nothing was certified" in instead(None, False) and "none was saved with it" in instead(None, True)
    text = deploy("world=grid", "world.seed=1", "refuse=false")
    assert text.index("WARNING: this world is refused") < text.index("CERTIFICATE")


@pytest.mark.parametrize(("actions", "legal"), [([0, 1, 1, 0, 0], True), ([0, 1, 1, 0, 2], False)])
def test_a_refusal_ends_with_what_the_file_holds_for_it(judged, monkeypatch, actions, legal):
    header, tensors = policy_file.read(judged / "policy.safetensors")
    header["notes"][FALLBACK] = actions
    crafted(judged / "policy.safetensors", header, tensors)
    unlike = Likeness("refused", 0.005, 0.005, 0.2, ("most unusual: mean of row",))
    monkeypatch.setattr(deployment, "likeness_of", lambda *_: unlike)
    console = Console(width=300, record=True, file=StringIO())
    with pytest.raises(Ended) as ended, clear_ending(console, "nothing was kept"):
        deploy("world=grid", "world.seed=1")
    last = console.export_text().splitlines()[-1]
    assert ended.value.code == 2 and last.startswith("in a refused world: follow the actions 0 1 1 0 0") is legal
    assert ("CheckpointError" in last and FALLBACK in last) is not legal


def test_a_certificate_covers_only_the_deployment_that_was_rehearsed(judged):
    text = deploy("world=grid", "world.seed=1", "sequential=true", "stopping.tolerance=1.0")
    assert "no certificate: it covers a fixed number of readings" in text and "CERTIFICATE" not in text
    assert "untested" in text


def started(site, *overrides, before=""):
    """The script as a process of its own, in the site's folder."""
    command = [sys.executable, str(SCRIPT), "checkpoint=policy.safetensors", "check=cover", *overrides]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(SCRIPT.parents[1])])}
    if before:
        command = ["bash", "-c", f"{before}; exec {shlex.join(command)}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=site, stdout=pipe, stderr=pipe, text=True, env=environment)


ROBOT_LOGGED = ("world=gym", "world.make=robot:connect", "log=real.csv")


def wait_for(process, path):
    deadline = time.monotonic() + 60
    while process.poll() is None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.slow
def test_the_second_process_on_a_log_is_refused_at_once_and_nothing_is_lost(site):
    first = started(site, *ROBOT_LOGGED, "+world.arguments.pause=0.01")
    wait_for(first, site / "real.csv")
    with pytest.raises(FileError, match=f"real.csv is in use by process {first.pid}"):
        deploy(*ROBOT_LOGGED)
    output, errors = first.communicate(timeout=120)
    assert first.returncode == 0, output + errors
    drawn = len((site / "resets.txt").read_text())
    ledger = json.loads((site / "real.csv.ledger.json").read_text())
    assert drawn == ledger["real_episodes"] == ledger["recorded_episodes"] == 75
    assert len((site / "real.csv").read_text().splitlines()) == 1 + 5 * 75


def test_a_full_disk_is_one_line_and_costs_one_episode(site):
    process = started(site, *ROBOT_LOGGED, before="ulimit -f 4")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in output + errors, output + errors
    assert "real.csv to be written; got File too large; 1 unsaved episodes" in output
    drawn = len((site / "resets.txt").read_text())
    assert len(read_recording(site / "real.csv", policy_of().problem.spec)) == drawn - 1
    assert sorted(p.name for p in site.iterdir() if "real" in p.name) == ["real.csv", "real.csv.ledger.json"]
    assert (site / "closed.txt").read_text() == "x"


@pytest.mark.parametrize("path", ["/proc/real.csv", "robot.py/real.csv"])
def test_what_can_never_be_written_is_found_before_the_first_episode(site, path):
    for key in ("log", "template"):
        with pytest.raises(FileError, match="to be written"):
            deploy("world=gym", "world.make=robot:connect", f"{key}={path}")
    assert not (site / "resets.txt").exists()


def test_a_robot_is_closed_once_however_it_ends(site, monkeypatch):
    deploy(*ROBOT_LOGGED)
    assert (site / "closed.txt").read_text() == "x"
    monkeypatch.setattr(sys.modules["robot"].Robot, "observation_space", gymnasium.spaces.Box(0, 1, (3,)))
    with pytest.raises(SettingError, match="obs_dim = 2"):
        deploy(*ROBOT_LOGGED)
    assert (site / "closed.txt").read_text() == "xx"


def test_what_a_world_showed_is_used_though_it_cannot_be_closed(site):
    (site / "tired.py").write_text(
        "import robot\n\nclass Tired(robot.Robot):\n    def close(self):\n        raise OSError('motor driver gone')\n"
    )
    with pytest.raises(SimulatorError, match="to be closed; got OSError: motor driver gone"):
        deploy("world=gym", "world.make=tired:Tired", "export=robot.pt2")
    assert (site / "robot.pt2").exists()


def test_a_form_with_readings_is_never_written_over(site):
    deploy("collect_only=true", "template=plan.csv")
    lines = (site / "plan.csv").read_text().splitlines()
    for i in range(1, 51):
        lines[i] = lines[i][:-1] + f"{i / 100},{i / 99}"
    (site / "plan.csv").write_text("\n".join(lines) + "\n")
    before = (site / "plan.csv").read_bytes()
    with pytest.raises(RecordingError, match="plan.csv holds 10 episodes with readings"):
        deploy("collect_only=true", "template=plan.csv")
    with pytest.raises(SettingError, match="template and world.file in different files"):
        deploy("world=recorded", "world.file=plan.csv", "template=plan.csv")
    assert (site / "plan.csv").read_bytes() == before


def test_names_are_printed_as_they_are(site):
    deploy(*ROBOT_LOGGED)
    (site / "data[").mkdir()
    for name in ("log[copy].csv", "data[/run].csv"):
        (site / name).write_bytes((site / "real.csv").read_bytes())
        assert name in deploy("world=recorded", f'world.file="{name}"')
    assert "written to plan[a].csv" in deploy("collect_only=true", 'template="plan[a].csv"')
    with pytest.raises(SettingError) as caught:
        deploy("world=gym", "world.make=robot:rude")
    assert "[/] [red] \\x1b[31m" in str(caught.value)


def test_home(site, monkeypatch):
    monkeypatch.setenv("HOME", str(site))
    deploy("world=grid", 'log="~/real.csv"')
    text = deploy("world=recorded", 'world.file="~/real.csv"', 'checkpoint="~/policy.safetensors"')
    assert "75, none with a reward" in text and not (site / "~").exists()


def test_any_registered_family_is_a_world(site):
    with pytest.raises(CheckpointError, match="world=grid, which this policy was trained for; got world=mine"):
        deploy("world=mine")
    assert "grid, world 3" in deploy("world.seed=3")  # the policy's own


def test_a_sequential_look_before_a_full_deployment_is_remembered(judged):
    deploy("world=grid", "world.seed=1", "log=real.csv", "sequential=true", "stopping.tolerance=1.0")
    for overrides in (["world=grid", "world.seed=1", "log=real.csv"], ["world=recorded", "world.file=real.csv"]):
        text = deploy(*overrides, "refuse=false")
        assert "looked at sequentially before" in text and "CERTIFICATE" not in text


def test_too_few_rehearsals_for_any_refusal_are_told(judged):
    text = deploy("world=grid", "world.seed=1")
    assert "no world can be refused" not in text
    few = replace(judged_policy().reference, scores=judged_policy().reference.scores[:200])
    save_policy("policy.safetensors", replace(judged_policy(), reference=few))
    text = deploy("world=grid", "world.seed=1")
    assert "no world can be refused with 200 scores of fresh simulators" in text and "399 are needed" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=lambda value: str(value),
)
def test_after_an_interruption_the_next_call_goes_on(site, number, code):
    process = started(site, *ROBOT_LOGGED, "+world.arguments.pause=0.05")
    wait_for(process, site / "real.csv")
    time.sleep(0.5)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, output + errors
    assert "interrupted; what was seen is in real.csv: the same command goes on from there" in output
    ledger = json.loads((site / "real.csv.ledger.json").read_text())
    seen = ledger["real_episodes"]
    assert (site / "closed.txt").read_text() == "x"
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
