"""Scripts from their command line to their end, in this process and, where the process matters, in one of their own."""

import importlib
import io
import os
import signal
import subprocess
import sys
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console
from support.smoke import ROOT

from s2r_torch.commands import configuration, new
from s2r_torch.runs.configuring import configured


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(arguments, job) -> (exit code, what was printed) of a script, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def start(*arguments: str, job=lambda cfg, folder, console: None, name: str = "run", kept=None):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        console = Console(file=io.StringIO(), width=200)
        kept = kept or (lambda cfg, folder: f"{folder.name} is kept")
        try:
            configuration.script(name, job, kept=kept, about=lambda: "HELP", console=console)
            return 0, console.file.getvalue()
        except SystemExit as ended:
            return ended.code, console.file.getvalue()
        finally:
            GlobalHydra.instance().clear()

    return start


def check(cfg, folder: Path, console: Console) -> None:
    settings, _ = configured(configuration.plain_config(cfg))
    console.print(f"did seed {settings.seed} in {folder.name}")


@pytest.mark.parametrize("given", ['hydra.run.dir="~/mine"', "hydra.run.dir=~/mine"])
def test_a_folder_at_home_is_there_and_none_is_called_a_tilde(run, tmp_path, monkeypatch, given):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code, text = run("+experiment=grid", given, job=check)
    assert code == 0 and (tmp_path / "home" / "mine").is_dir() and not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("given", "jobs", "kind"), [((), 1, "sim2real-calibrated-seed0"), (("-m", "seed=0,1"), 2, "multirun")]
)
def test_commands_that_start_in_one_second_get_a_folder_each(run, tmp_path, monkeypatch, given, jobs, kind):
    class Stopped(datetime):
        @classmethod
        def now(cls):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr("hydra.core.utils.datetime", Stopped)
    folders = []
    for _ in range(3):
        configuration.folder_of_its_own.cache_clear()  # as in a process of its own
        begun = []
        assert run(*given, "+experiment=grid", job=lambda cfg, folder, console: begun.append(folder))[0] == 0  # noqa: B023
        assert all(folder.is_dir() for folder in begun)
        folders += begun
    assert len(set(folders)) == len(folders) == 3 * jobs
    there = sorted(path.name for path in (tmp_path / "runs" / "grid").iterdir())
    assert there == [f"20260102-030405-{kind}{end}" for end in ("", "-run2", "-run3")]


@pytest.mark.parametrize("shown", [["--cfg", "all", "--resolve"], ["-c", "hydra"], ["--info"]])
def test_a_configuration_that_is_only_shown_leaves_no_folder(run, tmp_path, shown):
    assert run(*shown)[0] == 0 and not list(tmp_path.iterdir())


def test_outputs_that_are_closed_are_no_failure(tmp_path):
    """Nor does a file that is opened later take the number of an output."""
    command = [sys.executable, str(ROOT / "scripts" / "plan.py"), "json=true", "figure=null"]
    inherited = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", '"$@" >&- 2>&-', "bash", *command], cwd=tmp_path, env=inherited, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0


def test_a_script_does_its_job(run, tmp_path):
    code, text = run("+experiment=grid", "seed=3", job=check)
    assert code == 0 and "did seed 3 in" in text
    (folder,) = (tmp_path / "runs" / "grid").iterdir()
    assert folder.name.endswith("-sim2real-calibrated-seed3")


def test_help_says_what_there_is(run, tmp_path):
    assert run("--help") == (0, "HELP\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["seed=7.9"], "SettingError: expected seed: a whole number; got 7.9"),
        (["env.width=2"], "SettingError: expected a width >= 3; got 2; likely cause: the safe cell"),
        (["sede=1"], "Could not override 'sede'.; likely cause: a typo for seed"),
        (["net.conv.width=64"], "Could not override 'net.conv.width'.; likely cause: net=conv was not given"),
        (["net.width=64"], "likely cause: a setting without its network: net.NETWORK.width"),
        (["env=null"], "null for a group such as env"),
        (["env=[grid,lock]"], "expected one name: env=NAME; got env=[grid,lock]"),
        (["encoder=[pca,learned]"], "expected one name: encoder=NAME; got encoder=[pca,learned]"),
        (["--cfg", "hydra", "--resolve"], "--cfg hydra knows Hydra's own part alone: --cfg all"),
        (["net=null"], "SettingError: expected settings that can be put together; got"),
        (["budget=[1,2]"], "for a group, which is a folder of configurations and needs a name"),
        (["+experiment=gird"], "Could not find 'experiment/gird'"),
        (["name=~/mine"], "write $HOME"),
        (["name=größe"], """in quotes it does not: 'name="gr"""),
        (["name=run=1"], """expected a setting KEY=VALUE; got 'name=run=1': mismatched input '='"""),
        (["name=run (1)"], """in quotes it does not: 'name="run (1)"'"""),
        (["name={run}"], """in quotes it does not: 'name="{run}"'"""),
        (["name", "=mine"], "a value without its key, or a blank beside the ="),
        (["="], "got =; likely cause: a value without its key, or a blank beside the ="),
        (["+=1"], "got +=1; likely cause: a value without its key"),
        (["seed=0,5"], "Ambiguous value for argument 'seed=0,5'; likely cause: a decimal comma"),
        (["--seed=3"], "got --seed=3; likely cause: a dash before a setting, which has none: KEY=VALUE"),
        (["-seed", "3"], "likely cause: a dash before a setting"),
        (["--h"], "got ambiguous option: --h could match --help, --hydra-help; likely cause: a dash before"),
        (["name=${nothing}"], "Interpolation key 'nothing' not found"),
        (["hydra.run.dir=/dev/null/here"], "NotADirectoryError: [Errno 20] Not a directory: '/dev/null/here'"),
        (["name=../../up"], "expected name: a name of"),
        ([f"name={'x' * 2000}"], "expected name: a name of at most 200"),
    ],
)
def test_what_is_wrong_is_one_line(run, tmp_path, arguments, line):
    code, text = run(*arguments, job=check)
    assert code == 2 and line in text
    assert text.count("\n") == 1
    assert not (tmp_path.parent / "up").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# @package _global_\nname: mine\nbudget:\n\tn_dist: 9\n", "'\\t' that cannot start any token at line 4 of"),
        ("# @package _global_\nseed: 1\nseed: 2\n", "duplicate key seed at line 3 of"),
        (
            "# @package _global_\n# gr\xf6\xdfer\n",
            "in conf/experiment/mine.yaml; likely cause: a file that is not",
        ),
        ("name: mine\nseed: 3\n", "first line is '# @package _global_'; got keys below 'experiment': name, seed"),
        ("# @package _global_\nbudget: {n_dist: 1:40}\n", "got 1:40 at line 2 of"),
        ("# @package _global_\nbudget:\n  n_dist: 0100\n", "got 0100 at line 3 of"),
        ("# @package _global_\nseed: -12:30:00\n", "got -12:30:00 at line 2 of"),
        ("# @package _global_\nbudget:\n  n_dist: 0x64\n", "got 0x64 at line 3 of"),
        ("# @package _global_\nseed: 0b11\n", "got 0b11 at line 2 of"),
        (
            "- 1\n",
            "expected an experiment with settings KEY: VALUE, whose first line is '# @package _global_'; got [1] in",
        ),
    ],
)
def test_an_experiment_that_is_no_configuration_is_one_line(run, tmp_path, text, line):
    (tmp_path / "conf" / "experiment" / "a_folder.yaml").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_bytes(text.encode("latin-1"))
    code, said = run("+experiment=mine", job=check)
    assert code == 2 and line in said and said.count("\n") == 1, said


@pytest.mark.parametrize(("text", "seed"), [("30", 30), ("0", 0), ("1_000", 1000), ("1e2", None), ("3  # at 12:30", 3)])
def test_decimal_numbers_of_a_file_are_taken_as_they_look(run, tmp_path, text, seed):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    lines = f"# @package _global_\nname: '0x64'\nseed: {text}\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(lines)
    code, said = run("+experiment=mine", job=lambda cfg, folder, console: console.print(cfg.name, cfg.seed))
    assert (code, said) == (0, f"0x64 {100.0 if seed is None else seed}\n")


@pytest.mark.parametrize("folder", [".", "conf"])
def test_an_editors_mark_before_a_configuration_changes_nothing(run, tmp_path, folder):
    text = "# @package _global_\ndefaults:\n  - override /env: lock\nname: marked\nseed: 7\n"
    path = tmp_path / folder / "experiment" / "marked.yaml"
    path.parent.mkdir(parents=True)
    done = []
    job = lambda cfg, folder, console: done.append((cfg.name, cfg.seed, cfg.env.name))  # noqa: E731
    path.write_text(text, encoding="utf-8-sig")
    assert run("+experiment=marked", job=job) == (0, "") and done == [("marked", 7, "lock")]
    path.write_text(text.replace("7", "1:40"), encoding="utf-8-sig")
    code, said = run("+experiment=marked", job=job)
    assert code == 2 and "1:40 at line 5 of" in said
    (tmp_path / "other" / "experiment").mkdir(parents=True)
    path.rename(tmp_path / "other" / "experiment" / "elsewhere.yaml").write_text(
        "# @package _global_\nseed: 3\n", encoding="utf-8-sig"
    )
    code, said = run("--config-dir", "other", "+experiment=elsewhere", job=check)  # Hydra's own reader
    assert code == 2 and "a mark (BOM)" in said and said.count("\n") == 1


def test_a_module_that_lowers_the_limit_of_recursion_lowers_it_for_itself(tmp_path):
    (tmp_path / "shallow.py").write_text("import sys\nsys.setrecursionlimit(60)\n")
    (tmp_path / "deep.py").write_text("import sys\nsys.setrecursionlimit(4321)\n")
    code = "import sys\nfrom s2r_torch.registry import import_plugins\n"
    code += "import_plugins(['shallow'])\nprint(sys.getrecursionlimit())\n"
    code += "import_plugins(['deep'])\nprint(sys.getrecursionlimit())\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1000", "4321"], done.stderr


def test_of_a_setting_that_is_given_twice_it_is_said_which_counts(run, capfd):
    code, said = run("seed=1", "name=mine", "budget.n_dist=50", "++seed=2", "name=mine", job=check)
    assert code == 0 and said.startswith("did seed 2")
    assert capfd.readouterr().err == "seed=1 does not count: ++seed=2 comes after it\n"


def test_an_error_of_a_job_stays_its_own(run, capfd):
    code, said = run(job=lambda *_: len(3))
    assert code == 2 and said.startswith("unforeseen: TypeError: object of type 'int' has no len()")
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("deploy", ["chekpoint=a.safetensors"], "Could not override 'chekpoint'.; likely cause: a typo for checkpoint"),
        ("plan", ["horizn=3"], "likely cause: a typo for horizon"),
        ("forecast", ["figure=a.png"], "likely cause: a setting that is not one of this command's"),
        ("compare", ["compare=nest"], "Could not find 'compare/nest'"),
    ],
)
def test_every_script_says_what_it_does_not_know(run, name, arguments, line):
    code, text = run(*arguments, name=name)
    assert code == 2 and line in text and text.count("\n") == 1


def test_options_and_settings_in_any_order(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "small.yaml").write_text("# @package _global_\nname: small\n")
    done = []
    job = lambda cfg, folder, console: done.append((cfg.name, cfg.seed))  # noqa: E731
    assert run("+experiment=grid", "-m", "seed=0,1", job=job)[0] == 0 and [seed for _, seed in done] == [0, 1]
    assert run("seed=2", "--config-dir", "mine", "+small=null", job=job)[0] == 0 and done[-1][1] == 2
    assert run("+experiment=grid", "--info", "defaults", job=job)[0] == 0
    assert run("+experiment=grid", "--info", job=job)[0] == 0 and len(done) == 3


def test_a_setting_that_leads_nowhere_is_one_line_though_the_ending_asks_for_it(run, capfd):
    code, text = run("checkpoint=a", "log=${nope}", name="deploy", kept=lambda cfg, folder: f"kept in {cfg.log}")
    assert code == 2 and text.startswith("SettingError") and "Interpolation key 'nope' not found" in text
    assert text.count("\n") == 1 and "Error executing" not in capfd.readouterr().err


@pytest.mark.parametrize("leads_nowhere", ["${oc.env:S2R_NOT_THERE}", "${seed}", "${nosuch:1}"])
def test_a_setting_that_leads_nowhere_is_one_line_in_a_folder_that_was_named(run, tmp_path, leads_nowhere):
    job = lambda cfg, folder, console: configuration.plain_config(cfg)  # noqa: E731
    code, text = run(f"seed={leads_nowhere}", f"hydra.run.dir={tmp_path / 'mine'}", job=job)
    assert code == 2 and text.startswith("SettingError") and text.count("\n") == 1


@pytest.mark.parametrize("name", ["plan", pytest.param("deploy", marks=pytest.mark.slow)])
def test_help_without_docstrings(tmp_path, name):
    command = [sys.executable, "-OO", str(ROOT / "scripts" / f"{name}.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "python -OO takes" in done.stdout + done.stderr


def test_a_sweep_goes_on_and_lists_what_failed(run):
    code, text = run("-m", "+experiment=grid", "seed=x,1,7.5", "rule=sharp", job=check)
    lines = text.splitlines()
    assert code == 2
    assert lines[0].startswith("SettingError: expected seed") and lines[1].startswith("did seed 1 in 1-sim2real-sharp")
    assert lines[3:] == [
        "2 of these jobs failed, as said above:",
        "    +experiment=grid seed=x rule=sharp",
        "    +experiment=grid seed=7.5 rule=sharp",
    ]
    assert run("-m", "seed=0,1", job=check)[0] == 0


def test_an_interruption_ends_a_sweep(run):
    def stop(cfg, folder, console):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    code, text = run("-m", "seed=0,1", job=stop)
    assert code == 143 and text.count("interrupted; ") == 1


def test_code_of_users_that_exits_is_no_success(run, tmp_path, monkeypatch):
    assert run(job=lambda *_: sys.exit(0))[0] == 2
    (tmp_path / "quitter.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    code, text = run("plugins=quitter", job=check)
    assert code == 2 and "got SystemExit: 0" in text and text.count("\n") == 1


# -- processes of their own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, 130), (signal.SIGQUIT, 130), (signal.SIGTERM, 143)])
def test_signals_while_libraries_are_imported(number, ends):
    code = f"""
import os, time
from s2r_torch.commands import starting
starting.end_on_signals()
os.kill(os.getpid(), {int(number)})
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == ends and done.stderr == "interrupted\n"


def test_a_second_signal_at_the_very_end_changes_no_code():
    """When Python has put its defaults back, of which that of SIGINT kills."""
    code = """
import os, signal
from s2r_torch.commands import starting
class Last:
    kill, process, number = os.kill, os.getpid(), signal.SIGINT
    def __del__(self):
        Last.kill(Last.process, Last.number)
last = Last()
starting.import_module = lambda name: starting
starting.main = lambda: starting.sys.exit(143)
starting.plan()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize(
    "raised", ["ModuleNotFoundError('no rich')", "MemoryError()", "OSError(5, 'no')", "ValueError('TORCH_LOGS\\nno')"]
)
def test_a_library_that_cannot_be_imported_is_one_line(raised):
    code = f"""
from s2r_torch.commands import starting
def broken(name):
    raise {raised}
starting.import_module = broken
starting.plan()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(raised.partition("(")[0]) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("code", [0, 2])
def test_a_thread_that_does_not_end_is_told_and_ended_by_a_signal(code):
    script = f"""
import os, threading
from s2r_torch.commands import starting
starting.PATIENCE = 0.01
starting.import_module = lambda name: starting
def main():
    threading.Thread(target=threading.Event().wait, name="of the camera").start()
    starting.ignore_signals()
    if {code}:
        starting.sys.exit({code})
starting.main = main
starting.plan()
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        while process.poll() is None:  # it may not be listening yet
            process.send_signal(signal.SIGINT)
    assert "waits for threads of code of yours or of a driver: of the camera; Ctrl-C ends it" in line
    assert process.returncode == code


def test_too_few_addresses_are_one_line_before_a_library_asks_for_them():
    code = """
import resource
from s2r_torch.commands import starting
starting.import_module = lambda name: starting.sys.exit("imported")
resource.setrlimit(resource.RLIMIT_AS, (starting.LEAST - 1, resource.RLIM_INFINITY))
starting.plan()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "MemoryError: expected ulimit -v of 1048576 at least; got 1048575\n")


def test_what_libraries_hold_is_not_searched_for_garbage():
    """Among the objects of torch and the rest that takes 0.1 s each time; what a command makes itself is searched."""
    code = """
import gc
from s2r_torch.commands import starting
class Library:
    def __init__(self):
        self.itself = self
seen = []
def importing(name):
    seen.append((gc.isenabled(), Library()))
    return starting
def main():
    known = {id(thing) for thing in gc.get_objects()}
    assert gc.isenabled() and id(seen[0][1]) not in known and id(Library()) in {id(thing) for thing in gc.get_objects()}
starting.import_module, starting.main = importing, main
starting.plan()
assert seen[0][0] is False
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_full_disk_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "scripts" / "plan.py"), "json=true", "figure=null", "epsilon_points=2"]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["OSError: [Errno 28] No space left on device"]


HEAVY = (
    "lightning gymnasium matplotlib joblib ray pandas pyarrow sympy scipy.stats scipy.optimize torch._dynamo torch.onnx"
)
DEMO = f"checkpoint={ROOT / 'checkpoints' / 'grid.safetensors'} world=grid world.seed=7"


@pytest.mark.parametrize(
    ("name", "arguments", "never"),
    [
        ("plan", "--help", f"{HEAVY} torch scipy.special scipy.sparse"),
        pytest.param("check", "--help", f"{HEAVY} scipy.special scipy.sparse", marks=pytest.mark.slow),
        pytest.param("deploy", "--help", f"{HEAVY} scipy.special scipy.sparse", marks=pytest.mark.slow),
        ("deploy", DEMO, HEAVY),
        pytest.param("run", "--help", HEAVY.replace("gymnasium", "scipy.special scipy.sparse"), marks=pytest.mark.slow),
    ],
)
def test_no_command_waits_for_what_it_does_not_need(tmp_path, name, arguments, never):
    code = f"""
import sys
from s2r_torch.commands import starting
sys.argv = ["s2r-{name}", *"{arguments}".split()]
try:
    starting.{name}()
except SystemExit as ended:
    assert not ended.code
assert not (loaded := set("{never}".split()) & set(sys.modules)), loaded
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"s2r-{name}" in done.stdout + done.stderr or "CERTIFICATE" in done.stdout


def test_every_command_is_installed_and_has_a_script():
    """What pyproject.toml names is there, and a clone has the same by python scripts/NAME.py."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert len(named) == 6
    for command, place in named.items():
        module, _, function = place.partition(":")
        assert command == f"s2r-{function}" and callable(getattr(importlib.import_module(module), function))
        script = {"new": "new_family"}.get(function, function)
        assert f"    {function}()" in (ROOT / "scripts" / f"{script}.py").read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ([], "the following arguments are required: name"),
        (["a", "b"], "unrecognized arguments: b"),
        (["a", "--base", "sb3"], "argument --base: invalid choice: 'sb3'"),
    ],
)
def test_a_slip_of_the_command_that_has_no_settings_is_one_line_too(monkeypatch, capsys, arguments, got):
    monkeypatch.setattr(sys, "argv", ["s2r-new", *arguments])
    with pytest.raises(SystemExit) as ended:
        new.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.err
    assert said.out.startswith(f"SettingError: expected NAME, and options that --help shows; got {got}")
    assert said.out.count("\n") == 1
