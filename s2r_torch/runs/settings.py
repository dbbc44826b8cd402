"""The settings of a run: small frozen records with real defaults, validated when built. Hydra only fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from s2r_torch.assurance.certify import CertificateSettings
from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.errors import SettingError
from s2r_torch.learning.calibration import CalibrationSettings
from s2r_torch.learning.estimator import DensitySettings
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.learning.rules import rule_named
from s2r_torch.learning.sim2real import method_named
from s2r_torch.planner.budget import Budget, practical
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.training.fit import TrainingSettings


@dataclass(frozen=True)
class PredictorSettings:
    """How the class F is made.

    Args:
        kind: `trained`, or `known` where the family ships a class that holds f*.
        num_simulators: simulators whose draws train F, and comparators.
        n_samples: transitions per state and simulator.
        training: sizes and rates.
        calibration: sizes of the calibration stage.
        known: keyword arguments of the family's ready-made class.
    """

    kind: str = "trained"
    num_simulators: int = 256
    n_samples: int = 64
    training: TrainingSettings = field(default_factory=TrainingSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    known: Mapping = field(default_factory=dict)

    def __post_init__(self):
        if self.kind not in ("trained", "known"):
            raise SettingError(expected="kind trained or known", got=repr(self.kind), cause="a typo in conf/predictors")
        if min(self.num_simulators, self.n_samples) < 1:
            raise SettingError(expected="sizes >= 1", got=str(self), cause="a typo in conf/predictors")


@dataclass(frozen=True)
class BudgetSettings:
    """The sample sizes of a practical budget (planner.py); phi and b_bar are derived when None."""

    num_simulators: int = 32
    n_dist: int = 100
    n_test: int = 500
    n_train: int = 1000
    n_rollouts: int = 32
    n_probes: int = 64
    n_real: int | None = None  # n_dist when None, so that D_real has the noise of the densities F was trained on
    epsilon: float = 0.1
    delta: float = 0.1
    phi: float | None = None
    b_bar: float | None = None
    epsilon_test_step: float | None = None

    def make(self, horizon: int, num_actions: int, num_members: int, num_states: int, n_merge: int) -> Budget:
        """The budget for a class and a state graph."""
        return practical(
            horizon,
            num_actions,
            num_members,
            num_simulators=self.num_simulators,
            n_merge=n_merge,
            n_dist=self.n_dist,
            n_test=self.n_test,
            n_train=self.n_train,
            n_rollouts=self.n_rollouts,
            n_probes=self.n_probes,
            n_real=self.n_real or self.n_dist,
            epsilon=self.epsilon,
            delta=self.delta,
            phi=self.phi,
            b_bar=self.b_bar,
            epsilon_test_step=self.epsilon_test_step,
            num_states=num_states,
        )


@dataclass(frozen=True)
class WorldSettings:
    """Where the result is measured.

    Args:
        num_worlds: held-out worlds that the policy is deployed in, at least 2.
        population: draws of theta over which policies that need no density are valued.
        n_rollouts: episodes per world, for families that do not know exact values.
        readings: of every state, for the curve of value against real-world episodes; ascending, at least 3 each.
    """

    num_worlds: int = 40
    population: int = 1000
    n_rollouts: int = 200
    readings: tuple[int, ...] = (5, 10, 20, 50, 100, 200)

    def __post_init__(self):
        object.__setattr__(self, "readings", tuple(self.readings))
        if not self.readings or min(self.readings) < 3 or list(self.readings) != sorted(set(self.readings)):
            raise SettingError(
                expected="ascending numbers of readings >= 3", got=str(self.readings), cause="a typo in conf/world"
            )
        if self.num_worlds < 2 or self.population < 2 or self.n_rollouts < 1:
            raise SettingError(
                expected="num_worlds, population >= 2 and n_rollouts >= 1", got=str(self), cause="a typo in conf/world"
            )


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run needs beside its family.

    Args:
        name: what the run is called in its summary.
        seed: any integer; the root of every random stream.
        method: `sim2real` (Algorithm 1) or `sweep` (theory.md 3.3).
        rule: a name in `rules.RULES`.
        on_empty: what to do when nobody survives: `error`, or `best`.
        nets: architecture name -> keyword arguments.
        density: how densities are estimated.
        predictors: how F is made.
        budget: sample sizes of the method.
        world: where the result is measured.
        accelerator: `cpu` or `gpu`, for training.
        tensorboard: also log training for TensorBoard.
        diagnose: simulators drawn to check Assumptions 1-5; 0 skips the stage.
        certificate: what is promised, and how surely.
        comparators: name -> settings of what the result is compared with.

    Raises:
        SettingError: an unknown name, or a size out of range.
    """

    name: str = "run"
    seed: int = 0
    method: str = "sim2real"
    rule: str = "calibrated"
    on_empty: str = "error"
    nets: Mapping[str, Mapping] = field(default_factory=lambda: {"lookup": {}})
    density: DensitySettings = field(default_factory=DensitySettings)
    predictors: PredictorSettings = field(default_factory=PredictorSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    world: WorldSettings = field(default_factory=WorldSettings)
    accelerator: str = "cpu"
    tensorboard: bool = False
    diagnose: int = 8
    certificate: CertificateSettings = field(default_factory=CertificateSettings)
    comparators: Mapping[str, Mapping] = field(default_factory=lambda: {"open_loop": {}, "blind": {}, "random": {}})

    def __post_init__(self):
        method_named(self.method)
        rule_named(self.rule)
        if self.on_empty not in ("error", "best"):
            raise SettingError(expected="on_empty error or best", got=repr(self.on_empty), cause="a typo in conf/rule")
        if self.diagnose < 0 or self.diagnose == 1:
            raise SettingError(
                expected="diagnose = 0, or at least 2 simulators",
                got=str(self.diagnose),
                cause="no standard error of one",
            )
        if not self.nets:
            raise SettingError(expected="at least one network", got="none", cause="net=[] was given")
        for name in self.nets:
            net_class(name)
        for name, given in self.comparators.items():
            COMPARATORS.named(name)(**given)

    @property
    def net(self) -> str:
        """The architectures in one word, as in summaries."""
        return "+".join(self.nets) if self.predictors.kind == "trained" else "known"


def settings_from(config: Mapping) -> RunSettings:
    """The settings of a composed configuration (conf/run.yaml), as plain values.

    Raises:
        SettingError: an unknown name or a value out of range.
    """
    density, predictors = dict(config["density"]), dict(config["predictors"])
    density["merge"] = _build(MergeSettings, density["merge"], "conf/density")
    predictors["training"] = _build(TrainingSettings, predictors["training"], "conf/predictors")
    predictors["calibration"] = _build(CalibrationSettings, predictors["calibration"], "conf/predictors")
    return RunSettings(
        name=config["name"],
        seed=config["seed"],
        method=config["method"]["name"],
        rule=config["rule"]["name"],
        on_empty=config["rule"]["on_empty"],
        nets=config["net"],
        density=_build(DensitySettings, density, "conf/density"),
        predictors=_build(PredictorSettings, predictors, "conf/predictors"),
        budget=_build(BudgetSettings, config["budget"], "conf/budget"),
        world=_build(WorldSettings, config["world"], "conf/world"),
        accelerator=config["trainer"]["accelerator"],
        tensorboard=config["trainer"]["tensorboard"],
        diagnose=config["diagnose"],
        certificate=_build(CertificateSettings, config["certificate"], "conf/certificate"),
        comparators=config["comparators"],
    )


def _build(cls: type, values: Mapping, where: str):
    """A record from a mapping; unknown or missing keys are a SettingError that names the file."""
    try:
        return cls(**values)
    except TypeError as error:
        raise SettingError(
            expected=f"the fields of {cls.__name__}", got=str(error), cause=f"a typo in {where}"
        ) from error
