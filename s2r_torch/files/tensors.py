"""Files of named tensors with one JSON header (safetensors): nothing in them is imported, unpickled or executed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from s2r_torch.errors import CheckpointError
from s2r_torch.files.whole import replacing

KEY = "s2r_torch"


def write(path: Path, tensors: dict[str, Tensor], header: dict) -> None:
    """One file, under a temporary name until it is complete, so that a crash never leaves half of one.

    Args:
        path: where; an existing file is replaced only when the new one is complete.
        tensors: by name; they may share memory.
        header: JSON values.
    """
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    listed = {**header, "tensors": sorted(tensors), "digest": digest(contiguous)}
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(save(contiguous, {KEY: json.dumps(listed)}))
        file.flush()
        os.fsync(file.fileno())  # a power cut after the renaming must find the contents, too


def digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of names and contents: one flipped bit changes it. It guards against damage, not against intent."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """The header and all tensors of a file.

    Raises:
        CheckpointError: missing, cut, damaged, another kind of file, or without some of its tensors.
    """
    if not path.is_file():
        raise CheckpointError(
            expected="a file of tensors", got=f"no file {path}", cause="a typo, or a run not finished"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        header = json.loads(metadata[KEY])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            expected=f"a safetensors file with a {KEY} header",
            got=f"{type(error).__name__}: {error} in {path} ({path.stat().st_size} bytes)",
            cause="a copy that was cut short or damaged, or another kind of file",
        ) from error
    listed = header.get("tensors", []) if isinstance(header, dict) else None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise CheckpointError(
            expected="a header that lists its tensors", got=f"another one in {path}", cause="a file edited by hand"
        )
    missing = sorted(set(listed) ^ set(tensors))
    if missing:
        raise CheckpointError(
            expected="every listed tensor", got=f"missing or unlisted in {path}: {missing[:5]}", cause="a damaged file"
        )
    return header, tensors


def header(path: Path) -> dict:
    """The header of a file alone.

    Raises:
        CheckpointError: as in `read`.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()[KEY])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            expected=f"a safetensors file with a {KEY} header",
            got=f"{type(error).__name__}: {error} in {path}",
            cause="a damaged file, or another kind of file",
        ) from error
