"""The figure of an exploration: drawn for lines and maps, with every state and every merge in it."""

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from support.worlds import estimator_of, random_world

from s2r_torch.episodes import Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.learning.estimator import DensitySettings, make_estimator
from s2r_torch.learning.exploration import explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.reports.exploration_figure import (
    draw_distances,
    draw_graph,
    exploration_figure,
    positions,
    unlike_simulators,
)
from s2r_torch.reports.style import new_figure, plain_look, png, save_figure
from s2r_torch.rng import Seed

MERGE = MergeSettings(n_merge=300, deciders=4)


def axes():
    return Figure().subplots()


@pytest.fixture(scope="module")
def explored():
    world = random_world(4, 4, 2)
    return explore(world.guard((-0.9, 0.1, 0.7, 0.4)), estimator_of(world), MERGE, 60, Seed.root(0))


def test_lines(explored, tmp_path):
    world = random_world(4, 4, 2)
    save_figure(exploration_figure(explored, estimator_of(world).grid, ("x",)), tmp_path / "exploration.png")
    assert nothing_is_cut(tmp_path / "exploration.png")


def test_maps(tmp_path):
    family, seed = make_family("grid"), Seed.root(0)
    simulators = Draws(family, seed, Ledger()).simulators("train", 4)
    estimator = make_estimator(DensitySettings(), simulators, 100, seed)
    found = explore(simulators, estimator, MergeSettings(n_merge=600, deciders=4), 50, seed)
    save_figure(exploration_figure(found, estimator.grid, family.spec.obs_names), tmp_path / "exploration.png")
    assert nothing_is_cut(tmp_path / "exploration.png")


def nothing_is_cut(path):
    """A picture with something in it and white edges: no title runs out of it."""
    pixels = torch.as_tensor(imread(path))
    edges = pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]
    return path.stat().st_size > 20_000 and all(bool((edge == 1).all()) for edge in edges)


def test_a_single_state_has_a_figure(tmp_path):
    world = random_world(4, 1, 2)
    found = explore(world.guard((0.1,)), estimator_of(world), MERGE, 60, Seed.root(0))
    save_figure(exploration_figure(found, estimator_of(world).grid, ("x",)), tmp_path / "exploration.png")
    assert (tmp_path / "exploration.png").exists()


def test_the_graph_shows_every_state_and_pair_of_states(explored):
    panel, graph = axes(), explored.graph
    draw_graph(panel, explored)
    texts = [text.get_text() for text in panel.texts]
    assert set(texts) >= {str(s) for s in range(graph.num_states)}
    pairs = {(s, t) for s, row in enumerate(graph.next_state.tolist()) for t in row if t >= 0}
    assert sum(text == "" for text in texts) == len(pairs)  # annotations that are arrows
    assert len(set(positions(graph))) == graph.num_states


def test_distances_show_every_path_that_met_a_state(explored):
    panel = axes()
    draw_distances(panel, explored)
    points = sum(len(line.get_xdata()) for line in panel.lines if line.get_marker() == "o")
    assert points == len(explored.visits) - explored.graph.horizon  # the first of each layer meets none


def test_simulators_that_are_unlike():
    D_hat = torch.tensor([[[0.0]], [[1.0]], [[3.0]], [[2.0]]])
    assert unlike_simulators(D_hat) == [0, 2]
    assert unlike_simulators(D_hat[:1]) == [0]


def test_a_users_backend_stays(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    with plain_look():
        assert matplotlib.rcParams["backend"] == "svg"
    assert matplotlib.rcParams["backend"] == "svg"


def test_a_users_matplotlibrc_changes_no_picture():
    """LaTeX that is not installed, fonts that are not there, another resolution: pictures are as without."""

    def drawn():
        with plain_look():
            figure = new_figure(2, 1)
            figure.subplots().set_title("value")
            return png(figure)

    expected, theirs = drawn(), {"text.usetex": True, "font.family": ["No such font"], "savefig.format": "pdf"}
    with matplotlib.rc_context(theirs):
        assert drawn() == expected and matplotlib.rcParams["text.usetex"]
