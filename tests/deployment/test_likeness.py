"""Ranks are exact; worlds unlike the simulators are found, like ones are not."""

from dataclasses import replace

import pytest
import torch
from support.policies import judged_policy

from s2r_torch.coverage import passages
from s2r_torch.density.grid import DensityGrid
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.likeness import (
    CONSISTENT,
    REFUSED,
    UNTESTED,
    Population,
    disagreement,
    rank,
    summaries,
)
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
    expected = [1.0, 1.0, -0.5, 0.0, torch.log(torch.tensor(2.0)), -torch.log(torch.tensor(4 * torch.pi))]
    assert torch.allclose(summaries(D, grid).squeeze(), torch.tensor(expected, dtype=torch.float64), atol=1e-3)


def test_disagreement_is_relative_to_the_higher_density():
    D = torch.tensor([[[0.0, 4.0], [1.0, 1.0]]])
    again = torch.tensor([[[0.0, 3.0], [2.0, 1.0]]])
    assert disagreement(D, again, [0, 1]).tolist() == [0.5]
    assert disagreement(D, again[:, :0], []).tolist() == [0.0]


def test_two_simulators_at_least():
    with pytest.raises(SettingError, match="at least 2"):
        Population.of(torch.ones(1, 2, 4), DensityGrid.uniform((0.0,), (1.0,), 4))


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
    p, M = outcomes(grid_policy, 200), len(grid_policy.reference.unlike)
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


def test_too_few_simulators_give_no_verdict(grid_policy):
    """With 30 simulators the least p of two tests is 2 / 31: nothing could ever be doubtful."""
    reference = grid_policy.reference
    few = replace(reference, unlike=reference.unlike[:30], disagree=reference.disagree[:30])
    world = make_family("grid").world(torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64), Seed.root(5).generator())
    told = deploy(replace(grid_policy, reference=few), Changed(world, lambda x: x.flip(-1))).likeness
    assert told.verdict == UNTESTED and "30 fresh simulators are too few" in str(told)
