"""Tours shared among workers against tours of all simulators at once."""

import torch

from s2r_torch import tours
from s2r_torch.episodes import Ledger
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.learning import drawing
from s2r_torch.rng import Seed

FAMILY, SEED = make_family("grid"), Seed.root(0)


def test_shared_tours_are_the_same_and_counted_once():
    alone, shared = (Draws(FAMILY, SEED, Ledger()).simulators("test", 40) for _ in range(2))
    needs = torch.arange(FAMILY.graph.num_states) % 3 * 5
    for one, other in zip(
        tours.readings(alone, FAMILY.graph, needs, SEED),
        drawing.readings(shared, FAMILY.graph, needs, SEED),
        strict=True,
    ):
        assert torch.equal(one, other)
    for one, other in zip(
        tours.decisions(alone, FAMILY.graph, 7, SEED), drawing.decisions(shared, FAMILY.graph, 7, SEED), strict=True
    ):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("x", "actions", "rewards"))
    assert vars(alone.ledger) == vars(shared.ledger) and alone.ledger.counts.total() > 0
