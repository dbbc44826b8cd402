"""The Bayes line against enumeration of all lists, and against every policy that knows less."""

import itertools
from dataclasses import replace

import pytest
import torch
from support.known import known_on, worlds_of

from s2r_torch.comparators.bayes import Bayes, BayesLine, best_actions
from s2r_torch.comparators.ours import Deploying
from s2r_torch.comparators.policies import Pointwise, StateAware
from s2r_torch.coverage import path_cover
from s2r_torch.errors import SettingError
from s2r_torch.families import exact
from s2r_torch.families.frozenlake import FrozenLake
from s2r_torch.families.grid import Grid
from s2r_torch.families.lock import Lock
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.runs.evaluation import attempt_values, optimal_values


def posteriors(count: int, size: int) -> torch.Tensor:
    weights = torch.rand(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 6
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("family", [Grid(), Lock(horizon=3, num_actions=3)], ids=["grid", "lock"])
def test_best_actions_are_the_best_of_all_lists(family):
    """Where rewards are those of (state, action): enumerates A^H lists under the posterior mean of rewards."""
    theta = family.payoff_grid(9)
    known, graph = Pointwise.of(family.truth(theta)), family.graph
    posterior = posteriors(12, 9)
    actions = best_actions(posterior, known)
    mean = torch.einsum("wk,ksa->wsa", posterior, known.reward[:, :, 0])
    for w in range(12):
        worth = {}
        for tried in itertools.product(range(family.spec.num_actions), repeat=graph.horizon):
            states = graph.visited(torch.tensor(tried))
            worth[tried] = float(mean[w, states, torch.tensor(tried)].sum())
        state, taken = 0, ()
        for _ in range(graph.horizon):
            taken += (int(actions[w, state, 0]),)
            state = int(graph.next_state[state, taken[-1]])
        assert worth[taken] == pytest.approx(max(worth.values()), abs=1e-12)


def test_a_certain_posterior_gives_the_optimum():
    for family in (Grid(), Mixture(horizon=3), Lock()):
        theta = family.payoff_grid(7)
        truth = family.truth(theta)
        known = Pointwise.of(truth)
        policy = StateAware(known.graph, best_actions(torch.eye(7, dtype=torch.float64), known), known.points)
        assert torch.allclose(policy.values(truth), exact.optimal(truth)[0][:, 0])


def test_no_looks_at_all_lies_between_lists_and_the_blind_optimum():
    """Under the prior, on mixture: at least the best list, at most the Bayes optimum over all histories."""
    mixture = Mixture(horizon=2, quadrature=1)
    truth = mixture.truth(mixture.payoff_grid(40))
    known = Pointwise.of(truth)
    actions = best_actions(torch.full((1, 40), 1 / 40, dtype=torch.float64), known)
    value = float(StateAware(known.graph, actions.expand(40, -1, -1), known.points).values(truth).mean())
    assert exact.open_loop(truth)[1] <= value + 1e-12 <= exact.best_blind(truth) + 2e-12


def test_the_line_rises_towards_the_optimum():
    grid = Grid()
    worlds = worlds_of(grid, 200)
    cover, best = path_cover(grid.graph), float(optimal_values(worlds).mean())
    shares = [
        float(attempt_values(BayesLine(cover, 32, n).attempt(worlds), worlds, 1).mean()) / best for n in (1, 5, 20)
    ]
    assert shares[0] > 0.9 and shares[0] < shares[1] < shares[2] <= 1 and shares[2] > 0.99


def test_who_looks_cannot_beat_it_by_more_than_noise():
    known = known_on("mixture")
    worlds = worlds_of(known.draws.family, 300)
    line = float(attempt_values(Bayes(n=30).fit(known).attempt(worlds), worlds, 1).mean())
    assert float(attempt_values(Deploying(known.policy, 15).attempt(worlds), worlds, 1).mean()) <= line + 0.005


def test_families_without_a_likelihood_are_refused():
    class Bare:
        name, spec = "bare", FrozenLake().spec

    known = known_on("grid")
    bare = replace(known, draws=replace(known.draws, family=Bare()))
    with pytest.raises(SettingError, match="knows its likelihood"):
        Bayes().fit(bare)
