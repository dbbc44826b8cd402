"""Where policies come on the state graph, by the shares of actions with which they leave every state."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from s2r_torch.base import StateGraph


def walk(graph: StateGraph, leaving: Sequence[Tensor]) -> Tensor:
    """How often each state is visited.

    Args:
        graph: the state graph.
        leaving: by layer, [..., S, A] the share of every action in the layer's states.

    Returns:
        [..., xi]: 1 at the start, and of every layer the states sum to 1.
    """
    visited = leaving[0].new_zeros(*leaving[0].shape[:-2], graph.num_states)
    visited[..., 0] = 1
    for layer, shares in enumerate(leaving[:-1]):
        states = graph.states_of(layer)
        for a in range(graph.num_actions):
            visited.index_add_(-1, graph.next_state[states, a], visited[..., states] * shares[..., a])
    return visited


def best_shares(q: Tensor, tie: float) -> Tensor:
    """Shares [..., A] of the best actions by q [..., A]: those within `tie` of the best have the same."""
    best = (q >= q.amax(-1, keepdim=True) - tie).to(q.dtype)
    return best / best.sum(-1, keepdim=True)
