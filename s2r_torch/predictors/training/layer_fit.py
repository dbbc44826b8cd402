r"""One layer of all members fitted to given targets, with Lightning.

    minimise  mean over b, columns of  weight[f, b] sum over a of asked[b, ., a] (f(D_b, x, a) - target[f, b, ., a])^2

A column is one sample of one state of the layer. Its steps are cut into `snapshots` equal spans, and of each span every
member keeps one state (snapshots.py): the last one, unless simulators that no batch uses say that it is worse than an
earlier one; they are asked `CHECKS` times, and end the fit early where every member's error is below `CLOSE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.predictors.training.snapshots import Snapshots, Weights
from s2r_torch.rng import Seed

CHECKS = 20  # times a fit that held-out risks are looked at
CLOSE = 2e-3  # root mean squared error, in units of an episode's total reward, that needs no further step
FEW = 32  # simulators evaluated at once


@dataclass(frozen=True, eq=False)
class Targets:
    """What one layer is fitted to: m = S n columns per simulator, state by state."""

    x: Tensor  # [B, m, d]
    value: Tensor  # [F or 1, B, m, A]
    columns: Tensor  # [k] those that batches are drawn from
    asked: Tensor | None = None  # [B, m, A] 0 or 1: which values there are; None for all, and free of rewards' noise

    @property
    def clean(self) -> bool:
        """Whether they can be met: they are values, not rewards."""
        return self.asked is None

    def to(self, device: torch.device) -> Targets:
        """On another device."""
        asked = None if self.asked is None else self.asked.to(device)
        return Targets(self.x.to(device), self.value.to(device), self.columns.to(device), asked)


@dataclass(frozen=True, eq=False)
class Ears:
    """Who is told what: (steps done, mean risk) at every step, risks [F] at every check."""

    on_step: Callable[[int, float], None]
    on_check: Callable[[Tensor], None]


class LayerFit(LightningModule):
    """A fit of one layer.

    Args:
        net: stacked members; `net.steps[layer]` is trained in place.
        layer: which one.
        summary: `[B, K]` standardised summaries of all simulators.
        local: `[B, m, S]` densities looked up at the columns.
        targets: what to fit.
        weight: `[F, B]` of every member's simulators.
        batched: how many simulators batches use, the first ones.
        steps: optimiser steps.
        settings: sizes and rates.
        seed: named stream of this fit.
        ears: who is told.
    """

    def __init__(
        self,
        net: Net,
        layer: int,
        summary: Tensor,
        local: Tensor,
        targets: Targets,
        weight: Tensor,
        batched: int,
        steps: int,
        settings: TrainingSettings,
        seed: Seed,
        ears: Ears,
    ):
        super().__init__()
        self.net, self.layer, self.summary, self.local, self.targets = net, layer, summary, local, targets
        self.weight, self.batched, self.settings, self.seed, self.ears = weight, batched, settings, seed, ears
        self.steps, self.start, self.moments = steps, 0, {}
        self.snapshots = Snapshots(steps, settings.snapshots)
        self.finished = False

    # -- what Lightning calls ----------------------------------------------------------------------------------------

    def configure_optimizers(self):
        optimiser = torch.optim.Adam(
            self.net.steps[self.layer].parameters(), lr=self.settings.learning_rate, fused=True
        )
        if self.moments:
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": self.moments, "param_groups": groups})
        rate = lambda step: one_cycle(self.start + step, self.steps)  # noqa: E731
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        for name in ("summary", "local", "weight"):
            setattr(self, name, getattr(self, name).to(self.device))
        self.targets = self.targets.to(self.device)
        self.snapshots.load(self.snapshots.tensors(), self.device)

    def training_step(self, number: int) -> Tensor:
        b, columns = self._batch(int(number))
        with self.seed.child("noise", int(number)).as_global(self.device):  # of Dropout and the like in users' modules
            squares = self._squares(b, (b[:, None], columns))
        loss = (squares.mean(-1) * self.weight[:, b]).mean(-1)  # [F]
        if self.logger is not None:
            self.log_dict({"train/bellman_risk": loss.mean().detach(), "train/layer": float(self.layer)})
        return loss.sum()

    def on_train_batch_end(self, outputs, batch: int, batch_idx: int) -> None:
        done = int(batch) + 1
        ended, looked = done in self.snapshots.ends, done % max(1, self.steps // CHECKS) == 0
        if ended or (looked and self.batched < len(self.summary)):
            self._check(done)
        self.ears.on_step(done, float(outputs["loss"]) / self.net.size)
        if self.finished:
            self.trainer.should_stop = True

    # -- to disk and back --------------------------------------------------------------------------------------------

    def unfinished(self, done: int) -> dict[str, dict[str, Tensor]]:
        """Everything to go on from after `done` steps, but for the weights."""
        moments = self.optimizers().optimizer.state_dict()["state"]
        return {
            "moments": {f"{i}.{key}": value for i, values in moments.items() for key, value in values.items()},
            "snapshots": self.snapshots.tensors(),
            "layer": {"done": torch.tensor(done)},
        }

    def go_on(self, parts: dict[str, dict[str, Tensor]]) -> None:
        """Takes up what `unfinished` gave, or starts where there is nothing."""
        for place, value in parts.get("moments", {}).items():
            number, _, key = place.partition(".")
            self.moments.setdefault(int(number), {})[key] = value
        self.snapshots.load(parts.get("snapshots", {}), torch.device("cpu"))
        self.start = int(parts["layer"]["done"]) if parts else 0

    # -- held-out simulators -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _check(self, done: int) -> None:
        """Shows the members' states, and their risks on the simulators held out, to the snapshots."""
        first = self.batched if self.batched < len(self.summary) else 0  # of all where none is held out
        held_out = torch.arange(first, len(self.summary), device=self.summary.device).split(FEW)
        risks = torch.cat([self._squares(b, (b,)).mean(2) for b in held_out], 1)  # [F, b]
        weights = layer_weights(self.net, self.layer)
        self.snapshots.look(done, weights, risks)
        self.finished = done == self.steps
        if self.targets.clean and bool((risks.mean(1) <= CLOSE**2).all()):
            self.snapshots.finish(weights)
            self.finished = True
        self.ears.on_check(risks.mean(1).double().cpu())

    def _squares(self, b: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """Squared errors [F, b, k] at rows of [B, m], summed over the actions that there are values of."""
        q = self.net.raw_q(self.layer, self.summary[b], self.local[rows], self.targets.x[rows])
        squares = (q - self.targets.value[(slice(None), *rows)]).square()
        asked = self.targets.asked
        return squares.mean(-1) if asked is None else (squares * asked[rows]).sum(-1)

    # -- samples -----------------------------------------------------------------------------------------------------

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Random simulators [b], and random columns [b, k] of each; a function of the step alone."""
        generator = self.seed.child("batch", number).generator()
        b = torch.randperm(self.batched, generator=generator)[: self.settings.batch_simulators]
        pick = torch.randint(len(self.targets.columns), (len(b), self.settings.batch_samples), generator=generator)
        device = self.summary.device
        return b.to(device), self.targets.columns[pick.to(device)]


def layer_weights(net: Net, layer: int) -> Weights:
    """The weights of one layer, by name, members first; views, not copies."""
    return {name: value for name, value in net.stacked().items() if name.startswith(f"steps.{layer}.")}


def one_cycle(step: int, steps: int, warm: float = 0.3) -> float:
    """Share of the peak rate: a linear rise over `warm` of the steps, then a cosine fall.

    >>> [round(one_cycle(s, 10), 2) for s in (0, 2, 9)]
    [0.33, 1.0, 0.02]
    """
    position = min(step + 1, steps) / steps
    if position <= warm:
        return position / warm
    fall = (position - warm) / (1 - warm)
    return max(0.5 * (1 + math.cos(fall * math.pi)), 2e-2)
