"""One registered network from fresh weights to frozen members, with its progress shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.fit import Listener, TrainedNet, fit
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.problem import Problem
from s2r_torch.progress import Progress
from s2r_torch.rng import Seed
from s2r_torch.workers.engines import SERIAL, Workers


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains networks on one set of draws, each from a stream of its own.

    Args:
        problem: state graph, density grid and sizes.
        data: what they are fitted to.
        settings: sizes and rates.
        seed: named stream.
        progress: where curves go.
        accelerator: `cpu` or `gpu`.
        folder: where unfinished fits are kept, so that they go on where they were stopped; None keeps none.
        tensorboard: folder of a TensorBoard log, or None.
        workers: who fits layers.
    """

    problem: Problem
    data: TrainingData
    settings: TrainingSettings
    seed: Seed
    progress: Progress
    accelerator: str = "cpu"
    folder: Path | None = None
    tensorboard: Path | None = None
    workers: Workers = SERIAL

    def train(self, name: str, settings: dict, members: int | None = None) -> Net:
        """members x snapshots of one architecture."""
        return self.fitted(name, settings, members).net

    def fitted(self, name: str, settings: dict, members: int | None = None, number: int = 0) -> TrainedNet:
        """The same, and what it has not learned; `number` tells variants of one name apart."""
        seed, label = self.seed.child("net", name, number), f"{name}-{number}" if number else name
        sizes = replace(self.settings, members=self.settings.members if members is None else members)
        kind = net_class(name)
        suited = kind.suited(self.problem, self.data, settings)
        net = kind(self.problem, sizes.members, seed.child("weights").generator(), **suited)
        return fit(
            net,
            self.data,
            sizes,
            seed.child("fit"),
            accelerator=self.accelerator,
            board=(self.tensorboard, label) if self.tensorboard else None,
            listener=self._listener(label),
            folder=self.folder,
            state=self.folder / f"{label}.safetensors" if self.folder else None,
            workers=self.workers,
            may_loosen=kind.certified and settings.get("lipschitz_bound") is None,
        )

    def _listener(self, label: str) -> Listener:
        """Shows a fit, and draws its curves."""
        before = 0

        def on_round(what: str, steps: int) -> None:
            nonlocal before
            before = done
            self.progress.stage(f"train {label}: {what}", steps)

        done = 0

        def on_step(now: int, risk: float) -> None:
            nonlocal done
            done = now
            self.progress.advance(now - before, f"risk {risk:.2g}")
            self.progress.record(f"bellman_risk/{label}", now, risk)

        def on_check(now: int, risks: Tensor) -> None:
            for member, risk in enumerate(risks.tolist()):
                self.progress.record(f"held_out_risk/{label}/{member}", now, risk)

        def on_layer(values: bool, layer: int, now: int) -> None:
            self.progress.record(f"{'values' if values else 'rewards'}_layer/{label}", now, layer)

        return Listener(on_round, on_step, on_check, on_layer)
