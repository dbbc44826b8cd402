"""Environments that hide their randomness, speak another interface, or fail: each is named before any replay."""

import random
import threading

import gymnasium
import numpy as np
import pytest
import torch

from s2r_torch.episodes import Guard, Ledger, rollout
from s2r_torch.errors import ObservationError, RewardError, S2RError, SettingError, SimulatorError
from s2r_torch.families import make_family
from s2r_torch.families.gym.family import GymFamily
from s2r_torch.families.recipe import SimulatorsRecipe, recipe_of
from s2r_torch.families.replay import determinism
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.rng import Seed


class Walk(gymnasium.Env):
    """walk.py of the public cases: the place is the sum of the actions."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 9, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0.0
        return np.array([self.x]), {}

    def step(self, a):
        self.x += self.moved(a)
        return np.array([self.x]), 0.1, False, False, {}

    def moved(self, a):
        return float(a)


def make(env=Walk, **more):
    settings = {
        "name": "walk",
        "make": lambda theta: env(),
        "theta_names": ("w",),
        "sensor": AffineSensor(("x",), (-1.0,), (5.0,), width=lambda theta: 0.2 + 0.2 * theta[:, 0]),
        "horizon": 3,
        "max_states_per_layer": 4,
        "prior": uniform_prior((0.0, 1.0)),
    }
    return GymFamily(**(settings | more))


def simulators(family, n=4):
    return family.simulators(family.prior(n, torch.Generator().manual_seed(0)), range(n))


def always(action):
    return lambda step, x: torch.full(x.shape[:2], action)


def with_(name, **methods):
    return type(name, (Walk,), methods)


def seeded(draw, keep):
    """A walk that slips by a generator of its own, which `keep` makes at every reset."""

    def reset(self, *, seed=None, options=None):
        result = Walk.reset(self, seed=seed)
        keep(self, seed)
        return result

    return with_("Slips", reset=reset, moved=lambda self, a: 0.0 if draw(self) < 0.3 else float(a))


HIDDEN = {
    "default_rng": seeded(lambda s: s.rng.random(), lambda s, seed: setattr(s, "rng", np.random.default_rng(seed))),
    "kept_method": seeded(lambda s: s.draw(), lambda s, seed: setattr(s, "draw", s.np_random.random)),
    "np_random": seeded(lambda s: s.np_random.random(), lambda s, seed: None),
    "numpy_global": seeded(lambda s: np.random.random(), lambda s, seed: np.random.seed(seed)),
    "random": seeded(lambda s: random.random(), lambda s, seed: random.seed(seed)),
    "torch_global": seeded(lambda s: float(torch.rand(())), lambda s, seed: torch.manual_seed(seed)),
    "own_random": seeded(
        lambda s: s.rng["a"][0].random(), lambda s, seed: setattr(s, "rng", {"a": [random.Random(1)]})
    ),
    "closure": seeded(
        lambda s: s.f(), lambda s, seed: setattr(s, "f", (lambda g: lambda: g.random())(random.Random(2)))
    ),
    "unseeded": seeded(lambda s: s.rng.random(), lambda s, seed: setattr(s, "rng", np.random.default_rng())),
    "legacy": seeded(lambda s: s.rng.rand(), lambda s, seed: setattr(s, "rng", np.random.RandomState(seed))),
}


def test_what_slips_once_in_fifty_steps_is_found():
    slips = with_("Slips", moved=lambda self, a: 0.0 if self.np_random.random() < 0.02 else float(a))
    with pytest.raises(SimulatorError, match="dynamics .*random|dynamics depend on the seed"):
        simulators(make(slips, bernoulli_rewards=False, reward_scale=1.0))


@pytest.mark.parametrize("env", HIDDEN.values(), ids=HIDDEN.keys())
def test_hidden_randomness_is_found(env):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with pytest.raises(SimulatorError, match="dynamics .*random|dynamics depend on the seed"):
        simulators(make(env, bernoulli_rewards=False, reward_scale=1.0))
    assert torch.equal(before[0], torch.get_rng_state()) and random.getstate() == before[2]
    assert (np.random.get_state()[1] == before[1]).all()


def test_what_a_seed_draws_at_the_reset_alone_is_named():
    class Laid(Walk):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            self.icy = self.np_random.random() < 0.5
            return result

        def moved(self, a):
            return 0.0 if self.icy else float(a)

    with pytest.raises(SimulatorError, match="a layout that is drawn"):
        simulators(make(Laid))


def test_an_honest_walk_pays_means_since_every_step_pays():
    family = make()
    guard = Guard(simulators(family), Ledger(), "test")
    episodes = rollout(guard, always(1), 3, Seed.root(0))
    paid = torch.full((4, 3, 3), 0.1, dtype=torch.float64) / family.spec.reward_scale
    assert torch.allclose(episodes.rewards, paid) and family.spec.reward_scale == pytest.approx(0.3 * 1.05)
    assert not family.bernoulli_rewards and "up to 3 steps" in family.proposed["bernoulli_rewards"]


def with_nan(self, *, seed=None, options=None):
    Walk.reset(self, seed=seed)
    return np.array([0.0, np.nan]), {}


Blind = with_("Blind", reset=with_nan, step=lambda self, a: (np.array([a, np.nan]), 0.1, False, False, {}))


@pytest.mark.parametrize(("number", "told"), [("12", "'12'"), (None, "None"), (np.array([1, 2]), r"\[1 2\]")], ids=str)
def test_what_is_no_number_of_a_state_is_quoted(number, told):
    with pytest.raises(ObservationError, match=f"finite latent numbers; got {told} as number 0 of 1"):
        simulators(make(latent=lambda env, o: [number]))


def test_options_of_a_reset_are_each_reset_s_own_where_they_can_be_copied():
    def reset(self, *, seed=None, options=None):
        options["seen"].append(1)
        assert len(options["seen"]) == 1 or "lock" in options
        return Walk.reset(self, seed=seed)

    for more in ({}, {"lock": threading.Lock()}):
        simulators(make(with_("Seeing", reset=reset), reset_options={"seen": [], **more}))


def test_nan_in_an_unused_part_of_the_observation():
    simulators(make(Blind, latent=lambda env, o: [float(o[0])]))
    with pytest.raises(ObservationError, match=r"nan as number 1 of 2 after actions \(\).*latent="):
        simulators(make(Blind))


def test_an_environment_that_cannot_be_closed_is_named():
    def close(self):
        raise OSError("no driver")

    with pytest.raises(SimulatorError, match=r"close\(\) to succeed; got OSError: no driver"):
        simulators(make(with_("Stuck", close=close)))


def test_a_reward_in_words_is_none():
    with pytest.raises(S2RError, match="one finite reward; got 0.1"):
        simulators(make(with_("Words", step=lambda self, a: (np.zeros(1), "0.1", False, False, {}))))


def test_other_interfaces_and_failures_are_one_error():
    def of(**methods):
        return make(with_("Odd", **methods))

    old = {"step": lambda self, a: (np.zeros(1), 0.1, False, {"battery": 0.9})}
    with pytest.raises(SimulatorError, match="got 4 values; likely cause: an environment of the old Gym interface"):
        simulators(of(**old))
    with pytest.raises(SimulatorError, match="old Gym interface, whose reset"):
        simulators(of(reset=lambda self, **k: np.zeros(2)))
    with pytest.raises(SimulatorError, match="True or False for the end"):
        simulators(of(step=lambda self, a: (np.zeros(1), 0.1, "false", "false", {})))
    with pytest.raises(SimulatorError, match="got NoneType"):
        simulators(of(step=lambda self, a: None))
    with pytest.raises(SimulatorError, match="reset to succeed; got ConnectionRefusedError: no robot; .* in Odd"):
        simulators(of(reset=_refuse))
    with pytest.raises(RewardError, match="one finite reward; got None"):
        simulators(of(step=lambda self, a: (np.zeros(1), None, False, False, {})))
    with pytest.raises(SettingError, match="latent="):
        simulators(of(reset=lambda self, **k: ({"row": 1.0}, {})))
    with pytest.raises(SimulatorError, match=r"latent\(env, observation\) to succeed; got KeyError"):
        simulators(make(latent=lambda env, o: {}["row"]))
    with pytest.raises(SimulatorError, match=r"make\(theta\) to succeed; got SystemExit"):
        make(_exit)
    with pytest.raises(SimulatorError, match="prior to succeed; got ZeroDivisionError"):
        make(prior=lambda n, g: 1 / 0)


def _refuse(self, **settings):
    raise ConnectionRefusedError("no robot")


def _exit():
    raise SystemExit(0)


def test_a_vector_of_rewards_is_no_error_where_a_model_ignores_it():
    vector = with_("Vector", step=lambda self, a: (np.zeros(1), np.zeros(2), False, False, {}))
    simulators(make(vector, reward=lambda theta, moves: 0.1 * moves.actions.double()))
    with pytest.raises(RewardError, match="one finite reward"):
        simulators(make(vector))
    using = make(vector, reward=lambda theta, moves: moves.raw, bernoulli_rewards=False, reward_scale=1.0)
    with pytest.raises(RewardError, match="own rewards are vectors"):
        rollout(Guard(simulators(using), Ledger(), "test"), always(1), 3, Seed.root(0))


def test_rewards_of_the_environment_that_depend_on_theta():
    class Paid(Walk):
        def __init__(self, pay=0.0):
            self.pay = pay

        def step(self, a):
            observation, _, *rest = super().step(a)
            return observation, self.pay, *rest

    pays = {"make": lambda theta: Paid(0.3 * float(theta[0]))}
    with pytest.raises(SimulatorError, match="own rewards depend on theta"):
        simulators(make(**pays))
    simulators(make(**pays, reward=lambda theta, moves: 0.1 * theta * moves.actions))
    family = make(**pays, shared_dynamics=False)
    theta = family.prior(4, torch.Generator().manual_seed(0))
    episodes = rollout(Guard(simulators(family), Ledger(), "test"), always(1), 2, Seed.root(0))
    assert torch.allclose(episodes.returns, 0.9 * theta.expand(4, 2))


def test_one_odd_theta_of_many_is_noticed():
    thetas = uniform_prior((0.0, 1.0))(9, torch.Generator().manual_seed(0))
    odd = float(thetas[4])
    family = make(
        make=lambda theta: with_("Odd", moved=lambda self, a: 2.0 * a)() if float(theta[0]) == odd else Walk()
    )
    with pytest.raises(SimulatorError, match="dynamics depend on theta"):
        family.simulators(thetas, range(9))


@pytest.mark.parametrize("name", ["", "a b", "grid\n", "[red]", "0grid", "é", "x" * 65, 3, None])
def test_a_name_is_one_that_files_and_commands_can_say(name):
    with pytest.raises(SettingError, match="a name for a family"):
        make(name=name)


def test_simulators_are_checked_as_a_whole_and_not_again_in_parts_or_where_they_arrive(monkeypatch):
    family = make_family("frozenlake")
    theta = family.prior(40, torch.Generator().manual_seed(0))
    family.simulators(theta, range(40))
    recipe = SimulatorsRecipe(recipe_of(make_family("frozenlake", smoothness=3)), theta, tuple(range(40)))

    def never(*given):
        raise AssertionError("checked again")

    for name in ("plain_traces", "deterministic_traces"):
        monkeypatch.setattr(determinism, name, never)
    assert len(family.simulators(theta[5:9], range(4))) == 4 and family.truth(theta[16:32]) is not None
    assert len(recipe.select(range(16, 32)).simulators()) == 16
    with pytest.raises(AssertionError, match="checked again"):
        family.simulators(theta[:3] + 0.01, range(3))


def test_environments_are_closed():
    opened, closed = [], []

    class Counted(Walk):
        def __init__(self):
            opened.append(self)

        def close(self):
            closed.append(self)

    family = make(Counted)
    simulators(family)
    world = family.world(torch.tensor([0.5]), torch.Generator())
    world.reset(3)
    world.close(), family.close()
    assert len(closed) == len(opened) > 3
    simulators(family).reset(1, [torch.Generator()] * 4)  # and opens again


def test_proposals_are_what_simulation_says_and_are_said():
    class Ends(Walk):
        def step(self, a):
            observation, _, *_ = super().step(a + 1)
            return observation, 3.0 * (self.x >= 4), self.x >= 4, False, {}

    family = make(Ends, sensor=AffineSensor(("x",), width=0.2), horizon=None, max_states_per_layer=None)
    spec = family.spec
    assert spec.horizon == 4 and spec.max_states_per_layer == 3 and spec.reward_scale == pytest.approx(3.15)
    assert -0.5 < spec.low[0] < -0.2 and 5.2 < spec.high[0] < 5.5 and family.bernoulli_rewards
    assert set(family.proposed) == {"horizon", "max_states_per_layer", "reward_scale", "bernoulli_rewards", "box"}
    rollout(Guard(simulators(family), Ledger(), "test"), always(1), 30, Seed.root(0))
    with pytest.raises(SettingError, match="an environment without an end"):
        make(horizon=None)
    limited = make(lambda: gymnasium.wrappers.TimeLimit(Walk(), 5), horizon=None)
    assert limited.spec.horizon == 5 and "time limit" in limited.proposed["horizon"]


def test_latent_numbers_that_never_come_back():
    class Clock(Walk):
        def moved(self, a):
            return 1.0 + a * 0.3 ** int(self.x + 1)

    with pytest.raises(S2RError, match="never come back"):
        make(Clock, max_states_per_layer=None, horizon=12)


def test_latent_numbers_on_which_rewards_do_not_only_depend():
    class Paid(Walk):
        """Pays by the first action, which the place forgets."""

        def reset(self, **settings):
            self.first = None
            return super().reset(**settings)

        def step(self, a):
            self.first = a if self.first is None else self.first
            observation, _, *rest = super().step(a)
            return observation, 0.1 * self.first, *rest

    family = make(Paid, bernoulli_rewards=False, reward_scale=1.0)
    with pytest.raises(S2RError, match="leaves out a part of the state"):
        family.truth(family.prior(1, torch.Generator()))


def test_simulators_without_a_window():
    """A window draws every step at the speed of a film: a check of an environment that has one took hours."""
    shown = with_("Shown", render_mode="human")
    with pytest.raises(SettingError, match="without a window; got render_mode='human' of Shown"):
        simulators(make(shown))
    simulators(make(with_("Drawn", render_mode="rgb_array")))
