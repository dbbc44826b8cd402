"""Families and their simulators as recipes: names, parameters, theta and ids, from which any process makes them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from s2r_torch.base import Simulators
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, make_family
from s2r_torch.families.contract import Family
from s2r_torch.families.encoded import EncodedFamily
from s2r_torch.workers.engines import SERIAL, Workers


@dataclass(frozen=True)
class FamilyRecipe:
    """A registered family.

    Args:
        name: in the registry.
        parameters: JSON.
        module: whose import registers it; a plugin's, or ours.
    """

    name: str
    parameters: str
    module: str

    def made(self) -> Family:
        """The family; one per process."""
        return _made(self)


@dataclass(frozen=True, eq=False)
class EncodedRecipe:
    """A registered family seen through a frozen encoder."""

    inner: FamilyRecipe
    phi: Encoding

    def made(self) -> Family:
        """The family, seen through the encoder."""
        return EncodedFamily(self.inner.made(), self.phi)


def recipe_of(family: Family) -> FamilyRecipe | EncodedRecipe | None:
    """How to make a family again; None where its name and parameters do not say it."""
    if isinstance(family, EncodedFamily):
        inner = recipe_of(family.inner)
        return EncodedRecipe(inner, family.phi) if isinstance(inner, FamilyRecipe) else None
    made = FAMILIES.get(family.name)
    if made is None or made.__module__ == "__main__" or (isinstance(made, type) and type(family) is not made):
        return None
    return FamilyRecipe(family.name, json.dumps(family.parameters(), sort_keys=True), made.__module__)


def require_travel(family: Family, workers: Workers) -> None:
    """Raises SettingError where workers elsewhere would have to make a family that has no recipe."""
    if workers is not SERIAL and recipe_of(family) is None:
        raise SettingError(
            expected="a registered family, which other processes can make again from its name and parameters",
            got=family.name,
            cause="a family made by hand or in a notebook: @register_family in a module of its own, or workers=1",
        )


@dataclass(frozen=True, eq=False)
class SimulatorsRecipe:
    """Some simulators of a family (`episodes.Recipe`)."""

    family: FamilyRecipe | EncodedRecipe
    theta: Tensor  # [B, k]
    ids: tuple[int, ...]

    def simulators(self) -> Simulators:
        """They, as before their first episode."""
        family = self.family.made()
        getattr(family, "trust", lambda theta: None)(self.theta)  # whoever sends them has checked
        return family.simulators(self.theta, self.ids)

    def select(self, indices: Sequence[int]) -> SimulatorsRecipe:
        """Of some of them."""
        rows = list(indices)
        return SimulatorsRecipe(self.family, self.theta[rows], tuple(self.ids[i] for i in rows))


@lru_cache(maxsize=4)
def _made(recipe: FamilyRecipe) -> Family:
    importlib.import_module(recipe.module)
    return make_family(recipe.name, **json.loads(recipe.parameters))
