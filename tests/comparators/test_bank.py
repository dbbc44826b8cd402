"""A bank is the same predictors at frozen densities."""

import torch
from support.known import known_on

from s2r_torch.comparators.bank import Bank, bank_of
from s2r_torch.density.patches import dense
from s2r_torch.predictors.ensemble import Ensemble

UNSEEN = torch.zeros(1, 9, 0)


def test_every_pair_is_its_predictor_at_its_density():
    known = known_on("grid")
    group, D = known.policy.ensemble.groups[0], known.data.D[:5]
    bank = Bank.ensemble(group, D, known.problem).groups[0]
    x = torch.rand(1, 30, 2, dtype=torch.float64) * 2
    for step in (0, 2, 4):
        q = bank.q(bank.condition(UNSEEN), step, x)
        assert q.shape == (5 * group.size, 1, 30, 2)
        for f in range(group.size):
            for b in range(5):
                alone = Ensemble(known.problem, (group,)).evaluator(D[b : b + 1]).q_of(f, step, x)
                assert torch.allclose(q[f * 5 + b], alone, atol=1e-6)


def test_subsets_keep_their_pairs():
    acting, D = bank_of(known_on("grid"), 6)
    bank = Bank.ensemble(acting.groups[0], D, acting.problem).groups[0]
    x = torch.rand(1, 20, 2, dtype=torch.float64)
    few = bank.subset([4, 1]).subset([1, 0])
    whole = bank.q(bank.condition(UNSEEN), 1, x)[[1, 4]]
    assert torch.allclose(few.q(few.condition(UNSEEN), 1, x), whole, atol=1e-6)


def test_our_own_acting_predictor_alone_is_in_it():
    known = known_on("grid")
    acting, D = bank_of(known, 6)
    assert acting.size == 1 and torch.equal(dense(D), dense(known.data.D[:6]))
    x = torch.rand(1, 20, 2, dtype=torch.float64)
    ours = known.policy.condition(dense(D[:1]))
    bank = Bank.ensemble(acting.groups[0], D[:1], acting.problem)
    assert torch.equal(bank.evaluator(UNSEEN).policy_of(0)(1, x), ours.act(1, x))
