"""What the stages of a run leave: one frozen record each, which later stages read and nobody changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from s2r_torch.assurance.appraisal import Appraisal
from s2r_torch.assurance.diagnostics import Diagnosis, Finding
from s2r_torch.base import ProblemSpec
from s2r_torch.comparators.contract import COMPARATORS, Learner
from s2r_torch.comparators.policy_search import GridPolicy
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import KERNELS, make_kernel
from s2r_torch.density.patches import Densities, Patches
from s2r_torch.deployment.certificate import Certificate, Gap, Refusals
from s2r_torch.deployment.factors import Factors
from s2r_torch.deployment.likeness import Population, Reference
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.encoders.encoding import Encoding, rebuilt
from s2r_torch.episodes import Transitions
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family
from s2r_torch.families.encoded import EncodedFamily
from s2r_torch.files.records import Codec, Json, Made
from s2r_torch.graph import StateGraph
from s2r_torch.learning.calibration import Calibration
from s2r_torch.learning.elimination import Call, Knowledge
from s2r_torch.learning.exploration import Exploration, Visit
from s2r_torch.learning.learn_on_simulators import Choice, Round
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.sim2real import Outcome
from s2r_torch.planner.budget import Budget
from s2r_torch.planner.looking import Looking
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.lipschitz_estimate import LipschitzEstimate
from s2r_torch.predictors.registry import group_class
from s2r_torch.problem import Problem
from s2r_torch.runs.evaluation import Worth


@dataclass(frozen=True, eq=False)
class Encoded:
    """The frozen encoder that all later stages see readings through, and what must be known of it; None for none."""

    encoding: Encoding | None
    notes: tuple[str, ...] = ()

    def through(self, family: Family) -> Family:
        """The family as it is seen through the encoder."""
        return family if self.encoding is None else EncodedFamily(family, self.encoding)


@dataclass(frozen=True)
class Checked:
    """What is worth reading about the family; whatever would make the run wrong ended it."""

    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Explored:
    """The density estimator that holds for the whole run, and what it saw of the training simulators."""

    estimator: DensityEstimator
    merge: MergeSettings  # with the family's own zeta, where it declares one
    exploration: Exploration


@dataclass(frozen=True)
class NetEstimate:
    """How C_L of one network was chosen, where it was (`lipschitz_bound=auto`)."""

    net: str
    factor: float  # C_L over the estimate
    estimate: LipschitzEstimate


@dataclass(frozen=True, eq=False)
class Trained:
    """The class F before anybody is eliminated, and the transitions that it was trained on."""

    ensemble: Ensemble
    samples: tuple[Transitions, ...]  # [xi]
    estimates: tuple[NetEstimate, ...] = ()
    notices: tuple[str, ...] = ()  # what training falls short of


@dataclass(frozen=True, eq=False)
class Calibrated:
    """How far a trained class is from exact; None for a class that holds f*."""

    calibration: Calibration | None


@dataclass(frozen=True, eq=False)
class Learned:
    """What Algorithm 1 left, and the policy of the predictor that it chose."""

    budget: Budget
    outcome: Outcome
    meta_policy: MetaPolicy
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Appraised:
    """What the policy earns on fresh simulators, against what could be had; None where nobody asked."""

    appraisal: Appraisal | None

    @property
    def falls_short(self) -> bool:
        """Whether learning again is worth it."""
        return self.appraisal is not None and self.appraisal.falls_short

    @property
    def lost(self) -> float:
        """The share of what could be had that the policy lost; 0 where nobody asked."""
        return 1 - self.appraisal.policy / max(self.appraisal.optimum, 1e-12) if self.appraisal else 0.0

    def after(self, attempts: int) -> Appraised:
        """The same, where the run learned so often in all."""
        return Appraised(self.appraisal and replace(self.appraisal, attempts=attempts))


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """What data say about Assumptions 1-5; None where nobody asked."""

    diagnosis: Diagnosis | None


@dataclass(frozen=True, eq=False)
class Certified:
    """The policy as it is deployed, with what worlds are compared with; and what is promised of it, if anything."""

    meta_policy: MetaPolicy
    certificate: Certificate | None
    fallback: tuple[int, ...] | None = None  # the best fixed list of actions, for worlds that are refused


@dataclass(frozen=True, eq=False)
class Deployed:
    """What was seen in the held-out worlds, without any reward."""

    D_real: Densities  # [W, xi, G]
    episodes: int  # real ones, per world
    verdicts: dict[str, int]  # how many worlds were found consistent, doubtful, refused or untested


@dataclass(frozen=True, eq=False)
class Compared:
    """What the comparators learned before they saw any world."""

    learners: dict[str, Learner]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What everything is worth, after the fact."""

    worth: Worth  # of the deployed policies, in the held-out worlds
    looking: Looking  # against the number of real episodes
    values: dict[str, float]  # over the prior: `optimal`, and every comparator by its name
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Fitted:
    """What one comparator learned before it saw any world; None, and why, where it does not run on this family."""

    learner: Learner | None
    left_out: str


@dataclass(frozen=True, eq=False)
class Cell:
    """One comparator at one sample size."""

    name: str
    n: int | None  # its sample size, where it learns from real episodes
    seed: int
    values: Tensor  # [W] of its policy in every world
    optimal: Tensor  # [W] the best possible
    episodes: float  # real ones before it acts, mean over the worlds
    accepted: float  # share of worlds in which its own stopping test passed
    simulator: int  # simulator episodes beyond those of our own method
    note: str


def codec(comparators: tuple[str, ...]) -> Codec:
    """What writes and reads these records, with what those comparators learn."""
    return Codec([*RECORDS, *(COMPARATORS.named(name).learner for name in comparators)], MADE)


def require_kept(name: str, learner: Learner) -> None:
    """Raises SettingError unless a run can keep what a comparator learned, whether it keeps anything or not."""
    try:
        codec((name,)).pack(learner)
    except TypeError as error:
        raise SettingError(
            expected=f"a learner of the comparator {name} made of tensors, numbers, text, and tuples and maps of them",
            got=str(error),
            cause="a module, an array, a function, a map by numbers: keep tensors, and make it in attempt",
        ) from error


def _ensemble(problem: Problem, groups: tuple[dict, ...], exact: bool) -> Ensemble:
    made = (
        group_class(group["recipe"].value["kind"]).from_recipe(group["recipe"].value, group["tensors"], problem)
        for group in groups
    )
    return Ensemble(problem, tuple(made), exact)


def _parts(ensemble: Ensemble) -> dict:
    groups = [{"recipe": Json(group.recipe()), "tensors": group.tensors()} for group in ensemble.groups]
    return {"problem": ensemble.problem, "groups": groups, "exact": ensemble.exact}


def _encoding_parts(phi: Encoding) -> dict:
    return {"recipe": Json(phi.recipe()), "tensors": phi.tensors(), "raw": phi.raw, "spec": phi.spec}


def _encoding(recipe: Json, tensors: dict, raw: ProblemSpec, spec: ProblemSpec) -> Encoding:
    return rebuilt(recipe.value, tensors, raw, spec)


RECORDS = (
    Encoded, Checked, Explored, Trained, Calibrated, Learned, Appraised, Diagnosed, Certified, Deployed, Compared,
    Evaluated, NetEstimate, LipschitzEstimate, Exploration, Visit, StateGraph, MergeSettings, DensityEstimator,
    DensityGrid, Patches, Problem, ProblemSpec, Transitions, Calibration, Budget, Outcome, Choice, Round, Knowledge,
    Call, MetaPolicy, Reference, Population, Factors, Certificate, Gap, Refusals, Appraisal, Diagnosis, Finding, Worth,
    Looking, Fitted, Cell, GridPolicy,
)  # fmt: skip
MADE = {Ensemble: Made(_parts, _ensemble), Encoding: Made(_encoding_parts, _encoding)} | {
    kernel: Made(lambda kernel: {"name": kernel.name, "order": kernel.order}, make_kernel)
    for kernel in KERNELS.values()
}
