"""Which layers are fitted again, and where samples are drawn: against planted errors and enumeration."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from support.attacks import make_net, problem, readings
from support.worlds import random_world

from s2r_torch.encoders.regression import Regression
from s2r_torch.episodes import Transitions
from s2r_torch.predictors.nets import net as nets
from s2r_torch.predictors.training import train, work
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import Listener, fit
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.predictors.training.shortfall import spread, unexplained
from s2r_torch.predictors.training.targets import Payments, Rewards, Values, View, best_shares, told_of_rest
from s2r_torch.progress import Silent
from s2r_torch.rng import Seed

FEW_STEPS = TrainingSettings(
    members=2, snapshots=1, steps=2, rounds=3, batch_simulators=8, batch_samples=4, learning_rate=0.02
)


class StoppedError(Exception):
    """A test stops a fit."""


def planted_rewards(b=4000, n=6):
    """Bernoulli(w) rewards of one state, w uniform, one of two actions tried at random: mean [b], paid, tried."""
    g = torch.Generator().manual_seed(0)
    mean = torch.rand(b, generator=g)
    paid = (torch.rand(b, 1, n, 1, generator=g) < mean[:, None, None, None]).float()
    tried = torch.nn.functional.one_hot(torch.randint(2, (b, 1, n), generator=g), 2).float()
    return mean, paid * tried, tried


def test_unexplained_rewards_are_told_apart_from_noise():
    """A member that is exact, one that is 0.2 off, and one that says the mean of all: 0, 0.04, Var w = 1 / 12."""
    mean, paid, tried = planted_rewards()
    exact = mean[None, :, None, None, None].expand(1, -1, 1, 6, 2)
    said = torch.cat([exact, exact + 0.2, torch.full_like(exact, 0.5)])
    torch.testing.assert_close(
        unexplained(said, paid, tried), torch.tensor([0, 0.04, 1 / 12], dtype=torch.float64), atol=0.005, rtol=0
    )
    assert spread(paid, tried) == pytest.approx(1 / 12, abs=0.004)
    assert abs(spread(paid[:, :, torch.randperm(6)].roll(1, 0) * 0 + 0.3 * tried, tried)) < 1e-6  # nothing to tell


def test_a_walk_is_the_sum_over_paths():
    world = random_world(3, horizon=4, num_actions=3)
    graph, g = world.graph, torch.Generator().manual_seed(1)
    leaving = [torch.rand(2, len(graph.states_of(h)), 3, generator=g).softmax(-1) for h in range(4)]
    wanted = torch.zeros(2, graph.num_states)
    for path in (path for length in range(4) for path in product(range(3), repeat=length)):
        share = torch.ones(2)
        for h, a in enumerate(path):
            share = share * leaving[h][:, graph.states_of(h).index(graph.end(path[:h])), a]
        wanted[:, graph.end(path)] += share
    torch.testing.assert_close(graph.walked(leaving), wanted)


def test_actions_that_tie_share_the_walk():
    assert best_shares(torch.tensor([0.5, 0.499, 0.2]), 0.002).tolist() == [0.5, 0.5, 0.0]
    assert best_shares(torch.tensor([0.5, 0.499, 0.2]), 0.0005).tolist() == [1.0, 0.0, 0.0]


def paid_by_theta(where, count=24):
    """One action of the second layer pays what the densities' height says: a few steps do not explain it."""
    g, theta = torch.Generator().manual_seed(0), (torch.arange(count) % 2).double()
    D = torch.rand(count, where.graph.num_states, where.grid.num_points, generator=g, dtype=torch.float64)

    def tried(layer):
        actions = torch.randint(where.spec.num_actions, (count, 8), generator=g)
        paid = 0.9 * theta[:, None] * (actions == 1) * (layer == 1)
        return Transitions(readings(where, (count, 8), g), actions, paid)

    samples = tuple(map(tried, where.graph.layer.tolist()))
    return TrainingData(D * (0.5 + theta[:, None, None]), samples)


def watch(monkeypatch, thing, method, results):
    """Keeps what a method returns."""
    ask = getattr(thing, method)
    monkeypatch.setattr(thing, method, lambda *given: (results.append(ask(*given)), results[-1])[1])


def test_targets_of_held_out_simulators_are_found_once_and_our_networks_need_no_noise(monkeypatch):
    where, asked = problem("line"), []
    watch(monkeypatch, Rewards, "of_seen", asked)
    monkeypatch.setattr(Seed, "as_global", None)
    settings = replace(FEW_STEPS, steps=5, rounds=1, held_out=0.125)
    fit(make_net("lookup", where, members=2), paid_by_theta(where), settings, Seed.root(3))
    assert [len(paid[0]) for paid, _ in asked] == [8, 3, 8, 8, 8, 8]  # a batch, three simulators held out, batches


@pytest.mark.parametrize("varying", [0, 1, 2])
@pytest.mark.parametrize("name", ["lookup", "cones"])
def test_a_teacher_is_asked_of_states_whose_rewards_vary(name, varying, monkeypatch):
    """Targets are those of one that is asked everywhere, of none, some and all of the states."""
    where, asked = problem("line"), []
    net, data, g = make_net(name, where, members=2), paid_by_theta(where), torch.Generator().manual_seed(0)
    states, D, (xi, A) = where.graph.states_of(1), data.D.float(), where.graph.next_state.shape
    view = View(data.columns(states).x, D[:, states], net.standardised(D), net.scarcity(None).expand(len(D)))
    payments = Payments(torch.zeros(xi, A, dtype=torch.bool), torch.rand(xi, A, generator=g))
    payments.varies[states[:varying], 1] = True
    V_hat = torch.rand(2, len(D), xi, generator=g) / 4
    targets = Values.of(net, payments, V_hat, torch.ones(len(D), xi), 1, 8)
    seen = view.at(net, torch.tensor([3, 7, 11]), torch.tensor([[0, 9, 12], [4, 15, 2], [8, 9, 1]]))
    said = seen.q(net, 1).clamp(0, 1)
    rewards = torch.where(targets.varies[seen.columns], said, targets.constant[seen.columns])
    wanted = rewards + targets.beside[:, seen.rows[:, None], targets.state[seen.columns]]
    watch(monkeypatch, net.steps[1], "forward", asked)
    torch.testing.assert_close(targets.of_seen(seen)[0], wanted.clamp(0, 1))
    assert sum(q[0, ..., 0].numel() for q in asked) == [0, 4, 9][varying]


def test_teacher_and_net_look_at_a_batch_with_one_look_up(monkeypatch):
    where, looked = problem("line"), []
    net, data = make_net("lookup", where, members=2), paid_by_theta(where)
    states, D = where.graph.states_of(1), data.D.float()
    view = View(data.columns(states).x, D[:, states], net.standardised(D), net.scarcity(None).expand(len(D)))
    V_hat, walked = torch.rand(2, len(D), where.graph.num_states), torch.ones(len(D), where.graph.num_states)
    targets = Values.of(net, Payments.of(data, where.spec.num_actions), V_hat, walked, 1, 8)
    assert targets.teacher is net
    looked_up = nets.looked_up
    monkeypatch.setattr(nets, "looked_up", lambda *given: (looked.append(1), looked_up(*given))[1])
    rows, columns = torch.tensor([3, 7]), torch.tensor([[0, 9], [4, 15]])
    seen = view.at(net, rows, columns)
    wanted, _ = targets.of_seen(seen)
    said = seen.q(net, 1)
    assert len(looked) == 1 and said.shape == wanted.shape == (2, 2, 2, where.spec.num_actions)
    for k, row in enumerate(rows.tolist()):
        x = view.x[row, columns[k]][None]
        alone = net.raw_q(1, view.summary[row, None], net.local(D[row, None], 1, x), x, view.scarcity[row, None])
        torch.testing.assert_close(said[:, k], alone[:, 0])


@pytest.mark.parametrize("may_loosen", [False, True])
def test_rewards_that_are_not_explained_are_fitted_again_and_that_goes_on_to_the_bit(tmp_path, monkeypatch, may_loosen):
    monkeypatch.setattr(work, "SAVE_SECONDS", -1.0)
    where, told = problem("line"), []

    def fitted(state=None, on_check=lambda done, risks: None):
        listener = Listener(on_round=lambda what, steps: told.append((what, steps)), on_check=on_check)
        net = make_net("lookup", where, members=2)
        seed = Seed.root(1)
        return fit(
            net, paid_by_theta(where), FEW_STEPS, seed, listener=listener, state=state, may_loosen=may_loosen
        ).net

    def stop(done, risks):
        if done == 7:  # of 2 + 4 + 8 steps of rewards
            raise StoppedError

    whole = fitted()
    assert [what for what, _ in told][:3] == ["rewards", "rewards again, layer 1", "rewards again, layer 1"]
    assert [steps for _, steps in told][:3] == [2, 4, 8] and told[3][0] == "values"
    state = tmp_path / "training" / "lookup.safetensors"
    with pytest.raises(StoppedError):
        fitted(state, stop)
    told.clear()
    resumed = fitted(state)
    assert [what for what, _ in told][:2] == ["rewards", "rewards again, layer 1"]
    assert whole.declared_bound == resumed.declared_bound
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def told_by_height(where, low, high, count=64):
    """The height of densities, between these two, says what action 1 of the last layer pays; four of its tries."""
    g, layer = torch.Generator().manual_seed(0), where.graph.layer
    w = torch.linspace(0, 1, count, dtype=torch.float64)[torch.randperm(count, generator=g)]
    shape = torch.exp(-(torch.linspace(-3, 3, where.grid.num_points, dtype=torch.float64) ** 2))
    D = (low + (high - low) * w)[:, None, None] * shape.expand(count, where.graph.num_states, -1)
    actions = torch.arange(8).expand(count, 8) % where.spec.num_actions
    x = readings(where, (count, 8), g)
    return TrainingData(
        D, tuple(Transitions(x, actions, w[:, None] * (actions == 1) * (h == 2)) for h in layer.tolist())
    )


def test_networks_that_a_small_bound_keeps_from_their_targets_are_made_looser():
    """Heights that differ by 0.05 tell 0 from 1, so C_L is at least 20: 2 is not enough, and 8 is not."""
    where, told = problem("line"), []
    settings = TrainingSettings(members=2, snapshots=2, steps=120, batch_simulators=16)
    data = told_by_height(where, 1.0, 1.05)

    def fitted(may_loosen, bound=2.0):
        told.clear()
        listener = Listener(on_round=lambda what, steps: told.append(what))
        net = make_net("lookup", where, members=2, lipschitz_bound=bound)
        return fit(net, data, settings, Seed.root(0), listener=listener, may_loosen=may_loosen)

    stiff, looser = fitted(False), fitted(True)
    assert stiff.net.declared_bound == 2.0 and looser.net.declared_bound > 20
    assert float(looser.net.lipschitz_bound().max()) <= looser.net.declared_bound * (1 + 1e-6)
    assert told[:2] == ["rewards", "rewards again, layer 2"]
    w = data.mean_rewards(where.spec.num_actions)[:, -1, 1]
    state = where.graph.num_states - 1

    def missed(found):
        x = data.samples[state].x
        q = found.net.q(found.net.condition(data.D), 2, x)[..., 1].mean(2)
        return float((q - w).square().mean().sqrt())

    assert missed(stiff) > 0.2 > 0.1 > missed(looser)
    fitted(True, bound=200.0)
    assert told[:2] == ["rewards", "values"]  # nothing is in the way of that


def test_simulators_that_look_alike_tell_what_networks_miss():
    """A smooth function of what is seen, under noise three times as wide; noise that nothing shows is left alone."""
    g = torch.Generator().manual_seed(0)
    seen = 2 * torch.rand(200, 2, generator=g, dtype=torch.float64) - 1
    noise = 0.3 * torch.randn(3, 200, 2, 4, generator=g, dtype=torch.float64)
    smooth = (0.1 * (3 * seen[:, 0]).sin() + 0.05)[None, :, None, None].expand(3, -1, 2, 4)
    looks = Regression(seen)
    told = told_of_rest(smooth + noise / 3, looks)
    assert float((told - smooth).square().mean().sqrt()) < 0.03  # the noise is 0.1, the function 0.09
    assert float(told_of_rest(noise, looks).square().mean().sqrt()) < 0.05
    alike = Regression(torch.zeros(200, 2, dtype=torch.float64))  # of whom nothing tells one from another
    assert not told_of_rest(noise - noise.mean(1, keepdim=True), alike).any()


def test_nobody_is_told_its_own_rest():
    g = torch.Generator().manual_seed(0)
    seen = torch.rand(60, 2, generator=g, dtype=torch.float64)
    rest = 0.2 * (6 * seen).sin().sum(1)[None, :, None, None]
    changed = rest.clone()
    changed[0, 7] += 0.05
    moved = (told_of_rest(changed, Regression(seen)) - told_of_rest(rest, Regression(seen))).abs()[0, :, 0, 0]
    assert float(moved[7]) < 0.05 / 50  # the mean of all 60 moves by a 60th


def test_values_hold_what_networks_miss_of_rewards_and_nothing_where_rewards_do_not_vary():
    """After six steps no network knows that action 1 of the last layer pays 0.9 for half of the simulators."""
    where = problem("line")
    data = paid_by_theta(where, 64)
    found = fit(make_net("lookup", where, members=2), data, replace(FEW_STEPS, rounds=1), Seed.root(1)).shortfall
    held_out = torch.arange(64)[-8:] % 2
    torch.testing.assert_close(
        found.value, (0.9 * held_out.double().mean()).expand(2).to(found.value), atol=0.05, rtol=0
    )


def test_a_bound_that_was_given_is_kept(monkeypatch):
    where, seen = problem("line"), []
    monkeypatch.setattr(train, "fit", lambda net, *given, **named: seen.append(named["may_loosen"]))
    trainer = train.Trainer(where, told_by_height(where, 1.0, 2.0), FEW_STEPS, Seed.root(0), Silent())
    for given in ({}, {"width": 16}, {"lipschitz_bound": 2.0}, {"lipschitz_bound": "auto"}):
        trainer.fitted("lookup", given)
    monkeypatch.setattr(train.net_class("lookup"), "certified", False)
    trainer.fitted("lookup", {})
    assert seen == [True, True, False, False, False]
