"""The contract that every comparator keeps: it says what it sees, pays for what it draws, reads no reward in secret."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from support.known import known_on, with_family, worlds_of

from s2r_torch.comparators.contract import COMPARATORS, REWARDED, UNLABELLED
from s2r_torch.deployment.deploy import deploy
from s2r_torch.episodes import Ledger
from s2r_torch.families.grid import Grid
from s2r_torch.runs.evaluation import attempt_values, optimal_values
from s2r_torch.tours import decision_tour

SMALL = {
    "blind": {"sweeps": 1, "simulators": 4, "n": 50},
    "lsvee": {"size": 8, "n": 5},
    "real_sweep": {"size": 8, "n": 5},
    "olive": {"size": 8, "n": 5, "rounds": 3},
    "identification": {"probes": 50},
    "history_fqi": {"simulators": 50, "episodes": 10, "steps": 5},
    "few_rewards": {"samples": 20, "looks": 5},
}
OPTIONAL = {"ppo": "stable_baselines3", "recurrent_ppo": "sb3_contrib"}
every_comparator = pytest.mark.parametrize("name", [name for name in COMPARATORS if name not in OPTIONAL])


def learner_of(name: str):
    return COMPARATORS.named(name)(**SMALL.get(name, {})).fit(known_on("grid"))


def sized(learner, n: int):
    return replace(learner, n=n) if hasattr(learner, "n") else learner


@every_comparator
def test_says_what_it_is(name):
    comparator = COMPARATORS[name]
    assert comparator.name == name and comparator.label and comparator.access
    assert isinstance(learner_of(name), comparator.learner)


@every_comparator
def test_pays_for_every_real_episode(name):
    worlds = worlds_of(known_on("grid").draws.family, 3)
    attempt = sized(learner_of(name), 6).attempt(worlds)
    counts = worlds.draws.ledger.counts
    assert counts[UNLABELLED] == pytest.approx(3 * attempt.unlabelled)
    assert counts[REWARDED] == pytest.approx(3 * attempt.rewarded)
    assert (attempt.rewarded > 0) == (COMPARATORS[name].access.reward != "no")
    assert (attempt.unlabelled > 0) == (COMPARATORS[name].access.looks == "yes")
    assert 0 <= attempt.accepted <= 1
    values = attempt_values(attempt, worlds, 20)
    assert values.shape == (3,) and bool((values <= optimal_values(worlds) + 0.5).all()) and bool((values >= 0).all())


@every_comparator
def test_draws_what_it_says_before_it_sees_a_world(name):
    known = known_on("grid")
    known = replace(known, draws=replace(known.draws, ledger=Ledger()))
    comparator = COMPARATORS.named(name)(**SMALL.get(name, {}))
    comparator.fit(known)
    of_decisions, told = len(decision_tour(known.problem.graph)), Counter()
    for drawn in getattr(comparator, "drawn", ()):
        each = drawn.rollouts + of_decisions * -(-drawn.decisions // known.problem.graph.num_actions)
        told[drawn.purpose] += (drawn.simulators or len(known.data.D)) * each
    assert dict(told) == dict(known.draws.ledger.counts)


@dataclass(frozen=True)
class Stingy(Grid):
    """The grid that pays half: the same readings from the same streams."""

    def mean_reward(self, theta, state, x, actions):
        return super().mean_reward(theta, state, x, actions) / 2


@pytest.mark.parametrize("name", [n for n in COMPARATORS if n not in OPTIONAL and COMPARATORS[n].access.reward == "no"])
def test_who_sees_no_reward_acts_alike_whatever_is_paid(name):
    """Except in simulators of its own, which `identification` asks for at theta_hat; readings there are the same."""
    worlds = worlds_of(known_on("grid").draws.family, 3)
    learner = sized(learner_of(name), 4)
    poorer = with_family(worlds, Stingy())
    if name == "bayes":  # plans with what it knows of rewards
        pytest.skip("knows what pays, by definition")
    x = torch.rand(3, 50, 2, dtype=torch.float64) * 3 - 0.5
    acts = [learner.attempt(w).act for w in (worlds, poorer)]
    assert all(torch.equal(*(act(step, x) for act in acts)) for step in range(5))


def test_a_rewarded_world_cannot_be_deployed_in():
    """A type of its own: it has no step that shows readings alone."""
    world = worlds_of(known_on("grid").draws.family, 2).rewarded(0)
    with pytest.raises(Exception, match="reset|missing|argument"):
        deploy(known_on("grid").policy, world, Ledger())


def test_the_first_worlds_are_the_same_worlds():
    worlds = worlds_of(known_on("grid").draws.family, 5)
    few = worlds.first(2)
    assert len(few) == 2 and torch.equal(few.theta, worlds.theta[:2]) and worlds.first(None) is worlds
    sequences = ((0, 0, 1, 1, 0), (1, 1, 0, 0, 0))
    walked, again = (w.walk(sequences, 3, w.seed, UNLABELLED) for w in (worlds, few))
    assert torch.equal(walked.x[:2], again.x) and walked.actions[0, :3].tolist() == [list(sequences[0])] * 3
