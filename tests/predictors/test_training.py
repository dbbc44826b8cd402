"""Training, rewards then values: against a slow loop, and on a family whose Q* is known."""

import copy
import math
import signal
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch
from support.attacks import make_net, names, problem, readings
from support.worlds import random_world

from s2r_torch.density.estimator import DensityEstimator, DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.encoders.regression import Regression
from s2r_torch.episodes import Guard, Ledger, Transitions, try_actions
from s2r_torch.errors import CheckpointError, SettingError
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.training import fit as fitting
from s2r_torch.predictors.training import layer_fit, targets, trainer, work
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.fit import Listener, fit
from s2r_torch.predictors.training.layer_fit import one_cycle
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.predictors.training.shortfall import Shortfall, shortfall
from s2r_torch.predictors.training.snapshots import Snapshots, not_worse
from s2r_torch.predictors.training.targets import Payments
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed

TINY = TrainingSettings(
    members=2,
    snapshots=1,
    steps=3,
    rounds=1,
    batch_simulators=3,
    batch_samples=4,
    learning_rate=0.05,
    bootstrap=True,
)


def random_data(where, count=5, n=4, seed=0):
    """Transitions at random, with rewards that keep totals in [0, 1]."""
    g = torch.Generator().manual_seed(seed)
    xi, spec = where.graph.num_states, where.spec
    D = torch.rand(count, xi, where.grid.num_points, generator=g, dtype=torch.float64)
    samples = tuple(
        Transitions(
            readings(where, (count, n), g),
            torch.randint(spec.num_actions, (count, n), generator=g),
            torch.rand(count, n, generator=g, dtype=torch.float64) / spec.horizon,
        )
        for _ in range(xi)
    )
    return TrainingData(D, samples)


def weights(net):
    return {name: value.clone() for name, value in net.stacked().items()}


def alone(hat, y):
    """y [B, K] minus what the other rows say of each."""
    mean = y.mean(0)
    off = [(y[b] - mean - hat[b] @ (y - mean)) / max(1 - float(hat[b, b]), 1e-6) for b in range(len(y))]
    return torch.stack(off)


def slow_fit(net, data, settings, seed):
    """The same by loops over members, simulators and samples; one optimiser per layer and pass."""
    net.fit_scales(data.D)
    net.fit_readings(data.levels)
    rewards = copy.deepcopy(net)
    graph, D = net.problem.graph, torch.cat([*data.levels.values()])  # rows: level by level, draw by draw
    count, n = len(data.D), data.samples[0].x.shape[1]
    scarcity = [net.scarcity(readings) for readings, every in data.levels.items() for _ in every]
    draws = [len(every) // count for every in data.levels.values()]
    members, A = range(net.size), graph.num_actions
    uniform = torch.rand(net.size, count, generator=seed.child("bootstrap").generator())
    bootstrap = -uniform.log() if settings.bootstrap else torch.ones(net.size, count)
    varies, always = {}, {}
    for s, a in product(range(graph.num_states), range(A)):
        sample = data.samples[s]
        paid = [float(sample.rewards[b, i]) for b, i in (sample.actions == a).nonzero().tolist()]
        varies[s, a], always[s, a] = len(set(paid)) > 1, paid[0] if paid else 0.0

    def q(which, f, row, step, x):  # [A]
        one, x, c = D[row : row + 1].float(), x[None, None], scarcity[row][None]
        return which.raw_q(step, which.standardised(one, c), which.local(one, step, x), x, c)[f, 0, 0]

    def train(which, number, layer, loss_of, columns, pick):
        optimiser = torch.optim.Adam(which.steps[layer].parameters())
        for k in range(settings.steps):
            generator = seed.child("layer", number, layer).child("batch", k).generator()
            chosen = torch.randperm(count, generator=generator)[: settings.batch_simulators].tolist()
            fewer = torch.randint(1, max(2, len(data.levels)), (len(chosen),), generator=generator).tolist()
            at_most = torch.rand(len(chosen), generator=generator).tolist()
            level = [0 if u < 0.25 or len(data.levels) == 1 else k for u, k in zip(at_most, fewer, strict=True)]
            shares = torch.rand(len(chosen), generator=generator).tolist()
            draw = [sum(draws[:k]) + int(u * draws[k]) for u, k in zip(shares, level, strict=True)]
            rows = [b + count * k for b, k in zip(chosen, draw, strict=True)]
            picks = pick(rows, generator).tolist()
            loss, terms = 0.0, len(chosen) * settings.batch_samples
            for f, (p, b) in product(members, enumerate(chosen)):
                for s, i in (columns[c] for c in picks[p]):
                    loss = loss + bootstrap[f, b] * loss_of(f, b + count * draw[p], s, i) / terms
            optimiser.param_groups[0]["lr"] = settings.learning_rate * one_cycle(k, settings.steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def error_of_reward(f, row, s, i):
        sample, layer, b = data.samples[s], int(graph.layer[s]), row % count
        a = int(sample.actions[b, i])
        if not varies[s, a]:
            return torch.zeros(())
        return (q(rewards, f, row, layer, sample.x[b, i])[a] - float(sample.rewards[b, i])) ** 2

    layers = [(h, graph.states_of(h)) for h in reversed(range(graph.horizon))]
    for layer, states in layers:
        paid = [s for s in states if any(varies[s, a] for a in range(A))]
        if paid:
            tried = {
                (b, s, i): varies[s, int(data.samples[s].actions[b, i])]
                for b in range(count)
                for s in states
                for i in range(n)
            }

            def told(rows, generator, states=states, tried=tried):
                weight = [[float(tried[row % count, s, i]) for s in states for i in range(n)] for row in rows]
                some = [line if sum(line) else [1.0] * len(line) for line in weight]
                return torch.multinomial(torch.tensor(some), settings.batch_samples, True, generator=generator)

            train(rewards, 0, layer, error_of_reward, list(product(states, range(n))), told)

    def missed_by(f, row, s, a):
        sample, layer, b = data.samples[s], int(graph.layer[s]), row % count
        paid = [float(sample.rewards[b, i]) for i in range(n) if int(sample.actions[b, i]) == a]
        said = [float(q(rewards, f, row, layer, sample.x[b, i])[a].clamp(0, 1)) for i in range(n)]
        return sum(paid) / len(paid) - sum(said) / n if paid and varies[s, a] else 0.0

    V_hat, Q_hat, rest = {}, {}, {}
    first = [sum(draws[:k]) for k in range(len(draws))]  # draws of the levels, among all
    tells = {}
    with torch.no_grad():
        for (layer, states), (k, rows) in product(layers, enumerate(torch.arange(len(D)).split(count))):
            looks = Regression(net.standardised(D[rows].float(), torch.stack([scarcity[row] for row in rows])).double())
            by_action = list(product(states, range(A)))
            raw = torch.tensor([[[missed_by(f, row, *sa) for sa in by_action] for row in rows] for f in members])
            raw = raw.double()
            told = raw - torch.stack([alone(looks.best(raw.mean(0)), one) for one in raw])
            left = float(alone(looks.best(raw.mean(0)), raw.mean(0)).square().sum() / raw.mean(0).square().sum())
            level = max(at for at in first if at <= k)
            tells[layer, k] = left <= 0.8 and any(varies[one] for one in by_action) and tells.get((layer, level), True)
            for f, (b, row), (j, sa) in product(members, enumerate(rows.tolist()), enumerate(by_action)):
                rest[f, row, *sa] = float(told[f, b, j]) if tells[layer, k] else 0.0
        for layer, states in layers:
            for f, row, s in product(members, range(len(D)), states):
                for i in range(n):
                    predicted = q(rewards, f, row, layer, data.samples[s].x[row % count, i]).clamp(0, 1).tolist()
                    for a in range(A):
                        later = 0.0 if layer + 1 == graph.horizon else V_hat[f, row, int(graph.next_state[s, a])]
                        r_hat = predicted[a] if varies[s, a] else always[s, a]
                        Q_hat[f, row, s, i, a] = later + rest[f, row, s, a] + r_hat
                best = [max(min(max(Q_hat[f, row, s, i, a], 0.0), 1.0) for a in range(A)) for i in range(n)]
                V_hat[f, row, s] = sum(best) / n

    leaving = {}  # shares of actions in every state, the members' mean
    for (row, s), a in product(product(range(len(D)), range(graph.num_states)), range(A)):
        leaving[row, s, a] = 0.0
        for f, i in product(members, range(n)):
            said = [min(max(float(Q_hat[f, row, s, i, k]), 0.0), 1.0) for k in range(A)]
            best = [k for k in range(A) if said[k] >= max(said) - 2e-3]
            leaving[row, s, a] += (a in best) / len(best) / n / net.size
    walked = {(row, s): float(s == 0) for row, s in product(range(len(D)), range(graph.num_states))}
    for _, states in reversed(layers):
        for row, s, a in product(range(len(D)), states, range(A)):
            if (following := int(graph.next_state[s, a])) >= 0:
                walked[row, following] += walked[row, s] * leaving[row, s, a]

    def on_the_way(states):
        def pick(rows, generator):
            share = [[0.5 * walked[row, s] + 0.5 / len(states) for s in states] for row in rows]
            state = torch.multinomial(torch.tensor(share), settings.batch_samples, True, generator=generator)
            return state * n + torch.randint(n, state.shape, generator=generator)

        return pick

    def error_of_values(f, row, s, i):
        said = q(net, f, row, int(graph.layer[s]), data.samples[s].x[row % count, i])
        return sum((said[a] - min(max(Q_hat[f, row, s, i, a], 0.0), 1.0)) ** 2 for a in range(A)) / A

    for layer, states in layers:
        train(net, 1, layer, error_of_values, list(product(states, range(n))), on_the_way(states))
    return net


@pytest.mark.parametrize("fewer", [(), (4.0, 20.0)])
@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("name", ["lookup", pytest.param("mlp", marks=pytest.mark.slow)])
def test_training_equals_the_slow_loop(name, bootstrap, fewer):
    where = problem("line", nodes=9)
    data, seed = random_data(where), Seed.root(3)
    drawn = {n: [random_data(where, seed=int(n) + k).D for k in range(2 if n < 10 else 1)] for n in fewer}
    data = replace(data, readings=50.0, fewer={n: torch.cat(every) for n, every in drawn.items()})
    settings = replace(TINY, bootstrap=bootstrap)
    nets = [make_net(name, where, members=2) for _ in range(3)]
    for net in nets:
        with torch.no_grad():
            net.steps[2].out.bias[1] += 1.2  # values of states outside [0, 1] are clamped
    start, fast, slow = (
        weights(nets[0]),
        fit(nets[1], data, settings, seed).net,
        slow_fit(nets[2], data, settings, seed),
    )
    for (key, got), expected in zip(fast.stacked().items(), slow.stacked().values(), strict=True):
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
        assert float((got - start[key]).abs().max()) > 0.02, key  # Adam moves a weight by about its rate a step


def only_some_pay(where, count=5):
    """Random data in which layer 1 alone is paid differently, and one action of state 1 always 0.25."""
    data = random_data(where, count)
    layer = where.graph.layer.tolist()
    samples = [replace(t, rewards=t.rewards if layer[s] == 1 else 0 * t.rewards) for s, t in enumerate(data.samples)]
    samples[1] = replace(samples[1], rewards=torch.where(samples[1].actions == 0, 0.25, samples[1].rewards))
    return TrainingData(data.D, tuple(samples))


def test_payments_that_never_vary_need_no_network():
    where = problem("line")
    data = only_some_pay(where)
    payments = Payments.of(data, where.spec.num_actions)
    layer = where.graph.layer
    assert payments.varies.any(1).tolist() == (layer == 1).tolist() and not payments.varies[1, 0]
    assert payments.constant[1, 0] == 0.25 and bool((payments.constant[layer != 1] == 0).all())
    assert payments.layers(where.graph) == [1]


def test_rewards_come_first_then_layers_from_the_last_then_what_falls_short(monkeypatch):
    """Only the layer in training moves, and in the first round none of F: rewards have networks of their own."""
    monkeypatch.setattr(fitting, "NEAR", 1.0)  # whatever rewards miss
    where, told, moved, seen = problem("line"), [], [], []
    net = make_net("lookup", where, members=2)
    last = weights(net)

    def on_step(done, risk):
        now = weights(net)
        changed = {int(key.split(".")[1]) for key in now if not torch.equal(now[key], last[key])}
        last.update(now)
        moved.append((done, changed))
        seen.append(risk)

    settings = TrainingSettings(
        members=2, snapshots=2, steps=20, rounds=3, tolerance=1e-9, batch_simulators=3, batch_samples=2
    )
    listener = Listener(lambda what, steps: told.append((what, steps)), on_step)
    with monkeypatch.context() as strict:
        strict.setattr(fitting, "HELPED", 1e-9)  # so that the second round does not help, whatever it does
        fit(net, only_some_pay(where), settings, Seed.root(0), listener=listener)
    assert moved[:4] == [(20, set()), (40, {2}), (60, {1}), (80, {0})] and all(risk >= 0 for risk in seen)
    assert told[:2] == [("rewards", 20), ("values", 60)] and len(told) == 3  # the second did not help
    told.clear()
    fit(make_net("lookup", where, members=2), random_data(where), settings, Seed.root(0), listener=listener)
    assert told[:2] == [("rewards", 60), ("values", 60)]
    for number, (what, steps) in enumerate(told[2:]):  # twice as many in every further round
        layers = list(map(int, what.split("layer")[1].removeprefix("s").split(",")))
        assert what.startswith("values again") and steps == 20 * 2 ** (number + 1) * len(layers)
    assert len(told) == 4  # three of values


def test_snapshots_are_the_weights_at_the_stated_steps():
    """Steps round(steps (k + 1) / snapshots) of every layer; members x snapshots, the last block final."""
    where, data = problem("line"), random_data(problem("line"))
    settings = replace(TINY, snapshots=3, steps=40, batch_samples=2)
    seen = {}
    net = make_net("lookup", where, members=2)

    def on_step(done, risk):
        layer, within = 5 - (done - 1) // 40, (done - 1) % 40 + 1
        seen[layer, within] = {k: v for k, v in weights(net).items() if k.startswith(f"steps.{layer}.")}

    trained = fit(net, data, settings, Seed.root(1), listener=Listener(on_step=on_step)).net
    assert trained.size == 6 and not any(p.requires_grad for p in trained.parameters())
    stacked = trained.stacked()
    for layer in range(3):
        for name, final in seen[layer, 40].items():
            assert torch.equal(stacked[name][4:], final), name
            middle = stacked[name]
            assert not torch.equal(middle[:2], middle[2:4]) and not torch.equal(middle[2:4], middle[4:])
    two = fit(make_net("lookup", where, members=2), data, replace(settings, snapshots=2), Seed.root(1)).net
    for layer in range(3):
        for name, halfway in seen[layer, 20].items():
            assert torch.equal(two.stacked()[name][:2], halfway), name


def test_stacked_members_equal_separate_ones(monkeypatch):
    monkeypatch.setattr(targets, "ON_THE_WAY", 0.0)  # else members together say where batches are drawn
    """A stack is a way to compute: every member is what it would be alone, apart from the order of sums."""
    where, data, seed = problem("line"), random_data(problem("line"), count=8), Seed.root(5)
    settings = replace(TINY, members=3, steps=10, batch_simulators=4, learning_rate=0.01, bootstrap=False)
    start = make_net("lookup", where, members=3)
    alone = [fit(start.subset([f]).requires_grad_(True), data, settings, seed).net for f in range(3)]
    together = fit(start, data, settings, seed).net.stacked()
    for f, single in enumerate(alone):
        for name, value in single.stacked().items():
            torch.testing.assert_close(value[0], together[name][f], atol=1e-5, rtol=0)


def test_same_seed_same_bits_and_members_are_distinct():
    where, data = problem("line"), random_data(problem("line"))
    one, two, other = (fit(make_net("lookup", where, members=2), data, TINY, Seed.root(s)).net for s in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    first = one.stacked()["steps.0.out.weight"]
    assert not torch.equal(first, other.stacked()["steps.0.out.weight"])
    assert not torch.equal(first[0], first[1])


def test_bootstrap_alone_tells_members_apart():
    where, data = problem("line"), random_data(problem("line"))
    for bootstrap in (True, False):
        twins = make_net("lookup", where, members=1).subset([0])
        twins = twins.with_members({k: torch.cat([v, v]) for k, v in twins.stacked().items()}).requires_grad_(True)
        settings = replace(TINY, bootstrap=bootstrap)
        weight = fit(twins, data, settings, Seed.root(0)).net.stacked()["steps.1.out.weight"]
        assert (float((weight[0] - weight[1]).abs().max()) > 1e-4) == bootstrap


def test_nothing_global_is_touched(tmp_path, monkeypatch):
    """No file, no warning, no random number but the seed's, no signal handler."""
    monkeypatch.chdir(tmp_path)
    where = problem("line")
    state, handler, filters = torch.random.get_rng_state(), signal.getsignal(signal.SIGINT), list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(make_net("lookup", where, members=2), random_data(where), TINY, Seed.root(0))
    assert not caught and list(warnings.filters) == filters
    assert torch.equal(torch.random.get_rng_state(), state)
    assert signal.getsignal(signal.SIGINT) is handler
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_and_errors_pass_through():
    where = problem("line")
    handler = signal.getsignal(signal.SIGINT)
    settings = TrainingSettings(members=2, snapshots=1, steps=20, batch_simulators=3, batch_samples=2)
    for error in (KeyboardInterrupt, ZeroDivisionError, SystemExit):

        def on_step(done, risk, error=error):
            raise error

        net = make_net("lookup", where, members=2)
        with pytest.raises(error) as caught:
            fit(net, random_data(where), settings, Seed.root(0), listener=Listener(on_step=on_step))
        assert caught.type is error
        assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_network_learns_and_stays_certified(name):
    """Rewards that the reading tells: the Bellman risk of the last layer falls from snapshot to snapshot."""
    where, data = problem("line", nodes=9), random_data(problem("line", nodes=9), count=12, n=12)
    data = TrainingData(data.D, tuple(replace(t, rewards=(t.x[..., 0] > 0.5).double() / 3) for t in data.samples))
    net = make_net(name, where, members=2)
    fresh = copy.deepcopy(net)
    fresh.fit_scales(data.D)
    settings = TrainingSettings(members=2, snapshots=2, steps=80, rounds=1, batch_simulators=8, batch_samples=16)
    trained = fit(net, data, settings, Seed.root(0)).net
    assert float(trained.certify().max()) <= 4.0 * (1 + 1e-6)
    before, after = (
        Ensemble(where, (n,)).evaluator(data.D).bellman_risks(2, data.samples[4], None)[0].mean(1)
        for n in (fresh, trained)
    )
    assert float(after[:2].mean()) < 0.8 * float(before.mean())
    assert float(after[2:].mean()) < 0.5 * float(before.mean())


@pytest.fixture(scope="module")
def mixture_fit():
    """Training on a tiny mixture: (family, held-out theta, D, predictions of `lookup` and `blind`)."""
    family = Mixture(horizon=2)
    seed = Seed.root(0)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 25)
    estimate = DensityEstimator(grid, make_kernel("legendre", 2), (0.3,))
    where = Problem(family.spec, family.graph, grid)

    def draw(purpose, count, n):
        theta = family.prior(count, seed.child(purpose).generator())
        guard = Guard(family.simulators(theta, range(count)), Ledger(), purpose)
        samples = tuple(
            try_actions(guard, path, n, seed.child(purpose, "state", s)) for s, path in enumerate(family.graph.paths)
        )
        return theta, torch.stack([estimate(data.x) for data in samples], 1), samples

    _, D, samples = draw("train", 160, 48)
    settings = TrainingSettings(members=2, snapshots=1, steps=200, rounds=1, batch_simulators=48, batch_samples=8)
    theta, D_new, _ = draw("test", 40, 400)
    x = (torch.arange(3, dtype=torch.float64) + 0.5)[:, None].expand(40, 3, 1)
    found = {}
    for name in ("lookup", "blind"):
        net = net_class(name)(where, 2, torch.Generator().manual_seed(0), lipschitz_bound=3.0, width=16)
        net = fit(net, TrainingData(D, samples), settings, seed.child(name)).net
        conditioned = net.condition(D_new)
        found[name] = torch.stack([net.q(conditioned, h, x) for h in range(2)], 2)  # [F, B, H, J, A]
    return family, theta, found


def test_a_known_problem_is_learned(mixture_fit):
    """Q* of the mixture on held-out thetas, by a network that sees densities; the blind one cannot."""
    family, theta, found = mixture_fit
    Q = family.q_table(theta[:, 0])  # [B, H, J, A]
    error = {name: (q.double() - Q).square().mean((1, 2, 3, 4)).sqrt() for name, q in found.items()}
    spread = float((Q - Q.mean(0)).square().mean().sqrt())  # of what theta does, the blind network's best
    assert float(error["lookup"].mean()) < 0.75 * spread, (error, spread)
    assert float(error["blind"].min()) > 0.9 * spread
    greedy = found["lookup"].argmax(-1)
    regret = (Q.amax(-1) - Q.expand(2, *Q.shape).gather(-1, greedy[..., None]).squeeze(-1)).mean((1, 2, 3))
    lost = (Q.amax(-1) - Q.expand(2, *Q.shape).gather(-1, found["blind"].argmax(-1)[..., None]).squeeze(-1)).mean()
    assert float(regret.mean()) < 0.4 * float(lost)


def test_one_cycle_rises_and_falls_once():
    rates = [one_cycle(step, 50) for step in range(50)]
    assert max(rates) == 1.0 and min(rates) > 0 and rates.index(1.0) == 14
    assert rates[49] == pytest.approx(0.02) and all(a < b for a, b in zip(rates[:14], rates[1:15], strict=True))
    assert all(a >= b for a, b in zip(rates[14:49], rates[15:50], strict=True))


@pytest.mark.parametrize(
    "wrong", [{"members": 0}, {"steps": 0}, {"learning_rate": 0.0}, {"snapshots": 5, "steps": 4}, {"held_out": 1.0}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(SettingError, match=f"expected {next(iter(wrong))}.*; got"):
        TrainingSettings(**wrong)


def test_more_simulators_than_there_are_is_all_of_them():
    where = problem("line")
    settings = TrainingSettings(members=1, snapshots=1, steps=2, batch_simulators=50, batch_samples=50)
    fit(make_net("lookup", where, members=1), random_data(where), settings, Seed.root(0))


def test_a_random_world_of_many_layers():
    """A deeper graph with layers of different sizes, and three actions."""
    world = random_world(5, horizon=4, num_actions=3)
    grid = DensityGrid.uniform(world.spec.low, world.spec.high, 12)
    where = Problem(world.spec, world.graph, grid)
    net = fit(make_net("lookup", where, members=2), random_data(where), TINY, Seed.root(0)).net
    assert net.size == 2 and len(net.steps) == 4


def held_out_fit(steps=20, snapshots=2, net=None, state=None, **callbacks):
    """A fit of two members on 16 simulators, the last two of which no batch uses; a check after every step."""
    where = problem("line", nodes=9)
    data = random_data(where, count=16, n=6)
    settings = replace(TINY, steps=steps, snapshots=snapshots, batch_simulators=5, held_out=0.125)
    net = net or make_net("lookup", where, members=2)
    return fit(net, data, settings, Seed.root(3), state=state, listener=Listener(**callbacks)).net, net, data


def test_held_out_risks_are_of_simulators_that_no_batch_uses(monkeypatch):
    """The risks that are told, of the last layer's rewards, by a loop over samples; other ones there move no weight."""
    where, fits, ends = problem("line", nodes=9), [], []

    class Watched(layer_fit.LayerFit):
        def __init__(self, *given):
            super().__init__(*given)
            fits.append(self)

    monkeypatch.setattr(layer_fit, "LayerFit", Watched)
    settings = replace(TINY, steps=20, batch_simulators=5, held_out=0.125)
    for other in (False, True):
        data = random_data(where, count=16, n=6)
        if other:
            samples = tuple(replace(t, rewards=torch.cat([t.rewards[:14], t.rewards[14:] / 2])) for t in data.samples)
            data = TrainingData(data.D, samples)

        def on_check(done, risks, data=data):
            if done == 7:
                net, D, states = fits[-1].net, data.D[14:].float(), where.graph.states_of(2)
                wanted = torch.zeros(2, dtype=torch.float64)
                looked_at = torch.cat([seen.columns for seen, _ in fits[-1]._held_out])
                for row, columns in enumerate(looked_at.tolist()):
                    for s, i in (divmod(column, 6) for column in columns):
                        sample, one = data.samples[states[s]], D[row : row + 1]
                        x, a = sample.x[14 + row, i][None, None], int(sample.actions[14 + row, i])
                        q = net.raw_q(2, net.standardised(one), net.local(one, 2, x), x)[:, 0, 0, a]
                        wanted += (q - sample.rewards[14 + row, i]).square().detach().double() / 2 / len(columns)
                torch.testing.assert_close(risks, wanted, atol=1e-6, rtol=1e-5)
                ends.append((weights(net)["steps.2.out.weight"], risks))

        fit(make_net("lookup", where, members=2), data, settings, Seed.root(3), listener=Listener(on_check=on_check))
    assert torch.equal(ends[0][0], ends[1][0]) and not torch.equal(ends[0][1], ends[1][1])


def test_snapshots_are_states_of_their_spans():
    """Of every member's own steps, as seen at the checks; spans never share one."""
    seen = {}
    net = make_net("lookup", problem("line", nodes=9), members=2)
    trained, _, _ = held_out_fit(net=net, on_check=lambda done, risks: seen.setdefault(done, weights(net)))
    assert list(seen) == list(range(1, 121))
    for layer, start in ((2, 60), (1, 80), (0, 100)):
        for span, f in product(range(2), range(2)):
            steps = range(start + 10 * span + 1, start + 10 * span + 11)
            kept = {n: v[2 * span + f] for n, v in trained.stacked().items() if n.startswith(f"steps.{layer}.")}
            assert any(all(torch.equal(v, seen[step][n][f]) for n, v in kept.items()) for step in steps)


def test_a_later_state_is_kept_unless_it_is_worse():
    """Against a loop over members: replaced unless worse by two standard errors of the pairs, or not finite."""
    g = torch.Generator().manual_seed(0)
    risks = torch.rand(12, 5, 6, generator=g)  # [steps, F, b]
    risks[3, 0], risks[7, 1], risks[8:, 2] = torch.nan, torch.inf, 5.0
    risks[0, 3] = torch.nan
    snapshots, kept = Snapshots(12, 3), {}
    for step in range(1, 13):
        snapshots.look(step, {"w": torch.full((5, 1), float(step))}, risks[step - 1])
        for f in range(5):
            span = (step - 1) // 4
            if (span, f) in kept:
                before, now = risks[kept[span, f] - 1, f].tolist(), risks[step - 1, f].tolist()
                more = [x - y for x, y in zip(now, before, strict=True)]
                mean = sum(more) / 6
                error = (sum((m - mean) ** 2 for m in more) / 5 / 6) ** 0.5
                if all(map(math.isfinite, before)) and not mean <= 2 * error:
                    continue
            kept[span, f] = step
    for (span, f), step in kept.items():
        assert snapshots.kept[span]["w"][f].item() == step, (span, f)
    assert len({kept[2, f] for f in range(5)}) > 1  # not just the last ones
    assert snapshots.stacked()["w"].flatten().tolist() == [kept[span, f] for span in range(3) for f in range(5)]


def test_one_simulator_has_no_error_bar():
    assert not_worse(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [2.0]])).tolist() == [True, False]


def test_a_member_that_diverges_is_kept_from_before():
    """Its neighbour notices nothing."""
    net, other = (make_net("lookup", problem("line", nodes=9), members=2) for _ in range(2))

    def on_check(done, risks):
        if done == 75:
            net.steps[2].out.bias.data[0] = torch.nan

    trained, _, _ = held_out_fit(snapshots=1, net=net, on_check=on_check)
    whole, _, _ = held_out_fit(snapshots=1, net=other)
    for name, value in trained.stacked().items():
        assert bool(torch.isfinite(value).all()), name
        assert torch.equal(value[1], whole.stacked()[name][1]), name


class StoppedError(Exception):
    """A test stops a fit."""


def stopping_at(step):
    def on_check(done, risks):
        if done == step:
            raise StoppedError

    return on_check


@pytest.mark.parametrize(
    "stops", [(13,), *(pytest.param(some, marks=pytest.mark.slow) for some in ((1, 5), (60, 61, 94), (119, 120)))]
)
def test_a_fit_goes_on_to_the_bit(stops, tmp_path, monkeypatch):
    """StoppedError in the first step, within a span, at the end of a layer, in the last step, and several times."""
    monkeypatch.setattr(work, "SAVE_SECONDS", -1.0)
    whole, _, _ = held_out_fit()
    state, told = tmp_path / "training" / "lookup.safetensors", []
    for stop in stops:
        with pytest.raises(StoppedError):
            held_out_fit(state=state, on_check=stopping_at(stop))
    steps = []
    trained, _, _ = held_out_fit(
        state=state,
        on_step=lambda done, risk: steps.append(done),
        on_check=lambda done, risks: told.append(done),
    )
    assert told == list(range(1, 121)) and steps == [20, 40, 60, 80, 100, 120]  # what came before is told again
    for name, value in whole.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name
    monkeypatch.setattr(trainer, "run_steps", None)  # a finished fit is read, not repeated
    again, _, _ = held_out_fit(state=state)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), whole.state_dict().values(), strict=True))


def test_a_state_of_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "SAVE_SECONDS", -1.0)
    state = tmp_path / "lookup.safetensors"
    with pytest.raises(StoppedError):
        held_out_fit(state=state, on_check=stopping_at(9))
    where, seed = problem("line", nodes=9), Seed.root(3)
    settings = replace(TINY, steps=20, snapshots=2, batch_simulators=5, held_out=0.125)
    data = random_data(where, count=16, n=6)
    for part, net, other in (
        ("settings", make_net("lookup", where, members=2), (data, replace(settings, steps=30), seed)),
        ("seed", make_net("lookup", where, members=2), (data, settings, Seed.root(4))),
        ("data", make_net("lookup", where, members=2), (random_data(where, count=16, n=6, seed=1), settings, seed)),
        ("weights", make_net("lookup", where, members=2, seed=1), (data, settings, seed)),
        ("network", make_net("lookup", where, members=2, x_width=6), (data, settings, seed)),
    ):
        with pytest.raises(CheckpointError, match=f"differs in .*{part}.*another folder"):
            fit(net, *other, state=state)
    whole = state.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a file of tensors"):
        state.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            held_out_fit(state=state)


def planted(regrets, value=0.8):
    """A class of one member with these regrets by layer."""
    return Shortfall(torch.tensor([regrets], dtype=torch.float64), torch.tensor([value], dtype=torch.float64))


def test_the_fewest_layers_are_fitted_again():
    found = planted([0.004, 0.1, 0.0, 0.03])
    assert found.layers_above(0.2) == [] and found.sentence(0.2) == ""
    assert (
        found.layers_above(0.1) == [1] and found.layers_above(0.01) == [3, 1] and found.layers_above(1e-6) == [3, 1, 0]
    )
    assert "at layers 1, 3: the median member loses 16.8%" in found.sentence(0.01)


def test_shortfall_is_the_performance_difference():
    """Against the exact values of both policies by a loop over all paths."""
    world = random_world(3, horizon=4, num_actions=3)
    graph, g = world.graph, torch.Generator().manual_seed(0)
    F, B, n, A = 2, 3, 5, 3
    reward = {h: torch.rand(F, B, len(graph.states_of(h)), n, A, generator=g) / 4 for h in range(4)}
    V, target = torch.zeros(F, B, graph.num_states), {}
    for h in (3, 2, 1, 0):
        states = graph.states_of(h)
        following = V[:, :, graph.next_state[states]] if h < 3 else torch.zeros(F, B, len(states), A)
        target[h] = reward[h] + following[..., None, :]
        V[:, :, states] = target[h].amax(-1).mean(-1)
    said = {h: q + 0.2 * torch.rand(q.shape, generator=g) for h, q in target.items()}
    found = shortfall(graph, lambda h: (said[h], target[h]), V[:, :, 0].mean(1))

    def earned(f, b, h, s):
        row, total = graph.states_of(h).index(s), 0.0
        for i in range(n):
            a = int(said[h][f, b, row, i].argmax())
            later = earned(f, b, h + 1, int(graph.next_state[s, a])) if h < 3 else 0.0
            total += (float(reward[h][f, b, row, i, a]) + later) / n
        return total

    for f in range(F):
        lost = sum(float(V[f, b, 0]) - earned(f, b, 0, 0) for b in range(B)) / B
        assert float(found.regret[f].sum()) == pytest.approx(lost, abs=1e-6) and lost > 1e-3


def test_a_quarter_of_a_batch_is_at_the_most_readings():
    """Counted over many batches; with one level there is no other."""
    draw, generator = Draw(torch.ones(1, 8), 8, (1, 1, 3, 1, 2)), torch.Generator().manual_seed(0)
    seen = torch.cat([draw.some_draws(8, generator) for _ in range(2500)]).bincount(minlength=8).double() / 20_000
    wanted = torch.tensor([4.0, 3.0, 1.0, 1.0, 1.0, 3.0, 1.5, 1.5]) / 16
    assert (seen - wanted).abs().max() < 0.02  # 5 standard deviations
    assert Draw(torch.ones(1, 8), 8, (1,)).some_draws(50, generator).tolist() == [0] * 50


def test_simulators_are_held_out_at_every_level_once():
    """So that a level that was drawn often counts no more than another."""
    draw = Draw(torch.ones(1, 8), 6, (1, 3, 2))
    assert draw.held_out(3).tolist() == [6, 7, 8 + 6, 8 + 7, 32 + 6, 32 + 7] and draw.held_out(1).tolist() == [6, 7]
    assert Draw(torch.ones(1, 2), 2, (1, 2)).held_out(2).tolist() == [0, 1, 2, 3]
