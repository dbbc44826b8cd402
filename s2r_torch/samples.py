"""Guards on samples: what no density can be estimated from is refused at the door, with the place where it came.

>>> check_samples(torch.zeros(0, 1), obs_dim=1)
Traceback (most recent call last):
    ...
s2r_torch.errors.ObservationError: expected n >= 1 samples; got 0; likely cause: an empty budget
"""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.errors import ObservationError


def check_samples(x: Tensor, obs_dim: int) -> None:
    """Raises ObservationError unless x is `[..., n, d]` with n >= 1, floating and finite."""
    if x.ndim < 2 or x.shape[-1] != obs_dim:
        raise ObservationError(
            expected=f"samples of shape [..., n, {obs_dim}]",
            got=str(list(x.shape)),
            cause="the grid is for other sensors",
        )
    if not x.dtype.is_floating_point:
        raise ObservationError(
            expected="float32 or float64 samples", got=str(x.dtype), cause="observations were rounded"
        )
    if x.shape[-2] == 0:
        raise ObservationError(expected="n >= 1 samples", got="0", cause="an empty budget")
    finite = torch.isfinite(x).all(-1)
    if not bool(finite.all()):
        bad = (~finite).flatten().nonzero().flatten()
        raise ObservationError(
            expected="finite observations",
            got=f"{len(bad)} of {finite.numel()} with NaN or inf, the first{at_index(int(bad[0]), finite.shape)}",
            cause="a broken sensor or a simulator that diverged; one NaN would spoil the whole density",
        )


def check_varies(x: Tensor) -> None:
    """Raises ObservationError when a coordinate is constant, or equal to another one, over n >= 2 samples."""
    if x.shape[-2] < 2:
        return
    constant = (x == x[..., :1, :]).all(-2)  # [..., d]
    if bool(constant.any()):
        first = constant.flatten().nonzero()[0].item()
        lead, j = divmod(first, x.shape[-1])
        raise ObservationError(
            expected="samples that vary",
            got=f"coordinate {j} has one value in all {x.shape[-2]} samples{at_index(lead, x.shape[:-2])}",
            cause="a stuck sensor; its law has no density (Assumption 3)",
        )
    for j in range(1, x.shape[-1]):
        same = (x[..., j : j + 1] == x[..., :j]).all(-2)  # [..., j]
        if bool(same.any()):
            lead, i = divmod(same.flatten().nonzero()[0].item(), j)
            raise ObservationError(
                expected="coordinates that differ",
                got=f"coordinates {i} and {j} agree in all {x.shape[-2]} samples{at_index(lead, x.shape[:-2])}",
                cause="a duplicated column; their joint law has no density (Assumption 3)",
            )


def at_index(flat: int, shape: tuple[int, ...]) -> str:
    """' at index (b, s)' for a flat position in a batch; '' when there is no batch."""
    index = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return f" at index {tuple(reversed(index))}" if index else ""
