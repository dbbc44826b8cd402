"""One door to simulators and worlds: everything that passes is counted, checked, and a function of its names."""

import itertools

import pytest
import torch
from support.worlds import Tabular, layered, random_world

from s2r_torch.episodes import Guard, Ledger, observe, rollout, try_actions
from s2r_torch.errors import ObservationError, RewardError, SettingError, SimulatorError
from s2r_torch.rng import Seed

THETA = (-0.9, 0.1, 0.7)
WORLD = random_world(7, 3, 2)
SEED = Seed.root(0)
PATH = WORLD.graph.paths[-1]


class Faulty:
    """Simulators that do as told in `step` or `reset`, and otherwise as WORLD's."""

    def __init__(self, reset=lambda x: x, step=lambda x, reward: (x, reward), theta=THETA):
        self.inner, self.on_reset, self.on_step = WORLD.simulators(theta), reset, step
        self.spec, self.ids = self.inner.spec, self.inner.ids

    def reset(self, n, generators):
        return self.on_reset(self.inner.reset(n, generators))

    def step(self, actions):
        return self.on_step(*self.inner.step(actions))

    def select(self, indices):
        return self.inner.select(indices)


def guarded(**faults):
    return Guard(Faulty(**faults), Ledger(), "test")


def first(step, x):
    """A policy that takes action 0."""
    return torch.zeros(x.shape[:2], dtype=torch.int64)


def helpers(guard):
    return {
        "observe": lambda: observe(guard, PATH, 5, SEED),
        "try_actions": lambda: try_actions(guard, PATH, 5, SEED),
        "rollout": lambda: rollout(guard, first, 5, SEED),
    }


@pytest.mark.parametrize("name", ["observe", "try_actions", "rollout"])
def test_every_helper_counts_what_it_draws(name):
    ledger = Ledger()
    guard = WORLD.guard(THETA, "explore", ledger)
    helpers(guard)[name]()
    assert ledger.counts == {"explore": 3 * 5}
    helpers(guard.select([1]))[name]()
    assert ledger.counts == {"explore": 3 * 5 + 5}
    helpers(guard.for_purpose("rollout"))[name]()
    assert ledger.counts == {"explore": 3 * 5 + 5, "rollout": 3 * 5}


def test_observations_are_those_at_the_end_of_the_path():
    for path in WORLD.graph.paths:
        x = observe(WORLD.guard(THETA), path, 50, SEED)
        assert x.shape == (3, 50, 1)
        assert (x.floor() == WORLD.number[WORLD.graph.end(path)]).all()


def test_tried_actions_are_uniform_and_paid_at_the_end_of_the_path():
    graph = WORLD.graph
    paying = torch.zeros_like(WORLD.rewards)
    state = graph.num_states - 1
    paying[state, :, 1] = WORLD.payment  # for sure
    world = Tabular(graph, WORLD.number, paying, torch.zeros_like(paying))
    data = try_actions(world.guard(THETA), graph.paths[state], 4000, SEED)
    assert torch.equal(data.rewards, WORLD.payment * data.actions.double())
    assert (data.actions.double().mean(1) - 0.5).abs().max() < 0.04  # five standard deviations
    assert torch.equal(data.x, observe(world.guard(THETA), graph.paths[state], 4000, SEED))


def test_rollouts_follow_the_policy():
    def act(step, x):
        return ((2 * x[..., 0]).floor().long() + step) % 2

    episodes = rollout(WORLD.guard(THETA), act, 20, SEED)
    assert episodes.x.shape == (3, 20, 3, 1) and episodes.rewards.shape == (3, 20, 3)
    for b, i in itertools.product(range(3), range(20)):
        for h in range(3):
            path = tuple(episodes.actions[b, i, :h].tolist())
            assert int(episodes.x[b, i, h, 0]) == WORLD.number[WORLD.graph.end(path)]
            assert episodes.actions[b, i, h] == act(h, episodes.x[b, i, h])
    assert torch.equal(episodes.returns, episodes.rewards.sum(-1))
    assert episodes.returns.min() >= 0 and 0 < episodes.returns.max() <= 1


@pytest.mark.parametrize("name", ["observe", "try_actions", "rollout"])
def test_a_simulator_does_not_see_its_neighbours(name):
    """The same bits, whichever other simulators are in the batch and however often it is repeated."""

    def fields(result):
        return [result] if isinstance(result, torch.Tensor) else list(vars(result).values())

    whole = fields(helpers(WORLD.guard(THETA))[name]())
    for chosen in ([0], [2, 0], [2, 1, 0]):
        part = fields(helpers(WORLD.guard(THETA).select(chosen))[name]())
        assert all(torch.equal(p, w[chosen]) for p, w in zip(part, whole, strict=True))
    renamed = Guard(WORLD.simulators(THETA, ids=(5, 6, 7)), Ledger(), "test")
    other = fields(helpers(renamed)[name]())
    assert not torch.equal(other[0], whole[0])


# -- what is refused ------------------------------------------------------------------------------------------------


def test_nan_names_the_simulator_and_the_actions():
    def spoil(x, reward):
        if x is not None:
            x[1, 3] = torch.nan
        return x, reward

    with pytest.raises(ObservationError, match=r"1 of 15 not finite.*in simulator 1 after actions 0"):
        rollout(guarded(step=spoil), first, 5, SEED)
    with pytest.raises(ObservationError, match="not finite"):
        observe(guarded(reset=lambda x: x / 0), (), 5, SEED)


def test_finite_readings_whose_sum_is_not_are_taken():
    x = observe(guarded(reset=lambda x: x * 0 + 1e308), (), 5, SEED)
    assert float(x.max()) == 1e308 and not torch.isfinite(x.sum())


@pytest.mark.parametrize("reward", [1.5, -0.1, torch.nan, torch.inf])
def test_rewards_out_of_range(reward):
    with pytest.raises(RewardError, match="in simulator 0 after actions 1"):
        try_actions(guarded(step=lambda x, r: (x, torch.full_like(r, reward))), PATH, 5, SEED)


def test_a_total_above_one():
    """Each reward may be fine and their sum not (theory.md C7)."""
    with pytest.raises(RewardError, match=r"total 1\.2 in simulator 0 after actions 0 0"):
        rollout(guarded(step=lambda x, r: (x, torch.full_like(r, 0.6))), first, 5, SEED)
    episodes = rollout(guarded(step=lambda x, r: (x, torch.full_like(r, 1 / 3))), first, 5, SEED)
    assert torch.allclose(episodes.returns, torch.ones(3, 5, dtype=torch.float64))


def test_rewards_are_scaled():
    world = Tabular(WORLD.graph, WORLD.number, WORLD.rewards, WORLD.tilt, reward_scale=40.0)
    scaled, plain = (try_actions(w.guard(THETA), PATH, 50, SEED).rewards for w in (world, WORLD))
    assert torch.allclose(scaled, plain) and plain.max() > 0
    raw = Guard(world.simulators(THETA), Ledger(), "test")
    raw.reset(50, SEED.generators(raw.ids))
    assert raw.inner.step(torch.zeros(3, 50, dtype=torch.int64))[1].max() > 1


def test_a_simulator_that_raises():
    def explode(x, reward):
        raise ZeroDivisionError("gear box")

    with pytest.raises(SimulatorError, match="step .* got ZeroDivisionError: gear box.*one of simulators") as caught:
        rollout(guarded(step=explode), first, 5, SEED)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(SimulatorError, match="fault in simulator 4"):
        observe(Guard(Named(), Ledger(), "test"), (), 5, SEED)


def test_an_error_of_this_library_passes_as_it_is():
    """A simulator that says itself what is wrong says it better than "it raised"."""

    def refuse(x, reward):
        raise SettingError(expected="a key in the ignition", got="none", cause="it is in the other coat")

    with pytest.raises(SettingError, match="other coat"):
        rollout(guarded(step=refuse), first, 5, SEED)


class Named(Faulty):
    """One simulator, called 4, that cannot even start."""

    def __init__(self):
        super().__init__(theta=(0.0,))
        self.ids = (4,)

    def reset(self, n, generators):
        raise OSError("no display")


@pytest.mark.parametrize(
    "shape", [lambda x: x[:, :4], lambda x: x[:2], lambda x: x[..., 0], lambda x: x.repeat(1, 1, 2)]
)
def test_observations_of_the_wrong_shape(shape):
    with pytest.raises(ObservationError, match=r"observations of shape \[3, 5, 1\]"):
        observe(guarded(reset=shape), (), 5, SEED)


@pytest.mark.parametrize("wrong", [lambda x: x.long(), lambda x: x > 1, lambda x: x.numpy(), lambda x: x.tolist()])
def test_observations_of_the_wrong_type(wrong):
    with pytest.raises(ObservationError, match="float64 tensor"):
        observe(guarded(reset=wrong), (), 5, SEED)


@pytest.mark.parametrize("shape", [lambda r: r[0], lambda r: r[..., None], lambda r: r.sum(), lambda r: r[:, :1]])
def test_rewards_of_the_wrong_shape(shape):
    """Broadcasting would pay every episode the reward of another one."""
    with pytest.raises(RewardError, match=r"rewards of shape \[3, 5\]"):
        try_actions(guarded(step=lambda x, r: (x, shape(r))), PATH, 5, SEED)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (torch.zeros(3, 5), "int64 actions"),
        (torch.zeros(3, 5, dtype=torch.bool), "int64 actions"),
        (torch.zeros(5, dtype=torch.int64), r"shape \[3, 5\]"),
        (torch.zeros(3, 5, 2, dtype=torch.int64), r"shape \[3, 5\]"),
        (torch.full((3, 5), 2), r"actions in 0 \.\. 1"),
        (torch.full((3, 5), -1), r"actions in 0 \.\. 1"),
    ],
)
def test_actions_that_are_none(actions, message):
    with pytest.raises(SettingError, match=message):
        rollout(WORLD.guard(THETA), lambda step, x: actions, 5, SEED)


def test_a_step_before_any_reset():
    with pytest.raises(SettingError, match="before reset"):
        WORLD.guard(THETA).step(torch.zeros(3, 5, dtype=torch.int64))


def test_an_episode_that_ends_early():
    with pytest.raises(SimulatorError, match="an episode of 3 actions; got its end after 1"):
        rollout(guarded(step=lambda x, r: (None, r)), first, 5, SEED)


@pytest.mark.parametrize("n", [0, -1])
def test_no_episodes(n):
    with pytest.raises(SettingError, match="n >= 1"):
        observe(WORLD.guard(THETA), (), n, SEED)


# -- simulators that lie --------------------------------------------------------------------------------------------


def test_a_simulator_may_reuse_its_buffers():
    """Readings that the next step overwrites were once deployed as those of another state."""
    buffer = {}

    def reuse(x, reward):
        kept = buffer.setdefault("x", x)
        if x is not None:
            kept.copy_(x)
        paid = buffer.setdefault("reward", torch.zeros_like(reward)).copy_(reward)
        return (None if x is None else kept), paid

    reused = rollout(guarded(reset=lambda x: buffer.setdefault("x", x).copy_(x), step=reuse), first, 20, SEED)
    fresh = rollout(guarded(), first, 20, SEED)
    assert torch.equal(reused.x, fresh.x) and torch.equal(reused.rewards, fresh.rewards)


def test_a_simulator_may_write_into_the_actions_it_was_given():
    simulators = Faulty()
    simulators.step = lambda actions: simulators.inner.step(actions.clone().add_(0 * actions.fill_(1)))
    episodes = rollout(Guard(simulators, Ledger(), "test"), first, 5, SEED)
    assert int(episodes.actions.max()) == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x, r: None, "two values from step.* got None"),
        (lambda x, r: "text", "two values from step.* got str"),
        (lambda x, r: (x, r, False, {}), "got tuple of 4.*Gymnasium's step.*simulators 0, 1, 2"),
        (lambda x, r: (x, r, False, False, {}), "got tuple of 5"),
        (lambda x, r: x, "two values from step.* got torch.float64"),
    ],
)
def test_what_step_returns(answer, message):
    inner = WORLD.simulators(THETA)
    faulty = Faulty()
    faulty.step = lambda actions: answer(*inner.step(actions))
    faulty.reset = inner.reset
    with pytest.raises(SimulatorError, match=message):
        rollout(Guard(faulty, Ledger(), "test"), first, 5, SEED)


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (lambda x: None, "None"),
        (lambda x: "text", "str"),
        (lambda x: {"row": x}, "dict"),
        (lambda x: (x, {}), r"tuple; .*return the observation alone"),
        (lambda x: x.to_sparse(), "sparse"),
        (lambda x: x.half(), "float16"),
        (lambda x: x + 0j, "complex"),
    ],
)
def test_what_reset_returns(answer, got):
    with pytest.raises(ObservationError, match=f"float64 tensor; got .*{got}"):
        observe(guarded(reset=answer), (), 5, SEED)


@pytest.mark.parametrize(
    "pay",
    [
        lambda r: None,
        lambda r: "0.5",
        lambda r: {},
        lambda r: [None],
        lambda r: r.to_sparse(),
        lambda r: r + 1j,
    ],
)
def test_what_is_no_reward(pay):
    with pytest.raises(RewardError, match="rewards as a tensor of real numbers"):
        rollout(guarded(step=lambda x, r: (x, pay(r))), first, 5, SEED)


def test_an_exit_of_user_code_is_an_error():
    def leave(x, reward):
        raise SystemExit(0)

    with pytest.raises(SimulatorError, match="SystemExit: 0"):
        rollout(guarded(step=leave), first, 5, SEED)


def test_a_one_step_problem():
    graph, number = layered([], 2)
    world = Tabular(graph, number, torch.full((1, 2, 2), 0.5), torch.zeros(1, 2, 2))
    assert rollout(world.guard(THETA), first, 4, SEED).x.shape == (3, 4, 1, 1)
    assert observe(world.guard(THETA), (), 4, SEED).shape == (3, 4, 1)
