"""Policy files: everything survives the round trip; whatever is wrong with a file is refused with its reason."""

import json
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from s2r_torch.checkpoint import family_of, load_policy, read, save_policy
from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.envs import make_family
from s2r_torch.envs.mixture_predictors import MixturePredictors
from s2r_torch.errors import CheckpointError, LipschitzError, S2RError
from s2r_torch.policy import MetaPolicy
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets import NETS, Problem, net_class
from s2r_torch.tensor_files import KEY


def policy_of(nets=("lookup",), family_name="grid", nodes=12) -> MetaPolicy:
    family = make_family(family_name)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, nodes)
    problem = Problem(family.spec, family.graph, grid)
    generator = torch.Generator().manual_seed(0)
    groups = []
    for name in nets:
        net = net_class(name)(problem, 3, generator, width=8)
        net.fit_scales(torch.rand(5, family.graph.num_states, grid.num_points, generator=generator))
        groups.append(net)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(s * 0.7 for s in grid.spacing))
    return MetaPolicy(Ensemble(problem, tuple(groups)), 1, estimator, path_cover(family.graph), 25)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(path, policy_of(), family={"name": "grid", "parameters": {"width": 3}}, notes={"seed": 4})
    return path


def rewritten(path, *, change_header=lambda h: None, change_tensors=lambda t: None):
    """The same file with something changed by hand."""
    header, tensors = read(path)[0], load_file(path)
    change_header(header)
    change_tensors(tensors)
    save_file(tensors, path, metadata={KEY: json.dumps(header)})
    return path


@pytest.mark.parametrize("name", sorted(NETS))
def test_round_trip_gives_the_same_policy(name, tmp_path):
    policy = policy_of((name,))
    save_policy(tmp_path / "p.safetensors", policy)
    loaded = load_policy(tmp_path / "p.safetensors")
    D = torch.rand(policy.problem.graph.num_states, policy.problem.grid.num_points)
    x = torch.rand(40, 2, dtype=torch.float64) * 2
    for step in range(5):
        assert torch.equal(loaded.condition(D).q(step, x), policy.condition(D).q(step, x))
    assert loaded.problem.spec == policy.problem.spec
    assert loaded.cover == policy.cover and loaded.n_real == policy.n_real and loaded.chosen == policy.chosen
    assert torch.equal(loaded.ensemble.lipschitz_bound(), policy.ensemble.lipschitz_bound())


def test_heterogeneous_and_known_classes_round_trip(tmp_path):
    save_policy(tmp_path / "two.safetensors", policy_of(("lookup", "conv")))
    assert [g.name for g in load_policy(tmp_path / "two.safetensors").ensemble.groups] == ["lookup", "conv"]
    mixture = make_family("mixture", horizon=2)
    grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 61)
    group = MixturePredictors.build(mixture, grid, flips=4)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), (0.2,), boundary="legendre")
    policy = MetaPolicy(
        Ensemble(Problem(mixture.spec, mixture.graph, grid), (group,), exact=True), 0, estimator, ((0,), (1,)), 9
    )
    save_policy(tmp_path / "m.safetensors", policy)
    D, x = torch.rand(3, 61, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64) * 3
    loaded = load_policy(tmp_path / "m.safetensors")
    assert torch.equal(loaded.condition(D).q(1, x), policy.condition(D).q(1, x)) and loaded.ensemble.exact
    y = x.reshape(3, 10, 1)
    assert torch.equal(loaded.estimator(y), estimator(y))


def test_family_is_recorded(saved):
    assert family_of(saved) == {"name": "grid", "parameters": {"width": 3}}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_cut_file_is_refused(saved, share):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        load_policy(saved)


def test_other_kinds_of_files_are_refused(saved, tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        load_policy(tmp_path / "nothing.safetensors")
    data = bytearray(saved.read_bytes())
    data[:8] = b"\xff" * 8
    saved.write_bytes(data)
    with pytest.raises(CheckpointError):
        load_policy(saved)
    (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps({"a": print}))
    with pytest.raises(CheckpointError):
        load_policy(tmp_path / "pickle.safetensors")


def test_newer_format_is_refused(saved):
    with pytest.raises(CheckpointError, match="newer"):
        load_policy(rewritten(saved, change_header=lambda h: h.update(format=99)))


def test_missing_tensor_is_named(saved):
    with pytest.raises(CheckpointError, match="group0.height"):
        load_policy(rewritten(saved, change_tensors=lambda t: t.pop("group0.height")))


def test_nan_weight_is_named(saved):
    with pytest.raises(CheckpointError, match="group0.height"):
        load_policy(rewritten(saved, change_tensors=lambda t: t["group0.height"].fill_(torch.nan)))


def test_renamed_network_is_refused_and_nothing_is_imported(saved):
    rewritten(saved, change_header=lambda h: h["groups"][0].update(name="os.system"))
    with pytest.raises(S2RError, match="one of the networks"):
        load_policy(saved)


def test_missing_field_is_refused(saved):
    with pytest.raises(CheckpointError, match="complete policy file"):
        load_policy(rewritten(saved, change_header=lambda h: h.pop("cover")))


def test_scales_that_break_the_bound_are_refused(saved):
    """The declared bound counts on the stored scales: a summary scale near zero voids it only if weights grow too."""

    def break_it(header):
        header["groups"][0]["settings"]["lipschitz_bound"] = -1.0

    with pytest.raises((LipschitzError, S2RError)):
        load_policy(rewritten(saved, change_header=break_it))


def test_failed_save_keeps_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr("s2r_torch.tensor_files.save_file", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_policy(saved, policy_of())
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_loads_in_a_new_process_without_training_code(saved):
    code = f"""
import sys, torch, s2r_torch
policy = s2r_torch.load_policy({str(saved)!r})
world = [torch.rand(25, 2, dtype=torch.float64) + i for i in range(policy.problem.graph.num_states)]
policy.estimator.check(world[0])
D = torch.rand(policy.problem.graph.num_states, policy.problem.grid.num_points)
assert policy.condition(D).act(0, torch.rand(7, 2)).shape == (7,)
heavy = {{"hydra", "lightning", "gymnasium", "matplotlib", "rich", "s2r_torch.predictors.training"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
