"""The factor model against dense formulas, and on data with known factors."""

import pytest
import torch

from s2r_torch.deployment.factors import Factors, fit_factors


def random_model(xi=4, q=3, r=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    loadings = torch.randn(xi, q, r, generator=g, dtype=torch.float64)
    root = 0.3 * torch.randn(xi, q, q, generator=g, dtype=torch.float64)
    return Factors(loadings, root @ root.mT + 0.05 * torch.eye(q, dtype=torch.float64)), g


def dense(model):
    L = model.loadings.flatten(0, 1)
    return L @ L.T + torch.block_diag(*model.noise)


def drawn(model, n, g):
    xi, q, r = model.loadings.shape
    shared = torch.randn(n, r, generator=g, dtype=torch.float64)
    own = torch.linalg.cholesky(model.noise) @ torch.randn(n, xi, q, 1, generator=g, dtype=torch.float64)
    return torch.einsum("sqr,nr->nsq", model.loadings, shared) + own[..., 0]


def test_distances_and_conditional_laws_agree_with_the_dense_covariance():
    model, g = random_model()
    z, covariance = torch.randn(5, 4, 3, generator=g, dtype=torch.float64), dense(model)
    flat = z.flatten(1)
    squares = (flat @ torch.linalg.inv(covariance) * flat).sum(1)
    assert torch.allclose(model.distance(z).square(), squares)
    away = model.residuals(z)
    for s in range(4):
        own, others = slice(3 * s, 3 * s + 3), [i for i in range(12) if i // 3 != s]
        cross = covariance[own][:, others]
        weights = cross @ torch.linalg.inv(covariance[others][:, others])
        conditional = covariance[own, own] - weights @ cross.T
        expected = flat[:, own] - flat[:, others] @ weights.T
        assert torch.allclose(away[:, s], expected)
        squares = (expected @ torch.linalg.inv(conditional) * expected).sum(1)
        assert torch.allclose(model.distances(away)[:, s].square(), squares)
        assert torch.allclose(model.distances(away[:, [s]], [s])[:, 0].square(), squares)
        assert torch.allclose(model.deviations(away)[:, s], expected / conditional.diagonal().sqrt())


def test_the_log_likelihood_is_that_of_a_normal_law():
    model, g = random_model()
    z = drawn(model, 50, g)
    normal = torch.distributions.MultivariateNormal(torch.zeros(12, dtype=torch.float64), dense(model))
    constant = 0.5 * 12 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    assert model.log_likelihood(z) == pytest.approx(float((normal.log_prob(z.flatten(1)) + constant).mean()))


@pytest.mark.parametrize(("n", "r"), [(400, 2), (60, 2), (400, 4)])
def test_known_factors_are_found(n, r):
    """As likely on new data as the true model, but for what the number of rows costs."""
    model, g = random_model(xi=12, q=3, r=r, seed=1)
    found = fit_factors(drawn(model, n, g))
    new = drawn(model, 2000, g)
    assert found.loadings.shape[-1] == r
    assert found.log_likelihood(new) > model.log_likelihood(new) - 600 / n


def test_groups_that_share_nothing_and_numbers_that_never_vary():
    g = torch.Generator().manual_seed(2)
    z = torch.randn(200, 5, 2, generator=g, dtype=torch.float64)
    z[:, :, 1] = 0.0
    model = fit_factors(z)
    assert bool(torch.isfinite(model.distance(z)).all())
    moved = z[0].clone()
    moved[3, 1] = 0.1
    assert float(model.distance(moved)) > 10 * float(model.distance(z[0]))
    assert int(model.distances(model.residuals(moved)).argmax()) == 3


def test_two_rows_are_enough():
    assert torch.isfinite(fit_factors(torch.randn(2, 3, 2, dtype=torch.float64)).distance(torch.ones(3, 2).double()))
