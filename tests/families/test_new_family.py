"""What `s2r-new` writes passes its own test; `s2r-check` prints a table and ends with 0 or 2."""

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from s2r_torch.errors import FileError, SettingError
from s2r_torch.families import FAMILIES, new
from s2r_torch.families.new import BASES, write_family
from s2r_torch.files.whole import write_text

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, in which families may be registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FAMILIES, "_known", dict(FAMILIES._known))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def command(name, *arguments, capsys, monkeypatch):
    """Exit code and output of a command, in this process."""
    monkeypatch.setattr(sys, "argv", [f"s2r-{name}", *arguments])
    code = 0
    try:
        importlib.import_module(f"s2r_torch.commands.{name}").main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        GlobalHydra.instance().clear()
    return code, capsys.readouterr().out


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_disk_that_fills_leaves_none_of_the_files(folder, monkeypatch):
    calls = []

    def full(path, text):
        calls.append(path)
        if len(calls) == 3:
            raise FileError(expected=f"{path} to be written", got="No space left on device", cause="a full disk")
        write_text(path, text)

    monkeypatch.setattr(new, "write_text", full)
    with pytest.raises(FileError, match="No space left"):
        write_family("my_line", "function", folder)
    monkeypatch.undo()
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert len(write_family("my_line", "function", folder)) == 3


@pytest.mark.parametrize("name", ["torch", "numpy", "class", "random", "grid"])
def test_a_name_that_would_hide_another_module_is_refused(folder, name):
    with pytest.raises(SettingError, match="a name that is free, for a module"):
        write_family(name, "function", folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("base", BASES)
def test_what_is_written_passes_its_own_test(base, folder, capsys, monkeypatch):
    name = f"my_{base}"
    arguments = (name, "--base", base)
    code, printed = command("new", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    written = {f"{name}.py", f"test_{name}.py", f"conf/experiment/{name}.yaml"}
    assert code == 0 and set(printed.split()) == written
    assert not any("my_world" in (folder / path).read_text() for path in written)
    tests = loaded(folder / f"test_{name}.py")
    tests.test_theta_decides_what_pays()
    contract = tests.TestContract()
    methods = [method for name, method in inspect.getmembers(contract, callable) if name.startswith("test_")]
    assert len(methods) >= 10
    for method in methods:
        method()
    code, printed = command("new", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2 and "files that are not there yet" in printed.replace("\n", " ")


@pytest.mark.slow
def test_pytest_finds_the_tests_that_ship(tmp_path):
    write_family("rail", "function", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_rail.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_family_of_ones_own_is_checked_by_name(folder, capsys, monkeypatch):
    write_family("rail", "function", folder)

    def check(*arguments):
        code, printed = command("check", *arguments, capsys=capsys, monkeypatch=monkeypatch)
        return code, " ".join(printed.split())

    code, printed = check("env=rail")
    assert code == 0 and "refused" not in printed and "box = position" in printed
    code, printed = check("env=rail", "env.tremble=0")
    assert code == 2 and "w decides what pays" in printed
    for arguments, words in (
        (("env=nowhere",), "a plugin not imported"),
        (("env=grid", "env.width=2"), "a width >= 3"),
        (("grid",), "missing EQUAL"),
        (("env=grid", "env.nosuch=1"), "nosuch"),
        (("env=grid", "plugins=[no_such_module]"), "no_such_module"),
        (("env=grid", "encoder=nothing"), "one of the encoders"),
    ):
        code, printed = check(*arguments)
        assert code == 2 and words in printed


@pytest.mark.parametrize("name", ["my world", "grid", "random", "1st", "", "[x]", "../up"])
def test_names_that_cannot_be(name, tmp_path):
    with pytest.raises(SettingError):
        write_family(name, "function", tmp_path)
    assert not list(tmp_path.iterdir())
