"""Algorithm 2 against its loop-for-loop oracle, and what stops it."""

import itertools
import re
from dataclasses import dataclass, replace

import naive
import numpy as np
import pytest
import torch
from support.worlds import Tabular, estimator_of, layered, random_world

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.density.patches import dense
from s2r_torch.episodes import Guard, Ledger, observe
from s2r_torch.errors import AmbiguousMergeError, ExplorationError, GraphMismatchError, ObservationError, SettingError
from s2r_torch.graph import after
from s2r_torch.learning import estimator as exploration
from s2r_torch.learning import exploration as searching
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.learning.exploration import LARGEST_Z, explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.walks import walks_of
from s2r_torch.rng import Seed
from s2r_torch.tours import readings, walk

THETA = (-0.9, 0.1, 0.7, 0.4)
MERGE = MergeSettings(n_merge=150, n_merge_most=150, zeta=None, deciders=3)
AUTO = MergeSettings(n_merge=300, n_merge_most=300, deciders=4)
SHAPES = list(itertools.product((1, 2, 3, 4), (2, 3), (0, 1)))


def explored(world, merge=MERGE, theta=THETA, seed=0, n_dist=60, order=2.0, **guard):
    return explore(world.guard(theta, **guard), estimator_of(world, order), merge, n_dist, Seed.root(seed))


@pytest.mark.parametrize(("horizon", "num_actions", "seed"), SHAPES)
def test_agrees_with_the_naive_algorithm(horizon, num_actions, seed, monkeypatch):
    world = random_world(1000 + seed, horizon, num_actions)
    estimator = estimator_of(world, order=4 if seed else 2)
    ledger, root, walked = Ledger(), Seed.root(seed), {}
    monkeypatch.setattr("s2r_torch.learning.exploration.walk", remembering(walked))
    exploration = explore(world.guard(THETA, ledger=ledger), estimator, MERGE, 60, root)

    drawn = world.guard(THETA)
    nodes, h = estimator.grid.nodes[:, 0].numpy(), estimator.bandwidth[0]

    def draw(path):
        """From the first episodes that take the path's last edge."""
        took = (x[len(path)] for actions, x in walked.items() if last_edge(actions[: len(path)]) == last_edge(path))
        return next(took)[..., 0].numpy()

    def last_edge(path):
        return path and (world.graph.end(path[:-1]), path[-1])

    def estimate(x):
        return naive.kde(x, nodes, h, estimator.kernel.order)

    settings = {"draw": draw, "estimate": estimate, "horizon": horizon, "num_actions": num_actions}
    found = naive.dfs_distribution((), naive.Found(), **settings)

    graph = exploration.graph
    assert list(graph.paths) == found.representatives
    assert [visit.path for visit in exploration.visits] == found.visited
    assert [visit.threshold for visit in exploration.visits] == pytest.approx(found.thresholds, abs=1e-12)
    for visit in exploration.visits:
        assert graph.paths[visit.state] == found.same_as[visit.path]
        assert visit.merged == (visit.path not in found.representatives)
    along = readings(drawn, graph, 60, root.child("density", 0))
    for s, path in enumerate(graph.paths):
        assert int(graph.layer[s]) == len(path)
        for a in range(num_actions):
            t = int(graph.next_state[s, a])
            assert t == -1 if len(path) == horizon - 1 else graph.paths[t] == found.same_as[(*path, a)]
        x = along[s][..., 0].numpy()
        assert np.allclose(dense(exploration.D_hat)[:, s].numpy(), [estimate(row) for row in x], atol=1e-12)
    world.graph.require_same(graph)  # ... and both found the truth
    w = len(path_cover(graph))
    assert ledger.counts == {"test": len(walked) * 3 * MERGE.n_merge + w * 4 * 60}


def remembering(walked):
    """`walk`, which writes down what is seen along which actions, in the order of drawing."""

    def spy(simulators, actions, n, seed):
        assert actions not in walked
        walked[actions], rewards = walk(simulators, actions, n, seed)
        return walked[actions], rewards

    return spy


def test_every_path_of_the_action_tree_ends_in_the_state_the_world_knows():
    world = random_world(5, 4, 3)
    graph = explored(world).graph
    for path in itertools.chain.from_iterable(itertools.product(range(3), repeat=k) for k in range(4)):
        assert graph.end(path) == world.graph.end(path)


def test_the_batch_does_not_change_the_bits():
    """What a simulator shows depends on its id alone, so its density does not depend on its neighbours."""
    world = random_world(3, 3, 2)
    whole = explored(world).D_hat
    part = explore(world.guard(THETA).select([2, 0]), estimator_of(world), MERGE, 60, Seed.root(0)).D_hat
    assert torch.equal(dense(part), dense(whole[[2, 0]]))


class Lying(Tabular):
    """Simulators of which the one with the smallest theta shows pure noise of its own, another one at every reset."""

    def emit(self, theta, state, generators):
        x = super().emit(theta, state, generators)
        cells = self.spec.high[0]
        rubbish = torch.stack([torch.rand(x.shape[1:], dtype=x.dtype, generator=g) * cells for g in generators])
        centre = torch.stack([torch.rand(1, 1, dtype=x.dtype, generator=g) * (cells - 1) for g in generators])
        return torch.where((theta < -0.8)[:, None], rubbish / cells + centre, x)


def lying(world):
    return Lying(world.graph, world.number, world.rewards, world.tilt)


def test_merging_survives_one_bad_simulator():
    world = random_world(4, 4, 2)
    assert len(world.graph.paths) < 2**4 - 1  # there is something to merge
    explored_graph = explored(lying(world)).graph
    world.graph.require_same(explored_graph)


def test_one_bad_simulator_alone_never_merges():
    """The same simulator, alone, blocks every merge: so the median above is what helped."""
    world = lying(random_world(4, 4, 2))
    with pytest.raises(ExplorationError):
        explored(world, theta=(-0.9,))


def same_twice(horizon=3):
    """Two actions that always lead to the same state."""
    graph, number = layered([[[0, 0]]] * (horizon - 1), 2)
    return Tabular(graph, number, torch.full((horizon, 2, 2), 0.1), torch.zeros(horizon, 2, 2))


def test_the_cap_on_calls():
    """Paths that never merge stop at 1 + (H - 1) S A calls, or at S states in a layer, and say so."""
    world = same_twice()
    wide = Widened(world.graph, world.number, world.rewards, world.tilt)
    with pytest.raises(ExplorationError, match="n_merge") as caught:
        explored(wide, MergeSettings(n_merge=150, zeta=None, relative=0.02, margin=0.0))
    assert "at most" in str(caught.value)


class Widened(Tabular):
    """Claims one more state per layer than it has, so that a failed merge is not caught there first."""

    @property
    def spec(self):
        return replace(super().spec, max_states_per_layer=2, high=(2.0,))


def test_too_many_states_in_a_layer():
    world = same_twice()
    with pytest.raises(ExplorationError, match="at most S = 1 states in layer 1"):
        explored(world, MergeSettings(n_merge=150, zeta=None, relative=0.02, margin=0.0))


def test_an_ambiguous_distance_is_an_error_that_names_both_paths():
    """At a threshold just above the noise, two samples of one state are neither the same nor different."""
    world = same_twice()
    distance = explored(world).visits[-1].distance
    with pytest.raises(AmbiguousMergeError, match=r"paths \(1,\) and \(0,\).*raise n_merge_most"):
        explored(world, replace(MERGE, zeta=2.1 * distance))
    with pytest.raises(AmbiguousMergeError):
        explored(world, replace(MERGE, zeta=1.9 * distance))
    explored(world, replace(MERGE, zeta=4 * distance))


def test_a_declared_zeta_replaces_the_relative_threshold():
    visits = explored(random_world(4, 3, 2), replace(MERGE, zeta=2.0)).visits
    assert {visit.threshold for visit in visits} == {1.0}


@pytest.mark.parametrize("seed", range(4))
def test_noise_decides_where_nobody_declares_zeta(seed):
    """Distances of one state stay well below the noise, those of different states well above."""
    world = random_world(40 + seed, 4, 3)
    exploration = explored(world, AUTO, seed=seed)
    world.graph.require_same(exploration.graph)
    for visit in exploration.visits:
        assert visit.threshold == pytest.approx(1.5 * visit.noise)
        assert visit.distance < 0.9 * visit.noise if visit.merged else visit.distance > 3 * visit.noise
    assert exploration.largest_merged < exploration.noise < exploration.zeta_hat / 3


def test_noise_is_what_two_estimates_of_one_state_differ_by():
    """In 95 of 100 pairs, about."""
    world = random_world(4, 2, 2)
    noise = explored(world, AUTO).visits[0].noise
    estimate, guard = estimator_of(world), world.guard([0.1] * 200)
    one, other = (estimate(observe(guard, (), AUTO.n_merge, Seed.root(i))) for i in range(2))
    assert 0.88 <= float((sup_distance(one, other) <= noise).double().mean()) <= 0.99


class Loud(Tabular):
    """One state; readings fill a wide box, except on simulators of theta < -0.8, where they huddle: more noise."""

    @property
    def spec(self):
        return replace(super().spec, high=(40.0,))

    def emit(self, theta, state, generators):
        x = super().emit(theta, state, generators)
        wide = torch.stack([torch.rand(x.shape[1:], dtype=x.dtype, generator=g) for g in generators])
        return torch.where((theta < -0.8)[:, None], x, 40 * wide)


def test_a_few_noisy_simulators_do_not_raise_the_noise():
    """Else every merge would be easier on all the others."""
    world = random_world(4, 1, 2)
    loud = Loud(world.graph, world.number, world.rewards, world.tilt)
    estimate = DensityEstimator(DensityGrid.uniform((0.0,), (40.0,), 161), make_kernel("legendre", 2), (0.25,))

    def noise(theta):
        return explore(loud.guard(theta), estimate, replace(AUTO, deciders=5), 60, Seed.root(0)).noise

    quiet = noise([0.1] * 5)
    assert noise([-0.9, 0.1, 0.1, -0.9, 0.1]) == pytest.approx(quiet, rel=0.15)
    assert noise([-0.9] * 5) > 1.5 * quiet


def test_too_much_noise_to_tell_anything_is_an_error():
    """Two samples of four observations differ by as much as states that share no observation."""
    with pytest.raises(AmbiguousMergeError, match="raise n_merge_most"):
        explored(same_twice(), replace(AUTO, n_merge=4, n_merge_most=4))


def test_alike_states_are_not_merged_in_silence():
    """States that noise can just tell apart: the run stops, names both and the noise; more samples go through."""
    world = random_world(4, 3, 2)
    near = Near(world.graph, world.number, world.rewards, world.tilt)
    with pytest.raises(
        AmbiguousMergeError, match=r"paths \(.*\) and \(.*two estimates of one density, of 100 readings"
    ):
        explored(near, replace(AUTO, n_merge=100, n_merge_most=100))
    world.graph.require_same(explored(near, replace(AUTO, n_merge=600)).graph)


def nearly(n_merge, most, ledger=None):
    """What is found of states that 100 readings do not tell apart, and the paths that were looked at."""
    world, seen = random_world(4, 3, 2), []
    near = Near(world.graph, world.number, world.rewards, world.tilt)
    guard, merge = near.guard(THETA, ledger=ledger or Ledger()), replace(AUTO, n_merge=n_merge, n_merge_most=most)
    try:
        found = explore(guard, estimator_of(near), merge, 60, Seed.root(0), lambda visit: seen.append(visit.path))
        world.graph.require_same(found.graph)
    except AmbiguousMergeError as error:
        found = error
    return found, seen


def test_where_readings_do_not_tell_four_times_as_many_are_drawn():
    """All of them fresh, all of them counted; what was needed is said, and what was not enough."""
    ledger, straight = Ledger(), Ledger()
    found, seen = nearly(100, 4000, ledger)
    assert found.n_merge == 400 and seen.count(()) == 2
    again, once = nearly(400, 4000, straight)
    assert again.n_merge == 400 and once.count(()) == 1
    assert ledger.counts["test"] - straight.counts["test"] == len(walks_of(found.graph)) * 100 * 4
    assert again.visits[-1].distance != found.visits[-1].distance
    error, seen = nearly(90, 100)
    assert "of 100 readings" in str(error) and seen.count(()) == 2


def test_no_number_of_readings_tells_where_theta_changes_what_is_reached(monkeypatch):
    monkeypatch.setattr(searching._Search, "_moved", lambda *given: "one state in 2 simulators, two in 2")
    error, seen = nearly(100, 4000)
    assert "theta changes where actions lead" in str(error) and seen.count(()) == 1


@dataclass(frozen=True, eq=False)
class Near(Tabular):
    """States of a layer are small shifts of each other."""

    shift: float = 0.08

    def emit(self, theta, state, generators):
        x = super().emit(theta, state, generators)
        return x - ((1 - self.shift) * self.number[state])[..., None]


SIXTEEN = replace(AUTO, deciders=16)
MANY = torch.linspace(-0.7, 0.8, 16).tolist()


def test_states_within_the_noise_that_differ_on_average_are_not_merged_in_silence():
    """Closer than two samples of one state may be, on any simulator; sixteen of them tell. A declared zeta decides."""
    near, said = nearer(random_world(4, 3, 2), 0.0375), []
    for seed in range(8):
        try:
            assert explored(near, SIXTEEN, MANY, seed).largest_z <= LARGEST_Z
        except AmbiguousMergeError as error:
            said.append(str(error))
    assert len(said) >= 6
    assert any(re.search(r"paths \(.*\) and \(.*as one state does, to agree on average.*z = ", line) for line in said)
    merged = [explored(near, replace(SIXTEEN, zeta=2.0), MANY, seed) for seed in range(8)]
    assert all(found.graph.states_per_layer == [1, 1, 1] for found in merged)
    assert any(found.largest_z > LARGEST_Z for found in merged)
    near.graph.require_same(explored(near, replace(SIXTEEN, n_merge=8000), MANY).graph)  # what the message advises


def test_states_far_below_the_noise_look_the_same():
    """The limit: a difference that no number of deciders at hand can see."""
    assert explored(nearer(random_world(4, 3, 2), 0.004), SIXTEEN, MANY).graph.states_per_layer == [1, 1, 1]


def test_z_is_about_standard_normal_for_one_state():
    """40 pairs of paths that meet."""
    z = [v.z for seed in range(40) for v in explored(same_twice(2), SIXTEEN, MANY, seed).visits if v.merged]
    assert len(z) == 40 and abs(sum(z)) / 40**0.5 < 4 and max(z) < 4


def nearer(world, shift):
    """Readings of neighbouring states of a layer are `shift` apart, where a reading is spread over 0.7."""
    return Near(world.graph, world.number, world.rewards, world.tilt, shift=shift)


@pytest.mark.parametrize("bad", range(3))
def test_merging_by_noise_survives_one_bad_simulator(bad):
    """Wherever it stands among the deciders: among those that measure the noise, or not."""
    theta = [0.1, -0.2, 0.3, 0.0, 0.5, 0.2, -0.4, 0.6]
    theta[3 * bad] = -0.9
    world = random_world(4, 4, 2)
    exploration = explored(lying(world), replace(AUTO, deciders=8), theta=theta)
    world.graph.require_same(exploration.graph)


def test_nan_at_one_state_is_named():
    class Broken(Tabular):
        def emit(self, theta, state, generators):
            return super().emit(theta, state, generators).masked_fill(state[..., None] == 2, torch.nan)

    world = random_world(4, 3, 2)
    broken = Broken(world.graph, world.number, world.rewards, world.tilt)
    with pytest.raises(ObservationError, match="not finite") as caught:
        explored(broken)
    ways = [path for path in itertools.product(range(2), repeat=2) if world.graph.end(path) == 2]
    assert any(f"in simulator 0 {after(path)};" in str(caught.value) for path in ways)


def test_states_off_the_grid_never_merge_silently():
    """Two different states off the grid would both have density 0, at distance 0."""

    class Away(Tabular):
        def emit(self, theta, state, generators):
            x = super().emit(theta, state, generators)
            return torch.where((self.graph.layer[state] == 1)[..., None], x + 10, x)

    world = random_world(6, 3, 3)
    assert world.graph.states_per_layer[1] > 1
    with pytest.raises(ObservationError, match="off the grid"):
        explored(Away(world.graph, world.number, world.rewards, world.tilt))


def test_a_share_off_the_grid_that_is_allowed_is_allowed_in_every_part_of_a_sample():
    """2 of 300 readings are, within 1 %, though both in the first quarter."""

    class Straying(Tabular):
        def emit(self, theta, state, generators):
            x = super().emit(theta, state, generators)
            return x + 10 * (torch.arange(x.shape[1]) < 2)[:, None]

    world = random_world(4, 3, 2)
    straying = Straying(world.graph, world.number, world.rewards, world.tilt)
    world.graph.require_same(explored(straying, AUTO, n_dist=300).graph)


class Wide(Tabular):
    """The same readings in a box ten times as wide."""

    @property
    def spec(self):
        return replace(super().spec, low=(-14.0,), high=(16.0,))


@pytest.mark.parametrize("nodes", [9, 16])
def test_a_grid_coarser_than_states_is_refused_with_the_nodes_to_ask_for(nodes):
    world = random_world(6, 3, 3)
    wide = Wide(world.graph, world.number, world.rewards, world.tilt)
    guard = wide.guard(THETA)

    def found(count):
        grid = DensityGrid.uniform(wide.spec.low, wide.spec.high, count)
        estimator = DensityEstimator(grid, make_kernel("legendre", 2), grid.spacing)
        return explore(guard, estimator, MERGE, 60, Seed.root(0)).graph

    with pytest.raises(
        ExplorationError, match=rf"nodes on axis 0 \(x_1\); got {nodes} nodes, .* readings lie"
    ) as caught:
        found(nodes)
    wanted = int(str(caught.value).partition("apart: ")[2].partition(" ")[0])
    assert nodes < wanted < 200
    world.graph.require_same(found(wanted))


def test_a_graph_mismatch_says_both_sizes():
    one, other = explored(same_twice(3)).graph, explored(random_world(5, 3, 2)).graph
    with pytest.raises(GraphMismatchError, match=r"3 states, per layer \[1, 1, 1\]"):
        one.require_same(other)
    one.require_same(one)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_merge": 3},
        {"deciders": 0},
        {"band_deciders": 0},
        {"relative": 1.0},
        {"margin": -0.1},
        {"zeta": 0.0},
        {"zeta": -1.0},
        {"zeta": "automatic"},
    ],
)
def test_merge_settings_are_validated(wrong):
    with pytest.raises(SettingError, match=f"expected {next(iter(wrong))}: a .*number"):
        MergeSettings(**wrong)


def test_few_simulators_all_decide():
    world, ledger = same_twice(2), Ledger()
    explored(world, replace(MERGE, deciders=100), theta=(0.0, 0.1), ledger=ledger)
    assert ledger.counts == {"test": 2 * 2 * MERGE.n_merge + 2 * 60}  # the start is seen on the way


def test_observations_beyond_memory_are_drawn_in_parts(monkeypatch):
    """Each part of nearly one size, from a stream of its own, counted; together n_dist. Small budgets draw at once."""
    world, ledger, estimate = random_world(4, 2, 2), Ledger(), estimator_of(random_world(4, 2, 2))
    guard, seed = world.guard(THETA, ledger=ledger), Seed.root(0)
    xi = world.graph.num_states
    monkeypatch.setattr(exploration, "MOST_READINGS", 4 * xi * 40)
    D_hat = estimate_densities(guard, world.graph, estimate, 101, seed)
    assert ledger.counts == {"test": len(path_cover(world.graph)) * 4 * 101}
    parts = [readings(guard, world.graph, n, seed.child("density", i)) for i, n in enumerate((33, 34, 34))]
    for s in range(xi):
        x = torch.cat([part[s] for part in parts], 1)
        assert torch.allclose(D_hat[:, s], estimate(x), atol=1e-12)
    at_once = estimate(readings(guard, world.graph, 40, seed.child("density", 0))[0])
    assert torch.equal(estimate_densities(guard, world.graph, estimate, 40, seed)[:, 0], at_once)


def test_on_visit_sees_every_path_layer_by_layer():
    world, seen = random_world(2, 3, 2), []
    guard = Guard(world.simulators(THETA), Ledger(), "explore")
    exploration = explore(guard, estimator_of(world), MERGE, 10, Seed.root(0), on_visit=seen.append)
    assert [visit.path for visit in seen] == sorted((v.path for v in exploration.visits), key=lambda p: (len(p), p))
    first = [visit.path for visit in seen if not visit.merged]
    for visit in exploration.visits:
        assert exploration.graph.paths[visit.state] == first[next(v.state for v in seen if v.path == visit.path)]
