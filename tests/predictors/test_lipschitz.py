"""Layers whose sup-norm constants are known: against loops and attacks; the folded MaxMin against the plain one."""

import math

import pytest
import torch
from torch.nn import functional

from s2r_torch.predictors.nets.lipschitz import (
    StackedConv,
    StackedLinear,
    affine,
    after_abs,
    fold_inputs,
    maxmin,
    normalise_rows,
    rotate_outputs,
    row_norms,
    with_constant,
)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bound", [0.5, 1.0, 7.0])
def test_normalise_rows_against_loops(bound):
    weight, constants = normal(2, 3, 4, seed=1) * 3, torch.tensor([0.1, 1.0, 2.0, 30.0])
    weight[0, 0] *= 1e-3  # small rows stay as they are
    got = normalise_rows(weight, constants, bound)
    for f in range(2):
        for k in range(3):
            size = sum(abs(float(w)) * float(c) for w, c in zip(weight[f, k], constants, strict=True))
            expected = weight[f, k] / max(1.0, size / bound)
            torch.testing.assert_close(got[f, k], expected, rtol=2e-6, atol=0)
            certified = (got[f, k].double().abs() * constants.double()).sum()
            assert float(certified) <= bound  # also after rounding to float32
    assert torch.equal(got[0, 0], weight[0, 0])
    assert row_norms(got, constants).tolist() == pytest.approx([bound, bound], rel=3e-6)


def test_float32_rows_never_exceed_their_bound():
    for seed in range(20):
        used = normalise_rows(normal(8, 16, 257, seed=seed) * 10)
        assert float(row_norms(used).max()) <= 1.0


def test_row_norms_measure_in_float64_what_is_used():
    weight = torch.tensor([[[1e8, 1.0], [0.0, -2.0]], [[0.5, 0.25], [1.0, 1.0]]])
    assert row_norms(weight).tolist() == [1e8 + 1.0, 2.0]  # float32 would lose the 1
    assert row_norms(weight, torch.tensor([0.0, 3.0])).tolist() == [6.0, 3.0]
    assert row_norms(torch.zeros(2, 3, 0)).tolist() == [0.0, 0.0]


def test_maxmin_against_loops():
    x = normal(3, 5, 8)
    got = maxmin(x)
    for i in range(4):
        torch.testing.assert_close(got[..., i], torch.maximum(x[..., i], x[..., i + 4]))
        torch.testing.assert_close(got[..., i + 4], torch.minimum(x[..., i], x[..., i + 4]))
    torch.testing.assert_close(maxmin(x.movedim(-1, 1), 1).movedim(1, -1), got)


def test_maxmin_keeps_distances_in_the_sup_norm():
    x, y = normal(2000, 6, seed=1), normal(2000, 6, seed=2)
    moved = (maxmin(x) - maxmin(y)).abs().amax(-1) / (x - y).abs().amax(-1)
    assert float(moved.max()) <= 1 + 1e-6
    x.requires_grad_()
    for k in range(6):  # one input each: an isometry piece by piece
        (grad,) = torch.autograd.grad(maxmin(x)[:, k].sum(), x)
        torch.testing.assert_close(grad.abs().sum(-1), torch.ones(2000))


def folded(x, first, bias, second, second_bias):
    """Layer, MaxMin, layer, features first, with rotations, folds and constants."""
    columns = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    u = with_constant(rotate_outputs(first), rotate_outputs(bias), keep=True) @ columns
    return after_abs(u, with_constant(fold_inputs(second), second_bias, keep=False), first.shape[1] // 2)


def test_folded_maxmin_equals_the_plain_one_and_so_do_its_gradients():
    x, first, bias = normal(4, 3, 7), normal(4, 8, 3, seed=1), normal(4, 8, 1, seed=2)
    second, second_bias, weight = normal(4, 5, 8, seed=3), normal(4, 5, 1, seed=4), normal(4, 5, 7, seed=5)
    arguments = [t.requires_grad_() for t in (x, first, bias, second, second_bias)]
    plain = second @ maxmin(first @ x + bias, 1) + second_bias
    fast = folded(*arguments)
    torch.testing.assert_close(fast, plain, atol=2e-6, rtol=1e-6)
    for one, two in zip(*(torch.autograd.grad((y * weight).sum(), arguments) for y in (plain, fast)), strict=True):
        torch.testing.assert_close(one, two, atol=5e-6, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(folded(*arguments), plain, atol=2e-6, rtol=1e-6)


def test_folded_maxmin_gradients_numerically():
    arguments = [normal(2, 3, 4), normal(2, 4, 3, seed=1), normal(2, 4, 1), normal(2, 2, 4, seed=3), normal(2, 2, 1)]
    assert torch.autograd.gradcheck(folded, [t.double().requires_grad_() for t in arguments])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_affine_against_a_loop_over_members(shared, bias):
    x, weight = normal(7, 3) if shared else normal(4, 7, 3), normal(4, 5, 3, seed=1)
    b = normal(4, 1, 5, seed=2) if bias else None
    got = affine(x, weight, b)
    assert got.shape == (4, 7, 5)
    for f in range(4):
        plain = functional.linear(x if shared else x[f], weight[f], b[f, 0] if bias else None)
        torch.testing.assert_close(got[f], plain, atol=1e-6, rtol=1e-6)


def attacked(function, inputs, outputs, seed):
    """The largest ||Jacobian row||_1 over random places, which is the local constant in the sup norm."""
    x = (normal(40, inputs, seed=seed) * 3).requires_grad_()
    y = function(x)
    rows = [torch.autograd.grad(y[:, k].sum(), x, retain_graph=True)[0].abs().sum(-1) for k in range(outputs)]
    return float(torch.stack(rows).max())


@pytest.mark.parametrize(("scale", "bound"), [(0.01, 1.0), (100.0, 1.0), (100.0, 5.0)])
def test_stacked_linear_bound_is_exact(scale, bound):
    layer = StackedLinear(2, 6, 4, seeded(), bound=bound)
    with torch.no_grad():
        layer.weight *= scale
    constants = layer.norm()
    assert constants.shape == (2,) and float(constants.max()) <= bound
    for f in range(2):
        assert attacked(lambda x, f=f: layer(x)[f], 6, 4, f) == pytest.approx(float(constants[f]), rel=1e-5)


def test_a_free_layer_is_not_normalised():
    layer = StackedLinear(2, 3, 4, seeded(), bound=None, bias=False)
    with torch.no_grad():
        layer.weight *= 100
    assert layer.bias is None and torch.equal(layer.effective(), layer.weight)
    assert float(layer.norm().max()) > 10


def test_initial_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    a, b, c = (StackedLinear(2, 5, 4, seeded(s)) for s in (0, 0, 1))
    assert torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias) and not torch.equal(a.weight, c.weight)
    assert float((a.weight[0] - a.weight[1]).detach().abs().min()) > 0  # members differ
    assert float(a.weight.detach().abs().max()) <= 1 / math.sqrt(5)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("obs_dim", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_stacked_conv_against_a_loop_over_members(obs_dim, stride):
    layer = StackedConv(3, 2, 4, 3, obs_dim, stride, seeded())
    with torch.no_grad():
        layer.weight *= 5
    maps = normal(2, 6, *[6] * obs_dim)
    got = layer(maps)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[obs_dim - 1]
    for f in range(3):
        weight = layer.weight.detach()[4 * f : 4 * f + 4].clone()
        for k in range(4):
            weight[k] /= max(1.0, float(weight[k].abs().sum()))
        plain = convolve(maps[:, 2 * f : 2 * f + 2], weight, layer.bias[4 * f : 4 * f + 4], stride, 1)
        torch.testing.assert_close(got[:, 4 * f : 4 * f + 4], plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("obs_dim", [1, 2])
def test_stacked_conv_bound_is_attained_inside_and_held_at_the_edge(obs_dim):
    layer = StackedConv(2, 2, 3, 3, obs_dim, 1, seeded())
    with torch.no_grad():
        layer.weight *= 50
    constants = layer.norm()
    size = 5**obs_dim
    for f in range(2):

        def one(x, f=f):
            maps = torch.zeros(len(x), 4, *[5] * obs_dim)
            maps[:, 2 * f : 2 * f + 2] = x.view(len(x), 2, *[5] * obs_dim)
            return layer(maps)[:, 3 * f : 3 * f + 3].flatten(1)

        assert attacked(one, 2 * size, 3 * size, f) == pytest.approx(float(constants[f]), rel=1e-5)
    assert constants.tolist() == pytest.approx([1.0, 1.0], rel=3e-6)
