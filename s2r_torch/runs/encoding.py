"""The stage that fits an encoder: on simulators of its own, before anything else is drawn."""

from __future__ import annotations

from dataclasses import replace

import torch

from s2r_torch.encoders.encoding import Encoding, examined, features_spec, require_rebuilt
from s2r_torch.encoders.views import Views
from s2r_torch.errors import ObservationError
from s2r_torch.families.draws import Draws
from s2r_torch.progress import Progress
from s2r_torch.runs.results import Encoded
from s2r_torch.runs.settings import RunSettings

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
        notes = phi.module.fit(views, seed)
    phi.module.requires_grad_(False).eval()
    examined(phi.module, phi.name, phi.raw)  # as it is from now on
    require_rebuilt(phi)
    few = Views(simulators.select(range(min(BOXED, len(simulators)))), draws.seed.child("encode", "box"))
    return Encoded(boxed(phi, few), tuple(notes))


def boxed(phi: Encoding, views: Views) -> Encoding:
    """The encoder with a box that holds all features seen, and a margin."""
    z = views.through(phi).z.flatten(0, 2)
    low, high = z.amin(0), z.amax(0)
    constant = (high <= low).nonzero().flatten().tolist()
    if constant:
        raise ObservationError(
            expected=f"features of encoder={phi.name} that vary",
            got=f"feature_{constant[0] + 1} = {float(low[constant[0]]):g} for all {len(z)} readings",
            cause="an encoder that was not fitted, or one of other readings",
        )
    margin = MARGIN * (high - low)
    return replace(phi, spec=features_spec(phi.raw, tuple((low - margin).tolist()), tuple((high + margin).tolist())))
