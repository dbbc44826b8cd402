"""The rivals' printed sizes against numbers worked out by hand from their boxes."""

from dataclasses import asdict, replace

import pytest

from s2r_torch.errors import AssumptionError
from s2r_torch.planner.comparators import rival_sizes
from s2r_torch.planner.orders import leading_orders
from s2r_torch.planner.plan import Setting

# (H, M, A) -> what the boxes give at epsilon = delta = 0.1 and F = 64, to the digits worked out
SHAPES = {"mixture H=2": (2, 2, 2), "mixture H=3": (3, 2, 2), "grid": (5, 3, 2), "frozenlake": (6, 15, 4)}
GOLDEN = {
    "mixture H=2": {
        "lsvee.phi": 5.5e-5, "lsvee.total": 3.9e11, "olive.rounds": 48, "olive.total": 4.4e9, "sun.total": 4.7e10
    },
    "mixture H=3": {
        "lsvee.phi": 2.5e-5, "lsvee.total": 3.1e12, "olive.rounds": 77, "olive.total": 1.6e10, "sun.total": 1.7e11
    },
    "grid": {
        "lsvee.phi": 8.8e-6, "lsvee.total": 6.4e13, "lsvee.n_train": 3.7e12, "lsvee.n_test": 3.1e11,
        "lsvee.n_rollouts": 2.4e4, "lsvee.n_probes": 544, "olive.n_first": 2.6e4, "olive.n_test": 8.0e6,
        "olive.n_learn": 9.4e8, "olive.rounds": 220, "olive.total": 2.1e11, "sun.total": 2.1e12,
    },
    "frozenlake": {"lsvee.phi": 4.3e-6, "lsvee.total": 2.1e15, "olive.rounds": 1600, "olive.total": 2.6e13},
}  # fmt: skip


def setting(H: int, M: int, A: int) -> Setting:
    return Setting(H, M, A, 64, 0.1, 0.1, 2.0, 1, 5.0, 1.0, 1.0, cover_width=M)


@pytest.mark.parametrize("name", GOLDEN)
def test_sizes_agree_with_the_boxes(name):
    found = asdict(rival_sizes(setting(*SHAPES[name])))
    for place, value in GOLDEN[name].items():
        method, part = place.split(".")
        assert found[method][part] == pytest.approx(value, rel=0.03), place


def test_half_the_accuracy_costs_four_times_and_more():
    coarse, fine = (rival_sizes(replace(setting(5, 3, 2), epsilon=e)) for e in (0.1, 0.05))
    for method in ("lsvee", "olive", "sun"):
        assert getattr(fine, method).total > 4 * getattr(coarse, method).total * 0.99
    assert fine.lsvee.phi == coarse.lsvee.phi / 2


def test_the_order_with_the_layered_rank_is_h_squared_smaller():
    orders = leading_orders(setting(5, 3, 2))
    assert orders.jiang2017 / orders.jiang2017_layered == pytest.approx(25)


def test_delta_is_a_probability():
    with pytest.raises(AssumptionError):
        rival_sizes(replace(setting(2, 2, 2), delta=1.0))
