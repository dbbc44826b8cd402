"""`lock` in closed form."""

import itertools

import pytest
import torch

from s2r_torch.coverage import path_cover
from s2r_torch.errors import SettingError
from s2r_torch.families import exact, make_family
from s2r_torch.families.lock import Lock
from s2r_torch.rng import Seed

LOCKS = {"default": Lock(), "short": Lock(horizon=2, num_actions=3), "other": Lock(horizon=4, secret=7)}
every_lock = pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())


def fair(lock, count=400):
    """Environments whose w are evenly spread over [0, 1]."""
    return lock.truth(lock.payoff_grid(count))


@every_lock
def test_two_lists_pay_and_no_other(lock):
    """Enumerates all A^H lists: list a earns w, list b 1 - w, the rest nothing."""
    truth = lock.truth(torch.tensor([[0.1, 0.3], [-0.2, 0.9]], dtype=torch.float64))
    for actions in itertools.product(range(lock.num_actions), repeat=lock.horizon):
        earned = torch.zeros(2, dtype=torch.float64)
        state = 0
        for a in actions:
            earned += truth.reward[:, state, 0, a]
            state = int(lock.graph.next_state[state, a])
        wanted = {lock.lists[0]: [0.3, 0.9], lock.lists[1]: [0.7, 0.1]}.get(actions, [0.0, 0.0])
        assert earned.tolist() == pytest.approx(wanted)


@every_lock
def test_values_are_those_of_the_docstring(lock):
    truth = fair(lock)
    assert float(exact.optimal(truth)[0][:, 0].mean()) == pytest.approx(0.75, abs=1e-4)
    assert exact.open_loop(truth)[1] == pytest.approx(0.5, abs=1e-9)
    assert float(exact.uniform_value(truth).mean()) == pytest.approx(lock.num_actions**-lock.horizon)


@every_lock
def test_one_start_and_three_states_per_layer(lock):
    assert lock.graph.states_per_layer == [1] + [3] * (lock.horizon - 1)
    assert len(path_cover(lock.graph)) == 3
    a, b = lock.lists
    assert a[0] != b[0] and len(a) == len(b) == lock.horizon
    (dead,) = {int(s) for s in lock.graph.states_of(1) if lock.number[s] == 2}
    assert len(set(lock.graph.next_state[dead].tolist())) == 1


def test_readings_stay_near_their_state():
    lock = Lock()
    theta = lock.prior(50, Seed.root(0).generator())
    states = torch.arange(13).expand(50, 13).repeat_interleave(20, 1)
    x = lock.emit(theta, states, Seed.root(1).generators(range(50)))[..., 0]
    width = 0.15 + 0.3 * theta[:, 1:]
    assert bool(((x - lock.number[states] - theta[:, :1]).abs() <= width).all())
    assert bool((x > lock.spec.low[0]).all()) and bool((x < lock.spec.high[0]).all())


def test_secrets_differ():
    assert len({Lock(secret=s).lists for s in range(20)}) == 20


@pytest.mark.parametrize(
    "wrong", [{"horizon": 1}, {"num_actions": 2}, {"noise_high": 0.5}, {"noise_low": 0.0}, {"offset": -1.0}]
)
def test_parameters_out_of_range(wrong):
    with pytest.raises(SettingError):
        make_family("lock", **wrong)
