"""Kernels against exact golden numbers, and the conditions K1 for every registered kernel."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from s2r_torch.density.kernels import KERNELS, LegendreKernel, make_kernel
from s2r_torch.errors import SettingError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "kde.json").read_text())["kernels"]


@pytest.mark.parametrize("ceil_alpha", range(1, 9))
def test_legendre_golden(ceil_alpha):
    golden, kernel = GOLDEN[str(ceil_alpha)], LegendreKernel(ceil_alpha)
    expected = [Fraction(c["frac"]) for c in golden["coef"]]
    assert list(kernel.coefficients) == expected[: golden["polynomial_degree"] + 1]
    assert not any(expected[golden["polynomial_degree"] + 1 :])
    assert [kernel.moment(j) for j in range(10)] == [Fraction(m["frac"]) for m in golden["moments"]]
    assert kernel.first_moment_order == golden["first_nonzero_moment_order"]
    t = torch.tensor([v["t_float"] for v in golden["values"]], dtype=torch.float64)
    values = torch.tensor([v["float"] for v in golden["values"]], dtype=torch.float64)
    assert float((kernel(t) - values).abs().max()) <= 1e-13 * kernel.sup_norm
    for got, want in (
        (kernel.l2_norm_squared, golden["L2_norm_squared"]["float"]),
        (kernel.sup_norm, golden["sup_norm"]["float"]),
        (kernel.l1_norm, float(golden["L1_norm"])),
        (kernel.total_variation, float(golden["total_variation"])),
        (kernel.abs_moment_at_order, float(golden["abs_moment_at_alpha_eq_ceil"])),
    ):
        assert got == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize(
    ("name", "order"), [*((n, o) for n in sorted(KERNELS) for o in (0.5, 1.5, 2)), ("legendre", 11.5)]
)
def test_every_kernel_meets_its_order(name, order):
    kernel = make_kernel(name, order)
    assert kernel.name == name and KERNELS[name](order) == kernel
    assert [kernel.moment(j) for j in range(math.ceil(order))] == [1] + [0] * (math.ceil(order) - 1)
    t = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    values = kernel(t)
    integral = lambda y: float(torch.trapezoid(y, t))  # noqa: E731
    assert float(values.abs().max()) == pytest.approx(kernel.sup_norm, rel=1e-9)
    assert integral(values.square()) == pytest.approx(kernel.l2_norm_squared, rel=1e-6)
    assert integral(values.abs()) == pytest.approx(kernel.l1_norm, rel=1e-6)
    assert integral(values.abs() * t.abs() ** order) == pytest.approx(kernel.abs_moment_at_order, rel=1e-6)
    variation = float(values.diff().abs().sum() + 2 * values[-1].abs())
    assert variation == pytest.approx(kernel.total_variation, rel=1e-6)


def test_the_support_is_closed():
    t = torch.tensor([-1.0, 1.0, math.nextafter(1.0, 2.0)], dtype=torch.float64)
    assert LegendreKernel(4)(t).tolist() == [-0.75, -0.75, 0.0]


@pytest.mark.parametrize(
    ("name", "order", "message"),
    [
        ("gaussian", 2, "a kernel among box, epanechnikov, legendre"),
        ("legendre", 0, "a kernel order in"),
        ("legendre", 13, "a kernel order in"),
        ("legendre", float("nan"), "a kernel order in"),
        ("epanechnikov", 2.5, "whose moment 2 is 1/5"),
    ],
)
def test_settings_are_refused(name, order, message):
    with pytest.raises(SettingError, match=message):
        make_kernel(name, order)
