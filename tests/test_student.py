"""Means of few values: agrees with SciPy's t test, and errs as often as it says, however unequal the noise."""

import pytest
import torch
from scipy import stats

from s2r_torch.errors import SettingError
from s2r_torch.student import half_width, p_above


@pytest.mark.parametrize("count", [2, 3, 8, 100])
def test_agrees_with_scipy(count):
    values = 0.1 + torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    of_scipy = stats.ttest_1samp(values.numpy(), 0.0, alternative="greater")
    assert p_above(values) == pytest.approx(of_scipy.pvalue, rel=1e-9)
    for confidence in (0.9, 0.95):
        low, high = stats.ttest_1samp(values.numpy(), 0.0).confidence_interval(confidence)
        assert 2 * half_width(values, confidence) == pytest.approx(high - low, rel=1e-9)


@pytest.mark.parametrize("spread", [1.0, 10.0], ids=["equal", "unequal"])
@pytest.mark.parametrize("count", [3, 8])
def test_rates_are_at_most_those_that_are_stated(count, spread):
    """Of 20000 means that are 0; the law of t is not asked, but the normal draws themselves."""
    g = torch.Generator().manual_seed(count)
    scale = torch.logspace(0, torch.log10(torch.tensor(spread)), count, dtype=torch.float64)
    rows = scale * torch.randn(20_000, count, dtype=torch.float64, generator=g)
    for level in (0.05, 0.001):
        exceed = torch.tensor([p_above(row) <= level for row in rows[: 20_000 if level < 0.01 else 4000]])
        rate, noise = float(exceed.double().mean()), (level / len(exceed)) ** 0.5
        assert rate <= level + 4 * noise
        assert spread > 1 or rate >= level - 4 * noise
    missed = torch.tensor([abs(float(row.mean())) > half_width(row) for row in rows[:4000]])
    assert float(missed.double().mean()) <= 0.05 + 4 * (0.05 / 4000) ** 0.5


def test_values_that_are_equal_leave_no_doubt():
    equal = torch.full((5,), 0.25, dtype=torch.float64)
    assert p_above(equal) < 1e-30 and p_above(-equal) == pytest.approx(1.0) and half_width(equal) == 0.0
    assert p_above(0 * equal) == 0.5


def test_one_value_has_no_standard_error():
    with pytest.raises(SettingError, match="at least 2 values; got 1"):
        half_width(torch.ones(1))
