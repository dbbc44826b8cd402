"""The truth against simulation: the state graph, the quadrature of readings, mean rewards; and how close states are."""

from __future__ import annotations

import math

import scipy
import torch
from torch import Tensor

from s2r_torch.coverage import Edge, edge_cover, edges_of
from s2r_torch.density.bands import sup_band
from s2r_torch.density.bandwidth import pilot_scale, reference_bandwidth
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.density.nodes import nodes_for
from s2r_torch.errors import GraphMismatchError
from s2r_torch.families.check.probe import FEW, Probe, named, of_edges
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.encoded import unencoded
from s2r_torch.families.replay.family import ReplayFamily
from s2r_torch.graph import Path, StateGraph, told
from s2r_torch.tours import readings, walk

Z, SUSPECTS = 6.0, 16  # standard errors; means beyond them that are looked at again
TOLERANCE = 0.06  # standard deviations of a mean, share of a variance, units of reward: what is not worth a word
DECLARED = 0.5 * 0.75  # of a declared separation, that noise must stay below
SURELY, ALIKE = 1e-9, 1e-3  # p-values
AT_ONCE = 2**24  # numbers of densities that are compared at once
N_MERGE, ROOM = 250, 1.5 * 1.25  # readings that decide merges, and what they ask of a distance, in units of noise
N_MERGE_MOST = 4000  # that a run draws where fewer do not tell


def check_truth(probe: Probe) -> list[Finding]:
    """What the family says it knows, against what its simulators show."""
    checked, truth = "truth", probe.truth
    if truth is None:
        found = "not known: values will be estimated"
        return [Finding(checked, NOTE, found, "no quadrature, or dynamics that theta changes", "AffineSensor has one")]
    wrong = _inconsistent(probe, truth)
    if wrong:
        return [Finding(checked, REFUSED, *wrong)]
    assert probe.edges is not None  # a truth has a graph
    x = of_edges(probe.edges.x, truth.graph)  # [B, copies, xi, A, d]
    rewards = of_edges(probe.edges.rewards, truth.graph)
    findings = _readings(probe, truth, x.transpose(1, 2).flatten(2, 3)) + _paid(probe, truth, rewards)
    return findings or [
        Finding(
            checked,
            OK,
            f"{truth.graph.num_states} states, {truth.graph.states_per_layer} per layer; readings and "
            "rewards have its means",
        )
    ]


def _inconsistent(probe: Probe, truth: GroundTruth) -> tuple[str, str, str] | None:
    """What cannot be right whatever is simulated, its cause, and what to write."""
    cause, write = "a truth that was written by hand", "see GroundTruth in families/contract.py"
    graph, spec = truth.graph, probe.spec
    xi, A = graph.num_states, spec.num_actions
    if truth.x.shape[:2] != (FEW, xi) or truth.x.shape[-1] != spec.obs_dim or truth.weight.shape != truth.x.shape[:3]:
        return f"x of shape {list(truth.x.shape)} and weights of shape {list(truth.weight.shape)}", cause, write
    if truth.reward.shape != (*truth.weight.shape, A):
        return f"rewards of shape {list(truth.reward.shape)}", cause, write
    if float((truth.weight.sum(-1) - 1).abs().max()) > 1e-6 or float(truth.weight.min()) < -1e-9:
        return "weights of a state's points that are negative, or do not sum to 1", cause, write
    if graph.horizon != spec.horizon or max(graph.states_per_layer) > spec.max_states_per_layer:
        most = max(graph.states_per_layer)
        return (
            f"{graph.states_per_layer} states per layer, where the spec says {spec.horizon} layers of at most "
            f"{spec.max_states_per_layer}",
            "a size that was given too small, or `latent` with numbers that do not identify the state (a past, a time)",
            f"max_states_per_layer={most}" if graph.horizon == spec.horizon else f"horizon={graph.horizon}",
        )
    return None


def _readings(probe: Probe, truth: GroundTruth, x: Tensor) -> list[Finding]:
    """Means and variances of readings [B, xi, n, d] against the quadrature's, in its standard deviations."""
    mean = (truth.weight[..., None] * truth.x).sum(2)
    least = 1e-6 * x.std(2).clamp(min=1e-290)  # of a point mass, which no reading has
    sd = (truth.weight[..., None] * (truth.x - mean[:, :, None]).square()).sum(2).sqrt().maximum(least)
    scores = {"mean": lambda u: u, "variance": lambda u: u.square() - 1}  # 0 on average, if the quadrature is right
    for what, score in scores.items():
        off = _off(score((x - mean[:, :, None]) / sd[:, :, None]).transpose(1, 2).flatten(0, 1), TOLERANCE)  # [xi, d]
        for s, j in _worst(off):
            again, _ = probe.at(truth.graph, s, 0)  # [B, n, d]
            values = score((again[..., j] - mean[:, s, None, j]) / sd[:, s, None, j])
            if bool(_off(values.flatten(), TOLERANCE)):
                return [_other_readings(probe, truth.graph.paths[s], j, what, values)]
    return []


def _other_readings(probe: Probe, path: Path, j: int, what: str, values: Tensor) -> Finding:
    """A state's scores [B, n] that are not 0 on average."""
    off = float(values.mean())
    size = f"{off:+.2f} standard deviations" if what == "mean" else f"{off:+.0%}"
    unlike = int((values.mean(1).abs() > abs(off) / 2).sum())
    some = what == "mean" and unlike < len(values)
    return Finding(
        "truth",
        REFUSED,
        f"the {what} of {probe.spec.obs_names[j]} after actions {told(path)} is off by {size}",
        f"in {unlike} of {len(values)} simulators only: theta changes where actions lead"
        if some
        else "`quadrature` and `read` are two sensors, or the state graph is wrong",
        "points and weights of the law that `read` draws from",
    )


def _paid(probe: Probe, truth: GroundTruth, rewards: Tensor) -> list[Finding]:
    """Mean rewards [B, copies, xi, A] against the truth's."""
    mean = (truth.weight[..., None] * truth.reward).sum(2)
    for s, a in _worst(_off((rewards - mean[:, None]).flatten(0, 1), TOLERANCE / 3)):
        error = probe.at(truth.graph, s, a)[1] - mean[:, s, a, None]  # [B, n]
        if bool(_off(error.flatten(), TOLERANCE / 3)):
            found = f"action {a} after {truth.graph.paths[s]} pays {float(error.mean()):+.3f} more than the truth says"
            cause = "a truth in raw units (it is in units of total reward), or of another theta"
            return [Finding("truth", REFUSED, found, cause)]
    return []


def _off(values: Tensor, least: float) -> Tensor:
    """The means [...] of values [n, ...] that are more than chance and `least` away from 0; 0 elsewhere.

    Where few are seen, rare ones may all be missing, and so seems their noise: `probe.at` looks again, at many.
    """
    mean, error = values.mean(0), values.std(0) / math.sqrt(len(values))
    return mean.where((mean.abs() > Z * error.clamp(min=1e-12)) & (mean.abs() > least), 0.0)


def _worst(off: Tensor) -> list[list[int]]:
    """The places of the largest entries of a matrix, none that is 0."""
    places = off.nonzero()
    return places[off[tuple(places.T)].abs().argsort(descending=True)][:SUSPECTS].tolist()


def check_states(probe: Probe, graph: StateGraph) -> list[Finding]:
    """Every way to a state shows the same readings, and states of a layer show different ones, for every theta."""
    guard = probe.few
    x = torch.stack(readings(guard, graph, N_MERGE, probe.seed.child("states")), 1)  # [B, xi, n, d]
    return _too_wide(probe, graph) + _other_ways(probe, graph, x) + _closeness(probe, graph, x, guard.ids)


def _too_wide(probe: Probe, graph: StateGraph) -> list[Finding]:
    """A layer with more states than the family says, where the exploration would end."""
    widest, bound = max(graph.states_per_layer), probe.spec.max_states_per_layer
    if widest <= bound:
        return []
    found = f"{widest} states in layer {graph.states_per_layer.index(widest)}, and max_states_per_layer={bound}"
    cause = "a bound that is too small, or `latent` that tells apart what is one state"
    return [Finding("one state graph for all", REFUSED, found, cause, f"max_states_per_layer={widest}")]


def other_edges(graph: StateGraph) -> set[Edge]:
    """The edges that are on no state's own path."""
    return {(s, a) for s, a in edges_of(graph) if graph.paths[int(graph.next_state[s, a])] != (*graph.paths[s], a)}


def _walked_otherwise(probe: Probe, graph: StateGraph) -> tuple[list[tuple[Path, int]], list[Tensor]]:
    """Every way to a state over an edge that is not on its own path: (path, state), and readings [B, N_MERGE, d]."""
    missing, ways, other = other_edges(graph), [], []
    for actions in edge_cover(graph, missing):
        states = graph.visited(torch.tensor(actions)).tolist()
        x, _ = walk(probe.few, actions, N_MERGE, probe.seed.child("ways", actions))
        for step, edge in enumerate(zip(states[:-1], actions, strict=True)):
            if edge in missing:
                missing.remove(edge)
                ways.append((actions[: step + 1], states[step + 1]))
                other.append(x[step + 1])
    return ways, other


def _other_ways(probe: Probe, graph: StateGraph, x: Tensor) -> list[Finding]:
    """Other action paths to the same state against the first one, simulator by simulator."""
    checked = "one state graph for all"
    ways, other = _walked_otherwise(probe, graph)
    if not ways:
        return [Finding(checked, OK, f"{graph.num_states} states, each with one path")]
    p = ks_p_values(x[:, [t for _, t in ways]], torch.stack(other, 1))  # [B, ways]
    if float(p.min()) >= SURELY:
        return [
            Finding(checked, OK, f"{graph.num_states} states; other ways to them ({len(ways)}) show the same readings")
        ]
    b, i = (int(v) for v in torch.unravel_index(p.argmin(), p.shape))
    path, state = ways[i]
    wrong = (p[:, i] < SURELY).nonzero().flatten()
    some = len(wrong) < len(p)
    return [
        Finding(
            checked,
            REFUSED,
            f"actions {told(path)} and {told(graph.paths[state])} should lead to one state, and show other readings in "
            f"{named(probe.few.ids, wrong)}" + (f" of {len(p)}" if some else ""),
            "theta changes where actions lead" if some else "`latent` or the truth merges different states",
            "dynamics that all theta share; theta may change readings and rewards only",
            GraphMismatchError,
        )
    ]


def ks_p_values(x: Tensor, y: Tensor) -> Tensor:
    """p-values [...] that samples [..., n, d] and [..., m, d] have one law, by Kolmogorov-Smirnov, worst coordinate."""
    x, y = x.transpose(-1, -2).contiguous(), y.transpose(-1, -2).contiguous()  # [..., d, n]
    n, m = x.shape[-1], y.shape[-1]
    both = torch.cat([x, y], -1)
    order = both.argsort(-1)
    steps = torch.where(order < n, 1 / n, -1 / m).to(torch.float64)
    distance = steps.cumsum(-1).abs().amax(-1)  # [..., d]
    return (2 * (-2 * distance.square() * n * m / (n + m)).exp() * x.shape[-2]).amin(-1).clamp(max=1.0)


def _closeness(probe: Probe, graph: StateGraph, x: Tensor, ids: tuple[int, ...]) -> list[Finding]:
    """The smallest distance of two states of a layer against the noise of their estimates (Assumption 5)."""
    checked, spec = "states can be told apart", probe.spec
    pairs = [
        (s, t) for step in range(graph.horizon) for s in graph.states_of(step) for t in graph.states_of(step) if s < t
    ]
    if not pairs:
        return [Finding(checked, OK, "no layer has two states")]
    estimator = _estimator(spec, x)
    D = estimator.patches(x.unbind(1))
    some = torch.tensor(pairs).T.split(max(1, AT_ONCE // D.values[:, 0].numel()), dim=1)
    apart = torch.cat([D[:, first].distance(D[:, second]) for first, second in some], 1)  # [B, pairs]
    distance = apart.median(0).values
    worst = int(distance.argmin())
    s, t = pairs[worst]
    few = x[:4, [s, t]].flatten(0, 1)
    noise = float(
        sup_band(estimator, few, 100, generator=probe.seed.child("band").generator()).two_sample_radius().max()
    )
    least = float(distance[worst])
    p = ks_p_values(x[:, s], x[:, t])
    where = f"after actions {told(graph.paths[s])} and {told(graph.paths[t])}"
    together = float(scipy.special.chdtrc(2 * len(p), -2 * float(p.clamp(min=1e-300).log().sum())))  # Fisher
    if together > ALIKE:
        found = f"states {where} show the same readings (p = {together:.2g} over {len(p)} simulators)"
        return [Finding(checked, REFUSED, found, *_why_alike(probe, graph, s, t))]
    s, t = pairs[int((apart <= noise).sum(0).argmax())]
    p = ks_p_values(x[:, s], x[:, t])
    alike = p > ALIKE
    if 0 < int(alike.sum()) < len(p) and bool((p[~alike] < SURELY).all()):
        found = f"states after actions {told(graph.paths[s])} and {told(graph.paths[t])} show the same readings in "
        found += f"{named(ids, alike.nonzero().flatten())} of {len(p)}, clearly other ones in the rest"
        cause = "theta changes where actions lead, or states that only some theta tell apart (Assumption 5)"
        return [Finding(checked, NOTE, found, cause, "dynamics that all theta share")]
    if least <= 0:
        found = f"densities {where} do not differ at all"
        return [Finding(checked, REFUSED, found, "readings off the box, which no density sees", "a wider box")]
    room = noise / (DECLARED * spec.zeta) if spec.zeta else ROOM * noise / least
    wanted = math.ceil(N_MERGE * room**2)
    numbers = f"nearest {where}: {least:.3g} apart, noise {noise:.3g} at {N_MERGE} readings"
    if wanted <= N_MERGE:
        return [Finding(checked, OK, numbers)]
    enough = float(f"{1.2 * wanted:.2g}")
    if enough <= N_MERGE_MOST:
        return [Finding(checked, OK, f"{numbers}; a run draws more, about {enough:.0f} are enough")]
    return [Finding(checked, NOTE, numbers, "states that overlap", f"density.merge.n_merge_most={enough:.0f} or more")]


def _why_alike(probe: Probe, graph: StateGraph, s: int, t: int) -> tuple[str, str]:
    """The likely cause of two states that show the same readings, and what to write."""
    family = unencoded(probe.family)
    if isinstance(family, ReplayFamily) and family.known_graph() is not None:
        over = family.ended_states()[[s, t]].tolist()
        if over[0] != over[1]:
            ended = told(graph.paths[s if over[0] else t])
            cause = f"the episode has ended after {ended}, stays where it is, and its readings do not show the end"
            return cause, "a state of its own for the end, which the sensor shows (a number of `latent` that it reads)"
    cause = "the sensor does not see what tells them apart (Assumption 5)"
    return cause, "another reading, or a sensor of another number of `latent`"


def _estimator(spec, x: Tensor) -> DensityEstimator:
    """Estimates as a run would make them, roughly: the usual nodes, and a bandwidth of the scale of a state."""
    grid = DensityGrid.uniform(spec.low, spec.high, nodes_for("auto", spec.low, spec.high, pilot_scale(x)))
    kernel = make_kernel("legendre", 2)
    bandwidth = reference_bandwidth(x, N_MERGE, kernel)
    wide = tuple(max(h, space) for h, space in zip(bandwidth, grid.spacing, strict=True))
    return DensityEstimator(grid, kernel, wide, off_grid_limit=1.0, allow_constant=True)
