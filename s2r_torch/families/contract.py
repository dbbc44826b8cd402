"""What a family of environments is: a prior over theta, a way to build simulators from theta, and a `ProblemSpec`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, Simulators, UnlabelledWorld
from s2r_torch.errors import S2RError, SettingError, SimulatorError
from s2r_torch.given import refuse_kind, require_having
from s2r_torch.graph import StateGraph
from s2r_torch.text import printable

WEIGHED = 1e-4  # from 1, of the sum of weights


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """What only an omniscient observer knows of B environments; for evaluation and tests, never for learning.

    Expectations over observations are quadratures: x ~ D[theta, s] is represented by m weighted points.

    Args:
        graph: the true state graph, states in depth-first order.
        x: `[B, xi, m, d]` quadrature points of every state's observation density.
        weight: `[B, xi, m]` their weights, summing to 1 over m.
        reward: `[B, xi, m, A]` mean reward of each action at each point, in units of total episode reward.
    """

    graph: StateGraph
    x: Tensor  # [B, xi, m, d]
    weight: Tensor  # [B, xi, m]
    reward: Tensor  # [B, xi, m, A]

    def __post_init__(self):
        (B, xi, m), A = self.weight.shape if self.weight.ndim == 3 else (0, 0, 0), self.graph.num_actions
        fits = self.x.shape[:-1] == (B, xi, m) and self.reward.shape == (B, xi, m, A) and xi == self.graph.num_states
        if not fits or (B and not bool(((self.weight.sum(-1) - 1).abs() < WEIGHED).all())):
            shapes = ", ".join(str(list(part.shape)) for part in (self.x, self.weight, self.reward))
            cause = "an axis left out, weights of another law, or rewards of other actions"
            expected = f"x [B, {self.graph.num_states}, m, d], weights [B, xi, m] of sum 1, rewards [B, xi, m, {A}]"
            raise SettingError(expected=expected, got=f"shapes {shapes}, or another sum", cause=cause)


@runtime_checkable
class Family(Protocol):
    """A prior over theta and the environments that theta makes."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> ProblemSpec: ...

    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, k], float64, i.i.d. from mu; consumes the generator."""

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> Simulators:
        """The simulators of theta [B, k], named by ids [B]."""

    def world(self, theta: Tensor, generator: torch.Generator) -> UnlabelledWorld:
        """The world of one theta [k], without any reward; keeps the generator."""

    def truth(self, theta: Tensor) -> GroundTruth | None:
        """The ground truth of theta [B, k], or None where the family does not know it."""

    # Optional: `known_class(grid, **settings) -> PredictorGroup`, a finite class whose first member is f* (mixture);
    # `trust(theta)`, of families that check theta when they make simulators: these were checked by another process;
    # and the two functions of `Likelihood`.

    def parameters(self) -> dict:
        """Keyword arguments (JSON values) that rebuild this family; stored in policy files."""


def require_family(name: str, value: Any) -> None:
    """Raises SettingError unless it has what every family has; what these parts do, `check_family` finds out."""
    require_having(name, value, ("name", "spec", "prior", "simulators", "world", "truth", "parameters"), "a family")
    if not isinstance(value.spec, ProblemSpec):
        refuse_kind(f"{name}.spec", value.spec, "ProblemSpec")


def known_truth(family: Family, theta: Tensor) -> GroundTruth:
    """The ground truth of theta [B, k], or SettingError where the family does not know it."""
    truth = family.truth(theta)
    if truth is None:
        raise SettingError(
            expected="a family that knows its ground truth", got=family.name, cause="nobody knows exact values there"
        )
    return truth


def names_of(names: Sequence[str] | str) -> tuple[str, ...]:
    """Names as a tuple; a single text is one name, not its letters."""
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (names,)
    odd = [name for name in listed if not isinstance(name, str)]
    if odd:
        raise SettingError(
            expected="names as text, in a tuple", got=printable(repr(names), 80), cause="numbers, or none"
        )
    return listed


@contextmanager
def users(what: str, cause: str = "a fault in the family's own code") -> Iterator[None]:
    """Around a user's code: whatever it raises becomes one SimulatorError that says what was being done."""
    try:
        yield
    except S2RError:
        raise
    except (Exception, SystemExit) as error:
        raise SimulatorError(
            expected=f"{what} to succeed", got=printable(f"{type(error).__name__}: {error}"), cause=cause
        ) from error


def truth(value: object) -> bool:
    """Whether a step says that an episode has ended.

    Raises:
        SimulatorError: text, of which "false" would pass for True, another number, such as NaN or a reward, or what has
            no truth, such as an array of two.
    """
    try:
        if not isinstance(value, str | bytes) and (value is None or value == bool(value)):
            return bool(value)
    except (ValueError, TypeError, RuntimeError):
        pass
    raise SimulatorError(
        expected="True or False for the end of an episode (terminated, truncated)",
        got=f"{printable(repr(value), 60)} of type {type(value).__name__}",
        cause="text from a protocol, or the values of a step in another order",
    )


def plain_number(value: object) -> float:
    """A number as a float; NaN for what is none. Text is none: a state "12" is not 1 and 2.

    >>> plain_number(3), plain_number("3")
    (3.0, nan)
    """
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # 10**400
        return math.nan


@runtime_checkable
class KnowsGraph(Protocol):
    """What families that know their state graph without knowing the truth have beside the rest of `Family`."""

    def known_graph(self) -> StateGraph | None:
        """The state graph, where it is known."""

    def mean_rewards(self, theta: Tensor) -> Tensor:
        """Mean rewards [B, xi, A] of `known_graph`, in units of total reward."""


@runtime_checkable
class Likelihood(Protocol):
    """What families that know how readings depend on theta may have beside the rest of `Family`."""

    def payoff_grid(self, count: int) -> Tensor:
        """About `count` equally likely theta [K, k], as far as they decide what pays; the other parts are 0."""

    def log_likelihood(self, theta: Tensor, states: Tensor, x: Tensor) -> Tensor:
        """log p(x_1 .. x_N | theta) [W, K], up to a number that is the same for all theta.

        The parts of theta that decide nothing but readings (offsets, headings) are integrated over their prior.

        Args:
            theta: `[K, k]`, as `payoff_grid` gives them.
            states: `[N]` the states of the graph that readings come from.
            x: `[W, N, d]` independent readings in W worlds.
        """
