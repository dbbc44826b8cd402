"""Algorithm 7 against its loop-for-loop oracle: what it asks of a world, and what it never touches."""

import itertools
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from support.worlds import Tabular, estimator_of, naive_predictors, policy_of, random_class, random_world

from s2r_torch.base import UnlabelledWorld
from s2r_torch.deployment.deploy import deploy
from s2r_torch.episodes import Ledger, try_actions
from s2r_torch.errors import ObservationError, SettingError, SimulatorError
from s2r_torch.rng import Seed


@pytest.mark.parametrize(("horizon", "num_actions"), [*itertools.product((1, 2, 3, 4), (2, 3))])
def test_agrees_with_the_naive_algorithm(horizon, num_actions):
    world = random_world(horizon + 7 * num_actions, horizon, num_actions)
    graph, ensemble = world.graph, random_class(world, 4, horizon)
    meta, ledger = policy_of(world, ensemble, chosen=1), Ledger()
    deployed = deploy(meta, world.world(0.4, seed=3), ledger)
    assert deployed.episodes == len(meta.cover) * meta.n_real and ledger.counts == {"real": deployed.episodes}

    again = world.world(0.4, seed=3)

    def draw(actions):
        seen = [again.reset(meta.n_real)]
        for a in actions:
            seen.append(again.step(torch.full((meta.n_real,), a)))
        return [x[:, 0].numpy() for x in seen]

    estimator = estimator_of(world)
    nodes, h = estimator.grid.nodes[:, 0].numpy(), estimator.bandwidth[0]
    D_real = naive.deploy(
        meta.cover,
        state_of=graph.end,
        num_states=graph.num_states,
        draw=draw,
        estimate=lambda x: naive.kde(x, nodes, h, 2),
    )
    assert np.allclose(deployed.D_real.numpy(), D_real, atol=1e-12)

    f = naive_predictors(ensemble, deployed.D_real[None])[1]
    for step in range(horizon):
        x = torch.linspace(0.1, world.spec.high[0] - 0.1, 30, dtype=torch.float64)[:, None]
        expected = [naive.greedy(f(0, step, float(v))) for v in x[:, 0]]
        assert deployed.policy.act(step, x).tolist() == expected


class Sealed:
    """A world whose every attribute beyond the protocol raises, and which draws nothing but observations."""

    def __init__(self, inner):
        self._inner, self.spec = inner, inner.spec

    def reset(self, n):
        return self._inner.reset(n)

    def step(self, actions):
        return self._inner.step(actions)

    episodes_at_once = None

    def __getattr__(self, name):
        raise AssertionError(f"reality was asked for its {name}")


class Unpaid(Tabular):
    """A world whose rewards raise when anything computes them."""

    def mean_reward(self, theta, state, x, actions):
        raise AssertionError("a reward was touched in reality")


WORLD = random_world(5, 4, 2)
CLASS = random_class(WORLD, 3, 0)


def test_reality_has_no_reward():
    unpaid = Unpaid(WORLD.graph, WORLD.number, WORLD.rewards, WORLD.tilt)
    world = Sealed(unpaid.world(0.2, seed=0))
    assert isinstance(world, UnlabelledWorld) and "reward" not in vars(world)
    with pytest.raises(AssertionError, match="asked for its reward"):
        _ = world.reward
    deployed = deploy(policy_of(WORLD, CLASS), world)
    x, step = world.reset(6), 0
    while step < 3:
        x, step = world.step(deployed.policy.act(step, x)), step + 1
    assert deployed.policy.act(3, x).shape == (6,)
    with pytest.raises(SimulatorError, match="a reward was touched"):
        try_actions(unpaid.guard([0.2]), (), 5, Seed.root(0))  # as a simulator the same world would have told


def test_the_cover_is_cheaper_than_a_visit_to_every_state():
    meta = policy_of(WORLD, CLASS)
    ledger = Ledger()
    deploy(meta, WORLD.world(0.1, 0), ledger)
    width, xi = max(WORLD.graph.states_per_layer), WORLD.graph.num_states
    assert width * meta.n_real <= ledger.counts["real"] == len(meta.cover) * meta.n_real < xi * meta.n_real


def test_samples_of_different_states_come_from_the_world_as_it_is():
    """Each state's estimate has all its mass where that state shows itself (theory.md 3.1, claim 2)."""
    deployed, grid = deploy(policy_of(WORLD, CLASS), WORLD.world(0.0, 0)), estimator_of(WORLD).grid
    for s in range(WORLD.graph.num_states):
        away = (grid.nodes[:, 0] - WORLD.number[s] - 0.5).abs() > 0.75
        assert deployed.D_real[s].max() > 1 and deployed.D_real[s][away].abs().max() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"num_actions": 3},
        {"horizon": 5},
        {"obs_names": ("metres",)},
        {"obs_dim": 2, "low": (0.0, 0.0), "high": (3.0, 3.0), "obs_names": ("x_1", "x_2")},
    ],
)
def test_a_world_of_another_problem_is_refused_before_any_episode(change):
    world, ledger = Sealed(WORLD.world(0.1, 0)), Ledger()
    world.spec = replace(world.spec, **change)
    with pytest.raises(SettingError, match=f"a world with {next(iter(change))} = "):
        deploy(policy_of(WORLD, CLASS), world, ledger)
    assert ledger.counts == {}


def spoiled(spoil):
    world = Sealed(WORLD.world(0.1, 0))
    inner = world._inner
    world.step = lambda actions: spoil(inner.step(actions))
    return world


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda x: x.masked_fill(x == x.max(), torch.nan), ObservationError, "NaN or inf from the world"),
        (lambda x: x + 10, ObservationError, "off the grid"),
        (lambda x: x[:, [0, 0]], ObservationError, r"shape \[80, 1\]"),
        (lambda x: x[:-1], ObservationError, r"shape \[80, 1\]"),
        (lambda x: x * 0 + 0.5, ObservationError, "stuck sensor"),
        (lambda x: 1 // 0, SimulatorError, "ZeroDivisionError"),
        (lambda x: x.to("meta"), ObservationError, "a float32 or float64 tensor; got torch.float64 on meta"),
    ],
)
def test_what_a_world_shows_is_checked(spoil, error, message):
    with pytest.raises(error, match=message):
        deploy(policy_of(WORLD, CLASS), spoiled(spoil))


def test_a_cover_that_misses_a_state():
    meta = policy_of(WORLD, CLASS)
    with pytest.raises(SettingError, match="sequences of .* actions that visit all .* states"):
        deploy(replace(meta, cover=meta.cover[:1]), WORLD.world(0.1, 0))
