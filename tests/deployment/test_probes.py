"""A policy file with networks or an encoder of a user's own means what was saved, or says that its code is another."""

from dataclasses import replace

import pytest
import torch
from support.policies import policy_of, spread
from support.registries import as_before
from torch import nn

from s2r_torch.deployment.policy_file import load_policy, read, save_policy
from s2r_torch.deployment.probes import PREFIX
from s2r_torch.encoders import ENCODERS, register_encoder
from s2r_torch.encoders.contract import Encoder
from s2r_torch.encoders.encoding import made
from s2r_torch.errors import CheckpointError
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.free import FreeNet
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import NETS, group_class, register
from s2r_torch.problem import Problem

SET = {"shift": 0.3, "gain": 1.0}


class Shifted(Net):
    def summary(self, D):
        return D.amax(-1) + SET["shift"]


class Other(Net):
    def summary(self, D):
        return D.amin(-1)


class Layer(nn.Linear):
    def forward(self, x):
        return super().forward(x) * SET["gain"]


class Free(FreeNet):
    def module(self, inputs, outputs):
        return Layer(inputs, outputs)


class Eyes(Encoder):
    def __init__(self, obs_dim: int):
        super().__init__(obs_dim)
        self.net = nn.Linear(obs_dim, 2)

    def forward(self, x):
        return self.net(x) * SET["gain"]


@pytest.fixture(autouse=True)
def registered():
    with as_before(NETS, ENCODERS):
        register("probed_shift")(Shifted)
        register("probed_free")(Free)
        register_encoder("probed_eyes")(Eyes)
        yield


def encoded_policy():
    """An untrained policy behind an encoder of a user's own."""
    plain = policy_of()
    phi = made("probed_eyes", {}, plain.spec)
    phi = replace(phi, spec=replace(phi.spec, low=plain.spec.low, high=plain.spec.high))
    problem = Problem(phi.spec, plain.problem.graph, plain.problem.grid)
    group = plain.ensemble.groups[0]
    again = group_class("net").from_recipe(group.recipe(), group.tensors(), problem)
    return replace(plain, ensemble=Ensemble(problem, (again,)), encoding=phi)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "policy.safetensors"


def probed(path):
    return sorted({name.split(".")[1] for name in read(path)[1] if name.startswith(PREFIX)})


@pytest.mark.parametrize("name", ["probed_shift", "probed_free"])
def test_what_was_saved_is_loaded(path, name):
    policy = policy_of((name,))
    save_policy(path, policy)
    D, x = spread(policy.problem.grid, 9), torch.rand(9, 2, generator=torch.Generator().manual_seed(0))
    assert probed(path) == ["group0"] and torch.equal(
        load_policy(path).condition(D).q(1, x), policy.condition(D).q(1, x)
    )


def test_an_encoder_that_was_saved_is_loaded(path):
    policy = encoded_policy()
    save_policy(path, policy)
    x = torch.rand(9, 2, generator=torch.Generator().manual_seed(0))
    assert probed(path) == ["encoder"] and torch.equal(load_policy(path).encoding(x), policy.encoding(x))


def test_what_ships_has_no_probes(path):
    save_policy(path, policy_of())
    assert probed(path) == []


@pytest.mark.parametrize(
    ("policy", "key", "words"),
    [
        (lambda: policy_of(("probed_shift",)), "shift", "what net .probed_shift. gave when this policy was saved"),
        (lambda: policy_of(("probed_free",)), "gain", "what net .probed_free. gave when this policy was saved"),
        (encoded_policy, "gain", "what the encoder probed_eyes gave when this policy was saved"),
    ],
    ids=["summary", "module", "encoder"],
)
def test_numbers_outside_that_are_others_are_told(path, monkeypatch, policy, key, words):
    save_policy(path, policy())
    monkeypatch.setitem(SET, key, 0.9)
    with pytest.raises(CheckpointError, match=f"{words}; got other numbers from the same weights; .*edited since"):
        load_policy(path)


def test_code_that_was_edited_is_told(path, monkeypatch):
    save_policy(path, policy_of(("probed_shift",)))
    monkeypatch.setattr(Other, "name", "probed_shift")
    monkeypatch.setitem(NETS._known, "probed_shift", Other)
    with pytest.raises(CheckpointError, match="what net .probed_shift. gave"):
        load_policy(path)


def test_encoders_that_were_edited_are_told(path, monkeypatch):
    save_policy(path, encoded_policy())
    edited = type("Eyes", (Eyes,), {"forward": lambda self, x: -self.net(x), "__module__": __name__})
    monkeypatch.setitem(ENCODERS._known, "probed_eyes", edited)
    with pytest.raises(CheckpointError, match="what the encoder probed_eyes gave"):
        load_policy(path)


def test_a_plugin_that_takes_a_shipped_name_s_place_and_the_reverse_are_told(path, monkeypatch):
    save_policy(path, policy_of(("probed_shift",)))
    with (
        monkeypatch.context() as now,
        pytest.raises(CheckpointError, match="numbers of users' own code, .*; got 2 more"),
    ):
        now.setattr("s2r_torch.deployment.probes._ours", lambda thing: True)
        load_policy(path)
    with monkeypatch.context() as then:
        then.setattr("s2r_torch.deployment.probes._ours", lambda thing: isinstance(thing, Net))
        save_policy(path, encoded_policy())
    assert probed(path) == ["encoder"]
    with monkeypatch.context() as now, pytest.raises(CheckpointError, match="what net 'lookup' gave when this policy"):
        now.setattr("s2r_torch.deployment.probes._ours", lambda thing: False)
        load_policy(path)
