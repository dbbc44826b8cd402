"""What a run is a function of: users' own files, and those beside them that these import."""

import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.smoke import small_settings

from s2r_torch.families import FAMILIES, make_family
from s2r_torch.runs import sources
from s2r_torch.runs.origin import differences, origin_of

FAMILY = """
import rail_parts
from rail_numbers import SHARE
from s2r_torch.families import register_family
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.sensors import AffineSensor, uniform_prior


def step(theta, place, action):
    return rail_parts.moved(place, action), theta.w * SHARE if place == 1 else 0.0


MAP = "rail_map.txt"
GAIN = ("rail_data", "deep", "gain.txt")  # as Path(__file__).parent.joinpath(*GAIN)


@register_family("rail_of_test")
def rail():
    return FunctionFamily(
        name="rail_of_test", step=step, start=0, num_actions=2, horizon=2, theta_names=("w",),
        prior=uniform_prior((0.0, 1.0)), sensor=AffineSensor(("x",), width=0.3),
    )
"""
PARTS = """
def moved(place, action):
    return place + 2 * action - 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "rail_of_test.py").write_text(FAMILY)
    (tmp_path / "rail_parts.py").write_text(PARTS)
    (tmp_path / "rail_numbers.py").write_text("SHARE = 1.0\n")
    (tmp_path / "rail_map.txt").write_text("1 0 1\n")
    (tmp_path / "not_named.txt").write_text("1\n")
    (tmp_path / "rail_data" / "deep").mkdir(parents=True)
    (tmp_path / "rail_data" / "deep" / "gain.txt").write_text("1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(FAMILIES, "_known", dict(FAMILIES._known))
    importlib.import_module("rail_of_test")
    yield tmp_path
    for name in ("rail_of_test", "rail_parts", "rail_numbers"):
        sys.modules.pop(name)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(
    "file", ["rail_of_test.py", "rail_parts.py", "rail_numbers.py", "rail_map.txt", "rail_data/deep/gain.txt"]
)
def test_an_edited_file_of_the_user_is_another_run(folder, file, registered):
    settings, family = small_settings(), make_family("rail_of_test")
    if not registered:
        FAMILIES._known.pop("rail_of_test")
    before = origin_of(settings, family)
    assert differences(before, origin_of(settings, family)) == []
    (folder / "not_named.txt").write_text("2\n")
    path = folder / file
    path.write_text(path.read_text().replace("1", "-1"))
    (changed,) = differences(before, origin_of(settings, family))
    assert changed.startswith(f"code.{Path(file).name.removesuffix('.py')} (")


def test_another_version_of_a_package_that_a_family_imports_is_another_run(folder, monkeypatch):
    path = folder / "rail_of_test.py"
    path.write_text(f"import gymnasium.spaces\nimport torch\nimport nowhere_to_be_found\n{path.read_text()}")
    before = origin_of(small_settings(), make_family("rail_of_test"))
    installed = sources._installed
    monkeypatch.setattr(sources, "_installed", lambda top: dict.fromkeys(installed(top), "0"))
    now = origin_of(small_settings(), make_family("rail_of_test"))
    assert {line.partition(" ")[0] for line in differences(before, now)} == {"gymnasium"}
    assert "gymnasium" in origin_of(small_settings(), make_family("frozenlake"))


SESSION = """
import sys
import s2r_torch
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.runs import sources
from s2r_torch.runs.origin import origin_of

PLACE, FAR = 1, 2

def moved(place, action):
    return place + FAR * action - 1

class Ruler(AffineSensor):
    def read(self, theta, latent, generators):
        return 1.0 * super().read(theta, latent, generators)

def step(theta, place, action):
    return moved(place, action), theta.w if place == PLACE else 0.0

family = FunctionFamily(
    name="rail", step=step, start=0, num_actions=2, horizon=2, theta_names=("w",), prior=uniform_prior((0.0, 1.0)),
    sensor=Ruler(("x",), width=0.3),
)
told = origin_of(s2r_torch.RunSettings(name="rail"), family)
print({name: value for name, value in told.items() if name.startswith("code.")})
"""


def said(code):
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def test_code_that_is_in_no_file_is_part_of_a_run():
    """A function, what it calls and the numbers that it uses, and the class of a sensor; nothing else."""
    before = said(SESSION)
    assert said(f"# as before\n{SESSION}") == before and "code.step" in before and "code.Ruler" in before
    edits = (
        ("else 0.0", "else 0.1"),
        ("action - 1", "action - 2"),
        ("FAR = 1, 2", "FAR = 1, 3"),
        ("1.0 * super", "2 * super"),
    )
    assert all(said(SESSION.replace(*edit)) != before for edit in edits)


def test_functions_in_partial_ones_are_followed(folder):
    family = make_family("rail_of_test")
    module, path = sys.modules["rail_of_test"], folder / "rail_of_test.py"
    FAMILIES._known.pop("rail_of_test")
    object.__setattr__(family.dynamics, "step", functools.partial(module.step))
    before = origin_of(small_settings(), family)
    path.write_text(path.read_text().replace("else 0.0", "else 0.1"))
    assert [line.split(" ")[0] for line in differences(before, origin_of(small_settings(), family))] == [
        "code.rail_of_test"
    ]
