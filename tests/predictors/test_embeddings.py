"""Features of densities: against loops, and 1-Lipschitz in the sup norm under attack."""

import itertools

import pytest
import torch

from s2r_torch.density.grid import DensityGrid, look_up
from s2r_torch.density.patches import Patches
from s2r_torch.predictors.nets import embeddings
from s2r_torch.predictors.nets.embeddings import (
    agreement,
    layer_means,
    linear_functionals,
    places_between,
    sorted_values,
    steepest_falls,
    sup_distances,
)

LAYER = torch.tensor([0, 1, 1, 2, 1, 2])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grid_and_points(d, n=9, batch=4, seed=0):
    """A grid that is not uniform and points in and around it."""
    axes = tuple(torch.tensor([-1.0, -0.2, 0.1, 1.0, 2.0], dtype=torch.float64) * (j + 1) for j in range(d))
    u = torch.rand(batch, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = (torch.tensor([float(a[end]) for a in axes], dtype=torch.float64) for end in (0, -1))
    return DensityGrid(axes), low + (high - low) * (1.3 * u - 0.15)


def multilinear(grid, D, x):
    """A density of one state at one point, corner by corner."""
    D, total, near = D.reshape(grid.shape), 0.0, []
    for axis, value in zip(grid.axes, x.tolist(), strict=True):
        nodes = axis.tolist()
        if not nodes[0] <= value <= nodes[-1]:
            return 0.0
        i = max(k for k in range(len(nodes) - 1) if nodes[k] <= value)
        w = (value - nodes[i]) / (nodes[i + 1] - nodes[i])
        near.append(((i, 1 - w), (i + 1, w)))
    for corner in itertools.product(*near):
        share = 1.0
        for _, w in corner:
            share *= w
        total += share * float(D[tuple(i for i, _ in corner)])
    return total


@pytest.mark.parametrize("d", [1, 2, 3])
def test_look_up_equals_interpolation(d):
    grid, x = grid_and_points(d)
    D = normal(4, 3, grid.num_points)
    got = look_up(D, *grid.locate(x))
    assert got.shape == (4, 9, 3)
    for s in range(3):
        torch.testing.assert_close(got[..., s], grid.interpolate(D[:, s], x), atol=1e-13, rtol=0)
        expected = [[multilinear(grid, D[b, s], x[b, i]) for i in range(9)] for b in range(4)]
        torch.testing.assert_close(got[..., s], torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    inside = grid.inside(x)
    assert bool(inside.any()) and bool((~inside).any())
    assert float(got[~inside].abs().max()) == 0.0
    assert look_up(D.float(), *grid.locate(x)).dtype == torch.float32


def test_look_up_at_nodes_gives_their_values():
    grid, _ = grid_and_points(2)
    D = normal(2, 3, grid.num_points)
    got = look_up(D, *grid.locate(grid.nodes.expand(2, -1, -1)))
    torch.testing.assert_close(got.transpose(1, 2), D, atol=1e-13, rtol=0)


def test_sorted_values_against_sorted():
    D, ranks = normal(2, 3, 11), torch.tensor([0, 3, 10])
    got = sorted_values(D, ranks)
    for b in range(2):
        for s in range(3):
            expected = sorted(D[b, s].tolist(), reverse=True)
            assert got[b, s].tolist() == [expected[0], expected[3], expected[10]]
    shuffled = D[..., torch.randperm(11, generator=torch.Generator().manual_seed(1))]
    assert torch.equal(sorted_values(shuffled, ranks), got)
    assert torch.equal(sorted_values(shuffled.requires_grad_(), ranks), got)  # another way, which has a gradient


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 3, 2)])
def test_steepest_falls_against_loops(shape):
    """Over all nodes, and as many around them; the grid is shorter than some steps."""
    D, d = normal(2, 3, 12), len(shape)
    steps = [(1,) * d, (-2,) + (0,) * (d - 1), (0,) * (d - 1) + (5,), (3, -1, 2)[:d]]
    got = steepest_falls(D, shape, steps)
    for b in range(2):
        for s in range(3):
            values = D[b, s].reshape(shape)

            def at(y, v, values=values):
                """The maximum of all values that agree with y where v moves."""
                axes = [range(m) if k == 0 else [i] for i, k, m in zip(y, v, shape, strict=True)]
                inside = all(k == 0 or 0 <= i < m for i, k, m in zip(y, v, shape, strict=True))
                return max(float(values[i]) for i in itertools.product(*axes)) if inside else 0.0

            for v, fall in zip(steps, got[b, s].tolist(), strict=True):
                places = itertools.product(*(range(-6, m + 6) for m in shape))
                assert fall == max(at(y, v) - at([i + k for i, k in zip(y, v, strict=True)], v) for y in places) / 2


def test_steepest_falls_tell_what_sorted_values_do_not():
    """A shape that leans, and its mirror image; a shape along a diagonal, and along the other one."""
    leaning = torch.tensor([0.0, 0.0, 1.0, 3.0, 2.0, 1.0, 0.0, 0.0])
    one, other = (steepest_falls(D, (8,), [(1,), (-1,)]) for D in (leaning, leaning.flip(0)))
    assert one.tolist() == other.flip(0).tolist() == [0.5, 1.0]
    i, j = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    along = (-((i - j) ** 2) / 2 - (i + j - 7) ** 2 / 40).exp()
    one, other = (steepest_falls(D.flatten(), (8, 8), [(1, 1), (1, -1)]) for D in (along, along.flip(0)))
    assert one.tolist() == other.flip(0).tolist() and one[0] < one[1] / 2


def test_linear_functionals_are_divided_by_their_l1_norm():
    D, functionals = normal(2, 3, 5), torch.tensor([[1.0, -2.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.5]])
    got = linear_functionals(D, functionals)
    torch.testing.assert_close(got[..., 0], (D[..., 0] - 2 * D[..., 1] + 3 * D[..., 2]) / 6)
    torch.testing.assert_close(got[..., 1], D[..., 4])
    assert linear_functionals(D.float(), functionals.double()).dtype == torch.float32


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_agreement_against_loops(d, sparse):
    grid, places = grid_and_points(d, n=6, batch=5)  # [K, xi, d], some off the grid
    D = normal(3, 6, grid.num_points)
    got = agreement(Patches.of(D, grid) if sparse else D, places, grid)
    for b in range(3):
        averages = [sum(multilinear(grid, D[b, s], places[k, s]) for s in range(6)) / 6 for k in range(5)]
        assert float(got[b]) == pytest.approx(max(averages), abs=1e-12)
    torch.testing.assert_close(got, torch.cat([agreement(one[None], places, grid) for one in D]))


def camera(heading, gain):
    """Where cameras see five states: [B, 5, 2]."""
    states = torch.tensor([[0.0, 2.0], [1.0, 1.0], [-1.0, 3.0], [2.0, -1.0], [-2.0, 0.0]], dtype=torch.float64)
    cos, sin = gain * heading.cos(), gain * heading.sin()
    turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    return states @ turn.mT


def test_no_sensor_is_far_from_a_place_and_those_of_training_are_no_nearer():
    """Also those where training saw none: of headings between 2 and 2.15, none are in it."""
    u = torch.rand(600, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = camera(2.15 + (2 * torch.pi - 0.15) * u[:, 0], 1 + 0.2 * u[:, 1])
    among, lonely = seen[:256], camera(torch.linspace(2.01, 2.14, 50).double(), torch.linspace(1, 1.2, 50).double())
    places = places_between(among, 1024)

    def off(seen):  # of every state, on average over states, from the nearest sensor
        return (seen[:, None] - places).norm(dim=-1).mean(-1).amin(1)

    assert places.shape == (1024, 5, 2)
    assert off(lonely).max() < 0.1 and off(seen[256:]).max() < 0.1  # 0.3 wide is the gap
    assert 0.8 < off(among).mean() / off(seen[256:]).mean() < 1.2
    nearest = (places[:, None] - among).flatten(2).norm(dim=-1).amin(1)
    distances = torch.cdist(among.flatten(1), among.flatten(1)).fill_diagonal_(torch.inf).amin(1)
    assert nearest.max() <= distances.max() + 1e-6  # nobody's is far from all of them


def test_places_lie_in_what_simulators_span():
    """Sensors with one hidden number: all places are on their line, whatever the noise of where they see states."""
    line = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None, None] * torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    off = line + 1e-3 * normal(30, 2, 2)
    found = places_between(off, 64).flatten(1)
    rank = torch.linalg.svdvals(found - found.mean(0))
    assert rank[1] < 1e-9 * rank[0] and len(found.unique(dim=0)) == 64
    spacing = found @ torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64)
    assert spacing.sort().values.diff().max() < 2 * 2 * 6.25 * 1.2 / 63  # evenly, a bisection each


def test_places_of_few_simulators():
    seen = normal(20, 4, 2)
    assert places_between(seen[:2], 7).shape == (7, 4, 2)
    assert torch.equal(places_between(seen[:1], 3), seen[:1].expand(3, -1, -1))
    torch.testing.assert_close(places_between(seen[:1].expand(9, -1, -1), 3), seen[:1].expand(3, -1, -1))


def test_each_place_taken_is_the_farthest_from_those_before():
    points = normal(40, 3)
    taken = [0]
    while len(taken) < 12:
        gaps = [min(float((point - points[k]).norm()) for k in taken) for point in points]
        taken.append(max(range(40), key=lambda i: gaps[i]))
    assert embeddings._farthest(points, 12).tolist() == taken


def test_layer_means_against_loops():
    values = normal(2, 6, 4)
    got = layer_means(values, LAYER)
    for h, states in enumerate(([0], [1, 2, 4], [3, 5])):
        torch.testing.assert_close(got[:, h], sum(values[:, s] for s in states) / len(states))
    assert layer_means(values, torch.zeros(6, dtype=torch.int64)).shape == (2, 1, 4)


def test_sup_distances_against_loops():
    values, anchors = normal(3, 5), normal(2, 5, seed=1)
    got = sup_distances(values, anchors)
    for b in range(3):
        for k in range(2):
            assert float(got[b, k]) == max(abs(float(values[b, j] - anchors[k, j])) for j in range(5))


def features():
    """name -> (function of D [B, 6, G], whether a pair attains its constant)."""
    grid, x = grid_and_points(2, n=40, batch=1)
    inside = x[grid.inside(x)][None]
    index, weight = grid.locate(inside)
    ranks = torch.tensor([0, 2, 7, 24])
    signed = normal(3, grid.num_points, seed=5)
    return {
        "look_up": lambda D: look_up(D, index.expand(len(D), -1, -1), weight.expand(len(D), -1, -1)),
        "sorted_values": lambda D: sorted_values(D, ranks),
        "steepest_falls": lambda D: steepest_falls(D, (5, 5), [(1, 1), (0, -2)]),
        "agreement": lambda D: agreement(D, inside[0, : 2 * 6].view(2, 6, 2), grid)[:, None],
        "linear_functionals": lambda D: linear_functionals(D, signed),
        "layer_means": lambda D: layer_means(D, LAYER),
        "sup_distances": lambda D: sup_distances(D.flatten(1), normal(3, 150, seed=7)),
    }


@pytest.mark.parametrize("name", list(features()))
def test_embeddings_are_one_lipschitz_and_no_less(name):
    """Random pairs, and steps along the sign of the gradient of every output, of any size."""
    function = features()[name]
    D = torch.cat([normal(20, 6, 25), 100 * normal(20, 6, 25, seed=1), torch.zeros(2, 6, 25, dtype=torch.float64)])
    assert quotient(function, D, D[torch.randperm(42, generator=torch.Generator().manual_seed(3))]) <= 1 + 1e-12
    D.requires_grad_()
    y = function(D).flatten(1)
    worst = 0.0
    for k in range(y.shape[1]):
        (grad,) = torch.autograd.grad(y[:, k].sum(), D, retain_graph=True)
        local = grad.abs().sum((1, 2))
        assert float(local.max()) <= 1 + 1e-12
        for size in (1e-6, 0.1, 30.0):
            for sign in (-1, 1):
                worst = max(worst, quotient(function, D.detach(), D.detach() + sign * size * grad.sign()))
    assert 1 - 1e-6 <= worst <= 1 + 1e-6


def quotient(function, D, other):
    moved = (function(D) - function(other)).flatten(1).abs().amax(-1)
    return float((moved / (D - other).flatten(1).abs().amax(-1).clamp(min=1e-9)).max())
