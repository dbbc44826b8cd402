"""Environments with a few actions, and live ones: actions of every form that people have them in, and what is none."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.policies import policy_of

from s2r_torch.base import ProblemSpec
from s2r_torch.errors import S2RError, SettingError
from s2r_torch.families.gym.family import GymFamily, held_actions, make_env
from s2r_torch.families.gym.world import EnvWorld
from s2r_torch.families.sensors import AffineSensor, uniform_prior


class Pushed(gym.Env):
    """Moves by the action, pays its size, and keeps what it was given."""

    def __init__(self, shape=(1,), low=-2.0, high=2.0, dtype=np.float32):
        self.action_space = gym.spaces.Box(low, high, shape, dtype)
        self.observation_space = gym.spaces.Box(-99.0, 99.0, (1,))
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place], dtype=np.float32), {}

    def step(self, action):
        self.given.append(action)
        self.place += float(np.sum(action))
        return np.array([self.place], dtype=np.float32), float(np.abs(action).sum()), False, False, {}


class Writing(Pushed):
    def step(self, action):
        seen = super().step(action.copy())
        action *= 0
        return seen


class Vector(Pushed):
    def step(self, action):
        x, reward, *rest = super().step(action)
        return x, np.array([reward]), *rest


def held(env, actions, steps=1):
    env = held_actions(env, actions, steps)
    env.reset()
    return env


@pytest.mark.parametrize(
    "actions",
    [np.array([[-1], [1]], dtype=np.float32), ((-1.0,), (1.0,)), torch.tensor([[-1.0], [1.0]]), [[-1], [1]]],
    ids=["array", "tuples", "tensor", "whole numbers"],
)
def test_actions_are_held_in_whatever_form_they_come(actions):
    for action in (1, np.int64(1), torch.tensor(1)):
        assert held(Pushed(), actions, np.int64(2)).step(action)[0] == 2.0


def test_an_environment_is_given_actions_of_its_own_space_and_may_write_into_them():
    for env, actions in ((Pushed(), [[-1.0], [1.0]]), (Pushed(low=-2, high=2, dtype=np.int32), [[-1], [1]])):
        held(env, actions).step(1)
        assert env.action_space.contains(env.given[0])
    assert held(Pushed(low=-np.inf, high=np.inf), [[50.0]]).step(0)[0] == 50.0
    assert held(Pushed(shape=()), [-1.0, 1.0]).step(0)[0] == -1.0
    env = held(Writing(), [[-1.0], [1.0]], 3)
    assert (env.step(1)[0], env.step(1)[0]) == (3.0, 6.0)
    actions = np.array([[-1.0], [1.0]])
    env = held(Pushed(), actions)
    actions[:] = 0
    assert env.step(1)[0] == 1.0


def test_rewards_of_one_number_in_an_array_add_up_without_a_word():
    with warnings.catch_warnings(action="error"):
        assert held(Vector(), [[1.0]], 2).step(0)[1] == 2.0


NO_ACTIONS = {
    "names": {"left": [-1.0], "right": [1.0]},
    "text": "ab",
    "several lengths": [[1.0], [1.0, 2.0]],
    "none": [],
    "nothing": None,
    "a number": 1.0,
    "NaN": [[float("nan")]],
    "one twice": [[1.0], [1.0]],
    "off the box": [[3.0]],
}


@pytest.mark.parametrize("kind", NO_ACTIONS)
def test_what_is_no_list_of_actions_is_one_error(kind):
    with pytest.raises(SettingError, match=r"different actions \[A, \*\[1\]\] within Box"):
        held_actions(Pushed(), NO_ACTIONS[kind])
    with pytest.raises(SettingError, match="different actions"):
        held_actions(Pushed(low=-2, high=2, dtype=np.int32), [[0.5]])


@pytest.mark.parametrize("action", [-1, 2, 0.5, "0", None])
def test_actions_that_are_not_there_are_refused_when_they_are_taken(action):
    with pytest.raises(SettingError, match=r"an action in 0 .. 1; got"):
        held(Pushed(), [[-1.0], [1.0]]).step(action)
    lake = make_env("FrozenLake-v1", 2, is_slippery=False)
    lake.reset()
    with pytest.raises(SettingError, match=r"an action in 0 .. 1; got"):
        lake.step(action)


def test_an_action_is_held_until_the_episode_is_cut_and_rounding_leaves_no_box():
    limited = held_actions(gym.wrappers.TimeLimit(Pushed(), 3), [[-1.0], [1.0]], 5)
    limited.reset()
    assert limited.step(1)[1:4] == (3.0, False, True)
    env = Pushed()
    held(env, [[-2.0000005], [2.0000005]]).step(1)
    assert env.action_space.contains(env.given[0]) and float(env.given[0][0]) == 2.0


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1), np.array([1]), np.True_, torch.tensor([1])], ids=repr)
def test_one_action_in_another_form_is_that_action(action):
    env = Pushed()
    moved = held(env, [[-1.0], [1.0]]).step(action)[0]
    assert moved == held(Pushed(), [[-1.0], [1.0]]).step(1)[0]
    for wrong in (np.array([0, 1]), np.array([0.5])):
        with pytest.raises(SettingError, match=r"an action in 0 .. 1; got array"):
            held(env, [[-1.0], [1.0]]).step(wrong)


def family(env, steps, horizon):
    return GymFamily(
        name="pushed",
        make=lambda theta: held_actions(copy.deepcopy(env), [[-1.0], [1.0]], steps),
        prior=uniform_prior((0.0, 1.0)),
        theta_names=("w",),
        sensor=AffineSensor(("place",)),
        horizon=horizon,
        reward_scale=100.0,
    )


def test_a_time_limit_is_counted_in_decisions():
    limited = gym.wrappers.TimeLimit(Pushed(), 10)
    assert family(limited, 5, None).spec.horizon == 2
    family(limited, 5, 2).simulators(torch.zeros(1, 1), (0,))
    with pytest.raises(SettingError, match="a time limit of at least 3; got 2"):
        family(limited, 5, 3)
    assert family(limited, 4, None).spec.horizon == 3  # cut in the last step, after which nothing is read


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("FrozenLake-v0", {}, "an environment that Gymnasium knows; .*an old version"),
        ("Frozen Lake", {}, "settings of Frozen Lake; got Error: Malformed environment ID"),
        ("", {}, "Malformed environment ID"),
        ("nosuch:Env-v0", {}, "an environment that Gymnasium knows; got No module named 'nosuch'"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "settings of FrozenLake-v1; got KeyError: '9x9'"),
    ],
)
def test_whatever_gymnasium_says_of_a_name_or_a_setting_is_one_error(name, settings, words):
    with pytest.raises(SettingError, match=words), warnings.catch_warnings(action="ignore"):  # gymnasium's own
        make_env(name, **settings)


def test_few_actions_begin_where_the_space_begins():
    class FromOne(Pushed):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Discrete(3, start=1)

    gym.register("FromOne-v0", FromOne)
    env = make_env("FromOne-v0", 2)
    env.reset()
    assert (int(env.action_space.start), int(env.action_space.n)) == (1, 2) and env.step(2)[0] == 2.0
    with pytest.raises(SettingError, match="an action in 1 .. 2; got 0"):
        env.step(0)


def test_a_live_world_takes_one_known_action_once_it_was_started():
    spec = ProblemSpec(2, 3, 3, 1, (-9.0,), (9.0,))
    world = EnvWorld(held_actions(Pushed(), [[-1.0], [1.0]]), spec)
    with pytest.raises(SettingError, match="reset before step"):
        world.step(torch.tensor([0]))
    world.reset(1)
    for actions in (torch.tensor([0, 1]), torch.tensor([7]), torch.tensor([0.0]), 1):
        with pytest.raises(SettingError, match=r"one action in 0 .. 1, as a tensor \[1\]"):
            world.step(actions)
    assert float(world.step(torch.tensor([1]))) == 1.0


def test_latent_numbers_in_text_are_none_and_reset_options_are_each_reset_s_own():
    class Placed(Pushed):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = options.pop("place", 7.0)
            return np.array([self.place], dtype=np.float32), {}

    parts = {
        "name": "placed",
        "make": lambda theta: held_actions(Placed(), [[-1.0], [1.0]]),
        "prior": uniform_prior((0.0, 1.0)),
        "theta_names": ("w",),
        "sensor": AffineSensor(("place",)),
        "horizon": 2,
        "reset_options": {"place": 0.0},
    }
    simulators = GymFamily(**parts).simulators(torch.zeros(1, 1), (0,))
    assert float(simulators.reset(4, [torch.Generator()]).abs().max()) < 0.2
    with pytest.raises(S2RError, match="finite latent numbers; got '5'"):
        GymFamily(**parts | {"latent": lambda env, x: str(int(x[0]) + 5)}).simulators(torch.zeros(1, 1), (0,))


def test_a_reward_that_is_none_is_named_while_an_action_is_held():
    class Unpaid(Pushed):
        def step(self, action):
            x, _, *rest = super().step(action)
            return x, None, *rest

    with pytest.raises(S2RError, match="one finite reward; got None"):
        held(Unpaid(), [[1.0]]).step(0)


def test_a_policy_is_no_spec():
    with pytest.raises(SettingError, match="spec: ProblemSpec; got MetaPolicy"):
        EnvWorld(Pushed(), policy_of())
