"""Which states are worth looking at: exact answers where they are known, and planted exceptions."""

import itertools

import pytest
import torch

from s2r_torch.coverage import path_cover
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.graph import StateGraph
from s2r_torch.learning.pruning import PruningSettings, dependence, depends_on_readings, prune, serving, signal
from s2r_torch.rng import Seed

SEEDS = range(3)


def simulators(family, count: int = 128, ledger: Ledger | None = None, seed: int = 0) -> Guard:
    theta = family.prior(count, torch.Generator().manual_seed(seed))
    return Guard(family.simulators(theta, range(count)), ledger or Ledger(), "prune")


def graph_of(family) -> StateGraph:
    return family.truth(family.prior(1, torch.Generator().manual_seed(0))).graph


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_lock_its_two_lists_are_left(seed):
    lock = make_family("lock")
    whole, ledger = graph_of(lock), Ledger()
    part = prune(simulators(lock, 64, ledger, seed), whole, PruningSettings(simulators=64), Seed.root(seed))
    theta = lock.prior(4000, torch.Generator().manual_seed(9))
    truth = lock.truth(theta)
    reward = (truth.weight[..., None] * truth.reward).sum(2)
    inside = reward[:, [whole.end(path) for path in part.paths]]
    assert torch.allclose(part.best_totals(inside)[0][:, 0], whole.best_totals(reward)[0][:, 0])
    assert part.num_states == 2 * whole.horizon - 1 and len(path_cover(part)) == 2 < len(path_cover(whole))
    assert set(ledger.counts) == {"prune"}


def test_where_every_state_is_of_use_all_are_kept():
    grid = make_family("grid")
    whole = graph_of(grid)
    assert prune(simulators(grid), whole, PruningSettings(), Seed.root(0)) is whole


@pytest.mark.parametrize("seed", SEEDS)
def test_where_rewards_depend_on_readings_nothing_is_pruned(seed):
    mixture = make_family("mixture")
    whole = graph_of(mixture)
    assert prune(simulators(mixture, seed=seed), whole, PruningSettings(), Seed.root(seed)) is whole


def test_nothing_is_drawn_where_nothing_can_be_pruned():
    lock, ledger = make_family("lock"), Ledger()
    whole = graph_of(lock)
    assert prune(simulators(lock, 8, ledger), whole, PruningSettings(tolerance=0.0), Seed.root(0)) is whole
    line = StateGraph(torch.tensor([[1, 1], [-1, -1]]), torch.tensor([0, 1]), ((), (0,)))
    assert prune(simulators(lock, 8, ledger), line, PruningSettings(), Seed.root(0)) is line
    assert not ledger.counts
    with pytest.raises(SettingError, match="tolerance"):
        PruningSettings(tolerance=1.5)


def signpost(shown_everywhere: bool, gain=None) -> FunctionFamily:
    """Two doors, of which either may pay, and a sign that says which; or the sensor's noise says so, anywhere."""

    def step(theta, state, action):
        place, _ = state
        if place == 0:
            return (action + 1, float(action == 2)), 0.0
        return (place, 0.0), {1: theta.w, 2: 1 - theta.w, 3: 0.0}[place]

    def telling(theta):
        return torch.stack([torch.ones(len(theta)).double(), theta[:, 0]], 1)

    width = (
        (lambda theta: 0.1 + 0.2 * theta[:, 0]) if shown_everywhere else (lambda theta: torch.full((len(theta),), 0.2))
    )
    sensor = AffineSensor(("place", "sign"), gain=telling if gain is None else gain, width=width)
    return FunctionFamily(
        name="signpost",
        step=step,
        start=(0, 0.0),
        num_actions=3,
        theta_names=("w",),
        prior=uniform_prior((0.0, 1.0)),
        sensor=sensor,
        horizon=2,
    )


@pytest.mark.parametrize("shown_everywhere", [False, True])
def test_a_state_that_no_good_list_passes_is_kept_where_it_alone_tells_which_list_is_good(shown_everywhere):
    family = signpost(shown_everywhere)
    whole = family.known_graph()
    sign = (2,)
    assert whole.num_states == 4
    part = prune(simulators(family), whole, PruningSettings(), Seed.root(0))
    assert (sign in part.paths) is not shown_everywhere and {(), (0,), (1,)} <= set(part.paths)


def some_rewards(B: int, graph: StateGraph, lists: int, seed: int = 0) -> torch.Tensor:
    """Rewards of which each simulator has one list of a few that pays."""
    generator = torch.Generator().manual_seed(seed)
    every = torch.tensor([*itertools.product(range(graph.num_actions), repeat=graph.horizon)])
    paying = every[torch.randperm(len(every), generator=generator)[:lists]]
    reward = torch.zeros(B, graph.num_states, graph.num_actions, dtype=torch.float64)
    for b in range(B):
        actions = paying[b % lists]
        reward[b, graph.visited(actions), actions] = 1 / graph.horizon
    return reward


def test_lists_are_few_and_lose_no_more_than_is_tolerated():
    graph = make_family("grid").graph
    for seed, tolerance in itertools.product(range(5), (0.0, 0.05, 0.4)):
        reward = some_rewards(60, graph, 4, seed)
        lists = serving(graph, reward, reward, tolerance)
        best = graph.best_totals(reward)[0][:, 0].mean()
        served = graph.totals(reward, lists).amax(1).mean()
        assert served >= (1 - tolerance) * best - 1e-12
        fewer = graph.totals(reward, lists[:-1]).amax(1).mean() if len(lists) > 1 else 0.0
        assert fewer < (1 - tolerance) * best  # the last one was needed
    fixed = graph.best_lists(reward.mean(0, keepdim=True))
    assert torch.allclose(graph.totals(reward, lists[:1]).mean(), graph.totals(reward, fixed).mean())


def test_sums_have_mean_0_where_rewards_do_not_depend_on_readings_and_not_where_they_do():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 16, 2, generator=generator, dtype=torch.float64)
    coin = (torch.rand(4000, 16, generator=generator) < 0.3).double()
    sums = dependence(x, coin)
    assert abs(float(sums.mean())) < 4 * float(sums.std()) / 4000**0.5 and not depends_on_readings(sums[:, None])
    by_sign = torch.where(
        torch.arange(4000)[:, None] % 2 == 0, x[..., 0] > 0, x[..., 0] < 0
    ).double()  # of either theta
    paid = (torch.rand(4000, 16, generator=generator) < 0.2 + 0.3 * by_sign).double()
    assert depends_on_readings(dependence(x, paid)[:400, None])
    assert float(dependence(x, torch.full((4000, 16), 0.5).double()).abs().max()) < 1e-12
    one = torch.zeros(1, 16, 2, dtype=torch.float64)  # all readings alike
    assert bool(dependence(one, coin[:1]).isfinite().all())


def test_of_noisy_rewards_the_signal_is_left():
    """Two numbers of theta behind twelve rewards: of halves of noisy draws less noise is left, and no signal lost."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(200, 2, generator=generator, dtype=torch.float64)
    truth = (0.2 + 0.6 * theta @ torch.rand(2, 12, generator=generator, dtype=torch.float64) / 2).view(200, 4, 3)
    drawn = (torch.rand(2, 16, 200, 4, 3, generator=generator) < truth).double().mean(1)
    found = signal(drawn)
    assert float((found - truth).square().mean()) < 0.5 * float((drawn - truth).square().mean())
    kept = (found.mean(0) - found.mean((0, 1))).square().sum() / (truth - truth.mean(0)).square().sum()
    assert 0.8 < float(kept) < 1.4  # some noise stays
    still = torch.full((2, 200, 4, 3), 0.5, dtype=torch.float64)
    assert torch.allclose(signal(still), still)


def test_of_rewards_that_are_noise_alone_little_is_left():
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.rand(2, 16, 100, 5, 2, generator=generator) < 0.5).double().mean(1)
    left = signal(drawn)
    assert float((left - left.mean((0, 1))).square().mean()) < 0.3 * float((drawn - drawn.mean((0, 1))).square().mean())


def test_what_readings_do_not_show_is_pruned_by_what_it_pays_alone():
    """Nobody can tell the doors apart; both are kept all the same, since theta decides which of them pays."""
    family = signpost(False, gain=1.0)
    part = prune(simulators(family), family.known_graph(), PruningSettings(), Seed.root(0))
    assert {(), (0,), (1,)} <= set(part.paths)
