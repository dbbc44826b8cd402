r"""The fewest action sequences whose trajectories visit every state (theory.md 3.1).

Because the latent dynamics are deterministic, one episode shows one observation at each of H states. Reality therefore
needs w * n episodes, where w is the least number of action sequences that visit every discovered state: the size of a
maximum antichain of "can be reached from" (Dilworth), max_h |S_h| <= w <= xi. Where states need different numbers of
samples, the fewest episodes are the greatest sum of needs over an antichain.

>>> graph = StateGraph(torch.tensor([[1, 2], [-1, -1], [-1, -1]]), torch.tensor([0, 1, 1]), ((), (0,), (1,)))
>>> path_cover(graph)
((0,), (1,))
>>> assigned(graph, path_cover(graph)).tolist()
[0, 0, 1]
>>> fewest_walks(graph, torch.tensor([50, 30, 5]))
(((0,), 45), ((1,), 5))

Such a cover passes every state, not every edge: two paths may meet in a state, and only one of them is walked.

>>> diamond = StateGraph(torch.tensor([[1, 2], [3, 3], [3, 4], [-1, -1], [-1, -1]]), torch.tensor([0, 1, 1, 2, 2]),
...                      ((), (0,), (1,), (0, 0), (1, 1)))
>>> sorted(set(edges_of(diamond)) - walked_edges(diamond, path_cover(diamond)))
[(1, 1), (2, 0)]
>>> edge_cover(diamond, [(1, 1), (2, 0)])
((0, 1), (1, 0))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import scipy
import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.given import taking
from s2r_torch.graph import Path, StateGraph

Edge = tuple[int, int]  # a state and an action that leads to a next state
Walks = tuple[tuple[Path, int], ...]  # sequences of actions, and how many episodes of each

MOST_EPISODES = 2**31 - 1  # scipy's flows are 32-bit


@taking()
def path_cover(graph: StateGraph) -> tuple[Path, ...]:
    """The smallest set of action sequences that visits every state of the graph.

    theory.md 3.1, Claim 1: a minimum chain cover of the reachability order, from a maximum matching in its transitive
    closure, each chain extended to a path from the start to the last layer.

    Returns:
        w sequences of H - 1 actions each, w the size of a maximum antichain; `((),)` for H = 1.

    Cost:
        No episodes. O(xi^2 A) time for the closure, O(xi^2) memory.
    """
    return tuple(path for path, _ in fewest_walks(graph, torch.ones(graph.num_states, dtype=torch.int64)))


def fewest_walks(graph: StateGraph, needs: Tensor) -> Walks:
    """The fewest episodes that visit every state at least as often as it needs.

    theory.md 3.1, last line: a minimum flow. As many samples as possible are linked to a later state's (a maximum flow
    in the transitive closure, capacities = needs); the chains of links are paths, with how often each is run.

    Args:
        graph: the state graph.
        needs: `[xi]` int64, samples wanted at each state, >= 0.

    Returns:
        Sequences of H - 1 actions with their numbers of episodes, whose total is the greatest sum of needs over an
        antichain.

    Raises:
        SettingError: needs are negative, of the wrong size, or above 2^31 - 1 in total.
    """
    needs = torch.as_tensor(needs)
    if needs.shape != (graph.num_states,) or bool((needs < 0).any()) or int(needs.sum()) > MOST_EPISODES:
        raise SettingError(
            expected=f"{graph.num_states} numbers of samples >= 0, at most 2^31 - 1 in total",
            got=f"shape {list(needs.shape)}, least {int(needs.min())}, total {int(needs.sum())}",
            cause="needs of another graph",
        )
    walks: Counter[Path] = Counter()
    following = graph.next_state.tolist()
    for chain, episodes in _chains(needs.tolist(), _links(_closure(graph), needs.numpy())):
        walks[_path_through(graph, following, chain)] += episodes
    return tuple(sorted(walks.items()))


def assigned(graph: StateGraph, cover: tuple[Path, ...]) -> Tensor:
    """For each state the cover path that supplies its samples: the first one through it.

    theory.md 3.1, Claim 2: one sequence per state keeps the samples of different states independent.

    Returns:
        Indices into `cover`, `[xi]` int64.

    Raises:
        SettingError: a state lies on no path of the cover, or a path has not H - 1 actions.
    """
    owner = torch.full((graph.num_states,), -1, dtype=torch.int64)
    for i in reversed(range(len(cover))):
        if len(cover[i]) != graph.horizon - 1:
            raise SettingError(
                expected=f"{graph.horizon - 1} actions", got=f"path {cover[i]}", cause="a cover of another graph"
            )
        owner[graph.visited(torch.tensor(cover[i], dtype=torch.int64))] = i
    if bool((owner < 0).any()):
        missed = (owner < 0).nonzero().flatten().tolist()
        raise SettingError(
            expected="a cover that visits every state",
            got=f"no path through states {missed}",
            cause="a cover of another graph",
        )
    return owner


def passages(graph: StateGraph, cover: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """(state, index into `cover`) wherever a path of the cover passes a state that an earlier one supplies."""
    owner = assigned(graph, cover)
    walked = graph.visited(torch.tensor(cover, dtype=torch.int64).reshape(len(cover), -1)).tolist()
    return tuple((s, i) for i, states in enumerate(walked) for s in states if int(owner[s]) != i)


def passes(graph: StateGraph, cover: tuple[Path, ...]) -> Tensor:
    """How many paths of the cover pass each state: [xi] int64, so many readings has an episode along each of them."""
    walked = graph.visited(torch.tensor(cover, dtype=torch.int64).reshape(len(cover), -1))
    return torch.bincount(walked.flatten(), minlength=graph.num_states)


def near_states(graph: StateGraph, most: int) -> Tensor:
    """At most so many states that few episodes pass: they lie along the first sequences of the path cover; int64."""
    passed: dict[int, None] = {}
    for path in path_cover(graph):
        if len(passed) < most:
            passed |= dict.fromkeys(graph.visited(torch.tensor(path, dtype=torch.int64)).tolist())
    along = torch.tensor(sorted(passed))
    return along[torch.linspace(0, len(along) - 1, min(most, len(along))).round().long().unique()]


def near_readings(graph: StateGraph, most: int, n: int) -> Tensor:
    """How many readings [xi] of every state: n of `near_states`, of the others none."""
    return torch.zeros(graph.num_states, dtype=torch.int64).index_fill(0, near_states(graph, most), n)


def typical(readings: Tensor) -> float:
    """The geometric mean over states of their numbers of readings [xi].

    >>> round(typical(torch.tensor([30, 10, 10, 10])), 2)
    13.16
    """
    return float(readings.double().log().mean().exp())


def edges_of(graph: StateGraph) -> tuple[Edge, ...]:
    """All edges of the graph, in the order of its states."""
    successors = enumerate(graph.next_state.tolist())
    return tuple((s, a) for s, following in successors for a, t in enumerate(following) if t >= 0)


def walked_edges(graph: StateGraph, paths: Iterable[Path]) -> set[Edge]:
    """The edges that some action paths walk."""
    return {(graph.end(path[:step]), path[step]) for path in paths for step in range(len(path))}


def edge_cover(graph: StateGraph, allowed_edges: Iterable[Edge]) -> tuple[Path, ...]:
    """The smallest set of action sequences that walks every one of these edges.

    As `path_cover`, with edges in place of states: a minimum chain cover of "can be walked after", each chain extended
    to a path from the start to the last layer over any edges.

    Args:
        graph: the state graph.
        allowed_edges: those to walk, for example those that a policy can take and that no cover has walked.

    Returns:
        Sequences of H - 1 actions each; none where there are no edges.

    Raises:
        SettingError: a state of the last layer, or one that is not in the graph.

    Cost:
        No episodes. O(E^2) memory for E edges.
    """
    edges = sorted(set(allowed_edges))
    unknown = sorted(set(edges) - set(edges_of(graph)))
    if unknown:
        raise SettingError(
            expected="edges (state, action) of the graph", got=f"{unknown[:4]}", cause="edges of another graph"
        )
    if not edges:
        return ()
    tails = [s for s, _ in edges]
    heads = [int(graph.next_state[edge]) for edge in edges]
    reach = _closure(graph) | np.eye(graph.num_states, dtype=bool)
    needs = np.ones(len(edges), dtype=np.int64)
    chains = _chains(needs.tolist(), _links(reach[np.ix_(heads, tails)], needs))
    following = graph.next_state.tolist()
    return tuple(sorted(_path_along(following, [edges[i] for i in chain]) for chain, _ in chains))


def _closure(graph: StateGraph) -> np.ndarray:
    """`[xi, xi]` bool: state j can be reached from state i by one action or more."""
    successors = graph.next_state.numpy()
    reach = np.zeros((graph.num_states, graph.num_states), dtype=bool)
    for s in np.argsort(-graph.layer.numpy(), kind="stable"):  # last layer first
        for t in set(successors[s].tolist()) - {-1}:
            reach[s] |= reach[t]
            reach[s, t] = True
    return reach


def _links(reach: np.ndarray, needs: np.ndarray) -> list[dict[int, int]]:
    """How many samples of each state share an episode with a sample of a later t, as many as possible."""
    xi = len(reach)
    capacity = np.zeros((2 * xi + 2, 2 * xi + 2), dtype=np.int32)  # states as earlier, states as later, source, sink
    source, sink = 2 * xi, 2 * xi + 1
    capacity[source, :xi] = capacity[xi:source, sink] = needs
    capacity[:xi, xi:source] = np.where(reach, np.minimum.outer(needs, needs), 0)
    flow = scipy.sparse.csgraph.maximum_flow(scipy.sparse.csr_array(capacity), source, sink).flow
    flow = flow.tocsr()[:xi, xi:source].tocoo()
    links: list[dict[int, int]] = [{} for _ in range(xi)]
    for s, t, amount in sorted(zip(flow.row.tolist(), flow.col.tolist(), flow.data.tolist(), strict=True)):
        if amount > 0:
            links[s][t] = amount
    return links


def _chains(needs: list[int], links: list[dict[int, int]]) -> list[tuple[list[int], int]]:
    """Splits the links into chains of states, each with how many episodes run along it."""
    starts = list(needs)
    for outgoing in links:
        for t, amount in outgoing.items():
            starts[t] -= amount
    chains = []
    for head in range(len(needs)):
        while starts[head] > 0:
            chain, amount = [head], starts[head]
            while links[chain[-1]]:
                t, available = next(iter(links[chain[-1]].items()))
                chain.append(t)
                amount = min(amount, available)
            for s, t in zip(chain, chain[1:], strict=False):
                links[s][t] -= amount
                if links[s][t] == 0:
                    del links[s][t]
            starts[head] -= amount
            chains.append((chain, amount))
    return chains


def _path_through(graph: StateGraph, following: list[list[int]], chain: list[int]) -> Path:
    """H - 1 actions from the start through every state of the chain, continued by the first that lead to a state."""
    path = list(graph.paths[chain[0]])
    for s, t in zip(chain, chain[1:], strict=False):
        path += _connect(following, s, t)
    return tuple(path + _onward(following, chain[-1]))


def _path_along(following: list[list[int]], chain: list[Edge]) -> Path:
    """Actions from the start along every edge of the chain, continued by the first that lead to a state."""
    path, state = [], 0
    for s, a in chain:
        path += [*_connect(following, state, s), a]
        state = following[s][a]
    return tuple(path + _onward(following, state))


def _onward(following: list[list[int]], state: int) -> list[int]:
    """From a state to the last layer, by the first actions that lead to a state."""
    actions = []
    while max(following[state]) >= 0:
        actions.append(next(a for a, t in enumerate(following[state]) if t >= 0))
        state = following[state][actions[-1]]
    return actions


def _connect(following: list[list[int]], start: int, goal: int) -> list[int]:
    """Actions that lead from one state to a later one, by breadth-first search."""
    frontier: dict[int, list[int]] = {start: []}
    while goal not in frontier:
        frontier = {
            t: [*path, a]
            for s, path in reversed(frontier.items())
            for a, t in reversed([*enumerate(following[s])])
            if t >= 0
        }
    return frontier[goal]
