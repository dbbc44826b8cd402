"""Fresh environments for each purpose: training, calibration, judging and worlds never share a draw of theta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from s2r_torch.base import UnlabelledWorld
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families.contract import Family
from s2r_torch.families.recipe import EncodedRecipe, FamilyRecipe, SimulatorsRecipe, recipe_of
from s2r_torch.rng import Seed
from s2r_torch.workers.engines import SERIAL, Workers


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws environments of one family from named streams; every episode goes to one ledger."""

    family: Family
    seed: Seed
    ledger: Ledger
    workers: Workers = SERIAL  # who takes on parts of the simulators

    def theta(self, purpose: str, count: int) -> Tensor:
        """theta [count, k], i.i.d. from the prior; the same purpose gives the same draws."""
        return self.family.prior(count, self.seed.child("theta", purpose).generator())

    def simulators(self, purpose: str, count: int) -> Guard:
        """Guarded simulators of `theta(purpose, count)`."""
        return self.simulators_of(self.theta(purpose, count), purpose)

    def simulators_of(self, theta: Tensor, purpose: str, ids: Sequence[int] | None = None) -> Guard:
        """Guarded simulators of theta [B, k], named 0 .. B-1 unless ids are given."""
        ids = tuple(range(len(theta)) if ids is None else ids)
        recipe = None if self._recipe is None else SimulatorsRecipe(self._recipe, theta, ids)
        return Guard(self.family.simulators(theta, ids), self.ledger, purpose, recipe, self.workers)

    def world(self, purpose: str, number: int, theta: Tensor) -> UnlabelledWorld:
        """The world of one theta [k], with a stream of its own."""
        return self.family.world(theta, self.seed.child(purpose, number).generator())

    def apart(self) -> Draws:
        """The same environments, counted in a ledger of their own, without workers."""
        return replace(self, ledger=Ledger(), workers=SERIAL)

    @cached_property
    def _recipe(self) -> FamilyRecipe | EncodedRecipe | None:
        return recipe_of(self.family)

    def __reduce__(self):  # a family travels as its recipe
        if self._recipe is None:
            raise TypeError(f"the family {self.family.name} is not registered, and cannot travel")
        return _arrived, (self._recipe, self.seed)


def _arrived(recipe: FamilyRecipe | EncodedRecipe, seed: Seed) -> Draws:
    """Draws where they have travelled to."""
    return Draws(recipe.made(), seed, Ledger())
