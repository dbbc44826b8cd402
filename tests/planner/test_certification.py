"""The forecast of how many simulators a certificate needs, against certificates."""

import math

import numpy as np
import pytest
import torch

from s2r_torch.assurance.confidence import betting
from s2r_torch.errors import SettingError
from s2r_torch.planner.certification import certification_simulators, certification_slack

LAWS = {
    "coin": (lambda g, size: g.binomial(1, 0.7, size).astype(float), 0.7, math.sqrt(0.21)),
    "beta(8, 2)": (lambda g, size: g.beta(8, 2, size), 0.8, math.sqrt(0.16 / 11)),
    "beta(80, 20)": (lambda g, size: g.beta(80, 20, size), 0.8, math.sqrt(0.16 / 101)),
    "two worlds": (lambda g, size: np.where(g.random(size) < 0.2, 0.2, 0.95), 0.8, 0.3),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("epsilon", [0.03, 0.1])
def test_the_forecast_suffices_and_is_not_wasteful(law, epsilon):
    draw, mean, spread = LAWS[law]
    M = certification_simulators(epsilon, 0.05, spread)
    returns = torch.from_numpy(draw(np.random.default_rng(0), (400, M)))
    slack = mean - float(betting(returns, 0.05).mean())
    assert 0.5 * epsilon < slack < 1.15 * epsilon


def test_it_is_the_least_number():
    for epsilon in (0.01, 0.1, 0.5):
        for spread in (0.0, 0.1, 0.5):
            M = certification_simulators(epsilon, 0.1, spread)
            assert certification_slack(M, 0.1, spread) <= epsilon * (1 + 1e-9)
            assert M == 1 or certification_slack(M - 1, 0.1, spread) > epsilon


@pytest.mark.parametrize("wrong", [(0.0, 0.1, 0.5), (0.1, 1.0, 0.5), (0.1, 0.1, 0.6), (math.nan, 0.1, 0.5)])
def test_numbers_are_checked(wrong):
    with pytest.raises(SettingError):
        certification_simulators(*wrong)
