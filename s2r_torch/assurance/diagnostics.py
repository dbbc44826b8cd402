r"""Are the paper's assumptions plausible here? What data can show is measured and reported; nothing is proved.

    A1  Q* depends on the observation, not on the state: where two states of a layer show the same readings,
        compare E[r | x, a] + V(successor) between them
    A2  the class holds f*: the part of the best member's Bellman risk that is not reward noise
    A3  densities as smooth as the kernel's order wants: does the estimate still move when the bandwidth is halved?
    A4  C_L: the certified bound of every member, and what it makes of the density noise
    A5  states of a layer have different densities: their smallest distance against the noise of an estimate

A1 and A2 are squares of a mean difference, estimated without bias as a product of two differences from independent
halves of the data, each between a sample and its nearest neighbours; reward noise averages out of such a product. One
simulator is one observation: z is the mean over simulators in units of its standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.density.bands import sup_band
from s2r_torch.density.estimator import DensityEstimator, sup_distance
from s2r_torch.density.grid import DensityGrid
from s2r_torch.episodes import Guard, Transitions, observe, try_actions
from s2r_torch.errors import SettingError
from s2r_torch.learning.calibration import bellman_table
from s2r_torch.learning.exploration import Exploration
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import Positive, Range, Settings, Several, Size

PLAUSIBLE, DOUBTFUL, UNTESTED = "plausible", "doubtful", "not testable"
ROUGH_NODES = {1: 257, 2: 65}  # nodes per axis on which A3 is looked at; 25 in more dimensions


@dataclass(frozen=True)
class DiagnosticSettings(Settings):
    """Sizes and limits of the checks.

    Args:
        simulators: drawn to check Assumptions 1-5; 0 skips the checks.
        n: transitions per state and simulator (A1, A2).
        n_rough: observations per state on each of `few` simulators (A3).
        few: how many simulators A3 looks at.
        reach: how near two readings must be to count as the same, in bandwidths (A1, A2).
        tolerance: root mean square difference, in units of total reward, below which nothing is reported (A1, A2).
        z: standard errors above which a difference is taken for real.
        least_order: order of smoothness below which A3 is doubtful (it asks for more than 1).
        least_separation: distance of two states in units of noise below which A5 is doubtful.

    Raises:
        SettingError: a size or limit out of range.
    """

    simulators: Several = 8
    n: Annotated[int, Range(20)] = 1000
    n_rough: Annotated[int, Range(2)] = 20_000
    few: Size = 4
    reach: Positive = 0.5
    tolerance: Positive = 0.03
    z: Positive = 4.0
    least_order: Positive = 1.0
    least_separation: Positive = 3.0


@dataclass(frozen=True)
class Finding:
    """What was found about one assumption."""

    assumption: str  # A1 .. A5
    verdict: str  # plausible, doubtful or not testable
    text: str  # with the numbers, for people
    numbers: dict[str, float]  # the same, for machines: those that are finite

    def __post_init__(self):
        finite = {name: value for name, value in self.numbers.items() if math.isfinite(value)}
        object.__setattr__(self, "numbers", finite)


@dataclass(frozen=True)
class Diagnosis:
    """One finding per assumption, in order."""

    findings: tuple[Finding, ...]

    def __getitem__(self, assumption: str) -> Finding:
        return next(f for f in self.findings if f.assumption == assumption)

    def lines(self) -> list[str]:
        """One line of text per assumption."""
        return [f"{f.assumption} {f.verdict}: {f.text}" for f in self.findings]


def diagnose(
    simulators: Guard,
    D_hat: Tensor,
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
        1.5 xi n episodes per simulator, xi n_rough on `few` of them.
    """
    if len(simulators) < 2:
        raise SettingError(expected="at least 2 simulators", got=str(len(simulators)), cause="no standard error of one")
    graph = ensemble.problem.graph
    data = tuple(
        _halves(try_actions(simulators, path, 2 * (settings.n // 2), seed.child("state", s)))
        for s, path in enumerate(graph.paths)
    )
    reach = torch.tensor(estimator.bandwidth, dtype=torch.float64) * settings.reach
    return Diagnosis(
        (
            check_reactiveness(data, ensemble, reach, settings),
            check_realizability(simulators, data, D_hat, ensemble, reach, settings, seed.child("realizability")),
            check_smoothness(simulators, ensemble, estimator, settings, seed.child("smoothness")),
            check_lipschitz(ensemble, exploration.noise),
            check_separation(exploration, D_hat, settings),
        )
    )


# -- A1 and A2: differences that noise cannot explain ----------------------------------------------------------------

Halves = tuple[Transitions, Transitions]


def check_reactiveness(
    data: tuple[Halves, ...], ensemble: Ensemble, reach: Tensor, settings: DiagnosticSettings
) -> Finding:
    """A1: where two states of a layer show the same readings, Q* must not depend on which of them it is.

    Q* is estimated by dynamic programming with nearest neighbours, so this check needs no predictor.
    """
    graph = ensemble.problem.graph
    values = _optimal_values(data, ensemble, reach)
    tested, worst = 0, (-math.inf, 0.0, 0, 0)  # z, root mean square, states
    for step in range(graph.horizon):
        states = graph.states_of(step)
        for s, t in ((s, t) for i, s in enumerate(states) for t in states[i + 1 :]):
            targets = [_targets(data[u], values, graph.next_state[u]) for u in (s, t)]
            products = _disagreement(data[s], data[t], *targets, reach)
            if products is None:
                continue
            tested += 1
            worst = max(worst, (*_significance(products), s, t))
    z, size, s, t = worst
    numbers = {"pairs": float(tested), "z": z, "disagreement": size, "state": float(s), "other": float(t)}
    if tested == 0:
        return Finding("A1", PLAUSIBLE, "no two states of a layer show the same readings", numbers)
    bad = z > settings.z and size > settings.tolerance
    where = f"paths {graph.paths[s]} and {graph.paths[t]}"
    text = f"of {tested} pairs of states that overlap, Q* differs most between {where}: by {size:.3g} (z = {z:.1f})"
    return Finding("A1", DOUBTFUL if bad else PLAUSIBLE, text, numbers)


def check_realizability(
    simulators: Guard,
    data: tuple[Halves, ...],
    D_hat: Tensor,
    ensemble: Ensemble,
    reach: Tensor,
    settings: DiagnosticSettings,
    seed: Seed,
) -> Finding:
    """A2: the best member's Bellman residual must have mean 0 given (x, a), at every state."""
    graph = ensemble.problem.graph
    risks, V_hat = bellman_table(simulators, D_hat, ensemble, max(1, settings.n // 2), seed)
    best = int(risks.mean(1).sum(1).argmin())
    evaluator = ensemble.subset([best]).evaluator(D_hat)
    worst = (-math.inf, 0.0, 0)
    for s, halves in enumerate(data):
        following = V_hat[best, :, graph.next_state[s]] if int(graph.next_state[s, 0]) >= 0 else None
        residuals = []
        for half in halves:
            q = evaluator.q_of(0, int(graph.layer[s]), half.x).double()
            y = half.rewards if following is None else half.rewards + following.gather(1, half.actions)
            residuals.append(q.gather(-1, half.actions[..., None]).squeeze(-1) - y)
        index, near = _nearest(halves[0], halves[1], reach)
        products = _per_simulator(residuals[0] * residuals[1].gather(1, index), near)
        if products is not None:
            worst = max(worst, (*_significance(products), s))
    z, size, s = worst
    bad = z > settings.z and size > settings.tolerance
    text = f"the best of {ensemble.size} members errs by {size:.3g} (z = {z:.1f}) beyond noise at path {graph.paths[s]}"
    return Finding("A2", DOUBTFUL if bad else PLAUSIBLE, text, {"z": z, "error": size, "state": float(s)})


def _halves(data: Transitions) -> Halves:
    n = data.x.shape[1] // 2
    first, second = slice(None, n), slice(n, 2 * n)
    return tuple(Transitions(data.x[:, h], data.actions[:, h], data.rewards[:, h]) for h in (first, second))


def _nearest(one: Transitions, other: Transitions, reach: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample the nearest one of the same action, and whether it lies within reach: [B, n]."""
    distance, index = [], []
    for b in range(len(one.x)):  # one simulator's distances fit into the cache
        d = _distances(one.x[b], other.x[b], reach)
        d.masked_fill_(one.actions[b][:, None] != other.actions[b], math.inf)
        least = d.min(-1)
        distance.append(least.values), index.append(least.indices)
    return torch.stack(index), torch.stack(distance) <= 1


def _distances(x: Tensor, z: Tensor, reach: Tensor) -> Tensor:
    """Distances [m, n] of readings x [m, d] and z [n, d], in units of reach."""
    return torch.cdist((x / reach).float(), (z / reach).float(), compute_mode="donot_use_mm_for_euclid_dist")


def _targets(halves: Halves, values: tuple[Tensor, Tensor], following: Tensor) -> list[Tensor]:
    """r + V(successor) [B, n] of both halves, each with values of its own half."""
    if int(following[0]) < 0:
        return [half.rewards for half in halves]
    return [half.rewards + V[:, following].gather(1, half.actions) for half, V in zip(halves, values, strict=True)]


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


def _significance(products: Tensor) -> tuple[float, float]:
    """z of the mean over simulators, and the root of that mean."""
    mean, error = float(products.mean()), float(products.std()) / math.sqrt(len(products))
    return mean / max(error, 1e-12), math.sqrt(max(mean, 0.0))


def _optimal_values(data: tuple[Halves, ...], ensemble: Ensemble, reach: Tensor) -> tuple[Tensor, Tensor]:
    """V [B, xi] twice, from independent halves: each picks actions by the other's estimate of Q*, and values them."""
    graph = ensemble.problem.graph
    B = data[0][0].x.shape[0]
    values = tuple(torch.zeros(B, graph.num_states, dtype=torch.float64) for _ in range(2))
    for _, s in graph.backward():
        y = _targets(data[s], values, graph.next_state[s])
        for own, other in ((0, 1), (1, 0)):
            x = data[s][own].x
            q, chooser = (_regress(x, data[s][h], y[h], graph.num_actions, reach) for h in (own, other))
            values[own][:, s] = q.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1).mean(1)
    return values


def _regress(x: Tensor, half: Transitions, y: Tensor, num_actions: int, reach: Tensor) -> Tensor:
    """Nearest-neighbour estimates of E[y | x, a] at x [B, m, d]: [B, m, A]."""
    neighbours = round(math.sqrt(half.x.shape[1] / num_actions))
    q = torch.zeros(*x.shape[:2], num_actions, dtype=torch.float64)
    for b in range(len(x)):
        d = _distances(x[b], half.x[b], reach)
        for a in range(num_actions):
            tried = (half.actions[b] == a).nonzero().flatten()
            index = d[:, tried].topk(min(neighbours, len(tried)), largest=False).indices
            q[b, :, a] = y[b, tried][index].mean(-1) if len(tried) else 0.0
    return q


# -- A3, A4, A5 ------------------------------------------------------------------------------------------------------


def check_smoothness(
    simulators: Guard, ensemble: Ensemble, estimator: DensityEstimator, settings: DiagnosticSettings, seed: Seed
) -> Finding:
    """A3: halving the bandwidth of a kernel of order alpha must divide what is still missing by 2^alpha.

        order seen = log2( max |D_4h - D_2h| / max |D_2h - D_h| )

    A jump gives 0 at every h, a kink 1. Only such h count, on a grid of their own, where both differences stand out of
    the noise and the wider one has not smeared the density out; the largest order seen among them is the state's.
    """
    few = simulators.select(range(min(settings.few, len(simulators))))
    estimators, orders = _ever_wider(estimator), {}
    for s, path in enumerate(ensemble.problem.graph.paths):
        x = observe(few, path, settings.n_rough, seed.child(s))
        seen = _orders_seen(x, estimators, seed.child("band", s))
        if seen:
            orders[s] = max(seen)
    name = f"the kernel assumes {estimator.kernel.order:g}"
    if not orders:
        text = f"{settings.n_rough} observations do not show how smooth densities are; {name}"
        return Finding("A3", UNTESTED, text, {"order": math.inf, "states": 0.0})
    s = min(orders, key=orders.get)
    text = f"the density at path {ensemble.problem.graph.paths[s]} looks smooth of order {orders[s]:.2g}; {name}"
    verdict = DOUBTFUL if orders[s] < settings.least_order else PLAUSIBLE
    return Finding("A3", verdict, text, {"order": orders[s], "states": float(len(orders)), "state": float(s)})


def _ever_wider(estimator: DensityEstimator) -> list[DensityEstimator]:
    """Estimators of the same box on a finer grid, each bandwidth sqrt(2) times the one before."""
    box = estimator.grid
    grid = DensityGrid.uniform(box.low, box.high, ROUGH_NODES.get(box.obs_dim, 25))
    wide = [0.6 * 2 ** (k / 2) for k in range(14)]  # in node spacings
    below = [t for t in wide if t < min(grid.shape) - 1]  # the box
    return [replace(estimator, grid=grid, bandwidth=tuple(t * s for s in grid.spacing)) for t in below]


def _orders_seen(x: Tensor, estimators: list[DensityEstimator], seed: Seed) -> list[float]:
    """The order at every bandwidth that shows one, from x [few, n, d]."""
    D_hat = [estimate(x) for estimate in estimators]
    smeared = 1.05 - 0.75 ** x.shape[-1]  # what a jump loses, and a little more
    orders = []
    for k in range(len(D_hat) - 4):
        fine, coarse = (float((sup_distance(D_hat[i], D_hat[i + 2]) / D_hat[k].amax(-1)).median()) for i in (k, k + 2))
        if coarse > smeared:
            break
        noise = sup_band(estimators[k], x[:1], 100, generator=seed.generator()).radius() / D_hat[k][:1].amax(-1)
        if fine > 2 * float(noise):
            orders.append(math.log2(coarse / fine))
    return orders


def check_lipschitz(ensemble: Ensemble, noise: float) -> Finding:
    """A4: the certified constants, and how much of a reward the density noise can make of them."""
    bound = ensemble.lipschitz_bound()
    largest = float(bound.max())
    numbers = {"C_L": largest, "error": largest * noise}
    if not bool(torch.isfinite(bound).all()) or not bool((bound >= 0).all()):
        return Finding("A4", DOUBTFUL, "a member has no finite certified Lipschitz constant", numbers)
    text = f"certified C_L <= {largest:.3g}; density noise of {noise:.3g} moves values by at most {largest * noise:.3g}"
    return Finding("A4", PLAUSIBLE, text, numbers)


def check_separation(exploration: Exploration, D_hat: Tensor, settings: DiagnosticSettings) -> Finding:
    """A5: the smallest distance of two states of a layer, against what two estimates of one state differ by."""
    layer = exploration.graph.layer.tolist()
    pairs = [(s, t) for t in range(len(layer)) for s in range(t) if layer[s] == layer[t]]
    noise, zeta = exploration.noise, exploration.zeta_hat
    least = min((float(sup_distance(D_hat[:, s], D_hat[:, t]).min()) for s, t in pairs), default=math.inf)
    numbers = {"zeta": zeta, "noise": noise, "least": least}
    if not pairs:
        return Finding("A5", PLAUSIBLE, "no layer has two states", numbers)
    ratio = zeta / max(noise, 1e-300)
    text = (
        f"states of a layer are at least {zeta:.3g} apart (median simulator; {least:.3g} on the worst), {ratio:.2g} "
        f"times the noise of {noise:.3g}"
    )
    return Finding("A5", PLAUSIBLE if ratio >= settings.least_separation else DOUBTFUL, text, numbers)
