"""Means of few independent values: Student's t in place of normal quantiles.

For M independent normal values of one mean, t = mean / (standard deviation / sqrt(M)) has Student's law with M - 1
degrees of freedom where that mean is 0. Simulators are as noisy as their theta makes them: with unequal variances
|t| exceeds a quantile of level up to 0.083 no more often than with equal ones (Bakirov and Szekely 2006, "Student's
t-test for Gaussian scale mixtures"; Ibragimov and Mueller 2010), so that nothing here needs them to be equal.

>>> import torch
>>> values = torch.tensor([0.1, 0.3, 0.2, 0.2], dtype=torch.float64)
>>> round(half_width(values), 4), round(p_above(values), 4)
(0.1299, 0.0081)
"""

from __future__ import annotations

import math

import scipy
from torch import Tensor

from s2r_torch.errors import SettingError

LEAST = 1e-12  # standard error of values that are all equal


def half_width(values: Tensor, confidence: float = 0.95) -> float:
    """Half of the two-sided interval of the mean of values [M], M >= 2; infinite at no confidence."""
    return float(scipy.special.stdtrit(_degrees(values), (1 + confidence) / 2)) * _error(values)


def p_above(values: Tensor) -> float:
    """The one-sided p-value that the mean of values [M], M >= 2, is not above 0."""
    return float(scipy.special.stdtr(_degrees(values), -float(values.mean()) / max(_error(values), LEAST)))


def _error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def _degrees(values: Tensor) -> int:
    if len(values) < 2:
        raise SettingError(expected="at least 2 values", got=str(len(values)), cause="no standard error of one")
    return len(values) - 1
