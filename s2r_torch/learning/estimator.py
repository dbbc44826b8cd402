"""The density estimator of a problem, fixed before anything is estimated; and the densities of known states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from s2r_torch.density.bandwidth import SHRINK, lepski_bandwidth, paper_bandwidth, pilot_scale, reference_bandwidth
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import MAX_NODES, DensityGrid
from s2r_torch.density.kernels import KERNELS, Kernel, make_kernel
from s2r_torch.density.nodes import nodes_for
from s2r_torch.density.patches import Patches
from s2r_torch.density.samples import by_name
from s2r_torch.episodes import Guard
from s2r_torch.given import taking
from s2r_torch.graph import Path, StateGraph
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.memory import require_memory
from s2r_torch.rng import Seed
from s2r_torch.schema import Drawable, OneOf, Positive, Range, Settings
from s2r_torch.tours import readings, walk
from s2r_torch.workers.simulators import AT_ONCE, each_simulators, in_parts

MOST_READINGS = 2**23  # numbers observed at once, 64 MiB; a simulator may hold ten times that
PILOTS = 32  # simulators that a pilot looks at
FLOOR = 0.6  # least bandwidth, in node spacings; below half a spacing a state between two nodes would vanish


@dataclass(frozen=True)
class DensitySettings(Settings):
    """How densities are estimated.

    Args:
        nodes: grid nodes per coordinate; `auto` takes as many as tell the width of densities, by the scale of a pilot.
        kernel: which kernel.
        order: alpha, the smoothness that the kernel exploits.
        bandwidth: `lepski` (adapts to the shape on a pilot), `reference` (the pilot's scale), `paper`
            (n^(-1/(2 alpha + d))) or a number, the same on every axis.
        shrink: factor on the pilot's bandwidth; None for 0.8 with lepski, 1 with reference.
        n_pilot: pilot observations per simulator and layer, of at most 32 simulators.
        boundary: `none`, or `legendre` where densities are positive at the edge of the observation box.
        off_grid_limit: largest share of a state's observations off the grid.
        merge: when two paths end in the same state.

    Raises:
        SettingError: a value out of range, or a kernel that has not that order.
    """

    nodes: Annotated[int, Range(2, MAX_NODES)] | Literal["auto"] = "auto"
    kernel: Annotated[str, OneOf(KERNELS)] = "legendre"
    order: Positive = 2.0
    bandwidth: Positive | Literal["lepski", "reference", "paper"] = "lepski"
    shrink: Positive | None = None
    n_pilot: Annotated[int, Drawable(2)] = 500
    boundary: Literal["none", "legendre"] = "none"
    off_grid_limit: Annotated[float, Range(0, 1)] = 0.01
    merge: MergeSettings = field(default_factory=MergeSettings)

    def check_rules(self) -> None:
        make_kernel(self.kernel, self.order)

    @property
    def asks_a_pilot(self) -> bool:
        """Whether nodes or bandwidth depend on a pilot."""
        return self.nodes == "auto" or self.bandwidth in ("lepski", "reference")


@taking(simulators=object)
def make_estimator(density: DensitySettings, simulators: Guard, n_dist: int, seed: Seed) -> DensityEstimator:
    """Kernel, grid and bandwidth for n_dist samples a state, fixed before the samples they are used on are drawn.

    Cost:
        For `nodes=auto`, `lepski` and `reference`, n_pilot pilot episodes on at most 32 simulators.
    """
    spec, kernel = simulators.spec, make_kernel(density.kernel, density.order)
    pilot = pilot_samples(simulators, density.n_pilot, seed) if density.asks_a_pilot else torch.empty(0)
    with by_name(spec.obs_names, lambda index: simulators.where(index[0], (0,) * index[1]) if index else ""):
        scale = pilot_scale(pilot) if density.nodes == "auto" else None
        grid = DensityGrid.uniform(spec.low, spec.high, nodes_for(density.nodes, spec.low, spec.high, scale))
        bandwidth = _bandwidth_for(pilot, density, n_dist, kernel, grid)
    return DensityEstimator(grid, kernel, bandwidth, density.boundary, off_grid_limit=density.off_grid_limit)


def _bandwidth_for(
    pilot: Tensor, density: DensitySettings, n_dist: int, kernel: Kernel, grid: DensityGrid
) -> tuple[float, ...]:
    """The bandwidths that the settings and, where they ask it, a pilot [B, H, n, d] give."""
    if not isinstance(density.bandwidth, str):
        return (float(density.bandwidth),) * grid.obs_dim
    if density.bandwidth == "paper":
        return (paper_bandwidth(n_dist, density.order, grid.obs_dim),) * grid.obs_dim
    if density.bandwidth == "lepski":
        shrink = density.shrink or SHRINK
        return lepski_bandwidth(pilot, n_dist, kernel, grid, shrink=shrink, off_grid_limit=density.off_grid_limit)
    wanted = ((density.shrink or 1.0) * h for h in reference_bandwidth(pilot, n_dist, kernel))
    return tuple(max(h, FLOOR * s) for h, s in zip(wanted, grid.spacing, strict=True))


def pilot_samples(simulators: Guard, n_pilot: int, seed: Seed) -> Tensor:
    """Observations [B, H, n_pilot, d] along action 0, one state a layer, on at most PILOTS simulators."""
    few = simulators.select(range(min(PILOTS, len(simulators))))
    x, _ = walk(few, (0,) * (simulators.spec.horizon - 1), n_pilot, seed.child("pilot"))
    return simulators.spec.placed(torch.stack(x, 1))


@taking(simulators=object)
def estimate_densities(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, n_dist: int | Tensor, seed: Seed
) -> Tensor:
    """D_hat [B, xi, G] of known states on every simulator, from readings along tours (`tours.py`).

    Args:
        simulators: B of them.
        graph: the state graph.
        estimator: kernel, bandwidth and grid.
        n_dist: how many readings, of every state alike or of each, `[xi]`.
        seed: named stream.

    Raises:
        SettingError: there is less memory than D_hat takes.

    Cost:
        w n_dist episodes per simulator for a path cover of w sequences. More readings than fit into memory are drawn in
        parts, whose estimates average. Memory of D_hat once: it may be gigabytes, which every copy takes again.
    """
    parts = _in_turn(_densities, simulators, len(simulators), graph, estimator, n_dist, seed)
    D_hat = torch.empty(len(simulators), graph.num_states, estimator.grid.num_points, dtype=torch.float64)
    done = 0
    for part in parts:
        D_hat[done : done + len(part)] = part
        done += len(part)
    return D_hat


def estimate_patches(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, n_dist: int | Tensor, seed: Seed
) -> Patches:
    """The same, kept only where they are not 0: a fraction of the memory where there are many states."""
    return Patches.joined([*_in_turn(_patches, simulators, AT_ONCE, graph, estimator, n_dist, seed)])


def estimate_draws(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, n_dist: Tensor, times: int, seed: Seed
) -> Patches:
    """Several independent estimates of each density, draw by draw: [times B, xi, G]."""
    found = Patches.joined([*_in_turn(_draws, simulators, times * AT_ONCE, graph, estimator, n_dist, (times, seed))])
    return found[torch.arange(len(found)).view(-1, times).T.flatten()]


def estimate_halves(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, n: int, seeds: tuple[Seed, Seed]
) -> tuple[Patches, Patches]:
    """D_hat of 2 n readings, and that of the first n of them alone.

    Args:
        simulators: B of them.
        graph: the state graph.
        estimator: kernel, bandwidth and grid.
        n: readings of every state in either half.
        seeds: of the halves.
    """
    parts = [*_in_turn(_halves, simulators, 2 * AT_ONCE, graph, estimator, n, seeds)]
    whole, half = (Patches.joined(several) for several in zip(*parts, strict=True))
    return whole, half


def _in_turn(
    task: Callable[..., Any],
    simulators: Guard,
    at_once: int,
    graph: StateGraph,
    estimator: DensityEstimator,
    n_dist: int | Tensor,
    seed: Any,
) -> Iterator[Any]:
    """What a task makes of the densities of some simulators after others, so many of which are in memory at once.

    Whether there is room for them is asked at once, before whoever calls takes any.
    """
    shape, nodes = (at_once, graph.num_states, estimator.grid.num_points), estimator.grid.shape
    require_memory(
        math.prod(shape) * torch.float64.itemsize,
        f"densities of {shape[0]} simulators at {shape[1]} states on {' x '.join(map(str, nodes))} nodes",
        "a fine grid over many states: fewer density.nodes, or fewer predictors.num_simulators",
    )
    given = graph, estimator, torch.as_tensor(n_dist).expand(graph.num_states), seed
    return _answers(task, simulators, given)


def _answers(task: Callable[..., Any], simulators: Guard, given: tuple) -> Iterator[Any]:
    with closing(each_simulators(task, in_parts(simulators), *given)) as parts:
        yield from parts


def _patches(simulators: Guard, graph: StateGraph, estimator: DensityEstimator, wanted: Tensor, seed: Seed) -> Patches:
    """Those of some simulators."""
    if len(_in_memory(simulators, wanted)) > 1:
        return Patches.of(_densities(simulators, graph, estimator, wanted, seed), estimator.grid)
    drawn = readings(simulators, graph, wanted, seed.child("density", 0))
    return patches_at(estimator, simulators, graph.paths, drawn)


def _draws(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, wanted: Tensor, given: tuple[int, Seed]
) -> Patches:
    """Those of some simulators, one simulator after another."""
    times, seed = given
    drawn = readings(simulators, graph, times * wanted, seed.child("density", 0))
    apart = [x.unflatten(1, (times, -1)).flatten(0, 1) for x in drawn]
    return patches_at(estimator, simulators, graph.paths, apart, times)


def _halves(
    simulators: Guard, graph: StateGraph, estimator: DensityEstimator, wanted: Tensor, seeds: tuple[Seed, Seed]
) -> tuple[Patches, Patches]:
    """Those of some simulators."""
    one, other = (_patches(simulators, graph, estimator, wanted, seed) for seed in seeds)
    return one.mean(other), one


def _densities(simulators: Guard, graph: StateGraph, estimator: DensityEstimator, wanted: Tensor, seed: Seed) -> Tensor:
    """Those of some simulators."""
    draws, D_hat = _in_memory(simulators, wanted), torch.tensor(0.0)
    for i, part in enumerate(draws):
        drawn = readings(simulators, graph, part, seed.child("density", i))
        D = densities_at(estimator, simulators, graph.paths, drawn)
        D_hat = D if len(draws) == 1 else D_hat + D * (part / wanted)[:, None]
    return D_hat


def _in_memory(simulators: Guard, wanted: Tensor) -> list[Tensor]:
    """How many readings [xi] are in memory at once, one draw after another."""
    numbers = int(wanted.sum()) * len(simulators) * simulators.spec.width
    count = max(1, min(-(-numbers // MOST_READINGS), int(wanted.min()) // 2))
    return [wanted * (i + 1) // count - wanted * i // count for i in range(count)]


def densities_at(
    estimator: DensityEstimator, simulators: Guard, paths: Sequence[Path], samples: Sequence[Tensor]
) -> Tensor:
    """D_hat [B, p, G] of readings [B, n, d] at the ends of p paths.

    Raises:
        ObservationError: no density can be estimated from some; it names simulator, path and sensor.
    """
    with _by_name(simulators, paths):
        return estimator.of_states([simulators.spec.placed(x) for x in samples])


def patches_at(
    estimator: DensityEstimator, simulators: Guard, paths: Sequence[Path], samples: Sequence[Tensor], times: int = 1
) -> Patches:
    """`densities_at`, kept only where they are not 0; of so many rows of every simulator, one after another."""
    with _by_name(simulators, paths, times):
        return estimator.patches([simulators.spec.placed(x) for x in samples])


def density_at(estimator: DensityEstimator, simulators: Guard, path: Path, x: Tensor) -> Tensor:
    """D_hat [B, G] of readings x [B, n, d] at a path's end; errors as of `densities_at`."""
    return densities_at(estimator, simulators, [path], [x])[:, 0]


def _by_name(simulators: Guard, paths: Sequence[Path], times: int = 1) -> AbstractContextManager[None]:
    """Within it, samples [B, n, d] at the ends of paths are refused by the names of sensor, simulator and path."""
    return by_name(simulators.spec.obs_names, lambda index: simulators.where(index[0] // times, paths[index[1]]))
