"""The pooled difference against a loop, what it is under one density, and what a few corrupted simulators can do."""

import itertools
import math

import pytest
import torch

from s2r_torch.density.difference import PARTS, in_parts, pooled_difference


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_agrees_with_the_formula():
    D, D_other = normal(2, 5, 3, 7, seed=0)
    total = 0.0
    for a in (D - D_other).tolist():
        inner = [sum(u * v for u, v in zip(a[i], a[j], strict=True)) for i, j in itertools.combinations(range(3), 2)]
        total += sum(inner) / math.sqrt(sum(v**2 for v in inner))
    assert pooled_difference(D, D_other) == pytest.approx(total / math.sqrt(5))


@pytest.mark.parametrize("nodes", [1, 30])
def test_has_mean_0_and_variance_1_where_densities_agree(nodes):
    """Whatever each simulator's scale: 4000 trials."""
    scale = torch.tensor([1e-3, 1.0, 1e3])[:, None, None].double()
    D, D_other = scale * normal(2, 4000, 3, PARTS, nodes, seed=1)
    z = torch.tensor([pooled_difference(*pair) for pair in zip(D, D_other, strict=True)])
    assert abs(float(z.mean())) < 4.5 / math.sqrt(4000)
    assert float(z.var()) == pytest.approx(1, abs=0.15)


def test_no_simulator_adds_more_than_its_share():
    D, D_other = normal(2, 16, PARTS, 30, seed=2)
    spoiled = D.clone()
    spoiled[3] += 1e9
    most = math.sqrt(PARTS * (PARTS - 1) / 2 / 16)
    assert abs(pooled_difference(spoiled, D_other) - pooled_difference(D, D_other)) <= 2 * most
    assert pooled_difference(D + 1e9, D_other) == pytest.approx(16 * most)  # the largest there is


def test_equal_estimates_do_not_differ():
    D = normal(4, PARTS, 6, seed=3)
    assert pooled_difference(D, D) == 0


def test_parts_are_disjoint_and_of_one_size():
    x = torch.arange(22.0).reshape(1, 11, 2)
    assert in_parts(x).shape == (1, PARTS, 2, 2)
    assert in_parts(x).flatten().tolist() == list(range(16))
