"""A family checked with all that there is: where it does not know its states, they are explored."""

from __future__ import annotations

from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families.check import Report, check_family
from s2r_torch.families.contract import Family
from s2r_torch.families.draws import Draws
from s2r_torch.families.encoded import placed_alone
from s2r_torch.graph import StateGraph
from s2r_torch.learning.estimator import DensitySettings, make_estimator
from s2r_torch.learning.exploration import explore
from s2r_torch.progress import Progress
from s2r_torch.rng import Seed
from s2r_torch.runs.encoding import encode_readings
from s2r_torch.runs.results import Encoded
from s2r_torch.runs.settings import RunSettings

N_DIST = 100  # readings that a density is estimated from, as in runs
NODES = {1: 97, 2: 24}  # per coordinate; 16 in more dimensions


def explored_graph(simulators: Guard, seed: Seed) -> StateGraph:
    """The state graph that Algorithm 2 finds with usual settings.

    Raises:
        ExplorationError: states cannot be told apart, or there are too many.
    """
    density = DensitySettings(nodes=NODES.get(simulators.spec.obs_dim, 16))
    estimator = make_estimator(density, simulators, N_DIST, seed)
    return explore(simulators, estimator, density.merge, N_DIST, seed.child("explore")).graph


def check_encoded(settings: RunSettings, family: Family, progress: Progress) -> tuple[Encoded, Report]:
    """What a run with these settings finds first: its encoder, then whether the family is what it says, for phi(X).

    Raises:
        ObservationError: an encoder that makes one feature the same for all readings.
    """
    encoded = encode_readings(settings, Draws(family, Seed.root(settings.seed), Ledger()), progress)
    progress.stage("check the family", None)
    return encoded, check_for_a_run(encoded.through(family), settings.seed)


def check_for_a_run(family: Family, seed: int = 0) -> Report:
    """`check_family` of what densities live on; a state graph that the family does not know is explored."""
    return check_family(placed_alone(family), seed, explore=explored_graph)
