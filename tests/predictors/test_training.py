"""Training by the Bellman risk, backward over layers: against a slow loop, and on a family whose Q* is known."""

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
from s2r_torch.episodes import Guard, Ledger, Transitions, try_actions
from s2r_torch.errors import CheckpointError, SettingError
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.training import fit as training
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import TrainingSettings, fit, one_cycle
from s2r_torch.predictors.training.snapshots import Snapshots, not_worse
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed

TINY = TrainingSettings(
    members=2, snapshots=1, steps=3, batch_simulators=3, batch_samples=2, learning_rate=0.05, bootstrap=True
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


def slow_fit(net, data, settings, seed):
    """The same by loops over members, simulators, states and samples; one optimiser per layer."""
    net.fit_scales(data.D)
    net.fit_readings(data.levels)
    graph, D = net.problem.graph, torch.stack([*data.levels.values()])  # [L, B, xi, G]
    scarcity = [net.scarcity(readings) for readings in data.levels]
    count, n = len(data.D), data.samples[0].x.shape[1]
    uniform = torch.rand(net.size, count, generator=seed.child("bootstrap").generator())
    bootstrap = -uniform.log() if settings.bootstrap else torch.ones(net.size, count)
    V_hat = torch.zeros(net.size, len(D), count, graph.num_states)

    def q(f, k, b, step, x):  # [A]
        one, x = D[k, b : b + 1].float(), x[None, None]
        c = scarcity[k][None]
        return net.raw_q(step, net.standardised(one, c), net.local(one, step, x), x, c)[f, 0, 0]

    for entry, layer in enumerate(range(graph.horizon - 1, -1, -1)):
        optimiser = torch.optim.Adam(net.steps[layer].parameters())
        states = graph.states_of(layer)
        for k in range(settings.steps):
            generator = seed.child("batch", entry * settings.steps + k).generator()
            chosen = torch.randperm(count, generator=generator)[: settings.batch_simulators].tolist()
            picks = (
                torch.rand(len(chosen), len(states), n, generator=generator).topk(settings.batch_samples, -1).indices
            )
            level = torch.randint(len(D), (len(chosen),), generator=generator).tolist()
            loss, terms = 0.0, len(chosen) * len(states) * settings.batch_samples
            for f, (p, b), (j, s) in product(range(net.size), enumerate(chosen), enumerate(states)):
                for i in picks[p, j].tolist():
                    a = int(data.samples[s].actions[b, i])
                    target = float(data.samples[s].rewards[b, i])
                    if layer + 1 < graph.horizon:
                        target += float(V_hat[f, level[p], b, graph.next_state[s, a]])
                    error = q(f, level[p], b, layer, data.samples[s].x[b, i])[a] - target
                    loss = loss + bootstrap[f, b] * error**2 / terms
            optimiser.param_groups[0]["lr"] = settings.learning_rate * one_cycle(k, settings.steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            for f, k, b, s in product(range(net.size), range(len(D)), range(count), states):
                best = [min(max(float(q(f, k, b, layer, x).max()), 0.0), 1.0) for x in data.samples[s].x[b]]
                V_hat[f, k, b, s] = sum(best) / n
    return net


@pytest.mark.parametrize("fewer", [(), (4.0, 20.0)])
@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("name", ["lookup", "mlp"])
def test_training_equals_the_slow_loop(name, bootstrap, fewer):
    where = problem("line", nodes=9)
    data, seed = random_data(where), Seed.root(3)
    data = replace(data, readings=50.0, fewer={n: random_data(where, seed=int(n)).D for n in fewer})
    settings = replace(TINY, bootstrap=bootstrap)
    nets = [make_net(name, where, members=2) for _ in range(3)]
    for net in nets:
        with torch.no_grad():
            net.steps[2].out.bias[1] += 1.2  # values of states outside [0, 1] are clamped
    start, fast, slow = weights(nets[0]), fit(nets[1], data, settings, seed), slow_fit(nets[2], data, settings, seed)
    for (key, got), expected in zip(fast.stacked().items(), slow.stacked().values(), strict=True):
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
        assert float((got - start[key]).abs().max()) > 0.02, key  # Adam moves a weight by about its rate a step


def test_layers_are_fitted_backward_and_frozen_afterwards():
    """Only the layer in training moves; V_hat of a layer never changes once the layer above is fitted."""
    where = problem("line")
    net, moved = make_net("lookup", where, members=2), []
    last = weights(net)

    def on_step(done, total, loss):
        now = weights(net)
        changed = {int(key.split(".")[1]) for key in now if not torch.equal(now[key], last[key])}
        last.update(now)
        moved.append((done, total, changed))
        assert loss >= 0

    settings = TrainingSettings(members=2, snapshots=2, steps=20, batch_simulators=3, batch_samples=2)
    fit(net, random_data(where), settings, Seed.root(0), on_step=on_step)
    assert moved == [(20, 60, {2}), (40, 60, {1}), (60, 60, {0})]


def test_snapshots_are_the_weights_at_the_stated_steps():
    """Steps round(steps (k + 1) / snapshots) of every layer; members x snapshots, the last block final."""
    where, data = problem("line"), random_data(problem("line"))
    settings = TrainingSettings(members=2, snapshots=3, steps=40, batch_simulators=3, batch_samples=2)
    seen = {}
    net = make_net("lookup", where, members=2)

    def on_step(done, total, loss):
        layer, within = 2 - (done - 1) // 40, (done - 1) % 40 + 1
        seen[layer, within] = {k: v for k, v in weights(net).items() if k.startswith(f"steps.{layer}.")}

    trained = fit(net, data, settings, Seed.root(1), on_step=on_step)
    assert trained.size == 6 and not any(p.requires_grad for p in trained.parameters())
    stacked = trained.stacked()
    for layer in range(3):
        for name, final in seen[layer, 40].items():
            assert torch.equal(stacked[name][4:], final), name
            middle = stacked[name]
            assert not torch.equal(middle[:2], middle[2:4]) and not torch.equal(middle[2:4], middle[4:])
    two = fit(make_net("lookup", where, members=2), data, replace(settings, snapshots=2), Seed.root(1))
    for layer in range(3):
        for name, halfway in seen[layer, 20].items():
            assert torch.equal(two.stacked()[name][:2], halfway), name


def test_stacked_members_equal_separate_ones():
    """A stack is a way to compute: every member is what it would be alone, apart from the order of sums."""
    where, data, seed = problem("line"), random_data(problem("line"), count=8), Seed.root(5)
    settings = TrainingSettings(members=3, snapshots=1, steps=10, batch_simulators=4, batch_samples=3, bootstrap=False)
    start = make_net("lookup", where, members=3)
    alone = [fit(start.subset([f]).requires_grad_(True), data, settings, seed) for f in range(3)]
    together = fit(start, data, settings, seed).stacked()
    for f, single in enumerate(alone):
        for name, value in single.stacked().items():
            torch.testing.assert_close(value[0], together[name][f], atol=1e-5, rtol=0)


def test_same_seed_same_bits_and_members_are_distinct():
    where, data = problem("line"), random_data(problem("line"))
    one, two, other = (fit(make_net("lookup", where, members=2), data, TINY, Seed.root(s)) for s in (0, 0, 1))
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
        weight = fit(twins, data, settings, Seed.root(0)).stacked()["steps.1.out.weight"]
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

        def on_step(done, total, loss, error=error):
            raise error

        with pytest.raises(error) as caught:
            fit(make_net("lookup", where, members=2), random_data(where), settings, Seed.root(0), on_step=on_step)
        assert caught.type is error
        assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("name", names())
def test_every_network_learns_and_stays_certified(name):
    """Rewards that the reading tells: the Bellman risk of the last layer falls from snapshot to snapshot."""
    where, data = problem("line", nodes=9), random_data(problem("line", nodes=9), count=12, n=12)
    data = TrainingData(data.D, tuple(replace(t, rewards=(t.x[..., 0] > 0.5).double() / 3) for t in data.samples))
    net = make_net(name, where, members=2)
    fresh = copy.deepcopy(net)
    fresh.fit_scales(data.D)
    settings = TrainingSettings(members=2, snapshots=2, steps=40, batch_simulators=8, batch_samples=4)
    trained = fit(net, data, settings, Seed.root(0))
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
    settings = TrainingSettings(members=2, snapshots=1, steps=200, batch_simulators=48, batch_samples=8)
    theta, D_new, _ = draw("test", 40, 400)
    x = (torch.arange(3, dtype=torch.float64) + 0.5)[:, None].expand(40, 3, 1)
    found = {}
    for name in ("lookup", "blind"):
        net = net_class(name)(where, 2, torch.Generator().manual_seed(0), lipschitz_bound=3.0, width=16)
        net = fit(net, TrainingData(D, samples), settings, seed.child(name))
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


def test_one_cycle_restarts_with_every_layer():
    rates = [one_cycle(step, 50) for step in range(150)]
    assert rates[:50] == rates[50:100] == rates[100:]
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
    net = fit(make_net("lookup", where, members=2), random_data(where), TINY, Seed.root(0))
    assert net.size == 2 and len(net.steps) == 4


def held_out_fit(steps=20, snapshots=2, net=None, **callbacks):
    """A fit of two members on 16 simulators, the last two of which no batch uses; a check after every step."""
    where = problem("line", nodes=9)
    data = random_data(where, count=16, n=6)
    settings = replace(TINY, steps=steps, snapshots=snapshots, batch_simulators=5, held_out=0.125)
    net = net or make_net("lookup", where, members=2)
    return fit(net, data, settings, Seed.root(3), **callbacks), net, data


def test_held_out_risks_are_of_simulators_that_no_batch_uses():
    """The risks that are told, of the last layer, by a loop over samples; other rewards there move no weight."""
    where, told = problem("line", nodes=9), {}
    net = make_net("lookup", where, members=2)
    data = random_data(where, count=16, n=6)

    def on_check(done, risks):
        if done == 7:
            told["got"] = risks
            D, squares = data.D[14:].float(), []
            for s in where.graph.states_of(2):
                q = net.raw_q(2, net.standardised(D), net.local(D, 2, data.samples[s].x[14:]), data.samples[s].x[14:])
                taken = q.gather(-1, data.samples[s].actions[14:].expand(q.shape[:-1])[..., None]).squeeze(-1)
                squares.append((taken - data.samples[s].rewards[14:]).square().mean((1, 2)))
            told["wanted"] = torch.stack(squares).mean(0).detach().double()
        told["last"] = {name: value for name, value in weights(net).items() if name.startswith("steps.2.")}
        if done == 20:
            raise ZeroDivisionError

    ends = []
    for other in (False, True):
        net = make_net("lookup", where, members=2)
        if other:
            samples = tuple(replace(t, rewards=torch.cat([t.rewards[:14], t.rewards[14:] / 2])) for t in data.samples)
            data = TrainingData(data.D, samples)
        with pytest.raises(ZeroDivisionError):
            fit(net, data, replace(TINY, steps=20, batch_simulators=5, held_out=0.125), Seed.root(3), on_check=on_check)
        torch.testing.assert_close(told["got"], told["wanted"], atol=1e-6, rtol=1e-5)
        ends.append((told["last"], told["got"]))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0].values(), ends[1][0].values(), strict=True))
    assert not torch.equal(ends[0][1], ends[1][1])


def test_snapshots_are_states_of_their_spans():
    """Of every member's own steps, as seen at the checks; spans never share one."""
    seen = {}
    net = make_net("lookup", problem("line", nodes=9), members=2)
    trained, _, _ = held_out_fit(net=net, on_check=lambda done, risks: seen.setdefault(done, weights(net)))
    assert list(seen) == list(range(1, 61))
    for layer, start in ((2, 0), (1, 20), (0, 40)):
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
    """Its neighbour notices nothing, and the layers above learn from the state that was kept."""
    net, other = (make_net("lookup", problem("line", nodes=9), members=2) for _ in range(2))

    def on_check(done, risks):
        if done == 15:
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


@pytest.mark.parametrize("stops", [(1, 5), (13,), (20, 21, 34), (59, 60)])
def test_a_fit_goes_on_to_the_bit(stops, tmp_path, monkeypatch):
    """StoppedError in the first step, within a span, at the end of a layer, in the last step, and several times."""
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
    whole, _, _ = held_out_fit()
    state, told = tmp_path / "training" / "lookup.safetensors", []
    for stop in stops:
        with pytest.raises(StoppedError):
            held_out_fit(state=state, on_check=stopping_at(stop))
    steps = []
    trained, _, _ = held_out_fit(
        state=state,
        on_step=lambda done, total, risk: steps.append(done),
        on_check=lambda done, risks: told.append(done),
    )
    assert told == list(range(1, 61)) and steps == [20, 40, 60]  # what came before is told again
    for name, value in whole.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name
    monkeypatch.setattr(training, "run_steps", None)  # a finished fit is read, not repeated
    again, _, _ = held_out_fit(state=state)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), whole.state_dict().values(), strict=True))


def test_a_state_of_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
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
