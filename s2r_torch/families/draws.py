"""Fresh environments for each purpose: training, calibration, judging and worlds never share a draw of theta."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families.contract import Family
from s2r_torch.rng import Seed


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws environments of one family from named streams; every episode goes to one ledger."""

    family: Family
    seed: Seed
    ledger: Ledger

    def theta(self, purpose: str, count: int) -> Tensor:
        """theta [count, k], i.i.d. from the prior; the same purpose gives the same draws."""
        return self.family.prior(count, self.seed.child("theta", purpose).generator())

    def simulators(self, purpose: str, count: int) -> Guard:
        """Guarded simulators of `theta(purpose, count)`."""
        return Guard(self.family.simulators(self.theta(purpose, count), range(count)), self.ledger, purpose)
