"""Objects of another kind, given to what people call: one error that says which was meant."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.policies import policy_of

import s2r_torch
from s2r_torch.comparators.contract import register_comparator
from s2r_torch.deployment.export import export_policy
from s2r_torch.errors import FileError, ObservationError, S2RError, SettingError
from s2r_torch.predictors.registry import register
from s2r_torch.runs.settings import RunSettings

GRID = s2r_torch.make_family("grid")
META = policy_of()
X = [torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in range(9)]


class Environment:
    """As gymnasium has them: its `spec` is no problem."""

    spec, reset, step = object(), None, None


CALLS = {
    "no world": (lambda: s2r_torch.deploy(META, None), "world: a world, .*; got NoneType"),
    "an environment": (lambda: s2r_torch.deploy(META, Environment()), r"world.spec: ProblemSpec; .*EnvWorld\(env"),
    "a family": (lambda: s2r_torch.deploy(META, GRID), "world: a world, .*; got Grid"),
    "a word for false": (lambda: s2r_torch.deploy(META, None, refuse="no"), "refuse: bool; got str: 'no'"),
    "a mapping": (lambda: s2r_torch.deploy(META, None, stopping={"alpha": 0.1}), "stopping: Stopping; got dict"),
    "a time in words": (lambda: s2r_torch.deploy(META, None, time_limit="5s"), "time_limit: int or float; got str"),
    "a path for a log": (lambda: s2r_torch.deploy_recorded(META, "a.csv"), "recording: Recording; .*read_recording"),
    "a policy for a spec": (lambda: s2r_torch.read_recording("a.csv", META), "spec: ProblemSpec; .*policy.spec is"),
    "no path": (lambda: s2r_torch.load_policy(None), "path: a path; got NoneType"),
    "bytes": (lambda: s2r_torch.load_policy(b"abc"), "path: a path; got bytes: .*the path of a file, not what is in"),
    "conditioned": (
        lambda: s2r_torch.save_policy("a.safetensors", META.condition_on(X)),
        "meta_policy: MetaPolicy; got Policy: .*conditioned already",
    ),
    "not conditioned": (lambda: export_policy(META, "a.pt2"), "policy: Policy; got MetaPolicy: .*condition_on"),
    "settings": (lambda: s2r_torch.execute({"name": "a"}, GRID), r"settings: RunSettings; got dict: .*RunSettings\("),
    "a name": (lambda: s2r_torch.execute(RunSettings(name="a"), "grid"), "family: a family; .*make_family"),
    "no results": (lambda: s2r_torch.write_reports(None, "a"), "results: Results; got NoneType"),
    "a name to check": (lambda: s2r_torch.check_family("grid"), "family: a family; got str: 'grid'"),
    "no such check": (lambda: s2r_torch.check_family(GRID, only=["priro"]), r"names of checks: .*; got \['priro'\]"),
    "one plugin": (
        lambda: s2r_torch.import_plugins("robot"),
        r"a list of modules; got 'robot'; .*was meant",
    ),
    "densities": (lambda: META.condition(np.zeros((9, 4))), "D_hat: Tensor; got ndarray: .*torch.as_tensor"),
    "by name": (lambda: META.condition_on(dict(enumerate(X))), "observations in a list, .*; got dict of int"),
    "arrays": (lambda: META.condition_on([x.numpy() for x in X]), "observations in a list, .*; got list of ndarray"),
    "one reading": (lambda: META.condition_on([x[:1] for x in X]), "at least 2 readings .*; got 1 at the start"),
    "no name": (lambda: register(type("Mine", (), {})), "the name of a network: .*brackets"),
    "no network": (lambda: register("mine")(type("Mine", (), {})), "a class derived from Net"),
    "no comparator": (lambda: register_comparator("mine")(lambda: 3), "label, access, fit of comparator 'mine'"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_was_meant_is_said(kind):
    call, words = CALLS[kind]
    with pytest.raises(S2RError) as caught:
        call()
    assert isinstance(caught.value, SettingError | ObservationError) and re.search(words, str(caught.value))


def test_a_minimum_is_at_most_what_is_used():
    recording = s2r_torch.deployment.recording.episodes.Recording.empty(META.spec)
    with pytest.raises(SettingError, match=f"minimum <= {META.n_real}, .*; got 100000"):
        s2r_torch.deploy_recorded(META, recording, minimum=100000)
    with pytest.raises(SettingError, match="minimum: .*; got float: 2.5"):
        s2r_torch.deploy_recorded(META, recording, minimum=2.5)


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path):
    path = tmp_path / "notes.safetensors"
    path.write_text("my notes, which are long enough")
    with pytest.raises(FileError, match="a safetensors file to replace; got a file of something else"):
        s2r_torch.save_policy(path, META)
    assert path.read_text().startswith("my notes")
    path.unlink()
    for _ in range(2):  # a policy is replaced
        s2r_torch.save_policy(path, META)


def test_notes_that_json_does_not_have_are_one_error(tmp_path: Path):
    with pytest.raises(S2RError, match="Tensor of several numbers, which JSON does not have"):
        s2r_torch.save_policy(tmp_path / "a.safetensors", META, notes={"x": torch.zeros(3)})
