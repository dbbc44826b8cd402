"""The smallest settings at which a run still does everything, shared by tests."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from s2r_torch.commands.configuration import CONF
from s2r_torch.runs.configuring import settings_from
from s2r_torch.runs.settings import RunSettings

ROOT = Path(__file__).resolve().parents[2]

SMALL = (
    "check_family=false",
    "density.merge.deciders=4",
    "predictors.num_simulators=24",
    "predictors.n_samples=16",
    "comparators.blind.sweeps=1",
    "comparators.blind.simulators=4",
    "comparators.blind.n=50",
    "predictors.training.members=2",
    "predictors.training.snapshots=2",
    "predictors.training.steps=20",
    "predictors.training.rounds=1",
    "predictors.calibration.simulators=4",
    "predictors.calibration.n=50",
    "predictors.calibration.n_rollouts=2",
    "budget.num_simulators=4",
    "budget.n_test=50",
    "budget.n_train=100",
    "budget.n_rollouts=2",
    "budget.n_probes=4",
    "appraisal.simulators=4",
    "appraisal.n=8",
    "appraisal.n_rollouts=2",
    "appraisal.looks=1",
    "appraisal.attempts=1",
    "diagnostics.simulators=0",
    "certificate.simulators=8",
    "certificate.scores=20",
    "certificate.n_rollouts=4",
    "certificate.n_accurate=50",
    "evaluation.num_worlds=2",
    "evaluation.population=20",
    "evaluation.n_rollouts=20",
)


def composed(*overrides: str, config: str = "run") -> DictConfig:
    """conf/CONFIG/CONFIG.yaml with these overrides."""
    with initialize_config_dir(str(CONF / config), version_base="1.3"):
        return compose(config, overrides=list(overrides))


def small_settings(*overrides: str) -> RunSettings:
    """Settings of a smoke-size run."""
    return settings_from(OmegaConf.to_container(composed(*SMALL, *overrides), resolve=True))
