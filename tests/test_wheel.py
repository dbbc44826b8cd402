"""A wheel is enough: in a fresh environment and an empty folder, every command works without a clone."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.smoke import ROOT, SMALL

pytestmark = pytest.mark.slow

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "s2r_torch", "conf")
COMMANDS = {f"s2r-{name}" for name in ("run", "deploy", "plan", "compare", "check", "new")}


def done(command: list, cwd: Path) -> str:
    """What a command prints that ends with 0; nothing of a clone is on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"COLUMNS": "160"}
    ended = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A clone's sources, where a build may leave its folders."""
    folder = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request, sources, tmp_path_factory) -> Path:
    """The commands' folder of an environment of its own, which sees the libraries of this one."""
    place = tmp_path_factory.mktemp(request.param)
    done([sys.executable, "-m", "venv", "--without-pip", place], place)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "-q"]
    offline = ["--no-deps", "--no-build-isolation"]
    if request.param == "wheel":
        done([*pip, "wheel", *offline, "-w", place, sources], place)
    what = place.glob("*.whl") if request.param == "wheel" else ["-e", sources]
    done([*pip, "install", *offline, "--ignore-installed", *what], place)
    return place / "bin"


def test_commands_find_their_configurations(installed, sources, tmp_path):
    assert {path.name for path in installed.glob("s2r-*")} == COMMANDS
    code = "import s2r_torch; print(s2r_torch.__file__)"
    place = Path(done([installed / "python", "-c", code], tmp_path).strip())
    assert place.is_relative_to(installed.parent) or place.is_relative_to(sources)
    assert "name: frozenlake" in done([installed / "s2r-run", "+experiment=frozenlake", "--cfg", "job"], tmp_path)
    assert "Theorem" in done([installed / "s2r-plan", "figure=null", "epsilon_points=2"], tmp_path)
    assert "entries" in done([installed / "s2r-compare", "compare=nets", "--cfg", "job"], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_from_nothing_to_a_deployed_policy(installed, tmp_path):
    def command(name: str, *arguments: str) -> str:
        return done([installed / f"s2r-{name}", *arguments], tmp_path)

    assert "deployed value" in command("run", "+experiment=grid", *SMALL, "hydra.run.dir=first")
    assert "150 episodes" in command("deploy", "checkpoint=first/policy.safetensors", "world=grid", "world.seed=7")
    assert "my_world.py" in command("new", "my_world")
    assert "refused" not in command("check", "env=my_world")
    assert "deployed value" in command("run", "+experiment=my_world", *SMALL, "hydra.run.dir=second")
    said = command("deploy", "checkpoint=second/policy.safetensors", "world=my_world", "world.seed=7", "refuse=false")
    assert "episodes" in said
