"""Algorithm 2, DFS-Distribution: the states, the graph that connects them, and their densities on every simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from s2r_torch.base import Path, StateGraph
from s2r_torch.density.bands import sup_band
from s2r_torch.density.difference import in_parts, pooled_difference
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.episodes import Guard, observe
from s2r_torch.errors import AmbiguousMergeError, ExplorationError
from s2r_torch.learning.estimator import density_at, estimate_densities
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.rng import Seed

BAND_LEVEL, BAND_DRAWS = 0.95, 200
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

    graph: StateGraph
    D_hat: Tensor  # [B, xi, G] float64, from n_dist observations per state and simulator
    visits: tuple[Visit, ...]  # every path visited, in depth-first order
    n_merge: int  # observations behind the distances of visits
    n_dist: int  # observations behind D_hat

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


def explore(
    simulators: Guard,
    estimator: DensityEstimator,
    merge: MergeSettings,
    n_dist: int,
    seed: Seed,
    on_visit: Callable[[Visit], None] = lambda visit: None,
) -> Exploration:
    """Finds all states by depth-first search and estimates their densities (Algorithm 2, DFS-Distribution).

    Args:
        simulators: B simulators.
        estimator: kernel, bandwidth and grid, fixed before anything is drawn here.
        merge: when two paths end in the same state.
        n_dist: observations per state and simulator for D_hat.
        seed: named stream; every path has its own.
        on_visit: called after every visited path.

    Returns:
        The graph with states in depth-first order, densities, and the visits.

    Raises:
        AmbiguousMergeError: a distance neither clearly small nor clearly large, or a small one that is no accident.
        ExplorationError: more states in a layer, or more paths, than Assumption 5 and S allow; or a grid so coarse that
            densities look alike where readings do not.
        ObservationError: observations off the grid or not finite.

    Paper deviation:
        Recursion stops at the horizon (theory.md C2); only paths of equal length are compared, with the nearest one,
        by the median over simulators instead of all of them, on samples of their own; calls are capped (C12). The
        noise takes the place of zeta where nobody declares it.

    Cost:
        At most 1 + (H - 1) S A paths: n_merge episodes each on the deciders, n_dist per state on all simulators.
    """
    search = _Search(simulators, estimator, merge, seed, on_visit)
    search.visit(())
    graph = StateGraph(torch.tensor(search.next_state), torch.tensor(search.layer), tuple(search.paths))
    D_hat = estimate_densities(simulators, graph, estimator, n_dist, seed)
    return Exploration(graph, D_hat, tuple(search.visits), merge.n_merge, n_dist)


@dataclass(frozen=True, eq=False)
class _Readings:
    """What readings themselves say of a state, whatever the grid."""

    mean: Tensor  # [deciders, d]
    spread: Tensor  # [deciders, d] standard deviations

    @staticmethod
    def of(x: Tensor) -> _Readings:
        """From x [deciders, n, d]."""
        return _Readings(x.mean(-2), x.std(-2))


@dataclass(eq=False)
class _Search:
    """The running depth-first search."""

    simulators: Guard
    estimator: DensityEstimator
    merge: MergeSettings
    seed: Seed
    on_visit: Callable[[Visit], None]
    paths: list[Path] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    next_state: list[list[int]] = field(default_factory=list)
    pilots: list[Tensor] = field(default_factory=list)  # per state [deciders, G]
    parts: list[Tensor] = field(default_factory=list)  # per state [deciders, m, G], from parts of the pilot's sample
    readings: list[_Readings] = field(default_factory=list)  # per state
    noise: list[float] = field(default_factory=list)  # per state
    visits: list[Visit] = field(default_factory=list)

    def __post_init__(self):
        spec = self.simulators.spec
        self.deciders = self.simulators.select(range(min(self.merge.deciders, len(self.simulators))))
        self.part_estimator = replace(self.estimator, off_grid_limit=1.0, allow_constant=True)  # the whole is checked
        self.max_calls = 1 + (spec.horizon - 1) * spec.max_states_per_layer * spec.num_actions

    def visit(self, path: Path) -> int:
        """The state at the end of a path, found or new, with its successors."""
        if len(self.visits) >= self.max_calls:
            raise ExplorationError(
                expected=f"at most 1 + (H - 1) S A = {self.max_calls} paths",
                got=f"one more, {path}",
                cause="paths to the same state do not merge: raise n_merge, or S is too small",
            )
        x = observe(self.deciders, path, self.merge.n_merge, self.seed.child("merge", path))
        D = density_at(self.estimator, self.deciders, path, x)
        parts = self.part_estimator(in_parts(x))
        height = float(D.amax(-1).median())
        nearest, distance = self._nearest(len(path), D)
        z = math.inf if nearest is None else pooled_difference(parts, self.parts[nearest])
        if nearest is not None and self._same(path, nearest, distance, height, z):
            self._require_alike(path, nearest, _Readings.of(x))
            state, merged = nearest, True
        else:
            state, merged = self._new_state(path, D, parts, x), False
        noise = self.noise[state if nearest is None else nearest]
        threshold = self.merge.threshold(noise, height)
        self.visits.append(Visit(path, state, merged, distance, threshold, noise, height, z))
        self.on_visit(self.visits[-1])
        if not merged and len(path) < self.simulators.spec.horizon - 1:
            for a in range(self.simulators.spec.num_actions):
                self.next_state[state][a] = self.visit((*path, a))
        return state

    def _nearest(self, layer: int, D: Tensor) -> tuple[int | None, float]:
        """The earlier state of that layer nearest to D [deciders, G], and its median distance."""
        candidates = [s for s, other in enumerate(self.layer) if other == layer]
        distances = [float(sup_distance(D, self.pilots[s]).median()) for s in candidates]
        return min(zip(distances, candidates, strict=True), default=(math.inf, None))[::-1]

    def _same(self, path: Path, nearest: int, distance: float, height: float, z: float) -> bool:
        """Whether that distance means the same state; raises AmbiguousMergeError where it does not tell."""
        noise, margin = self.noise[nearest], self.merge.margin
        threshold = self.merge.threshold(noise, height)
        same, different = (1 - margin) * threshold, (1 + margin) * threshold
        names = f"paths {path} and {self.paths[nearest]}"
        if same < distance < different:
            expected = f"{names} at a distance below {same:.3g} (same state) or above {different:.3g} (different ones)"
        elif distance <= same and different > height:
            expected = f"noise that lets {names} be told apart: {different:.3g} below the height {height:.3g}"
        elif distance <= same and z > LARGEST_Z and self.merge.zeta in (None, "auto"):
            expected = f"{names}, which lie below {same:.3g} as one state does, to agree on average over simulators"
        else:
            return distance <= same
        raise AmbiguousMergeError(
            expected=expected,
            got=f"a median distance of {distance:.3g} over {len(self.deciders)} simulators, where densities are "
            f"{height:.3g} high and two estimates of one density differ by up to {noise:.3g}; pooled, z = {z:.1f}",
            cause="too much noise: raise n_merge (it falls like its square root); or states so alike that only a "
            "declared zeta can say whether they are one",
        )

    def _require_alike(self, path: Path, state: int, readings: _Readings) -> None:
        """Raises ExplorationError where readings differ and densities do not: the grid does not see it."""
        other, grid = self.readings[state], self.estimator.grid
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
            f"{self.estimator.bandwidth[j]:.3g}: paths {path} and {self.paths[state]} look alike, though their "
            f"readings lie {apart:.3g} apart and each is spread over {spread:.3g}",
            cause="an observation box much wider than what the sensor reads, or too few nodes",
        )

    def _new_state(self, path: Path, D: Tensor, parts: Tensor, x: Tensor) -> int:
        spec, layer = self.simulators.spec, len(path)
        if self.layer.count(layer) >= spec.max_states_per_layer:
            raise ExplorationError(
                expected=f"at most S = {spec.max_states_per_layer} states in layer {layer}",
                got=f"one more, at the end of path {path}",
                cause="max_states_per_layer is too small, or n_merge is",
            )
        self.paths.append(path)
        self.layer.append(layer)
        self.next_state.append([-1] * spec.num_actions)
        self.pilots.append(D)
        self.parts.append(parts)
        self.readings.append(_Readings.of(x))
        generator = self.seed.child("band", path).generator()
        band = sup_band(self.estimator, x[: self.merge.band_deciders], BAND_DRAWS, generator=generator)
        self.noise.append(float(band.two_sample_radius(BAND_LEVEL).median()))
        return len(self.paths) - 1
