"""The door that readings enter by: a frozen encoder, what it reads, and the few numbers that it gives.

Beyond this door nothing knows of raw readings: simulators, densities, networks, certificates and likeness see
phi(X) alone, which is as much a random variable as X is (docs/theory.md). phi works on blocks of a fixed size, so that
the features of a reading do not depend on what else is read at once (of the encoders that ship: to the bit), and memory
does not grow with readings.

>>> raw = ProblemSpec(num_actions=2, horizon=1, max_states_per_layer=1, obs_dim=3, low=(-1.0,) * 3, high=(1.0,) * 3)
>>> phi = made("pca", {"dim": 2}, raw)
>>> phi(torch.zeros(5, 3)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.defaults import outside_inference
from s2r_torch.encoders import encoder_class
from s2r_torch.encoders.contract import Encoder
from s2r_torch.errors import CheckpointError, ObservationError, SettingError
from s2r_torch.files.json_schema import MapOf, Record, Text, Values, check
from s2r_torch.held import attributes, changed, faults_of, numbers, opened, outside, stir, streams
from s2r_torch.plain import require_count
from s2r_torch.rng import kept_globals, seed_globals
from s2r_torch.schema import arguments
from s2r_torch.text import printable

IDENTITY = "identity"
BLOCK = 128  # readings that phi is given at once, padded
MOST_FEATURES = 3  # densities live on so many dimensions at most
MOST_BESIDE = 256  # numbers that predictors see beside; all samples of a run hold them
TOO_MANY = "a whole image: components of it, or features"
RECIPE = Record({"name": Text(200, least=1), "settings": MapOf(Values(1000, 4), 100)})
CAUSE = "a file edited by hand, or an encoder that changed since"


@dataclass(frozen=True, eq=False)
class Encoding:
    """A frozen encoder phi.

    Args:
        name: of the registered encoder.
        settings: JSON values that it was made with.
        module: phi itself.
        raw: of the readings, D numbers.
        spec: of phi's d numbers: the same problem, another sensor.
    """

    name: str
    settings: Mapping[str, Any]
    module: Encoder
    raw: ProblemSpec
    spec: ProblemSpec

    def __call__(self, x: Tensor) -> Tensor:
        """phi(x) [..., d], float64, of finite readings x [..., D].

        Raises:
            ObservationError: another number of numbers, or readings or features that are not finite.
        """
        if not isinstance(x, Tensor):
            cause = "an array: torch.as_tensor(...)"
            raise ObservationError(expected="readings in a torch.Tensor", got=type(x).__name__, cause=cause)
        if x.shape[-1] != self.raw.obs_dim:
            raise ObservationError(
                expected=f"readings of {self.raw.obs_dim} numbers, which the encoder {self.name} takes",
                got=f"shape {list(x.shape)}",
                cause="another camera, or readings that are encoded already",
            )
        rows = x.reshape(-1, self.raw.obs_dim).to("cpu", torch.float32)
        _require_finite(rows, "readings", "a broken sensor, or a simulator that diverged")
        features = in_blocks(self.module, rows)[:, : self.spec.width].double()
        _require_finite(features, f"features of the encoder {self.name}", "readings far off what it was fitted on")
        return features.reshape(*x.shape[:-1], features.shape[-1])

    def recipe(self) -> dict:
        """JSON values from which `rebuilt` makes the module again, with `tensors`."""
        return {"name": self.name, "settings": dict(self.settings)}

    def tensors(self) -> dict[str, Tensor]:
        """All numbers of phi, by name."""
        return {name: value.detach() for name, value in self.module.state_dict().items()}


def in_blocks(module: Encoder, rows: Tensor) -> Tensor:
    """module(rows) [N, d], BLOCK rows at a time, the last block padded."""
    parts = list(rows.split(BLOCK))
    last = parts.pop()
    parts.append(torch.cat([last, rows.new_zeros(BLOCK - len(last), rows.shape[1])]))
    ours = type(module).__module__.startswith("s2r_torch.")
    with torch.no_grad(), outside_inference():  # a user's module may write into what it is given
        return torch.cat([module(part if ours else part.clone()) for part in parts])[: len(rows)]


def made(name: str, settings: Mapping[str, Any], raw: ProblemSpec) -> Encoding:
    """An encoder before it is fitted, with the unit cube as the box of its features.

    Raises:
        SettingError: no encoder of that name, settings that it does not take, or one that does not give 1 to 3 numbers.
    """
    if raw.beside:
        got, cause = f"beside={raw.beside} in its spec", "an encoder says `beside`: a sensor's numbers are its obs_dim"
        raise SettingError(expected="a family with readings of obs_dim numbers", got=got, cause=cause)
    kind = partial(encoder_class(name), raw.obs_dim)
    given = _plain(arguments(kind, settings, "encoder"), name)
    with kept_globals():  # a user's module may draw from global streams
        seed_globals(0)
        with _tried(name):
            module = kind(**given).eval()
    d = examined(module, name, raw)
    return Encoding(name, given, module, raw, features_spec(raw, (0.0,) * d, (1.0,) * d, module.beside))


def _plain(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings as the JSON values that policy files hold; raises SettingError for others."""

    def number(value: object) -> object:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__}, which JSON does not have")

    try:
        return json.loads(json.dumps(dict(settings), allow_nan=False, default=number))
    except (TypeError, ValueError) as error:
        cause = "modules, arrays and functions are made by its constructor, or loaded in `fit`"
        _refuse_settings(name, str(error), cause)


def features_spec(raw: ProblemSpec, low: tuple[float, ...], high: tuple[float, ...], beside: int = 0) -> ProblemSpec:
    """The same problem with features for readings; nobody knows how far apart their densities are."""
    names = tuple(f"feature_{j + 1}" for j in range(len(low)))
    return replace(raw, obs_dim=len(low), low=low, high=high, obs_names=names, zeta=None, beside=beside)


def rebuilt(recipe: dict, tensors: Mapping[str, Tensor], raw: ProblemSpec, spec: ProblemSpec) -> Encoding:
    """The encoding of a recipe, with its numbers.

    Raises:
        CheckpointError: a recipe, or tensors, that no encoder has.
        SettingError: an encoder of a plugin that was not imported.
    """
    check(RECIPE, recipe, "encoder", CAUSE)
    encoding = made(recipe["name"], recipe["settings"], raw)
    mine = encoding.module.state_dict()
    unlike = sorted({*mine} ^ {*tensors}) or [
        name for name, value in tensors.items() if (value.dtype, value.shape) != (mine[name].dtype, mine[name].shape)
    ]
    if unlike or encoding.spec.obs_dim != spec.obs_dim:
        raise CheckpointError(
            expected=f"the {len(mine)} tensors of the encoder {recipe['name']!r}, {encoding.spec.obs_dim} features",
            got=f"missing or of another encoder: {printable(unlike[:5])}",
            cause=CAUSE,
        )
    encoding.module.load_state_dict(dict(tensors))
    encoding.module.requires_grad_(False)
    examined(encoding.module, encoding.name, raw)  # with its own numbers
    return replace(encoding, spec=replace(spec, beside=encoding.spec.beside))


@torch.no_grad()
def require_rebuilt(phi: Encoding) -> None:
    """Refuses a fitted encoder that its recipe and its numbers do not make again: policy files hold nothing else.

    Raises:
        SettingError: what `fit` set is no parameter or buffer, or the constructor makes others, or reads files.
    """
    try:
        with opened() as files:
            again = rebuilt(phi.recipe(), phi.tensors(), phi.raw, phi.spec).module
    except CheckpointError as error:
        _refuse(phi.name, "a fit that keeps its parameters and buffers", error.got, "parts that fit replaced")
    if files:
        cause = "where a policy is loaded there is none: read it in `fit`, into parameters or buffers"
        _refuse(phi.name, "a constructor without files", f"one that opens {printable(sorted(files)[0])}", cause)
    x = _block(phi.raw)
    _called(again, phi.name, x.flip(0) / 2)  # what is made by a first call is made of other readings
    if not _close(_called(phi.module, phi.name, x), _called(again, phi.name, x)):
        cause = "what `fit` or the constructor set as plain attributes: register_buffer(name, tensor) keeps them"
        _refuse(phi.name, "features that follow from settings, parameters and buffers", "others when rebuilt", cause)


@kept_globals()
@torch.no_grad()
def examined(module: Encoder, name: str, raw: ProblemSpec) -> int:
    """d, by trying: whether phi is a function of one reading and of its own numbers alone.

    Raises:
        SettingError: it is not, by what it does with BLOCK readings of the box, which it is always given.
    """
    x = _block(raw)
    around = outside(module)
    z = _called(module, name, x)
    if name == IDENTITY:
        return z.shape[1]
    d = z.shape[1] - require_count(f"beside of the encoder {name}", module.beside, MOST_BESIDE, TOO_MANY, least=0)
    if not 1 <= d <= MOST_FEATURES:
        _refuse(
            name,
            f"features [N, d], d = 1 .. {MOST_FEATURES},",
            f"d = {d}",
            "densities live on so many dimensions at most",
        )
    held = attributes(module) | numbers(module)  # after a first call: what is made once may be kept
    stir()
    drawn = streams()
    with opened() as files:
        again = _called(module, name, x)
    if not torch.equal(again, z):
        _refuse(name, "the same features for the same readings", "others", "noise, or a counter, in its forward")
    if files:
        cause = "numbers that no policy file holds: read them in `fit`, into parameters or buffers"
        _refuse(name, "a forward without files", f"one that opens {printable(sorted(files)[0])}", cause)
    if changed(drawn, streams()):
        _refuse(name, "a forward that draws no numbers", "a global generator in another state", "a seed set, or draws")
    if "os.environ" in around and not _close(_without_variables(module, x), z):
        _refuse(name, "features without environment variables", "others without", "settings are what files hold")
    now = changed(held, attributes(module) | numbers(module))
    if now:
        cause = "a forward that learns or counts (batch statistics of training): it must be frozen"
        _refuse(name, "what it holds to stay as it is", f"others after a call: {', '.join(now[:4])}", cause)
    moved = changed(around, outside(module))
    if moved:
        cause = "a counter or a memory outside of it, which no file holds: make it a buffer that stays as it is"
        _refuse(name, "a forward that changes nothing", f"others after a call: {', '.join(moved[:4])}", cause)
    order = torch.randperm(BLOCK, generator=torch.Generator().manual_seed(1))
    apart = [_close(_called(module, name, x[order])[order.argsort()], z)]
    for kept, elsewhere in ((order[: BLOCK // 2], x.flip(0) / 2), (torch.arange(BLOCK // 3), torch.zeros_like(x))):
        others = elsewhere.clone()  # other readings, or the zeros that fill a block
        others[kept] = x[kept]
        apart.append(_close(_called(module, name, others)[kept], z[kept]))
    if not all(apart):
        _refuse(name, "features reading by reading", "others beside other readings", "statistics or order of the batch")
    return d


def _without_variables(module: Encoder, x: Tensor) -> Tensor:
    """phi(x) without environment variables; nothing where it cannot do without."""
    kept = dict(os.environ)
    try:
        os.environ.clear()
        return module(x.clone())
    except Exception:
        return x[:0]
    finally:
        os.environ.update(kept)


def _block(raw: ProblemSpec) -> Tensor:
    """BLOCK readings of the box, always the same ones."""
    u = torch.rand(BLOCK, raw.obs_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = torch.tensor(raw.low, dtype=torch.float64), torch.tensor(raw.high, dtype=torch.float64)
    return (low + (high - low) * u).float()


def _called(module: Encoder, name: str, x: Tensor) -> Tensor:
    """phi(x) of one block, [N, d] float32."""
    with _tried(name):
        z = module(x.clone())
    if not (isinstance(z, Tensor) and z.layout == torch.strided and z.dtype == torch.float32 and z.ndim == 2) or (
        len(z) != len(x)
    ):
        got = f"{z.dtype} of shape {list(z.shape)} for N = {len(x)}" if isinstance(z, Tensor) else type(z).__name__
        _refuse(name, f"float32 features [N, d] of readings [N, {x.shape[1]}]", got, "another type, or another shape")
    return z.clone()


def _refuse_settings(name: str, got: str, cause: str) -> NoReturn:
    raise SettingError(expected=f"settings of the encoder {name} that are JSON values", got=printable(got), cause=cause)


def _refuse(name: str, expected: str, got: str, cause: str) -> NoReturn:
    raise SettingError(expected=f"{expected} from the encoder {name}", got=got, cause=cause)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))


def _tried(name: str) -> AbstractContextManager[None]:
    """Whatever a user's module raises in the block becomes a SettingError that names it."""
    expected = f"an encoder {name} that can be made and takes readings [N, D]"
    return faults_of(expected, "a fault in its constructor or its forward, or sizes that do not fit the readings")


def _require_finite(rows: Tensor, what: str, cause: str) -> None:
    if math.isfinite(float(rows.sum())):  # a pass over many numbers that writes none; a sum may overflow, too
        return
    bad = ~torch.isfinite(rows).all(1)
    if bool(bad.any()):
        raise ObservationError(expected=f"finite {what}", got=f"NaN or inf in {int(bad.sum())} rows", cause=cause)
