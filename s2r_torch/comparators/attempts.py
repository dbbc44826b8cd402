"""What learners make of worlds, looked at before it is valued: a policy, its cost, and values that it says it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from s2r_torch.comparators.contract import REWARDED, UNLABELLED, Attempt, Learner, Worlds, own_code
from s2r_torch.episodes import Act, require_actions
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth, users
from s2r_torch.given import refuse_kind, taking
from s2r_torch.text import printable

ROUNDING = 1e-6  # of exact values, and of means of counts


@taking()
def attempted(name: str, learner: Learner, worlds: Worlds) -> Attempt:
    """A learner's policy in these worlds; whatever is wrong with it is one error that names the comparator.

    Raises:
        SettingError: it is no attempt, it wrote into the worlds' theta, or what it gives as actions are none.
        SimulatorError: it raised.
    """
    counts = worlds.draws.ledger.counts
    before = [counts[purpose] for purpose in (UNLABELLED, REWARDED)]
    with own_code(f"attempt of the comparator {name}", worlds.seed, name, worlds.theta):
        attempt = learner.attempt(worlds)
    if not isinstance(attempt, Attempt):
        refuse_kind(f"what attempt of the comparator {name} returned", attempt, "an Attempt")
    told = {"unlabelled": attempt.unlabelled, "rewarded": attempt.rewarded}
    for purpose, was, (part, said) in zip((UNLABELLED, REWARDED), before, told.items(), strict=True):
        drawn = (counts[purpose] - was) / len(worlds)
        if drawn > said * (1 + ROUNDING):
            expected, cause = f"{part} of an attempt of the comparator {name}: {drawn:g}, as were drawn", "not counted"
            raise SettingError(expected=expected, got=f"{said:g}", cause=cause)
    act = Named(name, attempt.act, worlds.draws.family.spec.num_actions)
    return replace(attempt, act=act, exact=attempt.exact and partial(_exact, name, attempt.exact))


def _exact(name: str, exact: Callable[[GroundTruth], Tensor], truth: GroundTruth) -> Tensor:
    """The values [W] that an attempt says it has; SettingError unless they are values."""
    with users(f"exact of an attempt of the comparator {name}", "a fault in its own code"):
        found = exact(truth)
    good = isinstance(found, Tensor) and found.shape == (len(truth.reward),) and not found.is_complex()
    if not good or not bool(((found >= -ROUNDING) & (found <= 1 + ROUNDING)).all()):  # not of NaN
        expected = f"values [{len(truth.reward)}] in [0, 1] from exact of an attempt of the comparator {name}"
        raise SettingError(expected=expected, got=printable(repr(found), 80), cause="one per world, of whole episodes")
    return found.double()


@dataclass(frozen=True)
class Named:
    """A comparator's policy, whose every answer is looked at."""

    name: str
    act: Act
    num_actions: int

    @property
    def has_memory(self) -> bool:
        return bool(getattr(self.act, "has_memory", False))

    def __call__(self, step: int, x: Tensor) -> Tensor:
        """Actions [W, n] at x [W, n, d].

        Raises:
            SettingError: they are none, or readings were written into.
            SimulatorError: it raised.
        """
        what = f"the policy of the comparator {self.name}"
        with users(what, "a fault in its own code"):
            actions = self.act(step, x.clone())  # it may write into them
        require_actions(actions, x.shape[:-1], self.num_actions, what)
        return actions
