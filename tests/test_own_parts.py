"""What people build themselves out of the library's parts: numbers in other forms are taken, other things are told."""

import pickle
import re
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.policies import policy_of

from s2r_torch.assurance.rehearsal import rehearse
from s2r_torch.base import ProblemSpec
from s2r_torch.coverage import path_cover
from s2r_torch.defaults import trainable
from s2r_torch.density.estimator import DensityEstimator, DensityStream
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.policy_file import save_policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.episodes import Guard, Ledger, observe, rollout
from s2r_torch.errors import ObservationError, RecordingError, SettingError
from s2r_torch.families import make_family
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.exact import optimal, policy_values
from s2r_torch.families.function import FunctionFamily
from s2r_torch.families.gym.family import make_env
from s2r_torch.families.layered import depth_first
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.files.whole import fixed_path
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph
from s2r_torch.learning.estimator import make_estimator
from s2r_torch.planner.certification import certification_slack
from s2r_torch.predictors.acting import GroupActor
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import register_group
from s2r_torch.problem import Problem
from s2r_torch.progress import Silent, require_progress
from s2r_torch.rng import Seed
from s2r_torch.runs import run
from s2r_torch.runs.settings import RunSettings
from s2r_torch.workers.choice import workers_of

GRID, KERNEL = DensityGrid.uniform((0.0,), (1.0,), 9), make_kernel("legendre", 2)
META, ESTIMATE = policy_of(), DensityEstimator(GRID, KERNEL, (0.3,))
GRAPH = META.problem.graph
TWO = ([[1, 1], [-1, -1]], [0, 1], ((), (0,)))
FAMILY = make_family("grid")
THETA = FAMILY.prior(2, torch.Generator().manual_seed(0))


def spec(**changes):
    sizes = {"num_actions": 2, "horizon": 3, "max_states_per_layer": 3, "obs_dim": 1, "low": (0.0,), "high": (1.0,)}
    return ProblemSpec(**sizes | changes)


def graph(following=TWO[0], layer=TWO[1], paths=TWO[2]):
    return StateGraph(torch.tensor(following), torch.tensor(layer), paths)


class Constant:
    """A group whose members are all alike, and that stays as large as it is."""

    def __init__(self, size, given=None):
        self.size, self.given = size, given or size

    def condition(self, D, readings=None):
        return D

    def q(self, conditioned, step, x):
        return torch.full((self.given, *x.shape[:2], 2), 0.5)

    def subset(self, members):
        return self

    def lipschitz_bound(self):
        return torch.zeros(self.size, dtype=torch.float64)


def asked(x, step=0):
    net = META.ensemble.groups[0]
    return net.q(net.condition(torch.rand(2, 9, 144)), step, x)


def true(**changes):
    parts = {"x": torch.rand(1, 2, 3, 1), "weight": torch.ones(1, 2, 3) / 3, "reward": torch.zeros(1, 2, 3, 2)}
    return GroundTruth(graph(), **parts | changes)


def guard():
    return Guard(FAMILY.simulators(THETA, (0, 1)), Ledger(), "test")


def rolled(act):
    return rollout(guard(), act, 2, Seed.root(0))


def wider(estimator):
    """On as many nodes of a larger box."""
    axes = tuple(1.5 * axis for axis in estimator.grid.axes)
    return replace(estimator, grid=DensityGrid(axes), bandwidth=tuple(2 * h for h in estimator.bandwidth))


class Other(Silent):
    def stage(self, name):
        pass


CALLS = {
    "a bandwidth alone": (lambda: DensityEstimator(GRID, KERNEL, 0.3), "bandwidth: a number per coordinate"),
    "a bandwidth in words": (lambda: DensityEstimator(GRID, KERNEL, ("wide",)), "bandwidth: a number per coordinate"),
    "a kernel by name": (lambda: DensityEstimator(GRID, "legendre", (0.3,)), "kernel: Kernel; got str"),
    "a grid of numbers": (lambda: DensityEstimator(torch.rand(9), KERNEL, (0.3,)), "grid: DensityGrid; got Tensor"),
    "edges alone": (lambda: DensityGrid.uniform(0.0, 1.0, 5), "low: a number per coordinate"),
    "nodes in halves": (lambda: DensityGrid.uniform((0.0,), (1.0,), 5.5), "nodes >= 1, a whole number; got 5.5"),
    "an axis alone": (lambda: DensityGrid(torch.linspace(0, 1, 9)), r"axes in a tuple; got a tensor \[9\]"),
    "an order in words": (lambda: make_kernel("legendre", "2"), "order of a kernel: a number"),
    "a scale in words": (lambda: spec(reward_scale="1"), "reward_scale > 0; got 1"),
    "a scale without end": (lambda: spec(reward_scale=float("inf")), "reward_scale > 0; got inf"),
    "zeta below 0": (lambda: spec(zeta=-1.0), "zeta > 0; got -1.0"),
    "zeta in words": (lambda: spec(zeta="auto"), "zeta > 0; got auto"),
    "a width in words": (lambda: spec(reward_width="half"), r"reward_width in \(0, 1\]; got half"),
    "one name for two": (
        lambda: spec(obs_dim=2, low=(0.0, 0.0), high=(1.0, 1.0), obs_names="xy"),
        "2 obs_names, one per coordinate; got 1",
    ),
    "edges in lists": (
        lambda: StateGraph(TWO[0], torch.tensor(TWO[1]), TWO[2]),
        "next_state of a state graph as an int64 tensor; got list",
    ),
    "edges in halves": (lambda: graph([[1.0, 1.0], [-1.0, -1.0]]), "next_state .* int64 tensor; got torch.float32"),
    "layers in half the bits": (
        lambda: StateGraph(torch.tensor(TWO[0]), torch.tensor(TWO[1], dtype=torch.int32), TWO[2]),
        "layer of a state graph as an int64 tensor; got torch.int32; likely cause: an array",
    ),
    "a layer too few": (lambda: graph(layer=[0]), r"next_state \[2, A\] and layer \[2\]"),
    "the start last": (lambda: graph(paths=((0,), ())), "paths of as many actions as their layer, the first one"),
    "an edge within": (
        lambda: graph([[1, 2], [2, 2], [-1, -1]], [0, 1, 1], ((), (0,), (1,))),
        "a graph of 3 states with next_state -1 in the last layer, and a state or -1 elsewhere",
    ),
    "an edge to nowhere": (lambda: graph([[1, 7], [-1, -1]]), "a graph of 2 states with .*and a state or -1 elsewhere"),
    "an edge over two": (
        lambda: graph([[2, 1], [2, 2], [-1, -1]], [0, 1, 2], ((), (1,), (1, 0))),
        "edges that lead to the next layer",
    ),
    "paths elsewhere": (
        lambda: graph([[1, 2], [-1, -1], [-1, -1]], [0, 1, 1], ((), (1,), (0,))),
        "paths that end in their states",
    ),
    "action -1": (lambda: GRAPH.end((-1,)), r"at most 4 actions in 0 .. 1; got \(-1,\)"),
    "action 9": (lambda: GRAPH.end((9,)), "at most 4 actions in 0 .. 1"),
    "a whole episode": (lambda: GRAPH.end((0,) * 5), "at most 4 actions; got"),
    "a longer one": (lambda: GRAPH.end((0,) * 9), "at most 4 actions in 0 .. 1"),
    "a seed in words": (lambda: Seed.root("a"), "a whole number as the seed; got 'a'"),
    "a seed by its class": (
        lambda: Seed(0),
        r"Seed.root, or one of its children; got Seed\(0\); .*Seed.root\(0\)",
    ),
    "a list of names": (lambda: Seed([0]), r"Seed.root, or one of its children; got Seed\(\[0\]\)"),
    "a seed in halves": (lambda: Seed.root(7.9), "a whole number as the seed; got 7.9"),
    "a stream in halves": (lambda: Seed.root(0).child(0.5), "names of streams: text and whole numbers; got 0.5"),
    "no simulators": (lambda: Guard([1, 2], Ledger(), "test"), "simulators: simulators; got list"),
    "a family for simulators": (lambda: Guard(FAMILY, Ledger(), "test"), "simulators: simulators; .*it has no reset"),
    "one generator": (lambda: guard().reset(3, torch.Generator()), "2 generators, one per simulator, in a list"),
    "seeds": (lambda: guard().reset(3, [0, 1]), "2 generators, one per simulator, in a list; got list"),
    "a generator too few": (lambda: guard().reset(3, [torch.Generator()]), "2 generators, .*, in a list; got 1"),
    "the last simulator": (lambda: guard().select([-1]), "an index of simulators >= 0.*; got -1; .*from the end"),
    "a mask of simulators": (lambda: guard().select([True, False]), "an index of .* >= 0.*; got True; .*or a mask"),
    "episodes in halves": (lambda: guard().reset(2.5, [torch.Generator()] * 2), "n >= 1 episodes; got 2.5"),
    "actions in a list": (lambda: rolled(lambda step, x: [0, 1]), "int64 actions of shape .*; got list"),
    "no actions": (lambda: rolled(lambda step, x: None), "int64 actions of shape .*; got None"),
    "a policy that fails": (lambda: rolled(lambda step, x: 1 / 0), "a policy to act; got ZeroDivisionError"),
    "a policy that writes": (
        lambda: rolled(lambda step, x: x.zero_().long()[..., 0]),
        "a policy that leaves what it is given as it is; got tensors that were written into",
    ),
    "delta of 5": (lambda: certification_slack(100, 5), r"epsilon, delta in \(0, 1\)"),
    "simulators in words": (lambda: certification_slack("100", 0.05), "num_simulators >= 1, .*; .*an empty problem"),
    "actions left out": (
        lambda: depth_first(0, lambda k: [k + 1] if k else [1, 2], 3),
        "the same number of actions",
    ),
    "keys in lists": (lambda: depth_first([0], lambda k: [[1], [2]], 3), "moves.key. to give a key for each action"),
    "no path": (lambda: fixed_path(""), "a path; got an empty text"),
    "another progress": (lambda: require_progress(Other()), r"stage\(self, name, total\) of a Progress; got too many"),
    "one id twice": (lambda: FAMILY.simulators(THETA, (1, 1)), "2 ids, different whole numbers, one per theta"),
    "ids in halves": (lambda: FAMILY.simulators(THETA, (0.5, 1.5)), "2 ids, different whole numbers"),
    "no ids": (lambda: FAMILY.simulators(THETA, None), "2 ids, different whole numbers"),
    "a number of ids": (lambda: FAMILY.simulators(THETA, 2), "2 ids, different whole numbers"),
    "workers in words": (lambda: workers_of("two"), "workers, auto or ray >= 1, a whole number; got 'two'"),
    "no workers": (lambda: workers_of(0), "workers, auto or ray >= 1, a whole number; got 0"),
    "rewards of four states": (lambda: GRAPH.best_totals(torch.rand(4, 2)), r"rewards of shape \[9, 2\]; got \[4, 2\]"),
    "rewards of actions": (lambda: GRAPH.best_totals(torch.rand(2)), r"rewards of shape \[9, 2\]; got \[2\]"),
    "no truth": (lambda: optimal(None), "truth: GroundTruth; got NoneType"),
    "settings in a dict": (
        lambda: make_estimator({"nodes": 12}, guard(), 50, Seed.root(0)),
        "DensitySettings",
    ),
    "a policy file rehearsed": (lambda: rehearse({}, guard(), 2, Seed.root(0)), "meta_policy: MetaPolicy; got dict"),
    "other simulators' readings": (
        lambda: asked(torch.rand(3, 5, 2)),
        r"shape \[2, any, 2\]; got \[3, 5",
    ),
    "a step too many": (lambda: asked(torch.rand(2, 5, 2), 9), "step <= 4; got 9"),
    "a stream of numbers": (lambda: DensityStream(ESTIMATE, 3), "leading sizes in a tuple, float32 or float64; got 3"),
    "a stream of a grid": (lambda: DensityStream(GRID), "estimator: DensityEstimator; got DensityGrid"),
    "a stream of halves": (lambda: DensityStream(ESTIMATE, (), torch.float16), "float32 or float64; got .*float16"),
    "an int for a stream": (lambda: observe(guard(), (0,), 3, 0), "seed: Seed; got int"),
    "other simulators": (lambda: guard().select([7]), "an index of simulators <= 1; got 7"),
    "weights of 3": (lambda: true(weight=torch.ones(1, 2, 3)), r"weights \[B, xi, m\] of sum 1"),
    "rewards of 5": (lambda: true(reward=torch.zeros(1, 2, 3, 5)), r"rewards \[B, xi, m, 2\]; got shapes .*5"),
    "a policy that saw nothing": (lambda: policy_values(true(), policy_of()), "act: a function; got MetaPolicy"),
    "a spec for a graph": (lambda: path_cover(FAMILY.spec), "graph: StateGraph; got ProblemSpec"),
    "a problem turned": (lambda: Problem(GRID, GRAPH, FAMILY.spec), "spec: ProblemSpec; got DensityGrid"),
    "one group": (lambda: Ensemble(META.problem, META.ensemble.groups[0]), "groups: a tuple of groups .*one group"),
    "no group": (lambda: Ensemble(META.problem, (3,)), "groups: groups of predictors; got int"),
    "a mask": (lambda: META.ensemble.subset([True, False]), "a member >= 0, a whole number; got True"),
    "a member too far": (lambda: META.ensemble.subset([3]), "a member <= 2; got 3"),
    "half a member": (lambda: type(META.ensemble.groups[0])(META.problem, 2.5, None), "members >= 1, a whole number"),
    "a group that keeps all": (lambda: Ensemble(META.problem, (Constant(4),)).subset([1]), "1 members from subset of"),
    "values of all members": (
        lambda: GroupActor(Constant(4, 3), torch.rand(9, 144), GRAPH).q(0, torch.rand(5, 2)),
        r"values of shape \[1, 1, any, any\]; got \[3, 1, 5, 2\]; .*q of Constant",
    ),
    "a group that no file holds": (
        lambda: save_policy(
            "never.safetensors", replace(META, ensemble=Ensemble(META.problem, (Constant(1),)), chosen=0)
        ),
        "groups: groups that a file can hold; got Constant.*it has no recipe, tensors",
    ),
    "a kind that is a function": (
        lambda: register_group("own_kind")(lambda: 3),
        "from_recipe, recipe, .*of kind",
    ),
    "an estimator of another grid": (lambda: replace(META, estimator=ESTIMATE), "an estimator on the class's grid"),
    "an estimator of another box": (lambda: replace(META, estimator=wider(META.estimator)), "on the class's grid"),
    "a seed for a generator": (lambda: FAMILY.world(THETA[0], 3), "generator: Generator; got int: 3; .*manual_seed"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_is_none_is_told(kind):
    call, words = CALLS[kind]
    with pytest.raises((SettingError, ObservationError), match=re.compile(words)):
        call()


def test_other_forms_are_the_same():
    assert DensityGrid.uniform(np.zeros(2), [1, 1], np.int64(5)).shape == (5, 5)
    assert DensityGrid.uniform(torch.zeros(2), np.ones(2), [5, np.int32(6)]).shape == (5, 6)
    for nodes in (np.array([5, 6]), torch.tensor([5, 6]), range(5, 7)):
        assert DensityGrid.uniform((0.0, 0.0), (1.0, 1.0), nodes).shape == (5, 6)
    assert DensityGrid([[0.0, 0.5, 1.0]]).shape == (3,)
    assert DensityGrid(torch.linspace(0, 1, 5).expand(2, 5)).shape == (5, 5)
    assert DensityEstimator(GRID, make_kernel("legendre", np.float64(2)), np.array([0.3])).bandwidth == (0.3,)
    assert spec(obs_names=["x"], reward_scale=np.float32(2)) == spec(obs_names=("x",), reward_scale=2.0)
    two = {"obs_dim": 2, "low": (0.0, 0.0), "high": (1.0, 1.0)}
    assert spec(obs_names=np.array(["x", "y"]), **two) == spec(obs_names=("x", "y"), **two)
    assert graph(paths=[[], [0]]).paths == ((), (0,)) and GRAPH.end([np.int64(0), 1]) == GRAPH.end((0, 1))
    three = Seed.root(3).child("a", (1, 2), 2).integer()
    assert Seed.root(np.int64(3)).child(np.str_("a"), (np.int32(1), 2), torch.tensor(2)).integer() == three
    FAMILY.simulators(THETA.tolist(), np.arange(2))
    FAMILY.simulators(THETA.numpy(), torch.arange(2))
    assert FAMILY.simulators(THETA, {0: "a", 1: "b"}.keys()).ids == FAMILY.simulators(THETA, range(2)).ids == (0, 1)
    x = FAMILY.world(THETA[0].tolist(), torch.Generator().manual_seed(1)).reset(3)
    assert torch.equal(x, FAMILY.world(THETA[0].numpy(), torch.Generator().manual_seed(1)).reset(3))


def test_functions_without_a_signature_are_taken_for_progress():
    require_progress(SimpleNamespace(stage=print, advance=print, record=print, say=deque().append))


def test_looking_up_takes_densities_of_its_own_grid_at_points():
    D, x = torch.rand(2, 3, 9), torch.rand(2, 3, 4, 1)
    assert GRID.interpolate(D, x).shape == (2, 3, 4) and GRID.interpolate(D[0, 0], x[0, 0]).shape == (4,)
    for densities, points in ((D[..., :7], x), (D, x[..., 0, 0])):
        with pytest.raises(ObservationError, match="densities of shape|observations of shape"):
            GRID.interpolate(densities, points)


def test_an_environment_with_few_actions_travels():
    assert pickle.loads(pickle.dumps(make_env("CartPole-v1", 1))).action_space.n == 1


@pytest.mark.parametrize(
    "members",
    [torch.tensor([0, 1]), np.array([0, 1]), range(2), {0, 1}, [np.int32(0), np.int64(1)], [*torch.arange(2)]],
    ids=["tensor", "array", "range", "set", "of NumPy", "of torch"],
)
def test_indices_are_whole_numbers_in_whatever_holds_them(members):
    assert META.ensemble.subset(members).size == 2 and guard().select(members).ids == (0, 1)


def test_numbers_and_groups_of_torch_and_of_generators_are_taken():
    assert observe(guard(), [np.int64(0)], torch.tensor(3), Seed.root(0)).shape == (2, 3, 2)
    assert replace(META, chosen=torch.tensor(1), n_real=np.int64(9)).chosen == 1
    assert Ensemble(META.problem, (group for group in META.ensemble.groups)).size == META.ensemble.size
    assert workers_of(torch.tensor(1)) is workers_of(1)
    one = GroundTruth(graph(), torch.rand(1, 2, 25, 1), torch.full((1, 2, 25), 1 / 25), torch.zeros(1, 2, 25, 2))
    assert optimal(one)[0].shape == (1, 2)  # weights in float32


def test_a_buffer_of_actions_may_be_used_again():
    buffer = torch.zeros(2, 4, dtype=torch.int64)

    def act(step, x):
        return buffer.fill_(step % 2)

    seen = rollout(guard(), act, 4, Seed.root(0)).actions
    assert seen[0, 0].tolist() == [0, 1, 0, 1, 0]


def test_episodes_may_be_run_in_inference_mode():
    def act(step, x):
        return (x[..., 0] > 0.5).long()

    plain = rolled(act)
    with torch.inference_mode():
        inside = rolled(act)
    assert torch.equal(plain.x, inside.x) and torch.equal(plain.actions, inside.actions)


def test_what_is_written_into_after_a_call_changes_nothing():
    theta = THETA.clone()
    simulators, generators = FAMILY.simulators(theta, (0, 1)), [torch.Generator() for _ in range(2)]
    first = simulators.reset(5, [g.manual_seed(k) for k, g in enumerate(generators)]).clone()
    theta.zero_()
    assert torch.equal(simulators.reset(5, [g.manual_seed(k) for k, g in enumerate(generators)]), first)
    inner = {"depth": 2}
    nets, encoder = {"lookup": inner}, {"name": "pca", "dims": [1, 2]}
    settings = RunSettings(name="mine", nets=nets, encoder=encoder)
    inner["depth"], nets["mlp"] = 99, {}
    encoder["dims"].append(3)
    assert settings.nets == {"lookup": {"depth": 2}} and settings.encoder["dims"] == [1, 2]


def test_a_run_takes_gradients_whatever_mode_torch_is_in(monkeypatch):
    seen = []

    def noted(stages):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    monkeypatch.setattr(run, "all_stages", noted)
    with torch.inference_mode():
        run.execute(RunSettings(name="mine"), FAMILY)
    with torch.no_grad():
        run.execute(RunSettings(name="mine"), FAMILY)
        assert not torch.is_grad_enabled()
    assert seen == [(True, False)] * 2

    @trainable()
    def square():
        x = torch.ones(1, requires_grad=True)
        return torch.autograd.grad(x * x, x)[0]

    with torch.inference_mode():
        assert float(square()) == 2.0


def test_a_class_s_constructor_is_a_door():
    @taking()
    class Counted:
        def __init__(self, count: int, name: str = ""):
            self.count = count

    assert Counted(np.int64(3)).count == 3
    with pytest.raises(SettingError, match="count: a whole number; got str: '3'"):
        Counted("3")


def stepped_world():
    return FunctionFamily(
        name="walk",
        step=lambda theta, place, action: (place + action, 0.0),
        start=0,
        num_actions=2,
        horizon=3,
        theta_names=("w",),
        prior=uniform_prior((0.0, 1.0)),
        sensor=AffineSensor(("x",)),
    ).world(torch.zeros(1), torch.Generator())


@pytest.mark.parametrize("world", [lambda: FAMILY.world(THETA[0], torch.Generator()), stepped_world])
def test_worlds_take_numbers_of_episodes_and_an_action_for_each(world):
    here = world()
    for n in (0, -1, 2.5, "3", None):
        with pytest.raises(SettingError, match="n >= 1 episodes"):
            here.reset(n)
    here.reset(2)
    for actions in ([0, 1], torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.tensor(0), None):
        with pytest.raises(SettingError, match=r"int64 actions of shape \[2\]"):
            here.step(actions)
    with pytest.raises(SettingError, match="actions in 0 .. 1; got 0 .. 5"):
        here.step(torch.tensor([0, 5]))
    here.reset(2)
    assert len(here.step(torch.tensor([0, 1]))) == 2


def test_a_closed_world_is_started_again_before_it_is_stepped():
    stepped = stepped_world()
    stepped.reset(2)
    stepped.close()
    with pytest.raises(SettingError, match="reset before step"):
        stepped.step(torch.tensor([0, 1]))


def test_episodes_of_another_problem_have_no_states_here():
    recording = Recording(torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 5, 2), torch.full((3,), 5))
    assert recording.states(GRAPH).shape == (3, 5)
    with pytest.raises(RecordingError, match="episodes of 2 steps, as the graph has; got 5 steps"):
        recording.states(graph())
    with pytest.raises(RecordingError, match="recordings to join; got none"):
        Recording.joined([])


def test_streams_of_one_name_are_one_whatever_kind_of_number_it_is():
    assert Seed((np.int64(3), "a")).integer() == Seed.root(3).child("a").integer()
