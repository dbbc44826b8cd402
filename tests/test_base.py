"""Problems whose names no file, spreadsheet or terminal would change; walks on the state graph."""

from itertools import product

import pytest
import torch

from s2r_torch.base import ProblemSpec, after, told
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family


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


def test_best_totals_are_those_of_the_best_sequence():
    """Of three simulators with rewards in quarters, so that many are equal: the first best sequence in order."""
    graph = make_family("grid").graph
    reward = torch.randint(5, (3, 9, 2), generator=torch.Generator().manual_seed(0)).double() / 4
    sequences = torch.tensor(list(product(range(2), repeat=graph.horizon)))
    totals = reward[:, graph.visited(sequences), sequences].sum(-1)  # [3, sequences]
    value, best = graph.best_totals(reward)
    assert torch.equal(value[:, 0], totals.amax(1))
    for b, at in enumerate(totals.argmax(1)):
        path = ()
        for _ in range(graph.horizon):
            path += (int(best[b, graph.end(path)]),)
        assert path == tuple(sequences[at].tolist())


def test_long_paths_are_told_in_runs():
    assert after(()) == "at the start" and after((0, 1, 1)) == "after actions 0 1 1"
    assert after((1,) * 17 + (0, 1, 1)) == "after actions 17 times 1, 0, 2 times 1"
    assert told((1,) * 16) == str((1,) * 16) and told((1,) * 17) == "(17 times 1)"
