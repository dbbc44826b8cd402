"""The class F conditioned on densities: reductions against loops over members, simulators and samples."""

import math

import pytest
import torch
from support.attacks import make_net, problem, readings
from support.worlds import TabularPredictors, class_of, estimator_of, random_class, random_world

from s2r_torch.episodes import Transitions
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.predictors import ensemble as ensemble_module
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.architectures import LookupNet, MLPNet

WORLD = random_world(3, horizon=3, num_actions=3)
THETA = (-0.8, 0.1, 0.9, 0.4)
B, N, STEP = len(THETA), 11, 1


def mixed_class():
    """Tables, two stacks of networks of different widths, another architecture: F = 5 + 3 + 2 + 1."""
    tables = random_class(WORLD, 5, seed=0)
    g = torch.Generator().manual_seed(0)
    nets = (
        LookupNet(tables.problem, 3, g, width=8),
        MLPNet(tables.problem, 2, g, width=4),
        LookupNet(tables.problem, 1, g, width=16, depth=3),
    )
    for net in nets:
        net.fit_scales(densities())
    return Ensemble(tables.problem, (tables.groups[0], *nets))


def densities():
    g = torch.Generator().manual_seed(1)
    spec = WORLD.spec
    x = torch.rand(B, WORLD.graph.num_states, 60, 1, generator=g, dtype=torch.float64) * spec.high[0]
    return estimator_of(WORLD)(x)


def transitions(n=N, seed=2):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(B, n, 1, generator=g, dtype=torch.float64) * WORLD.spec.high[0]
    actions = torch.randint(3, (B, n), generator=g)
    return Transitions(x, actions, torch.rand(B, n, generator=g, dtype=torch.float64) / 3)


def one_by_one(ensemble, D, step, x):
    """q[f][b][i] = [A] by single evaluations of single members."""
    singles = [group.subset([m]) for group in ensemble.groups for m in range(group.size)]
    table = []
    for member in singles:
        rows = []
        for b in range(len(D)):
            conditioned = member.condition(D[b : b + 1])
            rows.append([member.q(conditioned, step, x[b : b + 1, i : i + 1])[0, 0, 0].tolist() for i in range(N)])
        table.append(rows)
    return table


@pytest.fixture(scope="module")
def scene():
    """(ensemble, D, data, V_next, table of single evaluations)."""
    ensemble, D, data = mixed_class(), densities(), transitions()
    V_next = torch.rand(ensemble.size, B, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return ensemble, D, data, V_next, one_by_one(ensemble, D, STEP, data.x)


def naive(scene, f, b, successors=True):
    """(risk, V_hat, earned, h) of one member on one simulator; what is earned later is V_next, too."""
    _, _, data, V_next, table = scene
    squares, greedy, earned, h = [], [], [], []
    for i in range(N):
        a, r = int(data.actions[b, i]), float(data.rewards[b, i])
        h.append(table[f][b][i][a] - (float(V_next[f, b, a]) if successors else 0.0))
        squares.append((h[-1] - r) ** 2)
        greedy.append(max(table[f][b][i]))
        best = table[f][b][i].index(greedy[-1])
        later = float(V_next[f, b, best]) if successors else 0.0
        earned.append(len(table[f][b][i]) * (r if a == best else 0.0) + later)
    return sum(squares) / N, sum(greedy) / N, sum(earned) / N, h


@pytest.mark.parametrize("chunk", [None, 1, 40, 1000])
@pytest.mark.parametrize("successors", [True, False])
def test_reductions_equal_loops_whatever_the_chunk(scene, chunk, successors, monkeypatch):
    if chunk:
        monkeypatch.setattr(ensemble_module, "CHUNK", chunk)
    ensemble, D, data, V_next, _ = scene
    evaluator = ensemble.evaluator(D)
    following = V_next if successors else None
    risks, V_hat, earned = evaluator.bellman_risks(STEP, data, following, following)
    values = evaluator.greedy_values(STEP, data.x)
    distances = evaluator.distances(STEP, data, V_next if successors else None)
    assert risks.shape == V_hat.shape == values.shape == (11, B)
    assert risks.dtype == values.dtype == torch.float64 and distances.shape == (11, 11, B)
    for b in range(B):
        rows = [naive(scene, f, b, successors) for f in range(11)]
        for f, (risk, value, income, h) in enumerate(rows):
            assert float(earned[f, b]) == pytest.approx(income, abs=1e-6)
            assert float(risks[f, b]) == pytest.approx(risk, abs=2e-6)
            assert float(V_hat[f, b]) == pytest.approx(value, abs=1e-6)
            assert float(values[f, b]) == pytest.approx(value, abs=1e-6)
            for g, (*_, other) in enumerate(rows):
                gap = math.sqrt(sum((u - v) ** 2 for u, v in zip(h, other, strict=True)) / N)
                assert float(distances[f, g, b]) == pytest.approx(gap, abs=2e-6)


def test_memory_is_bounded_by_the_chunk(scene, monkeypatch):
    """No group ever sees more than CHUNK (member, sample) pairs, however many members and simulators there are."""
    monkeypatch.setattr(ensemble_module, "CHUNK", 6)
    ensemble, D, data, V_next, _ = scene
    seen = []

    class Spy:
        def __init__(self, group):
            self.group, self.size = group, group.size

        def condition(self, D, readings=None):
            return self.group.condition(D, readings)

        def q(self, conditioned, step, x):
            q = self.group.q(conditioned, step, x)
            seen.append(q[..., 0].numel())
            return q

        def subset(self, members):
            return Spy(self.group.subset(members))

        def lipschitz_bound(self):
            return self.group.lipschitz_bound()

    spied = Ensemble(ensemble.problem, tuple(Spy(group) for group in ensemble.groups)).evaluator(D)
    spied.bellman_risks(STEP, data, V_next)
    spied.greedy_values(STEP, data.x)
    spied.distances(STEP, data, V_next)
    assert seen and max(seen) <= 6


def test_q_by_global_index(scene):
    ensemble, D, data, _, table = scene
    evaluator = ensemble.evaluator(D)
    for f in range(11):
        q = evaluator.q_of(f, STEP, data.x)
        torch.testing.assert_close(q.double(), torch.tensor(table[f], dtype=torch.float64), atol=2e-6, rtol=0)
    for wrong in (11, -1):
        with pytest.raises(SettingError, match="member"):
            evaluator.q_of(wrong, STEP, data.x)


def test_keep_drops_members_for_good_and_leaves_nan(scene):
    ensemble, D, data, V_next, _ = scene
    evaluator = ensemble.evaluator(D)
    full, *_ = evaluator.bellman_risks(STEP, data, V_next)
    alive = torch.ones(11, dtype=torch.bool)
    assert evaluator.keep(alive) is evaluator
    alive[[0, 5, 6, 7, 9]] = False  # of every group, one whole group included
    kept = evaluator.keep(alive)
    assert kept.size == 11 and evaluator.holds(alive) and kept.holds(alive)
    damaged = V_next.clone()
    damaged[~alive] = torch.nan  # successors of eliminated members are NaN, and must not matter
    risks, V_hat, _ = kept.bellman_risks(STEP, data, damaged)
    values = kept.greedy_values(STEP, data.x)
    torch.testing.assert_close(risks[alive], full[alive], atol=1e-7, rtol=0)
    for result in (risks, V_hat, values):
        assert result.shape == (11, B) and bool((torch.isnan(result).all(1) == ~alive).all())
    everything = evaluator.distances(STEP, data, V_next)
    torch.testing.assert_close(kept.distances(STEP, data, damaged), everything[alive][:, alive], atol=1e-6, rtol=0)
    torch.testing.assert_close(kept.q_of(10, STEP, data.x), evaluator.q_of(10, STEP, data.x), atol=1e-6, rtol=0)
    with pytest.raises(SettingError, match="member 0"):
        kept.q_of(0, STEP, data.x)
    alive[10] = False
    again = kept.keep(alive)
    assert not again.holds(torch.ones(11, dtype=torch.bool)) and kept.holds(alive)
    torch.testing.assert_close(again.bellman_risks(STEP, data, V_next)[0][alive], full[alive], atol=1e-7, rtol=0)
    with pytest.raises(SettingError, match="predictor"):
        kept.keep(torch.zeros(11, dtype=torch.bool))


def test_one_nan_risk_is_an_error_not_an_empty_class(scene):
    """NaN compares as False with every threshold: a single one would eliminate everything."""
    ensemble, D, data, V_next, _ = scene
    evaluator = ensemble.evaluator(D)
    bad = V_next.clone()
    bad[4, 1, :] = torch.nan
    with pytest.raises(ObservationError, match=f"{1} of {11 * B} not finite"):
        evaluator.bellman_risks(STEP, data, bad)
    rewards = data.rewards.clone()
    rewards[2, 0] = torch.inf
    with pytest.raises(ObservationError, match="not finite"):
        evaluator.bellman_risks(STEP, Transitions(data.x, data.actions, rewards), V_next)


def test_members_conditioned_once_give_the_same_at_every_call(scene):
    ensemble, D, data, V_next, _ = scene
    evaluator = ensemble.evaluator(D)
    first = evaluator.bellman_risks(STEP, data, V_next)[0]
    evaluator.greedy_values(2, data.x)
    assert torch.equal(evaluator.bellman_risks(STEP, data, V_next)[0], first)


def test_sums_are_in_float64():
    """A running sum of float32 values would drift."""

    class Rounded(TabularPredictors):
        def q(self, conditioned, step, x):
            return super().q(conditioned, step, x).float()

    inner = class_of(WORLD, torch.full((1, 3, 2 * WORLD.spec.max_states_per_layer, 3), 0.1, dtype=torch.float64))
    group = inner.groups[0]
    ensemble = Ensemble(inner.problem, (Rounded(group.tables, group.gains, group.functional),))
    data = transitions(200_000)
    value = ensemble.evaluator(densities()).greedy_values(STEP, data.x)
    assert value[0].tolist() == pytest.approx([float(torch.tensor(0.1))] * B, abs=1e-13)


def test_subset_and_bounds_follow_the_global_index(scene):
    ensemble, D, data, _, _ = scene
    bounds = ensemble.lipschitz_bound()
    assert bounds.shape == (11,) and bounds.dtype == torch.float64
    some = ensemble.subset([9, 1, 6])
    assert some.size == 3 and some.exact == ensemble.exact
    assert torch.equal(some.lipschitz_bound(), bounds[[1, 6, 9]])
    for position, member in enumerate((1, 6, 9)):
        torch.testing.assert_close(
            some.evaluator(D).q_of(position, STEP, data.x),
            ensemble.evaluator(D).q_of(member, STEP, data.x),
            atol=1e-6,
            rtol=0,
        )


def test_an_empty_class_is_an_error(scene):
    ensemble = scene[0]
    for nothing in (lambda: Ensemble(ensemble.problem, ()), lambda: ensemble.subset([])):
        with pytest.raises(SettingError, match="at least one predictor"):
            nothing()


def test_two_dimensions_and_one_step():
    for kind in ("plane", "single"):
        where = problem(kind)
        net, g = make_net("lookup", where, members=2), torch.Generator().manual_seed(0)
        D = torch.rand(3, where.graph.num_states, where.grid.num_points, generator=g, dtype=torch.float64)
        x = readings(where, (3, 5), g)
        values = Ensemble(where, (net,)).evaluator(D).greedy_values(0, x)
        expected = net.q(net.condition(D), 0, x).amax(-1).double().mean(-1)
        torch.testing.assert_close(values, expected, atol=1e-7, rtol=0)
