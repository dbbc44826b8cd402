"""The contract that every family keeps, its truth against simulation, and the noise that all share."""

import json
import subprocess
import sys

import pytest
import torch
from scipy import stats

from s2r_torch.base import Simulators, UnlabelledWorld
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.episodes import Guard, Ledger, observe, rollout, try_actions
from s2r_torch.errors import SettingError
from s2r_torch.families import exact, make_family, noise
from s2r_torch.families.cliffwalking import CliffWalking
from s2r_torch.families.contract import Family
from s2r_torch.families.frozenlake import FrozenLake
from s2r_torch.families.grid import Grid
from s2r_torch.families.layered import depth_first
from s2r_torch.families.lock import Lock
from s2r_torch.families.mixture.family import Mixture
from s2r_torch.rng import Seed

FAMILIES = {
    "grid": Grid(),
    "grid4": Grid(width=4),
    "grid5": Grid(width=5, smoothness=1),
    "mixture": Mixture(horizon=3),
    "stacked": Mixture(horizon=4, max_states=3, num_actions=4, smoothness=4, base="stacked"),
    "chain": Mixture(horizon=3, max_states=3, num_actions=3, kind="chain", theta_law="two_point"),
    "frozenlake": FrozenLake(),
    "lock": Lock(),
    "cliffwalking": CliffWalking(),
}
Z = 4.5  # standard errors

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def draw_theta(family, n, seed=0):
    return family.prior(n, Seed.root(seed).generator())


def guarded(family, theta, ids=None):
    return Guard(family.simulators(theta, range(len(theta)) if ids is None else ids), Ledger(), "test")


def seeded_actions(family, step, shape):
    return torch.randint(family.spec.num_actions, shape, generator=Seed.root(step).generator())


def require_close(mean, expected, samples):
    """Means [...] of samples [..., n] agree with expectations, in standard errors."""
    error = samples.var(-1).div(samples.shape[-1]).sqrt().clamp(min=1e-9)
    assert float(((mean - expected) / error).abs().max()) < Z


@every_family
def test_prior_is_seeded_and_family_rebuilds_from_its_parameters(family):
    theta = draw_theta(family, 50)
    assert isinstance(family, Family) and theta.dtype == torch.float64 and len(theta) == 50
    assert torch.equal(theta, draw_theta(family, 50)) and not torch.equal(theta, draw_theta(family, 50, seed=1))
    rebuilt = make_family(family.name, **json.loads(json.dumps(family.parameters())))
    assert rebuilt.spec == family.spec and torch.equal(draw_theta(rebuilt, 50), theta)


@every_family
def test_simulators_keep_the_contract(family):
    simulators = family.simulators(draw_theta(family, 3), (7, 8, 9))
    assert isinstance(simulators, Simulators) and simulators.ids == (7, 8, 9)
    spec, low, high = family.spec, torch.tensor(family.spec.low), torch.tensor(family.spec.high)
    x = simulators.reset(40, Seed.root(0).generators(simulators.ids))
    total = torch.zeros(3, 40, dtype=torch.float64)
    for step in range(spec.horizon):
        assert x.shape == (3, 40, spec.obs_dim) and x.dtype == torch.float64
        assert bool(((x > low) & (x < high)).all())
        x, reward = simulators.step(seeded_actions(family, step, (3, 40)))
        assert reward.shape == (3, 40) and reward.dtype == torch.float64
        total += reward
    assert x is None and float(total.min()) >= 0 and float(total.max()) <= 1 + 1e-12
    with pytest.raises(SettingError, match="reset before step"):
        simulators.step(torch.zeros(3, 40, dtype=torch.int64))


@every_family
def test_a_simulators_bits_do_not_depend_on_its_batch(family):
    theta = draw_theta(family, 5)
    whole = guarded(family, theta)

    def act(step, x):
        return seeded_actions(family, step, (1, 33)).expand(len(x), 33)

    runs = rollout(whole, act, 33, Seed.root(3))
    for indices in ([1], [4, 2], [0, 1, 2]):
        part = rollout(whole.select(indices), act, 33, Seed.root(3))
        assert torch.equal(part.x, runs.x[indices]) and torch.equal(part.rewards, runs.rewards[indices])
    alone = rollout(guarded(family, theta[3:4], ids=[3]), act, 33, Seed.root(3))
    assert torch.equal(alone.x, runs.x[3:4]) and torch.equal(alone.rewards, runs.rewards[3:4])


@every_family
def test_truth_is_a_depth_first_graph_with_probability_weights(family):
    truth = family.truth(draw_theta(family, 4))
    graph, spec = truth.graph, family.spec
    assert torch.allclose(truth.weight.sum(-1), torch.ones(4, graph.num_states, dtype=torch.float64), atol=1e-12)
    assert max(graph.states_per_layer) <= spec.max_states_per_layer and graph.horizon == spec.horizon
    assert bool(((truth.x > torch.tensor(spec.low)) & (truth.x < torch.tensor(spec.high))).all())
    assert float(truth.reward.min()) >= 0
    again, states = depth_first(0, lambda s: graph.next_state[s].tolist(), graph.horizon)
    assert states == list(range(graph.num_states)) and again.paths == graph.paths
    assert [graph.end(path) for path in graph.paths] == states
    V, Q = exact.optimal(truth)
    assert float(V.min()) >= 0 and float(V.max()) <= 1 + 1e-12


@every_family
def test_observations_have_the_moments_of_the_truth(family):
    theta = draw_theta(family, 3)
    truth, simulators = family.truth(theta), guarded(family, theta)
    for state in range(0, truth.graph.num_states, 2):
        x = observe(simulators, truth.graph.paths[state], 2000, Seed.root(11).child(state))
        for power in (1, 2):
            expected = (truth.weight[:, state, :, None] * truth.x[:, state] ** power).sum(1)
            samples = (x**power).transpose(1, 2)
            require_close(samples.mean(-1), expected, samples)


@every_family
def test_rewards_have_the_means_of_the_truth(family):
    theta = draw_theta(family, 3)
    truth, simulators = family.truth(theta), guarded(family, theta)
    mean, payment = (truth.weight[..., None] * truth.reward).sum(2), getattr(family, "payment", 1.0)
    for state in range(truth.graph.num_states):
        data = try_actions(simulators, truth.graph.paths[state], 1000, Seed.root(5).child(state))
        for a in range(family.spec.num_actions):
            for b in range(3):
                rewards = data.rewards[b][data.actions[b] == a]
                assert bool(((rewards == 0) | (rewards == payment)).all())
                chance = min(float(mean[b, state, a]) / payment, 1.0)
                assert stats.binomtest(int((rewards > 0).sum()), len(rewards), chance).pvalue > 1e-5


def nearest_state_policy(family, truth, theta):
    """A deterministic policy whose actions are constant on every support, so that quadrature is exact."""
    centre = (truth.weight[..., None] * truth.x).sum(2)  # [B, xi, d]
    table = torch.randint(family.spec.num_actions, (truth.graph.num_states,), generator=Seed.root(2).generator())

    def act(step, x):
        if isinstance(family, Mixture):
            return (step + family.cell(x)) % family.spec.num_actions
        states = truth.graph.states_of(step)
        return table[states][torch.cdist(x, centre[:, states]).argmin(-1)]

    return act


@every_family
def test_policy_values_agree_with_rollouts(family):
    theta = draw_theta(family, 4)
    truth, simulators = family.truth(theta), guarded(family, theta)
    act = nearest_state_policy(family, truth, theta)
    returns = rollout(simulators, act, 3000, Seed.root(4)).returns
    require_close(returns.mean(-1), exact.policy_values(truth, act)[:, 0], returns)
    returns = rollout(simulators, lambda step, x: seeded_actions(family, step, x.shape[:2]), 3000, Seed.root(4)).returns
    require_close(returns.mean(-1), exact.uniform_value(truth), returns)


@every_family
def test_world_shows_observations_and_has_no_reward(family):
    theta, H, A = draw_theta(family, 1)[0], family.spec.horizon, family.spec.num_actions
    world = family.world(theta, Seed.root(0).generator())
    assert isinstance(world, UnlabelledWorld) and not any("reward" in name for name in dir(world))
    ledger = Ledger()
    guard = GuardedWorld(world, ledger)
    truth = family.truth(theta[None])
    actions = torch.tensor([step % A for step in range(H - 1)])
    states = truth.graph.visited(actions).tolist()
    x = [guard.reset(400)] + [guard.step(actions[step].repeat(400)) for step in range(H - 1)]
    for step, state in enumerate(states):
        expected = (truth.weight[0, state, :, None] * truth.x[0, state]).sum(0)
        require_close(x[step].mean(0), expected, x[step].T)
    assert ledger.counts == {"real": 400}
    again = family.world(theta, Seed.root(0).generator())
    assert torch.equal(again.reset(400), x[0]) and torch.equal(again.step(actions[0].repeat(400)), x[1])
    with pytest.raises(SettingError, match="reset before step"):
        world.step(actions[0].repeat(400))


@every_family
def test_errors_name_what_is_wrong(family):
    theta = draw_theta(family, 2)
    with pytest.raises(SettingError, match="theta of shape"):
        family.simulators(theta[0], [0, 1])
    with pytest.raises(SettingError, match="NaN"):
        family.simulators(theta * float("nan"), [0, 1])
    with pytest.raises(SettingError, match="2 ids"):
        family.simulators(theta, [0])
    with pytest.raises(SettingError, match="2 generators"):
        family.simulators(theta, [0, 1]).reset(3, Seed.root(0).generators([0]))


def test_grid_is_the_one_of_the_issue():
    family = Grid()
    truth = family.truth(draw_theta(family, 20000))
    assert truth.graph.states_per_layer == [1, 2, 3, 2, 1]
    assert float(exact.optimal(truth)[0][:, 0].mean()) == pytest.approx(0.678, abs=0.003)
    assert exact.open_loop(truth)[1] == 0.5
    path, _ = exact.open_loop(truth)
    assert truth.graph.end(path[:2]) == truth.graph.end((0, 1))  # the safe middle cell


def test_frozenlake_is_the_one_of_the_issue():
    family = FrozenLake()
    truth = family.truth(draw_theta(family, 2000))
    assert truth.graph.states_per_layer == [1, 3, 6, 8, 11, 15] and family.spec.max_states_per_layer == 15
    assert float(exact.optimal(truth)[0][:, 0].mean()) == pytest.approx(0.75, abs=0.01)
    assert exact.open_loop(truth)[1] == pytest.approx(0.5, abs=0.02)
    assert float(exact.uniform_value(truth).mean()) < 0.01


@pytest.mark.parametrize("name", ["grid", "grid5", "frozenlake"])
def test_supports_are_disjoint_within_one_theta(name):
    family = FAMILIES[name]
    truth = family.truth(draw_theta(family, 200))
    centre = (truth.weight[..., None] * truth.x).sum(2)
    for step in range(truth.graph.horizon):
        cells = centre[:, truth.graph.states_of(step)]
        gap = (cells[:, :, None] - cells[:, None]).abs().amax(-1)  # [B, S, S]
        gap = gap + 1e9 * torch.eye(gap.shape[1])
        width = family.parameters()["noise_high"]
        assert float(gap.min()) > 2 * width


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Grid(width=2), "a width >= 3"),
        (lambda: Grid(noise_high=0.5), "noise_high < 0.5"),
        (lambda: Grid(noise_low=0.0), "0 < noise_low"),
        (lambda: Grid(smoothness=0), "smoothness"),
        (lambda: Grid(offset=-1.0), "offset"),
        (lambda: FrozenLake(noise_high=0.4), "gain_low"),
        (lambda: FrozenLake(gain_high=0.5), "gain_high"),
        (lambda: make_family("gird"), "one of the families"),
        (lambda: make_family("grid", widht=3), "widht"),
    ],
)
def test_settings_are_validated(build, match):
    with pytest.raises(SettingError, match=match):
        build()


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_bump_draws_follow_the_bump_density(k):
    draws = noise.bump_draws(20000, k, Seed.root(k).generators(range(4)))
    assert stats.kstest((draws.flatten().numpy() + 1) / 2, stats.beta(k + 1, k + 1).cdf).pvalue > 1e-4
    nodes, weights = noise.bump_nodes(6, k)
    t = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    for power in (0, 2, 4):
        integral = torch.trapezoid(noise.bump_density(t, k) * t**power, t)
        assert float((weights * nodes**power).sum()) == pytest.approx(float(integral), abs=1e-7)
    lanes = [torch.rand(500, generator=Seed.root(i).generator()) for i in range(2 * k + 1)]
    assert torch.equal(noise._median(lanes), torch.stack(lanes).median(0).values)


@pytest.mark.parametrize("n", [1, 5, noise.BLOCK + 3])
def test_draws_of_a_row_do_not_depend_on_other_rows(n):
    together = noise.bump_draws(n, 2, Seed.root(0).generators([1, 2, 3]))
    assert torch.equal(together[2:], noise.bump_draws(n, 2, Seed.root(0).generators([3])))
    mean = torch.full((3, n), 0.5, dtype=torch.float64)
    mean[0] = 1.0
    drawn = noise.bernoulli(mean, Seed.root(0).generators([1, 2, 3]))
    assert bool((drawn[0] == 1).all()) and set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(drawn[1:2], noise.bernoulli(mean[1:2], Seed.root(0).generators([2])))


def test_bernoulli_and_uniforms_have_their_means():
    u = noise.uniforms(200001, Seed.root(0).generators([0]))
    assert u.shape == (1, 200001) and float(u.min()) > 0 and float(u.max()) < 1
    assert stats.kstest(u[0].numpy(), "uniform").pvalue > 1e-4
    drawn = noise.bernoulli(torch.full((1, 100000), 0.3, dtype=torch.float64), Seed.root(1).generators([0]))
    require_close(drawn.mean(-1), 0.3, drawn)
    assert bool(noise.bernoulli(torch.full((1, 2), float("nan")), Seed.root(1).generators([0])).isnan().all())


def test_families_without_gymnasium_do_not_import_it():
    code = (
        "import sys, s2r_torch.families.exact, s2r_torch.families.grid, s2r_torch.families.mixture.predictors as m; "
        "assert 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("width", "safe"), [(3, (1, 1)), (4, (1, 2)), (6, (2, 3)), (7, (3, 3))])
def test_one_cell_between_the_treasures_of_grid_is_safe_whatever_the_width_is(width, safe):
    family = Grid(width=width)
    paid = family.truth(torch.tensor([[0.0, 0.0, 0.25]])).reward[0, :, 0, 0]  # [xi]
    cells = [tuple(cell) for cell in family.cells.int().tolist()]
    paying = {cell: pytest.approx(value) for cell, value in zip(cells, paid.tolist(), strict=True) if value}
    assert paying == {(0, width - 1): 0.225, safe: 0.5, (width - 1, 0): 0.675}
