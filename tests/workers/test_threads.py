"""What this process does in threads is what it does without them: results, bits, errors, in order."""

import threading

import pytest
import torch
from support.attacks import make_net, problem

from s2r_torch.predictors import ensemble
from s2r_torch.predictors.ensemble import Ensemble, users_code
from s2r_torch.workers.threads import in_threads, threads


def test_results_come_in_order_and_items_are_asked_for_when_they_are_needed():
    asked = []

    def items():
        for k in range(9):
            asked.append(k)
            yield k

    assert list(in_threads(abs, [-2, 1])) == [2, 1]
    with threads(2):
        found = in_threads(lambda k: -k, items())
        assert next(found) == 0 and asked == [0, 1, 2]
        assert list(found) == [-k for k in range(1, 9)]


def test_so_many_are_done_at_once_and_one_where_nobody_says_so():
    both = threading.Barrier(2, timeout=60)
    with threads(2):
        assert sorted(in_threads(lambda k: both.wait(), range(2))) == [0, 1]  # each waits for the other
    with threads(1):
        assert set(in_threads(lambda k: threading.get_ident(), range(4))) == {threading.get_ident()}


def test_the_first_failure_in_order_is_raised():
    def halves(k):
        if k >= 3:
            raise ValueError(k)
        return k / 2

    for count in (1, 2):
        with threads(count):
            found = in_threads(halves, [0, 1, 5, 4, 2])
            assert [next(found), next(found)] == [0, 0.5]
            with pytest.raises(ValueError, match="5"):
                next(found)


@pytest.mark.parametrize("wanted", [True, False])
def test_modes_of_torch_are_those_of_this_thread(wanted):
    with threads(2), torch.set_grad_enabled(wanted):
        found = list(in_threads(lambda k: (torch.is_grad_enabled(), torch.get_num_threads()), range(4)))
    assert found == [(wanted, torch.get_num_threads())] * 4


def asked_in(group, monkeypatch):
    """What a class says, and how many threads it was asked in."""
    seen, q = set(), type(group).q

    def watched(self, *given):
        seen.add(threading.get_ident())
        return q(self, *given)

    where, generator = group.problem, torch.Generator().manual_seed(0)
    D = torch.rand(3, where.graph.num_states, where.grid.num_points, generator=generator)
    x = torch.rand(3, 40, where.grid.obs_dim, generator=generator)
    with monkeypatch.context() as patch:
        patch.setattr(ensemble, "CHUNK", 2**6)  # several pieces
        patch.setattr(type(group), "q", watched)
        return Ensemble(where, (group,)).evaluator(D).greedy_values(0, x), seen


def test_a_class_says_the_same_in_threads(monkeypatch):
    net = make_net("lookup", problem("line", nodes=9), members=4)
    here, one = asked_in(net, monkeypatch)
    with threads(2):
        there, several = asked_in(net, monkeypatch)
    assert torch.equal(here, there) and one == {threading.get_ident()} and not several & one


def test_code_of_users_is_asked_in_their_own_thread(monkeypatch):
    net = make_net("lookup", problem("line", nodes=9), members=4)
    assert not users_code(net)
    net.steps[0].mine = torch.nn.Identity()
    assert not users_code(net)
    net.steps[0].mine = Noted()
    assert users_code(net)
    with threads(2):
        assert asked_in(net, monkeypatch)[1] == {threading.get_ident()}


class Noted(torch.nn.Module):
    """A user's."""
