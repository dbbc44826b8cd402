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

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from s2r_torch.comparators.policies import each
from s2r_torch.defaults import plain_torch
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Act, Guard, Ledger, Rollouts, rollout
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth, users
from s2r_torch.families.draws import Draws
from s2r_torch.given import refuse_kind, taking
from s2r_torch.graph import Path, StateGraph
from s2r_torch.held import faults_of, untouched
from s2r_torch.plain import as_python, is_real, require_count
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.problem import Problem
from s2r_torch.registry import Registry
from s2r_torch.rng import Seed
from s2r_torch.schema import arguments
from s2r_torch.text import printable

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
        whole: the discovered state graph before it was pruned.
    """

    problem: Problem
    data: TrainingData
    draws: Draws
    train: Callable[[str, dict, int], Net]
    seed: Seed
    policy: MetaPolicy
    ensemble: Ensemble
    whole: StateGraph

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
        if count is not None:
            require_count("worlds", count)
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
        if not 0 <= require_count("world", world, least=0) < len(self):
            cause = "an index of other worlds"
            raise SettingError(expected=f"a world in 0 .. {len(self) - 1}", got=str(world), cause=cause)
        simulators = self.draws.family.simulators(self.theta[world : world + 1], [world])
        return Guard(simulators, ledger or self.draws.ledger, REWARDED)

    def walk(self, sequences: tuple[Path, ...], n: int, seed: Seed, purpose: str) -> Rollouts:
        """n episodes along each of these sequences of H actions in every world: `[W, sequences * n, ...]`.

        Those who see no reward of the real world take `x` and leave `rewards` alone.
        """
        H = self.draws.family.spec.horizon
        if {len(sequence) for sequence in sequences} != {H}:
            got, cause = printable(sequences, 80), "paths of a cover have H - 1 actions: (*path, 0)"
            raise SettingError(expected=f"sequences of {H} actions", got=got, cause=cause)
        actions = torch.as_tensor(sequences, dtype=torch.int64).repeat_interleave(n, 0)  # [sequences n, H]
        act = lambda step, x: actions[:, step].expand(x.shape[:2]).contiguous()  # noqa: E731
        return rollout(self.guard(purpose), act, len(actions), seed)

    def one_by_one(self, learn: Callable[[Guard], tuple[Act, bool]]) -> Attempt:
        """Learns in every world by itself, from real rewards.

        Args:
            learn: a world -> a policy for it alone, and whether the learner's own test passed.
        """
        acts, passed, ledger = [], 0, Ledger()
        for world in range(len(self)):
            learnt = learn(self.rewarded(world, ledger))
            if not (isinstance(learnt, tuple | list) and len(learnt) == 2):
                refuse_kind("what was learned in one world", learnt, "a policy, and whether the learner's test passed")
            act, accepted = learnt
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

    def __post_init__(self):
        for name, most in (("unlabelled", math.inf), ("rewarded", math.inf), ("simulator", math.inf), ("accepted", 1)):
            value: Any = as_python(getattr(self, name))
            value = float(value) if name == "accepted" and isinstance(value, bool) else value
            if not (is_real(value) and 0 <= value <= most and math.isfinite(value)):
                expected = f"{name} >= 0 of an attempt" if most == math.inf else f"{name} of an attempt in [0, {most}]"
                got = printable(repr(getattr(self, name)), 80)
                raise SettingError(expected=expected, got=got, cause="means over the worlds, and a share")
            object.__setattr__(self, name, value)
        for name, value in (("act", self.act), ("exact", self.exact)):
            if not callable(value) and not (name == "exact" and value is None):
                refuse_kind(f"{name} of an attempt", value, "a function")

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


def configured(name: str, given: Mapping[str, Any], key: str) -> Comparator:
    """A comparator with its settings; SettingError for an unknown one, settings that it does not take, or a fault."""
    comparator = COMPARATORS.named(name)
    with faults_of(f"the comparator {name} to be made", "a fault in its own code"):
        return comparator(**arguments(comparator, given, key))


def fitted_learner(name: str, comparator: Comparator, known: Known) -> Learner:
    """What a comparator learns before the worlds are seen; whatever its code raises is one error that names it.

    Raises:
        SettingError: it returned no learner of its own class, or wrote into what others know, too.
        SimulatorError: it raised.
    """
    with own_code(f"fit of the comparator {name}", known.seed, name, known.data, known.policy):
        learner = comparator.fit(known)
    wanted = type(comparator).learner
    if type(learner) is not wanted:  # a run keeps it by that class's fields
        cause = "its class attribute `learner` names another class"
        refuse_kind(f"what fit of the comparator {name} returned", learner, wanted.__name__, cause)
    return learner


@contextmanager
def own_code(what: str, seed: Seed, name: str, *shared: object) -> Iterator[None]:
    """Around a comparator's own code: one error, torch's defaults as they were, global streams that the run seeds."""
    streams = seed.child("global", name).as_global(torch.device("cpu"))
    with plain_torch(), streams, untouched(what, *shared), users(what, "a fault in its own code"):
        yield


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


def require_labels(names: Iterable[str]) -> None:
    """Raises SettingError where tables would call two of these comparators alike."""
    labels = {name: COMPARATORS.named(name).label for name in names}
    alike = [name for name, label in labels.items() if list(labels.values()).count(label) > 1]
    if alike:
        got = f"{', '.join(alike)}, all called {labels[alike[0]]!r}"
        raise SettingError(expected="comparators with labels of their own", got=got, cause="a class that was copied")


TAKEN = ("optimal", "deployed")  # what tables call the best policy, and ours


@taking(name=object)
def register_comparator(name: str) -> Callable[[Any], Any]:
    """A decorator that makes a comparator known by name.

    Raises:
        SettingError: something else has that name, or the class does not say what it is.
    """
    if name in TAKEN:
        raise SettingError(expected="a name for a comparator", got=repr(name), cause=f"tables call others {TAKEN}")
    add = COMPARATORS.register(name)

    def checked(cls: Any) -> Any:
        what = f"of comparator {name!r}"
        if not isinstance(getattr(cls, "access", Access()), Access):
            refuse_kind(f"access {what}", cls.access, "an Access, such as Access(looks='yes')")
        if not isinstance(getattr(cls, "label", "?"), str) or not getattr(cls, "label", "?").strip():
            refuse_kind(f"label {what}", cls.label, "text, for tables and figures")
        drawn = getattr(cls, "drawn", ())
        decided = isinstance(drawn, property | cached_property)  # by settings
        if not decided and not (isinstance(drawn, tuple | list) and all(isinstance(one, Drawn) for one in drawn)):
            refuse_kind(f"drawn {what}", drawn, "a tuple of Drawn")
        learner = getattr(cls, "learner", Access)
        if not (isinstance(learner, type) and is_dataclass(learner)):
            cause = "a run keeps what fit returns by its fields: @dataclass(frozen=True, eq=False) above the class"
            refuse_kind(f"learner {what}", learner, "a dataclass with attempt(worlds)", cause)
        return add(cls)

    return checked
