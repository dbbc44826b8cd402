"""Ranks are exact; worlds unlike the simulators are found, like ones are not."""

from dataclasses import replace

import pytest
import torch
from support.policies import judged_policy

from s2r_torch.coverage import passages
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Patches
from s2r_torch.deployment.collection import Collector
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.likeness import (
    CONSISTENT,
    DOUBTFUL,
    REFUSED,
    UNTESTED,
    Population,
    Reference,
    Sight,
    disagreement,
    peel,
    rank,
)
from s2r_torch.deployment.summaries import named_summaries, summaries
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import ObservationError, SettingError, UnlikeSimulatorsError
from s2r_torch.families import make_family
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.rng import Seed


def test_rank_counts_from_the_top():
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert [rank(torch.tensor(s), scores) for s in (0.5, 3.0, 3.5, 9.0)] == [1.0, 0.6, 0.4, 0.2]


def test_ranks_of_exchangeable_scores_are_uniform():
    """P(p <= alpha) is at most alpha, and equal to it where alpha (M + 1) is whole."""
    g = torch.Generator().manual_seed(0)
    ps = [rank(draw[0], draw[1:]) for draw in torch.randn(4000, 20, generator=g)]
    for alpha in (0.05, 0.25, 0.5):
        share = sum(p <= alpha for p in ps) / len(ps)
        assert abs(share - alpha) < 4 * (alpha * (1 - alpha) / len(ps)) ** 0.5


def test_summaries_of_a_normal_density():
    grid = DensityGrid.uniform((-8.0, -9.0), (12.0, 9.0), (201, 181))
    x, y = grid.nodes.T
    D = torch.exp(-((x - 1) ** 2) / 2 - (y + 0.5) ** 2 / (2 * 4)) / (2 * torch.pi * 2)
    height = -torch.log(torch.tensor(4 * torch.pi))
    expected = [1.0, 1.0 - 2.0, -0.5, 0.0, torch.log(torch.tensor(2.0)), height, 0.0]  # means from the box's middle
    found, names = summaries(D, grid).squeeze(), named_summaries(("a", "b"))
    assert torch.allclose(found[: len(names)], torch.tensor(expected, dtype=torch.float64), atol=1e-3)
    assert len(names) == len(expected) and len(found) == len(expected) + 5  # waves of degree 1 and 2


def test_there_may_be_nothing_to_summarise():
    """A graph in which no state is passed twice, such as one of a single step."""
    grid = DensityGrid.uniform((0.0,), (1.0,), 9)
    assert summaries(torch.zeros(4, 0, 9), grid).shape == (4, 0, summaries(torch.ones(1, 9), grid).shape[-1])


def test_summaries_do_not_cancel_far_from_zero():
    """The same densities 4.5 million units away."""
    near = DensityGrid.uniform((-0.6, -0.6), (2.6, 2.6), 24)
    far = DensityGrid.uniform((4.5e6 - 0.6, 4.5e6 - 0.6), (4.5e6 + 2.6, 4.5e6 + 2.6), 24)
    D = torch.exp(-(near.nodes - 0.3).square().sum(-1) / 0.02) * (1 + 0.2 * near.nodes[:, 0])
    assert torch.allclose(summaries(D, near), summaries(D, far), atol=1e-6)


def test_a_mixture_is_told_from_its_parts_by_linear_numbers():
    """Waves of a mixture of densities are mixtures of their waves."""
    grid = DensityGrid.uniform((0.0,), (3.0,), 97)
    one, other = (torch.exp(-(grid.nodes[:, 0] - c).square() / 0.02) for c in (0.5, 1.7))
    waves = [summaries(D, grid)[-4:] for D in (one, other, 0.3 * one + 0.7 * other)]
    assert torch.allclose(waves[2], 0.3 * waves[0] + 0.7 * waves[1])


def test_disagreement_is_relative_to_the_higher_density():
    D = torch.tensor([[[0.0, 4.0], [1.0, 1.0]]])
    again = torch.tensor([[[0.0, 3.0], [2.0, 1.0]]])
    assert disagreement(D, again, [0, 1]).tolist() == [[0.25, 0.5]]
    assert disagreement(D, again[:, :0], []).tolist() == [[]]


def test_of_patches_they_are_those_of_all_nodes():
    grid = DensityGrid.uniform((-1.0, 0.0), (2.0, 3.0), (17, 13))
    centre = torch.rand(6, 5, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 - 0.5
    D = (0.3 - (grid.nodes - centre).square().sum(-1)).clamp(min=0)
    again, passages = (0.35 - (grid.nodes - centre[:, [3, 1]] + 0.1).square().sum(-1)).clamp(min=0), [3, 1]
    P, Q = Patches.of(D, grid), Patches.of(again, grid)
    assert torch.allclose(summaries(P, grid), summaries(D, grid), rtol=0, atol=1e-12)
    assert torch.allclose(disagreement(P, Q, passages), disagreement(D, again, passages), rtol=0, atol=1e-15)
    assert disagreement(P, Q[:, :0], []).shape == summaries(Q[:, :0], grid).shape[:2] == (6, 0)


def test_a_density_that_is_0_everywhere_has_finite_numbers_as_a_patch_too():
    grid, D = DensityGrid.uniform((0.0,), (1.0,), 9), torch.zeros(2, 3, 9, dtype=torch.float64)
    D[0, 1, 5] = 1.0
    found = summaries(Patches.of(D, grid), grid)
    assert torch.isfinite(found).all() and torch.allclose(found, summaries(D, grid))


def test_two_simulators_at_least():
    with pytest.raises(SettingError, match="at least 2"):
        Population.of(torch.ones(1, 2, 4))


def test_peeling_takes_the_largest_by_turns():
    scores = torch.tensor([[9.0, 1.0], [8.0, 7.0], [1.0, 8.0], [2.0, 2.0]])
    test, largest = peel(scores)
    assert test.tolist() == [0, 1, 0, 1] and largest.tolist() == [9.0, 8.0, 8.0, 2.0]
    p = Reference(None, scores).p_values(torch.tensor([[9.5, 0.0], [0.0, 8.5], [8.5, 0.0], [0.0, 3.0], [0.0, 1.0]]))
    assert torch.allclose(p, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0]).double())


def test_p_of_several_tests_together_is_exact():
    """Four strongly dependent scores of any law: P(p <= alpha) = alpha, and its spread over files is a Beta law."""
    g, M, worlds = torch.Generator().manual_seed(0), 399, 4000
    shares = {0.05: [], 0.01: []}
    for _ in range(40):
        z = torch.randn(M + worlds, 4, generator=g, dtype=torch.float64)
        z = torch.stack([z[:, 0], z[:, 0] + 0.5 * z[:, 1], z[:, 2].exp(), z.sum(1).square()], -1)
        reference = Reference(None, z[:M])
        p = reference.p_values(z[M:])
        for alpha, found in shares.items():
            found.append(float((p <= alpha).double().mean()))
    for alpha, found in shares.items():
        rate, low, high = Reference(None, torch.rand(M, 4)).false_alarms(alpha)
        spread = (alpha * (1 - alpha) / M) ** 0.5  # of one file's rate
        assert rate == pytest.approx(alpha) and abs(sum(found) / 40 - alpha) < 4 * spread / 40**0.5
        inside = sum(low - 0.002 <= share <= high + 0.002 for share in found)
        assert inside >= 33 and high - low > 2 * spread


def test_how_many_scores_allow_which_verdict():
    for M, doubt, refuse in ((78, False, False), (79, True, False), (398, True, False), (399, True, True)):
        reference = Reference(None, torch.rand(M, 4))
        assert (reference.can_doubt, reference.can_refuse) == (doubt, refuse)


@pytest.fixture
def grid_policy():
    return judged_policy()


class Changed:
    """A world behind a broken or different sensor."""

    def __init__(self, inner, change, prefix=()):
        self._inner, self._change, self._prefix, self.spec = inner, change, prefix, inner.spec

    def reset(self, n):
        x, self._steps = self._inner.reset(n), len(self._prefix)
        for a in self._prefix:  # another start state
            x = self._inner.step(torch.full((n,), a))
        self._last = x
        return self._change(x)

    def step(self, actions):
        self._steps += 1
        if self._steps < self.spec.horizon:
            self._last = self._inner.step(actions)
        return self._change(self._last)


def outcomes(policy, count, change=lambda x: x, theta_of=lambda theta: theta, prefix=()):
    """p of `count` worlds; 0 where Deploy refuses what it sees."""
    family, found = make_family("grid"), []
    for w in range(count):
        seed = Seed.root(1).child("world", w)
        theta = theta_of(family.prior(1, seed.child("theta").generator()))[0]
        world = Changed(family.world(theta, seed.generator()), change, prefix)
        try:
            found.append(deploy(policy, world, refuse=False).likeness.p)
        except ObservationError:
            found.append(0.0)
    return torch.tensor(found)


def far(theta):
    """Offsets of twice the largest one."""
    theta = theta.clone()
    theta[:, 0] = 1.2 * theta[:, 0].sign()
    return theta


UNLIKE = {
    "swapped axes": {"change": lambda x: x.flip(-1)},
    "units x 1000": {"change": lambda x: 1000 * x},
    "another start": {"prefix": (0,)},
    "theta outside the prior": {"theta_of": far},
    "stuck sensor": {"change": lambda x: torch.full_like(x, 0.3)},
    "one stuck coordinate": {"change": lambda x: torch.stack([torch.full_like(x[:, 0], 0.3), x[:, 1]], -1)},
}


@pytest.mark.statistical
def test_false_alarms_come_at_the_stated_rate(grid_policy):
    """200 worlds from the prior: at most 5 % doubtful and 1 % refused, beyond four standard errors.

    The rate given one set of M scores is itself random, Beta(alpha (M + 1), ..); its spread is allowed for.
    """
    p, M = outcomes(grid_policy, 200), len(grid_policy.reference.scores)
    for alpha in (0.05, 0.01):
        error = (alpha * (1 - alpha) * (1 / len(p) + 1 / M)) ** 0.5
        assert float((p <= alpha).double().mean()) <= alpha + 4 * error
    assert float((p <= 0.5).double().mean()) > 0.2  # p is no constant


@pytest.mark.statistical
@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_worlds_are_found(grid_policy, name):
    assert int((outcomes(grid_policy, 20, **UNLIKE[name]) <= 0.05).sum()) >= 19


def test_deploy_refuses_unlike_worlds_and_says_why(grid_policy):
    family = make_family("grid")
    world = family.world(torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64), Seed.root(5).generator())
    assert deploy(grid_policy, world).likeness.verdict == CONSISTENT
    swapped = Changed(world, lambda x: x.flip(-1))
    with pytest.raises(UnlikeSimulatorsError, match="refused.*standard deviations"):
        deploy(grid_policy, swapped)
    told = deploy(grid_policy, swapped, refuse=False).likeness
    assert told.verdict == REFUSED and told.p <= 0.01
    untold = deploy(replace(grid_policy, reference=None), swapped).likeness
    assert untold.verdict == UNTESTED and "without scores" in str(untold)


def test_paths_that_merge_otherwise_are_found(grid_policy):
    """A world whose second passage through a state shows another place."""
    states = [s for s, _ in passages(grid_policy.problem.graph, grid_policy.cover)]
    assert states
    family = make_family("grid")
    theta = torch.tensor([[0.1, 0.2, 0.5]], dtype=torch.float64)
    simulators = Guard(family.simulators(theta, [0]), Ledger(), "test")
    D = estimate_densities(simulators, grid_policy.problem.graph, grid_policy.estimator, 100, Seed.root(2))[0]
    wrong = D[[(s + 1) % len(D) for s in states]]
    told = grid_policy.reference.judge(D, wrong, states, grid_policy.problem)
    assert told.p_disagree <= 0.01 and told.verdict == REFUSED and "merge" in told.reasons[0]


def test_a_log_of_other_sequences_is_judged_by_its_densities(grid_policy):
    """No state was passed in the second way that scores are of; actions under each other's names still show."""
    theta = torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64)
    world = make_family("grid").world(theta, Seed.root(5).generator())
    walks = [((0, 0, 0, 0), 200), ((0, 1, 0, 1), 200), ((0, 0, 1, 1), 200), ((1, 1, 1, 1), 200)]
    log = Collector(world, grid_policy.problem.graph, grid_policy.cover).walk(tuple(walks))
    told = deploy_recorded(grid_policy, log).likeness
    assert told.verdict == UNTESTED and "second way; densities by themselves are not unusual" in str(told)
    renamed = replace(log, actions=torch.where(log.actions < 0, log.actions, 1 - log.actions))
    told = deploy_recorded(grid_policy, renamed, refuse=False).likeness
    assert told.p <= 0.01, told


def test_a_log_of_which_every_reading_is_used_is_judged_by_the_first(grid_policy):
    """Densities are of twice as many readings as simulators are scored with; scores are for those."""
    theta = torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64)
    world = make_family("grid").world(theta, Seed.root(5).generator())
    log = Collector(world, grid_policy.problem.graph, grid_policy.cover).until(2 * grid_policy.n_real)
    first, every = (deploy_recorded(grid_policy, log, every_reading=every) for every in (False, True))
    assert bool((every.used == 2 * first.used).all()) and every.likeness == first.likeness
    assert first.likeness.verdict == CONSISTENT and not every.as_trained
    odd = replace(log, x=log.x.flip(-1))
    with pytest.raises(UnlikeSimulatorsError, match="refused"):
        deploy_recorded(grid_policy, odd, every_reading=True)


def swapped_axes(policy, scores):
    """What is said of a world with swapped axes, with so many scores."""
    few = replace(policy.reference, scores=policy.reference.scores[:scores])
    world = make_family("grid").world(torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64), Seed.root(5).generator())
    return deploy(replace(policy, reference=few), Changed(world, lambda x: x.flip(-1)), refuse=False).likeness


def test_too_few_simulators_give_no_verdict(grid_policy):
    """With 30 simulators the last of four tests reaches p = 4 / 31 at least: nothing could ever be doubtful."""
    told = swapped_axes(grid_policy, 30)
    assert told.verdict == UNTESTED and "30 fresh simulators are too few" in str(told)


def test_too_few_simulators_to_refuse_say_so(grid_policy):
    """A world beyond all of 200 scores is doubtful at worst, and the reason is told."""
    told = swapped_axes(grid_policy, 200)
    assert told.verdict == DOUBTFUL and told.p <= 0.01
    assert "no world can be refused with 200 scores" in str(told) and "399 are needed for 4 tests" in str(told)


def test_the_verdict_names_the_rate_of_this_file(grid_policy):
    told = swapped_axes(grid_policy, 500)
    assert told.verdict == REFUSED and "1.0% are refused (0.3% to 2.0% for this file)" in str(told)


def test_one_number_among_hundreds_is_seen_by_its_state_not_by_all_together():
    """Sixty states of five numbers that share two factors; one is off by seven of its own standard deviations."""
    g = torch.Generator().manual_seed(0)
    loadings = 3 * torch.randn(60, 5, 2, generator=g, dtype=torch.float64)

    def drawn(n):
        shared = torch.randn(n, 2, generator=g, dtype=torch.float64)
        own = torch.randn(n, 60, 5, generator=g, dtype=torch.float64)
        first = torch.einsum("sqr,nr->nsq", loadings, shared) + own
        return Sight(first, first[:, :0], first[:, :0, 0])

    population = Population.of(drawn(300).first)
    reference = Reference(population, population.scores(drawn(1000), ()))
    changed = drawn(100)
    changed.first[torch.arange(100), torch.randint(60, (100,), generator=g), 2] += 7.0
    scores = population.scores(changed, ())
    assert int((reference.p_values(scores) <= 0.01).sum()) >= 95
    joint = [rank(score, reference.scores[:, 0]) for score in scores[:, 0]]
    assert sum(p <= 0.01 for p in joint) < 60


# -- sparse changes ---------------------------------------------------------------------------------------------------


class Rewired:
    """A world in which one state shows another one's readings, or moved ones, or an edge is bent."""

    def __init__(self, family, theta, generator, next_state=None, shows=None, moved=None):
        self.family, self.theta, self.spec, self._generator = family, theta[None], family.spec, generator
        self._next = family.graph.next_state if next_state is None else next_state
        self._shows, self._moved = shows or {}, moved or {}

    def reset(self, n):
        self._state = torch.zeros(n, dtype=torch.int64)
        return self._read()

    def step(self, actions):
        self._state = self._next[self._state, actions]
        return self._read()

    def _read(self):
        s = int(self._state[0])
        seen = torch.full_like(self._state, self._shows.get(s, s))
        return self.family.emit(self.theta, seen[None], [self._generator])[0] + self._moved.get(s, 0.0)


def sparse_changes(family, cover, kind, count, generator):
    """`count` worlds, each with one change at a random place that the cover passes."""
    graph, made = family.graph, 0

    def draw(options):
        return options[int(torch.randint(len(options), (), generator=generator))]

    while made < count:
        theta = family.prior(1, generator)[0]
        s = draw(range(1, graph.num_states))
        others = [t for t in graph.states_of(int(graph.layer[s])) if t != s]
        change = {}
        if kind == "moved":
            angle = torch.rand((), dtype=torch.float64, generator=generator) * 2 * torch.pi
            change["moved"] = {s: 0.5 * torch.stack([angle.cos(), angle.sin()])[: family.spec.obs_dim]}
        elif not others:
            continue
        elif kind == "behaves as another":
            change["shows"] = {s: draw(others)}
        else:
            walked = {(int(u), a) for p in cover for u, a in zip(graph.visited(torch.tensor(p)), p, strict=False)}
            u, a = draw(sorted(edge for edge in walked if int(graph.next_state[edge]) == s) or [(None, None)])
            if u is None:
                continue
            change["next_state"] = graph.next_state.clone()
            change["next_state"][u, a] = draw(others)
        made += 1
        yield Rewired(family, theta, generator, **change)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["moved", "behaves as another", "edge"])
def test_sparse_changes_are_found(grid_policy, kind):
    """At one place only, wherever it is."""
    g, found = torch.Generator().manual_seed(4), 0
    for world in sparse_changes(make_family("grid"), grid_policy.cover, kind, 40, g):
        try:
            found += deploy(grid_policy, world, refuse=False).likeness.verdict != CONSISTENT
        except ObservationError:
            found += 1
    assert found >= 38
