"""Families from functions, plain or batched: the same dynamics three ways give the same family; slips are named."""

import numpy as np
import pytest
import torch
from support.lanes import random_family

from s2r_torch.episodes import Guard, Ledger, rollout
from s2r_torch.errors import (
    GraphMismatchError,
    ObservationError,
    RewardError,
    S2RError,
    SettingError,
    SimulatorError,
)
from s2r_torch.families import exact
from s2r_torch.families.check import check_family
from s2r_torch.families.function import BatchedFamily, FunctionFamily
from s2r_torch.families.replay import tree
from s2r_torch.families.replay.proposals import propose_scale
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.rng import Seed

SENSOR = AffineSensor(("x",), offset=lambda theta: theta[:, 1], width=lambda theta: 0.2 + 0.2 * theta[:, 0])
SHARED = {
    "name": "rail",
    "num_actions": 2,
    "prior": uniform_prior((0.0, 1.0), (-0.5, 0.5)),
    "theta_names": ("w", "offset"),
    "sensor": SENSOR,
    "horizon": 3,
}


def plain(theta, place, action):
    place += 2 * action - 1
    return place, theta.w if place == 3 else 1 - theta.w if place == -3 else 0.0


def batch(theta, states, actions):
    states = states + (2 * actions - 1)[..., None]
    w, place = theta[:, :1], states[..., 0]
    return states, w * (place == 3) + (1 - w) * (place == -3)


def arrays(theta, states, actions):
    return batch(theta.numpy(), states.numpy(), actions.numpy())


def rail(step=plain, **changes):
    return FunctionFamily(**(SHARED | {"step": step, "start": 0} | changes))


def run(family, n=40):
    theta = family.prior(5, Seed.root(0).generator())
    guard = Guard(family.simulators(theta, range(5)), Ledger(), "test")
    actions = torch.randint(2, (n, 3), generator=Seed.root(1).generator())
    return theta, rollout(guard, lambda step, x: actions[:, step].expand(5, n).contiguous(), n, Seed.root(2))


def test_three_ways_to_write_one_family():
    families = [rail()] + [BatchedFamily(**SHARED, step=step, start=(0.0,)) for step in (batch, arrays)]
    (theta, first), *others = [run(family) for family in families]
    for family, (_, runs) in zip(families[1:], others, strict=True):
        assert torch.equal(runs.x, first.x) and torch.equal(runs.rewards, first.rewards)
        assert family.spec == families[0].spec
    truth = families[0].truth(theta)
    assert truth.graph.states_per_layer == [1, 2, 3] and families[0].bernoulli_rewards
    best = torch.maximum(theta[:, 0], 1 - theta[:, 0])
    assert torch.allclose(exact.optimal(truth)[0][:, 0], best)


def test_its_world_is_stepped_and_looks_at_no_reward():
    def untouched(theta, place, action):
        return place + action, Untouchable()

    class Untouchable:
        def __float__(self):
            raise AssertionError("a reward was touched")

    family = rail()
    family.dynamics.__dict__["step"] = untouched
    world = family.world(torch.tensor([0.5, 0.0], dtype=torch.float64), Seed.root(0).generator())
    world.reset(3)
    assert torch.equal(world.step(torch.tensor([0, 1, 1])).round(), torch.tensor([[0.0], [1.0], [1.0]]))


def test_states_may_be_lists_that_are_written_into():
    def step(theta, state, action):
        state[0] += action
        return state, 0.1

    assert rail(step, start=[0]).spec.max_states_per_layer == 3


def test_a_box_holds_the_readings_of_all_theta_where_theta_changes_the_dynamics():
    def step(theta, place, action):
        return place + action + (2 if theta.w > 0.5 else -2), theta.w / 3

    family = rail(step, num_actions=2, shared_dynamics=False)
    theta = torch.tensor([[0.2, 0.0], [0.9, 0.0]], dtype=torch.float64)
    simulators = family.simulators(theta, (0, 1))
    simulators.reset(50, [torch.Generator().manual_seed(b) for b in range(2)])
    for _ in range(family.horizon - 1):
        x, _ = simulators.step(torch.ones(2, 50, dtype=torch.int64))
    assert family.spec.low[0] < float(x[0].min()) < -1 and 4 < float(x[1].max()) < family.spec.high[0]


def test_episodes_that_end_need_no_horizon():
    def step(theta, place, action):
        place += 1 + action
        return place, 1.0 * (place == 4), place >= 4

    family = rail(step, horizon=None)
    assert family.spec.horizon == 4 and family.proposed["horizon"].startswith("4: every episode")


@pytest.mark.parametrize(
    ("step", "start", "error", "words"),
    [
        (lambda t, s, a: None, 0, SimulatorError, r"\(state, reward\) .* got NoneType"),
        (lambda t, s, a: (s, 0.1, False, False, {}), 0, SimulatorError, "Gymnasium's five values"),
        (lambda t, s, a: (s, None), 0, RewardError, "finite mean reward .* got None for action 0 in state 0"),
        (lambda t, s, a: (s, float("nan")), 0, RewardError, "got nan"),
        (lambda t, s, a: ({"x": s}, 0.1), 0, ObservationError, "a tuple of them; got dict"),
        (lambda t, s, a: (10**400, 0.1), 0, ObservationError, "a finite number"),
        (lambda t, s, a: (s, 10**400), 0, RewardError, "finite mean reward"),
        (lambda t, s, a: (None, 0.1), 0, ObservationError, "got NoneType"),
        (lambda t, s, a: (1 / 0, 0.1), 0, SimulatorError, "ZeroDivisionError"),
        (lambda t, s, a: exit(), 0, SimulatorError, "SystemExit"),
        (lambda t, s, a: (s, t.gain), 0, SimulatorError, "AttributeError"),
        (lambda t, s, a: (s + (np.random.random() < 0.5), 0.1), 0, SimulatorError, "random"),
        (
            lambda t, s, a: (s, float(np.random.random() < 0.5) / 3),
            0,
            S2RError,
            "rewards are random: give their mean",
        ),
        (lambda t, s, a: (s + (t.w > 0.5), 0.1), 0, SimulatorError, "dynamics depend on theta"),
        (lambda t, s, a: (s, 0.1), "text", ObservationError, "got str"),
        (lambda t, s, a: (s, 0.1), {"x": 1}, ObservationError, "got dict"),
        (lambda t, s, a: (s, 0.1), "12", ObservationError, "got str: 12"),
        (lambda t, s, a: ((s[0], "1"), 0.1), (0, 1), ObservationError, "got tuple"),
        (lambda t, s, a: (s, "0.1"), 0, RewardError, "finite mean reward"),
        (lambda t, s, a: (s, 0.1, "false"), 0, SimulatorError, "True or False for the end .*; got 'false'"),
    ],
)
def test_what_a_step_must_return(step, start, error, words):
    with pytest.raises(error, match=words):
        run(rail(step, start=start))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step": lambda t, s, a: ((1, 2), 0.1)}, "1 latent numbers in every state.* got 2"),
        ({"horizon": 0}, "horizon >= 1, a whole number; got 0"),
        ({"horizon": 2.5}, "horizon: a whole number; got float: 2.5"),
        ({"horizon": 10**6}, "horizon <= 400; got 1000000"),
        ({"num_actions": True}, "num_actions: a whole number; got bool: True"),
        ({"num_actions": 2.0}, "num_actions: a whole number; got float: 2.0"),
        ({"num_actions": 5000}, "num_actions <= 4096; got 5000; likely cause: a continuous action cut fine"),
        ({"prior": lambda n, g: torch.zeros(3, 2, dtype=torch.float64)}, "[0-9]+ rows from the prior, as asked; got 3"),
        ({"max_states_per_layer": 0}, "max_states_per_layer >= 1"),
        ({"theta_names": "both"}, r"theta of shape \[B, 1\]: both"),
        ({"sensor": None}, "a sensor with low, high, names and read.* got NoneType without"),
        ({"sensor": AffineSensor}, "without read|sensor"),
        ({"sensor": AffineSensor(("x",), width=-1.0)}, "a width of the noise >= 0; got -1"),
        ({"sensor": AffineSensor(("x",), width=lambda t: t[:, 0] * torch.nan)}, "a width of the noise >= 0; got nan"),
        ({"sensor": AffineSensor(("x",), gain=lambda t: t[:, :, None])}, r"gain: \[B\] or \[B, 1\] numbers .*a matrix"),
    ],
)
def test_a_family_that_makes_no_sense_is_one_error(wrong, words):
    with pytest.raises(S2RError, match=words):
        run(rail(**({"step": plain} | wrong)))


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_step_that_counts_its_calls_is_found(period):
    calls = []

    def step(t, s, a):
        calls.append(a)
        return s, 0.1 if len(calls) % period else 0.3

    with pytest.raises(S2RError, match="rewards are random"):
        run(rail(step))


def test_other_slips():
    with pytest.raises(SettingError, match="theta_names that are different identifiers"):
        rail(theta_names=("w", "w"))
    with pytest.raises(SettingError, match="num_actions >= 1"):
        rail(num_actions=0)
    with pytest.raises(SettingError, match="theta of shape"):
        rail(theta_names=("w", "offset", "gain"))
    with pytest.raises(SimulatorError, match="theta is .B, k."):
        wrong = {"step": lambda theta, s, a: (s, theta[:, 0]), "start": (0.0,), "horizon": 3}
        run(BatchedFamily(**(SHARED | wrong)))
    with pytest.raises(S2RError, match="at least 2 latent numbers"):
        run(rail(sensor=AffineSensor(("x",), columns=(1,))))


def test_a_quadrature_of_the_wrong_shape_is_named():
    class Flat(AffineSensor):
        def quadrature(self, theta, latent):
            x, weight = super().quadrature(theta, latent)
            return x[:, 0], weight[:, 0]

    family = rail(sensor=Flat(("x",)))
    with pytest.raises(SettingError, match=r"points \[5, 6, m, 1\] and their weights .*; got shapes \[5, 5, 1\]"):
        family.truth(family.prior(5, Seed.root(0).generator()))


@pytest.mark.parametrize("noise", ["bump", "gaussian"])
def test_quadrature_is_the_law_that_is_read(noise):
    sensor = AffineSensor(
        ("x", "y"),
        columns=(2, 0),
        centre=(0.5, 1.0),
        gain=lambda t: 1 + t[:, :2],
        rotation=lambda t: t[:, 1],
        offset=lambda t: t[:, [1, 0]],
        width=lambda t: 0.2 + t[:, 0],
        noise=noise,
    )
    theta = torch.tensor([[0.2, 0.7], [0.9, -1.0]], dtype=torch.float64)
    latent = torch.tensor([[1.0, 9.0, 2.0], [0.0, 9.0, -1.0]], dtype=torch.float64)
    x, weight = sensor.quadrature(theta, latent)
    drawn = torch.stack(
        [sensor.read(theta, row.expand(2, 20_000, 3), Seed.root(3).generators([0, 1])) for row in latent], 1
    )
    for power in (1, 2):
        expected = (weight[..., None] * x**power).sum(2)
        assert torch.allclose((drawn**power).mean(2), expected, atol=0.1)
    one = sensor.read(theta[1:], latent[:1].expand(1, 9, 3), Seed.root(3).generators([1]))
    both = sensor.read(theta, latent[:1].expand(2, 9, 3), Seed.root(3).generators([0, 1]))
    assert torch.equal(one[0], both[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"noise": "cauchy"},
        {"low": (0.0, 0.0), "high": (1.0, 1.0)},
        {"low": (0.0,)},
        {"columns": (0, 1)},
        {"rotation": 1.0},
        {"names": ()},
        {"smoothness": 0},
    ],
)
def test_sensors_that_make_no_sense(settings):
    with pytest.raises(SettingError):
        AffineSensor(**({"names": ("x",)} | settings))


def test_a_parameter_of_the_wrong_shape_is_named():
    sensor = AffineSensor(("x",), offset=lambda theta: theta[0])
    with pytest.raises(SettingError, match=r"theta\[0\] in place of theta\[:, 0\]"):
        sensor.read(torch.zeros(3, 2), torch.zeros(3, 4, 1), Seed.root(0).generators(range(3)))


@pytest.mark.parametrize("seed", range(3))
def test_a_random_family_is_what_it_says(seed):
    family = random_family(seed)
    theta = family.prior(3, Seed.root(seed).generator())
    truth, A = family.truth(theta), family.spec.num_actions
    assert max(truth.graph.states_per_layer) == family.spec.max_states_per_layer
    guard = Guard(family.simulators(theta, range(3)), Ledger(), "test")
    actions = torch.randint(A, (500, family.spec.horizon), generator=Seed.root(1).generator())
    runs = rollout(guard, lambda step, x: actions[:, step].expand(3, 500).contiguous(), 500, Seed.root(2))
    states = truth.graph.visited(actions)
    reward = (truth.weight[..., None] * truth.reward).sum(2)[:, states, actions]  # [3, 500, H]
    assert float((runs.rewards - reward).mean().abs()) < 0.02
    assert bool(
        ((runs.x > torch.tensor(family.spec.low)) & (runs.x < torch.tensor(family.spec.high))).float().mean() > 0.99
    )


def test_a_theta_that_pays_more_than_the_sampled_ones_names_the_scale():
    family = rail(lambda t, s, a: (s, 50.0 * t.w), horizon=1, bernoulli_rewards=True)
    theta = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    with pytest.raises(RewardError, match="a scale taken from simulation, .*: give reward_scale=180"):
        rollout(
            Guard(family.simulators(theta, [0]), Ledger(), "test"),
            lambda step, x: torch.zeros(1, 4, dtype=torch.int64),
            4,
            Seed.root(0),
        )


def test_an_end_that_readings_do_not_show():
    """Action 2 ends the ride on the spot, and the sensor sees the spot alone; one that shows the end, too, is fine."""

    def ride(theta, state, action):
        place, over = state
        return ((place, 1), theta.w, True) if action == 2 else ((place + 2 * action - 1, over), 0.0)

    given = {"step": ride, "start": (0, 0), "num_actions": 3}
    (finding,) = check_family(rail(**given), only=("one state graph for all",)).refused
    assert finding.checked == "states can be told apart" and "the episode has ended after (" in finding.cause
    assert finding.cause.split("after (")[1].split(")")[0].endswith("2, 0") and "the end" in finding.write
    seen = AffineSensor(("x", "over"), offset=lambda theta: theta[:, [1, 1]], width=0.2)
    assert not check_family(rail(**given, sensor=seen), only=("one state graph for all",)).refused


def test_small_rewards_are_scaled_up():
    """Fares of at most 0.1, paid at random: undivided, their noise is ten times what is to be learned."""
    small = rail(lambda t, p, a: (p + 2 * a - 1, 0.1 * t.w if p == 2 else 0.0))
    assert small.bernoulli_rewards and 0.1 < small.spec.reward_scale < 0.115
    _, runs = run(small)
    assert set(runs.rewards.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("totals", "scale"), [([0.9, 0.2], 1.0), ([2.0], 2.1), ([0.1], 0.105), ([0.0], 1.0)])
def test_the_scale_of_rewards_follows_from_their_largest_total(totals, scale):
    assert propose_scale(torch.tensor(totals * 100, dtype=torch.float64)) == pytest.approx(scale)


def test_hardly_any_theta_pays_more_than_the_scale():
    """Totals of exponential tail, 256 of them, 200 times: of as many new ones as a run draws, hardly any is above."""
    totals = torch.empty(200, 256 + 1500, dtype=torch.float64).exponential_(generator=Seed.root(0).generator())
    above = [bool((row[256:] > propose_scale(10 * row[:256]) / 10).any()) for row in totals]
    assert sum(above) <= 6  # 165 with a margin of 5 % of the largest


class Reading:
    """A sensor of one's own: an `AffineSensor`, and what it makes of what it is given."""

    low, high, names = (-9.0,), (9.0,), ("x",)
    inner = AffineSensor(("x",), offset=lambda theta: theta[:, 0], width=lambda theta: 0.2 + theta[:, 1] / 2)

    def __init__(self, read=lambda sensor, *given: sensor.read(*given), **parts):
        self._read = read
        vars(self).update(parts)

    def read(self, *given):
        return self._read(self.inner, *given)


def railed(**changes):
    def step(theta, place, action):
        place += 1 if action == 1 else -1
        return place, theta.w if place == 3 else 1 - theta.w if place == -3 else 0.0

    parts = {
        "name": "railed",
        "step": step,
        "start": 0,
        "num_actions": 2,
        "horizon": 3,
        "theta_names": ("offset", "w"),
        "prior": uniform_prior((-0.2, 0.2), (0.0, 1.0)),
        "sensor": Reading(),
    }
    return FunctionFamily(**parts | changes)


def test_readings_in_float32_are_readings():
    check_family(railed(sensor=Reading(lambda sensor, *given: sensor.read(*given).float()))).require()


def test_a_sensor_that_writes_into_theta_is_named():
    def writing(sensor, theta, latent, generators):
        theta.mul_(0.9)
        return sensor.read(theta, latent, generators)

    simulators = railed(sensor=Reading(writing)).simulators(torch.ones(1, 2) / 10, (0,))
    with pytest.raises(SettingError, match="a sensor of railed that leaves what it is given as it is"):
        simulators.reset(2, [torch.Generator()])


def test_settings_of_a_family_are_its_own():
    settings = {"sizes": [1]}
    family = railed(settings=settings)
    settings["sizes"].append(2)
    family.parameters()["sizes"].append(3)
    assert family.parameters() == {"sizes": [1]}
    with pytest.raises(SettingError, match="settings: dict; got list"):
        railed(settings=[1])


def test_edges_of_a_box_are_numbers_and_smoothness_is_one_of_any_library():
    with pytest.raises(SettingError, match="low: a number per coordinate, in a tuple; got -5.0"):
        AffineSensor(("x",), low=-5.0, high=5.0)
    assert AffineSensor(("x",), low=np.array([-5.0]), high=[5.0], smoothness=np.int64(2)).smoothness == 2


def test_a_quadrature_in_numpy_is_one():
    def quadrature(theta, latent):
        return (part.numpy() for part in Reading.inner.quadrature(theta, latent))

    theta = torch.tensor([[0.1, 0.3]], dtype=torch.float64)
    family, plain = railed(sensor=Reading(quadrature=quadrature)), railed(sensor=Reading.inner)
    assert torch.equal(family.truth(theta).x, plain.truth(theta).x)


def test_a_box_of_few_states_holds_heavy_tails():
    """Noise of 6 scales at most, under few theta: of 1 % of readings outside a run would complain."""

    class Tails(Reading):
        low = high = None

        def read(self, theta, latent, generators):
            u = torch.stack([torch.rand(latent.shape[1], generator=g, dtype=torch.float64) for g in generators])
            return (theta[:, :1] - (theta[:, 1:] > 0.96) * torch.log1p(-0.9975 * u))[..., None]

    family = railed(step=lambda theta, place, action: (1, theta.w), horizon=1, sensor=Tails())
    theta = family.prior(64, Seed.root(1).generator())
    x = family.simulators(theta, range(64)).reset(4000, Seed.root(2).generators(range(64)))
    assert float((x > family.spec.high[0]).double().mean((1, 2)).max()) < 0.001


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda x: x.numpy(), r"ndarray of shape \[."),
        (lambda x: x[..., 0], r"Tensor of shape \[."),
        (lambda x: x.mT, r"Tensor of shape \[.*, 1, "),
    ],
)
@pytest.mark.parametrize("box", [{}, {"low": None, "high": None}])
def test_readings_of_another_kind_are_named(change, got, box):
    sensor = Reading(lambda sensor, *given: change(sensor.read(*given)), **box)
    with pytest.raises(ObservationError, match=f"a tensor .B, n, d. from read of the sensor, .* got {got}"):
        run(railed(sensor=sensor))


@pytest.mark.parametrize("at_once", [1, 20, tree.COMPARED])
def test_states_that_differ_by_rounding_alone_are_named(monkeypatch, at_once):
    """0.1 + 0.2 - 0.1 is not 0.2: fractions that are summed in another order made states of their own."""

    def walk(size):
        return lambda theta, place, action: (place + (size if action else -size), theta.w if action else 1 - theta.w)

    monkeypatch.setattr(tree, "COMPARED", at_once)
    sums, theta = railed(step=walk(0.125), horizon=5, sensor=Reading.inner), torch.tensor([[0.0, 0.5]])
    assert len(sums.truth(theta).graph.paths) == 15
    for size in (0.1, 1e5 + 0.1):
        with pytest.raises(GraphMismatchError, match=r"rounding does; got .*likely cause: fractions summed in another"):
            railed(step=walk(size), horizon=5, sensor=Reading.inner).truth(theta)


@pytest.mark.parametrize(("start", "size"), [(1.7e9, 1.0), (5e6, 2.0**-10), (1.0, 2.0**-40), (0.0, 2.0**-60)])
def test_states_may_differ_little_beside_where_they_are(start, size):
    """Seconds since 1970, millimetres of a map's metres, and units that make all numbers small."""

    def step(theta, place, action):
        return place + (size if action else -size), theta.w if action else 1 - theta.w

    family = railed(step=step, start=start, horizon=5, sensor=Reading.inner)
    assert len(family.truth(torch.tensor([[0.0, 0.5]])).graph.paths) == 15
