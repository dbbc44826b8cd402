"""What a comparator is: it knows what our own method knew before deployment; its policy is valued beside ours.

To add one, write a module with a frozen settings record, register it, and name its learner:

    @register_comparator("mine")
    @dataclass(frozen=True)
    class Mine:
        size: int = 4
        learner = MineLearner          # a frozen record; what it holds is saved with the run

        def fit(self, known: Known) -> MineLearner: ...

    MineLearner.attempt(worlds) -> Attempt

`comparators.mine.size=8` then runs it beside all others (docs/architecture.md, "Comparators").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from s2r_torch.episodes import Act, Guard
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.draws import Draws
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.fit import TrainingData
from s2r_torch.problem import Problem
from s2r_torch.registry import Registry
from s2r_torch.rng import Seed


@dataclass(frozen=True, eq=False)
class Known:
    """What our own method knew before it was deployed, and nothing more.

    Args:
        problem: sizes, the discovered state graph, and the density grid.
        data: densities and transitions of the training simulators.
        draws: fresh simulators for a purpose; every episode is counted.
        train: (name of a network, its settings, members) -> it, trained as the class F was, on the same draws.
        seed: named stream of the run; comparators take children of their own.
    """

    problem: Problem
    data: TrainingData
    draws: Draws
    train: Callable[[str, dict, int], Net]
    seed: Seed


@dataclass(frozen=True, eq=False)
class Worlds:
    """The held-out worlds in which policies are compared.

    Args:
        theta: `[W, k]` their hidden parameters; for families and evaluation, never for learners.
        draws: where their episodes are counted.
        purpose: as what.
        seed: named stream.
    """

    theta: Tensor
    draws: Draws
    purpose: str
    seed: Seed

    def __len__(self) -> int:
        return len(self.theta)

    def rewarded(self, world: int) -> Guard:
        """One world as a learner from real rewards sees it: a simulator, B = 1, of a type that `deploy` cannot take."""
        simulators = self.draws.family.simulators(self.theta[world : world + 1], [world])
        return Guard(simulators, self.draws.ledger, "real_rewarded")


@dataclass(frozen=True, eq=False)
class Attempt:
    """A policy for the worlds, and what it cost to get it.

    Args:
        act: the policy, for all worlds at once: act(step, x [W, n, d]) -> actions [W, n].
        unlabelled: real episodes without reward, per world, before it acts.
        rewarded: real episodes with reward, per world.
        simulator: simulator episodes beyond those of our own method.
        note: what a reader of the table must know.
        exact: values [B] of the policy in environments of known truth, where `act` alone does not determine them
            (random actions, policies that see their own actions); None values `act`.
    """

    act: Act
    unlabelled: int = 0
    rewarded: int = 0
    simulator: int = 0
    note: str = ""
    exact: Callable[[GroundTruth], Tensor] | None = None


class Learner(Protocol):
    """What `fit` leaves: a frozen record of tensors, numbers and predictors."""

    def attempt(self, worlds: Worlds) -> Attempt:
        """Its policy in these worlds."""


class Comparator(Protocol):
    """Settings of one comparator, registered under its published name."""

    label: str  # in tables and figures
    learner: type  # of what `fit` returns

    def fit(self, known: Known) -> Learner:
        """Learns what can be learned before the worlds are seen."""


COMPARATORS = Registry(
    "comparator",
    {
        "open_loop": "s2r_torch.comparators.open_loop:OpenLoop",
        "blind": "s2r_torch.comparators.blind:Blind",
        "random": "s2r_torch.comparators.random_actions:RandomActions",
    },
)
register_comparator = COMPARATORS.register
