"""Signatures: who made a policy file, which its checksum cannot say."""

import stat
import sys

import pytest
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from support.policies import policy_of
from support.tampering import crafted

from s2r_torch.deployment.policy_file import load_policy, read, save_policy, sign_policy, verify_policy
from s2r_torch.deployment.signature import generate_keys
from s2r_torch.errors import CheckpointError, SettingError


@pytest.fixture
def site(tmp_path):
    """A signed policy and two pairs of keys."""
    for name in ("ours", "theirs"):
        generate_keys(tmp_path / f"{name}.pem", tmp_path / f"{name}.pub")
    save_policy(tmp_path / "p.safetensors", policy_of(), sign_with=tmp_path / "ours.pem")
    return tmp_path


def test_a_signed_policy_is_verified_by_its_key_alone(site):
    verify_policy(site / "p.safetensors", site / "ours.pub")
    assert load_policy(site / "p.safetensors", verify_with=site / "ours.pub").n_real == 25
    with pytest.raises(CheckpointError, match="another signer, or a file that was changed"):
        load_policy(site / "p.safetensors", verify_with=site / "theirs.pub")


def test_signing_leaves_the_file_as_it_is(site):
    before = (site / "p.safetensors").read_bytes()
    sign_policy(site / "p.safetensors", site / "theirs.pem")
    assert (site / "p.safetensors").read_bytes() == before
    verify_policy(site / "p.safetensors", site / "theirs.pub")
    with pytest.raises(CheckpointError):
        verify_policy(site / "p.safetensors", site / "ours.pub")


def test_an_edited_file_with_a_right_checksum_is_noticed(site):
    """What the checksum alone cannot tell."""
    header, tensors = read(site / "p.safetensors")
    crafted(site / "p.safetensors", header | {"n_real": 26}, tensors)
    assert load_policy(site / "p.safetensors").n_real == 26
    with pytest.raises(CheckpointError, match="changed after it was signed"):
        load_policy(site / "p.safetensors", verify_with=site / "ours.pub")


@pytest.mark.parametrize(
    "text", ["", "ed25519 ", "ed25519 00", "ed25519 " + "0" * 128, "rsa 00", "\xff", "ed25519 zz" * 10**5]
)
def test_signatures_that_are_none(site, text):
    (site / "p.safetensors.sig").write_bytes(text.encode("latin1"))
    with pytest.raises(CheckpointError, match="signature that is not its own"):
        verify_policy(site / "p.safetensors", site / "ours.pub")
    (site / "p.safetensors.sig").unlink()
    with pytest.raises(CheckpointError, match="a file that was not signed"):
        verify_policy(site / "p.safetensors", site / "ours.pub")


def test_keys_that_are_none(site):
    locked = ed25519.Ed25519PrivateKey.generate().private_bytes(
        pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
    )
    other = ec.generate_private_key(ec.SECP256R1())
    (site / "locked").write_bytes(locked)
    (site / "curve").write_bytes(other.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
    (site / "empty").write_bytes(b"")
    for key in ("ours.pub", "locked", "curve", "empty", "p.safetensors"):
        with pytest.raises(CheckpointError, match="a private ed25519 key without a password"):
            sign_policy(site / "p.safetensors", site / key)
    for key in ("ours.pem", "curve", "empty"):
        with pytest.raises(CheckpointError, match="a public ed25519 key"):
            verify_policy(site / "p.safetensors", site / key)
    for use in (sign_policy, verify_policy):
        with pytest.raises(CheckpointError, match="expected a (private|public) key; got no file"):
            use(site / "p.safetensors", site / "nothing")
    verify_policy(site / "p.safetensors", site / "ours.pub")


def test_private_keys_are_their_owner_s_and_never_written_over(site):
    assert stat.S_IMODE((site / "ours.pem").stat().st_mode) == 0o600
    before = (site / "ours.pub").read_bytes()
    with pytest.raises(SettingError, match="may be in use"):
        generate_keys(site / "new.pem", site / "ours.pub")
    assert (site / "ours.pub").read_bytes() == before and not (site / "new.pem").exists()


def test_without_the_extra_it_says_so(site, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    load_policy(site / "p.safetensors")
    with pytest.raises(SettingError, match=r"pip install 's2r_torch\[sign\]'"):
        verify_policy(site / "p.safetensors", site / "ours.pub")
