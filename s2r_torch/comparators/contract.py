"""What a comparator is: it knows what our own method knew before deployment; its policy is valued beside ours.

To add one, write a module with a frozen settings record, register it, and name its learner:

    @register_comparator("mine")
    @dataclass(frozen=True)
    class Mine:
        size: int = 4
        label = "mine"
        access = Access(simulators="yes, with reward")
        learner = MineLearner          # a frozen record; what it holds is saved with the run

        def fit(self, known: Known) -> MineLearner: ...

    MineLearner.attempt(worlds) -> Attempt

`comparators.mine.size=8` then runs it beside all others (docs/architecture.md, "Comparators").

One that learns from real episodes has a learner with a field `n`, its one sample size: `replace(learner, n=40)` is the
same learner with another one, and `compare.py compare=comparators` draws the curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from s2r_torch.base import Path
from s2r_torch.comparators.policies import each
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Act, Guard, Ledger, Rollouts, rollout
from s2r_torch.families.contract import GroundTruth, users
from s2r_torch.families.draws import Draws
from s2r_torch.given import require_having
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.problem import Problem
from s2r_torch.registry import Registry
from s2r_torch.rng import Seed

UNLABELLED, REWARDED = "real", "real_rewarded"  # what episodes in the worlds are counted as


@dataclass(frozen=True)
class Access:
    """Who sees what: a row of the table without which no comparison is fair."""

    reward: str = "no"  # rewards of the real world
    looks: str = "no"  # readings of the real world before acting
    simulators: str = "no"
    theta: str = "no"  # the simulators' hidden parameters
    chosen: str = "no"  # simulators at a theta of one's own choice
    graph: str = "no"  # the state graph of the real world
    predictors: str = "-"  # what is chosen from
    memory: str = "none"  # of a policy, while it acts


@dataclass(frozen=True)
class Drawn:
    """What `fit` draws from every simulator that it asks, so that a run can be forecast."""

    purpose: str  # that the episodes are counted as
    simulators: int | None  # None: those that F was trained on
    rollouts: int = 0  # whole episodes
    decisions: int = 0  # samples of every state (`tours.decisions`)


@dataclass(frozen=True, eq=False)
class Known:
    """What our own method knew before it was deployed, and nothing more.

    Args:
        problem: sizes, the discovered state graph, and the density grid.
        data: densities and transitions of the training simulators.
        draws: fresh simulators for a purpose; every episode is counted.
        train: (name of a network, its settings, members) -> it, trained as the class F was, on the same draws.
        seed: named stream of the run; comparators take children of their own.
        policy: ours, as it is deployed.
        ensemble: the whole class F, before anybody was eliminated.
    """

    problem: Problem
    data: TrainingData
    draws: Draws
    train: Callable[[str, dict, int], Net]
    seed: Seed
    policy: MetaPolicy
    ensemble: Ensemble

    @property
    def theta(self) -> Tensor:
        """The hidden parameters [B, k] of the training simulators: whoever reads them says so in its access."""
        return self.draws.theta("train", len(self.data.D))


@dataclass(frozen=True, eq=False)
class Worlds:
    """The held-out worlds in which policies are compared.

    Args:
        theta: `[W, k]` their hidden parameters; for families and evaluation, never for learners.
        draws: where their episodes are counted.
        purpose: as what, while policies are valued.
        seed: named stream.
    """

    theta: Tensor
    draws: Draws
    purpose: str
    seed: Seed

    def __len__(self) -> int:
        return len(self.theta)

    def first(self, count: int | None) -> Worlds:
        """The first so many of them; all of them for None."""
        return self if count is None else replace(self, theta=self.theta[:count])

    @cached_property
    def truth(self) -> GroundTruth | None:
        """Their ground truth, for evaluation; None where the family does not know it."""
        return self.draws.family.truth(self.theta)

    def guard(self, purpose: str, ledger: Ledger | None = None) -> Guard:
        """All of them side by side, counted under that name."""
        draws = self.draws if ledger is None else replace(self.draws, ledger=ledger)
        return draws.simulators_of(self.theta, purpose)

    def rewarded(self, world: int, ledger: Ledger | None = None) -> Guard:
        """One world as a learner from real rewards sees it: a simulator, B = 1, of a type that `deploy` cannot take."""
        simulators = self.draws.family.simulators(self.theta[world : world + 1], [world])
        return Guard(simulators, ledger or self.draws.ledger, REWARDED)

    def walk(self, sequences: tuple[Path, ...], n: int, seed: Seed, purpose: str) -> Rollouts:
        """n episodes along each of these sequences of H actions in every world: `[W, sequences * n, ...]`.

        Those who see no reward of the real world take `x` and leave `rewards` alone.
        """
        actions = torch.tensor(sequences, dtype=torch.int64).repeat_interleave(n, 0)  # [sequences n, H]
        act = lambda step, x: actions[:, step].expand(x.shape[:2]).contiguous()  # noqa: E731
        return rollout(self.guard(purpose), act, len(actions), seed)

    def one_by_one(self, learn: Callable[[Guard], tuple[Act, bool]]) -> Attempt:
        """Learns in every world by itself, from real rewards.

        Args:
            learn: a world -> a policy for it alone, and whether the learner's own test passed.
        """
        acts, passed, ledger = [], 0, Ledger()
        for world in range(len(self)):
            act, accepted = learn(self.rewarded(world, ledger))
            acts.append(act)
            passed += accepted
        episodes = sum(ledger.counts.values())
        self.draws.ledger.take_over(ledger, REWARDED)
        return Attempt(each(acts), rewarded=episodes / len(self), accepted=passed / len(self))


@dataclass(frozen=True, eq=False)
class Attempt:
    """A policy for the worlds, and what it cost to get it.

    Args:
        act: the policy, for all worlds at once: act(step, x [W, n, d]) -> actions [W, n].
        unlabelled: real episodes without reward before it acts, mean over the worlds.
        rewarded: real episodes with reward, mean over the worlds.
        simulator: simulator episodes beyond those of our own method.
        accepted: share of worlds in which the learner's own stopping test passed; 1 where it has none.
        note: what a reader of the table must know.
        exact: values [W] of the policy in environments of known truth, where `act` alone does not determine them
            (random actions, policies that see their own actions); None values `act`.
    """

    act: Act
    unlabelled: float = 0.0
    rewarded: float = 0.0
    simulator: int = 0
    accepted: float = 1.0
    note: str = ""
    exact: Callable[[GroundTruth], Tensor] | None = None

    @property
    def episodes(self) -> float:
        """All real episodes before it acts, mean over the worlds."""
        return self.unlabelled + self.rewarded


class Learner(Protocol):
    """What `fit` leaves: a frozen record of tensors, numbers and predictors.

    One that learns from real episodes has a field `n`: its one sample size.
    """

    def attempt(self, worlds: Worlds) -> Attempt:
        """Its policy in these worlds."""


class Comparator(Protocol):
    """Settings of one comparator, registered under its published name."""

    label: str  # in tables and figures
    access: Access
    learner: type  # of what `fit` returns
    # Optional: `drawn`, a tuple of `Drawn`; without it `fit` is taken to draw nothing.

    def fit(self, known: Known) -> Learner:
        """Learns what can be learned before the worlds are seen."""


def fitted_learner(name: str, comparator: Comparator, known: Known) -> Learner:
    """What a comparator learns before the worlds are seen; whatever its code raises is one error that names it.

    Raises:
        SettingError: it returned no learner.
        SimulatorError: it raised.
    """
    with users(f"fit of the comparator {name}", "a fault in its own code"):
        learner = comparator.fit(known)
    require_having(f"what fit of the comparator {name} returned", learner, ("attempt",), "a learner, with attempt")
    return learner


COMPARATORS = Registry(
    "comparator",
    {
        "open_loop": "s2r_torch.comparators.open_loop:OpenLoop",
        "blind": "s2r_torch.comparators.blind:Blind",
        "random": "s2r_torch.comparators.random_actions:RandomActions",
        "ours": "s2r_torch.comparators.ours:Ours",
        "bayes": "s2r_torch.comparators.bayes:Bayes",
        "identification": "s2r_torch.comparators.identification:Identification",
        "identification_oracle": "s2r_torch.comparators.identification:IdentificationOracle",
        "real_list": "s2r_torch.comparators.real_list:RealList",
        "lsvee": "s2r_torch.comparators.lsvee:LSVEE",
        "real_sweep": "s2r_torch.comparators.lsvee:RealSweep",
        "olive": "s2r_torch.comparators.olive:OLIVE",
        "history_fqi": "s2r_torch.comparators.randomisation:HistoryFQI",
        "few_rewards": "s2r_torch.comparators.few_rewards:FewRewards",
        "pcid": "s2r_torch.comparators.pcid:PCID",
        "cutler2015": "s2r_torch.comparators.repair:Cutler2015",
        "jiang2018": "s2r_torch.comparators.repair:Jiang2018",
    },
    parts=("label", "access", "fit", "learner"),
)
register_comparator = COMPARATORS.register
