"""What a run is a function of, as flat JSON: settings, family, code and versions. Equal origins give equal bits."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.encoders import ENCODERS
from s2r_torch.families import FAMILIES
from s2r_torch.families.contract import Family
from s2r_torch.predictors.registry import NETS
from s2r_torch.runs.session import digests_of_code
from s2r_torch.runs.settings import RunSettings
from s2r_torch.runs.sources import PACKAGE, sources, versions

LIBRARIES = ("torch", "numpy", "scipy", "lightning")


def origin_of(settings: RunSettings, family: Family) -> dict[str, Any]:
    """Dotted names -> JSON values: `budget.n_dist`, `family.parameters`, `code`, `torch`, `threads`, ..."""
    chosen = [NETS[name] for name in settings.nets] + [COMPARATORS[name] for name in settings.comparators]
    chosen.append(ENCODERS[settings.encoder["name"]])
    parts = [part for held in (family, *vars(family).values()) for part in getattr(held, "__dict__", {}).values()]
    functions = [part for part in map(_unwrapped, parts) if inspect.isfunction(part)]  # that a family was made from
    written = [type(family), FAMILIES.get(family.name), *functions, *chosen]
    theirs = {f"code.{_name(path)}": _digest([path]) for path in sources(written)}
    theirs |= {f"code.{name}": digest for name, digest in digests_of_code([*written, *map(type, parts)]).items()}
    chosen_by_user = {key: value for key, value in asdict(settings).items() if key != "workers"}  # which change no bit
    found = {
        **_flat(chosen_by_user),
        "family": family.name,
        "family.parameters": family.parameters(),
        "code": code_digest(),
        **theirs,
        **versions([inspect.getmodule(thing) for thing in (*type(family).__mro__, *written)]),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
        "threads": torch.get_num_threads(),
    }
    return json.loads(json.dumps(found))


@cache
def code_digest() -> str:
    """A checksum of this package's source."""
    return _digest(sorted(PACKAGE.rglob("*.py")))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, name by name, what two origins do not share."""
    missing = object()
    unlike = sorted(n for n in {*before, *now} if before.get(n, missing) != now.get(n, missing))
    return [f"{name} ({before.get(name, 'nothing')} there, {now.get(name, 'nothing')} now)" for name in unlike]


def chained(origin: Mapping[str, Any], *parts: str) -> str:
    """A digest of an origin and further text: the name of a stage, the digests of the stages that it reads."""
    text = json.dumps([origin, parts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _name(path: Path) -> str:
    """A module's, or that of a file with data."""
    return path.stem if path.suffix == ".py" else path.name


def _digest(paths: list[Path]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for path in paths:
        found.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _unwrapped(function: Any) -> Any:
    """The function in a partial one, a method or a cache."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(getattr(function, "__func__", function))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{prefix}{name}"
        found.update(_flat(value, f"{place}.") if isinstance(value, Mapping) and value else {place: value})
    return found
