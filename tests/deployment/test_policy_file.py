"""Policy files: everything survives the round trip; whatever is wrong with a file is refused with its reason."""

import contextlib
import importlib.metadata
import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.policies import policy_of, spread
from support.tampering import crafted

import s2r_torch
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import load_policy, load_policy_file, read, save_policy
from s2r_torch.errors import CheckpointError, LipschitzError, S2RError
from s2r_torch.families import make_family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.files.tensors import OURS
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.predictors.registry import NETS
from s2r_torch.problem import Problem


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(path, policy_of(), family={"name": "grid", "parameters": {"width": 3}}, notes={"seed": 4})
    return path


def rewritten(path, *, change_header=lambda h: None, change_tensors=lambda t: None, digest="right"):
    """The same file with something changed by hand; also its checksum, so that it is right again, or not."""
    header, tensors = read(path)
    change_header(header)
    change_tensors(tensors)
    crafted(path, header, tensors, digest)
    return path


def test_a_clone_that_was_not_installed_saves_its_own_version(tmp_path, monkeypatch):
    """After hours of training, what the package index says of this library matters least."""
    known = importlib.metadata.version

    def version(name):
        if name == "s2r_torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    save_policy(tmp_path / "p.safetensors", policy_of())
    assert read(tmp_path / "p.safetensors")[0]["versions"]["s2r_torch"] == s2r_torch.__version__


@pytest.mark.parametrize("name", sorted(NETS))
def test_round_trip_gives_the_same_policy(name, tmp_path):
    policy = policy_of((name,))
    save_policy(tmp_path / "p.safetensors", policy)
    loaded = load_policy(tmp_path / "p.safetensors")
    D = spread(policy.problem.grid, policy.problem.graph.num_states)
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
    D, x = spread(grid, 3), torch.rand(30, 1, dtype=torch.float64) * 3
    loaded = load_policy(tmp_path / "m.safetensors")
    assert torch.equal(loaded.condition(D).q(1, x), policy.condition(D).q(1, x)) and loaded.ensemble.exact
    y = x.reshape(3, 10, 1)
    assert torch.equal(loaded.estimator(y), estimator(y))


def test_family_is_recorded(saved):
    assert load_policy_file(saved).family == {"name": "grid", "parameters": {"width": 3}}


@pytest.mark.parametrize("left", [lambda n: 0, lambda n: 4, lambda n: n // 100, lambda n: n // 2, lambda n: n - 1])
def test_cut_file_is_refused(saved, left):
    data = saved.read_bytes()
    saved.write_bytes(data[: left(len(data))])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        load_policy(saved)


@pytest.mark.parametrize("first", [b"\xff" * 8, b"\x00" * 8, b"PK\x03\x04\x14\x00\x00\x00", b"\x01" + b"\x00" * 7])
def test_corrupted_first_bytes_are_refused(saved, first):
    saved.write_bytes(first + saved.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        load_policy(saved)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return exec, (f"open({self.path!r}, 'w').close()",)


@pytest.mark.parametrize("disguise", ["pickle", "torch", "numpy"])
def test_a_pickle_in_disguise_is_refused_and_not_executed(tmp_path, disguise):
    path, sprung = tmp_path / "policy.safetensors", tmp_path / "sprung"
    if disguise == "pickle":
        path.write_bytes(pickle.dumps(Trap(sprung)))
    elif disguise == "torch":
        torch.save({"weights": Trap(sprung)}, path)
    else:
        with path.open("wb") as file:
            np.save(file, np.asarray([Trap(sprung)], dtype=object))
    with pytest.raises(CheckpointError, match="another kind of file"):
        load_policy(path)
    assert not sprung.exists()


def test_no_file_is_a_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        load_policy(tmp_path / "nothing.safetensors")
    with pytest.raises(CheckpointError, match="no file"):
        load_policy(tmp_path)


def test_a_single_changed_weight_is_noticed(saved):
    """Finite, certified, and yet not what was saved."""

    def change(tensors):
        name = next(n for n, value in tensors.items() if n.startswith("group0.") and value.is_floating_point())
        tensors[name].view(-1)[0] += 1e-3

    with pytest.raises(CheckpointError, match="the numbers that were written"):
        load_policy(rewritten(saved, change_tensors=change, digest="stale"))


def test_newer_format_is_refused(saved):
    with pytest.raises(CheckpointError, match="newer"):
        load_policy(rewritten(saved, change_header=lambda h: h.update(format=99), digest="stale"))


def test_missing_tensor_is_named(saved):
    for name in sorted(read(saved)[1]):
        data = saved.read_bytes()
        with pytest.raises(CheckpointError, match=re.escape(name)):
            load_policy(rewritten(saved, change_tensors=lambda t, name=name: t.pop(name), digest="stale"))
        with pytest.raises(CheckpointError, match=re.escape(name)):  # also where the list was edited to match
            load_policy(rewritten(saved, change_header=lambda h, name=name: h["tensors"].pop(name), digest="stale"))
        saved.write_bytes(data)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(saved, value):
    for name, tensor in read(saved)[1].items():
        if tensor.is_floating_point() and tensor.numel():
            data = saved.read_bytes()
            with pytest.raises(CheckpointError, match=f"not finite: .*{re.escape(name)}"):
                load_policy(rewritten(saved, change_tensors=lambda t, name=name: t[name].view(-1)[-1:].fill_(value)))
            saved.write_bytes(data)


def strings(node, path=()):
    """The places of all strings in JSON values."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str):
            yield (*path, key)
        elif isinstance(value, dict | list):
            yield from strings(value, (*path, key))


@pytest.mark.parametrize("name", ["os.system", "builtins:exec", "trap", "trap:spring", "trap.spring", "../trap.py"])
def test_nothing_that_a_file_names_is_imported_or_called(saved, tmp_path, monkeypatch, name):
    """Every string in the header becomes the name of something callable: the file is refused, or it makes no odds."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(
        f"open({str(sprung)!r}, 'w').close()\ndef spring(*a, **k): open({str(sprung)!r}, 'w')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = saved.read_bytes()
    places = [place for place in strings(read(saved)[0]) if place[0] not in ("tensors", "versions", "notes")]
    refused = 0
    for place in places:

        def edit(header, place=place):
            for key in place[:-1]:
                header = header[key]
            header[place[-1]] = name

        rewritten(saved, change_header=edit)
        try:
            family = load_policy_file(saved).family
            make_family(**{"name": family["name"], **family["parameters"]})
        except S2RError:
            refused += 1
        saved.write_bytes(data)
    assert not sprung.exists() and "trap" not in sys.modules
    assert refused >= 4  # kernel, boundary, network and family


@pytest.mark.parametrize("new", [None, "text", -1, [], {}, 10**7, "left out"], ids=str)
def test_a_header_edited_at_random_is_one_clear_error_or_makes_no_odds(saved, new):
    header, tensors = read(saved)
    header = {k: v for k, v in header.items() if k not in OURS}

    def places(node, path=()):
        yield path
        for key, value in node.items() if isinstance(node, dict) else list(enumerate(node))[:2]:
            yield from places(value, (*path, key)) if isinstance(value, dict | list) else [(*path, key)]

    for place in places(header):
        edited = json.loads(json.dumps(header))
        if not place:
            edited = new
        else:
            inside = edited
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = new
            if new == "left out":
                del inside[place[-1]]
        crafted(saved, edited, tensors)
        with contextlib.suppress(S2RError):
            load_policy_file(saved)


def test_renamed_network_is_refused(saved):
    rewritten(saved, change_header=lambda h: h["groups"][0].update(name="lookdown"))
    with pytest.raises(S2RError, match="one of the networks.*'lookdown'"):
        load_policy(saved)


def test_missing_field_is_refused(saved):
    with pytest.raises(CheckpointError, match="complete policy file"):
        load_policy(rewritten(saved, change_header=lambda h: h.pop("cover")))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e3, 1e30, -1e3])
def test_no_weight_can_break_the_bound_unnoticed(saved, factor):
    """Layers are normalised when they are used: a tampered weight is refused, or still within C_L, certified anew."""
    for name, tensor in read(saved)[1].items():
        if name.startswith("group0.") and tensor.is_floating_point():
            data = saved.read_bytes()
            rewritten(saved, change_tensors=lambda t, name=name: t[name].mul_(factor))
            try:
                ensemble = load_policy(saved).ensemble
                assert bool((ensemble.lipschitz_bound() <= LookupNet.default_bound * (1 + 1e-6)).all()), name
            except (CheckpointError, LipschitzError):
                pass
            saved.write_bytes(data)


def test_a_weight_that_breaks_the_bound_is_refused(tmp_path, monkeypatch):
    """A network whose layers are not normalised has only its certificate, computed at every load."""

    class Loose(LookupNet):
        name, default_bound = "loose", 30.0

        def lipschitz_bound(self):
            return 20 * self.steps[0].first.weight.detach().double().abs().amax().expand(self.size)

    monkeypatch.setitem(NETS._known, "loose", Loose)
    path = tmp_path / "policy.safetensors"
    policy = policy_of(("loose",))
    save_policy(path, policy)
    load_policy(path)
    with pytest.raises(LipschitzError, match="a Lipschitz constant of at most 30; got"):
        load_policy(rewritten(path, change_tensors=lambda t: t["group0.steps.0.first.weight"].mul_(1000)))


def test_a_bound_below_zero_is_refused(saved):
    with pytest.raises(S2RError, match="lipschitz_bound: a number > 0"):
        load_policy(rewritten(saved, change_header=lambda h: h["groups"][0]["settings"].update(lipschitz_bound=-1.0)))


def test_a_cover_that_misses_a_state_is_refused(saved):
    with pytest.raises(S2RError, match="visits every state"):
        load_policy(rewritten(saved, change_header=lambda h: h["cover"].pop()))


def test_failed_save_keeps_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr("s2r_torch.files.tensors.save", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_policy(saved, policy_of())
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


KILLED = """
import os, sys, time
from support.policies import policy_of, spread
from support.tampering import crafted
from s2r_torch.deployment.policy_file import save_policy
policies = [policy_of(), policy_of(("mlp",))]
save_policy(sys.argv[1], policies[0])
for delay in map(float, sys.argv[2:]):  # forked: 20 processes, torch imported once
    child = os.fork()
    if child == 0:
        while True:
            for policy in policies:
                save_policy(sys.argv[1], policy)
    time.sleep(delay)
    os.kill(child, 9)
    os.waitpid(child, 0)
    print(len(os.listdir(os.path.dirname(sys.argv[1]))), flush=True)
    assert os.system(f"cp {sys.argv[1]} {sys.argv[1]}.{delay}") == 0
"""


@pytest.mark.slow
def test_killed_while_overwriting_leaves_a_whole_file(tmp_path):
    path = tmp_path / "policy.safetensors"
    delays = [f"{0.005 + 0.01 * d:.5f}" for d in torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(path), *delays]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    copies = sorted(tmp_path.glob("policy.safetensors.*"))
    assert len(copies) == 20
    names = [load_policy(copy).ensemble.groups[0].name for copy in [*copies, path]]
    assert set(names) <= {"lookup", "mlp"}


DEPLOYED = """
import re, sys
from importlib import metadata

kept, wanted = set(), ["torch", "numpy", "scipy", "safetensors"]  # these, and what they themselves require
while wanted:
    name = wanted.pop().lower().replace("_", "-")
    if name not in kept:
        kept.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        wanted += [re.match("[A-Za-z0-9._-]+", line)[0] for line in requires if "extra ==" not in line]
kept.add("s2r-torch")
packages = metadata.packages_distributions()
refused = {p for p, owners in packages.items() if not {o.lower().replace("_", "-") for o in owners} & kept}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise ImportError(f"{name} is not installed on site")


sys.meta_path.insert(0, Blocker())
assert {"hydra", "lightning", "gymnasium", "rich", "matplotlib", "pytest"} <= refused
import torch
import s2r_torch

policy = s2r_torch.load_policy(sys.argv[1])
readings = [torch.rand(25, 2, dtype=torch.float64) + 0.5 for _ in range(policy.problem.graph.num_states)]
acting = policy.condition_on(readings)
x = torch.rand(7, 2)
assert all(acting.act(step, x).shape == (7,) for step in range(policy.problem.graph.horizon))
assert all(t.device.type == "cpu" for group in policy.ensemble.groups for t in group.state_dict().values())
assert float(policy.ensemble.lipschitz_bound().max()) <= 40 * (1 + 1e-6)  # of lookup
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & refused, loaded & refused
assert "s2r_torch.predictors.training.fit" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_loads_in_a_fresh_process_with_torch_numpy_scipy_and_safetensors_alone(saved, tmp_path_factory, where):
    cwd, path = saved.parent, saved.name
    if where == "elsewhere":
        cwd, path = tmp_path_factory.mktemp("elsewhere"), str(saved)
    done = subprocess.run([sys.executable, "-c", DEPLOYED, path], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
