"""The Gymnasium adapter: replays against real episodes, another public environment, and every refusal."""

import gymnasium
import numpy as np
import pytest
import torch

from s2r_torch.base import Simulators, UnlabelledWorld
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.episodes import Guard, Ledger, observe, rollout
from s2r_torch.errors import GraphMismatchError, RewardError, SettingError, SimulatorError
from s2r_torch.families import exact
from s2r_torch.families.frozenlake import MAP, FrozenLake
from s2r_torch.families.gym.family import GymFamily, make_env, plain_reward
from s2r_torch.families.noise import bump_draws, product_nodes
from s2r_torch.rng import Seed


class Offset:
    """Latent numbers plus theta[0] plus a little noise."""

    def __init__(self, size, reach=60.0):
        self.low, self.high = (-reach,) * size, (reach,) * size
        self.names = tuple(f"number_{i}" for i in range(size))

    def read(self, theta, latent, generators):
        noise = bump_draws(latent[0].numel(), 2, generators).reshape(latent.shape)
        return latent + theta[:, None, :1] + 0.2 * noise

    def quadrature(self, theta, latent):
        nodes, weights = product_nodes(3, 2, latent.shape[-1])
        x = latent[None, :, None] + theta[:, None, None, :1] + 0.2 * nodes
        return x, weights.expand(x.shape[:3])


class Walk(gymnasium.Env):
    """A walk on 0 .. 4 with actions named 1 (left) and 2 (right), which ends at 4 with reward 1; faults on request."""

    def __init__(self, fault="", cost=0.0):
        self.action_space = gymnasium.spaces.Discrete(2, start=1)
        self.observation_space = gymnasium.spaces.Box(-9, 9, (1,))
        self.fault, self.cost, self.resets, self.taken = fault, cost, 0, 0

    def _seen(self):
        return np.array([self.place], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets, self.taken, self.place = self.resets + 1, 0, 0
        if self.fault == "start":
            self.place = np.random.default_rng().normal()
        return self._seen(), {}

    def step(self, action):
        assert type(action) is int and action in (1, 2)
        self.taken += 1
        self.place = max(0, self.place + 2 * action - 3)
        if self.fault == "slip" and self.np_random.random() < 0.5:
            self.place = 0
        if self.fault == "memory" and self.resets > 1 and self.taken > 2:
            self.place = 0
        reward = np.array([1 if self.place == 4 else 0], dtype=np.int16)
        if self.fault == "vector":
            reward = np.zeros(2)
        return self._seen(), reward - self.cost, self.place == 4, self.fault == "limit" and self.taken == 3, {}


def walk_family(fault="", *, make=None, theta_names=("offset",), **changes):
    settings = {
        "name": "walk",
        "make": make or (lambda theta: Walk(fault)),
        "prior": lambda n, g: torch.rand(n, 1, generator=g, dtype=torch.float64),
        "theta_names": theta_names,
        "sensor": Offset(1),
        "horizon": 5,
        "max_states_per_layer": 5,
    }
    return GymFamily(**(settings | changes))


def guarded(family, n=3, seed=0):
    theta = family.prior(n, Seed.root(seed).generator())
    return theta, Guard(family.simulators(theta, range(n)), Ledger(), "test")


def random_actions(num_actions):
    return lambda step, x: torch.randint(num_actions, x.shape[:2], generator=Seed.root(step).generator())


def cliff_family(**changes):
    """Gymnasium's CliffWalking with a sparse goal reward instead of its costs."""
    settings = {
        "name": "cliff",
        "make": lambda theta: make_env("CliffWalking-v1"),
        "prior": lambda n, g: torch.rand(n, 1, generator=g, dtype=torch.float64),
        "theta_names": ("offset",),
        "sensor": Offset(2),
        "horizon": 14,
        "max_states_per_layer": 48,
        "latent": lambda env, observation: divmod(int(observation), 12),
        "reward": lambda theta, moves: ((moves.following[..., 0] == 3) & (moves.following[..., 1] == 11)).double(),
    }
    return GymFamily(**(settings | changes))


def test_another_public_environment():
    """CliffWalking: worlds.md says its layers, and that thirteen fixed moves are optimal."""
    family = cliff_family()
    theta, simulators = guarded(family)
    truth = family.truth(theta)
    assert truth.graph.states_per_layer[:4] == [1, 2, 4, 7] and truth.graph.states_per_layer[-1] == 37
    path, value = exact.open_loop(truth)
    assert value == 1.0 and path[:12] == (0,) + (1,) * 11 and 2 in path[12:]
    assert exact.optimal(truth)[0][:, 0].tolist() == [1.0] * 3
    runs = rollout(simulators, lambda step, x: torch.full(x.shape[:2], path[step]), 5, Seed.root(0))
    assert bool((runs.returns == 1).all())
    assert (runs.x[0, 0, 1] - theta[0]).tolist() == pytest.approx([2, 0], abs=0.2)


def test_replays_show_what_real_episodes_show():
    """Simulators (replay) and the world (real steps) pass through the same latent states, padding included."""
    for family in (walk_family(), cliff_family(horizon=6), FrozenLake()):
        theta, simulators = guarded(family, n=1, seed=1)
        A, H = family.spec.num_actions, family.spec.horizon
        actions = torch.randint(A, (1, 60, H), generator=Seed.root(5).generator())
        runs = rollout(simulators, lambda step, x, a=actions: a[..., step], 60, Seed.root(0))
        world = GuardedWorld(family.world(theta[0], Seed.root(9).generator()), Ledger())
        x = [world.reset(60)] + [world.step(actions[0, :, step]) for step in range(H - 1)]
        assert float((torch.stack(x, 1) - runs.x[0]).abs().max()) < 2 * 0.34


def test_a_finished_episode_stays_and_pays_nothing():
    family = walk_family(horizon=7)
    theta, simulators = guarded(family, n=2)
    runs = rollout(simulators, lambda step, x: torch.ones(x.shape[:2], dtype=torch.int64), 4, Seed.root(0))
    assert runs.rewards[0, 0].tolist() == [0, 0, 0, 1, 0, 0, 0]
    steps = (runs.x[..., 0] - theta[:, :, None]).round()
    assert steps[1, 2].tolist() == [0, 1, 2, 3, 4, 4, 4]


def test_shared_dynamics_replay_once_for_all_simulators():
    few, many = walk_family(), walk_family()
    for family, n in ((few, 2), (many, 200)):
        _, simulators = guarded(family, n)
        rollout(simulators, random_actions(2), 50, Seed.root(0))
    assert isinstance(simulators.inner, Simulators) and simulators.ledger.counts == {"test": 200 * 50}
    assert many._tree.num_nodes < 2**6 and many._tree.steps_run <= 5 * 2**6
    before = many._tree.steps_run
    rollout(guarded(many, 300)[1], random_actions(2), 50, Seed.root(1))
    assert many._tree.steps_run <= before + 5 * 8


def test_own_dynamics_for_every_theta():
    """theta > 0.5 turns the walk around: one replay tree per simulator."""

    class Turned(gymnasium.ActionWrapper):
        def action(self, action):
            return 3 - action

    family = walk_family(
        make=lambda theta: Turned(Walk()) if float(theta[0]) > 0.5 else Walk(), shared_dynamics=False, sensor=Offset(1)
    )
    theta, simulators = guarded(family, n=8)
    assert family.truth(theta) is None
    for action in (0, 1):
        runs = rollout(simulators, lambda step, x, a=action: torch.full(x.shape[:2], a), 3, Seed.root(0))
        reached = (runs.returns == 1).all(-1)
        assert reached.tolist() == [(float(t) > 0.5) == (action == 0) for t in theta[:, 0]]
    part = rollout(simulators.select([5, 2]), random_actions(2), 4, Seed.root(2))
    whole = rollout(simulators, random_actions(2), 4, Seed.root(2))
    assert part.x.shape == (2, 4, 5, 1) and torch.equal(part.x[:, :, 0], whole.x[[5, 2], :, 0])
    with pytest.raises(SimulatorError, match="shared_dynamics=False"):
        guarded(walk_family(make=family.dynamics.make), n=8)


def test_mean_rewards_when_not_bernoulli():
    half = walk_family(reward=lambda theta, moves: 0.5 * moves.raw, bernoulli_rewards=False)
    _, simulators = guarded(half)
    runs = rollout(simulators, lambda step, x: torch.ones(x.shape[:2], dtype=torch.int64), 4, Seed.root(0))
    assert bool((runs.returns == 0.5).all())


def test_reward_scale_divides_payments():
    family = walk_family(reward=lambda theta, moves: 4 * moves.raw, reward_scale=8.0)
    theta, simulators = guarded(family)
    truth = family.truth(theta)
    path, value = exact.open_loop(truth)
    assert sum(path) >= 4 and value == 0.5
    runs = rollout(simulators, lambda step, x: torch.ones(x.shape[:2], dtype=torch.int64), 400, Seed.root(0))
    assert set(runs.returns.unique().tolist()) == {0.0, 1.0} and abs(float(runs.returns.mean()) - 0.5) < 0.07


@pytest.mark.parametrize("fault", ["start", "slip", "memory"])
def test_random_environments_are_refused(fault):
    with pytest.raises(SimulatorError, match="random"):
        guarded(walk_family(fault))


def test_slippery_lake_is_refused_although_a_seed_hides_it():
    family = walk_family(
        make=lambda theta: make_env("FrozenLake-v1", desc=list(MAP), is_slippery=True),
        latent=lambda env, observation: [float(observation)],
    )
    with pytest.raises(SimulatorError, match="is_slippery"):
        guarded(family)


def test_a_seeded_random_start_is_a_fixed_start():
    """Taxi draws its start from the seed of the reset, the same at every reset."""
    starts = {
        guarded(walk_family(make=lambda theta: make_env("Taxi-v4"), reset_seed=seed))[1]
        .inner.tree.latent(torch.zeros(1, dtype=torch.int64))
        .item()
        for seed in range(5)
    }
    assert len(starts) > 1


def test_changes_after_the_checks_are_noticed_in_replays():
    family = walk_family()
    _, simulators = guarded(family)
    rollout(simulators, lambda step, x: torch.ones(x.shape[:2], dtype=torch.int64), 1, Seed.root(0))
    family._tree._episodes[0].env.fault = "memory"
    with pytest.raises(SimulatorError, match="same state after actions"):
        rollout(simulators, random_actions(2), 40, Seed.root(0))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda theta: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), "swallow an action"),
        (lambda theta: gymnasium.wrappers.Autoreset(Walk()), "Autoreset"),
        (lambda theta: gymnasium.wrappers.TimeLimit(Walk(), max_episode_steps=4), "time limit of at least 5"),
        (lambda theta: make_env("Pendulum-v1"), "Discrete action space"),
        (lambda theta: object(), "gymnasium.Env"),
    ],
)
def test_unusable_environments_are_refused(make, match):
    with pytest.raises(SettingError, match=match):
        walk_family(make=make)


def test_a_time_limit_is_allowed_at_the_horizon_and_not_below():
    guarded(walk_family(make=lambda theta: gymnasium.wrappers.TimeLimit(Walk(), max_episode_steps=5)))
    with pytest.raises(SimulatorError, match="time limit"):
        guarded(walk_family("limit"))
    world = walk_family("limit").world(torch.tensor([0.5]), Seed.root(0).generator())
    world.reset(2), world.step(torch.zeros(2, dtype=torch.int64)), world.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(SimulatorError, match="cut short after 3"):
        world.step(torch.zeros(2, dtype=torch.int64))


def test_costs_and_vectors_are_no_rewards():
    with pytest.raises(RewardError, match="one finite reward"):
        guarded(walk_family("vector"))
    _, simulators = guarded(walk_family(make=lambda theta: Walk(cost=0.1)))
    with pytest.raises(RewardError, match="costs below 0"):
        rollout(simulators, random_actions(2), 4, Seed.root(0))
    for value in (1, 1.0, np.float32(1), np.array(1), np.array([1]), True):
        assert plain_reward(value) == 1.0
    with pytest.raises(RewardError):
        plain_reward(float("nan"))


class Shown(Walk):
    """The walk, whose readings, rewards and ends are what a user's code made of them."""

    def __init__(self, seen=lambda x: x, paid=lambda r: 0.0, ends=bool):
        super().__init__()
        self.shown, self.paid, self.ends = seen, paid, ends

    def _seen(self):
        return self.shown(super()._seen())

    def step(self, action):
        seen, reward, ended, cut, info = super().step(action)
        return seen, self.paid(reward), self.ends(ended), cut, info


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seen": lambda x: x.astype(complex)}, SettingError, "numbers; got ndarray"),
        ({"seen": lambda x: x.astype("datetime64[s]")}, SettingError, "numbers; got ndarray"),
        ({"paid": lambda r: 10**400}, RewardError, "one finite reward"),
        ({"ends": lambda e: float("nan")}, SimulatorError, "got nan of type float"),
        ({"ends": lambda e: 2}, SimulatorError, "got 2 of type int"),
        ({"ends": lambda e: -0.5}, SimulatorError, "got -0.5 of type float"),
    ],
)
def test_what_is_no_reading_no_reward_and_no_end_is_named(change, error, words):
    with pytest.raises(error, match=words):
        observe(guarded(walk_family(make=lambda theta: Shown(**change)))[1], (1, 1), 3, Seed.root(0))


@pytest.mark.parametrize("change", [{"seen": memoryview}, {"ends": lambda e: float(e)}, {"ends": lambda e: e or None}])
def test_buffers_and_truths_of_other_libraries_are_taken(change):
    (_, plain), (_, other) = (guarded(walk_family(make=lambda theta, c=c: Shown(**c))) for c in ({}, change))
    assert torch.equal(observe(other, (1, 1), 3, Seed.root(0)), observe(plain, (1, 1), 3, Seed.root(0)))


def test_latent_numbers_that_hide_the_state_are_noticed():
    with pytest.raises(GraphMismatchError, match="leaves out"):
        family = walk_family(latent=lambda env, observation: [float(observation[0] >= 2)])
        family.truth(family.prior(1, Seed.root(0).generator()))


def test_a_world_does_not_touch_rewards():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("a reward was touched")

    class Forbidden(gymnasium.Wrapper):
        def step(self, action):
            observation, _, *rest = self.env.step(action)
            return observation, Untouchable(), *rest

    settled = {"bernoulli_rewards": True, "reward_scale": 1.0}  # else both are proposed from the rewards of simulators
    family = walk_family(make=lambda theta: Forbidden(Walk()), **settled)
    world = family.world(torch.tensor([0.5]), Seed.root(0).generator())
    assert isinstance(world, UnlabelledWorld)
    world.reset(3)
    for _ in range(4):
        x = world.step(torch.ones(3, dtype=torch.int64))
    assert x.shape == (3, 1) and float((x - 4.5).abs().max()) < 0.2
    assert [episode.env.unwrapped.taken for episode in world._episodes] == [4]  # all did the same


def test_episodes_of_a_world_are_where_their_own_actions_lead():
    """Batches whose actions part at random, one after another, against environments of their own."""
    family = walk_family()
    world, g = family.world(torch.tensor([0.5]), Seed.root(0).generator()), torch.Generator().manual_seed(1)
    for n in (7, 3, 20):
        own = [Walk() for _ in range(n)]
        there = [env.reset()[0] for env in own]
        x = world.reset(n)
        for step in range(family.spec.horizon):
            assert float((x[:, 0] - torch.tensor([float(seen[0]) + 0.5 for seen in there])).abs().max()) < 0.2
            actions = torch.randint(2, (n,), generator=g)
            if step + 1 < family.spec.horizon:
                there = [
                    seen if float(seen[0]) == 4 else env.step(int(a) + 1)[0]  # an episode that ended stays there
                    for env, seen, a in zip(own, there, actions, strict=True)
                ]
                x = world.step(actions)
        with pytest.raises(SettingError, match="reset before step"):
            world.step(actions)
    world.close()
