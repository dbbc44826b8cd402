"""Problems whose names no file, spreadsheet or terminal would change."""

import pytest

from s2r_torch.base import ProblemSpec
from s2r_torch.errors import SettingError


def spec(*names):
    return ProblemSpec(2, 3, 2, len(names), (0.0,) * len(names), (1.0,) * len(names), names)


def test_names_that_columns_can_have():
    names = ("x [m]", "v, lateral", "temp °C", "x_1", "it's", "a.b", "Episode")
    assert spec(*names).obs_names == names
    assert ProblemSpec(2, 3, 2, 2, (0.0,) * 2, (1.0,) * 2).obs_names == ("x_1", "x_2")


BAD = ["", " x", "x ", "x\ny", "x\ty", "\x1b[31m", 'a"b', "episode", "step", "action", "=1+1", "+x", "-x", "@x", "#x"]


@pytest.mark.parametrize("name", [*BAD, 101 * "x", "\ud800", "x\u200b", 7, None])
def test_names_that_would_become_something_else(name):
    with pytest.raises(SettingError, match="obs_names that columns of a table can have") as caught:
        spec("good", name)
    assert str(caught.value).isprintable()


def test_names_are_different_and_as_many_as_sensors():
    with pytest.raises(SettingError, match="different names; got 'x'"):
        spec("x", "y", "x")
    with pytest.raises(SettingError, match="2 obs_names, one per coordinate; got 1"):
        ProblemSpec(2, 3, 2, 2, (0.0,) * 2, (1.0,) * 2, ("x",))
