r"""Do the edges that the policy will take lead where they led in the simulators?

A cover passes every state, but not every edge: where several paths meet in a state, all but one may stay unwalked, and
a world that differs there alone looks like the simulators (`likeness.py`). Once a world's densities are known, so is
which actions the policy takes at the readings that each state shows. What it can reach by these are the edges that
matter; those that no episode has walked yet are walked by the fewest extra sequences (`coverage.edge_cover`), and the
readings behind each edge are compared with those that its state showed along the cover.

The comparison is Hotelling's T^2 on readings and their products: the means of (x_i, x_i x_j) of two samples in units of
their pooled covariance. Where every edge leads where it should, readings of a state are alike, whatever their law: p is
the share of ways to deal them out anew in which the most unusual edge is as unusual as the one seen, which counts, too.
So it is exact for any law and any number of readings, all edges together, where edges are named beforehand; which ones
a policy takes hangs on the same readings a little (measured: docs/promises.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor

from s2r_torch.coverage import Edge, Walks, edge_cover, edges_of, walked_edges
from s2r_torch.deployment.collection import Collection
from s2r_torch.deployment.likeness import CONSISTENT, DOUBT, DOUBTFUL, REFUSE, REFUSED, UNTESTED
from s2r_torch.deployment.policy import MetaPolicy, Policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph, after, spelt
from s2r_torch.predictors.nets.net import slices

CHECKS = ("auto", "cover", "edges")
RELABELLED, ROUNDING = 499, 1e-9  # of p; relative, between equal p
AT_ONCE = 2**22  # numbers that are dealt out at once
LEAST_READINGS = 20  # behind an edge, for a comparison
MOST_TOLD = 4  # sequences in a message
LEAST_VARIANCE = 1e-9  # of standardised readings: a sensor may be stuck


@dataclass(frozen=True)
class EdgeCheck:
    """What the walked edges showed."""

    verdict: str  # consistent, doubtful or refused; untested where no edge was left to walk
    p: float  # of all edges together; 1 where untested
    edges: int  # that were compared
    reason: str  # which edge is most unusual, or what could not be said, for people
    episodes: int = 0  # that were run for this alone

    def __str__(self) -> str:
        if self.verdict == UNTESTED:
            return self.reason
        cost = f", by {self.episodes} further episodes" if self.episodes else ""
        return f"{self.verdict} (p = {self.p:.3g}; {self.edges} compared{cost}); {self.reason}"


NO_CHECK = EdgeCheck(UNTESTED, 1.0, 0, "not asked for")


@dataclass(frozen=True)
class EdgeChecker:
    """Checks the edges that the policy takes in a world, as far as that is wanted.

    Args:
        check: `cover` leaves them alone; `edges` walks those that the cover leaves out; `auto` does so where that takes
            no more episodes than the cover did.
        walk: runs episodes, and returns all episodes; None where no further ones can be run.

    Raises:
        SettingError: another word.
    """

    check: str
    walk: Callable[[Walks], Recording] | None = None

    def __post_init__(self):
        if self.check not in CHECKS:
            raise SettingError(expected=f"check among {', '.join(CHECKS)}", got=repr(self.check), cause="a typo")

    def __call__(
        self, meta_policy: MetaPolicy, policy: Policy, seen: Collection, recording: Recording
    ) -> tuple[EdgeCheck, Recording]:
        """The verdict on the edges that `policy` takes, and all episodes. Raises as `walk`."""
        if self.check == "cover":
            return NO_CHECK, recording
        edges = taken_edges(policy, seen.observations)
        n, left_out = min(len(x) for x in seen.observations), _left_out(meta_policy, edges)
        if not left_out:
            return replace(NO_CHECK, reason="none: the cover walks every edge that the policy takes here"), recording
        if n < LEAST_READINGS:
            few = f"{n} readings are too few to compare edges: {LEAST_READINGS} are needed"
            return replace(NO_CHECK, reason=few), recording
        walks = missing_walks(meta_policy, edges, recording, n)
        cost = sum(count for _, count in walks)
        if self.walk and (self.check == "edges" or cost <= n * len(meta_policy.cover)):
            recording = self.walk(walks)
            return replace(check_edges(meta_policy, edges, seen, recording), episodes=cost), recording
        found = check_edges(meta_policy, edges, seen, recording)
        return replace(found, reason="; ".join([found.reason] * bool(found.edges) + self._left(walks))), recording

    def _left(self, walks: Walks) -> list[str]:
        """What was not walked, in words; nothing where all was."""
        if not walks:
            return []
        cost = sum(count for _, count in walks)
        told = ", ".join(f"{n} of {spelt(path)}" for path, n in walks[:MOST_TOLD])
        rest = ", ..." if len(walks) > MOST_TOLD else ""
        more = "; check=edges runs them" if self.walk else ""
        return [f"NOT all that the policy takes here: {cost} further episodes would walk the rest, {told}{rest}{more}"]


def taken_edges(policy: Policy, observations: Sequence[Tensor]) -> tuple[Edge, ...]:
    """The edges that a policy takes from the start on, at the readings [n, d] that every state [xi] has shown.

    Those that lead out of a pruned graph are none: what they lead to was never looked at.

    An action that it takes at none of n readings has a probability of at most 3 / n, with confidence 95 %.
    """
    graph, found, reached = policy.problem.graph, set(), {0}
    known = set(edges_of(graph))
    for step in range(graph.horizon - 1):
        for s in graph.states_of(step):
            if s in reached:
                taken = {(s, a) for a in policy.act(step, observations[s]).unique().tolist()} & known
                found |= taken
                reached |= {int(graph.next_state[edge]) for edge in taken}
    return tuple(sorted(found))


def share_astray(policy: Policy, observations: Sequence[Tensor]) -> float:
    """The share of episodes in which a policy leaves a pruned graph, by the readings [n, d] of every state [xi]."""
    graph = policy.problem.graph
    if not graph.pruned:
        return 0.0
    A, shares = graph.num_actions, []
    for step in range(graph.horizon):
        taken = (policy.act(step, observations[s]) for s in graph.states_of(step))
        shares.append(torch.stack([torch.bincount(actions, minlength=A).double() / len(actions) for actions in taken]))
    return 1 - float(graph.walked(shares)[graph.states_of(graph.horizon - 1)].sum())


def missing_walks(meta_policy: MetaPolicy, edges: Iterable[Edge], recording: Recording, n: int) -> Walks:
    """The fewest action sequences along all these edges that the cover leaves out and n episodes have not walked yet.

    Each with the episodes that are missing: the check costs at most n a sequence.

    Raises:
        SettingError: fewer than 20 episodes, which an edge cannot be judged by.
    """
    if n < LEAST_READINGS:
        raise SettingError(
            expected=f"at least {LEAST_READINGS} episodes per sequence", got=str(n), cause="too few to compare two laws"
        )
    graph = meta_policy.problem.graph
    walked = {edge: len(_behind(recording, graph, edge)) for edge in _left_out(meta_policy, edges)}
    missing = {edge: n - count for edge, count in walked.items() if count < n}
    paths = edge_cover(graph, missing)
    return tuple((path, max(missing.get(edge, 0) for edge in walked_edges(graph, [path]))) for path in paths)


def most_walks(meta_policy: MetaPolicy, check: str) -> int:
    """How many episodes a check may take beside those of the cover, whatever the policy does in a world."""
    n, graph = meta_policy.n_real, meta_policy.problem.graph
    if check == "cover" or n < LEAST_READINGS:
        return 0
    every = n * len(edge_cover(graph, _left_out(meta_policy, edges_of(graph))))
    return every if check == "edges" else min(every, n * len(meta_policy.cover))


def check_edges(meta_policy: MetaPolicy, edges: Iterable[Edge], seen: Collection, recording: Recording) -> EdgeCheck:
    """Compares the readings behind edges that the cover leaves out with those of the states that they should lead to.

    Args:
        meta_policy: cover and state graph.
        edges: those that matter, for example `taken_edges`.
        seen: the readings along the cover.
        recording: all episodes of this world; those that walk none of these edges are of no account.

    Returns:
        The verdict: `refused` for p <= 0.01, `doubtful` for p <= 0.05, else `consistent`; it holds beside that of
        `likeness`, and its false alarms come on top. `untested` where no edge left out has 20 readings.
    """
    graph, seen_behind = meta_policy.problem.graph, dict[int, dict[Edge, Tensor]]()
    for edge in _left_out(meta_policy, edges):
        behind = _behind(recording, graph, edge)
        if len(behind) >= LEAST_READINGS:
            seen_behind.setdefault(int(graph.next_state[edge]), {})[edge] = behind
    if not seen_behind:
        return EdgeCheck(UNTESTED, 1.0, 0, "the cover walks every edge that the policy takes here, or none was walked")
    found: dict[Edge, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for state, after_edges in seen_behind.items():
        of_state = same_law([seen.observations[state], *after_edges.values()], RELABELLED, generator)
        found.update(zip(after_edges, of_state.T, strict=True))
    least = torch.stack(list(found.values())).amin(0)  # [1 + RELABELLED] of the most unusual edge
    p = share_below(least, least[0])
    verdict = REFUSED if p <= REFUSE else DOUBTFUL if p <= DOUBT else CONSISTENT
    unusual = [edge for edge in found if share_below(least, found[edge][0]) <= max(p, DOUBT)]
    state, action = min(unusual, key=lambda edge: (int(graph.layer[edge[0]]), float(found[edge][0])))
    return EdgeCheck(verdict, p, len(found), f"most unusual: what action {action} {after(graph.paths[state])} leads to")


def share_below(least: Tensor, seen: Tensor) -> float:
    """The share of `least` [r] that is no larger than what was seen: a p-value, adjusted for all edges."""
    return float((least <= seen * (1 + ROUNDING)).double().mean())


def same_law(samples: Sequence[Tensor], relabelled: int, generator: torch.Generator) -> Tensor:
    """How unlike samples [n, d] are the first of them, by Hotelling's T^2 in units of the F law of normal samples.

    Products of coordinates are left out where there are too few readings for their covariances.

    Returns:
        `[1 + relabelled, k]` for k samples beside the first: small where they are unlike; as given, and with all
        readings dealt out anew.
    """
    both, sizes = torch.cat(list(samples)).double(), [len(x) for x in samples]
    d = both.shape[-1]
    z = (both - both.mean(0)) / both.std(0).clamp(min=1e-12)
    i, j = torch.triu_indices(d, d)
    z = torch.cat([z, z[:, i] * z[:, j]], 1)
    rows: list[Tensor] = []
    for part in slices(1 + relabelled, AT_ONCE // z.numel()):
        order = torch.rand(part.stop - part.start, len(z), generator=generator).argsort(1)
        if not rows:
            order[0] = torch.arange(len(z))
        first, *others = z[order].split(sizes, 1)  # [r, n, q] each
        few = [d if 4 * z.shape[1] > len(samples[0]) + size else z.shape[1] for size in sizes[1:]]
        rows.append(torch.stack([_unlike(one[..., :q], first[..., :q]) for one, q in zip(others, few, strict=True)], 1))
    return torch.cat(rows)


def _unlike(x: Tensor, y: Tensor) -> Tensor:
    """p [r] of Hotelling's T^2 between samples x [r, n, q] and y [r, m, q], if they were normal."""
    (n, q), m = x.shape[1:], y.shape[1]
    degrees = n + m - 2
    centred = [part - part.mean(1, keepdim=True) for part in (x, y)]
    spread = sum(part.mT @ part for part in centred) / degrees + LEAST_VARIANCE * torch.eye(q, dtype=x.dtype)
    gap = (x.mean(1) - y.mean(1))[..., None]
    T2 = n * m / (n + m) * (gap * torch.linalg.solve(spread, gap)).sum((1, 2))
    return torch.from_numpy(scipy.special.fdtrc(q, degrees - q + 1, T2.numpy() * (degrees - q + 1) / (degrees * q)))


def _left_out(meta_policy: MetaPolicy, edges: Iterable[Edge]) -> list[Edge]:
    return sorted(set(edges) - walked_edges(meta_policy.problem.graph, meta_policy.cover))


def _behind(recording: Recording, graph: StateGraph, edge: Edge) -> Tensor:
    """The readings [n, d] right after an edge was walked."""
    (state, action), step = edge, int(graph.layer[edge[0]])
    at = (recording.states(graph)[:, step] == state) & (recording.length > step + 1)
    return recording.x[at & (recording.actions[:, step] == action), step + 1]
