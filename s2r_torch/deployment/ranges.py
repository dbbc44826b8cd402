"""Readings at the ends of their sensors' ranges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec


def within(x: Tensor, spec: ProblemSpec) -> Tensor:
    """Readings with those that float32 rounded over an end of their range put back: -1.1 is -1.10000002 in float32.

    Drivers and environments clip in float32, and logs are float64: readings at an end would be off the grid.

    Args:
        x: `[..., d]` float32 or float64, NaN where there is none.
        spec: has the ranges.
    """
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in (spec.low, spec.high))
    low, high = spec.widened(low, -math.inf), spec.widened(high, math.inf)
    x = torch.where((x < low) & (x >= low.float()), low.to(x.dtype), x)
    return torch.where((x > high) & (x <= high.float()), high.to(x.dtype), x)
