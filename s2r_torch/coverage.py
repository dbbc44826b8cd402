r"""The fewest action sequences whose trajectories visit every state (theory.md 3.1).

Because the latent dynamics are deterministic, one episode shows one observation at each of H states. Reality therefore
needs w * n episodes, where w is the least number of action sequences that visit every discovered state: the size of a
maximum antichain of "can be reached from" (Dilworth), max_h |S_h| <= w <= xi.

>>> graph = StateGraph(torch.tensor([[1, 2], [-1, -1], [-1, -1]]), torch.tensor([0, 1, 1]), ((), (0,), (1,)))
>>> path_cover(graph)
((0,), (1,))
>>> assigned(graph, path_cover(graph)).tolist()
[0, 0, 1]
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from s2r_torch.base import Path, StateGraph
from s2r_torch.errors import SettingError


def path_cover(graph: StateGraph) -> tuple[Path, ...]:
    """The smallest set of action sequences that visits every state of the graph.

    theory.md 3.1, Claim 1: a minimum chain cover of the reachability order, from a maximum matching in its transitive
    closure, each chain extended to a path from the start to the last layer.

    Returns:
        w sequences of H - 1 actions each, w the size of a maximum antichain; `((),)` for H = 1.

    Cost:
        No episodes. O(xi^2 A) time for the closure, O(xi^2) memory.
    """
    following = _match(_closure(graph))
    heads = sorted(set(range(graph.num_states)) - set(following.values()))
    return tuple(sorted(_path_through(graph, _chain(head, following)) for head in heads))


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


def _closure(graph: StateGraph) -> np.ndarray:
    """`[xi, xi]` bool: state j can be reached from state i by one action or more."""
    successors = graph.next_state.numpy()
    reach = np.zeros((graph.num_states, graph.num_states), dtype=bool)
    for s in np.argsort(-graph.layer.numpy(), kind="stable"):  # last layer first
        for t in set(successors[s].tolist()) - {-1}:
            reach[s] |= reach[t]
            reach[s, t] = True
    return reach


def _match(reach: np.ndarray) -> dict[int, int]:
    """A maximum matching of states to later states: the links of the chains."""
    partner = maximum_bipartite_matching(csr_array(reach.astype(np.int8)), perm_type="column")
    return {int(s): int(t) for s, t in enumerate(partner) if t >= 0}


def _chain(head: int, following: dict[int, int]) -> list[int]:
    chain = [head]
    while chain[-1] in following:
        chain.append(following[chain[-1]])
    return chain


def _path_through(graph: StateGraph, chain: list[int]) -> Path:
    """H - 1 actions from the start through every state of the chain, continued by action 0."""
    path = list(graph.paths[chain[0]])
    for s, t in zip(chain, chain[1:], strict=False):
        path += _connect(graph, s, t)
    return tuple(path + [0] * (graph.horizon - 1 - len(path)))


def _connect(graph: StateGraph, start: int, goal: int) -> list[int]:
    """Actions that lead from one state to a later one, by breadth-first search."""
    successors = graph.next_state.tolist()
    frontier: dict[int, list[int]] = {start: []}
    while goal not in frontier:
        frontier = {
            t: [*path, a] for s, path in reversed(frontier.items()) for a, t in reversed([*enumerate(successors[s])])
        }
    return frontier[goal]
