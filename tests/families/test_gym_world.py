"""Reality as a Gymnasium environment: nothing but observations is looked at."""

import gymnasium
import numpy as np
import pytest
import torch
from support.worlds import policy_of, random_class, random_world

from s2r_torch.deployment.deploy import deploy
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, SettingError, SimulatorError
from s2r_torch.families.gym.world import EnvWorld, as_world

WORLD = random_world(5, 4, 2)
META = policy_of(WORLD, random_class(WORLD, 3, 0), n_real=12)


class Unpaid:
    """A reward that raises whatever is done with it, even a truth test."""

    def __getattribute__(self, name):
        raise AssertionError("a reward was touched in reality")

    __bool__ = __float__ = __eq__ = __hash__ = __add__ = None


class Robot(gymnasium.Env):
    """A tabular world as an environment that pays, and may end early."""

    def __init__(self, ends_after=99, truncates_after=99, start=0, actions=2, dim=1):
        self.observation_space = gymnasium.spaces.Box(0.0, 3.0, (dim,))
        self.action_space = gymnasium.spaces.Discrete(actions, start=start)
        self.world, self.ends_after, self.truncates_after = WORLD.world(0.1, 0), ends_after, truncates_after
        self.resets, self.steps = [], 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.resets.append(seed)
        self.steps = 0
        return self.read(self.world.reset(1)), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        x = self.world.step(torch.tensor([action - int(self.action_space.start)]))
        return self.read(x), Unpaid(), self.steps >= self.ends_after, self.steps >= self.truncates_after, {}

    def read(self, x):
        return np.repeat(x[0].numpy(), self.observation_space.shape[0]).astype(np.float32)


@pytest.mark.parametrize("start", [0, 5])
def test_deploys_one_episode_after_another_and_touches_no_reward(start):
    robot, ledger = Robot(start=start), Ledger()
    deployed = deploy(META, as_world(robot, META.problem.spec, seed=3), ledger)
    assert ledger.counts["real"] == len(robot.resets) == 12 * len(META.cover)
    assert robot.resets[0] == 3 and set(robot.resets[1:]) == {None}
    assert bool((deployed.D_real.amax(-1) > 1).all())


def test_an_episode_that_ends_early_repeats_its_last_reading():
    world = EnvWorld(Robot(ends_after=1), META.problem.spec)
    world.reset(1)
    seen = [world.step(torch.tensor([0])) for _ in range(3)]
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[2]) and world._env.steps == 1


def test_a_time_limit_is_no_end():
    world = EnvWorld(Robot(truncates_after=2), META.problem.spec)
    with pytest.raises(SimulatorError, match="one cut short after 2.*max_episode_steps"):
        deploy(META, world)
    deploy(META, EnvWorld(Robot(truncates_after=3), META.problem.spec))  # at the last reading, nobody minds


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        (Robot(actions=3), "a world with num_actions = 2, as the policy was trained for; got 3"),
        (Robot(dim=2), "a world with obs_dim = 1, as the policy was trained for; got 2"),
    ],
)
def test_another_machine_is_refused_before_any_episode(robot, message):
    with pytest.raises(SettingError, match=message):
        deploy(META, as_world(robot, META.problem.spec))
    assert robot.resets == []


def test_environments_that_cannot_be_used():
    spec = META.problem.spec
    short = gymnasium.wrappers.TimeLimit(Robot(), 2)
    with pytest.raises(SettingError, match="a time limit of at least 4"):
        as_world(short, spec)
    with pytest.raises(SettingError, match="an object with spec"):
        as_world(object(), spec)
    with pytest.raises(SettingError, match="a function that returns something else"):
        as_world(lambda: None, spec)
    with pytest.raises(SettingError, match="one episode at a time"):
        EnvWorld(Robot(), spec).reset(2)
    odd = Robot()
    for missing in (np.asarray([np.nan], dtype=np.float32), np.ma.masked_array([0.5], mask=[True])):
        odd.read = lambda x, missing=missing: missing
        with pytest.raises(ObservationError, match="NaN or inf from the world"):
            deploy(META, as_world(odd, spec))


class Odd(Robot):
    """A robot whose answers are changed."""

    def __init__(self, reset=lambda answer: answer, step=lambda answer: answer):
        super().__init__()
        self._reset, self._step, self.closed = reset, step, 0

    def reset(self, seed=None, options=None):
        return self._reset(super().reset(seed, options))

    def step(self, action):
        return self._step(super().step(action))

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Dict(x=gymnasium.spaces.Box(0, 1, ())),
        gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 1, ())]),
        gymnasium.spaces.Text(5),
        None,
    ],
)
def test_spaces_that_are_no_numbers_are_refused_before_any_episode(space):
    robot = Robot()
    robot.observation_space = space
    with pytest.raises(SettingError, match="FlattenObservation"):
        as_world(robot, META.problem.spec)
    assert robot.resets == []


def test_an_image_of_millions_is_refused_without_a_name_for_each_number():
    robot = Robot()
    robot.observation_space = gymnasium.spaces.Box(0, 255, (2160, 3840, 3), np.uint8)
    with pytest.raises(SettingError, match="obs_dim = 1, as the policy was trained for; got 24883200"):
        as_world(robot, META.problem.spec)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            Odd(reset=lambda answer: answer[0]),
            "reset to return .*; got an array .* at step 0 of real episode 1.*the old Gym",
        ),
        (Odd(reset=lambda answer: (0.1, 0.2)), "reset to return .*the old Gym interface"),
        (
            Odd(step=lambda answer: (*answer[:3], {})),
            "step to return .*; got a tuple of 4 at step 1.*the old Gym interface",
        ),
        (
            Odd(step=lambda answer: (*answer[:3], {"battery": 0.9})),
            "a tuple of 4 at step 1 of real episode 1.*the old Gym",
        ),
    ],
)
def test_the_old_interface(odd, message):
    with pytest.raises(SimulatorError, match=message):
        deploy(META, as_world(odd, META.problem.spec))
    assert len(odd.resets) == 1


@pytest.mark.parametrize(
    "observation", [None, "hello", {"x": 1.0}, gymnasium.spaces.Box(0, 1, (1,)), np.zeros(3), [None], np.array(["1"])]
)
def test_observations_that_are_no_readings(observation):
    robot = Odd(step=lambda answer: (observation, *answer[1:]))
    with pytest.raises(ObservationError, match="1 numbers, x_1, as an observation; got .* at step 1 of real episode 1"):
        deploy(META, as_world(robot, META.problem.spec))


def test_of_a_list_it_is_said_what_is_in_it():
    robot = Odd(step=lambda answer: ([0.5, 0.0, "1"], *answer[1:]))
    with pytest.raises(ObservationError, match=r"got a list of 3 \(float, str\) at step 1"):
        deploy(META, as_world(robot, META.problem.spec))


def test_observations_in_tensors_are_readings():
    """Of a simulator in torch: with a gradient, in half precision."""
    for change in (lambda x: torch.tensor(x, requires_grad=True), lambda x: torch.tensor(x).bfloat16()):
        robot = Odd(step=lambda answer, change=change: (change(answer[0]), *answer[1:]))
        world = as_world(robot, META.problem.spec)
        world.reset(1)
        assert world.step(torch.tensor([1])).dtype == torch.float64


def test_an_episode_may_end_early_only_where_actions_do_not_matter():
    graph = META.problem.graph
    goes_on = bool((graph.next_state[0] != graph.next_state[0][0]).any())
    assert goes_on  # at the start, actions matter
    world = as_world(Robot(ends_after=1), META.problem.spec, graph=graph)
    with pytest.raises(SimulatorError, match=r"its end \(terminated\) after 1 actions.*at step 1 of real episode 1"):
        deploy(META, world)
    deploy(META, as_world(Robot(ends_after=3), META.problem.spec, graph=graph))  # at the last reading, nobody minds


@pytest.mark.parametrize("end", ["false", b"0", np.array([False, False])])
def test_an_end_that_is_neither_true_nor_false(end):
    world = as_world(Robot(), META.problem.spec)
    world._env.step = lambda action: (np.zeros(1, np.float32), 0.0, end, False, {})
    world.reset(1)
    with pytest.raises(SimulatorError, match=r"True or False for the end .*; got .*of type"):
        world.step(torch.tensor([0]))


def test_closing_closes_the_environment():
    robot = Odd()
    as_world(robot, META.problem.spec).close()
    assert robot.closed == 1


def test_a_world_of_ones_own_is_taken_as_it_is():
    world = WORLD.world(0.2, 0)
    assert as_world(world, META.problem.spec) is world
