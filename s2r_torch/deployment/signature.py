"""Signatures of policy files: who made them, which no checksum can say (ed25519; pip install 's2r_torch[sign]').

A signature lies beside its file, as NAME.sig. So signing leaves the file as it is, to the byte: it can be done later,
by somebody else, and by people who may not write it. What is signed is the file's digest, which covers all that is in
it. The key that must have signed is named by who verifies, and never taken from the file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from s2r_torch.errors import CheckpointError, SettingError
from s2r_torch.files.foreign import require_file
from s2r_torch.files.whole import replacing
from s2r_torch.given import taking
from s2r_torch.text import printable

CONTEXT = "s2r_torch policy file, format 3, "  # before the digest, so that no other signed message looks like one
ENDING = ".sig"
MOST_BYTES = 10_000  # of a key file


@taking()
def generate_keys(private_key: Path | str, public_key: Path | str) -> None:
    """Makes a pair of keys, as two PEM files. The private one has no password, and only its owner may read it.

    Raises:
        SettingError: one of the files exists, or the extra `sign` is not installed.
        FileError: one of them cannot be written.
    """
    library = _library()
    pem, key = library.pem, library.ed25519.Ed25519PrivateKey.generate()
    secret = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    public = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    for path in (Path(private_key), Path(public_key)):
        if path.exists():
            raise SettingError(
                expected=f"a new file {printable(path)}", got="one that exists", cause="a key that may be in use"
            )
    for path, text, mode in ((Path(private_key), secret, 0o600), (Path(public_key), public, 0o644)):
        with replacing(path) as unfinished:
            unfinished.touch(mode)  # before there is anything to read
            unfinished.write_bytes(text)


def sign(path: Path | str, digest: str, private_key: Path | str) -> None:
    """Writes the signature of the policy file with this digest beside it.

    Raises:
        CheckpointError: no private ed25519 key there.
        SettingError: the extra `sign` is not installed.
    """
    library = _library()
    kind, load = library.ed25519.Ed25519PrivateKey, partial(library.pem.load_pem_private_key, password=None)
    key = _key(private_key, "private", load, kind, library)
    with replacing(side_file(path)) as unfinished:
        unfinished.write_text(f"ed25519 {key.sign((CONTEXT + digest).encode()).hex()}\n")


def verify(path: Path | str, digest: str, public_key: Path | str) -> None:
    """Checks the signature of the policy file with this digest.

    Raises:
        CheckpointError: none, one of another key or another file, or no public ed25519 key there.
        SettingError: the extra `sign` is not installed.
    """
    library = _library()
    kind, load = library.ed25519.Ed25519PublicKey, library.pem.load_pem_public_key
    key = _key(public_key, "public", load, kind, library)
    side = side_file(path)
    if not side.is_file():
        raise CheckpointError(
            expected=f"a signature {printable(side)}",
            got="none",
            cause="a file that was not signed, or copied without it",
        )
    try:
        name, _, signature = side.read_bytes()[:MOST_BYTES].decode().strip().partition(" ")
        if name != "ed25519":
            raise ValueError(f"{printable(name, 20)} in place of ed25519")
        key.verify(bytes.fromhex(signature), (CONTEXT + digest).encode())
    except (ValueError, OSError, *library.errors) as error:
        raise CheckpointError(
            expected=f"{printable(path)} signed by the key in {printable(public_key)}",
            got=f"a signature that is not its own {printable(error, 60)}".strip(),
            cause="another signer, or a file that was changed after it was signed",
        ) from error


def side_file(path: Path | str) -> Path:
    """Where the signature of a file lies."""
    return Path(path).with_name(Path(path).name + ENDING)


def _key(path: Path | str, what: str, load: Callable, kind: type, library: SimpleNamespace) -> Any:
    """The key in a PEM file."""
    require_file(Path(path), f"a {what} key")
    try:
        with Path(path).open("rb") as file:
            key = load(file.read(MOST_BYTES))
    except (ValueError, TypeError, OSError, *library.errors) as error:
        key, reason = None, printable(error, 80)
    else:
        reason = type(key).__name__
    if not isinstance(key, kind):
        raise CheckpointError(
            expected=f"a {what} ed25519 key without a password, in PEM, in {printable(path)}",
            got=reason,
            cause="the other half of the pair, another kind of key, or a key with a password",
        )
    return key


def _library() -> SimpleNamespace:
    """What signing needs of the cryptography package, which only people who sign have installed."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SettingError(
            expected="the cryptography package, to sign policy files and to verify signatures",
            got=printable(error, 80),
            cause="an optional extra: pip install 's2r_torch[sign]'",
        ) from error
    return SimpleNamespace(ed25519=ed25519, pem=serialization, errors=(InvalidSignature, UnsupportedAlgorithm))
