"""Path covers against brute force on small random layered graphs."""

import itertools
import random

import pytest
import torch

from s2r_torch.coverage import assigned, edge_cover, edges_of, fewest_walks, path_cover, walked_edges
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph


def random_graph(seed):
    """A random layered graph in depth-first order with at most 12 states."""
    rng = random.Random(seed)
    horizon, A = rng.choice((1, 2, 3, 4, 4)), rng.randint(1, 3)
    sizes = [1] + [rng.randint(1, 4) for _ in range(horizon - 1)]
    step = [[[rng.randrange(sizes[h + 1]) for _ in range(A)] for _ in range(sizes[h])] for h in range(horizon - 1)]
    return build(step, horizon, A)


def pruned_graph(seed):
    """A part of a random graph: the states on two random sequences of actions."""
    graph, rng = random_graph(seed), random.Random(seed + 3000)
    paths = [[rng.randrange(graph.num_actions) for _ in range(graph.horizon - 1)] for _ in range(2)]
    return graph.restricted_to(graph.visited(torch.tensor(paths, dtype=torch.int64)).unique().tolist())


def build(step, horizon, A):
    """A StateGraph of what is reachable; step[h][i][a] is the successor in layer h + 1."""
    index, paths, rows = {}, [], {}

    def visit(layer, i, path):
        if (layer, i) in index:
            return index[layer, i]
        s = index[layer, i] = len(paths)
        paths.append(path)
        children = (
            [visit(layer + 1, step[layer][i][a], (*path, a)) for a in range(A)] if layer < horizon - 1 else [-1] * A
        )
        rows[s] = children
        return s

    visit(0, 0, ())
    layer = torch.tensor([len(p) for p in paths])
    return StateGraph(torch.tensor([rows[s] for s in range(len(paths))]), layer, tuple(paths))


GRAPHS = [*map(random_graph, range(60)), *map(pruned_graph, range(60))]


def reachability(graph):
    reach = [set() for _ in graph.paths]
    for s in sorted(range(graph.num_states), key=lambda s: -int(graph.layer[s])):
        for t in graph.next_state[s].tolist():
            if t >= 0:
                reach[s] |= {t} | reach[t]
    return reach


def heaviest_antichain(graph, needs):
    """Brute force over all sets of states: the greatest sum of needs."""
    reach, best = reachability(graph), 0
    for mask in range(1, 2**graph.num_states):
        chosen = [s for s in range(graph.num_states) if mask >> s & 1]
        total = sum(needs[s] for s in chosen)
        if total > best and not any(t in reach[s] for s in chosen for t in chosen):
            best = total
    return best


def fewest_sequences(graph):
    """Brute force over sets of action sequences."""
    sequences = list(itertools.product(range(graph.num_actions), repeat=graph.horizon - 1))
    visits = {frozenset(graph.visited(torch.tensor(p, dtype=torch.int64)).tolist()) for p in sequences}
    visits = {states for states in visits if -1 not in states}  # inside all along
    for w in range(1, len(visits) + 1):
        for chosen in itertools.combinations(visits, w):
            if len(frozenset().union(*chosen)) == graph.num_states:
                return w
    raise AssertionError("unreachable states")


@pytest.mark.parametrize("graph", GRAPHS)
def test_smallest_cover(graph):
    cover = path_cover(graph)
    assert all(len(path) == graph.horizon - 1 for path in cover) and len(set(cover)) == len(cover)
    owner = assigned(graph, cover)
    for s in range(graph.num_states):
        assert s in graph.visited(torch.tensor(cover[int(owner[s])], dtype=torch.int64)).tolist()
    assert len(cover) == heaviest_antichain(graph, [1] * graph.num_states) == fewest_sequences(graph)
    assert max(graph.states_per_layer) <= len(cover) <= graph.num_states
    assert path_cover(graph) == cover


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_unequal_needs_are_met_with_the_fewest_episodes(number):
    graph, rng = GRAPHS[number], random.Random(number + 1000)
    needs = [rng.choice((0, 1, 2, 3, 50, 1000)) for _ in graph.paths]
    walks = fewest_walks(graph, torch.tensor(needs))
    visits = torch.zeros(graph.num_states, dtype=torch.int64)
    for path, episodes in walks:
        assert episodes > 0 and len(path) == graph.horizon - 1
        assert -1 not in graph.visited(torch.tensor(path, dtype=torch.int64))
        visits[graph.visited(torch.tensor(path, dtype=torch.int64))] += episodes
    assert all(v >= n for v, n in zip(visits.tolist(), needs, strict=True))
    assert sum(episodes for _, episodes in walks) == heaviest_antichain(graph, needs)


def test_needs_of_another_graph_are_refused():
    graph = random_graph(3)
    for needs in (torch.ones(1), -torch.ones(graph.num_states), torch.full((graph.num_states,), 2**31)):
        with pytest.raises(SettingError, match="numbers of samples"):
            fewest_walks(graph, needs.long())


def test_large_graphs_are_quick():
    rng, S, horizon = random.Random(0), 40, 12
    step = [[[rng.randrange(S) for _ in range(3)] for _ in range(S)] for _ in range(horizon - 1)]
    graph = build(step, horizon, 3)
    assert graph.num_states > 200 and S // 2 < len(path_cover(graph)) < graph.num_states


def test_horizon_one_needs_the_empty_path():
    graph = StateGraph(torch.tensor([[-1, -1]]), torch.tensor([0]), ((),))
    assert path_cover(graph) == ((),)
    assert assigned(graph, ((),)).tolist() == [0]


@pytest.mark.parametrize(("horizon", "S"), [(10, 6), (4, 3)])
def test_a_spine_with_dead_ends_needs_more_paths_than_its_widest_layer(horizon, S):
    """theory.md 3.1: private dead-end branches off a spine give w = (H - 1)(S - 2) + 1."""
    leave = [0, *range(1, S - 1), 1]  # 0 is the spine, 1 .. S-2 its dead ends; they lead to the sink S-1 only
    step = [[leave] + [[S - 1] * S] * (0 if h == 0 else S - 1) for h in range(horizon - 1)]
    graph = build(step, horizon, S)
    assert len(path_cover(graph)) == (horizon - 1) * (S - 2) + 1


def test_a_cover_of_another_graph_is_refused():
    graph = random_graph(3)
    assert graph.horizon > 1 and graph.num_states > graph.horizon
    with pytest.raises(SettingError, match="visits every state"):
        assigned(graph, ((0,) * (graph.horizon - 1),))
    with pytest.raises(SettingError, match="actions"):
        assigned(graph, ((0,) * graph.horizon,))


def fewest_along(graph, edges):
    """Brute force over sets of action sequences: the fewest that walk these edges."""
    sequences = list(itertools.product(range(graph.num_actions), repeat=graph.horizon - 1))
    inside = [p for p in sequences if -1 not in graph.visited(torch.tensor(p, dtype=torch.int64))]
    useful = {frozenset(walked_edges(graph, [path]) & edges) for path in inside}
    useful = [one for one in useful if not any(one < other for other in useful)]
    for count in range(len(useful) + 1):
        for chosen in itertools.combinations(useful, count):
            if frozenset().union(*chosen) >= edges:
                return count
    raise AssertionError("edges that no sequence walks")


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_edges_are_walked_by_the_fewest_sequences(number):
    graph, rng = GRAPHS[number], random.Random(number + 2000)
    every = edges_of(graph)
    assert len(every) == int((graph.next_state >= 0).sum())
    edges = {edge for edge in every if rng.random() < 0.4}
    paths = edge_cover(graph, edges)
    assert all(len(path) == graph.horizon - 1 for path in paths) and len(set(paths)) == len(paths)
    assert edges <= walked_edges(graph, paths)
    assert len(paths) == fewest_along(graph, edges)
    assert walked_edges(graph, edge_cover(graph, every)) == set(every)


def test_edges_of_another_graph_are_refused():
    graph = random_graph(3)
    last = graph.states_of(graph.horizon - 1)[0]
    for edge in ((last, 0), (graph.num_states, 0), (0, graph.num_actions)):
        with pytest.raises(SettingError, match="edges of another graph"):
            edge_cover(graph, [edge])
