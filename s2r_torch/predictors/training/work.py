"""The fit of one layer as a task for workers: everything that it is a function of, and what it leaves.

Layers of a round wait for nothing but rewards and values that are known before it, so they are fitted side by side.
Members are not taken apart: a step costs 16 of them only twice what it costs one, so that two halves side by side take
0.8 of the time, and 1.6 times the work (docs/machines.md).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.memory import Job, Parts
from s2r_torch.predictors.training.settings import EVERY, Board, TrainingSettings, device_of
from s2r_torch.predictors.training.snapshots import Weights, layer_weights
from s2r_torch.predictors.training.state import load_state, save_state
from s2r_torch.predictors.training.targets import Targets, View
from s2r_torch.rng import Seed
from s2r_torch.workers.engines import Tell

SAVE_SECONDS = 10.0  # between states written to disk


@dataclass(frozen=True, eq=False)
class Bench:
    """What the layers of a round have in common: how they are fitted, and where."""

    net: Net  # of the round: of F, or of rewards
    draw: Draw
    settings: TrainingSettings
    seed: Seed
    accelerator: str
    board: Board | None  # of TensorBoard
    folder: Path | None  # Lightning's working folder
    state: Path | None  # of the whole fit
    origin: dict  # what the fit is a function of

    def state_of(self, job: Job) -> Path | None:
        """Where one layer's unfinished fit is kept."""
        return self.state and self.state.with_stem(f"{self.state.stem}-{job.round}-{job.layer}")


@dataclass(frozen=True, eq=False)
class Work:
    """One layer to fit."""

    job: Job
    view: View
    targets: Targets


@dataclass(frozen=True, eq=False)
class Step:
    """Told when a step is done that is worth a word."""

    done: int  # steps of the layer
    risk: float  # mean over members


@dataclass(frozen=True, eq=False)
class Check:
    """Told when held-out risks were looked at."""

    done: int
    risks: Tensor  # [F]


@dataclass(frozen=True, eq=False)
class FittedLayer:
    """What is left: steps that it took, and the weights to keep, span by span."""

    steps: int
    kept: list[Weights]


def fit_layer(bench: Bench, work: Work, tell: Tell) -> FittedLayer:
    """Fits one layer of all members, or goes on where a state file ends, and tells again what came before.

    Raises:
        CheckpointError: that file is damaged, or of another fit.
    """
    return _LayerWork(bench, work, tell).finished()


def load_lightning(shared: None, payload: None, tell: Tell) -> None:
    """Readies a worker for `fit_layer`; a task."""
    from s2r_torch.predictors.training import layer_fit, trainer  # noqa: F401


class _LayerWork:
    """A fit, what it told so far, and its state on disk."""

    def __init__(self, bench: Bench, work: Work, tell: Tell):
        from s2r_torch.predictors.training.layer_fit import Ears, LayerFit  # Lightning takes seconds

        job, self.bench, self._tell = work.job, bench, tell
        self.state, self.saved = bench.state_of(job), time.monotonic()
        self.last = 0  # step that is done
        self.told: list[list[float]] = []
        self.checked: list[list[float]] = []
        seed, ears = bench.seed.child("layer", job.round, job.layer), Ears(self._on_step, self._on_check)
        self.module = LayerFit(
            bench.net, job.layer, work.view, work.targets, bench.draw, job.steps, bench.settings, seed, ears
        )
        if self.state and self.state.exists():
            self._go_on(load_state(self.state, bench.origin))

    def finished(self) -> FittedLayer:
        """What is kept after the last step."""
        from s2r_torch.predictors.training.trainer import run_steps, tensorboard_logger

        module, bench = self.module, self.bench
        logger = tensorboard_logger(*bench.board) if bench.board else False
        some = [range(k, min(k + EVERY, module.steps)) for k in range(module.start, module.steps, EVERY)]
        run_steps(module, some, device_of(bench.accelerator), logger, bench.folder)
        kept = [{name: value.cpu() for name, value in weights.items()} for weights in module.snapshots.kept]
        return FittedLayer(self.last, kept)

    def _on_step(self, done: int, risk: float) -> None:
        self.last, ended = done, self.module.finished
        if done % EVERY == 0 or ended:
            self.told.append([done, risk])
            self._tell(Step(done, risk))
        if self.state and time.monotonic() - self.saved > SAVE_SECONDS and not ended:
            save_state(self.state, self.bench.origin, done, self._parts(done))
            self.saved = time.monotonic()

    def _on_check(self, done: int, risks: Tensor) -> None:
        self.checked.append([done, *risks.tolist()])
        self._tell(Check(done, risks))

    def _parts(self, done: int) -> Parts:
        """Everything to go on from."""
        told, checked = (torch.tensor(rows, dtype=torch.float64) for rows in (self.told, self.checked))
        weights = layer_weights(self.module.net, self.module.layer)
        return {"weights": weights, "news": {"told": told, "checked": checked}, **self.module.unfinished(done)}

    def _go_on(self, parts: Parts) -> None:
        """Takes up what `_parts` gave, and tells again what was told."""
        mine = layer_weights(self.module.net, self.module.layer)
        for name, value in parts.pop("weights").items():
            mine[name].copy_(value)
        news = parts.pop("news")
        self.module.go_on(parts)
        for done, risk in news["told"].tolist():
            self.told.append([done, risk])
            self._tell(Step(int(done), risk))
        for done, *risks in news["checked"].tolist():
            self._on_check(int(done), torch.tensor(risks, dtype=torch.float64))
