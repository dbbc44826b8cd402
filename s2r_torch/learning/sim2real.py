"""Algorithm 1, Sim2Real: from simulators and a class of predictors to one that may be deployed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.patches import dense
from s2r_torch.episodes import Guard
from s2r_torch.errors import SettingError
from s2r_torch.graph import START, StateGraph
from s2r_torch.learning.calibration import density_b_bar
from s2r_torch.learning.elimination import Elimination, Judges, Knowledge, dfs_learn
from s2r_torch.learning.exploration import Exploration, all_of, explore
from s2r_torch.learning.learn_on_simulators import Choice, learn_on_simulators
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.sweep import sweep
from s2r_torch.planner.budget import Budget
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed


@dataclass(frozen=True, eq=False)
class Trial:
    """What Algorithm 1 is given beside the class: how to explore, how much to spend, how to eliminate.

    `oracle_b_bar` gives the budget's b_bar once the judges are explored, where an oracle knows it (known families);
    without it the budget's own b_bar holds. `look_at` gives the part of the whole graph that F was made for.
    """

    estimator: DensityEstimator
    merge: MergeSettings
    budget: Budget
    elimination: Elimination
    seed: Seed
    oracle_b_bar: Callable[[Tensor], float] | None = None  # b_bar from the judges' D_hat, where an oracle knows it
    on_call: Callable[[str, int, int], None] = lambda name, state, survivors: None
    look_at: Callable[[StateGraph], StateGraph] = all_of


@dataclass(frozen=True, eq=False)
class Outcome:
    """What Algorithm 1 returns: the exploration of its B simulators, and the predictor it chose."""

    exploration: Exploration
    choice: Choice


def sim2real(sample: Callable[[int], Guard], ensemble: Ensemble, trial: Trial) -> Outcome:
    """Finds a near-optimal meta-policy from simulators alone (Algorithm 1, Sim2Real).

    Args:
        sample: draws that many fresh simulators, i.i.d. from the prior; never those that F was trained on.
        ensemble: the class F.
        trial: densities, budget, rule and random stream.

    Returns:
        The exploration and the chosen predictor.

    Raises:
        GraphMismatchError: the judges' state graph differs from the one F was made for.
        RealizabilityError: no predictor survived.

    Paper deviation:
        phi and B come from the budget, where every schedule of theory.md is available. F is made before for a known
        state graph (theory.md C8), which the judges' exploration must find again.
    """
    judges, exploration = gather_judges(sample, ensemble, trial)  # lines 1-3
    knowledge = dfs_learn(START, Knowledge.blank(judges), judges)  # line 4
    V_hat_star = knowledge.V_hat[knowledge.best(), :, START].mean()  # line 5
    return Outcome(exploration, learn_on_simulators(knowledge, judges, float(V_hat_star)))  # line 6


def sim2real_by_sweep(sample: Callable[[int], Guard], ensemble: Ensemble, trial: Trial) -> Outcome:
    """Algorithm 1 with one backward sweep in place of its lines 4-6 (theory.md 3.3, Theorem R)."""
    judges, exploration = gather_judges(sample, ensemble, trial)
    knowledge = sweep(judges)
    return Outcome(exploration, Choice(knowledge.best(), knowledge, "swept"))


METHODS: dict[str, Callable[[Callable[[int], Guard], Ensemble, Trial], Outcome]] = {
    "sim2real": sim2real,
    "sweep": sim2real_by_sweep,
}


def method_named(name: str) -> Callable[[Callable[[int], Guard], Ensemble, Trial], Outcome]:
    """The method of that name."""
    if name not in METHODS:
        raise SettingError(expected=f"one of the methods {sorted(METHODS)}", got=repr(name), cause="a typo")
    return METHODS[name]


def gather_judges(sample: Callable[[int], Guard], ensemble: Ensemble, trial: Trial) -> tuple[Judges, Exploration]:
    """B fresh simulators, explored (Algorithm 1, lines 1-3): the judges of F."""
    simulators = sample(trial.budget.num_simulators)
    exploring = simulators.for_purpose("explore")
    seed = trial.seed.child("explore")
    n_dist = trial.budget.n_dist
    exploration = explore(exploring, trial.estimator, trial.merge, n_dist, seed, look_at=trial.look_at)
    ensemble.problem.graph.require_same(exploration.graph)
    budget, oracle = trial.budget, trial.oracle_b_bar
    if oracle is not None:
        budget = replace(budget, b_bar=oracle(dense(exploration.D_hat)))
    judges = Judges(
        simulators.for_purpose("eliminate"),
        exploration.D_hat,
        exploration.graph,
        ensemble,
        budget,
        _with_density_b_bar(trial.elimination, ensemble, exploration),
        trial.seed.child("eliminate"),
        trial.on_call,
    )
    return judges, exploration


def _with_density_b_bar(elimination: Elimination, ensemble: Ensemble, exploration: Exploration) -> Elimination:
    """What the calibrated rule allows an exact class, of which nothing but its densities errs; others as they are."""
    if elimination.rule != "calibrated" or not ensemble.exact:
        return elimination
    C_L = float(ensemble.lipschitz_bound().max())
    return replace(elimination, b_bar=density_b_bar(exploration.graph, C_L, exploration.band))
