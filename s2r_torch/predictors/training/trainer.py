"""Lightning's loop, told everything: what the environment says of trainers, clusters and ranks changes nothing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, Dataset

from s2r_torch.errors import SettingError, Terminated
from s2r_torch.predictors.training.settings import EVERY


def run_steps(
    module: LightningModule, batches: Sequence[Any], device: torch.device, logger: Logger | bool, folder: Path | None
) -> None:
    """Trains on these batches, one after another, on one device in this process, without a word.

    Args:
        module: its `training_step` gets them.
        batches: numbers of steps, say.
        device: the CPU, or one GPU.
        logger: a Lightning logger, or False.
        folder: Lightning's working folder.

    Raises:
        KeyboardInterrupt: Ctrl-C, which Lightning would turn into exit(1).
        Terminated: SIGTERM, which it would turn into an exit that looks like success.
    """
    with _quiet(), _stopped_as_asked():
        trainer = Trainer(**trainer_arguments(len(batches), device, logger, folder))
        own = torch.Generator()  # else the loader draws from the global one
        data = cast("Dataset[Any]", batches)  # any sequence is a data set
        trainer.fit(module, DataLoader(data, batch_size=None, generator=own))


def trainer_arguments(steps: int, device: torch.device, logger: Logger | bool, folder: Path | None) -> dict[str, Any]:
    """Every argument that `Trainer` has: what is left out, PL_TRAINER_* variables and cluster schedulers would fill."""
    return {
        "accelerator": device.type,
        "strategy": SingleDeviceStrategy(device),
        "devices": 1,
        "num_nodes": 1,
        "plugins": [LightningEnvironment()],
        "precision": "32-true",
        "logger": logger,
        "callbacks": [],
        "fast_dev_run": False,
        "max_epochs": 1,
        "min_epochs": None,
        "max_steps": steps,
        "min_steps": None,
        "max_time": None,
        "limit_train_batches": 1.0,
        "limit_val_batches": 1.0,
        "limit_test_batches": 1.0,
        "limit_predict_batches": 1.0,
        "overfit_batches": 0.0,
        "val_check_interval": None,
        "check_val_every_n_epoch": 1,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": EVERY,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accumulate_grad_batches": 1,
        "gradient_clip_val": None,
        "gradient_clip_algorithm": None,
        "deterministic": None,
        "benchmark": None,
        "inference_mode": True,
        "use_distributed_sampler": False,
        "profiler": None,
        "detect_anomaly": False,
        "barebones": False,
        "sync_batchnorm": False,
        "reload_dataloaders_every_n_epochs": 0,
        "default_root_dir": folder,
        "enable_autolog_hparams": False,
        "model_registry": None,
    }


def tensorboard_logger(folder: Path, name: str) -> Logger:
    """Logs a fit for TensorBoard under folder/tensorboard/name."""
    try:
        return TensorBoardLogger(folder, name="tensorboard", version=name)
    except ModuleNotFoundError as error:
        raise SettingError(
            expected="the package tensorboard", got=str(error), cause="install the extra: pip install '.[tensorboard]'"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither hints nor progress; and this process logs, whatever rank the environment gives it."""
    lightning, ranked = logging.getLogger("lightning.pytorch"), cast(Any, rank_zero_only)  # a function with a rank
    level, rank = lightning.level, ranked.rank
    lightning.setLevel(logging.ERROR)
    ranked.rank = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")  # worker and logging hints: batches are index tensors
            warnings.filterwarnings("ignore", ".*LeafSpec.*")  # raised inside lightning by torch 2.13's pytree
            yield
    finally:
        ranked.rank = rank
        lightning.setLevel(level)


@contextmanager
def _stopped_as_asked() -> Iterator[None]:
    """Signals come out as they do elsewhere."""
    try:
        yield
    except SIGTERMException as error:
        raise Terminated from error
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise type(error.__context__) from error
        raise
