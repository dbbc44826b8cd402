"""How networks are trained, and on what: sizes and rates, and the device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from s2r_torch.errors import SettingError
from s2r_torch.schema import Positive, Range, Settings, Share, Size

EVERY = 20  # steps between reports
Board = tuple[Path, str]  # folder and name of a TensorBoard log


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """How one architecture is trained.

    Args:
        members: networks trained side by side, each with its own seed and bootstrap weights.
        snapshots: how many moments of training join the class, the last one included.
        steps: optimiser steps per layer, at most; at least as many as snapshots.
        rounds: how often rewards, and then values, of layers that fall short are fitted at most, each time with twice
            as many steps; the first round, of all layers, counts.
        tolerance: share of its targets' value that the median member may lose before layers count as falling short.
        batch_simulators: simulators per step.
        batch_samples: samples per simulator and step, of all states of the layer.
        learning_rate: peak of the one-cycle schedule.
        bootstrap: whether members weight simulators at random.
        held_out: share of simulators that no batch uses; they tell when a member gets worse.

    Raises:
        SettingError: a value out of range.
    """

    members: Size = 16
    snapshots: Size = 4
    steps: Size = 300
    rounds: Annotated[int, Range(1, 16)] = 3
    tolerance: Share = 0.005
    batch_simulators: Size = 64
    batch_samples: Size = 12
    learning_rate: Positive = 1e-2
    bootstrap: bool = True
    held_out: Annotated[float, Range(0, 1, open="high")] = 0.125

    def check_rules(self) -> None:
        if self.snapshots > self.steps:
            raise SettingError(
                expected="snapshots <= steps",
                got=f"snapshots={self.snapshots}, steps={self.steps}",
                cause="a fit that is cut short for a try",
            )


@dataclass(frozen=True)
class TrainerSettings(Settings):
    """Where networks are trained.

    Args:
        accelerator: `cpu`, or `gpu` for one CUDA GPU.
        threads: that torch may use on the CPU, in every stage and every worker; another number changes last digits.
        tensorboard: also log training for TensorBoard (the extra `tensorboard`).

    Raises:
        SettingError: a value out of range. Whether there is a GPU, `device_of` says.
    """

    accelerator: Literal["cpu", "gpu"] = "cpu"
    threads: Annotated[int, Range(1, 1024)] = 1
    tensorboard: bool = False


def device_of(accelerator: str) -> torch.device:
    """The device that an accelerator means on this machine.

    Raises:
        SettingError: there is none of that kind; runs ask before they draw anything.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        mps = torch.backends.mps.is_available()
        raise SettingError(
            expected="a CUDA GPU for trainer.accelerator=gpu",
            got="Apple's MPS alone, which has no float64" if mps else "none; available: cpu",
            cause="another machine was meant, or CUDA_VISIBLE_DEVICES hides it, or torch is a build for CPUs",
        )
    return torch.device("cuda", 0)


def check_trainer(settings: TrainerSettings) -> None:
    """Raises SettingError unless this machine has what training asks for."""
    device_of(settings.accelerator)
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise SettingError(
            expected="the package tensorboard for trainer.tensorboard=true",
            got="none",
            cause="install the extra: pip install '.[tensorboard]'",
        )
