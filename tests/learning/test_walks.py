"""Sequences that walk every edge of a graph that is not known yet."""

import pytest
from support.worlds import random_world

from s2r_torch.coverage import edge_cover, edges_of, walked_edges
from s2r_torch.families import make_family
from s2r_torch.learning.walks import Walks, walks_of
from s2r_torch.runs.forecast import graph_of

GRAPHS = {f"{horizon} {num_actions}": (horizon, num_actions) for horizon in (1, 2, 3, 4, 5) for num_actions in (2, 3)}


@pytest.mark.parametrize(("horizon", "num_actions"), GRAPHS.values(), ids=GRAPHS)
def test_every_edge_is_walked_and_none_is_begun_in_vain(horizon, num_actions):
    graph = random_world(7, horizon, num_actions).graph
    walks = walks_of(graph)
    assert all(len(actions) == horizon - 1 for actions in walks)
    assert walked_edges(graph, walks) == set(edges_of(graph))
    before = [walked_edges(graph, walks[:i]) for i in range(len(walks))]
    assert all(walked_edges(graph, walks[i : i + 1]) - before[i] for i in range(1, len(walks)))
    assert max(1, len(edge_cover(graph, edges_of(graph)))) <= len(walks)


@pytest.mark.parametrize(("horizon", "num_actions"), GRAPHS.values(), ids=GRAPHS)
def test_an_edge_is_looked_at_along_one_sequence_and_a_sequence_looks_at_one_edge_a_layer(horizon, num_actions):
    """So readings that are compared with each other never come from one episode."""
    graph = random_world(8, horizon, num_actions).graph
    walks, edges = Walks(horizon, num_actions), [()]
    for step in range(horizon):
        taken = walks.through(edges)
        assert len(set(taken)) == len(edges)
        for edge, i in zip(edges, taken, strict=True):
            assert graph.end(walks.actions[i][:step]) == graph.end(edge)
            assert graph.end(walks.actions[i][: step - 1]) == graph.end(edge[:-1]) or not step
        first = {}
        for edge in edges:
            first.setdefault(graph.end(edge), edge)
        if step < horizon - 1:
            walks.go_on({edge: first[graph.end(edge)] for edge in edges})
        edges = [(*path, a) for path in first.values() for a in range(num_actions)]


@pytest.mark.parametrize(("name", "paths", "at_most"), [("grid", 17, 8), ("frozenlake", 117, 65), ("lock", 41, 26)])
def test_far_fewer_than_paths(name, paths, at_most):
    graph = graph_of(make_family(name))[0]
    assert len(edges_of(graph)) + 1 == paths
    assert len(walks_of(graph)) <= at_most
