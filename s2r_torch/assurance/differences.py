r"""A1 and A2: differences that reward noise cannot explain.

Both are squares of a mean difference, estimated without bias as a product of two differences from independent halves
of the data, each between a sample and its nearest neighbours; reward noise averages out of such a product. One
simulator is one observation: p is Student's, times the number of places that are compared (Bonferroni).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from s2r_torch.assurance.findings import DOUBTFUL, PLAUSIBLE, SILENT, VIOLATED, DiagnosticSettings, Finding
from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Transitions
from s2r_torch.graph import StateGraph, told
from s2r_torch.learning.calibration import tabulated
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.student import half_width, p_above

CONFIDENCE = 0.95  # that no difference is larger than is said

Halves = tuple[Transitions, Transitions]  # of one state, independent
Place = TypeVar("Place")


def check_reactiveness(
    data: tuple[Halves, ...], ensemble: Ensemble, reach: Tensor, settings: DiagnosticSettings
) -> Finding:
    """A1: where two states of a layer show the same readings, Q* must not depend on which of them it is.

    Q* is estimated by dynamic programming with nearest neighbours, so this check needs no predictor.
    """
    graph = ensemble.problem.graph
    pairs = [pair for step in range(graph.horizon) for pair in itertools.combinations(graph.states_of(step), 2)]
    pairs = [(s, t) for s, t in pairs if _may_overlap(data[s], data[t], reach)]
    seen: dict[tuple[int, int], _Difference] = {}
    if pairs:
        values = _values_apart(data, ensemble, reach)
        for s, t in pairs:
            here, there = (_targets(data[u], values, graph, u) for u in (s, t))
            products = _disagreement(data[s], data[t], here, there, reach)
            if products is not None:
                seen[s, t] = _difference(products)
    if not seen:
        return Finding("A1", PLAUSIBLE, "no two states of a layer show the same readings", {"pairs": 0.0})
    verdict, (s, t) = _verdict(seen, settings)
    where = f"paths {told(graph.paths[s])} and {told(graph.paths[t])}"
    numbers = _numbers(seen, (s, t), "disagreement")
    text = f"of {len(seen)} pairs of states that overlap, Q* differs most between {where}: by {_said(seen, (s, t))}"
    return Finding("A1", verdict, text, {"pairs": float(len(seen)), **numbers, "state": float(s), "other": float(t)})


def check_realizability(
    data: tuple[Halves, ...], D_hat: Densities, ensemble: Ensemble, reach: Tensor, settings: DiagnosticSettings
) -> Finding:
    """A2: the best member's Bellman residual must have mean 0 given (x, a), at every state.

    Values of successors are estimated, too, each half's by itself, or their noise would not average out of a product.
    """
    graph = ensemble.problem.graph
    tables = [tabulated([halves[h] for halves in data], D_hat, ensemble) for h in range(2)]
    best = int((tables[0].risks + tables[1].risks).mean(1).sum(1).argmin())
    evaluator = ensemble.subset([best]).evaluator(D_hat)
    seen = {}
    for s, halves in enumerate(data):
        y = _targets(halves, (tables[0].V_hat[best], tables[1].V_hat[best]), graph, s)
        residuals = []
        for half, target in zip(halves, y, strict=True):
            q = evaluator.q_of(0, int(graph.layer[s]), half.x).double()
            residuals.append(q.gather(-1, half.actions[..., None]).squeeze(-1) - target)
        index, near = _nearest(halves[0], halves[1], reach)
        products = _per_simulator(residuals[0] * residuals[1].gather(1, index), near)
        if products is not None:
            seen[s] = _difference(products)
    if not seen:
        text = f"{settings.n} readings of a state are nowhere dense enough to tell an error from noise"
        return Finding("A2", SILENT, text, {})
    verdict, s = _verdict(seen, settings)
    where = f"path {told(graph.paths[s])}"
    text = f"the best of {ensemble.size} members errs most beyond noise at {where}: by {_said(seen, s)}"
    return Finding("A2", verdict, text, {**_numbers(seen, s, "error"), "state": float(s)})


@dataclass(frozen=True)
class _Difference:
    """A root mean square difference, from unbiased estimates of its square in several simulators."""

    p: float  # of this place alone
    size: float
    most: float  # upper end of a one-sided interval of `CONFIDENCE`


def _difference(squares: Tensor) -> _Difference:
    mean, above = float(squares.mean()), half_width(squares, 2 * CONFIDENCE - 1)
    size, most = (math.sqrt(max(value, 0.0)) for value in (mean, mean + above))
    return _Difference(p_above(squares), size, most)


def _verdict(seen: dict[Place, _Difference], settings: DiagnosticSettings) -> tuple[str, Place]:
    """The verdict on differences by place, and the place that it is about."""
    real = {place: found for place, found in seen.items() if len(seen) * found.p <= settings.level}
    if real:
        worst = max(real, key=lambda place: real[place].size)
        return (VIOLATED if real[worst].size > settings.tolerance else DOUBTFUL), worst
    least_known = max(seen, key=lambda place: seen[place].most)
    if seen[least_known].most > settings.resolution:
        return SILENT, least_known
    return PLAUSIBLE, min(seen, key=lambda place: seen[place].p)


def _numbers(seen: dict[Place, _Difference], place: Place, size: str) -> dict[str, float]:
    """p with all places in it, the size at one of them, and what no place exceeds.

    The largest of all upper ends needs no correction: that of the largest difference alone must hold.
    """
    p, most = min(1.0, len(seen) * seen[place].p), max(found.most for found in seen.values())
    return {"p": p, size: seen[place].size, "most": most}


def _said(seen: dict[Place, _Difference], place: Place) -> str:
    p, size, most = _numbers(seen, place, "size").values()
    return f"{size:.3g} (p = {p:.2g}; nowhere by more than {most:.2g})"


def _may_overlap(here: Halves, there: Halves, reach: Tensor) -> bool:
    """Whether the boxes of two states' readings come within reach in two simulators or more."""
    one, other = (torch.cat([half.x for half in halves], 1) for halves in (here, there))
    gap = torch.maximum(one.amin(1) - other.amax(1), other.amin(1) - one.amax(1))  # [B, d]
    return int((gap <= reach).all(-1).sum()) >= 2


def in_halves(data: Transitions) -> Halves:
    n = data.x.shape[1] // 2
    first, second = (
        Transitions(data.x[:, h], data.actions[:, h], data.rewards[:, h]) for h in (slice(None, n), slice(n, 2 * n))
    )
    return first, second


def _nearest(one: Transitions, other: Transitions, reach: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample the nearest one of the same action, and whether it lies within reach: [B, n]."""
    distance, index = [], []
    for b in range(len(one.x)):  # one simulator's distances fit into the cache
        d = _distances(one.x[b], other.x[b], reach)
        d.masked_fill_(one.actions[b][:, None] != other.actions[b], math.inf)
        least = d.min(-1)
        distance.append(least.values)
        index.append(least.indices)
    return torch.stack(index), torch.stack(distance) <= 1


def _distances(x: Tensor, z: Tensor, reach: Tensor) -> Tensor:
    """Distances [m, n] of readings x [m, d] and z [n, d], in units of reach."""
    return torch.cdist((x / reach).float(), (z / reach).float(), compute_mode="donot_use_mm_for_euclid_dist")


def _targets(halves: Halves, values: tuple[Tensor, Tensor], graph: StateGraph, s: int) -> list[Tensor]:
    """r + V(successor) [B, n] of both halves, each with values of its own half."""
    after = (graph.values_after(V, [s]).squeeze(-2) for V in values)
    return [half.rewards + V.gather(1, half.actions) for half, V in zip(halves, after, strict=True)]


def _disagreement(here: Halves, there: Halves, y_here: list, y_there: list, reach: Tensor) -> Tensor | None:
    """Unbiased estimates [B] of the mean of (Q_here - Q_there)^2 where readings of both states are near each other."""
    first, found = _nearest(here[0], there[0], reach)
    again, found_again = _nearest(here[0], here[1], reach)
    second, found_second = _nearest(here[0], there[1], reach)
    one = y_here[0] - y_there[0].gather(1, first)
    two = y_here[1].gather(1, again) - y_there[1].gather(1, second)
    return _per_simulator(one * two, found & found_again & found_second)


def _per_simulator(products: Tensor, near: Tensor) -> Tensor | None:
    """The mean product of each simulator that has enough of them; None where too few simulators have."""
    count = near.sum(1)
    means = (products * near).sum(1) / count.clamp(min=1)
    enough = means[count >= 10]
    return enough if len(enough) >= 2 else None


def _values_apart(data: tuple[Halves, ...], ensemble: Ensemble, reach: Tensor) -> tuple[Tensor, Tensor]:
    """V [B, xi] of either half of the data, of nothing of the other: an error that both share looks real."""
    quarters = (tuple(in_halves(halves[h]) for halves in data) for h in range(2))
    one, other = (torch.stack(_optimal_values(each, ensemble, reach)).mean(0) for each in quarters)
    return one, other


def _optimal_values(data: tuple[Halves, ...], ensemble: Ensemble, reach: Tensor) -> tuple[Tensor, Tensor]:
    """V [B, xi] twice: either half picks actions by the other's estimate of Q*, and values them by its own."""
    graph = ensemble.problem.graph
    B = data[0][0].x.shape[0]
    nothing = torch.zeros(B, graph.num_states, dtype=torch.float64)
    values = nothing.clone(), nothing.clone()
    for _, s in graph.backward():
        y = _targets(data[s], values, graph, s)
        for own, other in ((0, 1), (1, 0)):
            x = data[s][own].x
            q, chooser = (_regress(x, data[s][h], y[h], graph.num_actions, reach) for h in (own, other))
            values[own][:, s] = q.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1).mean(1)
    return values


def _regress(x: Tensor, half: Transitions, y: Tensor, num_actions: int, reach: Tensor) -> Tensor:
    """Nearest-neighbour estimates of E[y | x, a] at x [B, m, d]: [B, m, A]."""
    neighbours = max(1, round(math.sqrt(half.x.shape[1] / num_actions)))
    q = torch.zeros(*x.shape[:2], num_actions, dtype=torch.float64)
    for b in range(len(x)):
        d = _distances(x[b], half.x[b], reach)
        for a in range(num_actions):
            tried = (half.actions[b] == a).nonzero().flatten()
            index = d[:, tried].topk(min(neighbours, len(tried)), largest=False).indices
            q[b, :, a] = y[b, tried][index].mean(-1) if len(tried) else 0.0
    return q
