"""Few rewards: what races promise, and the closed form of a sign that only rewards show."""

from dataclasses import replace

import pytest
import torch
from support.exact_class import Exact
from support.known import known_on, worlds_of

from s2r_torch.comparators.contract import REWARDED, UNLABELLED
from s2r_torch.comparators.few_rewards import FewRewards, Racing, race
from s2r_torch.comparators.policies import follow
from s2r_torch.coverage import path_cover
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.families import exact
from s2r_torch.families.grid import Grid
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.rng import Seed
from s2r_torch.runs.evaluation import attempt_values, optimal_values

HIDDEN = Mixture(horizon=2, hidden_sign="last")
LISTS = ((0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (0, 1, 0, 0, 0))  # on grid: .9 w, .9 (1 - w), .5


def test_a_hidden_sign_is_fair_and_in_no_observation():
    theta = HIDDEN.prior(4000, Seed.root(0).generator())
    assert theta.shape == (4000, 2) and set(theta[:, 1].tolist()) == {1.0, -1.0}
    assert abs(float(theta[:, 1].mean())) < 4.5 / 4000**0.5
    turned = theta * torch.tensor([1.0, -1.0])
    states = torch.arange(3).expand(4000, 3)
    same = [HIDDEN.emit(t, states, Seed.root(1).generators(range(4000))) for t in (theta, turned)]
    assert torch.equal(*same)
    plain = Mixture(horizon=2)
    assert torch.equal(plain.prior(4000, Seed.root(0).generator()), theta[:, :1])


def test_a_hidden_sign_turns_the_last_layer_alone():
    theta = torch.tensor([[0.6, 1.0], [0.6, -1.0]], dtype=torch.float64)
    reward, plain = HIDDEN.truth(theta).reward, Mixture(horizon=2).truth(theta[:1, :1]).reward
    assert torch.equal(reward[0], plain[0]) and torch.equal(reward[1, 0], plain[0, 0])
    assert torch.allclose(reward[1, 1:], plain[0, 1:].flip(-1))  # two actions, with c and -c
    values = exact.optimal(HIDDEN.truth(theta))[0][:, 0]
    assert float(values[0]) == pytest.approx(float(values[1]))


def test_a_race_without_budget_leaves_the_first():
    world = worlds_of(Grid(), 1).rewarded(0)
    assert race(world, [follow(actions) for actions in LISTS], 0, 0.1, Seed.root(0)) == 0
    assert not world.ledger.counts


@pytest.mark.parametrize("budget", [1, 7, 40])
def test_a_race_never_spends_more_than_its_budget(budget):
    world = worlds_of(Grid(), 1).rewarded(0)
    race(world, [follow(actions) for actions in LISTS], budget, 0.1, Seed.root(0))
    assert world.ledger.counts[REWARDED] <= budget


def test_a_clear_winner_ends_a_race_early():
    worlds = worlds_of(Grid(), 1)
    worlds.theta[0, 2] = 0.99
    world = worlds.rewarded(0)
    assert race(world, [follow(LISTS[1]), follow(LISTS[0])], 2000, 0.1, Seed.root(0)) == 1
    assert world.ledger.counts[REWARDED] < 1500


@pytest.mark.statistical
def test_the_best_is_dropped_no_more_often_than_promised():
    """By bounds alone: with a budget at which the last means decide nothing wrong, w = 0.75 against the safe .5."""
    wrong = 0
    for run in range(200):
        worlds = worlds_of(Grid(), 1, run)
        worlds.theta[0, 2] = 0.75
        wrong += race(worlds.rewarded(0), [follow(LISTS[2]), follow(LISTS[0])], 1200, 0.1, Seed.root(run)) != 1
    assert wrong <= 200 * 0.1


def two_signs(n: int) -> Racing:
    """The two members that differ in the last layer's sign, at the true theta: prior order, no choice of simulators."""
    problem = Exact(replace(HIDDEN, hidden_sign="none"), gains=(1.0,))
    group = problem.ensemble.groups[0]
    flips = group.flips.clone()
    last = [i for i, flip in enumerate(flips) if bool((flip[0] == 1).all()) and len(set(flip[1].tolist())) == 1]
    assert len(last) == 2
    ensemble = problem.ensemble.subset(last)
    policy = MetaPolicy(ensemble, 0, problem.estimator, path_cover(HIDDEN.graph), 100)
    D = torch.zeros(2, 3, problem.grid.num_points)
    return Racing(policy, ensemble, D, torch.tensor([0, 1]), 2, 2, 0.1, 4000, n)


@pytest.mark.statistical
@pytest.mark.parametrize("n", [20, 80])
def test_the_sign_is_found_as_often_as_its_closed_form_says(n):
    """Returns of the two candidates: sums of (1/2) Bernoullis whose means differ by w G |theta| in the last layer.

    P(wrong) by convolution of binomials; the loss is P(wrong) times the difference.
    """
    worlds = worlds_of(HIDDEN, 60)
    attempt = two_signs(n).attempt(worlds)
    assert attempt.unlabelled == 2 * 4000 and attempt.rewarded <= n
    loss = optimal_values(worlds) - attempt_values(attempt, worlds, 1)
    expected = torch.stack([expected_loss(theta, n) for theta in worlds.theta])
    error = float((loss - expected).std()) / 60**0.5
    assert abs(float((loss - expected).mean())) < 4.5 * error + 0.003  # theta_hat of 4000 readings is not theta


def expected_loss(theta: torch.Tensor, n: int) -> torch.Tensor:
    """P(wrong) x difference of the two values, with n / 2 episodes each and returns of 0, 1/2, 1."""
    truth = HIDDEN.truth(torch.stack([theta, theta * torch.tensor([1.0, -1.0])]))
    Q = exact.optimal(truth)[1]
    first = Q[0, 0].argmax(-1)
    laws, values = [], []
    for sign in range(2):  # the last layer of the right one, and of the wrong one
        later = Q[sign].argmax(-1)
        law, value = torch.zeros(3, dtype=torch.float64), 0.0
        for i in range(truth.weight.shape[2]):
            a = int(first[i])
            s = int(HIDDEN.graph.next_state[0, a])
            for j in range(truth.weight.shape[2]):
                weight = float(truth.weight[0, 0, i] * truth.weight[0, s, j])
                p = 2 * float(truth.reward[0, 0, i, a])
                q = 2 * float(truth.reward[0, s, j, int(later[s, j])])
                law += weight * torch.tensor([(1 - p) * (1 - q), p * (1 - q) + q * (1 - p), p * q])
                value += weight * (p + q) / 2
        laws.append(law)
        values.append(value)
    totals = [torch.ones(1, dtype=torch.float64)] * 2
    for _ in range(n // 2):
        totals = [
            torch.nn.functional.conv1d(t[None, None], law.flip(0)[None, None], padding=2)[0, 0]
            for t, law in zip(totals, laws, strict=True)
        ]
    joint = totals[0][:, None] * totals[1]
    wrong = float(torch.triu(joint, 1).sum())
    tie = float(joint.diagonal().sum())
    return torch.tensor((wrong + tie / 2) * (values[0] - values[1]), dtype=torch.float64)


def test_all_looks_and_rewards_are_paid_for():
    worlds = worlds_of(Grid(), 3)
    attempt = FewRewards(n=6, looks=4, samples=20).fit(known_on("grid")).attempt(worlds)
    counts = worlds.draws.ledger.counts
    assert counts[UNLABELLED] == 3 * 12 and counts[REWARDED] == 3 * attempt.rewarded <= 18
