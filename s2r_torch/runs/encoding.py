"""The stage that fits an encoder: on simulators of its own, before anything else is drawn."""

from __future__ import annotations

from dataclasses import replace

import torch

from s2r_torch.defaults import plain_torch
from s2r_torch.encoders.encoding import Encoding, examined, features_spec, require_rebuilt
from s2r_torch.encoders.views import Views
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.families.draws import Draws
from s2r_torch.held import faults_of
from s2r_torch.progress import Progress
from s2r_torch.rng import Seed
from s2r_torch.runs.results import Encoded
from s2r_torch.runs.settings import RunSettings
from s2r_torch.text import printable

MARGIN = 0.2  # of the features' range, on either side of the box
BOXED = 128  # simulators whose features the box holds


def encode_readings(settings: RunSettings, draws: Draws, progress: Progress) -> Encoded:
    """Fits the encoder of the settings, freezes it, and takes the box of its features.

    Raises:
        ObservationError: a feature that is the same for all readings.
        SettingError: an encoder that is no function of one reading.

    Cost:
        With an encoder, about 1000 to 2000 episodes on each of as many simulators as train F.
    """
    phi = settings.encoding(draws.family.spec)
    if phi is None:
        return Encoded(None)
    progress.stage(f"encode ({phi.name})", None)
    simulators = draws.simulators("encode", settings.predictors.num_simulators)
    views = Views(simulators, draws.seed.child("encode", "views"))
    seed = draws.seed.child("encode", "fit")
    with seed.child("global").as_global(torch.device("cpu")):  # where a user's fit draws from global streams
        notes = fitted(phi, views, seed)
    phi.module.requires_grad_(False).eval()
    examined(phi.module, phi.name, phi.raw)  # as it is from now on
    require_rebuilt(phi)
    few = Views(simulators.select(range(min(BOXED, len(simulators)))), draws.seed.child("encode", "box"))
    return Encoded(boxed(phi, few), (*notes, *_beside(phi.spec.beside)))


def _beside(count: int) -> tuple[str, ...]:
    """What must be known where predictors see numbers beside features, if they do."""
    told = "`blind` does not, so that what densities bring is what is earned beyond a run with net=blind"
    return (f"predictors see {count} numbers beside the features; {told}",) if count else ()


def fitted(phi: Encoding, views: Views, seed: Seed) -> tuple[str, ...]:
    """What a fit says, in sentences; whatever a user's fit raises, or returns in their place, is one SettingError."""
    with faults_of(f"fit of the encoder {phi.name} to succeed", "a fault in its own code"), plain_torch():
        notes = phi.module.fit(views, seed)  # defaults that it sets are not ours afterwards
    sentences = (notes,) if isinstance(notes, str) else () if notes is None else notes
    if not isinstance(sentences, tuple | list) or not all(isinstance(one, str) for one in sentences):
        raise SettingError(
            expected=f"sentences in a tuple from fit of the encoder {phi.name}",
            got=printable(repr(notes), 80),
            cause="return () where there is nothing to say",
        )
    broken = [n for n, value in phi.tensors().items() if value.is_meta or not bool(torch.isfinite(value).all())]
    if broken:
        raise SettingError(
            expected=f"finite numbers from fit of the encoder {phi.name}",
            got=f"NaN, inf or nothing in {printable(broken[:4])}",
            cause="a fit that diverged, or one that moved them to the device meta",
        )
    return tuple(sentences)


def boxed(phi: Encoding, views: Views) -> Encoding:
    """The encoder with a box that holds all features seen, and a margin."""
    z = phi.spec.placed(views.through(phi).z.flatten(0, 2))
    low, high = z.amin(0), z.amax(0)
    constant = (high <= low).nonzero().flatten().tolist()
    if constant:
        raise ObservationError(
            expected=f"features of encoder={phi.name} that vary",
            got=f"feature_{constant[0] + 1} = {float(low[constant[0]]):g} for all {len(z)} readings",
            cause="an encoder that was not fitted, or one of other readings",
        )
    margin = MARGIN * (high - low)
    edges = [tuple(edge.tolist()) for edge in (low - margin, high + margin)]
    return replace(phi, spec=features_spec(phi.raw, edges[0], edges[1], phi.spec.beside))
