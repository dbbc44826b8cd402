"""The settings of a run: small frozen records with the only defaults there are, checked when built.

Hydra only fills them (configuring.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from s2r_torch.assurance.appraisal import AppraisalSettings
from s2r_torch.assurance.certify import CertificateSettings
from s2r_torch.assurance.diagnostics import DiagnosticSettings
from s2r_torch.base import ProblemSpec
from s2r_torch.comparators.contract import COMPARATORS, configured, require_labels
from s2r_torch.encoders.encoding import IDENTITY, Encoding, made
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph
from s2r_torch.learning.calibration import CalibrationSettings
from s2r_torch.learning.estimator import DensitySettings
from s2r_torch.learning.pruning import PruningSettings
from s2r_torch.learning.rules import RULES
from s2r_torch.learning.sim2real import METHODS
from s2r_torch.predictors.nets.settings import check_nets
from s2r_torch.predictors.training.settings import TrainerSettings, TrainingSettings
from s2r_torch.runs.budgets import BudgetSettings
from s2r_torch.schema import Drawable, Name, OneOf, Range, Settings, Size, Where, value_of

MOST_TIMES = 2  # as many transitions per state of a pruned graph, at most
FEWEST_DRAWS, EPISODES = 2, 16  # of densities of few episodes; along every sequence, in all draws of as many together
MOST_DENSITIES = 2**16  # in these draws, of a few hundred numbers each, where one of them has not more


@dataclass(frozen=True)
class PredictorSettings(Settings):
    """How the class F is made.

    Args:
        kind: `trained`, or `known` where the family ships a class that holds f*.
        num_simulators: simulators whose draws train F, and comparators.
        n_samples: transitions per state and simulator; of a pruned graph more (`samples_of`).
        readings: F is trained on densities of budget.n_dist readings per state, and on those of so few episodes along
            every sequence of the path cover, as far as that is fewer.
        training: sizes and rates.
        calibration: sizes of the calibration stage.
        known: keyword arguments of the family's ready-made class.

    Raises:
        SettingError: a value out of range.
    """

    kind: Literal["trained", "known"] = "trained"
    num_simulators: Size = 256
    n_samples: Size = 64
    readings: Annotated[
        tuple[Size, ...], Where("in ascending order", lambda several: list(several) == sorted(set(several)))
    ] = (1, 2, 4, 10, 30)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    known: Mapping[str, Any] = field(default_factory=dict)

    def samples_of(self, kept: StateGraph, whole: StateGraph) -> int:
        """Transitions per state of a pruned graph: those of the states that were left out go to the others.

        Fewer paths pay there, and what they pay is all that is known of it: at most `MOST_TIMES` as many.
        """
        return self.n_samples * min(MOST_TIMES, whole.num_states // kept.num_states)

    def draws_of(self, n: int, graph: StateGraph) -> int:
        """How often densities of n episodes along every sequence are drawn, where memory allows.

        The fewer episodes, the more there is to learn from another draw of them, and the less it costs.
        """
        room = MOST_DENSITIES // (self.num_simulators * graph.num_states)
        return max(1, min(max(FEWEST_DRAWS, EPISODES // n), room))


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """Where the result is measured.

    Args:
        num_worlds: held-out worlds that the policy is deployed in.
        population: draws of theta over which policies that need no density are valued.
        n_rollouts: episodes per world, for families that do not know exact values.
        readings: episodes along every sequence, for the curve of value against real-world episodes.

    Raises:
        SettingError: a value out of range.
    """

    num_worlds: Annotated[int, Drawable(2)] = 40
    population: Annotated[int, Drawable(2)] = 1000
    n_rollouts: Size = 200
    readings: Annotated[
        tuple[Size, ...],
        Where("in ascending order, at least one", lambda several: several and list(several) == sorted(set(several))),
    ] = (1, 2, 5, 10, 20, 50, 100, 200)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Everything that a run needs beside its family.

    Args:
        name: what the run is called, in its summary and its folder.
        seed: the root of every random stream.
        check_family: whether the family is checked first (families/check); false skips these seconds.
        method: `sim2real` (Algorithm 1) or `sweep` (theory.md 3.3).
        rule: which predictors an elimination keeps (learning/rules.py); `calibrated` is heuristic.
        on_empty: what to do when no predictor survives: `error`, or `best` to go on with the one of least pooled risk.
        encoder: `name` of what turns readings into the numbers that densities live on, beside its own settings.
        nets: architecture -> its settings.
        density: how densities are estimated.
        predictors: how the class F is made.
        budget: sample sizes of the method.
        appraisal: whether what was learned is good enough, and how often to learn at most.
        evaluation: where the result is measured.
        trainer: where networks are trained.
        workers: processes that work side by side, each with trainer.threads threads: 1 for this one alone, a number,
            `auto` for as many as there are cores for, `ray` for a Ray cluster. Results are the same to the bit.
        diagnostics: what is checked of Assumptions 1-5.
        certificate: what is promised, and how surely.
        comparators: name -> settings of what the result is compared with.
        pruning: which states of the graph a trained class looks at.

    Raises:
        SettingError: an unknown name, or a value of the wrong type or out of range.
    """

    name: Name = "custom"
    seed: int = 0
    check_family: bool = True
    method: Annotated[str, OneOf(METHODS)] = "sim2real"
    rule: Annotated[str, OneOf(RULES)] = "calibrated"
    on_empty: Literal["error", "best"] = "error"
    encoder: Mapping[str, Any] = field(default_factory=lambda: {"name": IDENTITY})
    nets: Mapping[str, Any] = field(default_factory=lambda: {"lookup": {}})
    density: DensitySettings = field(default_factory=DensitySettings)
    predictors: PredictorSettings = field(default_factory=PredictorSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    appraisal: AppraisalSettings = field(default_factory=AppraisalSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    workers: Annotated[int, Range(1, 1024)] | Literal["auto", "ray"] = 1
    diagnostics: DiagnosticSettings = field(default_factory=DiagnosticSettings)
    certificate: CertificateSettings = field(default_factory=CertificateSettings)
    comparators: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"open_loop": {}, "blind": {}, "random": {}}
    )
    pruning: PruningSettings = field(default_factory=PruningSettings)

    def check_rules(self) -> None:
        if not self.nets and self.predictors.kind != "known":
            raise SettingError(expected="at least one network in nets", got="none", cause="an empty `net` list")
        value_of(str, self.encoder.get("name"), "encoder.name")
        check_nets(self.nets)
        self.budget.check_covered(self.method, self.rule, self.predictors.kind)
        for name, given in self.comparators.items():
            configured(name, given, f"comparators.{name}")
        require_labels(self.comparators)

    def encoding(self, raw: ProblemSpec) -> Encoding | None:
        """The encoder of readings like these, not fitted yet; None where readings are taken as they are.

        Raises:
            SettingError: an unknown one, or settings that it does not take.
        """
        given = dict(self.encoder)
        name = value_of(str, given.pop("name", None), "encoder.name")
        phi = made(name, given, raw)
        return None if name == IDENTITY else phi

    def doubled(self) -> RunSettings:
        """What is learned again with: twice the training simulators, samples and steps."""
        given = self.predictors
        predictors = replace(
            given,
            num_simulators=2 * given.num_simulators,
            n_samples=2 * given.n_samples,
            training=replace(given.training, steps=2 * given.training.steps),
        )
        return replace(self, predictors=predictors)

    @property
    def net(self) -> str:
        """The architectures in one word, as in summaries."""
        return "+".join(self.nets) if self.predictors.kind == "trained" else "known"


@dataclass(frozen=True)
class Curve(Settings):
    """What is measured of one comparator.

    Args:
        sizes: its n, ascending; none for those that learn from no real episode.
        worlds: how many worlds it is valued in, the first of those of all; null for all.
        seeds: how many of the comparison's seeds.
        settings: of the comparator.

    Raises:
        SettingError: a value of the wrong type or out of range.
    """

    sizes: Annotated[
        tuple[Size, ...], Where("in ascending order", lambda several: list(several) == sorted(set(several)))
    ] = ()
    worlds: Size | None = None
    seeds: Size = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparisonSettings(Settings):
    """Whole runs side by side, or comparators against real episodes.

    Args:
        name: what the comparison is called.
        entries: name of an entry -> overrides of its runs.
        curves: name of a comparator -> what is measured of it.
        worlds: held-out worlds in which curves are measured.
        seeds: every entry runs with each of them.
        wanted: regret that every entry should reach, as a share of the optimum.
        common: overrides of all runs.

    Raises:
        SettingError: a value of the wrong type or out of range, or neither entries nor curves.
    """

    name: Name
    entries: Mapping[Name, tuple[str, ...]] = field(default_factory=dict)
    curves: Mapping[Annotated[str, OneOf(COMPARATORS)], Curve] = field(default_factory=dict)
    worlds: Annotated[int, Drawable(2)] = 400
    seeds: Annotated[
        tuple[int, ...], Where("different ones, at least one", lambda seeds: seeds and len({*seeds}) == len(seeds))
    ] = (0, 1, 2)
    wanted: Annotated[float, Range(0)] = 0.05
    common: tuple[str, ...] = ()

    def check_rules(self) -> None:
        if bool(self.entries) == bool(self.curves):
            raise SettingError(
                expected="compare.entries or compare.curves", got="both, or neither", cause="another comparison"
            )
        for name, curve in self.curves.items():
            for given in [{**curve.settings, "n": n} for n in curve.sizes] or [dict(curve.settings)]:
                configured(name, given, f"compare.curves.{name}")
        require_labels(self.curves)
