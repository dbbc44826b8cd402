"""A prepared policy does what the class does: every network, one reading or many, on nodes and off the grid."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.policies import policy_of, spread

from s2r_torch.base import ProblemSpec
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.deployment.export import Program, reading_dtype
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.errors import LipschitzError, ObservationError, SettingError
from s2r_torch.graph import StateGraph
from s2r_torch.predictors import acting
from s2r_torch.predictors.acting import GroupActor, NetActor
from s2r_torch.predictors.ensemble import Ensemble, greedy_actions
from s2r_torch.predictors.nets.heads import HEADS
from s2r_torch.predictors.registry import NETS, net_class
from s2r_torch.problem import Problem

pytestmark = pytest.mark.filterwarnings("ignore:.* is far off")  # some readings are, on purpose

NAMES = [(name, None) for name in sorted(NETS)] + [("lookup", head) for head in sorted(HEADS)]


def densities(meta: MetaPolicy, *lead: int, seed: int = 3) -> torch.Tensor:
    return spread(meta.problem.grid, *lead, meta.problem.graph.num_states, seed=seed)


def readings(grid: DensityGrid, n: int, dtype=torch.float64, beside: int = 0) -> torch.Tensor:
    """Half of them anywhere, some far off the grid; the rest on nodes and between two of them."""
    g = torch.Generator().manual_seed(n)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (grid.low, grid.high))
    x = low + (high - low) * (1.6 * torch.rand(n, grid.obs_dim, generator=g, dtype=torch.float64) - 0.3)
    x[::7] *= 100
    x[1::2] = grid.nodes[torch.randint(grid.num_points, (len(x[1::2]),), generator=g)]
    x[3::4, 0] += grid.spacing[0] / 2
    return torch.cat([x, 2 * torch.randn(n, beside, generator=g, dtype=torch.float64)], 1).to(dtype)


@pytest.mark.parametrize("beside", [0, 3])
@pytest.mark.parametrize(("name", "head"), NAMES)
def test_prepared_values_are_those_of_the_class(name, head, beside):
    meta = policy_of((name,), beside=beside)
    if head:
        net = net_class(name)(meta.problem, 3, torch.Generator().manual_seed(0), head=head, width=8)
        meta = replace(meta, ensemble=Ensemble(meta.problem, (net,)))
    D = densities(meta)
    policy, evaluator = meta.condition(D), meta.ensemble.evaluator(D[None])
    assert isinstance(policy.actor, NetActor)
    x = readings(meta.problem.grid, 120, beside=beside)
    for step in range(meta.problem.graph.horizon):
        expected = evaluator.q_of(meta.chosen, step, x[None])[0]
        alone = torch.cat([policy.q(step, row[None]) for row in x])
        for q in (policy.q(step, x), alone):
            torch.testing.assert_close(q, expected, atol=2e-6, rtol=0)
        best = expected.topk(2, -1).values
        clear = best[:, 0] - best[:, 1] > 4e-6
        assert torch.equal(policy.act(step, x)[clear], greedy_actions(expected)[clear])
        assert torch.equal(greedy_actions(alone)[clear], greedy_actions(expected)[clear])


def test_many_readings_are_taken_in_parts(monkeypatch):
    meta = policy_of()
    policy, x = meta.condition(densities(meta)), readings(meta.problem.grid, 50)
    whole = policy.q(1, x)
    monkeypatch.setattr(acting, "ROWS", 8)
    torch.testing.assert_close(policy.q(1, x), whole, atol=1e-6, rtol=0)


def test_what_is_given_back_is_an_ordinary_tensor():
    meta = policy_of()
    policy = meta.condition(densities(meta))
    for n in (1, 5):
        x = readings(meta.problem.grid, n).requires_grad_()
        q, actions = policy.q(0, x), policy.act(0, x)
        assert not q.requires_grad and not q.is_inference() and not actions.is_inference()
        q += 1.0


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("name", sorted(NETS))
def test_no_readings_give_no_actions(name, lead):
    meta = policy_of((name,))
    policy = meta.condition(densities(meta, *lead))
    x = torch.zeros(*lead, 0, 2, dtype=torch.float64)
    assert policy.act(0, x).shape == (*lead, 0) and policy.q(0, x).shape == (*lead, 0, meta.problem.spec.num_actions)


@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool])
def test_readings_of_another_type_are_the_same_numbers(other):
    meta = policy_of()
    policy, x = meta.condition(densities(meta)), readings(meta.problem.grid, 60).to(other)
    for step in range(meta.problem.graph.horizon):
        assert torch.equal(policy.act(step, x), policy.act(step, x.double()))
        assert torch.equal(policy.act(step, x.double().tolist()), policy.act(step, x.double().numpy()))


def test_readings_that_are_no_real_numbers():
    meta = policy_of()
    policy = meta.condition(densities(meta))
    with pytest.raises(ObservationError, match="real observations"):
        policy.act(0, torch.zeros(3, 2, dtype=torch.complex64))
    huge = torch.full((300, 2), 1.7e308, dtype=torch.float64)  # finite, though their sum is not
    assert policy.act(0, huge).shape == (300,)
    huge[7, 1] = torch.inf
    for x in (huge, huge[7:8]):
        with pytest.raises(ObservationError, match="finite observations"):
            policy.act(0, x)


@pytest.mark.parametrize(
    "x",
    ["abc", None, [[0.1, 0.2], [0.3]], [["0.1", "0.2"]], np.zeros((2, 2), dtype=object), np.zeros(2, dtype="f4, f4")],
    ids=str,
)
def test_what_is_no_array_of_numbers_is_said_to_be_none(x):
    meta = policy_of()
    with pytest.raises(ObservationError, match="observations as numbers; got .*; likely cause: text, nothing, or rows"):
        meta.condition(densities(meta)).act(0, x)


def test_arrays_of_every_layout_are_read_and_what_a_mask_hides_is_not():
    meta = policy_of()
    policy, x = meta.condition(densities(meta)), readings(meta.problem.grid, 20)
    for other in (x.numpy()[::-1], x.numpy().astype(">f4"), np.asfortranarray(x), x.numpy().astype(np.longdouble)):
        expected = policy.act(0, torch.from_numpy(np.ascontiguousarray(other, dtype=np.float64)))
        assert torch.equal(policy.act(0, other), expected)
    hidden = np.ma.masked_array(x.numpy(), mask=np.arange(40).reshape(20, 2) == 7)
    for broken, message in ((hidden, "finite observations"), (x.to_sparse(), "layout torch.sparse")):
        with pytest.raises(ObservationError, match=message):
            policy.act(0, broken)


@pytest.mark.parametrize("step", [-1, 5, 1.0, torch.tensor(1.0), None, "1", float("nan")], ids=str)
def test_a_step_is_a_whole_number_of_the_horizon(step):
    meta = policy_of()
    with pytest.raises(SettingError, match="a step in 0 .. 4"):
        meta.condition(densities(meta)).act(step, torch.zeros(1, 2))


def test_steps_of_every_type_of_integer():
    meta = policy_of()
    policy, x = meta.condition(densities(meta)), readings(meta.problem.grid, 5)
    for step in (np.int32(1), np.array(1), torch.tensor(1, dtype=torch.int32), torch.tensor([1])):
        assert torch.equal(policy.act(step, x), policy.act(1, x))


# -- far from 0 -----------------------------------------------------------------------------------------------------


def moved(problem: Problem, by: float) -> Problem:
    """The same problem, its box moved."""
    spec, grid = problem.spec, problem.grid
    low, high = (tuple(edge + by for edge in side) for side in (spec.low, spec.high))
    moved_spec: ProblemSpec = replace(spec, low=low, high=high)
    graph: StateGraph = problem.graph
    return Problem(moved_spec, graph, DensityGrid(tuple(axis + by for axis in grid.axes)))


@pytest.mark.parametrize("name", ["lookup", "sets", "conv", "cones"])
def test_a_box_far_from_0_gives_the_actions_of_the_box_at_0(name):
    by = 2.0**22  # steps of float32 there are half as wide as the box
    policies = []
    for problem in (policy_of().problem, moved(policy_of().problem, by)):
        net = net_class(name)(problem, 1, torch.Generator().manual_seed(0), width=8)
        estimator = replace(policy_of().estimator, grid=problem.grid)
        meta = replace(policy_of(), ensemble=Ensemble(problem, (net,)), chosen=0, estimator=estimator)
        net.fit_scales(densities(meta, 5, seed=1))
        policies.append(meta.condition(densities(meta)))
    near, far = policies
    assert (reading_dtype(near), reading_dtype(far)) == (torch.float32, torch.float64)
    x = (readings(near.problem.grid, 200) * 2**20).round() / 2**20  # exact numbers in both boxes
    for step in range(near.problem.graph.horizon):
        torch.testing.assert_close(far.q(step, x + by), near.q(step, x), atol=1e-5, rtol=0)
    with pytest.raises(ObservationError, match="readings in float64; got float32"):
        far.act(0, (x + by).float())
    program = Program(far).eval()
    assert torch.equal(program(torch.tensor(2), x + by)[0], far.act(2, x + by))


# -- torch's own state ----------------------------------------------------------------------------------------------


@pytest.fixture
def torch_state():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def everything(meta: MetaPolicy, D: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """Grid, networks and estimator made, densities estimated, policies conditioned, actions taken; x is [n, 2]."""
    spec, found = meta.problem.spec, []
    grid = DensityGrid.uniform(spec.low, spec.high, 12)
    estimator = DensityEstimator(grid, meta.estimator.kernel, meta.estimator.bandwidth)
    for name in sorted(NETS):
        net = net_class(name)(Problem(spec, meta.problem.graph, grid), 2, torch.Generator().manual_seed(0), width=8)
        net.fit_scales(D)
        made = replace(meta, ensemble=Ensemble(net.problem, (net,)), estimator=estimator)
        D_real = made.densities(list(x.reshape(9, -1, 2)))
        policy = made.condition(D_real)
        found += [D_real, policy.q(2, x), policy.act(3, x), policy.act(3, x[:1]), made.ensemble.lipschitz_bound()]
        if name == "lookup":
            found += Program(policy)(x.new_zeros((), dtype=torch.int64), x.float())
    return found


@pytest.mark.usefixtures("torch_state")
@pytest.mark.parametrize(
    ("dtype", "device", "mode"),
    [
        (torch.float64, "cpu", torch.enable_grad),
        (torch.float16, "meta", torch.no_grad),
        (torch.bfloat16, "meta", torch.inference_mode),
    ],
)
def test_torch_s_global_state_changes_nothing(dtype, device, mode):
    meta = policy_of()
    D, x = densities(meta, 4), readings(meta.problem.grid, 180).clamp(0.1, 2.9)
    expected = everything(meta, D, x)
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    with mode():
        found = everything(meta, D, x)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    assert torch.get_default_dtype() == dtype and torch.get_default_device().type == device


# -- damaged members ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_member_that_gives_no_numbers_is_named(lead):
    meta = policy_of(("conv", "lookup"))
    with torch.no_grad():
        meta.ensemble.groups[1].steps[3].out.weight[2, 0, 0] = torch.nan
    meta.condition(densities(meta, *lead))  # another member acts
    with pytest.raises(
        LipschitzError, match=r"all 3 members of net 'lookup'; got NaN or inf in steps.3.out.weight of member 2"
    ):
        meta.ensemble.groups[1].certify()
    with pytest.raises(ObservationError, match=r"member 5 \(2 of 3 of net 'lookup'\); got NaN or inf at step 3"):
        replace(meta, chosen=5).condition(densities(meta, *lead))


def test_groups_that_are_no_nets_act_as_they_are():
    from support.worlds import policy_of as tabular_policy
    from support.worlds import random_class, random_world

    world = random_world(3, 3, 3)
    meta = tabular_policy(world, random_class(world, 5, 3))
    assert isinstance(meta.condition(densities(meta)).actor, GroupActor)
