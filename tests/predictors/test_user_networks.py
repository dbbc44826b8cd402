"""Users' networks: five lines in a module of their own, with a certificate by construction or marked as having none."""

import importlib
import itertools
import os
import random
import re
import sys
import tempfile
import textwrap
import time
import warnings
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from support import attacks
from support.attacks import attack, bumps, densities, make_net, problem, readings
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.edges import NO_CHECK
from s2r_torch.deployment.export import Program, export_policy
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import load_policy, read, save_policy
from s2r_torch.deployment.probes import probes
from s2r_torch.encoders import ENCODERS
from s2r_torch.episodes import Transitions
from s2r_torch.errors import LipschitzError, ObservationError, SettingError
from s2r_torch.predictors import registry
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets import summaries
from s2r_torch.predictors.nets.free import FreeNet, FreeStep
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import net_class, register, variants
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import TrainingSettings, fit
from s2r_torch.registry import import_plugins
from s2r_torch.reports.deployment import report
from s2r_torch.rng import Seed
from s2r_torch.runs.configuring import settings_from

ROOT = Path(__file__).parents[2]


def documented_plugin() -> str:
    """The code block of docs/own-network.md that registers `peaks`, as it stands there."""
    page = (ROOT / "docs" / "own-network.md").read_text()
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", page, re.MULTILINE)
    (block,) = [textwrap.dedent(block) for block in blocks if '@register("peaks")' in block]
    return block


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry.NETS, "_known", dict(registry.NETS._known))
    monkeypatch.setenv("CALLS", "0")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "peaks.py").write_text(documented_plugin())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "peaks", raising=False)
    import_plugins(["peaks"])
    yield "peaks"
    sys.modules.pop("peaks", None)


def trained(name, where, **settings):
    g = torch.Generator().manual_seed(0)
    xi, n, B = where.graph.num_states, 6, 8
    samples = tuple(
        Transitions(
            readings(where, (B, n), g),
            torch.randint(2, (B, n), generator=g),
            torch.rand(B, n, generator=g, dtype=torch.float64) / 3,
        )
        for _ in range(xi)
    )
    few = TrainingSettings(members=2, snapshots=2, steps=6, rounds=2, batch_simulators=4, batch_samples=2)
    return fit(
        make_net(name, where, members=2, **settings), TrainingData(bumps(where, B, g), samples), few, Seed.root(0)
    ).net


def policy_of(net):
    where = net.problem
    estimator = DensityEstimator(where.grid, make_kernel("legendre", 2), tuple(where.grid.spacing))
    return MetaPolicy(Ensemble(where, (net,)), 0, estimator, path_cover(where.graph), 10)


def test_five_lines_make_a_certified_network(plugin, tmp_path):
    """Trained, certified, attacked, saved and loaded like any other."""
    net = trained(plugin, problem("line"))
    bound = net.certify()
    assert bool((attack(net, torch.Generator().manual_seed(1), rounds=3) <= bound * (1 + 1e-6)).all())
    policy = policy_of(net)
    assert policy.ensemble.certified
    save_policy(tmp_path / "p.safetensors", policy)
    loaded = load_policy(tmp_path / "p.safetensors").ensemble
    assert loaded.groups[0].name == "peaks" and loaded.certified
    registry.NETS._known.pop("peaks")
    with pytest.raises(SettingError, match="plugin not imported"):
        load_policy(tmp_path / "p.safetensors")


def test_a_name_finds_its_module_in_the_working_folder(tmp_path, monkeypatch):
    """`net=peaks` and `encoder=eyes`, as the documents have them, without plugins."""
    page = (ROOT / "docs" / "encoders.md").read_text()
    (eyes,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if '("eyes")' in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(ENCODERS, "_known", dict(ENCODERS._known))
    for name, text in (("peaks", documented_plugin()), ("eyes", eyes)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    settings = settings_from({"net": {"peaks": {}}, "encoder": {"name": "eyes", "gain": 2.0}})
    assert list(settings.nets) == ["peaks"] and "peaks" in registry.NETS and "eyes" in ENCODERS
    for name in ("peaks", "eyes"):
        sys.modules.pop(name)


def test_wrong_plugins_are_named():
    with pytest.raises(SettingError, match="no_such_module"):
        import_plugins(["no_such_module"])
    with pytest.raises(SettingError, match="'lookup' for .*Mine"):

        @register("lookup")
        class Mine(FreeNet):
            pass


def free(name="mine", module=lambda i, o: nn.Sequential(nn.Linear(i, 8), nn.GELU(), nn.Linear(8, o))):
    name = name.replace(" ", "_")

    @register(name)
    class Mine(FreeNet):
        def module(self, inputs, outputs):
            return module(inputs, outputs)

    return name


def test_any_module_is_accepted_and_marked(tmp_path):
    where, state = problem("line"), torch.random.get_rng_state()
    name = free()
    net = trained(name, where)
    assert torch.equal(torch.random.get_rng_state(), state)  # modules' own initialisation included
    assert net.size == 4 and torch.isinf(net.certify()).all()
    ensemble = Ensemble(where, (make_net("lookup", where), net))
    assert not ensemble.certified and ensemble.subset([0, 1]).certified
    policy = policy_of(net)
    save_policy(tmp_path / "p.safetensors", policy)
    assert read(tmp_path / "p.safetensors")[0]["certified"] is False
    loaded = load_policy(tmp_path / "p.safetensors").ensemble.groups[0]
    D, x = bumps(where, 3, torch.Generator().manual_seed(1)), readings(where, (3, 5), torch.Generator().manual_seed(2))
    for step in range(3):
        assert torch.equal(loaded.q(loaded.condition(D), step, x), net.q(net.condition(D), step, x))
    assert not loaded.certified


@pytest.mark.parametrize("certified", [True, False])
def test_deploying_says_so_too(certified):
    policy = policy_of(make_net("lookup" if certified else free(), problem("line"), members=1))
    deployment = SimpleNamespace(
        episodes=3, used=torch.tensor([10, 10]), likeness="untested", looks=(), notices=(), edges=NO_CHECK
    )
    deployed = SimpleNamespace(deployment=deployment, title="a world", worth=None)
    console = Console(file=StringIO(), width=120)
    console.print(report(policy, deployed))
    assert ("NOT certified" in console.file.getvalue()) is not certified


def test_free_networks_against_their_modules_one_by_one():
    where, g = problem("plane"), torch.Generator().manual_seed(0)
    net = make_net(free(), where, members=3).requires_grad_(False)
    D, x = densities(where, 1, g), readings(where, (6, 5), g)
    for step in range(3):
        q = net.q(net.condition(D), step, x)
        told = torch.nn.functional.pad(net.standardised(D.float()), (0, 1))  # no scarcity: of as many as ever
        features = told[:, None].expand(-1, 5, -1)
        rows = torch.cat([features, net.scaled_x(x), net.local(D.float(), step, x)], -1)
        for f in range(3):
            module = nn.Sequential(nn.Linear(rows.shape[-1], 8), nn.GELU(), nn.Linear(8, 2))
            module.load_state_dict({k.replace("/", "."): w[f] for k, w in net.steps[step].weights.items()})
            torch.testing.assert_close(q[f], module(rows).clamp(0, 1), atol=1e-5, rtol=0)
        assert float((q[0] - q[1]).abs().max()) > 1e-3


def test_modules_with_buffers_are_refused():
    name = free(module=lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o)))
    with pytest.raises(SettingError, match="buffers"):
        make_net(name, problem("line"))


class Branching(nn.Module):
    """Looks at numbers, which vmap cannot do."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.one, self.two = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.stack([self.one(row) if self.two(row).sum().item() > 0 else self.two(row) for row in x])


class Scaled(nn.Module):
    """A constant buffer, and a frozen layer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, inputs))
        self.first, self.last = nn.Linear(inputs, 8).requires_grad_(False), nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x * self.scale)))


class Doubling(nn.Module):
    """Writes over what it is given."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x.mul_(2))


class Watched(nn.Module):
    """Keeps what it saw last, for a picture."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear, self.drop = nn.Linear(inputs, outputs), nn.Dropout(0.5)

    def forward(self, x):
        self.last = self.drop(self.linear(x))
        return self.last


class Named(nn.Module):
    """Parameters called as what holds them calls its own."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.values, self.inner = nn.Parameter(torch.randn(inputs, outputs)), nn.Module()
        self.inner.one = nn.Parameter(torch.randn(outputs))
        self.register_parameter("inner/one", nn.Parameter(torch.randn(outputs)))

    def forward(self, x):
        return x @ self.values + self.inner.one - getattr(self, "inner/one")


class Attending(nn.Module):
    """Dropout within what vmap cannot run."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)
        self.middle = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.last(self.middle(self.first(x)[:, None])[:, 0])


class Wide(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x).double()


class Random(nn.Module):
    """Random features of its own, which nothing trains."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("features", torch.randn(inputs, 8), persistent=False)
        self.linear = nn.Linear(8, outputs)

    def forward(self, x):
        return self.linear(torch.relu(x @ self.features))


class Kept(nn.Linear):
    """Numbers that it draws, kept as they are."""

    def __init__(self, inputs, outputs, draw):
        super().__init__(inputs, outputs)
        self.register_buffer("drawn", draw(inputs))


class Again(nn.Module):
    """Runs its first layer again for gradients, from the parameters that it holds by then."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(checkpoint(lambda rows: torch.relu(self.first(rows)), x, use_reentrant=False))


def pruned(inputs, outputs):
    module = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))
    prune.l1_unstructured(module[0], "weight", amount=0.5)
    return module


def hooked(where):
    def module(inputs, outputs):
        made = nn.Sequential(nn.Linear(inputs, 8), nn.Linear(8, outputs))
        where(made)
        return made

    return module


TAKEN = {
    "random": Random,
    "orthogonal": lambda i, o: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(i, 8)), nn.Linear(8, o)),
    "pruned": pruned,
    "dropout": lambda i, o: nn.Sequential(nn.Linear(i, 16), nn.Dropout(0.5), nn.Linear(16, o)),
    "item": Branching,
    "constant": Scaled,
    "weight_norm": lambda i, o: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(i, 8)), nn.Linear(8, o)),
    "tied": lambda i, o: nn.Sequential(nn.Linear(i, 8), *[nn.Linear(8, 8)] * 2, nn.Linear(8, o)),
    "lazy": lambda i, o: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(o)),
    "norm": lambda i, o: nn.Sequential(nn.Linear(i, 8), nn.LayerNorm(8), nn.Linear(8, o)),
    "doubling": Doubling,
    "named": Named,
    "watched": Watched,
    "attending": Attending,
    "wide": Wide,
}


QUICK = ("random", "pruned", "dropout", "item", "norm", "watched")


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in TAKEN])
def test_modules_of_every_kind_are_trained_saved_and_used(kind, tmp_path):
    where, state = problem("line"), torch.random.get_rng_state()
    name = free(kind, TAKEN[kind])
    net, again = trained(name, where), trained(name, where)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in net.state_dict().items())
    assert net.steps[0]._by_vmap is (kind not in ("item", "weight_norm", "attending"))
    policy = policy_of(net)
    save_policy(tmp_path / "p.safetensors", policy)
    loaded = load_policy(tmp_path / "p.safetensors")
    D, x = bumps(where, 3, torch.Generator().manual_seed(1)), readings(where, (3, 5), torch.Generator().manual_seed(2))
    for step in range(3):
        q = net.q(net.condition(D), step, x)
        assert torch.equal(q, net.q(net.condition(D), step, x))  # Dropout is off
        assert torch.equal(q, loaded.ensemble.groups[0].q(loaded.ensemble.groups[0].condition(D), step, x))
        one = loaded.condition(D[0])
        torch.testing.assert_close(one.q(step, x[0]), q[0, 0], atol=1e-5, rtol=0)
        assert one.act(step, x[0][:0]).shape == (0,)


def test_a_module_that_ends_in_dropout_is_taken_whatever_it_drops():
    """One of 64 draws drops all values of three rows, and with them all gradients."""
    name = free("dropping", lambda i, o: nn.Sequential(nn.Linear(i, o), nn.Dropout(0.5)))
    for seed in range(60):
        make_net(name, problem("line"), members=1, seed=seed)


def test_a_module_sees_numbers_beside_those_that_densities_live_on():
    where, g = problem("beside"), torch.Generator().manual_seed(0)
    net, D, x = make_net(free(), where, members=2), bumps(where, 3, g), readings(where, (3, 4), g)
    other = torch.cat([where.spec.placed(x), -x[..., 2:]], -1)
    for step in range(3):
        q, moved = (net.q(net.condition(D), step, seen) for seen in (x, other))
        assert q.shape == (2, 3, 4, 2) and float((q - moved).abs().amax()) > 1e-3
        assert torch.equal(net.local(D, step, x), net.local(D, step, other))
    assert probes(policy_of(net))["probe.group0.q"].shape == (3, 2, 2, 4, 2)  # what a file keeps of it


def test_what_a_module_says_later_is_named_too():
    def short(q, _):
        if len(q) > 20:
            raise ValueError("too many rows")
        return q

    with pytest.raises(SettingError, match="Mine.module to map rows .*; got ValueError: too many rows"):
        trained(free("short", lambda i, o: Inner(i, o, short)), problem("line"))


def test_a_module_of_ones_own_is_exported(tmp_path):
    where = problem("line")
    policy = policy_of(make_net(free(), where, members=1)).condition(
        bumps(where, 1, torch.Generator().manual_seed(1))[0]
    )
    export_policy(policy, tmp_path / "p.pt2")
    program = torch.export.load(tmp_path / "p.pt2").module()
    for n in (0, 1, 5):
        x = readings(where, (1, n), torch.Generator().manual_seed(2))[0].float()
        torch.testing.assert_close(program(torch.tensor(1), x)[1], policy.q(1, x), atol=1e-5, rtol=0)


def test_what_is_frozen_stays_and_dropout_acts_in_training():
    where = problem("line")
    before = make_net(free("constant", Scaled), where, members=2)
    after = trained("constant", where)
    frozen = {key for key, value in before.named_parameters() if not value.requires_grad}
    assert frozen == {f"steps.{h}.weights.first/{part}" for h in range(3) for part in ("weight", "bias")}
    net = make_net(free("dropout", TAKEN["dropout"]), where, members=2)
    local, x = torch.zeros(1, 5, net.steps[1].sizes.states), torch.zeros(1, 5, 1)
    draws = [net.raw_q(1, net.standardised(bumps(where, 1, torch.Generator()).float()), local, x) for _ in range(2)]
    assert not torch.equal(*draws) and not torch.equal(draws[0][:, :, 0], draws[0][:, :, 1])
    assert after.size == 4


class Batched(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x).softmax(0)


class Hidden(nn.Module):
    """Numbers of its own that are neither parameters nor buffers."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear, self.shift = nn.Linear(inputs, outputs), torch.randn(outputs)

    def forward(self, x):
        return self.linear(x) + self.shift


class Inner(nn.Linear):
    """A linear layer whose values go through a function, in training or always."""

    def __init__(self, inputs, outputs, function):
        super().__init__(inputs, outputs)
        self.function = function

    def forward(self, x):
        return self.function(super().forward(x), self.training)


SHARED = nn.Linear(21, 2)


def broken(inputs, outputs):
    raise RuntimeError("no such layer")


def torchscript(module):
    with warnings.catch_warnings(action="ignore"):  # torch would have us use something else
        return torch.jit.script(module)


REFUSED = {
    "torchscript": (lambda i, o: torchscript(nn.Linear(i, o)), "a plain nn.Module .* got RecursiveScriptModule"),
    "parallel": (lambda i, o: nn.DataParallel(nn.Linear(i, o)), "a plain nn.Module .* got DataParallel.* in it"),
    "program": (
        lambda i, o: torch.export.export(nn.Linear(i, o), (torch.zeros(3, i),)).module(),
        "that can be set into use or training; got NotImplementedError",
    ),
    "hook of a parameter": (
        hooked(lambda made: made[0].weight.register_hook(lambda g: 0 * g)),
        "gradients without hooks from Mine.module; got hooks on 0.weight; .*freezes a parameter",
    ),
    "hook behind a gradient": (
        hooked(lambda made: made[0].bias.register_post_accumulate_grad_hook(lambda p: None)),
        "gradients without hooks .* on 0.bias",
    ),
    "hook before a gradient": (
        hooked(lambda made: made[1].register_full_backward_pre_hook(lambda m, g: g)),
        "gradients without hooks .* on 1",
    ),
    "hook of a module": (
        hooked(lambda made: made[1].register_full_backward_hook(lambda m, g, _: g)),
        "gradients without hooks .* on 1",
    ),
    "an order of its own": (
        lambda i, o: Kept(i, o, torch.randperm),
        "whole numbers and masks that all members share .*; got others; .*make it real numbers",
    ),
    "buffers of other shapes": (
        lambda i, o: Kept(i, o, lambda n: torch.zeros(int(torch.randint(1000, ())))),
        "members alike but for their numbers .*; got parameters or buffers of other shapes",
    ),
    "checkpoint": (
        Again,
        "gradients of Mine.module with numbers that are handed to it; .*checkpoint",
    ),
    "detached": (lambda i, o: Inner(i, o, lambda q, _: q.detach()), "values that depend on parameters"),
    "frozen": (lambda i, o: nn.Linear(i, o).requires_grad_(False), "parameters .*; got none that requires a gradient"),
    "in place": (lambda i, o: Inner(i, o, lambda q, _: q.sigmoid_().mul_(0.5)), "gradients of Mine.module; got Runt"),
    "root": (lambda i, o: Inner(i, o, lambda q, _: (0 * q).sqrt()), "finite gradients .*; got NaN or inf in weight"),
    "training": (lambda i, o: Inner(i, o, lambda q, on: q[:, :1] if on else q), r"got \[96, 1\] .* type in training"),
    "training nan": (
        lambda i, o: Inner(i, o, lambda q, on: q / 0 if on else q),
        "finite .*; got NaN or inf in training",
    ),
    "nowhere": (lambda i, o: Inner(i, o, lambda q, _: q.to("meta")), r"one per action, .*float32 on meta"),
    "sparse": (lambda i, o: Inner(i, o, lambda q, _: q.to_sparse()), "one per action"),
    "again": (lambda i, o: SHARED, "a new module with numbers of its own at every call"),
    "meta": (lambda i, o: nn.Linear(i, o, device="meta"), "a new module with numbers of its own at every call"),
    "complex": (lambda i, o: nn.Linear(i, o, dtype=torch.complex64), "Mine.module to map rows|real numbers"),
    "exit": (lambda i, o: Inner(i, o, lambda q, _: sys.exit(0)), "to map rows .*; got SystemExit: 0"),
    "making": (broken, r"Mine.module\(21, 2\) to make a module; got RuntimeError: no such layer"),
    "spectral_norm": (
        lambda i, o: nn.utils.parametrizations.spectral_norm(nn.Linear(i, o)),
        "buffers that stay as they are from Mine.module; got parametrizations.weight.0._u.* of _SpectralNorm, which",
    ),
    "size": (lambda i, o: nn.Linear(i, o + 1), r"values \[n, 2\], one per action, from Mine.module; got \[3, 3\]"),
    "rank": (
        lambda i, o: nn.Sequential(nn.Linear(i, o), nn.Flatten(0)),
        r"from Mine.module; got \[6\] of torch.float32",
    ),
    "forward": (lambda i, o: nn.Linear(i + 1, o), "Mine.module to map rows .*; got RuntimeError: mat1 and mat2"),
    "batch": (Batched, "values row by row from Mine.module"),
    "random": (lambda i, o: nn.Sequential(nn.Linear(i, o), Noise()), "the same values for the same rows"),
    "nothing": (lambda i, o: nn.Flatten(), "one per action"),
    "no module": (lambda i, o: lambda x: x, "an nn.Module from Mine.module; got function"),
    "hidden": (Hidden, "members that differ by their parameters alone"),
    "double": (lambda i, o: nn.Linear(i, o, dtype=torch.float64), "to map rows .*; got RuntimeError: .*dtype"),
    "counter": (lambda i, o: Counting(i, o, False), "attributes that stay as they are .*; got others .*: seen"),
    "counter in training": (
        lambda i, o: nn.Sequential(Counting(i, o, True)),
        r"attributes that stay as they are .*; got others after a call: 0\.seen",
    ),
    "counter outside": (lambda i, o: Inner(i, o, _outside), "a forward that changes nothing .*; got .*: CALLS"),
    "counter of a class": (lambda i, o: OfClass(i, o), r"a forward that changes nothing .*; got .*: OfClass\.calls"),
    "counter in a closure": (lambda i, o: Inner(i, o, _enclosed()), "a forward that changes nothing .*; got .*: n"),
    "counter of an iterator": (lambda i, o: Inner(i, o, _iterated), "a forward that changes nothing .*: TICKS"),
    "counter of an object": (lambda i, o: Inner(i, o, _of_object), "a forward that changes nothing .*: STATE"),
    "memory in a default": (lambda i, o: Inner(i, o, _default), "a forward that changes nothing .*: default 1 of"),
    "counter in a partial": (lambda i, o: Inner(i, o, partial(_counted, [0])), "a forward that changes nothing"),
    "counter in slots": (lambda i, o: Inner(i, o, _slotted), "a forward that changes nothing .*: SLOTTED"),
    "counter of another module": (lambda i, o: Inner(i, o, _elsewhere), r"changes nothing .*: attacks\.CALLS"),
    "counter of the environment": (lambda i, o: Inner(i, o, _environment), r"changes nothing .*: os\.environ"),
    "counter outside in training": (
        lambda i, o: Inner(i, o, lambda q, on: _outside(q, on) if on else q),
        "a forward that changes nothing .*: CALLS",
    ),
    "along rows": (lambda i, o: Along(i, o), "values row by row .*; got others for a row alone"),
    "large batches": (
        lambda i, o: Inner(i, o, lambda q, _: q - q.mean(0) * (len(q) > 64)),
        "values row by row .*; got others among 128 rows",
    ),
    "first rows": (
        lambda i, o: Inner(i, o, lambda q, _: torch.cat([q[:128], 0 * q[128:]])),
        "values row by row .*; got others among (256|512|1024) rows",
    ),
    "own stream": (lambda i, o: Anew(i, o), "the same module for the same seed .*; got other numbers"),
    "rounding": (lambda i, o: Inner(i, o, lambda q, _: q.round()), "gradients with respect .*; got 0 for all"),
    "file": (lambda i, o: Inner(i, o, _reading_a_file), "a forward without files .*; got one that opens .*gain.txt"),
    "seeding": (lambda i, o: Inner(i, o, _seeding), "a forward that draws no numbers .*; got torch's global generator"),
    "little noise": (lambda i, o: Inner(i, o, lambda q, _: q + 1e-6 * torch.rand_like(q)), "the same values for the"),
    "nothing over nothing": (lambda i, o: Ratio(i, o), "finite values from Mine.module; got NaN"),
    "even numbers of rows": (
        lambda i, o: Inner(i, o, lambda q, _: q if len(q) % 2 else q * 2),
        "values row by row .*; got others among 2 rows",
    ),
    "nan": (lambda i, o: nn.Sequential(nn.Linear(i, o), Logarithm()), "finite values from Mine.module; got NaN"),
}


CALLS, TICKS, GAIN = [0], itertools.count(), Path(tempfile.gettempdir()) / "s2r_gain.txt"


class Ratio(nn.Linear):
    """NaN where the reading is 0, the middle of the box."""

    def forward(self, x):
        return super().forward(x) * x[:, -2:-1] / x[:, -2:-1]  # at step 0, of one state


def _reading_a_file(q, _):
    GAIN.write_text("2.0")
    return q * float(GAIN.read_text())


def _seeding(q, _):
    torch.manual_seed(0)
    return q + torch.rand(())


class State:
    def __init__(self):
        self.calls = 0


STATE = State()


def _outside(q, _):
    CALLS[0] += 1
    return q * (1 if CALLS[0] < 10**6 else -1)


def _iterated(q, _):
    return q * (1 if next(TICKS) < 10**6 else -1)


def _of_object(q, _):
    STATE.calls += 1
    return q * (1 if STATE.calls < 10**6 else -1)


def _default(q, _, seen={}):  # noqa: B006
    return q + seen.setdefault("mean", q.mean())


def _enclosed():
    n = 0

    def count(q, _):
        nonlocal n
        n += 1
        return q * (1 if n < 10**6 else -1)

    return count


class Slotted:
    __slots__ = ("calls",)


SLOTTED = Slotted()
SLOTTED.calls = 0
attacks.CALLS = 0


def _slotted(q, _):
    SLOTTED.calls += 1
    return q * (1 if SLOTTED.calls < 10**6 else -1)


def _elsewhere(q, _):
    attacks.CALLS += 1
    return q * (1 if attacks.CALLS < 10**6 else -1)


def _counted(calls, q, _):
    calls[0] += 1
    return q * (1 if calls[0] < 10**6 else -1)


def _environment(q, _):
    calls = int(os.environ.get("CALLS", "0")) + 1
    os.environ["CALLS"] = str(calls)
    return q * (1 if calls < 10**6 else -1)


class OfClass(nn.Linear):
    calls = 0

    def forward(self, x):
        OfClass.calls += 1
        return super().forward(x) * (1 if self.calls < 10**6 else -1)


class Along(nn.Module):
    """Takes the rows for one sequence; the first one is as it would be alone."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.cells, self.linear = nn.LSTM(inputs, 4), nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(self.cells(x)[0])


class Anew(nn.Linear):
    """Starts from numbers that no seed decides."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        generator = torch.Generator()
        generator.seed()
        self.weight.data = torch.rand(outputs, inputs, generator=generator)


class Counting(nn.Linear):
    """Another function after so many calls."""

    def __init__(self, inputs, outputs, only_in_training):
        super().__init__(inputs, outputs)
        self.only_in_training, self.seen = only_in_training, [0]

    def forward(self, x):
        self.seen[0] += self.training or not self.only_in_training
        return super().forward(x) * (1 if self.seen[0] < 1000 else -1)


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Logarithm(nn.Module):
    def forward(self, x):
        return (-x.abs() - 1).log()


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_a_predictor_is_refused_by_name_when_it_is_made(kind):
    module, message = REFUSED[kind]
    with pytest.raises(SettingError, match=message):
        make_net(free(kind, module), problem("line"))


def test_a_module_does_not_see_inference_mode():
    class Modes(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (3 if torch.is_inference_mode_enabled() else 1)

    net = make_net(free("modes", Modes), problem("line"))
    D, x = bumps(net.problem, 2, torch.Generator().manual_seed(0)), torch.rand(2, 5, 1)
    with torch.no_grad():
        q = net.q(net.condition(D), 1, x)
    with torch.inference_mode():
        assert torch.equal(net.q(net.condition(D), 1, x), q)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, outputs)
        self.three = nn.Linear(8, 8)
        self.three.weight = self.two.weight

    def forward(self, x):
        return self.out(self.three(self.two(self.one(x)).relu()))


def from_elsewhere(inputs, outputs):
    """Starts from numbers of numpy's and random's global generators, which a run's seed decides, too."""
    layer = nn.Linear(inputs, outputs)
    layer.weight.data *= random.random() + np.random.rand()
    return layer


@pytest.mark.parametrize(
    "module", [Tied, from_elsewhere, lambda i, o: nn.LazyLinear(o)], ids=["tied", "elsewhere", "lazy"]
)
def test_what_is_like_any_other_module_once_it_is_seeded(tmp_path, module):
    where = problem("line")
    random.seed(time.time())
    nets = [trained(free(f"seeded{i}", module), where) for i in range(2)]
    x = torch.rand(9, 1, generator=torch.Generator().manual_seed(0))
    D = bumps(where, 1, torch.Generator().manual_seed(1))[0]
    q = [policy_of(net).condition(D).q(1, x) for net in nets]
    assert torch.equal(*q)
    save_policy(tmp_path / "p.safetensors", policy_of(nets[0]))
    assert torch.equal(load_policy(tmp_path / "p.safetensors").condition(D).q(1, x), q[0])


def test_what_an_installed_library_keeps_is_its_own_affair(tmp_path, monkeypatch):
    """Such as einops, which remembers the kinds of tensors that it has seen."""
    (tmp_path / "site-packages").mkdir()
    text = "SEEN = {}\n\n\ndef scaled(q):\n    SEEN[len(SEEN)] = 1\n    return 2 * q\n"
    (tmp_path / "site-packages" / "a_library.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    scaled = importlib.import_module("a_library").scaled
    make_net(free("installed", lambda i, o: Inner(i, o, lambda q, _: scaled(q))), problem("line"))
    sys.modules.pop("a_library")


def test_numbers_that_one_member_alone_keeps_for_itself_are_refused():
    with pytest.raises(SettingError, match="members that differ by their parameters alone"):
        make_net(free("hidden", Hidden), problem("line"), members=1)


def test_training_that_diverges_names_the_members():
    with pytest.raises(LipschitzError, match="finite weights of all 4 members of net 'huge'"):
        trained(free("huge", lambda i, o: Inner(i, o, lambda q, _: q * 1e30)), problem("line"))


def test_values_that_are_no_numbers_at_some_readings_are_named():
    """In training by members; in use when they are asked for."""
    where, D = problem("line"), bumps(problem("line"), 1, torch.Generator().manual_seed(1))

    class Short(nn.Linear):
        def forward(self, x):
            return super().forward(x).where((x[:, -2:-1] + 0.8).abs() > 0.05, torch.nan)  # x at step 0, of one state

    name = free("short", Short)
    with pytest.raises(
        SettingError, match="finite values of all 2 members of net 'short' at step .; got NaN .*member 0"
    ):
        trained(name, where)
    policy = policy_of(make_net(name, where, members=1)).condition(D[0])
    (low,), (high,) = where.spec.low, where.spec.high
    x = torch.linspace(low, high, 98, dtype=torch.float64)[:, None]
    short = ((2 * x[:, 0] - low - high) / (high - low) + 0.8).abs() > 0.05  # in half-widths of the box
    with pytest.raises(ObservationError, match="finite values of member 0 .*; got NaN or inf at step 0"):
        policy.act(0, x)
    assert policy.act(0, x[short]).shape == (int(short.sum()),)
    actions, q = Program(policy).eval()(torch.tensor(0), x.float())
    assert torch.equal(actions >= 0, short) and bool(q[short].isfinite().all())


def test_a_module_sees_torch_as_it_is_when_imported():
    made, before = [], torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.no_grad():
            net = make_net(free("plain", lambda i, o: made.append(nn.Linear(i, o)) or made[-1]), problem("line"))
        assert made[0].weight.dtype == torch.float32 and torch.get_default_dtype() == torch.float64
        assert all(p.requires_grad for p in net.parameters())
    finally:
        torch.set_default_dtype(before)


def test_variants_are_all_combinations():
    assert variants({"width": [16, 32], "depth": 2, "lipschitz_bound": [1.0, 5.0]}) == [
        {"width": w, "depth": 2, "lipschitz_bound": b} for w in (16, 32) for b in (1.0, 5.0)
    ]
    assert variants({}) == [{}] and net_class("lookup").name == "lookup"


def test_what_cannot_be_traced_is_said_when_it_is_exported(tmp_path):
    policy = policy_of(make_net(free("item", Branching), problem("line"), members=1))
    D = bumps(problem("line"), 1, torch.Generator().manual_seed(1))[0]
    with pytest.raises(SettingError, match="a network that torch.export can trace.*deploy it with this library"):
        export_policy(policy.condition(D), tmp_path / "p.pt2")


def peaks(self, D):
    return D.amax(-1)


SUMMARIES = {
    "a sum over nodes": (lambda self, D: D.sum(-1), "move by at most"),
    "a factor": (lambda self, D: 1.01 * D.amax(-1), "move by at most"),
    "a jump": (lambda self, D: D.argmax(-1).float(), "move by at most"),
    "a difference of means": (
        lambda self, D: torch.cat([D.amax(-1), D[..., ::2].mean(-1) - D[..., 1::2].mean(-1)], 1),
        "move by at most .*; got 0.0[0-9]+ for 0.0",  # by its gradient: signs at random hardly move it
    ),
    "neighbours without gradients": (
        lambda self, D: D.detach()[..., 0] - D.detach()[..., 1],
        "move by at most .*; got [0-9.]+ for",
    ),
    "a mean over simulators": (lambda self, D: D.amax(-1) - D.amax(-1).mean(0), "statistics of every simulator by its"),
    "noise": (lambda self, D: D.amax(-1) + torch.rand(len(D), 1), "the same statistics for the same densities"),
    "three dimensions": (lambda self, D: D.amax(-1, keepdim=True), r"statistics \[4, K\], .*flatten\(1\) is missing"),
    "nothing": (lambda self, D: D[:, :0, 0], r"statistics \[4, K\], K >= 1"),
    "None": (lambda self, D: None, "got NoneType"),
    "a fault": (lambda self, D: 1 / 0, "got ZeroDivisionError"),
    "a logarithm": (lambda self, D: D.amin(-1).log(), "finite statistics"),
    "others in training": (
        lambda self, D: D.amax(-1) * (2 if torch.is_grad_enabled() else 1),
        "the same statistics in training and in use",
    ),
}


@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_summary_is_tried_before_a_certificate_rests_on_it(kind):
    summary, message = SUMMARIES[kind]
    register("tried")(type("Tried", (Net,), {"summary": summary, "__module__": __name__}))
    with pytest.raises(SettingError, match=message):
        make_net("tried", problem("line"))


def test_a_summary_is_tried_with_its_own_options_and_one_change_at_a_time(monkeypatch):
    calls, seen, ours = [], [], summaries._changes

    def summary(self, D):
        calls.append(len(D))
        return self.options["factor"] * D.amax(-1)

    def noted(D):
        for change in ours(D):
            seen.append(len(calls))  # changes are as large as D: none is made before the one before it was tried
            yield change

    monkeypatch.setattr(summaries, "_changes", noted)
    where = problem("line")
    register("scaled")(type("Scaled", (Net,), {"summary": summary, "options": {"factor": 1.0}, "__module__": __name__}))
    make_net("scaled", where)
    assert len({*seen}) == len(seen) > 10
    first = len(calls)
    make_net("scaled", where)
    assert len(calls) < 2 * first - 10  # it was tried already
    with pytest.raises(SettingError, match="move by at most"):
        make_net("scaled", where, factor=2.0)


ACCEPTED = {
    "a root at 0": lambda self, D: (D - D.clamp(max=1e3)).square().mean(-1).sqrt(),  # with a gradient NaN
    "float64": lambda self, D: D.double().mean(-1),
    "ranks": lambda self, D: D.sort(-1).values[..., ::20].flatten(1),
    "half a difference": lambda self, D: (D[..., ::2].mean(-1) - D[..., 1::2].mean(-1)) / 2,
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_summary_that_moves_by_at_most_the_sup_norm_is_taken(kind):
    register("tried")(type("Tried", (Net,), {"summary": ACCEPTED[kind], "__module__": __name__}))
    assert make_net("tried", problem("line")).summary_size >= 1


def test_a_module_sees_no_other_numbers_of_rows_than_it_was_examined_with(monkeypatch):
    where, seen, run = problem("line"), set(), FreeStep._run
    net = make_net(free("seeing", nn.Linear), where, members=2)

    def noted(self, weights, rows):
        seen.add(len(rows))
        return run(self, weights, rows)

    monkeypatch.setattr(FreeStep, "_run", noted)
    D = bumps(where, 3, torch.Generator().manual_seed(1))
    x = readings(where, (3, 1501), torch.Generator().manual_seed(2))
    q = net.q(net.condition(D), 1, x)
    assert seen <= {2**k for k in range(11)}  # 1501 readings of 3 simulators are in parts of 256, the last of 221
    alone = torch.cat([net.q(net.condition(D), 1, x[:, k : k + 1]) for k in range(0, 1501, 300)], 2)
    torch.testing.assert_close(q[:, :, ::300], alone, atol=1e-6, rtol=0)


def test_options_are_values_that_a_file_can_hold():
    register("odd")(type("Odd", (Net,), {"summary": peaks, "options": {"f": torch.zeros(2)}, "__module__": __name__}))
    with pytest.raises(SettingError, match="options of net odd with defaults that are JSON values"):
        make_net("odd", problem("line"))


@pytest.mark.parametrize("name", ["-net", "a.b", "2nd", "two words", "é", "x" * 65])
def test_a_name_that_no_command_line_can_say_is_refused(name):
    with pytest.raises(SettingError, match="a name for a network: at most 64 letters, digits, underscores and hyphens"):
        register(name)
