"""Edges that the cover leaves out: which matter, how few sequences walk them, and changed ones are found."""

import pytest
import torch
from support.pac_checks import check_failure_rate
from support.policies import judged_policy

from s2r_torch.coverage import edges_of, walked_edges
from s2r_torch.deployment.collection import Collection, Collector
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.edges import (
    check_edges,
    missing_sequences,
    same_law,
    taken_edges,
    walk_edges,
)
from s2r_torch.deployment.likeness import CONSISTENT, REFUSED, UNTESTED
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.episodes import Ledger
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.rng import Seed

FAMILY = make_family("grid")


class Bent:
    """A grid world in which one edge leads elsewhere."""

    def __init__(self, edge=None, elsewhere=0, seed=0):
        self.spec, self._generator = FAMILY.spec, Seed.root(seed).generator()
        self._theta, self._next = FAMILY.prior(1, self._generator), FAMILY.graph.next_state.clone()
        if edge is not None:
            self._next[edge] = elsewhere

    def reset(self, n):
        self._state = torch.zeros(1, n, dtype=torch.int64)
        return FAMILY.emit(self._theta, self._state, [self._generator])[0]

    def step(self, actions):
        self._state = self._next[self._state, actions]
        return FAMILY.emit(self._theta, self._state, [self._generator])[0]


def looked_at(world):
    """(collector, collection) after the episodes of Deploy."""
    policy = judged_policy()
    collector = Collector(GuardedWorld(world, Ledger()), FAMILY.graph, policy.cover)
    return collector, Collection.of(collector.until(policy.n_real), FAMILY.graph, policy.cover, policy.n_real)


def checked(world, edges, n=30):
    collector, seen = looked_at(world)
    sequences = missing_sequences(judged_policy(), edges, collector.recording, n)
    return check_edges(judged_policy(), edges, seen, walk_edges(collector, sequences, n))


def test_edges_that_the_policy_takes_are_a_closed_set():
    policy = judged_policy()
    _, seen = looked_at(Bent())
    acting = deploy(policy, Bent(), refuse=False).policy
    taken = taken_edges(acting, seen.observations)
    reached = {0} | {int(FAMILY.graph.next_state[edge]) for edge in taken}
    assert {s for s, _ in taken} == {s for s in reached if int(FAMILY.graph.layer[s]) < FAMILY.graph.horizon - 1}
    for s, a in taken:
        assert a in acting.act(int(FAMILY.graph.layer[s]), seen.observations[s])


def test_only_edges_left_out_are_walked_and_never_twice():
    policy, every = judged_policy(), edges_of(FAMILY.graph)
    collector, _ = looked_at(Bent())
    left_out = set(every) - walked_edges(FAMILY.graph, policy.cover)
    sequences = missing_sequences(policy, every, collector.recording, 30)
    assert left_out and left_out <= walked_edges(FAMILY.graph, sequences)
    recording = walk_edges(collector, sequences, 30)
    assert len(recording) == 100 * len(policy.cover) + 30 * len(sequences)
    assert missing_sequences(policy, every, recording, 30) == ()
    assert missing_sequences(policy, walked_edges(FAMILY.graph, policy.cover), recording, 30) == ()


def test_a_bent_edge_off_the_cover_is_found_and_named():
    """`likeness` cannot see it: no cover path passes it."""
    policy, graph = judged_policy(), FAMILY.graph
    left_out = sorted(set(edges_of(graph)) - walked_edges(graph, policy.cover))
    for edge in left_out:
        right = int(graph.next_state[edge])
        for wrong in (t for t in graph.states_of(int(graph.layer[right])) if t != right):
            found = checked(Bent(edge, wrong), edges_of(graph))
            assert found.verdict == REFUSED and found.p < 1e-6 and found.edges == len(left_out)
            before = " ".join(map(str, graph.paths[edge[0]]))
            assert f"action {edge[1]} after actions {before}" in str(found)
    assert deploy(policy, Bent(edge, wrong), refuse=False).likeness.verdict == CONSISTENT


def test_nothing_left_out_is_untested():
    policy = judged_policy()
    found = checked(Bent(), walked_edges(FAMILY.graph, policy.cover))
    assert found.verdict == UNTESTED and found.p == 1.0 and "the cover walks every edge" in str(found)


def test_few_episodes_judge_no_edge():
    with pytest.raises(SettingError, match="at least 20 episodes per sequence"):
        missing_sequences(judged_policy(), edges_of(FAMILY.graph), Recording.empty(FAMILY.spec), 10)


@pytest.mark.statistical
def test_like_worlds_raise_few_alarms():
    every = edges_of(FAMILY.graph)
    p = torch.tensor([checked(Bent(seed=seed), every).p for seed in range(300)])
    for level in (0.05, 0.01):
        check_failure_rate(int((p <= level).sum()), len(p), level)


@pytest.mark.statistical
@pytest.mark.parametrize("d", [1, 2, 5])
def test_equal_laws_are_told_apart_at_the_stated_rate(d):
    """Bounded, skewed readings; also with another number of them on either side."""
    g = torch.Generator().manual_seed(d)
    draw = lambda n: torch.rand(n, d, dtype=torch.float64, generator=g).square()  # noqa: E731
    p = torch.tensor([same_law(draw(30), draw(100)) for _ in range(3000)])
    for level in (0.05, 0.01):
        share = float((p <= level).double().mean())
        assert abs(share - level) < 0.4 * level + 4 * (level / len(p)) ** 0.5


def test_laws_of_one_mean_that_differ_in_spread_or_correlation_are_told_apart():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(100, 2, dtype=torch.float64, generator=g) for _ in range(2))
    assert same_law(x, y) > 0.01
    assert same_law(x, 2 * y) < 1e-4
    assert same_law(x, torch.stack([y[:, 0], 0.1 * y[:, 1] + y[:, 0]], -1)) < 1e-4


def test_a_stuck_sensor_is_compared_too():
    stuck = torch.full((30, 2), 0.3, dtype=torch.float64)
    assert same_law(stuck, stuck) == 1.0 and same_law(stuck, stuck + 0.1) < 1e-6
