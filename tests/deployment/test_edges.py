"""Edges that the cover leaves out: which matter, how few sequences walk them, and changed ones are found."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from support.policies import judged_policy
from support.worlds import part_of, random_world

from s2r_torch.coverage import edge_cover, edges_of, path_cover, walked_edges
from s2r_torch.deployment.collection import Collection, Collector
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.edges import (
    NO_CHECK,
    check_edges,
    missing_walks,
    most_walks,
    same_law,
    share_astray,
    share_below,
    taken_edges,
)
from s2r_torch.deployment.likeness import CONSISTENT, REFUSED, UNTESTED
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.episodes import Ledger
from s2r_torch.errors import SettingError, UnlikeSimulatorsError
from s2r_torch.families import make_family
from s2r_torch.predictors.ensemble import Ensemble
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
    recording = collector.walk(missing_walks(judged_policy(), edges, collector.recording, n))
    return check_edges(judged_policy(), edges, seen, recording)


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
    walks = missing_walks(policy, every, collector.recording, 30)
    assert left_out and left_out <= walked_edges(FAMILY.graph, [path for path, _ in walks])
    collector.walk(tuple((path, 10) for path, _ in walks))  # interrupted
    assert missing_walks(policy, every, collector.recording, 30) == tuple((path, 20) for path, _ in walks)
    recording = collector.walk(missing_walks(policy, every, collector.recording, 30))
    assert len(recording) == 100 * len(policy.cover) + 30 * len(walks)
    assert missing_walks(policy, every, recording, 30) == ()
    assert missing_walks(policy, walked_edges(FAMILY.graph, policy.cover), recording, 30) == ()


def test_a_bent_edge_off_the_cover_is_found_and_named():
    """`likeness` cannot see it: no cover path passes it."""
    policy, graph = judged_policy(), FAMILY.graph
    left_out = sorted(set(edges_of(graph)) - walked_edges(graph, policy.cover))
    for edge in left_out:
        right = int(graph.next_state[edge])
        for wrong in (t for t in graph.states_of(int(graph.layer[right])) if t != right):
            found = checked(Bent(edge, wrong), edges_of(graph))
            assert found.verdict == REFUSED and found.p == 1 / 500 and found.edges == len(left_out)
            before = " ".join(map(str, graph.paths[edge[0]]))
            assert f"action {edge[1]} after actions {before}" in str(found)
    assert deploy(policy, Bent(edge, wrong), refuse=False).likeness.verdict == CONSISTENT


def test_nothing_left_out_is_untested():
    policy = judged_policy()
    found = checked(Bent(), walked_edges(FAMILY.graph, policy.cover))
    assert found.verdict == UNTESTED and found.p == 1.0 and "the cover walks every edge" in str(found)


@pytest.mark.parametrize("d", [1, 2])
def test_how_unlike_two_samples_are_agrees_with_numpy(d):
    """Hotelling's T^2 on readings and products, written out; readings alone where there are few."""
    g = torch.Generator().manual_seed(d)
    for n, m, products in ((20, 300, True), (4 * d, 2, False)):
        x, y = (torch.rand(k, d, dtype=torch.float64, generator=g) for k in (n, m))
        u, v = (
            np.array([[*row, *(row[i] * row[j] for i in range(d) for j in range(i, d) if products)] for row in z])
            for z in (x.numpy(), y.numpy())
        )
        q, gap = u.shape[1], u.mean(0) - v.mean(0)
        spread = ((n - 1) * np.cov(u.T).reshape(q, q) + (m - 1) * np.cov(v.T).reshape(q, q)) / (n + m - 2)
        T2 = n * m / (n + m) * gap @ np.linalg.solve(spread, gap)
        wanted = stats.f.sf(T2 * (n + m - q - 1) / ((n + m - 2) * q), q, n + m - q - 1)
        assert float(same_law([y, x], 0, g)[0, 0]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("size", [20, 100])
def test_like_edges_are_refused_as_often_as_is_stated(size):
    """Two edges, of readings of a skewed law. (By the F law 4.5 % are refused with 20 readings, not 1 %.)"""
    g, runs, wrong = torch.Generator().manual_seed(size), 300, torch.zeros(2)
    for _ in range(runs):
        samples = [torch.randn(n, 1, dtype=torch.float64, generator=g).exp() for n in (200, size, size)]
        least = same_law(samples, 99, g).amin(1)
        p = share_below(least, least[0])
        wrong += torch.tensor([p <= 0.01, p <= 0.05])
    level = torch.tensor([0.01, 0.05])
    assert bool((wrong <= level * runs + 3 * (level * runs).sqrt()).all())


class Numbered:
    """A world that shows its state, and how many readings it showed before."""

    def __init__(self, graph):
        self.graph, self.shown = graph, 0

    def reset(self, n):
        self._state = torch.zeros(n, dtype=torch.int64)
        return self._read()

    def step(self, actions):
        self._state = self.graph.next_state[self._state, actions]
        return self._read()

    def _read(self):
        numbers = self.shown + torch.arange(len(self._state))
        self.shown += len(numbers)
        return torch.stack([self._state, numbers], -1).double()


@pytest.mark.parametrize("graph", [FAMILY.graph, make_family("frozenlake").known_graph()])
def test_readings_that_are_compared_are_of_one_state_and_none_is_compared_twice(monkeypatch, graph):
    """So they are exchangeable, which is all that the level rests on."""
    compared = []
    policy = SimpleNamespace(problem=SimpleNamespace(graph=graph), cover=path_cover(graph))
    monkeypatch.setattr(
        "s2r_torch.deployment.edges.same_law",
        lambda samples, relabelled, generator: compared.append(samples) or torch.ones(1 + relabelled, len(samples) - 1),
    )
    world = Numbered(graph)
    world.spec = SimpleNamespace(horizon=graph.horizon, width=2)
    collector = Collector(world, graph, policy.cover)
    seen = Collection.of(collector.until(30), graph, policy.cover, 30)
    recording = collector.walk(missing_walks(policy, edges_of(graph), collector.recording, 30))
    left_out = set(edges_of(graph)) - walked_edges(graph, policy.cover)
    assert check_edges(policy, edges_of(graph), seen, recording).edges == len(left_out)
    ends = torch.tensor([graph.next_state[edge] for edge in left_out])
    assert sorted(int(samples[0][0, 0]) for samples in compared) == ends.unique().tolist()
    for samples in compared:
        state, number = torch.cat(samples).T
        assert bool((state == state[0]).all()) and len(number.unique()) == len(number)


def test_few_episodes_judge_no_edge():
    with pytest.raises(SettingError, match="at least 20 episodes per sequence"):
        missing_walks(judged_policy(), edges_of(FAMILY.graph), Recording.empty(FAMILY.spec), 10)


# -- as a deployment asks for it ---------------------------------------------------------------------------------------


class Scripted:
    """One predictor, which takes the same actions in every world."""

    size = 1

    def __init__(self, actions):
        self.actions = actions

    def condition(self, D, readings=None):
        return torch.zeros(1, len(D), dtype=torch.float64)

    def q(self, conditioned, step, x):
        wanted = torch.full((1, *x.shape[:-1]), self.actions[step])
        return torch.nn.functional.one_hot(wanted, 2).double()

    def subset(self, members):
        return self

    def lipschitz_bound(self):
        return torch.zeros(1, dtype=torch.float64)


def left_out_edge():
    return min(set(edges_of(FAMILY.graph)) - walked_edges(FAMILY.graph, judged_policy().cover))


def policy_through(edge):
    """The judged policy, but it takes that edge in every world."""
    path = (*FAMILY.graph.paths[edge[0]], edge[1])
    group = Scripted(path + (0,) * (FAMILY.graph.horizon - len(path)))
    policy = judged_policy()
    return replace(policy, ensemble=Ensemble(policy.problem, (group,)), chosen=0)


def bent():
    """A world in which the left out edge leads elsewhere."""
    edge = left_out_edge()
    right = int(FAMILY.graph.next_state[edge])
    return Bent(edge, next(t for t in FAMILY.graph.states_of(int(FAMILY.graph.layer[right])) if t != right))


@pytest.mark.parametrize("check", ["auto", "edges"])
def test_a_deployment_walks_what_its_policy_takes_and_says_what_it_cost(check):
    policy = policy_through(left_out_edge())
    deployed = deploy(policy, Bent(seed=1), check=check)
    found = deployed.edges
    assert found.verdict == CONSISTENT and 0 < found.episodes == deployed.episodes - 300 <= 300
    assert f"{found.edges} compared, by {found.episodes} further episodes" in str(found)


def test_a_bent_edge_is_refused_by_a_deployment_that_looks_at_it():
    policy = policy_through(left_out_edge())
    with pytest.raises(UnlikeSimulatorsError, match="edges that lead where they led .* further episodes"):
        deploy(policy, bent(), check="auto")
    deployed = deploy(policy, bent(), check="auto", refuse=False)
    assert deployed.edges.verdict == REFUSED and deployed.likeness.verdict == CONSISTENT
    assert deploy(policy, bent()).edges is NO_CHECK


def test_the_most_that_it_can_cost_is_known_before():
    policy, graph = judged_policy(), FAMILY.graph
    every = edge_cover(graph, set(edges_of(graph)) - walked_edges(graph, policy.cover))
    assert most_walks(policy, "edges") == 100 * len(every) and most_walks(policy, "cover") == 0
    assert most_walks(policy, "auto") == min(300, 100 * len(every))
    assert most_walks(replace(policy, n_real=19), "edges") == 0


def test_what_is_not_walked_is_told():
    """A log that holds the episodes of the cover alone, then those of the edges, too."""
    policy, logged = policy_through(left_out_edge()), []
    deploy(policy, bent(), keep=logged.append)
    found = deploy_recorded(policy, Recording.joined(logged), check="auto").edges
    assert found.verdict == UNTESTED and "NOT all that the policy takes here: 100 further episodes" in str(found)
    more = []
    deploy(policy, bent(), keep=more.append, recording=Recording.joined(logged), check="edges", refuse=False)
    assert deploy_recorded(policy, Recording.joined(logged + more), check="auto", refuse=False).edges.verdict == REFUSED


def test_auto_never_doubles_the_episodes(monkeypatch):
    policy = policy_through(left_out_edge())
    dear = lambda policy, edges, recording, n: (((0, 0, 0, 0), 101), ((1, 1, 1, 1), 200))  # noqa: E731
    monkeypatch.setattr("s2r_torch.deployment.edges.missing_walks", dear)
    deployed = deploy(policy, Bent(), check="auto")
    assert deployed.episodes == 300 and "check=edges runs them" in str(deployed.edges)
    assert deploy(policy, Bent(), check="edges").episodes == 601


def test_few_readings_are_no_check_and_the_word_is_checked():
    policy = replace(policy_through(left_out_edge()), n_real=10, reference=None)
    assert "10 readings are too few to compare edges" in str(deploy(policy, Bent(), check="edges").edges)
    with pytest.raises(SettingError, match="check among auto, cover, edges; got 'all'"):
        deploy(policy, Bent(), check="all")


@pytest.mark.parametrize("seed", range(4))
def test_how_often_a_policy_goes_astray(seed):
    """By readings of every state against all action sequences, each as likely as its actions are taken."""
    world = random_world(seed, 4, 3)
    part, _ = part_of(world.graph, seed)
    generator = torch.Generator().manual_seed(seed)
    seen = [torch.rand(7, 1, generator=generator).double() for _ in part.paths]

    class Acting:
        problem = SimpleNamespace(graph=part)

        def act(self, step, x):
            return ((x[:, 0] * 1000).long() + step) % part.num_actions

    share = {
        (s, a): float((Acting().act(int(part.layer[s]), seen[s]) == a).double().mean())
        for s in range(part.num_states)
        for a in range(part.num_actions)
    }
    inside = 0.0
    for actions in itertools.product(range(part.num_actions), repeat=part.horizon - 1):
        states = part.visited(torch.tensor(actions)).tolist()
        if -1 not in states:
            inside += math.prod(share[s, a] for s, a in zip(states, actions, strict=False))
    assert share_astray(Acting(), seen) == pytest.approx(1 - inside)
