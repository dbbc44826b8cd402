"""What comparators are told, from small runs: shared by their tests."""

import functools
from dataclasses import replace

from support.smoke import small_settings

from s2r_torch.comparators.contract import Known, Worlds
from s2r_torch.episodes import Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.progress import Silent
from s2r_torch.rng import Seed
from s2r_torch.runs import stages
from s2r_torch.runs.context import Context

FAST = {
    "grid": (),
    "mixture": (
        "density.merge.n_merge=5000",
        "budget.n_dist=4000",
        "budget.n_real=400",
        "budget.n_train=4000",
        "budget.n_test=500",
    ),
}
PARAMETERS = {"grid": {}, "mixture": {"horizon": 2}}


@functools.cache
def known_on(name: str) -> Known:
    """Of one small run; its simulators' episodes are counted nowhere that matters."""
    settings = small_settings(f"+experiment={name}", *FAST[name])
    context = Context(settings, make_family(name, **PARAMETERS[name]), Silent(), Ledger())
    explored = stages.explore(context)
    trained = stages.train(context, explored)
    learned = stages.learn(context, explored, trained, stages.calibrate(context, explored, trained))
    return stages.known_before(context, explored, trained, learned)


def worlds_of(family, count: int, seed: int = 0) -> Worlds:
    """Fresh worlds of a family, with a ledger of their own."""
    draws = Draws(family, Seed.root(seed), Ledger())
    return Worlds(draws.theta("population", count), draws, "evaluate", Seed.root(seed).child("population"))


def with_family(worlds: Worlds, family) -> Worlds:
    """The same worlds, of another family."""
    return replace(worlds, draws=Draws(family, worlds.draws.seed, Ledger()))
