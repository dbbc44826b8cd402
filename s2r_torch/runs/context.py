"""What every stage of a run is given beside earlier results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from s2r_torch.episodes import Ledger
from s2r_torch.families.contract import Family
from s2r_torch.families.draws import Draws
from s2r_torch.progress import Progress
from s2r_torch.rng import Seed
from s2r_torch.runs.settings import RunSettings
from s2r_torch.workers.engines import SERIAL, Workers


@dataclass(frozen=True, eq=False)
class Context:
    """What every stage is given beside earlier results.

    Args:
        settings: validated settings.
        family: what is learned about.
        progress: where progress and curves go.
        ledger: counts the episodes of this stage.
        fits: folder of unfinished fits, or None.
        tensorboard: folder of TensorBoard logs, or None.
        workers: who does what can be done side by side.
        attempt: at learning, from 1 on.
    """

    settings: RunSettings
    family: Family
    progress: Progress
    ledger: Ledger
    fits: Path | None = None
    tensorboard: Path | None = None
    workers: Workers = SERIAL
    attempt: int = 1

    @property
    def seed(self) -> Seed:
        """The root of all random streams of the run."""
        return Seed.root(self.settings.seed)

    @property
    def draws(self) -> Draws:
        """Fresh environments for a purpose, counted."""
        return Draws(self.family, self.seed, self.ledger, self.workers)
