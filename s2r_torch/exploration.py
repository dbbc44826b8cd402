"""Algorithm 2, DFS-Distribution: the states, the graph that connects them, and their densities on every simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.base import Path, StateGraph
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.episodes import Guard, observe
from s2r_torch.errors import AmbiguousMergeError, ExplorationError, SettingError
from s2r_torch.rng import Seed


@dataclass(frozen=True)
class MergeSettings:
    """When two paths of the same length end in the same state (theory.md C12).

    The median over simulators of the sup distance to the nearest state of that layer decides, against a threshold of
    zeta / 2 where zeta is declared, else of `relative` times the density's height.

    Args:
        n_merge: observations per path and simulator that decide; separate from those that estimate densities.
        zeta: separation of states in sup norm (Assumption 5), or None.
        relative: share of the height, in (0, 1), used when zeta is None.
        margin: distances within this share of the threshold, on either side, are ambiguous: an error.
        deciders: how many simulators decide; all, if there are fewer.

    Raises:
        SettingError: a number out of range.
    """

    n_merge: int = 1000
    zeta: float | None = None
    relative: float = 0.5
    margin: float = 0.25
    deciders: int = 16

    def __post_init__(self):
        fine = self.n_merge >= 2 and self.deciders >= 1 and 0 < self.relative < 1 and 0 <= self.margin < 1
        if not fine or (self.zeta is not None and not self.zeta > 0):
            raise SettingError(
                expected="n_merge >= 2, deciders >= 1, relative in (0, 1), margin in [0, 1) and zeta > 0 or null",
                got=str(self),
                cause="a typo in conf/density",
            )


@dataclass(frozen=True)
class Visit:
    """One visited path: merged into a state of its layer, or a new state."""

    path: Path
    state: int
    merged: bool
    distance: float  # to the nearest earlier state of the layer; infinite for its first state
    threshold: float


@dataclass(frozen=True, eq=False)
class Exploration:
    """What Algorithm 2 found."""

    graph: StateGraph
    D_hat: Tensor  # [B, xi, G] float64, from n_dist observations per state and simulator
    visits: tuple[Visit, ...]  # every path visited, in depth-first order


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
        AmbiguousMergeError: a distance neither clearly small nor clearly large.
        ExplorationError: more states in a layer, or more paths, than Assumption 5 and S allow.
        ObservationError: observations off the grid or not finite.

    Paper deviation:
        Recursion stops at the horizon (theory.md C2); only paths of equal length are compared, with the nearest one,
        by the median over simulators instead of all of them, on samples of their own; calls are capped (C12).

    Cost:
        At most 1 + (H - 1) S A paths: n_merge episodes each on the deciders, n_dist per state on all simulators.
    """
    search = _Search(simulators, estimator, merge, seed, on_visit)
    search.visit(())
    graph = StateGraph(torch.tensor(search.next_state), torch.tensor(search.layer), tuple(search.paths))
    return Exploration(graph, estimate_densities(simulators, graph, estimator, n_dist, seed), tuple(search.visits))


def estimate_densities(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, n_dist: int, seed: Seed
) -> Tensor:
    """D_hat [B, xi, G] of known states: n_dist observations at the end of every state's path, on every simulator."""
    states = (estimator(observe(simulators, path, n_dist, seed.child("density", path))) for path in graph.paths)
    return torch.stack(list(states), 1)


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
    visits: list[Visit] = field(default_factory=list)

    def __post_init__(self):
        spec = self.simulators.spec
        self.deciders = self.simulators.select(range(min(self.merge.deciders, len(self.simulators))))
        self.max_calls = 1 + (spec.horizon - 1) * spec.max_states_per_layer * spec.num_actions

    def visit(self, path: Path) -> int:
        """The state at the end of a path, found or new, with its successors."""
        if len(self.visits) >= self.max_calls:
            raise ExplorationError(
                expected=f"at most 1 + (H - 1) S A = {self.max_calls} paths",
                got=f"one more, {path}",
                cause="paths to the same state do not merge: raise n_merge, or S is too small",
            )
        D = self.estimator(observe(self.deciders, path, self.merge.n_merge, self.seed.child("merge", path)))
        state, distance, threshold = self._nearest(path, D)
        merged = state is not None
        if state is None:
            state = self._new_state(path, D)
        self.visits.append(Visit(path, state, merged, distance, threshold))
        self.on_visit(self.visits[-1])
        if not merged and len(path) < self.simulators.spec.horizon - 1:
            for a in range(self.simulators.spec.num_actions):
                self.next_state[state][a] = self.visit((*path, a))
        return state

    def _nearest(self, path: Path, D: Tensor) -> tuple[int | None, float, float]:
        """The earlier state that D [deciders, G] belongs to, or None; the distance to the nearest, the threshold."""
        candidates = [s for s, layer in enumerate(self.layer) if layer == len(path)]
        height = float(D.amax(-1).median())
        threshold = self.merge.zeta / 2 if self.merge.zeta else self.merge.relative * height
        if not candidates:
            return None, float("inf"), threshold
        distances = torch.stack([sup_distance(D, self.pilots[s]).median() for s in candidates])
        nearest, distance = candidates[int(distances.argmin())], float(distances.min())
        if abs(distance - threshold) < self.merge.margin * threshold:
            raise AmbiguousMergeError(
                expected=f"paths {path} and {self.paths[nearest]} at a distance clearly below or above {threshold:.3g}",
                got=f"a median distance of {distance:.3g} over {len(self.deciders)} simulators, "
                f"where densities are {height:.3g} high",
                cause="too much noise: raise n_merge (it falls like its square root); or states too alike (zeta)",
            )
        return (nearest if distance < threshold else None), distance, threshold

    def _new_state(self, path: Path, D: Tensor) -> int:
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
        return len(self.paths) - 1
