"""LSVEE (Krishnamurthy, Agarwal, Langford 2016) in the real world, with reward; and one backward sweep there.

LSVEE is our own Algorithms 3-6 with one world and no densities, on the tree of action paths, because it knows no graph:

    F <- DFS-Learn((), F);  V* <- V_hat^f(()) of a survivor
    loop: roll a survivor out; stop if it earned V* - eps / 2; else DFS-Learn at what its paths met
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from s2r_torch.comparators.bank import Bank, bank_of
from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Act, Guard
from s2r_torch.errors import SettingError
from s2r_torch.families.layered import depth_first
from s2r_torch.graph import START, Path, StateGraph
from s2r_torch.learning.elimination import Elimination, Judges, Knowledge, dfs_learn
from s2r_torch.learning.learn_on_simulators import Choice, learn_on_simulators
from s2r_torch.learning.rules import RULES
from s2r_torch.learning.samples import Separate
from s2r_torch.learning.sweep import sweep
from s2r_torch.planner.budget import practical
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import OneOf, Positive, Range, Settings, Share, Size

MOST_PATHS = 100  # a tree of A^H paths beyond this is refused: give the graph
NO_GRID = 0  # points of the densities of a class that sees none


def path_tree(num_actions: int, horizon: int) -> StateGraph:
    """The graph in which every action path is a state of its own: (A^H - 1) / (A - 1) states.

    Raises:
        SettingError: more than `MOST_PATHS`.

    >>> path_tree(2, 3).states_per_layer
    [1, 2, 4]
    """
    paths = num_paths(num_actions, horizon)
    if paths > MOST_PATHS:
        raise SettingError(
            expected=f"at most {MOST_PATHS} action paths", got=str(paths), cause="a long horizon: give it the graph"
        )
    start: Path = ()
    return depth_first(start, lambda path: [(*path, a) for a in range(num_actions)], horizon)[0]


def num_paths(num_actions: int, horizon: int) -> int:
    """How many action paths of 0 .. H - 1 actions there are."""
    return sum(num_actions**step for step in range(horizon))


def lsvee(judges: Judges) -> Choice:
    """LSVEE in one world; `stopped` says whether its test passed. Whatever it says, the choice is the least risk.

    Paper deviation:
        No density error, so `krishnamurthy` and `sharp` are the rules. Learned paths are cached and not tested again;
        the demand test is one-sided; N_2 paths in total; the root is learned once.

    Cost:
        n_test episodes per Consensus, n_train per TD-Eliminate, max(n_rollouts, N_2) per round.
    """
    knowledge = dfs_learn(START, Knowledge.blank(judges), judges)
    V_star = knowledge.V_hat[knowledge.best(), :, START].mean()
    return learn_on_simulators(knowledge, judges, float(V_star))


@dataclass(frozen=True, eq=False)
class EliminationLearner:
    """Eliminates Q-functions of a bank by real rewards, in every world by itself."""

    acting: Ensemble  # the predictor of the bank
    D: Densities  # [N, xi, G] the bank's densities
    graph: StateGraph
    rule: str
    epsilon: float
    delta: float
    b_bar: float
    n_probes: int
    epsilon_test: float
    n: int  # episodes wherever a sample is wanted

    def attempt(self, worlds: Worlds) -> Attempt:
        """Learns in every world by itself."""
        bank = Bank.ensemble(self.acting.groups[0], self.D, self.acting.problem)
        seed = worlds.seed.child(type(self).__name__, self.n)

        def learn(world: Guard) -> tuple[Act, bool]:
            judges = self.judges(world, bank, seed)
            member, accepted = self.choose(judges)
            return bank.subset([member]).evaluator(judges.D_hat).policy_of(0), accepted

        return replace(worlds.one_by_one(learn), note=self.note)

    def judges(self, world: Guard, bank: Ensemble, seed: Seed) -> Judges:
        """One world that judges plain Q-functions, n episodes wherever a sample is wanted."""
        budget = practical(
            self.graph.horizon,
            self.graph.num_actions,
            bank.size,
            num_simulators=1,
            n_merge=1,
            n_dist=1,
            n_test=self.n,
            n_train=self.n,
            n_rollouts=self.n,
            n_probes=self.n_probes,
            n_real=1,
            epsilon=self.epsilon,
            delta=self.delta,
            b_bar=self.b_bar,
            epsilon_test_step=self.epsilon_test,
            num_states=self.graph.num_states,
        )
        unseen = torch.zeros(1, self.graph.num_states, NO_GRID)
        rule = Elimination(self.rule, "best")
        return Judges(world, unseen, self.graph, bank, budget, rule, seed, sampling=Separate)

    @property
    def note(self) -> str:
        """What a reader of the table must know."""
        return ""

    def choose(self, judges: Judges) -> tuple[int, bool]:
        """The Q-function that acts, and whether the learner's own test passed."""
        raise NotImplementedError


class LSVEELearner(EliminationLearner):
    """LSVEE in every world."""

    @property
    def note(self) -> str:
        paths = num_paths(self.graph.num_actions, self.graph.horizon)
        return "" if self.graph.num_states == paths else f"the graph is given, instead of its {paths} paths"

    def choose(self, judges: Judges) -> tuple[int, bool]:
        choice = lsvee(judges)
        return choice.member, choice.stopped == "accepted"


class SweepLearner(EliminationLearner):
    """One backward sweep of TD-Eliminate in every world: Theorem R with one simulator, the world, and its reward."""

    def choose(self, judges: Judges) -> tuple[int, bool]:
        return sweep(judges).best(), True


@register_comparator("lsvee")
@dataclass(frozen=True)
class LSVEE(Settings):
    """LSVEE on a bank of Q-functions of the simulators ("informed").

    Args:
        n: episodes wherever a sample is wanted, its one knob.
        size: Q-functions in the bank.
        rule: a name in `rules.RULES`.
        tree: whether states are action paths, as in the paper; else the discovered graph is given. None: where there
            are at most `MOST_PATHS` of them.
        epsilon: wanted suboptimality, in units of total episode reward.
        delta: wanted failure probability.
        b_bar: misspecification of the bank, > 0.
        n_probes: N_2, paths whose states are learned after a failed test.
        epsilon_test: disagreement that Consensus forgives, per layer below.
    """

    n: Size = 40
    size: Size = 64
    rule: Annotated[str, OneOf(RULES)] = "sharp"
    tree: bool | None = None
    epsilon: Positive = 0.05
    delta: Share = 0.1
    b_bar: Annotated[float, Range(0)] = 0.02
    n_probes: Size = 8
    epsilon_test: Positive = 0.05

    label = "LSVEE (Krishnamurthy 2016)"
    access = Access(
        reward="yes", simulators="through the bank", graph="tree of paths", predictors="bank of Q-functions"
    )
    learner: ClassVar[type[EliminationLearner]] = LSVEELearner

    def fit(self, known: Known) -> EliminationLearner:
        """No episodes."""
        graph, spec = known.problem.graph, known.problem.spec
        tree = num_paths(spec.num_actions, spec.horizon) <= MOST_PATHS if self.tree is None else self.tree
        return self.learner(
            *bank_of(known, self.size),
            path_tree(spec.num_actions, spec.horizon) if tree else graph,
            self.rule,
            self.epsilon,
            self.delta,
            self.b_bar,
            self.n_probes,
            self.epsilon_test,
            self.n,
        )


@register_comparator("real_sweep")
@dataclass(frozen=True)
class RealSweep(LSVEE):
    """One backward sweep on the discovered graph."""

    tree: bool | None = False

    label = "sweep with real rewards, B = 1"
    access = Access(
        reward="yes", simulators="through the bank", graph="discovered there", predictors="bank of Q-functions"
    )
    learner = SweepLearner
