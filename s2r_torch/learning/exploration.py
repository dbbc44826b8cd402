"""Algorithm 2, DFS-Distribution: the states, the graph that connects them, and their densities on every simulator.

Paths are looked at layer by layer, so that workers share a layer, and episodes go on to the horizon, so that later
layers are seen by them, too (`walks.py`). It finds what a depth-first search finds: only paths of one length are
compared, and each layer's come in the order in which a depth-first search meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from s2r_torch.density.bands import sup_band
from s2r_torch.density.difference import in_parts, pooled_difference
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Guard
from s2r_torch.errors import AmbiguousMergeError, ExplorationError
from s2r_torch.graph import Path, StateGraph, told
from s2r_torch.learning.estimator import density_at, estimate_patches
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.walks import Walks
from s2r_torch.rng import Seed
from s2r_torch.tours import walk
from s2r_torch.workers.simulators import each_simulators

PATHS = 4  # that are looked at together
BAND_LEVEL, BAND_DRAWS = 0.95, 200
TOO_NOISY = (
    "too much noise: raise n_merge_most (it falls like the square root of readings); or states so alike that only a "
    "declared zeta can say whether they are one"
)
LARGEST_SHIFT = 1.0  # of one state, means differ by far less than the spread of a reading
LARGEST_Z = 6.0  # of one state, a larger pooled difference has probability below 1e-5 (`density.difference`)


@dataclass(frozen=True)
class Visit:
    """One visited path: merged into a state of its layer, or a new state.

    All but path, state and merged speak of the nearest earlier state of the layer, median over simulators; where there
    is none, distance and z are infinite and the rest speaks of the state itself.
    """

    path: Path
    state: int
    merged: bool
    distance: float  # in sup norm
    threshold: float
    noise: float  # two estimates of that state differ by less, 95 % of the time
    height: float  # of the path's density
    z: float  # of the difference pooled over simulators, about standard normal for the same state


@dataclass(frozen=True, eq=False)
class Exploration:
    """What Algorithm 2 found."""

    graph: StateGraph  # what is looked at, of xi states
    D_hat: Densities  # [B, xi, G] float64, from n_dist observations per state and simulator
    visits: tuple[Visit, ...]  # every path visited, in depth-first order; their states are those of `whole`
    n_merge: int  # observations behind the distances of visits
    n_dist: int  # observations behind D_hat
    whole: StateGraph  # all that was found

    def found_again(self, whole: StateGraph) -> StateGraph:
        """What is looked at of the same graph, found in other simulators; raises GraphMismatchError for another."""
        self.whole.require_same(whole)
        return self.graph

    @property
    def band(self) -> float:
        """Half-width of a 95 % band around D_hat, from the largest noise of a state; it covers E D_hat."""
        return self.noise * math.sqrt(self.n_merge / self.n_dist / 2)

    @property
    def zeta_hat(self) -> float:
        """The smallest distance between states of a layer that were told apart; infinite if each is alone."""
        return min((visit.distance for visit in self.visits if not visit.merged), default=math.inf)

    @property
    def noise(self) -> float:
        """The largest noise of a state."""
        return max(visit.noise for visit in self.visits)

    @property
    def largest_merged(self) -> float:
        """The largest distance at which paths were merged; 0 if none were."""
        return max((visit.distance for visit in self.visits if visit.merged), default=0.0)

    @property
    def largest_z(self) -> float:
        """The clearest pooled difference between paths that were merged; 0 if none were."""
        return max((visit.z for visit in self.visits if visit.merged), default=0.0)


def all_of(whole: StateGraph) -> StateGraph:
    """Looks at all of a graph."""
    return whole


def explore(
    simulators: Guard,
    estimator: DensityEstimator,
    merge: MergeSettings,
    n_dist: int,
    seed: Seed,
    on_visit: Callable[[Visit], None] = lambda visit: None,
    look_at: Callable[[StateGraph], StateGraph] = all_of,
) -> Exploration:
    """Finds all states by depth-first search and estimates their densities (Algorithm 2, DFS-Distribution).

    Args:
        simulators: B simulators.
        estimator: kernel, bandwidth and grid, fixed before anything is drawn here.
        merge: when two paths end in the same state.
        n_dist: observations per state and simulator for D_hat.
        seed: named stream; every sequence of actions has its own.
        on_visit: called after every visited path, layer by layer, and again from the first one on where they are
            looked at again; states have numbers in the order of finding.
        look_at: the part of the graph whose densities are estimated (`pruning.py`).

    Returns:
        The graph with states in depth-first order, densities, and the visits.

    Raises:
        AmbiguousMergeError: a distance neither clearly small nor clearly large, or a small one that is no accident,
            with `n_merge_most` readings, too.
        ExplorationError: more states in a layer than S; or a grid so coarse that densities look alike where readings
            do not.
        ObservationError: observations off the grid or not finite.

    Paper deviation:
        It stops at the horizon (theory.md C2); only paths of equal length are compared, with the nearest one, by the
        median over simulators instead of all of them, on samples of their own (C12); S states a layer cap the paths.
        The noise takes the place of zeta where nobody declares it. An edge that the episodes of another path take is
        looked at there: which paths have episodes of their own follows from earlier layers, whose readings are not used
        again, so that the union bound over paths stays what it is.

    Cost:
        At most 1 + (H - 1) S A paths, and about as many sequences of actions as the widest layer has edges: n_merge
        episodes of each on the deciders; w n_dist on all simulators. Memory of the deciders' readings of all layers
        that are still to come.
    """
    search = _Search(simulators, estimator, merge, seed, on_visit)
    while True:
        try:
            graph, visits = search.found()
            break
        except AmbiguousMergeError as error:
            more = merge.with_more()
            if more is None or not error.more_may_tell:
                raise
            merge = more
            search = _Search(simulators, estimator, merge, seed.child("more", merge.n_merge), on_visit)
    looked_at = look_at(graph)
    D_hat = estimate_patches(simulators, looked_at, estimator, n_dist, seed)
    return Exploration(looked_at, D_hat, visits, merge.n_merge, n_dist, graph)


@dataclass(frozen=True, eq=False)
class _Readings:
    """What readings themselves say of a state, whatever the grid."""

    mean: Tensor  # [deciders, d]
    spread: Tensor  # [deciders, d] standard deviations

    @staticmethod
    def of(x: Tensor) -> _Readings:
        """From x [deciders, n, d]."""
        return _Readings(x.mean(-2), x.std(-2))


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the deciders show at a path's end."""

    path: Path
    x: Tensor  # [deciders, n_merge, d]
    D: Tensor  # [deciders, G]
    parts: Tensor  # [deciders, m, G], from parts of x


def _walked(simulators: Guard, sequences: list[Path], n: int, seed: Seed) -> list[list[Tensor]]:
    """Readings [deciders, n, d] at every step of n episodes along each of some sequences of H - 1 actions."""
    walked = (walk(simulators, actions, n, seed.child("merge", actions))[0] for actions in sequences)
    return [[simulators.spec.placed(x) for x in readings] for readings in walked]


def _seen(simulators: Guard, ends: list[tuple[Path, Path, Tensor]], estimator: DensityEstimator) -> list[_Seen]:
    """What readings x say of the ends of some paths; each is (path, actions that were walked, x)."""
    part_estimator = replace(estimator, off_grid_limit=1.0, allow_constant=True)  # the whole is checked
    return [
        _Seen(path, x, density_at(estimator, simulators, actions, x), part_estimator(in_parts(x)))
        for path, actions, x in ends
    ]


@dataclass(frozen=True, eq=False)
class _State:
    """A state of the layer that is looked at."""

    number: int  # in the order of finding
    seen: _Seen  # at the first path that leads to it
    noise: float


@dataclass(eq=False)
class _Search:
    """The running search."""

    simulators: Guard
    estimator: DensityEstimator
    merge: MergeSettings
    seed: Seed
    on_visit: Callable[[Visit], None]
    layer: list[_State] = field(default_factory=list)  # that is looked at
    paths: list[Path] = field(default_factory=list)  # to every state of all layers, the first one
    visits: dict[Path, Visit] = field(default_factory=dict)
    x: list[list[Tensor]] = field(default_factory=list)  # of every walk, at every step that is still to be looked at

    def __post_init__(self):
        self.deciders = self.simulators.select(range(min(self.merge.deciders, len(self.simulators))))
        self.walks = Walks(self.simulators.spec.horizon, self.simulators.spec.num_actions)

    def found(self) -> tuple[StateGraph, tuple[Visit, ...]]:
        """The graph, its states numbered depth first, and the visits in depth-first order: that of paths as words."""
        paths: list[Path] = [()]
        for _ in range(self.simulators.spec.horizon):
            paths = self._look_at(paths)
        return self._in_order()

    def _look_at(self, paths: list[Path]) -> list[Path]:
        """Finds the states at the ends of a layer's paths; returns the paths to the next layer."""
        self.layer = []
        with closing(self._ends(paths)) as ends:
            for seen in ends:
                self.visits[seen.path] = self._visited(seen)
                self.on_visit(self.visits[seen.path])
        following = [(*state.seen.path, a) for state in self.layer for a in range(self.simulators.spec.num_actions)]
        if len(paths[0]) < self.simulators.spec.horizon - 1:
            self.walks.go_on({path: self.paths[self.visits[path].state] for path in paths})
        return following

    def _ends(self, paths: list[Path]) -> Generator[_Seen, None, None]:
        """What is seen at the ends of a layer's paths."""
        step, by = len(paths[0]), self.walks.through(paths)
        for walked in self._by_workers(_walked, self.walks.actions[len(self.x) :], self.merge.n_merge, self.seed):
            self.x += [readings[step:] for readings in walked]
        here = [readings.pop(0) for readings in self.x]
        ends = [(path, self.walks.actions[i][:step], here[i]) for path, i in zip(paths, by, strict=True)]
        for some in self._by_workers(_seen, ends, self.estimator):
            yield from some

    def _by_workers(self, task: Callable[..., list], items: list, *shared: object) -> Generator[list, None, None]:
        """What a task makes of the deciders and of some items after others."""
        some = [(self.deciders, items[i : i + PATHS]) for i in range(0, len(items), PATHS)]
        if some:
            with closing(each_simulators(task, some, *shared)) as parts:
                yield from parts

    def _in_order(self) -> tuple[StateGraph, tuple[Visit, ...]]:
        order = sorted(range(len(self.paths)), key=self.paths.__getitem__)
        number = {state: i for i, state in enumerate(order)}
        visits = {path: replace(visit, state=number[visit.state]) for path, visit in sorted(self.visits.items())}
        paths = [self.paths[state] for state in order]
        actions = range(self.simulators.spec.num_actions)
        following = [[visits[(*p, a)].state if (*p, a) in visits else -1 for a in actions] for p in paths]
        graph = StateGraph(torch.tensor(following), torch.tensor([len(p) for p in paths]), tuple(paths))
        return graph, tuple(visits.values())

    def _visited(self, seen: _Seen) -> Visit:
        """Which state a path ends in: one of the layer, or a new one."""
        height = float(seen.D.amax(-1).median())
        nearest, distance = self._nearest(seen)
        z = math.inf if nearest is None else pooled_difference(seen.parts, nearest.seen.parts)
        if nearest is not None and self._same(seen, nearest, distance, height, z):
            self._require_alike(seen, nearest)
            state, merged = nearest, True
        else:
            state, merged = self._new_state(seen), False
        noise = (nearest or state).noise
        threshold = self.merge.threshold(noise, height)
        return Visit(seen.path, state.number, merged, distance, threshold, noise, height, z)

    def _nearest(self, seen: _Seen) -> tuple[_State | None, float]:
        """The earlier state of the layer that looks most alike, and its median distance."""
        distances = [float(sup_distance(seen.D, state.seen.D).median()) for state in self.layer]
        if not distances:
            return None, math.inf
        return self.layer[distances.index(min(distances))], min(distances)

    def _same(self, seen: _Seen, nearest: _State, distance: float, height: float, z: float) -> bool:
        """Whether that distance means the same state; raises AmbiguousMergeError where it does not tell."""
        noise, margin = nearest.noise, self.merge.margin
        threshold = self.merge.threshold(noise, height)
        same, different = (1 - margin) * threshold, (1 + margin) * threshold
        names = f"paths {told(seen.path)} and {told(nearest.seen.path)}"
        if same < distance < different:
            expected = f"{names} at a distance below {same:.3g} (same state) or above {different:.3g} (different ones)"
        elif distance <= same and different > height:
            expected = f"noise that lets {names} be told apart: {different:.3g} below the height {height:.3g}"
        elif distance <= same and z > LARGEST_Z and self.merge.zeta in (None, "auto"):
            expected = f"{names}, which lie below {same:.3g} as one state does, to agree on average over simulators"
        else:
            return distance <= same
        moved = self._moved(seen, nearest, threshold)
        raise AmbiguousMergeError(
            expected=expected,
            got=f"a median distance of {distance:.3g} over {len(self.deciders)} simulators, where densities are "
            f"{height:.3g} high and two estimates of one density, of {self.merge.n_merge} readings, differ by up to "
            f"{noise:.3g}; pooled, z = {z:.1f}",
            cause=f"theta changes where actions lead: {moved}" if moved else TOO_NOISY,
            more_may_tell=not moved,
        )

    def _moved(self, seen: _Seen, nearest: _State, threshold: float) -> str:
        """That some simulators are sure that it is one state and others that it is not, or nothing."""
        each = sup_distance(seen.D, nearest.seen.D)  # [deciders]
        same, different = int((each < threshold / 2).sum()), int((each > 2 * threshold).sum())
        return f"one state in {same} simulators, two in {different}" if min(same, different) >= len(each) / 4 else ""

    def _require_alike(self, seen: _Seen, state: _State) -> None:
        """Raises ExplorationError where readings differ and densities do not: the grid does not see it."""
        readings, other, grid = _Readings.of(seen.x), _Readings.of(state.seen.x), self.estimator.grid
        gap = (readings.mean - other.mean).abs()
        shift = (2 * gap / (readings.spread + other.spread)).median(0).values  # [d]
        if float(shift.max()) <= LARGEST_SHIFT:
            return
        j = int(shift.argmax())
        apart, spread = (float(value[:, j].median()) for value in (gap, other.spread))
        wanted, name = math.ceil(2 * (grid.high[j] - grid.low[j]) / apart) + 1, self.simulators.spec.obs_names[j]
        raise ExplorationError(
            expected=f"a grid that tells states apart: {wanted} nodes on axis {j} ({name})",
            got=f"{grid.shape[j]} nodes, {grid.spacing[j]:.3g} apart, and a bandwidth of "
            f"{self.estimator.bandwidth[j]:.3g}: paths {told(seen.path)} and {told(state.seen.path)} look alike, "
            f"though their readings lie {apart:.3g} apart and each is spread over {spread:.3g}",
            cause="an observation box much wider than what the sensor reads, or too few nodes",
        )

    def _new_state(self, seen: _Seen) -> _State:
        spec, path = self.simulators.spec, seen.path
        if len(self.layer) >= spec.max_states_per_layer:
            raise ExplorationError(
                expected=f"at most S = {spec.max_states_per_layer} states in layer {len(path)}",
                got=f"one more, at the end of path {told(path)}",
                cause="max_states_per_layer is too small, or n_merge is: paths to the same state do not merge",
            )
        generator = self.seed.child("band", path).generator()
        band = sup_band(self.estimator, seen.x[: self.merge.band_deciders], BAND_DRAWS, generator=generator)
        self.layer.append(_State(len(self.paths), seen, float(band.two_sample_radius(BAND_LEVEL).median())))
        self.paths.append(path)
        return self.layer[-1]
