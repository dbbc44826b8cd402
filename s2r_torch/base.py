"""The vocabulary: problems, simulators, worlds without rewards, classes of predictors.

Shape legend, used in every docstring:

    B  simulators (index b)            xi  discovered states (index s)     H  horizon (steps 0 .. H-1)
    F  predictors (index f)            A   actions (index a)               G  points of the density grid
    n  samples or episodes             d   observation dimension           k  numbers in theta
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.plain import as_python, is_real, real_numbers, require_count
from s2r_torch.text import printable

MOST_LETTERS = 100  # of a sensor's name
MOST_ACTIONS = 4096
CUT_FINE = "a continuous action cut fine: list a few"
MOST_STEPS = 400  # H: states are found depth first, by calls inside each other
EVERY_TICK = "a decision at every tick: let one action stand for several steps"


@dataclass(frozen=True)
class ProblemSpec:
    """What is known of a problem before anything is drawn (paper section 3.1).

    Args:
        num_actions: A.
        horizon: H, the number of decisions in every episode.
        max_states_per_layer: S, an upper bound.
        obs_dim: d.
        low: lower edge of the observation box, per coordinate.
        high: upper edge of the observation box, per coordinate.
        obs_names: what the coordinates are called, the columns of recorded episodes; defaults to x_1 .. x_d.
        reward_scale: raw rewards are divided by it, so that an episode's total lies in [0, 1] (theory.md C7).
        zeta: separation of states in sup norm (Assumption 5), where the family knows it.
        reward_width: width of the range of a single scaled reward, rho_R in (0, 1].
        beside: numbers of a reading after those d, which predictors see and densities do not: an encoder's.

    Raises:
        SettingError: a size below 1, an empty box, a number that is not finite, or a name that no file keeps as it is.
    """

    num_actions: int
    horizon: int
    max_states_per_layer: int
    obs_dim: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    obs_names: tuple[str, ...] = ()
    reward_scale: float = 1.0
    zeta: float | None = None
    reward_width: float = 1.0
    beside: int = 0

    def __post_init__(self):
        for name in ("num_actions", "max_states_per_layer", "obs_dim"):
            object.__setattr__(self, name, require_count(name, getattr(self, name)))
        object.__setattr__(self, "beside", require_count("beside", self.beside, least=0))
        object.__setattr__(self, "horizon", require_count("horizon", self.horizon, MOST_STEPS, EVERY_TICK))
        for name in ("low", "high"):
            object.__setattr__(self, name, real_numbers(name, getattr(self, name)))
        if not len(self.low) == len(self.high) == self.obs_dim:
            got, cause = f"{len(self.low)} and {len(self.high)}", "obs_dim and the observation box disagree"
            expected = f"{self.obs_dim} lower and upper bounds, one per coordinate"
            raise SettingError(expected=expected, got=got, cause=cause)
        if not all(-math.inf < lo < hi < math.inf for lo, hi in zip(self.low, self.high, strict=True)):
            got, cause = f"{self.low}, {self.high}", "an unbounded sensor"
            raise SettingError(expected="finite bounds with low < high", got=got, cause=cause)
        self._require_positive("reward_scale", math.inf, "a sign or unit error")
        self._require_positive("reward_width", 1, "the width before scaling")
        if self.zeta is not None:
            self._require_positive("zeta", math.inf, "None where nobody knows it")
        given: Any = as_python(self.obs_names)
        names = given if isinstance(given, tuple | list) else (given,)
        names = tuple(f"x_{i + 1}" for i in range(self.obs_dim)) if names in ((), [], ("",), (None,)) else tuple(names)
        object.__setattr__(self, "obs_names", names)
        _check_names(self.obs_names, self.obs_dim)

    @property
    def width(self) -> int:
        """Numbers of a reading, d + beside."""
        return self.obs_dim + self.beside

    def placed(self, x: Tensor) -> Tensor:
        """What densities live on, [..., d] of readings [..., d + beside]."""
        return x[..., : self.obs_dim] if self.beside else x

    def widened(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Readings [..., d + beside] at places [..., d], with one value beside."""
        return torch.nn.functional.pad(x, (0, self.beside), value=value)

    def _require_positive(self, name: str, most: float, cause: str) -> None:
        """Keeps a number above 0, at most `most`, as Python's; raises SettingError for anything else."""
        value: Any = as_python(getattr(self, name))
        if not (is_real(value) and 0 < value <= most and math.isfinite(value)):
            expected = f"{name} > 0" if most == math.inf else f"{name} in (0, {most}]"
            raise SettingError(expected=expected, got=printable(getattr(self, name)), cause=cause)
        object.__setattr__(self, name, value)


RESERVED = ("episode", "step", "action")  # columns of recorded episodes


def _check_names(names: tuple[str, ...], d: int) -> None:
    """Raises SettingError unless names are such that tables, spreadsheets and terminals keep as they are."""
    if len(names) != d:
        raise SettingError(expected=f"{d} obs_names, one per coordinate", got=f"{len(names)}", cause="a name too few")
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name or name != name.strip():
            problem = "a text without blanks at its ends"
        elif not name.isprintable() or '"' in name or len(name) > MOST_LETTERS:
            problem = f"at most {MOST_LETTERS} printable characters without quotation marks"
        elif name[0] in "=+-@#%/":
            problem = "a name that is no formula, number or comment"
        elif name in RESERVED:
            problem = f"a name other than {', '.join(RESERVED)}"
        elif name in names[:i]:
            problem = "different names"
        else:
            continue
        cause = "names that a file, a spreadsheet or a terminal would take for something else"
        got = printable(repr(name), 60)
        raise SettingError(expected=f"obs_names that columns of a table can have: {problem}", got=got, cause=cause)


@runtime_checkable
class Simulators(Protocol):
    """B simulators, stepped together; each runs n episodes at once.

    `reset` starts n fresh episodes in every simulator and keeps the generators (one per simulator, consumed) for
    their whole length. After the last of the H actions `step` returns None for the observation.
    Use through `episodes.Guard`, which counts and checks; never call `reset` and `step` directly.
    """

    spec: ProblemSpec
    ids: tuple[int, ...]  # [B] stable names of the simulators, which their random streams derive from

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Starts n episodes in every simulator; returns x [B, n, d], float64."""

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        """Takes actions [B, n] (int64); returns the next x [B, n, d] or None, and raw rewards r [B, n]."""

    def select(self, indices: Sequence[int]) -> Simulators:
        """The simulators at these positions, with their ids."""


@runtime_checkable
class UnlabelledWorld(Protocol):
    """Reality: it shows observations and has no reward at all."""

    spec: ProblemSpec

    def reset(self, n: int) -> Tensor:
        """Starts n episodes; returns x [n, d], float64."""

    def step(self, actions: Tensor) -> Tensor:
        """Takes actions [n] (int64); returns the next x [n, d]. Called at most H - 1 times per episode."""


class PredictorGroup(Protocol):
    """Members of the class F that are evaluated together; all share one state graph, density grid and horizon.

    A predictor sees the densities of all states, each on the grid of its own layer, and the observation with its step.
    """

    size: int  # number of members

    def condition(self, D: Tensor, readings: float | None = None) -> Any:
        """Everything that depends on D [B, xi, G] alone, computed once and cached by the caller.

        Args:
            D: the densities.
            readings: how many readings are behind the density of a state, the geometric mean over states; None for as
                many as the members were ever shown. They may tell a noisy density by it.
        """

    def q(self, conditioned: Any, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) in [0, 1] for every member, simulator, sample and action: x [B, n, d] -> [size, B, n, A]."""

    def subset(self, members: Sequence[int]) -> PredictorGroup:
        """The group of these members only, physically smaller."""

    def lipschitz_bound(self) -> Tensor:
        """A certified bound [size], float64, on |f(D, x, a) - f(D', x, a)| / max |D - D'|, uniform in (x, a).

        Infinite where there is no certificate.
        """

    def recipe(self) -> dict:
        """JSON values from which `from_recipe` of the registered `kind` in it rebuilds these members."""

    def tensors(self) -> dict[str, Tensor]:
        """All numbers of these members that the recipe leaves out, by name."""
