r"""Tours: episodes of which every state that they pass keeps something. What is drawn at the states of a known graph.

    readings    x at every state            w n episodes for n of each of xi states, w the width of the path cover
    decisions   (x, a, r) at every state    as many as it takes to walk every (state, action) n / A times

along the fewest action sequences (`coverage.py`), where an episode of its own for every reading would take xi n. Given
theta, readings of an episode at fixed states are independent: the start is fixed, dynamics are deterministic and noise
is drawn afresh at every step (`families/check` looks at that). So what different states are given is as independent as
if each had episodes of its own, and so is what one state is given by several sequences.

Two calls with seeds of different names share nothing.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from s2r_torch.coverage import edge_cover, edges_of, fewest_walks
from s2r_torch.episodes import Guard, Transitions
from s2r_torch.graph import Path, StateGraph
from s2r_torch.rng import Seed


def readings(simulators: Guard, graph: StateGraph, needs: int | Tensor, seed: Seed) -> list[Tensor]:
    """Observations of every state, `[B, n_s, d]` each, in the graph's order.

    Args:
        simulators: B of them.
        graph: their state graph.
        needs: n_s, how many, of every state alike or of each, `[xi]`.
        seed: named stream.

    Cost:
        The fewest episodes per simulator that pass every state so often; each ends where nothing is wanted any more.
    """
    wanted = torch.as_tensor(needs).expand(graph.num_states).tolist()
    kept: list[list[Tensor]] = [[] for _ in wanted]
    for path, n, takers in reading_tour(graph, wanted):
        x, _ = walk(simulators, path, n, seed.child("along", path))
        for step, s, count in takers:
            kept[s].append(x[step][:, :count])
    nothing = torch.empty(len(simulators), 0, simulators.spec.width, dtype=torch.float64)
    return [torch.cat(parts, 1) if parts else nothing for parts in kept]


def decisions(simulators: Guard, graph: StateGraph, n: int, seed: Seed) -> list[Transitions]:
    """n decisions at every state, with their rewards: every action n / A times, in random order (Algorithm 5, line 3).

    Args:
        simulators: B of them.
        graph: their state graph.
        n: how many; where A does not divide it, n of as many as A divides.
        seed: named stream.

    Paper deviation:
        Every action is taken equally often instead of uniformly at random, which leaves means as they are and lowers
        their variance; readings are drawn along tours.

    Cost:
        n / A episodes per simulator along each of the fewest sequences that walk every action of every state.
    """
    A = graph.num_actions
    each = -(-n // A)
    found: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in graph.paths]  # action -> x [B, each, d], r [B, each]
    for path, takers in decision_tour(graph):
        xs, rs = walk(simulators, path, each, seed.child("along", path))
        for step, s in takers:
            found[s][path[step]] = xs[step], rs[step]
    in_turn = torch.arange(A).repeat_interleave(each)
    drawn = []
    for s, of_action in enumerate(found):
        x, rewards = (torch.cat(parts, 1) for parts in zip(*(of_action[a] for a in range(A)), strict=True))
        generators = seed.child("order", s).generators(simulators.ids)
        order = torch.stack([torch.randperm(A * each, generator=g)[:n] for g in generators])  # [B, n]
        rows = torch.arange(len(order))[:, None]
        drawn.append(Transitions(x[rows, order], in_turn[order], rewards[rows, order]))
    return drawn


Taker = tuple[int, int, int]  # a step of the episodes, the state there, and how many of them it takes


def reading_tour(graph: StateGraph, wanted: list[int]) -> list[tuple[Path, int, list[Taker]]]:
    """Action paths, how many episodes are run along each, and who takes a reading of them.

    Args:
        graph: the state graph.
        wanted: `[xi]` readings of every state.
    """
    missing, tour = list(wanted), []
    for path, n in fewest_walks(graph, torch.tensor(wanted)):
        takers = []
        for step, s in enumerate(graph.visited(torch.tensor(path, dtype=torch.int64)).tolist()):
            count = min(n, missing[s])
            missing[s] -= count
            if count:
                takers.append((step, s, count))
        if takers:
            tour.append((path[: takers[-1][0]], max(count for *_, count in takers), takers))
    return tour


@lru_cache(maxsize=2)
def decision_tour(graph: StateGraph) -> tuple[tuple[Path, list[tuple[int, int]]], ...]:
    """Sequences of actions that walk every action of every state, each with the (step, state) that it is for.

    Kept for parts of the simulators that make the same tour one after another: of 1089 states half a second each.
    """
    ended = _with_an_end(graph)
    missing, tour = {(s, a) for s, a in edges_of(ended) if s < graph.num_states}, []
    for actions in edge_cover(ended, missing):
        states = graph.visited(torch.tensor(actions, dtype=torch.int64)).tolist()
        takers = [(step, s) for step, s in enumerate(states) if (s, actions[step]) in missing]
        missing -= {(s, actions[step]) for step, s in takers}
        if takers:
            tour.append((actions[: takers[-1][0] + 1], takers))
    return tuple(tour)


def _with_an_end(graph: StateGraph) -> StateGraph:
    """The graph with a further layer, and where actions that lead out of it go: one more state in each layer.

    Every action leads to a state then, but for the further layer's.
    """
    xi, H = graph.num_states, graph.horizon
    out = (graph.next_state < 0).any(1).nonzero().flatten()  # whose actions lead out, the last layer's included
    s = int(out[graph.layer[out].argmin()])
    a, first = int((graph.next_state[s] < 0).nonzero()[0]), int(graph.layer[s]) + 1
    added = torch.arange(first, H + 1)  # layers of the states outside: xi, xi + 1, ..
    leads = torch.where(graph.next_state < 0, (xi + graph.layer + 1 - first)[:, None], graph.next_state)
    onward = torch.where(added < H, xi + added + 1 - first, -1)[:, None].expand(-1, graph.num_actions)
    paths = tuple((*graph.paths[s], a) + (0,) * k for k in range(len(added)))
    return StateGraph(torch.cat([leads, onward]), torch.cat([graph.layer, added]), (*graph.paths, *paths))


def walk(simulators: Guard, actions: Path, n: int, seed: Seed) -> tuple[list[Tensor], list[Tensor]]:
    """n episodes along some actions: x [B, n, d] at the start and after each but the H-th, and each one's r [B, n]."""
    x, rewards = [simulators.reset(n, seed.generators(simulators.ids))], []
    for a in actions:
        following, reward = simulators.step(torch.full(x[0].shape[:2], a, dtype=torch.int64))
        rewards.append(reward)
        if following is not None:
            x.append(following)
    return x, rewards
