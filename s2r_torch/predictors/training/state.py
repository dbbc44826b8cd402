"""A fit on disk: what it is a function of, and everything that its steps so far left."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from s2r_torch.errors import CheckpointError
from s2r_torch.files.tensors import digest, read, write
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.rng import Seed


def origin_of(net: Net, data: Iterable[Tensor], settings: TrainingSettings, seed: Seed) -> dict:
    """What a fit is a function of, as JSON values: settings, stream and version, weights and data by their digests.

    Args:
        net: the network before its first step.
        data: every tensor that it is fitted to.
        settings: sizes and rates.
        seed: named stream.
    """
    found = {
        "network": {"name": net.name, **net.settings()},
        "settings": asdict(settings),
        "seed": repr(seed.names),
        "weights": digest(net.state_dict()),
        "data": digest({str(i): tensor for i, tensor in enumerate(data)}),
        "torch": torch.__version__,
    }
    return json.loads(json.dumps(found))


def save_state(path: Path, origin: dict, done: int, parts: dict[str, dict[str, Tensor]]) -> None:
    """Writes named groups of tensors after `done` steps; a crash leaves the file before."""
    tensors = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
    write(path, tensors, {"fit": origin, "done": done})


def load_state(path: Path, origin: dict) -> dict[str, dict[str, Tensor]]:
    """The groups of tensors.

    Raises:
        CheckpointError: the file is cut or damaged, or of a fit that is a function of something else.
    """
    header, tensors = read(path)
    theirs = header.get("fit", {})
    unlike = sorted(key for key in {*theirs, *origin} if theirs.get(key) != origin.get(key))
    if unlike:
        raise CheckpointError(
            expected=f"a state of this fit in {path}",
            got=f"one that differs in {', '.join(unlike)}",
            cause="settings, seed or version changed since; delete the file, or use another folder",
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for place, value in tensors.items():
        part, _, name = place.partition("/")
        parts.setdefault(part, {})[name] = value
    return parts
