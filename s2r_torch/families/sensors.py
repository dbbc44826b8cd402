r"""Sensors: readings of latent numbers under theta, with quadrature. `AffineSensor` is ready to use.

    x = gain(theta) R(rotation(theta)) (latent - centre) + offset(theta) + width(theta) * noise

>>> sensor = AffineSensor(("row", "column"), offset=lambda t: t[:, :2], width=lambda t: 0.1 + 0.2 * t[:, 2])
>>> theta = torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64)
>>> x, weight = sensor.quadrature(theta, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
>>> x.shape, [round(v, 6) for v in (weight[..., None] * x).sum(2).flatten().tolist()]
(torch.Size([1, 1, 25, 2]), [0.5, 0.5])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.families.contract import names_of
from s2r_torch.families.noise import bump_draws, product_nodes, require_smoothness
from s2r_torch.given import taking
from s2r_torch.plain import as_python, real_numbers, require_count
from s2r_torch.text import printable

OfTheta = (
    float | Sequence[float] | Callable[[Tensor], Tensor]
)  # a number, one per coordinate, or theta -> [B] or [B, d]
NOISES = ("bump", "gaussian")


class Sensor(Protocol):
    """Readings of latent numbers under theta; `quadrature` may be missing, then the family has no ground truth.

    Without a box (`low` and `high` None) the family takes one from simulation.
    """

    @property
    def low(self) -> tuple[float, ...] | None: ...

    @property
    def high(self) -> tuple[float, ...] | None: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, d] at latent [B, n, l] under theta [B, k]; row b consumes generator b alone."""

    def quadrature(self, theta: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Points x [B, xi, m, d] and weights [B, xi, m] of the readings at latent [xi, l]."""


def require_sensor(sensor: object) -> None:
    """Raises SettingError unless it has what a `Sensor` has."""
    missing = [part for part in ("low", "high", "names", "read") if not hasattr(sensor, part)]
    if missing or isinstance(sensor, type):
        raise SettingError(
            expected="a sensor with low, high, names and read(theta, latent, generators), such as an AffineSensor",
            got=f"{printable(type(sensor).__name__)} without {', '.join(missing) or 'an object'}",
            cause="no sensor, its class in place of one, or a function in place of an object",
        )


def readings_of(sensor: Sensor, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """What a sensor reads; raises ObservationError unless it is a tensor `[B, n, d]`."""
    x = sensor.read(theta, latent, generators)
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[:2] != latent.shape[:2]:
        shape = f" of shape {list(x.shape)}" if hasattr(x, "shape") else ""
        raise ObservationError(
            expected=f"a tensor [B, n, d] from read of the sensor, here {[*latent.shape[:2]]} and d",
            got=f"{type(x).__name__}{shape}",
            cause="an array (torch.as_tensor), or one number per reading without its own axis (x[..., None])",
        )
    return x


@taking(names=object, columns=object, noise=object, smoothness=object, points=object)
@dataclass(frozen=True)
class AffineSensor:
    """Latent numbers moved, turned and scaled by theta, with noise whose width theta may decide (`Sensor`).

    Args:
        names: one per reading.
        low: lower edges of the box of readings; None proposes it from simulation.
        high: upper edges.
        columns: which latent numbers are read, one per name; the first ones by default.
        centre: what is subtracted from them first, a number or one per coordinate.
        gain: factor; a number, one per coordinate, or a function of theta `[B, k]` that returns `[B]` or `[B, d]`.
        rotation: angle in radians, anticlockwise, of two readings; a number or a function of theta.
        offset: what is added; as `gain`.
        width: of the noise, >= 0: half-width of `bump`, standard deviation of `gaussian`; as `gain`.
        noise: `bump` (bounded, `noise.py`) or `gaussian`.
        smoothness: k of the bump density.
        points: of the quadrature, per coordinate.

    Raises:
        SettingError: an unknown noise, numbers that do not fit the names, or a rotation of other than two readings.
    """

    names: tuple[str, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    columns: tuple[int, ...] | None = None
    centre: float | Sequence[float] = 0.0
    gain: OfTheta = 1.0
    rotation: OfTheta = 0.0
    offset: OfTheta = 0.0
    width: OfTheta = 0.1
    noise: str = "bump"
    smoothness: int = 2
    points: int = 5

    def __post_init__(self):
        object.__setattr__(self, "names", names_of(self.names))
        d = len(self.names)
        require_smoothness(self.smoothness)
        if self.noise not in NOISES:
            raise SettingError(expected=f"noise among {NOISES}", got=repr(self.noise), cause="a typo")
        for name in ("low", "high", "columns"):
            given = getattr(self, name)
            if given is not None and len(real_numbers(name, given) if name != "columns" else given) != d:
                raise SettingError(
                    expected=f"{d} numbers in {name}, one per name {self.names}", got=str(given), cause="another d"
                )
        if (self.low is None) != (self.high is None) or d < 1:
            raise SettingError(
                expected="names, and both edges of the box or none", got=f"{self.low}, {self.high}", cause="a slip"
            )
        require_count("points", self.points)
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(require_count("columns", c, least=0) for c in self.columns))
        for name in ("centre", "gain", "rotation", "offset", "width"):
            _require_parameter(name, getattr(self, name), 1 if name == "rotation" else d)
        if self._turns and d != 2:
            raise SettingError(
                expected="two readings to rotate", got=f"{d}: {self.names}", cause="a rotation is in a plane"
            )

    def read(self, theta: Tensor, latent: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws x [B, n, d] at latent [B, n, l] under theta [B, k]; row b consumes generator b alone."""
        x = self._draws(latent.shape[1], generators)
        return x.mul_(self._width(theta)).add_(self._of("offset", theta)).add_(self._view(theta, latent))

    def quadrature(self, theta: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Points [B, xi, m, d] and weights [B, xi, m] of the readings at latent [xi, l]."""
        nodes, weights = self._nodes()
        centres = self._view(theta, latent.expand(len(theta), *latent.shape)) + self._of("offset", theta)
        x = centres[:, :, None] + self._width(theta)[:, :, None] * nodes
        return x, weights.expand(x.shape[:3])

    @property
    def _turns(self) -> bool:
        return callable(self.rotation) or self.rotation != 0

    def _view(self, theta: Tensor, latent: Tensor) -> Tensor:
        """gain R(rotation) (latent - centre) [B, n, d]."""
        columns = self.columns or tuple(range(len(self.names)))
        if max(columns) >= latent.shape[-1]:
            raise SettingError(
                expected=f"at least {max(columns) + 1} latent numbers, for the readings {self.names}",
                got=str(latent.shape[-1]),
                cause="`columns`, or `latent` of the family, leaves some out",
            )
        seen = latent[..., columns] - torch.as_tensor(self.centre, dtype=torch.float64)
        gain = self._of("gain", theta)
        if not self._turns:
            return gain * seen
        # one angle at a time: a vectorised sine may round differently in a batch of another size
        angles = self._of("rotation", theta)[:, 0, 0].tolist()
        cosine, sine = (
            gain * torch.tensor([turn(a) for a in angles], dtype=torch.float64)[:, None, None]
            for turn in (math.cos, math.sin)
        )
        one, two = seen.unbind(-1)
        first = cosine[..., 0] * one - sine[..., 0] * two
        return torch.stack([first, sine[..., -1] * one + cosine[..., -1] * two], -1)

    def _width(self, theta: Tensor) -> Tensor:
        """The width of the noise [B, 1, 1] or [B, 1, d]."""
        width = self._of("width", theta)
        if not bool((width >= 0).all()):
            raise SettingError(
                expected="a width of the noise >= 0", got=f"{float(width.min()):g}", cause="a sign, or a prior too wide"
            )
        return width

    def _of(self, name: str, theta: Tensor) -> Tensor:
        """A parameter [B, 1, 1] or [B, 1, d] under theta [B, k]."""
        value: OfTheta = getattr(self, name)
        if not callable(value):
            given = torch.as_tensor(value, dtype=torch.float64)
            return given.expand(len(theta), 1, *given.shape) if given.ndim else given.expand(len(theta), 1, 1)
        given = torch.as_tensor(value(theta), dtype=torch.float64)
        shapes = ((len(theta),), (len(theta), 1), (len(theta), len(self.names)))
        if given.shape not in shapes:
            shape = f"[B] or [B, {len(self.names)}]"
            raise SettingError(
                expected=f"{name}: {shape} numbers from a function of theta [B, k], B = {len(theta)}",
                got=f"shape {list(given.shape)}",
                cause="theta[0] in place of theta[:, 0], or a matrix in place of one number per reading",
            )
        return given.reshape(len(theta), 1, -1)

    def _draws(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Noise [B, n, d] of width 1."""
        d = len(self.names)
        if self.noise == "bump":
            return bump_draws(d * n, self.smoothness, generators).reshape(-1, n, d)
        return torch.stack([torch.randn(n, d, generator=g, dtype=torch.float64) for g in generators])

    def _nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes [m, d] and weights [m] of that noise."""
        d = len(self.names)
        if self.noise == "bump":
            return product_nodes(self.points, self.smoothness, d)
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.points)
        axes = [torch.from_numpy(nodes)] * d, [torch.from_numpy(weights / weights.sum())] * d
        grid, weight = (torch.cartesian_prod(*a).reshape(-1, d) for a in axes)
        return grid, weight.prod(-1)


def _require_parameter(name: str, value: object, d: int) -> None:
    """Raises SettingError unless it is a function, a finite number or d of them."""
    if callable(value):
        return
    given = as_python(value)
    numbers = real_numbers(name, given if isinstance(given, Sequence) else (given,))
    if len(numbers) not in (1, d) or not all(map(math.isfinite, numbers)):
        expected = f"{name}: a finite number, {d} of them, or a function of theta [B, k]"
        raise SettingError(expected=expected, got=printable(repr(value), 80), cause="numbers of other readings")


def uniform_prior(*ranges: tuple[float, float]) -> Callable[[int, torch.Generator], Tensor]:
    """A prior whose numbers are independent and uniform, each in its range.

    >>> uniform_prior((0, 1), (-3, 3))(5, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 2])
    """
    pairs = [real_numbers("ranges (low, high)", edges) for edges in ranges]
    if not pairs or not all(len(edges) == 2 and -math.inf < edges[0] <= edges[1] < math.inf for edges in pairs):
        cause = "edges the other way round, or numbers that are no pairs"
        raise SettingError(expected="ranges (low, high), finite, low <= high", got=str(ranges), cause=cause)
    low, high = torch.tensor(pairs, dtype=torch.float64).unbind(-1)

    def draw(n: int, generator: torch.Generator) -> Tensor:
        return low + (high - low) * torch.rand(n, len(low), generator=generator, dtype=torch.float64)

    return draw
