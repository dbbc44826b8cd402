"""What policies after ever more looking have seen."""

import torch
from support.worlds import class_of, policy_of, random_world

from s2r_torch.assurance.rehearsal import policies_after
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Ledger
from s2r_torch.rng import Seed


def test_more_readings_are_the_earlier_ones_and_some_more(monkeypatch):
    """After n episodes along every sequence a policy has seen the first n of those that later ones have seen."""
    world, told = random_world(6, 3, 2), []
    policy = policy_of(world, class_of(world, torch.zeros(1, 3, 2 * world.spec.max_states_per_layer, 2)), n_real=9)
    monkeypatch.setattr(MetaPolicy, "condition_on", lambda policy, seen, _: told.append((policy.n_real, seen)))
    ledger = Ledger()
    list(policies_after(policy, world.guard((0.1, -0.2), ledger=ledger), (1, 3, 7), Seed.root(0)))
    assert [n for n, _ in told] == [1, 3, 7] and ledger.counts["test"] == 2 * 7 * len(policy.cover)
    most = told[-1][1]
    for n, seen in told:
        for path in policy.cover:
            here, all_of_it = seen.follows(path), most.follows(path)
            assert int(here.sum()) == n
            assert torch.equal(seen.x[:, here], most.x[:, all_of_it][:, :n])
