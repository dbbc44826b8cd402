"""From densities to actions: greedy, the same for one world and for many, and refused where it cannot be right."""

import math
import warnings

import naive
import pytest
import torch
from support import policies
from support.worlds import estimator_of, naive_predictors, policy_of, random_class, random_world

from s2r_torch.episodes import observe
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.predictors.ensemble import greedy_actions
from s2r_torch.rng import Seed

THETA = (-0.9, 0.1, 0.7)
WORLD = random_world(3, 3, 3)
CLASS = random_class(WORLD, 5, 3)
D_HAT = estimate_densities(WORLD.guard(THETA), WORLD.graph, estimator_of(WORLD), 100, Seed.root(0))


def observations(step, n=40):
    state = WORLD.graph.states_of(step)[-1]
    return observe(WORLD.guard(THETA), WORLD.graph.paths[state], n, Seed.root(1).child(step))


def test_ties_go_to_the_first_action():
    q = torch.tensor([[0.1, 0.7, 0.7], [0.5, 0.5, 0.5], [0.0, 0.1, 0.2]])
    assert greedy_actions(q).tolist() == [1, 0, 2] == [naive.greedy(row) for row in q.tolist()]
    for n in (1, 3, 200):
        tied = (4 * torch.rand(n, 4, generator=torch.Generator().manual_seed(n))).floor()
        strided = tied.T.contiguous().T
        assert greedy_actions(strided).tolist() == [naive.greedy(row) for row in tied.tolist()]


@pytest.mark.parametrize("chosen", range(5))
@pytest.mark.parametrize("step", range(3))
def test_actions_are_those_of_the_naive_policy(chosen, step):
    policy = policy_of(WORLD, CLASS, chosen).condition(D_HAT)
    f, x = naive_predictors(CLASS, D_HAT)[chosen], observations(step)
    actions = policy.act(step, x)
    assert actions.dtype == torch.int64
    assert actions.tolist() == [[naive.greedy(f(b, step, float(v))) for v in x[b, :, 0]] for b in range(3)]


def test_one_world_or_many_is_the_same():
    meta, x = policy_of(WORLD, CLASS, 2), observations(1)
    together = meta.condition(D_HAT).q(1, x)
    alone = torch.stack([meta.condition(D_HAT[b]).q(1, x[b]) for b in range(3)])
    assert together.shape == (3, 40, 3) and torch.equal(together, alone)


def test_densities_decide():
    """The same observation, another world, another action."""
    ensemble = random_class(WORLD, 1, 0)
    (group,) = ensemble.groups
    group.tables[0, 0], group.gains[0] = torch.tensor([0.9, 1.2, 0.0]), 1.0
    policy, x = policy_of(WORLD, ensemble), torch.full((1, 1), 0.5, dtype=torch.float64)
    nothing, right = D_HAT[0].clone(), D_HAT[0].clone()
    nothing[0, -1], right[0, -1] = 0.0, 4.0  # a signal that lifts the first action's value to the most there is, too
    assert [policy.condition(D).act(0, x).tolist() for D in (nothing, right)] == [[1], [0]]


def test_observations_instead_of_densities():
    meta, estimator = policy_of(WORLD, CLASS, 1), estimator_of(WORLD)
    seen = [observe(WORLD.guard(THETA[:1]), path, 60, Seed.root(2).child(path))[0] for path in WORLD.graph.paths]
    D = torch.stack([estimator(x) for x in seen])
    x = observations(2)[0]
    assert torch.equal(meta.condition_on(seen).q(2, x), meta.condition(D).q(2, x))
    unequal = [x[: 60 - 5 * s] for s, x in enumerate(seen)]  # any number at each state
    assert meta.condition_on(unequal).act(2, x).shape == (40,)
    with pytest.raises(ObservationError, match=f"at {len(seen)} states; got {len(seen) - 1}"):
        meta.condition_on(seen[:-1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_densities_must_be_finite(value):
    D = D_HAT.clone()
    D[1, 2, 3] = value
    with pytest.raises(ObservationError, match="finite densities"):
        policy_of(WORLD, CLASS).condition(D)


@pytest.mark.parametrize("D", [D_HAT[:, :-1], D_HAT[..., :-1], D_HAT[0, 0], D_HAT[None], D_HAT[0, :-1]])
def test_densities_of_another_problem(D):
    with pytest.raises(ObservationError, match="densities of shape.*another grid, or another state graph"):
        policy_of(WORLD, CLASS).condition(D)


@pytest.mark.parametrize("step", [-1, 3, 10])
def test_a_step_beyond_the_horizon(step):
    with pytest.raises(SettingError, match=r"a step in 0 \.\. 2"):
        policy_of(WORLD, CLASS).condition(D_HAT).act(step, observations(0))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 1),
        torch.zeros(2, 4, 1),  # two worlds' observations for three worlds' densities
        torch.zeros(3, 4, 2),
        torch.zeros(3),
        torch.tensor(0.0),
    ],
)
def test_observations_of_another_shape(x):
    with pytest.raises(ObservationError, match=r"observations of shape \[3, any, 1\]"):
        policy_of(WORLD, CLASS).condition(D_HAT).act(0, x)


@pytest.mark.parametrize(
    "act",
    [
        lambda policy: torch.func.vmap(lambda x: policy.act(0, x))(torch.zeros(2, 3, 4, 1)),
        lambda policy: torch.func.grad(lambda x: policy.q(0, x).sum())(torch.zeros(3, 4, 1)),
        lambda policy: policy.act(0, torch.zeros(3, 4, 1, device="meta")),
        lambda _: torch.func.vmap(policy_of(WORLD, CLASS).condition)(D_HAT[None]),
    ],
    ids=["vmap", "grad", "meta", "densities"],
)
def test_numbers_that_nobody_can_see(act):
    with pytest.raises(
        ObservationError, match="whose numbers can be seen; got .*vmap, a program that is being exported"
    ):
        act(policy_of(WORLD, CLASS).condition(D_HAT))


@pytest.mark.filterwarnings("ignore")  # torch would have us use something else
def test_quantized_readings_are_no_numbers():
    x = torch.quantize_per_tensor(torch.zeros(3, 4, 1), 0.1, 0, torch.quint8)
    with pytest.raises(ObservationError, match="real observations"):
        policy_of(WORLD, CLASS).condition(D_HAT).act(0, x)


def test_observations_of_one_world():
    policy = policy_of(WORLD, CLASS).condition(D_HAT[0])
    assert policy.act(0, torch.tensor([[0.4], [0.6]])).shape == (2,)
    for x in (torch.zeros(1, 4, 1), torch.zeros(4), torch.zeros(4, 2)):
        with pytest.raises(ObservationError, match=r"observations of shape \[any, 1\]"):
            policy.act(0, x)
    with pytest.raises(ObservationError, match="finite observations"):
        policy.act(0, torch.tensor([[0.5], [math.nan]]))


@pytest.mark.parametrize("wrong", [{"chosen": 5}, {"chosen": -1}, {"n_real": 0}])
def test_a_policy_that_cannot_be(wrong):
    with pytest.raises(SettingError, match=r"chosen in 0 \.\. 4 and n_real >= 1"):
        policy_of(WORLD, CLASS, **wrong)


def test_readings_in_a_corner_of_the_box_have_a_density():
    """A kernel that is cut at both edges leaves about a quarter, less between nodes: 0.13 here."""
    meta = policies.policy_of()
    grid, g = meta.problem.grid, torch.Generator().manual_seed(0)
    low = torch.tensor(grid.low, dtype=torch.float64)
    readings = [low + 0.05 * torch.rand(25, 2, generator=g, dtype=torch.float64) for _ in range(9)]
    middle = [x + 1.5 for x in readings]
    mass = meta.densities(readings) @ grid.weights
    assert float(mass.max()) < 0.2
    meta.condition_on([*middle[:6], *readings[6:]])
    with pytest.raises(ObservationError, match="integrate to 1"):
        meta.condition_on(readings)  # shares of cells would look like that


@pytest.mark.parametrize("worlds", [None, 2])
def test_readings_far_off_the_box_are_told_once_of_every_sensor(worlds):
    meta = policies.policy_of()
    spec, D = meta.spec, policies.spread(meta.problem.grid, *([worlds] if worlds else []), 9)
    policy, half = meta.condition(D), (spec.high[0] - spec.low[0]) / 2
    middle = torch.tensor([spec.low, spec.high], dtype=torch.float64).mean(0)

    def shown(*away, n=1):
        x = middle.repeat(*([worlds] if worlds else []), n, 1)
        x[..., -1, :] += half * torch.tensor(away, dtype=torch.float64)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            policy.act(0, x)
        assert all(one.filename == __file__ for one in found)
        return [str(one.message).partition(" = ")[0] for one in found]

    assert shown(2.9, -2.9) == shown(2.9, -2.9, n=4) == []
    assert shown(0.0, -3.1) == ["column"] and shown(0.0, 4.0, n=3) == []
    assert shown(3.1, 9.0, n=3) == ["row"] and shown(99.0, 99.0) == []
    with pytest.raises(ObservationError, match="finite observations"):
        shown(math.nan, 0.0)
