"""The settings of a run: small frozen records with the only defaults there are, checked when built.

Hydra only fills them (`settings_from`): whatever is wrong in a configuration is found before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch

from s2r_torch.assurance.appraisal import AppraisalSettings
from s2r_torch.assurance.certify import CertificateSettings
from s2r_torch.assurance.diagnostics import DiagnosticSettings
from s2r_torch.base import PredictorGroup, ProblemSpec, StateGraph
from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.coverage import path_cover
from s2r_torch.defaults import plain_torch
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.nodes import nodes_for
from s2r_torch.encoders.encoding import IDENTITY, MOST_FEATURES, Encoding, made
from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, family_named
from s2r_torch.families.contract import Family
from s2r_torch.learning.calibration import CalibrationSettings
from s2r_torch.learning.estimator import DensitySettings
from s2r_torch.learning.rules import RULES
from s2r_torch.learning.sim2real import METHODS
from s2r_torch.planner.budget import SCHEDULES, Budget, practical
from s2r_torch.planner.schedules import PLANS, Setting
from s2r_torch.predictors.nets.settings import check_nets
from s2r_torch.predictors.registry import net_class, variants
from s2r_torch.predictors.training.settings import TrainerSettings, TrainingSettings, check_trainer
from s2r_torch.problem import Problem
from s2r_torch.registry import import_namesake, import_plugins
from s2r_torch.schema import Name, OneOf, Positive, Range, Settings, Share, Size, Where, arguments, build, value_of


@dataclass(frozen=True)
class PredictorSettings(Settings):
    """How the class F is made.

    Args:
        kind: `trained`, or `known` where the family ships a class that holds f*.
        num_simulators: simulators whose draws train F, and comparators.
        n_samples: transitions per state and simulator.
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
        tuple[Annotated[int, Range(3)], ...],
        Where("in ascending order", lambda several: list(several) == sorted(set(several))),
    ] = (5, 10, 30)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    known: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetSettings(Settings):
    """The sample sizes of a run (planner/budget.py).

    Args:
        schedule: `practical`, the sizes below; or those that a theorem asks for, for a class that holds f* and at an
            epsilon that can be run: `sweep` (theory.md 3.3), `loops` (3.2), `paper` (3.5). Then epsilon and delta count
            below, and n_dist for simulators that do not judge.
        density_constant: C_dist of the theorems, which nobody knows (theory.md C13).
        num_simulators: B, judges of the class.
        n_dist: readings per state and simulator for a density.
        n_test: readings per path and simulator in Consensus.
        n_train: samples per state and simulator in TD-Eliminate.
        n_rollouts: n_1, episodes per simulator that measure a policy.
        n_probes: N_2, episodes in total whose visited states are learned.
        n_real: episodes along every sequence of the path cover in the real world; null takes n_dist, so that D_real has
            no more noise than the densities that F is judged on.
        epsilon: wanted suboptimality, in units of an episode's total reward.
        delta: wanted failure probability.
        phi: accuracy of one state's estimates; null takes what the sizes buy.
        b_bar: bound on f*'s bias; null takes what the sizes buy.
        epsilon_test_step: what each layer adds to Consensus' threshold; null takes what theory.md 2.5 asks for.

    Raises:
        SettingError: a value out of range.
    """

    schedule: Annotated[str, OneOf(SCHEDULES)] = "practical"
    density_constant: Positive = 1.0
    num_simulators: Size = 32
    n_dist: Size = 100
    n_test: Size = 500
    n_train: Size = 1000
    n_rollouts: Size = 32
    n_probes: Size = 64
    n_real: Size | None = None
    epsilon: Positive = 0.1
    delta: Share = 0.1
    phi: Positive | None = None
    b_bar: Annotated[float, Range(0)] | None = None
    epsilon_test_step: Positive | None = 0.02

    def make(self, problem: Problem, num_members: int, lipschitz_bound: float, order: float, n_merge: int) -> Budget:
        """The budget for a class of so many members, C_L and alpha.

        Raises:
            SettingError: a theorem's sizes for a family that states no zeta.
        """
        graph, spec = problem.graph, problem.spec
        if self.schedule != "practical":
            return PLANS[self.schedule](self._setting(problem, num_members, lipschitz_bound, order)).budget
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("schedule", "density_constant")}
        own["n_real"] = self.n_real or self.n_dist
        return practical(
            spec.horizon, spec.num_actions, num_members, n_merge=n_merge, num_states=graph.num_states, **own
        )

    def _setting(self, problem: Problem, num_members: int, lipschitz_bound: float, order: float) -> Setting:
        """What the planner is told."""
        graph, spec = problem.graph, problem.spec
        if not spec.zeta:
            raise SettingError(
                expected="a family that states zeta, how far its states' densities are apart (Assumption 5)",
                got=f"budget.schedule={self.schedule} and no zeta",
                cause="sizes of theorems follow from constants: `mixture` knows its own",
            )
        return Setting(
            horizon=spec.horizon,
            max_states_per_layer=max(graph.states_per_layer),
            num_actions=spec.num_actions,
            num_members=num_members,
            epsilon=self.epsilon,
            delta=self.delta,
            order=order,
            obs_dim=spec.obs_dim,
            lipschitz_bound=lipschitz_bound,
            density_constant=self.density_constant,
            zeta=spec.zeta,
            cover_width=len(path_cover(graph)),
        )


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

    num_worlds: Annotated[int, Range(2)] = 40
    population: Annotated[int, Range(2)] = 1000
    n_rollouts: Size = 200
    readings: Annotated[
        tuple[Annotated[int, Range(3)], ...],
        Where("in ascending order, at least one", lambda several: several and list(several) == sorted(set(several))),
    ] = (5, 10, 20, 50, 100, 200)


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

    def check_rules(self) -> None:
        check_nets(self.nets)
        self._check_schedule()
        for name, given in self.comparators.items():
            comparator = COMPARATORS.named(name)
            comparator(**arguments(comparator, given, f"comparators.{name}"))

    def _check_schedule(self) -> None:
        """A theorem's sizes go with its own method, a rule that it is proved for, and a class that holds f*."""
        schedule, own = self.budget.schedule, self.budget
        if schedule == "practical":
            return
        method = "sweep" if schedule == "sweep" else "sim2real"
        proved = ("sharp", "pairwise", "erratum") if schedule == "paper" else ("sharp", "pairwise")
        given = [name for name in ("n_real", "phi", "b_bar") if getattr(own, name) is not None]
        if self.method != method or self.rule not in proved or self.predictors.kind != "known" or given:
            raise SettingError(
                expected=f"method={method}, rule={' or '.join(proved)}, predictors=known, sizes left to the theorem",
                got=f"method={self.method}, rule={self.rule}, predictors.kind={self.predictors.kind}"
                + "".join(f", budget.{name}={getattr(own, name)}" for name in given),
                cause=f"what the theorem of budget.schedule={schedule} does not cover; `budget={schedule}` sets method "
                "and rule, but those of an experiment come after it",
            )

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
    worlds: Annotated[int, Range(2)] = 400
    seeds: tuple[int, ...] = (0, 1, 2)
    wanted: Annotated[float, Range(0)] = 0.05
    common: tuple[str, ...] = ()

    def check_rules(self) -> None:
        if bool(self.entries) == bool(self.curves):
            raise SettingError(
                expected="compare.entries or compare.curves", got="both, or neither", cause="another comparison"
            )


@plain_torch()
def configured(config: Mapping[str, Any]) -> tuple[RunSettings, Family]:
    """The settings and the family of a composed configuration, checked alone and together: the door of every run.

    Raises:
        SettingError: as `settings_from`, `family_from` and `check_together`.
    """
    settings, family = settings_from(config), family_from(config)
    check_together(settings, family)
    return settings, family


def settings_from(config: Mapping[str, Any]) -> RunSettings:
    """What a composed configuration (conf/run/run.yaml) says of a run; imports plugins, and looks for the device.

    Args:
        config: plain values: fields of `RunSettings`, with `net` for `nets`; `plugins`, modules that register families
            and networks; `env`, which `family_from` reads.

    Raises:
        SettingError: an unknown name or key, a value of the wrong type or out of range, or a device that is not here.
    """
    given = {key: value for key, value in config.items() if key not in ("env", "plugins", "net")}
    _import_plugins(config)
    nets = value_of(Mapping[str, Any], config.get("net"), "net")
    if not nets:
        raise SettingError(expected="net: at least one network", got="none", cause="net=[] was given")
    settings = build(RunSettings, {**given, "nets": nets})
    check_trainer(settings.trainer)
    return settings


def family_from(config: Mapping[str, Any]) -> Family:
    """The family that `env` of a composed configuration names, with its parameters; NAME.py is imported for env=NAME.

    Raises:
        SettingError: an unknown family, or a parameter that it does not take.
    """
    _import_plugins(config)
    env = value_of(Mapping[str, Any], config.get("env"), "env")
    if "_target_" in env:
        raise SettingError(
            expected="env.name, the name of a registered family",
            got=f"env._target_={env['_target_']}",
            cause="a family of your own is registered by its module: @register_family('walk') in walk.py, then "
            "plugins=[walk] env=walk",
        )
    name = value_of(str, env.get("name"), "env.name")
    import_namesake(FAMILIES, name)
    return family_named(name, {key: value for key, value in env.items() if key != "name"}, "env")


def known_class(settings: RunSettings, family: Family) -> Callable[..., PredictorGroup] | None:
    """What builds the family's own class, where that is asked for.

    Raises:
        SettingError: it is asked for, and there is none; to be known before anything is drawn.
    """
    if settings.predictors.kind != "known":
        return None
    build = getattr(family, "known_class", None)
    if build is None:
        raise SettingError(
            expected="a family with a ready-made class, such as mixture",
            got=family.name,
            cause="predictors=known with a family whose f* is not known",
        )
    return build


def check_together(settings: RunSettings, family: Family) -> None:
    """Builds what depends on settings and family alone, for nothing: what cannot be built is known before any episode.

    That is the density grid, the family's ready-made class or, for a graph of one state per layer, one member of every
    network.

    Raises:
        SettingError: too many nodes, no ready-made class, its arguments, or a network that cannot be built.
    """
    phi = settings.encoding(family.spec)
    spec = phi.spec if phi else family.spec
    if spec.obs_dim > MOST_FEATURES:
        raise SettingError(
            expected=f"readings of at most {MOST_FEATURES} numbers, which densities can live on, or an encoder",
            got=f"{spec.obs_dim} numbers from env={family.name} and encoder={IDENTITY}",
            cause="images or many channels: encoder=learned, encoder=pca, or one of your own",
        )
    grid = DensityGrid.uniform(spec.low, spec.high, nodes_for(settings.density.nodes, spec.low, spec.high))
    build_known = known_class(settings, family)
    if build_known:
        arguments(partial(build_known, grid), settings.predictors.known, "predictors.known")
        return
    next_state = torch.full((spec.horizon, spec.num_actions), -1)
    next_state[:-1] = torch.arange(1, spec.horizon)[:, None]
    paths = tuple((0,) * step for step in range(spec.horizon))
    problem = Problem(spec, StateGraph(next_state, torch.arange(spec.horizon), paths), grid)
    for name, several in settings.nets.items():
        for values in variants(several):
            try:
                net_class(name)(problem, 1, torch.Generator(), **values)
            except SettingError:
                raise
            except Exception as error:
                raise SettingError(
                    expected=f"a network from net.{name}: {values}",
                    got=f"{type(error).__name__}: {error}",
                    cause="a size that makes no network, or a fault in a network of yours",
                ) from error


def _import_plugins(config: Mapping[str, Any]) -> None:
    import_plugins(value_of(tuple[str, ...], config.get("plugins", ()), "plugins"))
