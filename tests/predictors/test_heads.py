"""Heads against their formulas, written out plainly for one member, one simulator and one reading at a time."""

import pytest
import torch
from support.attacks import bumps, make_net, problem, readings

from s2r_torch.predictors.nets import net as nets
from s2r_torch.predictors.nets.heads import HEADS
from s2r_torch.predictors.nets.lipschitz import maxmin

WHERE = problem("plane")
SCARCITY = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)  # of the readings behind each simulator's densities


def scene(name, **settings):
    g = torch.Generator().manual_seed(3)
    net = make_net(name, WHERE, members=2, loud=4.0, **settings).double().requires_grad_(False)
    return net, bumps(WHERE, 3, g), readings(WHERE, (3, 4), g, margin=0.1)


def plain(layer, x, weight=None):
    """A stacked layer, per member: (f, vector) -> vector."""
    weight = layer.effective() if weight is None else weight
    return lambda f, v: weight[f] @ v + (0 if layer.bias is None else layer.bias[f, 0])


def by_formula(net, step, D, x, f, b, i):
    """f(D_b, x_i, .) [A] of member f."""
    head, A = net.steps[step], net.problem.spec.num_actions
    summary, local = net.standardised(D)[b], net.local(D, step, x)[b, i]
    scaled = net.scaled_x(x)[b, i]
    inner, outer = plain(head.branch.inner, None), plain(head.branch.outer, None)
    free = outer(f, inner(f, scaled).abs())
    if net.name == "cones":
        tips = free.view(A, -1)
        height = net.declared_bound * summary
        return torch.stack([((v + height).min() + (v - height).max()) / 2 for v in tips])
    embedded = summary
    if head.embedding is not None:
        embedded = head.embedding(net.standardised(D), net.constants().summary)[f, b]
    weight = head.first.effective(head.input_constants(net.constants()))
    first = plain(head.first, None, weight)(f, torch.cat([embedded, SCARCITY[b : b + 1], local]))
    layers = [plain(layer, None) for layer in head.later()]
    if net.head == "mlp":
        u = first + free
        for layer in layers:
            u = layer(f, maxmin(u))
        return u
    if net.head == "film":
        u, scales = first, free.chunk(2 * net.depth)
        for k, layer in enumerate(layers):
            u = layer(f, maxmin(torch.tanh(scales[2 * k] + 1) * u + scales[2 * k + 1]))
        return u
    z = first
    for layer in layers:
        z = layer(f, maxmin(z))
    weights, bias = free[: A * net.width].view(A, net.width), free[A * net.width :]
    if net.head == "softmax":
        return torch.stack([(w.softmax(0) * z).sum() for w in weights]) + bias
    return torch.stack([(w * z).sum() / max(1.0, float(w.abs().sum())) for w in weights]) + bias


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [f"lookup/{head}" for head in HEADS] + ["sets", "conv/mlp", "cones", "blind"])
def test_formula(name, depth):
    net, D, x = scene(name, depth=depth)
    for step in range(3):
        q = net.raw_q(step, net.standardised(D), net.local(D, step, x), x, SCARCITY)
        for f, b, i in ((0, 0, 0), (1, 2, 3), (1, 0, 2)):
            expected = by_formula(net, step, D, x, f, b, i)
            torch.testing.assert_close(q[f, b, i], expected, atol=1e-5, rtol=1e-5)  # SAFETY: 1e-6


@pytest.mark.parametrize("tile, columns", [(1, 1), (40, 3), (10**9, 10**9), (64, 2)])
@pytest.mark.parametrize("name", [f"lookup/{head}" for head in HEADS] + ["sets", "cones", "blind"])
def test_values_do_not_depend_on_tiles(name, tile, columns, monkeypatch):
    """The fast path equals the one that trains, however it is cut; one simulator's offset is folded into a bias."""
    net, D, x = scene(name)
    monkeypatch.setattr(nets, "TILE", tile)
    monkeypatch.setattr(nets, "COLUMNS", columns)
    conditioned = net.condition(D)
    for step in range(3):
        expected = net.raw_q(step, net.standardised(D), net.local(D, step, x), x).clamp(0, 1)
        torch.testing.assert_close(net.q(conditioned, step, x), expected, atol=1e-12, rtol=0)


def test_in_float32_the_fast_path_is_exact_to_rounding():
    net, D, x = scene("lookup")
    net = net.float()
    for step in range(3):
        q = net.q(net.condition(D), step, x)
        expected = net.double().raw_q(step, net.standardised(D), net.local(D, step, x), x).clamp(0, 1)
        net = net.float()
        assert float((q - expected).abs().max()) < 2e-6
