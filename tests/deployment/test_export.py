"""Exported policies: a file that does without this library what the policy does with it."""

import importlib.util

import pytest
import torch
from support.policies import policy_of, spread
from torch.export.passes import move_to_device_pass

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.export import Program, export_policy, traced
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.errors import FileError, SettingError
from s2r_torch.families import make_family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import NETS
from s2r_torch.problem import Problem

ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))


def conditioned(name="lookup"):
    meta = policy_of((name,))
    return meta.condition(spread(meta.problem.grid, meta.problem.graph.num_states))


def readings(n):
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, 2, generator=generator) * 4 - 1  # some off the grid


def check_same(policy, run, tolerance=1e-6):
    for n in (1, 7, 300):
        for step in range(policy.problem.graph.horizon):
            x = readings(n)[:, : policy.problem.spec.obs_dim]
            actions, q = run(step, x)
            expected = policy.q(step, x)
            assert q.shape == expected.shape and actions.dtype == torch.int64
            assert torch.allclose(q.to(expected.dtype), expected, atol=tolerance)
            top = expected.topk(2, -1).values
            clear = top[:, 0] - top[:, 1] > 2 * tolerance
            assert torch.equal(actions[clear], policy.act(step, x)[clear])


@pytest.mark.parametrize("name", sorted(NETS))
def test_the_program_is_the_policy(name):
    policy = conditioned(name)
    program = Program(policy).eval()
    with torch.no_grad():
        check_same(policy, lambda step, x: program(torch.tensor(step), x))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A policy and its file; tracing takes seconds."""
    path = tmp_path_factory.mktemp("exported") / "policy.pt2"
    policy = conditioned()
    export_policy(policy, path)
    return policy, path


def test_exported_and_loaded(exported):
    policy, path = exported
    loaded = torch.export.load(path).module()
    check_same(policy, lambda step, x: loaded(torch.tensor(step), x))
    bad = torch.tensor([[0.5, torch.nan], [torch.inf, 0.5], [0.5, 0.5]])
    assert loaded(torch.tensor(0), bad)[0].tolist()[:2] == [-1, -1]
    for step in (-1, 5):
        assert loaded(torch.tensor(step), readings(4))[0].tolist() == [-1] * 4


def test_readings_of_another_type_or_number(exported):
    """The same actions as the policy's, or an error, and never other actions."""
    policy, path = exported
    program = torch.export.load(path).module()
    x = readings(12)
    for n in (0, 1, 2, 4097):
        many = readings(n)
        for step in (torch.tensor(2), torch.tensor(2, dtype=torch.int32), torch.tensor([2])):
            assert torch.equal(program(step, many)[0], policy.act(2, many))
    for other in (torch.float64, torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(RuntimeError, match="dtype mismatch"):
            program(torch.tensor(0), x.to(other))
    for columns in (x[:, :1], torch.cat([x, x], 1), x[0]):
        with pytest.raises((RuntimeError, AssertionError, IndexError)):
            program(torch.tensor(0), columns)
    with pytest.warns(UserWarning, match=r"column = 1e\+38 is far off -1.1 .. 3.1, .* other units"):
        ours = policy.act(0, [[0.5, 1e38]]).tolist()
    assert program(torch.tensor(0), torch.tensor([[0.5, 1e38]]))[0].tolist() == ours
    assert program(torch.tensor(0), torch.tensor([[0.5, 1e39]]))[0].tolist() == [-1]  # infinite in float32


def test_all_that_a_program_holds_moves_to_another_device(exported):
    moved = move_to_device_pass(torch.export.load(exported[1]), "meta")
    made = [str(node.kwargs["device"]) for node in moved.graph.nodes if node.kwargs.get("device") is not None]
    held = [value.device.type for value in [*moved.constants.values(), *moved.state_dict.values()]]
    assert set(made) | set(held) == {"meta"}
    actions, q = moved.module()(torch.tensor(0, device="meta"), readings(5).to("meta"))
    assert (actions.shape, q.shape, q.device.type) == ((5,), (5, 2), "meta")


def test_a_known_class_is_exported_too():
    mixture = make_family("mixture", horizon=2)
    grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 61)
    ensemble = Ensemble(Problem(mixture.spec, mixture.graph, grid), (MixturePredictors.build(mixture, grid, flips=4),))
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), (0.2,))
    policy = MetaPolicy(ensemble, 1, estimator, ((0,), (1,)), 9).condition(spread(estimator.grid, 3))
    program = traced(policy).module()
    check_same(policy, lambda step, x: program(torch.tensor(step), x))


def test_it_needs_nothing_but_torch(exported):
    graph = torch.export.load(exported[1]).graph
    calls = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert calls and all(name.startswith(("aten.", "<built-in function ")) for name in calls), calls


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(SettingError, match="ends in .pt2 or .onnx"):
        export_policy(conditioned(), tmp_path / "policy.pt")
    for ending in ("pt2", "onnx") if ONNX else ("pt2",):
        (tmp_path / f"mine.{ending}").write_text("my notes")
        with pytest.raises(FileError, match="an exported policy to replace; got a file of something else"):
            export_policy(conditioned(), tmp_path / f"mine.{ending}")
        assert (tmp_path / f"mine.{ending}").read_text() == "my notes"
    meta = policy_of()
    several = meta.condition(spread(meta.problem.grid, 2, meta.problem.graph.num_states))
    with pytest.raises(SettingError, match="a policy of one world"):
        export_policy(several, tmp_path / "policy.pt2")


@pytest.mark.skipif(ONNX, reason="onnx is there")
def test_onnx_is_an_extra(tmp_path):
    with pytest.raises(SettingError, match=r"pip install 's2r_torch\[onnx\]'"):
        export_policy(conditioned(), tmp_path / "policy.onnx")


@pytest.mark.skipif(not ONNX, reason="onnx, onnxscript and onnxruntime are extras")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_onnx_in_its_own_runtime(tmp_path):
    import numpy as np

    onnxruntime = pytest.importorskip("onnxruntime")

    policy = conditioned()
    export_policy(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])

    def run(step, x):
        return map(torch.from_numpy, session.run(None, {"step": np.asarray(step), "x": x.numpy()}))

    check_same(policy, run)
