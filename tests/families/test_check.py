"""Families that lie, each a few lines: `check_family` finds every one, and the cause; honest ones pass."""

import random
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from support import lanes
from support.lanes import Lane, LaneSimulators, LaneWorld

from s2r_torch.encoders.regression import Regression
from s2r_torch.errors import S2RError, SettingError, SimulatorError
from s2r_torch.families import make_family
from s2r_torch.families.check import LEVELS, NOTE, OK, REFUSED, Finding, Report, check_family, payoff, truth
from s2r_torch.families.check.contract import PAIRS, rows_repeated, rows_together
from s2r_torch.families.check.overlap import overlaps
from s2r_torch.families.gym.family import GymFamily
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.runs.checking import check_for_a_run

HONEST = {
    "grid": lambda: make_family("grid"),
    "mixture": lambda: make_family("mixture"),
    "lane": Lane,
    "lane, gaussian": lambda: Lane(noise="gaussian"),
    "lane, no truth": lambda: Lane(truthful=False),
}


@pytest.mark.parametrize("make", HONEST.values(), ids=HONEST.keys())
def test_honest_families_give_no_alarm(make):
    report = check_family(make())
    assert report.refused == () and {f.level for f in report.findings} <= set(LEVELS)
    report.require()
    unregistered = {"name and parameters", "truth"} if isinstance(make(), Lane) else set()
    assert {f.checked for f in report.notes} <= unregistered, report.lines()
    assert report.episodes > 1e4 and all(f.found for f in report.findings)


# -- liars -----------------------------------------------------------------------------------------------------------


def noise_of(draw):
    """Readings whose noise is drawn by `draw(shape)` instead of from the generators handed in."""

    def noise(self, shape, generators):
        return torch.as_tensor(draw(shape), dtype=torch.float64) * 2 - 1

    return {"noise": noise}


def repeat_readings(self, x):
    x[5] = x[5, :1]
    return x


def halve(self, x):
    x[5, 1::2] = x[5, ::2][: len(x[5, 1::2])]
    return x


def set_at(row, value):
    def change(self, reward):
        reward[row : row + 1] = value
        return reward

    return change


def named_three(self, reward):
    if 3 in self.ids:
        reward[self.ids.index(3)] = 0.0
    return reward


def own_first_row(self):
    self.theta = self.theta[:1].expand_as(self.theta).contiguous()


def seeded_noise(self, shape, generators):
    g = torch.Generator().manual_seed(7)
    return torch.rand(shape, generator=g, dtype=torch.float64) * 2 - 1


def first_generator(self, shape, generators):
    B, n = shape
    return torch.rand(B, n, generator=generators[0], dtype=torch.float64) * 2 - 1


def random_start(self, state):
    for row, g in zip(state, self.generators, strict=True):
        row += torch.randint(2, row.shape, generator=g)
    return state


def slip(self, state):
    if state is not None:
        for row, g in zip(state, self.generators, strict=True):
            row -= (torch.rand(row.shape, generator=g) < 0.3).long()
    return None if state is None else state.clamp(min=0)


def own_slip(self, state):
    if state is not None:
        state = (state - torch.from_numpy((np.random.default_rng(0).random(state.shape) < 0.3).astype(int))).clamp(
            min=0
        )
    return state


def by_theta(self, state):
    return None if state is None else (state * (self.theta[:, 1:2] < 0.5)).long()


def lasting(self, x):
    if self.step_number == 0:
        self.kept = 0.2 * torch.stack([torch.rand(x.shape[1:], generator=g, dtype=x.dtype) for g in self.generators])
    return x + self.kept


def drifting(self, x):
    return x + 0.2 * (torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 20).sin()


def outliers(self, x):
    u = torch.stack([torch.rand(x.shape[1:], generator=g) for g in self.generators])
    return torch.where(u < 1 / 2000, 5.9, x)


def rarely_too_much(self, reward):
    u = torch.stack([torch.rand(reward.shape[1:], generator=g) for g in self.generators])
    return torch.where(u < 1 / 500, 1.7, reward)


SIMULATORS = {  # what to change in LaneSimulators -> what is checked, and words of the finding
    "torch global": (noise_of(lambda s: torch.rand(s)), "randomness", "global generator of torch"),
    "numpy global": (noise_of(lambda s: np.random.rand(*s)), "randomness", "global generator of numpy"),
    "random global": (
        noise_of(lambda s: [[random.random() for _ in range(s[1])] for _ in range(s[0])]),
        "randomness",
        "global generator of random",
    ),
    "unseeded": (noise_of(lambda s: np.random.default_rng().random(s)), "randomness", "never seeded"),
    "seeded inside": ({"noise": seeded_noise}, "randomness", "whatever generators"),
    "generators[0] for all": ({"noise": first_generator}, "one simulator beside others", r"generators\[0\]"),
    "theta[0] for all": ({"begin": own_first_row}, "one simulator beside others", r"theta\[0\] is used for all"),
    "one never pays, by place": ({"paid": set_at(3, 0.0)}, "one simulator beside others", r"^simulator 3 shows other"),
    "one never pays, by name": ({"paid": named_three}, "one simulator beside others", r"^simulator 3 shows other"),
    "one repeats a reading": ({"shown": repeat_readings}, "readings vary", "of simulator 5 has one value"),
    "one repeats every other": ({"shown": halve}, "readings vary", "readings of simulator 5 are exact copies"),
    "random start": (
        {"moved": lambda self, s: random_start(self, s) if self.step_number == 0 else s},
        None,
        "random start",
    ),
    "random dynamics": ({"moved": slip}, None, "random"),
    "own generator": ({"moved": own_slip}, None, "random|mixed up|generator"),
    "theta moves": ({"moved": by_theta}, None, "theta changes where actions lead"),
    "noise that lasts": ({"shown": lasting}, "fixed start, deterministic dynamics", "depend on each other"),
    "drift": ({"shown": drifting}, "fixed start, deterministic dynamics", "outlives reset"),
    "off the box": ({"shown": lambda self, x: x + 3 * self.theta[:, :1, None]}, "box of readings", "lie outside"),
    "NaN": ({"shown": lambda self, x: x.masked_fill(x > 2.2, torch.nan)}, None, "not finite"),
    "stuck sensor": ({"shown": lambda self, x: x * 0 + 1}, "readings vary", "x of simulator 0 has one value"),
    "too much, rarely": ({"paid": rarely_too_much}, "rewards and whole episodes", "total 1.7|total 2"),
    "a negative reward": ({"paid": lambda self, r: r - 0.1}, "rewards and whole episodes", "reward -0.1"),
    "pays at every step": ({"paid": lambda self, r: (r > 0) * 1.0 + 0.4}, "rewards and whole episodes", "total"),
    "None": ({"paid": lambda self, r: None}, "rewards and whole episodes", "got None"),
    "old gym": ({"answer": lambda self, x, r: (x, r, False, {})}, "rewards and whole episodes", "tuple of 4"),
    "ends early": ({"answer": lambda self, x, r: (None, r)}, "rewards and whole episodes", "its end after 1"),
    "dict": ({"shown": lambda self, x: {"x": x}}, "rewards and whole episodes", "got dict"),
    "sparse": ({"shown": lambda self, x: x.to_sparse()}, "rewards and whole episodes", "sparse"),
    "raises": ({"shown": lambda self, x: 1 / 0}, "rewards and whole episodes", "ZeroDivisionError"),
    "exits": ({"shown": lambda self, x: exit()}, "rewards and whole episodes", "SystemExit"),
    "names dropped": ({"begin": lambda self: setattr(self, "ids", (9,) * len(self.ids))}, "simulators", "called"),
    "ids as places": (
        {"begin": lambda self: [range(200)[i] for i in self.ids]},
        "one simulator beside others",
        "as pos",
    ),
}


@pytest.mark.parametrize(("changes", "checked", "words"), SIMULATORS.values(), ids=SIMULATORS.keys())
def test_simulators_that_lie(changes, checked, words):
    liar = type("Liar", (LaneSimulators,), changes)
    require_found(Lane(simulated=liar), checked, words)


def require_found(family, checked, words, level=REFUSED):
    import re

    names = {"densities are needed": "what pays shows", "states can be told apart": "one state graph for all"}
    report = check_family(family, only=None if checked is None else {names.get(checked, checked)})
    found = [f for f in report.findings if f.level == level and (checked is None or f.checked == checked)]
    assert any(re.search(words, f"{f.found}; {f.cause}; {f.write}") for f in found), "\n".join(report.lines())
    if level == REFUSED:
        with pytest.raises(S2RError):
            report.require()


def test_one_check_may_be_named_by_its_name():
    findings = {only: check_family(Lane(), only=only).findings for only in ("worlds", None)}
    assert {f.checked for f in findings["worlds"]} < {f.checked for f in findings[None]}
    assert "worlds" in {f.checked for f in findings["worlds"]}


def test_a_buffer_that_is_reused_is_noted_and_copied():
    def reuse(self, x):
        self.buffer = x if self.step_number == 0 else self.buffer.copy_(x)
        return self.buffer

    family = Lane(simulated=type("Reuses", (LaneSimulators,), {"shown": reuse}))
    require_found(family, "readings are kept", "overwrites", NOTE)
    assert check_family(family, only={"truth", "one state graph for all"}).refused == ()


def prior_of(draw):
    return {"prior": lambda self, n, generator: draw(n, generator)}


POINTS = torch.rand(100, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
FAMILIES = {
    "prior: torch global": (prior_of(lambda n, g: torch.rand(n, 2, dtype=torch.float64)), "prior", "global"),
    "prior: numpy global": (prior_of(lambda n, g: torch.from_numpy(np.random.rand(n, 2))), "prior", "global"),
    "prior: ignores it": (
        prior_of(lambda n, g: torch.rand(n, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)),
        "prior",
        "ignored",
    ),
    "prior: seeds anew": (
        prior_of(
            lambda n, g: torch.rand(
                n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(g.initial_seed())
            )
        ),
        "prior",
        "two draws from one generator are equal",
    ),
    "prior: float32": (prior_of(lambda n, g: torch.rand(n, 2, generator=g)), "prior", "torch.float32"),
    "prior: a vector": (prior_of(lambda n, g: torch.rand(n, generator=g, dtype=torch.float64)), "prior", "float64"),
    "prior: an array": (prior_of(lambda n, g: np.zeros((n, 2))), "prior", "ndarray"),
    "prior: one row for all": (
        prior_of(lambda n, g: torch.rand(1, 2, generator=g, dtype=torch.float64).repeat(n, 1)),
        "prior",
        "all draws of theta are equal",
    ),
    "prior: sorted": (
        prior_of(lambda n, g: torch.rand(n, 2, generator=g, dtype=torch.float64).sort(0).values),
        "prior",
        "two rows of a draw are not of one law .the first is smaller",
    ),
    "prior: mirrored": (
        prior_of(
            lambda n, g: (lambda u: torch.cat([u, 1 - u])[:n])(
                torch.rand((n + 1) // 2, 2, generator=g, dtype=torch.float64)
            )
        ),
        "prior",
        "depend on each other .correlation -1.00",
    ),
    "prior: rows repeated": (
        prior_of(lambda n, g: torch.rand(50, 2, generator=g, dtype=torch.float64).repeat(-(-n // 50), 1)[:n].clone()),
        "prior",
        "two rows of a draw are equal too often",
    ),
    "prior: points not put back": (
        prior_of(
            lambda n, g: POINTS[torch.cat([torch.randperm(100, generator=g) for _ in range(-(-n // 100))])[:n]].clone()
        ),
        "prior",
        "equal too seldom .*not put back",
    ),
    "prior: another law of many": (
        prior_of(lambda n, g: torch.rand(n, 2, generator=g, dtype=torch.float64) * (1 if n < 60 else 0.3)),
        "prior",
        "have another law than many",
    ),
    "prior: raises": (prior_of(lambda n, g: n / 0), "prior", "ZeroDivisionError"),
    "alone": (
        {"simulated": type("Alone", (LaneSimulators,), {"shown": lambda self, x: x + 0.01 * (len(x) == 1)})},
        "one simulator beside others",
        "the same theta and generator, alone",
    ),
    "parameters: a tensor": ({"parameters": lambda self: {"w": torch.ones(2)}}, "name and parameters", "no JSON"),
    "parameters: raise": ({"parameters": lambda self: 1 / 0}, "name and parameters", "ZeroDivisionError"),
    "parameters: NaN": ({"parameters": lambda self: {"w": float("nan")}}, "name and parameters", "no JSON"),
    "a name with a space": ({"name": "my world"}, "name and parameters", "a name for a family"),
    "quadrature: mean": ({"truth_shift": 0.05}, "truth", "the mean of x .* is off"),
    "quadrature: width": ({"truth_width": 1.3}, "truth", "the variance of x .* is off"),
    "truth: rewards": ({"truth_scale": 0.5}, "truth", "more than the truth says"),
    "truth: a number": ({"truth": lambda self, theta: 3}, "truth", "what truth.theta. returned: GroundTruth or None"),
    "truth: raises": ({"truth": lambda self, theta: 1 / 0}, "truth", "ZeroDivisionError"),
    "theta unseen": ({"seen": False}, "what pays shows", "w decides what pays"),
    "theta idle": ({"seen": False, "pays": False, "offset": 0.0}, "theta matters", "neither readings nor rewards"),
    "another world": ({"world_shift": 0.3}, "worlds", "two sensors"),
    "two states alike": ({"blind_at": 1}, "states can be told apart", "same readings"),
    "layers wider than said": (
        {"widest": 1},
        "one state graph for all",
        "3 states in layer 2, and max_states_per_layer=1",
    ),
    "far from 0": ({"place": 4.5e8}, "distance of readings from 0", "float32"),
}


def test_points_that_are_put_back_are_no_dependence():
    """Of 2, 30 and 1000 points; and of a continuous law."""
    g = torch.Generator().manual_seed(0)
    for points in (2, 30, 1000):
        assert rows_repeated([POINTS[:1] + torch.randint(points, (200, 1), generator=g) for _ in range(3)]) == ""
    assert rows_repeated([torch.rand(200, 2, generator=g) for _ in range(3)]) == ""


@pytest.mark.parametrize("seed", [522, 682, 1794])
def test_a_rare_value_of_theta_is_no_dependence(seed):
    """1 in 100 theta is (1/2, 1/2): 5 or 6 of one draw and none of two others, for these seeds."""

    def draw(n, g):
        u = torch.rand(n, 2, generator=g, dtype=torch.float64)
        return torch.where(u[:, :1] < 0.01, 0.5, u)

    report = check_family(type("Rare", (Lane,), prior_of(draw))(), seed, only=())
    assert [f.level for f in report.findings if f.checked == "prior"] == [OK], report.lines()


def test_rows_with_ties_are_no_dependence():
    """A number that is fixed, one of two values, and one that is drawn."""
    g = torch.Generator().manual_seed(0)
    u = torch.rand(PAIRS, 2, 2, generator=g, dtype=torch.float64)
    assert rows_together(torch.stack([0 * u[..., 0], (u[..., 0] > 0.7).double(), u[..., 1]], -1)) == ""


@pytest.mark.parametrize(
    "ranges", [((0.2, -0.2),), (0.0, 1.0), ((0.0, float("nan")),), ((0.0, 1.0, 2.0),), ((0.0, 1.0), (2.0,))]
)
def test_ranges_of_a_prior_are_pairs(ranges):
    with pytest.raises(SettingError, match=r"ranges \(low, high\)"):
        uniform_prior(*ranges)


@pytest.mark.parametrize(("changes", "checked", "words"), FAMILIES.values(), ids=FAMILIES.keys())
def test_families_that_lie(changes, checked, words):
    settings = {k: v for k, v in changes.items() if k in Lane.__dataclass_fields__}
    methods = {k: v for k, v in changes.items() if k not in settings}
    require_found(type("Liar", (Lane,), methods)(**settings), checked, words)


class Port:
    def close(self):
        pass


NOTED = {
    "one list for all": ({"pays": False}, "densities are needed", "all theta share one best list"),
    "outliers": ({"simulated": type("O", (LaneSimulators,), {"shown": outliers})}, "box of readings", "outliers"),
    "a wide box": ({"margin": 6e4}, "box of readings", "much wider"),
    "rounded": (
        {"simulated": type("R", (LaneSimulators,), {"shown": lambda self, x: x.mul(10).round() / 10})},
        "readings vary",
        "rounded",
    ),
    "no close": (
        {"worlds": type("W", (LaneWorld,), {"begin": lambda self: setattr(self, "port", Port())})},
        "worlds",
        "has no close",
    ),
    "far from 0": ({"place": 4.5e4}, "distance of readings from 0", "float32"),
    "not registered": ({}, "name and parameters", "register_family"),
}


@pytest.mark.parametrize(("settings", "checked", "words"), NOTED.values(), ids=NOTED.keys())
def test_what_is_noted(settings, checked, words):
    require_found(Lane(**settings), checked, words, NOTE)


def test_a_report_is_one_error():
    fine, bad = Finding("a", OK, "fine"), Finding("b", REFUSED, "bad", "a slip", "write it", SettingError)
    Report("mine", (fine,)).require()
    with pytest.raises(
        SettingError, match=r"expected mine: b; got bad \(and 1 more: c\); likely cause: a slip; write it"
    ):
        Report("mine", (fine, bad, replace(bad, checked="c"))).require()
    with pytest.raises(SimulatorError):
        Report("mine", (Finding("b", REFUSED, "bad"),)).require()
    assert Report("mine", (fine, bad)).lines()[1] == "refused b: bad; a slip; write it"


def test_a_check_leaves_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    check_family(Lane(simulated=type("L", (LaneSimulators,), SIMULATORS["numpy global"][0])), only={"randomness"})
    assert torch.equal(before[0], torch.get_rng_state()) and random.getstate() == before[2]
    assert (before[1] == np.random.get_state()[1]).all()


def test_the_same_seed_finds_the_same():
    assert check_family(make_family("mixture"), 3) == check_family(make_family("mixture"), 3)


def test_held_out_predictions_are_exact():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, generator=g, dtype=torch.float64)
    noise = torch.rand(40, 1, generator=g, dtype=torch.float64)
    assert Regression(x).explained(x[:, :1] * x[:, 1:2]) > 0.9 and Regression(x).explained(noise) < 0.2


class Faint(Lane):
    """Noise whose width differs by 5 % at most between simulators, and tells what pays."""

    def width(self, theta):
        return 0.2 * (1 + 0.05 * theta[:, :1])


def test_what_few_readings_hardly_tell_is_looked_at_again(monkeypatch):
    assert check_family(Faint())["what pays shows"][0].level == OK
    monkeypatch.setattr(payoff, "LOOKS", payoff.LOOKS[:1])
    assert check_family(Faint())["what pays shows"][0].level != OK


def test_how_many_readings_close_states_take_is_said_and_noted_where_no_run_draws_them(monkeypatch):
    check = lambda: check_family(Lane(spacing=0.01), only={"one state graph for all"})["states can be told apart"][0]  # noqa: E731
    assert (MergeSettings().n_merge, MergeSettings().n_merge_most) == (truth.N_MERGE, truth.N_MERGE_MOST)
    found = check()
    assert found.level == OK and "a run draws more, about 2600 are enough" in found.found
    monkeypatch.setattr(truth, "N_MERGE_MOST", 2500)
    assert check().level == NOTE and check().write == "density.merge.n_merge_most=2600 or more"


# -- where the family knows no states ----------------------------------------------------------------------------------


def test_states_are_explored_where_nobody_knows_them():
    report = check_for_a_run(Lane(truthful=False))
    assert report.refused == () and report["densities are needed"][0].level == OK
    assert report["what pays shows"][0].level == OK and "6 states" in report["one state graph for all"][0].found
    hidden = check_for_a_run(Lane(truthful=False, seen=False))
    assert "w decides what pays" in hidden["what pays shows"][0].cause


@pytest.mark.parametrize("seed", range(12))
def test_dynamics_that_theta_changes_are_found_without_a_truth(seed):
    """Whether most of the simulators merge two states, or few do, or half of them."""
    liar = type("Liar", (LaneSimulators,), {"moved": by_theta})
    report = check_for_a_run(Lane(simulated=liar, truthful=False), seed)
    assert any("theta changes where actions lead" in f.cause for f in report.findings), report.lines()


# -- Gymnasium environments --------------------------------------------------------------------------------------------


class Cart(gymnasium.Env):
    """Three steps on a rail; the right end pays `self.pay`, the left end 0.5."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-3.0, 3.0, (1,))
    pay = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.place += 2 * action - 1
        paid = {3: self.pay, -3: 0.5}.get(self.place, 0.0)
        return np.array([float(self.place)]), paid, abs(self.place) == 3, False, {}


class OnWrapper(gymnasium.Wrapper):
    def __init__(self, env, pay):
        super().__init__(env)
        self.pay = pay


def on_env(pay):
    env = Cart()
    env.pay = pay
    return env


def cart(make, **changes):
    settings = {
        "name": "cart",
        "make": make,
        "prior": uniform_prior((0.0, 1.0)),
        "theta_names": ("w",),
        "sensor": AffineSensor(("x",), width=lambda theta: 0.2 + 0.4 * theta[:, 0]),
        "bernoulli_rewards": True,
        "reward_scale": 1.0,
        "horizon": 3,
        "max_states_per_layer": 3,
    }
    return GymFamily(**(settings | changes))


def test_theta_on_a_wrapper_never_reaches_the_environment():
    report = check_family(cart(lambda theta: OnWrapper(Cart(), float(theta[0]))), only=())
    (found,) = report["theta in the environment"]
    assert found.level == REFUSED and "pay of the wrapper OnWrapper" in found.found and "unwrapped" in found.write
    inside = check_family(cart(lambda theta: on_env(float(theta[0])), shared_dynamics=False), only={"worlds"})
    (found,) = inside["theta in the environment"]
    assert found.level == OK and "pay of Cart" in found.found and inside.refused == ()
    outside = check_family(cart(lambda theta: Cart(), reward=lambda theta, moves: theta * moves.raw))
    assert outside.refused == () and "not handed to it" in outside["theta in the environment"][0].found


def test_a_start_that_the_seed_decides_is_noted():
    def anywhere(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.place = int(self.np_random.integers(-1, 2))
        return np.array([float(self.place)]), {}

    report = check_family(cart(lambda theta: type("Anywhere", (Cart,), {"reset": anywhere})()), only=())
    assert any("another seed of the reset starts elsewhere" in f.found for f in report.notes)


def test_several_payments_of_an_episode_add_up():
    family = cart(lambda theta: Cart(), reward=lambda theta, moves: 0.3 + 0 * moves.raw)
    require_found(family, "rewards and whole episodes", "add up to|total 2")


def test_states_that_one_reading_does_not_tell_apart_are_named(monkeypatch):
    """Noise of three places' width: at the start of the lane to stay is best where w is large, elsewhere to go on."""
    monkeypatch.setattr(lanes, "SPREAD", 1.5)
    (found,) = check_family(Lane(noise="gaussian"))["one reading tells what to do"]
    assert found.level == NOTE and "(Assumption 1)" in found.cause and "overlap by" in found.found


def test_overlap_is_the_share_that_densities_share():
    """Two uniform laws of width 1, moved by m, share 1 - m; a reading that is shared is nearer to the other half the
    time, and both ways count."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, 2000, 1, dtype=torch.float64, generator=generator)
    x += torch.tensor([0.0, 0.25, 5.0])[:, None, None]
    shared = overlaps(x).mean(0)
    assert float(shared[0, 1]) == pytest.approx(0.75, abs=0.03) and float(shared[0, 2]) == 0.0
    assert torch.equal(shared, shared.mT)
