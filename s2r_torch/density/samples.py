"""Guards on samples: what no density can be estimated from is refused at the door, with the place where it came.

>>> check_samples(torch.zeros(0, 1), obs_dim=1)
Traceback (most recent call last):
    ...
s2r_torch.errors.ObservationError: expected n >= 1 samples; got 0; likely cause: an empty budget
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor

from s2r_torch.errors import ObservationError

FEW, POINT = 16, 1e-3  # samples that make a state suspicious; bandwidths that are no wider than a point
ROWS = 64  # rows side by side, so that a minimum over few columns runs over long vectors


class SampleError(ObservationError):
    """Samples that no density can be estimated from. Densities know columns and indices; `named` puts names in place.

    Args:
        expected: what was wanted.
        got: what came, with {} for each of the columns.
        cause: why, likely.
        columns: coordinates at fault.
        index: of the state at fault in a batch of states, for example (b, s).
    """

    def __init__(
        self, *, expected: str, got: str, cause: str, columns: Sequence[int] = (), index: tuple[int, ...] = ()
    ):
        self._got, self._columns, self.index = got, columns, index
        where = f" at index {index}" if index else ""
        super().__init__(expected=expected, got=got.format(*map("coordinate {}".format, columns)) + where, cause=cause)

    def at(self, index: tuple[int, ...]) -> SampleError:
        """The same of a state that is found elsewhere."""
        return SampleError(expected=self.expected, got=self._got, cause=self.cause, columns=self._columns, index=index)

    def named(self, names: Sequence[str], where: Callable[[tuple[int, ...]], str]) -> ObservationError:
        """The same with sensors and places by their names."""
        got = self._got.format(*(repr(names[j]) for j in self._columns))
        return ObservationError(expected=self.expected, got=f"{got} {where(self.index)}".rstrip(), cause=self.cause)


@contextmanager
def by_name(names: Sequence[str], where: Callable[[tuple[int, ...]], str]) -> Iterator[None]:
    """Within it, samples are refused by the names of their sensors and places.

    Args:
        names: of the d sensors.
        where: the place of an index into the leading sizes of the samples, in words; () where there are none.
    """
    try:
        yield
    except SampleError as error:
        raise error.named(names, where) from error


def check_samples(x: Tensor, obs_dim: int) -> tuple[list[float], list[float]]:
    """The least and the greatest value of each column of samples `[..., n, d]`, which are floating and finite.

    Raises:
        ObservationError: no tensor, wrong shape or dtype, a gradient, no samples, NaN or inf (how many, and where the
            first is).
    """
    if not isinstance(x, Tensor):
        raise ObservationError(
            expected="samples in a torch.Tensor", got=type(x).__name__, cause="an array or a list: use torch.as_tensor"
        )
    if x.ndim < 2 or x.shape[-1] != obs_dim:
        raise ObservationError(
            expected=f"samples of shape [..., n, {obs_dim}]",
            got=str(list(x.shape)),
            cause="the grid is for other sensors",
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ObservationError(
            expected="float32 or float64 samples", got=str(x.dtype), cause="observations were rounded"
        )
    if x.requires_grad:
        raise ObservationError(
            expected="samples without a gradient", got="requires_grad=True", cause="estimates have none: use x.detach()"
        )
    if x.numel() == 0:
        raise ObservationError(expected="n >= 1 samples", got="0", cause="an empty budget")
    low, high = _column_bounds(x)
    if not all(map(math.isfinite, low + high)):
        finite = torch.isfinite(x).all(-1)
        bad = (~finite).flatten().nonzero().flatten()
        lead, i = divmod(int(bad[0]), finite.shape[-1])
        raise SampleError(
            expected="finite observations",
            got=f"{len(bad)} of {finite.numel()} with NaN or inf, the first as sample {i}",
            cause="a broken sensor or a simulator that diverged; one NaN would spoil the whole density",
            index=index_of(lead, finite.shape[:-1]),
        )
    return low, high


def varies(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns vary, `[..., d]`, and which differ from which, `[..., d, d]`, over samples `[..., n, d]`.

    Cost:
        O(states) where the first and the last sample tell; only states where they do not are read in full.
    """
    first, last = x[..., 0, :], x[..., -1, :]
    moves = first != last
    if not bool(moves.all()):
        moves = moves | (x != x[..., :1, :]).any(-2)
    d = x.shape[-1]
    if d == 1:
        return moves, torch.ones_like(moves)[..., None]
    differ = (first[..., :, None] != first[..., None, :]) | torch.eye(d, dtype=torch.bool)
    for i, j in combinations(range(d), 2):
        if not bool(differ[..., i, j].all()):
            differ[..., i, j] |= (x[..., i] != x[..., j]).any(-1)
            differ[..., j, i] = differ[..., i, j]
    return moves, differ


def check_varies(moves: Tensor, differ: Tensor, n: int) -> None:
    """Raises ObservationError when n >= 2 samples have a column that is constant or equals another (see `varies`)."""
    if n < 2:
        return
    if not bool(moves.all()):
        lead, j = divmod(int((~moves).flatten().nonzero()[0]), moves.shape[-1])
        raise SampleError(
            expected="samples that vary",
            got=f"{{}} has one value in all {n} samples",
            cause="a stuck sensor; its law has no density (Assumption 3)",
            columns=(j,),
            index=index_of(lead, moves.shape[:-1]),
        )
    if not bool(differ.all()):
        d = moves.shape[-1]
        lead, pair = divmod(int((~differ).flatten().nonzero()[0]), d * d)
        raise SampleError(
            expected="coordinates that differ",
            got=f"{{}} and {{}} agree in all {n} samples",
            cause="a duplicated column; their joint law has no density (Assumption 3)",
            columns=divmod(pair, d),
            index=index_of(lead, moves.shape[:-1]),
        )


def check_scattered(x: Tensor, bandwidth: tuple[float, ...]) -> None:
    """Raises ObservationError when more than half of a state's samples `[..., n, d]` are one point in a coordinate.

    Of such a law a kernel estimate is a spike whose integral depends on where the nodes lie: 0.77 or 1.5, say, not 1.

    Cost:
        `FEW` samples of each state; only states that those make suspicious are read in full.
    """
    n, d = x.shape[-2:]
    if n < FEW:  # too few to say
        return
    states, width = x.reshape(-1, n, d), x.new_tensor(bandwidth) * POINT
    few = states[:, :: n // FEW].sort(-2).values
    suspects = (few[:, 3:] - few[:, :-3] <= 2 * width).any(-1).any(-1).nonzero().flatten()  # four of them are one point
    near = (states[suspects] - states[suspects].median(-2, keepdim=True).values).abs() <= width
    share = near.double().mean(-2)  # [suspects, d]
    if bool((share > 0.5).any()):
        which, j = divmod(int(share.argmax()), d)
        raise SampleError(
            expected="samples that vary",
            got=f"{{}} has one value in {float(share[which, j]):.0%} of {n} samples",
            cause="a sensor that is stuck most of the time, or cut at its range; its law has no density (Assumption 3)",
            columns=(j,),
            index=index_of(int(suspects[which]), x.shape[:-2]),
        )


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index (b, s) of a flat position in a batch; () when there is no batch."""
    index = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return tuple(reversed(index))


def _column_bounds(x: Tensor) -> tuple[list[float], list[float]]:
    """Minimum and maximum of each column of `[..., d]`; NaN where there is one."""
    if x.shape[-1] == 1:
        return [float(x.amin())], [float(x.amax())]
    x = x.reshape(-1, x.shape[-1])
    body = len(x) // ROWS * ROWS
    if body:
        wide = x[:body].reshape(body // ROWS, -1)
        wide = torch.stack([wide.amin(0), wide.amax(0)]).reshape(-1, x.shape[-1])
        x = torch.cat([wide, x[body:]])
    return x.amin(0).tolist(), x.amax(0).tolist()
