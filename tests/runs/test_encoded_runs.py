"""A run whose readings go through an encoder: what is kept of it, and that reality shows raw readings."""

import numpy as np
import pytest
import torch
from support.smoke import small_settings
from support.strip import strip

from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.logbook import open_logbook, read_log
from s2r_torch.deployment.policy_file import load_policy, load_policy_file, save_policy
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, RecordingError, SettingError
from s2r_torch.families import make_family
from s2r_torch.families.encoded import EncodedWorld
from s2r_torch.progress import Silent
from s2r_torch.rng import Seed
from s2r_torch.runs import checking
from s2r_torch.runs.configuring import check_together
from s2r_torch.runs.run import execute

ENCODED = ("encoder=learned", "+encoder.steps=60", "+encoder.payoff=[0.3]", "predictors.num_simulators=48")
LOOKED_AT = "diagnostics.simulators=4"


@pytest.fixture(scope="module", params=[(), ("+encoder.see=4",)], ids=["features", "and numbers beside"])
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return execute(small_settings(*ENCODED, LOOKED_AT, *request.param), strip(), folder), folder / "policy.safetensors"


def world(seed=0):
    family = strip()
    theta = family.prior(1, Seed.root(5).generator())[0]
    return family.world(theta, Seed.root(seed).generator())


def deployed(policy, **settings):
    return deploy(policy, world(), refuse=False, **settings)


def test_a_run_sees_features_and_its_policy_file_takes_raw_readings(finished):
    results, path = finished
    assert results.family.spec.obs_dim == 2 and results.episodes["encode"] > 0
    policy = load_policy(path)
    assert policy.spec.obs_dim == 14 and policy.problem.spec.obs_dim == 2
    assert load_policy_file(path).family == {"name": "strip", "parameters": {}}
    raw = deployed(policy)
    assert results.meta_policy.spec == policy.spec  # it may be saved by hand
    seen = deploy(results.certified.meta_policy, EncodedWorld(world(), policy.encoding), refuse=False)
    assert torch.equal(raw.D_real, seen.D_real) and raw.likeness == seen.likeness
    x = world(3).reset(20)
    assert torch.equal(raw.policy.act(0, x), seen.policy.act(0, policy.encoding(x)))
    with pytest.raises(ObservationError):
        raw.policy.act(0, policy.encoding(x))


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_logs_hold_raw_readings_bit_for_bit(finished, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    policy, path = load_policy(finished[1]), tmp_path / f"log.{ending}"
    with open_logbook(path, policy.spec) as logbook:
        live = deployed(policy, keep=logbook.append, recording=logbook.recording)
    recording = read_log(path, policy.spec)
    assert recording.x.shape[-1] == 14
    assert torch.equal(deploy_recorded(policy, recording, refuse=False).D_real, live.D_real)


def test_images_in_one_column_are_read_whatever_their_shape(finished, tmp_path):
    policy, path = load_policy(finished[1]), tmp_path / "images.npz"
    live, kept = deployed(policy), []
    deploy(policy, world(), refuse=False, keep=kept.append)
    rows = torch.cat([part.x.flatten(0, 1) for part in kept]).numpy()
    actions = np.concatenate([np.c_[part.actions.numpy(), np.full(len(part), -1)].ravel() for part in kept])
    H = policy.spec.horizon
    columns = {
        "episode": np.repeat(np.arange(len(rows) // H), H),
        "step": np.tile(np.arange(H), len(rows) // H),
        "action": np.where(actions < 0, np.nan, actions.astype(float)),
    }
    np.savez(path, **columns, x=rows.reshape(-1, 2, 7))
    assert torch.equal(deploy_recorded(policy, read_log(path, policy.spec), refuse=False).D_real, live.D_real)
    np.savez(path, **columns, x=rows[:, :12].reshape(-1, 3, 4))
    with pytest.raises(RecordingError, match="14 numbers"):
        read_log(path, policy.spec)


def test_an_exported_program_takes_raw_readings(finished, tmp_path):
    policy = deployed(load_policy(finished[1])).policy
    export_policy(policy, tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    x = world(3).reset(33).float()
    actions, q = program(torch.tensor(0), x)
    torch.testing.assert_close(q, policy.q(0, x).float(), atol=1e-4, rtol=1e-4)
    assert torch.equal(actions, policy.act(0, x))


@pytest.mark.slow
def test_an_onnx_file_takes_raw_readings(finished, tmp_path):
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    policy = deployed(load_policy(finished[1])).policy
    export_policy(policy, tmp_path / "policy.onnx")
    program = reference.ReferenceEvaluator(str(tmp_path / "policy.onnx"))
    x = world(3).reset(33).float()
    actions, q = program.run(None, {"step": np.array(0), "x": x.numpy()})
    np.testing.assert_allclose(q, policy.q(0, x).float().numpy(), atol=1e-4, rtol=1e-4)
    assert np.array_equal(actions, policy.act(0, x).numpy())


def test_what_was_saved_is_saved_again(finished, tmp_path):
    policy = load_policy(finished[1])
    save_policy(tmp_path / "again.safetensors", policy)
    x = torch.rand(4, 14, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load_policy(tmp_path / "again.safetensors").encoding(x), policy.encoding(x))


def test_the_check_before_a_run_looks_at_the_features_of_that_run(finished, monkeypatch):
    seen = []
    monkeypatch.setattr(checking, "check_for_a_run", lambda family, seed: seen.append(family))
    encoded, _ = checking.check_encoded(finished[0].settings, strip(), Silent())
    of_the_run, x = finished[0].encoded, world(3).reset(20)
    assert encoded.notes == of_the_run.notes and torch.equal(encoded.encoding(x), of_the_run.encoding(x))
    assert seen[0].spec == finished[0].family.spec
    checking.check_encoded(small_settings(), make_family("grid"), Silent())
    assert seen[1].name == "grid" and not hasattr(seen[1], "phi")


def test_many_numbers_without_an_encoder_are_refused_before_anything_is_drawn():
    with pytest.raises(SettingError, match="encoder=learned"):
        check_together(small_settings(), strip())


def test_the_ledger_counts_what_an_encoder_costs(finished):
    assert finished[0].finished["encode"].episodes["encode"] == finished[0].episodes["encode"]
    assert "encode" not in Ledger().counts
