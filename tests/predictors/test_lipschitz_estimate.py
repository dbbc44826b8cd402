"""The pairwise estimate of C_L: against loops, against a known slope, and under noise alone."""

import math

import pytest
import torch
from support.attacks import bumps, make_net, problem, readings

from s2r_torch.episodes import Transitions
from s2r_torch.errors import SettingError
from s2r_torch.predictors.nets import lipschitz_estimate
from s2r_torch.predictors.nets.lipschitz_estimate import mean_values, pairwise_lipschitz
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import TrainingSettings, fit
from s2r_torch.rng import Seed

WHERE = problem("line")


def transitions(count, n, seed, mean):
    """Bernoulli rewards / 3 with mean(b, s, a) / 3 at every state."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for s in range(WHERE.graph.num_states):
        actions = torch.randint(2, (count, n), generator=g)
        probability = torch.tensor([[mean(b, s, a) for a in range(2)] for b in range(count)], dtype=torch.float64)
        u = torch.rand(count, n, generator=g, dtype=torch.float64)
        rewards = (u < probability.gather(1, actions)).double() / 3
        data.append(Transitions(readings(WHERE, (count, n), g), actions, rewards))
    return tuple(data)


def test_mean_values_against_loops():
    data = transitions(3, 12, 0, lambda b, s, a: 0.3 + 0.1 * a + 0.1 * b)
    Q, variance = mean_values(data, WHERE.graph)
    graph = WHERE.graph
    for b in range(3):
        V, error = {}, {}
        for s in (4, 2, 3, 1, 0):  # last layer first
            for a in range(2):
                r = [float(v) for v, taken in zip(data[s].rewards[b], data[s].actions[b], strict=True) if taken == a]
                mean = sum(r) / len(r)
                square = sum((v - mean) ** 2 for v in r) / (len(r) - 1) / len(r)
                following = int(graph.next_state[s, a])
                if following >= 0:
                    mean, square = mean + V[following], square + error[following]
                assert float(Q[b, s, a]) == pytest.approx(mean, abs=1e-12)
                assert float(variance[b, s, a]) == pytest.approx(square, abs=1e-12)
            best = int(Q[b, s].argmax())
            V[s], error[s] = float(Q[b, s, best]), float(variance[b, s, best])


def test_estimate_against_loops():
    g = torch.Generator().manual_seed(0)
    data, D = transitions(5, 12, 0, lambda b, s, a: 0.2 * b), bumps(WHERE, 5, g)
    found = pairwise_lipschitz(D, data, WHERE.graph)
    Q, variance = mean_values(data, WHERE.graph)
    raw = significant = 0.0
    for b in range(5):
        for c in range(b):
            distance = float((D[b] - D[c]).abs().max())
            for s in range(5):
                for a in range(2):
                    gap = abs(float(Q[b, s, a] - Q[c, s, a]))
                    noise = lipschitz_estimate.Z_SCORE * math.sqrt(float(variance[b, s, a] + variance[c, s, a]))
                    raw, significant = max(raw, gap / distance), max(significant, (gap - noise) / distance)
    assert found.pairs == 10
    assert found.largest == pytest.approx(raw, rel=1e-5)
    assert found.significant == pytest.approx(max(0.0, significant), rel=1e-4)


def test_a_known_slope_is_found_and_noise_alone_is_not():
    """theta moves the height of the densities by 1 and the last layer's value by 1/3, the root's by 1: slope 1."""
    count, n = 40, 4000
    theta = torch.linspace(0, 1, count, dtype=torch.float64)
    D = theta[:, None, None].expand(count, 5, 27)
    found = pairwise_lipschitz(D, transitions(count, n, 1, lambda b, s, a: float(theta[b])), WHERE.graph)
    assert 0.85 < found.significant <= 1.0 < found.largest
    flat = pairwise_lipschitz(D, transitions(count, n, 2, lambda b, s, a: 0.5), WHERE.graph)
    assert flat.significant == 0.0 < flat.largest


def test_an_action_never_tried_does_not_matter():
    data = list(transitions(4, 6, 3, lambda b, s, a: 0.5))
    data[3] = Transitions(data[3].x, torch.zeros_like(data[3].actions), data[3].rewards)
    found = pairwise_lipschitz(bumps(WHERE, 4, torch.Generator().manual_seed(0)), tuple(data), WHERE.graph)
    assert math.isfinite(found.largest) and math.isfinite(found.significant)


def test_simulators_that_do_not_differ_are_an_error():
    data = transitions(3, 6, 4, lambda b, s, a: 0.5)
    for D in (torch.ones(3, 5, 27), torch.ones(1, 5, 27)):
        with pytest.raises(SettingError, match="auto"):
            pairwise_lipschitz(D, data, WHERE.graph)


def test_auto_is_a_multiple_of_the_estimate_and_is_stored():
    count = 6
    D = bumps(WHERE, count, torch.Generator().manual_seed(0))
    data = TrainingData(D, transitions(count, 20, 5, lambda b, s, a: b / count))
    estimate = pairwise_lipschitz(D, data.samples, WHERE.graph)
    settings = TrainingSettings(members=2, snapshots=1, steps=4, batch_simulators=4, batch_samples=2)
    for name in ("lookup", "cones"):
        net = make_net(name, WHERE, members=2, lipschitz_bound="auto")
        assert net.settings()["lipschitz_bound"] == "auto"
        trained = fit(net, data, settings, Seed.root(0)).net
        wanted = net.bound_factor * (estimate.significant or estimate.largest)
        assert trained.declared_bound == trained.settings()["lipschitz_bound"] == pytest.approx(wanted)
        assert trained.estimate == estimate and trained.subset([0]).estimate == estimate
        assert float(trained.certify().max()) <= wanted * (1 + 1e-6)
    with pytest.raises(SettingError, match="or one of auto or null; got 'sometimes'"):
        make_net("lookup", WHERE, lipschitz_bound="sometimes")
