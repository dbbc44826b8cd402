r"""Are the paper's assumptions plausible here? What data can show is measured and reported; nothing is proved.

    A1  Q* depends on the observation, not on the state: where two states of a layer show the same readings,
        compare E[r | x, a] + V(successor) between them
    A2  the class holds f*: the part of the best member's Bellman risk that is not reward noise
    A3  densities as smooth as the kernel's order wants: does the estimate still move when the bandwidth is halved?
    A4  C_L: what the certified bound of every member makes of the density noise, beside how far values really move
    A5  states of a layer have different densities: their smallest distance against the noise of an estimate

A1 and A2 are in `differences.py`, the rules of the verdicts in `findings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from s2r_torch.assurance.differences import Halves, check_reactiveness, check_realizability, in_halves
from s2r_torch.assurance.findings import (
    DOUBTFUL,
    PLAUSIBLE,
    SILENT,
    VIOLATED,
    Diagnosis,
    DiagnosticSettings,
    Finding,
)
from s2r_torch.coverage import near_readings
from s2r_torch.density.bands import sup_band
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, dense
from s2r_torch.episodes import Guard
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph, told
from s2r_torch.learning.drawing import decisions, readings
from s2r_torch.learning.estimator import density_at, patches_at
from s2r_torch.learning.exploration import Exploration
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed

STEADY = 0.2  # change of the order between bandwidths of ratio sqrt(2): 0 at a jump or a kink, 1 where all is smeared
ROUGH_STATES = 8  # at most, at which A3 is looked at: densities are of one family
ROUGH_NODES = {1: 257, 2: 65}  # nodes per axis on which A3 is looked at; 25 in more dimensions


def diagnose(
    simulators: Guard,
    D_hat: Densities,
    exploration: Exploration,
    ensemble: Ensemble,
    estimator: DensityEstimator,
    settings: DiagnosticSettings,
    seed: Seed,
) -> Diagnosis:
    """Checks Assumptions 1 to 5 as far as data can.

    Args:
        simulators: B >= 2 simulators that judged nothing and trained nothing, for example those of the calibration.
        D_hat: `[B, xi, G]` their densities.
        exploration: what Algorithm 2 found; its graph is that of `ensemble`.
        ensemble: the class F, or its survivors.
        estimator: kernel, bandwidth and grid of the run.
        settings: sizes and limits.
        seed: named stream.

    Returns:
        A finding per assumption.

    Raises:
        SettingError: fewer than two simulators.

    Cost:
        n decisions at every state (`drawing.decisions`), and n_rough episodes along each sequence that shows A3 a state
        on `few` of the simulators.
    """
    if len(simulators) < 2:
        raise SettingError(expected="at least 2 simulators", got=str(len(simulators)), cause="no standard error of one")
    graph = ensemble.problem.graph
    drawn = decisions(simulators, graph, 2 * (settings.n // 2), seed.child("states"))
    data = tuple(in_halves(each) for each in drawn)
    reach = torch.tensor(estimator.bandwidth, dtype=torch.float64) * settings.reach
    reach = simulators.spec.widened(reach, 1.0)  # encoders scale what is beside
    return Diagnosis(
        (
            check_reactiveness(data, ensemble, reach, settings),
            check_realizability(data, D_hat, ensemble, reach, settings),
            check_smoothness(simulators, ensemble, estimator, settings, seed.child("smoothness")),
            check_lipschitz(simulators, data, ensemble, estimator, exploration.noise),
            check_separation(exploration, D_hat, settings),
        )
    )


def check_smoothness(
    simulators: Guard, ensemble: Ensemble, estimator: DensityEstimator, settings: DiagnosticSettings, seed: Seed
) -> Finding:
    """A3: halving the bandwidth of a kernel of order alpha must divide what is still missing by 2^alpha.

        order seen = log2( max |D_4h - D_2h| / max |D_2h - D_h| )

    A jump gives 0 at every h, a kink 1. Only such h count, on a grid of their own, where both differences stand out of
    the noise and the wider one has not smeared the density out; the largest order seen among them is the state's.
    """
    few = simulators.select(range(min(settings.few, len(simulators))))
    estimators = _ever_wider(estimator)
    orders: dict[int, float] = {}  # by state
    graph = ensemble.problem.graph
    needs = rough_readings(graph, settings.n_rough)
    drawn = readings(few, graph, needs, seed.child("states"))
    for s in needs.nonzero().flatten().tolist():
        path, x = graph.paths[s], simulators.spec.placed(drawn[s])
        D_hat = [density_at(estimate, few, path, x) for estimate in estimators]
        enough = min([settings.least_share * estimator.kernel.order, *orders.values()])
        order = _order_seen(x, D_hat, estimators, enough, seed.child("band", s))
        if order is not None:
            orders[s] = order
    assumed = estimator.kernel.order
    if not orders:
        text = f"{settings.n_rough} observations do not show how smooth densities are; the kernel assumes {assumed:g}"
        return Finding("A3", SILENT, text, {"order": math.inf, "states": 0.0})
    s = min(orders, key=lambda state: orders[state])
    where = f"the density at path {told(ensemble.problem.graph.paths[s])}"
    text = f"{where} looks smooth of order {orders[s]:.2g}; the kernel assumes {assumed:g}"
    smooth = DOUBTFUL if orders[s] < settings.least_share * assumed else PLAUSIBLE
    verdict = VIOLATED if orders[s] <= settings.least_order else smooth
    return Finding("A3", verdict, text, {"order": orders[s], "states": float(len(orders)), "state": float(s)})


def rough_readings(graph: StateGraph, n: int) -> Tensor:
    """How many readings [xi] of every state A3 is looked at with: n, or none where there are many states."""
    return near_readings(graph, ROUGH_STATES, n)


def _ever_wider(estimator: DensityEstimator) -> list[DensityEstimator]:
    """Estimators of the same box on a finer grid, each bandwidth sqrt(2) times the one before."""
    box = estimator.grid
    grid = DensityGrid.uniform(box.low, box.high, ROUGH_NODES.get(box.obs_dim, 25))
    wide = [0.6 * 2 ** (k / 2) for k in range(14)]  # in node spacings
    below = [t for t in wide if t < min(grid.shape) - 1]  # the box
    return [replace(estimator, grid=grid, bandwidth=tuple(t * s for s in grid.spacing)) for t in below]


def _order_seen(
    x: Tensor, D_hat: list[Tensor], estimators: list[DensityEstimator], enough: float, seed: Seed
) -> float | None:
    """The largest order that a bandwidth shows, from x [few, n, d], or any of `enough`; None where none shows.

    D_hat are the estimates of x. An order that still grows by more than STEADY from one bandwidth to the next narrower
    one is that of the kernel at the scale of the density itself, not of the density: it counts if it is enough only.
    """
    smeared = 1.05 - 0.75 ** x.shape[-1]  # what a jump loses, and a little more
    seen: list[float] = []
    for k in range(len(D_hat) - 4):
        fine, coarse = (float((sup_distance(D_hat[i], D_hat[i + 2]) / D_hat[k].amax(-1)).median()) for i in (k, k + 2))
        if coarse > smeared:
            break
        order = math.log2(coarse / fine) if min(fine, coarse) > 0 else -math.inf
        if (len(seen) > 1 and order <= max(seen)) or fine <= 0:  # a band is dear: only where it can tell something
            continue
        noise = sup_band(estimators[k], x[:1], 100, generator=seed.generator()).radius() / D_hat[k][:1].amax(-1)
        if fine > 2 * float(noise):
            seen.append(order)
            if order >= enough:
                break
    if not seen or (max(seen) < enough and seen[0] - min(seen[:2]) > STEADY):
        return None
    return max(seen)


def check_lipschitz(
    simulators: Guard, data: tuple[Halves, ...], ensemble: Ensemble, estimator: DensityEstimator, noise: float
) -> Finding:
    """A4: how far the density noise moves values, by the certified constants and as measured."""
    bound = ensemble.lipschitz_bound()
    largest = float(bound.max())
    if not bool(torch.isfinite(bound).all()) or not bool((bound >= 0).all()):
        return Finding("A4", VIOLATED, "a member has no finite certified Lipschitz constant", {"C_L": largest})
    certified, n = largest * noise, data[0][0].x.shape[1]
    moved, apart = _movement(simulators, data, ensemble, estimator)
    numbers = {"C_L": largest, "error": certified, "moved": moved, "apart": apart}
    measured = f"measured, two estimates from {n} readings, {apart:.3g} apart, move them by {moved:.3g}"
    text = f"density noise of {noise:.3g} moves values by at most {certified:.3g} (certified C_L <= {largest:.3g})"
    if certified >= 1:
        return Finding("A4", SILENT, f"{text}, which is more than a value can move; {measured}", numbers)
    return Finding("A4", PLAUSIBLE, f"{text}; {measured}", numbers)


def _movement(
    simulators: Guard, data: tuple[Halves, ...], ensemble: Ensemble, estimator: DensityEstimator
) -> tuple[float, float]:
    """The largest change of a value from one density estimate to another, and how far these are apart.

    Both are means over simulators: the former of the largest |f(D, x, a) - f(D', x, a)| of any member, over the
    readings of all states; the latter of the largest distance of a state's two estimates.
    """
    paths = ensemble.problem.graph.paths
    one, other = (patches_at(estimator, simulators, paths, [halves[h].x for halves in data]) for h in (0, 1))
    before, after = ensemble.evaluator(one), ensemble.evaluator(other)
    layer = ensemble.problem.graph.layer.tolist()
    moved = [before.largest_change(after, layer[s], halves[0].x) for s, halves in enumerate(data)]  # [F, B] each
    return float(torch.stack(moved).amax((0, 1)).mean()), float(one.distance(other).amax(1).mean())


def check_separation(exploration: Exploration, D_hat: Densities, settings: DiagnosticSettings) -> Finding:
    """A5: the smallest distance of two states of a layer, against what two estimates of one state differ by."""
    noise, zeta = exploration.noise, exploration.zeta_hat
    least = min(_least_distances(exploration.graph, D_hat), default=math.inf)
    numbers = {"zeta": zeta, "noise": noise, "least": least}
    if math.isinf(least):
        return Finding("A5", PLAUSIBLE, "no layer has two states", numbers)
    ratio = zeta / max(noise, 1e-300)
    text = (
        f"states of a layer are at least {zeta:.3g} apart (median simulator; {least:.3g} on the worst), {ratio:.2g} "
        f"times the noise of {noise:.3g}"
    )
    apart = PLAUSIBLE if ratio >= settings.least_separation else DOUBTFUL
    return Finding("A5", VIOLATED if ratio <= 1 else apart, text, numbers)


def _least_distances(graph: StateGraph, D_hat: Densities) -> Iterator[float]:
    """Between every two states of a layer, in the simulator where they are nearest; one simulator at a time."""
    for one in D_hat.split(1):
        for step in range(graph.horizon):
            D = dense(one[:, graph.states_of(step)])[0]  # [S, G]
            yield from (float(sup_distance(D[s], D[:s]).min()) for s in range(1, len(D)))
