"""Walks on the state graph; a part of it is the whole one in which nothing is earned once outside."""

import itertools

import pytest
import torch
from support.worlds import part_of, random_world

from s2r_torch.coverage import edges_of
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.graph import StateGraph, after, told
from s2r_torch.rng import Seed
from s2r_torch.tours import decision_tour, decisions, readings

SEEDS = range(8)


def everything(graph: StateGraph) -> torch.Tensor:
    """All action sequences [A^H, H]."""
    return torch.tensor([*itertools.product(range(graph.num_actions), repeat=graph.horizon)])


def test_best_totals_are_those_of_the_best_sequence():
    """Of three simulators with rewards in quarters, so that many are equal: the first best sequence in order."""
    graph = make_family("grid").graph
    reward = torch.randint(5, (3, 9, 2), generator=torch.Generator().manual_seed(0)).double() / 4
    sequences = everything(graph)
    totals = reward[:, graph.visited(sequences), sequences].sum(-1)  # [3, sequences]
    value, best = graph.best_totals(reward)
    assert torch.equal(value[:, 0], totals.amax(1))
    for b, at in enumerate(totals.argmax(1)):
        path = ()
        for _ in range(graph.horizon):
            path += (int(best[b, graph.end(path)]),)
        assert path == tuple(sequences[at].tolist())


def test_long_paths_are_told_in_runs():
    assert after(()) == "at the start" and after((0, 1, 1)) == "after actions 0 1 1"
    assert after((1,) * 17 + (0, 1, 1)) == "after actions 17 times 1, 0, 2 times 1"
    assert told((1,) * 16) == str((1,) * 16) and told((1,) * 17) == "(17 times 1)"


@pytest.mark.parametrize("seed", SEEDS)
def test_it_holds_what_lies_between_its_states(seed):
    whole = random_world(seed, 4, 3).graph
    part, kept = part_of(whole, seed)
    assert part.pruned == (len(kept) < whole.num_states) and not whole.pruned
    assert part.layer.tolist() == whole.layer[kept].tolist()
    for i, s in enumerate(kept):
        following = [kept.index(t) if t in kept else -1 for t in whole.next_state[s].tolist()]
        assert part.next_state[i].tolist() == following
    assert [*part.paths] == sorted(part.paths)  # depth first
    assert torch.equal(whole.restricted_to(range(whole.num_states)).next_state, whole.next_state)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_those_of_a_world_that_pays_nothing_outside(seed):
    whole = random_world(seed, 4, 3).graph
    part, kept = part_of(whole, seed)
    reward = torch.rand(5, whole.num_states, whole.num_actions, generator=torch.Generator().manual_seed(seed)).double()
    lists, visited = everything(whole), whole.visited(everything(whole))
    inside = (torch.isin(visited, torch.tensor(kept)).long().cumprod(1)).double()  # until the first state outside
    naive = (reward[:, visited, lists] * inside).sum(-1)  # [5, A^H]
    assert torch.allclose(part.totals(reward[:, kept], lists), naive)
    V, _ = part.best_totals(reward[:, kept])
    assert torch.allclose(V[:, 0], naive.amax(1))
    best = part.best_lists(reward[:, kept])
    assert torch.allclose(part.totals(reward[:, kept], best).diagonal(), naive.amax(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_where_sequences_and_shares_come(seed):
    whole = random_world(seed, 4, 3).graph
    part, kept = part_of(whole, seed)
    lists = everything(whole)
    number = {s: i for i, s in enumerate(kept)}
    for seen, states in zip(part.visited(lists).tolist(), whole.visited(lists).tolist(), strict=True):
        left = next((h for h, s in enumerate(states) if s not in number), len(states))
        assert seen == [number[s] for s in states[:left]] + [-1] * (len(states) - left)
    shares = [torch.softmax(torch.rand(len(part.states_of(h)), part.num_actions), -1) for h in range(part.horizon)]
    visits = torch.zeros(part.num_states)
    for actions in lists[:: part.num_actions].tolist():  # each sequence of H - 1 actions once
        p, states = 1.0, part.visited(torch.tensor(actions)).tolist()
        for h, s in enumerate(states):
            if s < 0:
                break
            visits[s] += p / part.num_actions ** (part.horizon - 1 - h)
            p *= float(shares[h][part.states_of(h).index(s), actions[h]])
    assert torch.allclose(part.walked(shares), visits, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_action_of_every_state_is_tried_also_those_that_lead_outside(seed):
    world = random_world(seed, 4, 3)
    part, kept = part_of(world.graph, seed)
    walked = [(s, path[step]) for path, takers in decision_tour(part) for step, s in takers]
    assert sorted(walked) == [(s, a) for s in range(part.num_states) for a in range(part.num_actions)]
    for path, takers in decision_tour(part):
        assert all(part.end(path[:step]) == s for step, s in takers) and len(path) == takers[-1][0] + 1
    found = decisions(world.guard([0.1, -0.4]), part, 12, Seed.root(0))
    assert [data.x.shape[:2] for data in found] == [(2, 12)] * len(kept)
    assert [x.shape[1] for x in readings(world.guard([0.1]), part, 7, Seed.root(0))] == [7] * len(kept)


def test_a_path_that_leads_outside_has_no_end():
    part, _ = part_of(random_world(0, 4, 3).graph, 0)
    s, a = (part.next_state[part.layer < part.horizon - 1] < 0).nonzero()[0].tolist()
    with pytest.raises(SettingError, match="leads out of a pruned graph"):
        part.end((*part.paths[s], a))
    assert (s, a) not in edges_of(part)


def test_a_state_that_nothing_follows_is_refused():
    with pytest.raises(SettingError, match="an action to a next state in every state"):
        StateGraph(
            torch.tensor([[1, 2], [-1, -1], [3, 3], [-1, -1]]), torch.tensor([0, 1, 1, 2]), ((), (0,), (1,), (1, 0))
        )
