r"""One layer of all members fitted to given targets, with Lightning.

    minimise  mean over rows b and columns i of  weight[f, b] (f(D_b, x_i, a) - target[f, b, i, a])^2

over the actions whose targets are known. Its steps are cut into `snapshots` equal spans, and of each span every member
keeps one state (snapshots.py): the last one, unless simulators that no batch uses say that it is worse than an earlier
one; they are asked `CHECKS` times, and end the fit early where every member's error is below `CLOSE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from s2r_torch.predictors.ensemble import users_code
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.settings import TrainingSettings
from s2r_torch.predictors.training.snapshots import Snapshots, layer_weights
from s2r_torch.predictors.training.targets import CLOSE, FEW, Known, Seen, Targets, View
from s2r_torch.rng import Seed

CHECKS = 20  # times a fit that held-out risks are looked at
SEEN = 16  # columns of a row that a check looks at


@dataclass(frozen=True, eq=False)
class Ears:
    """Who is told what: (steps done, mean risk) at every step, (steps done, risks [F]) at every check."""

    on_step: Callable[[int, float], None]
    on_check: Callable[[int, Tensor], None]


class LayerFit(LightningModule):
    """A fit of one layer.

    Args:
        net: stacked members; `net.steps[layer]` is trained in place.
        layer: which one.
        view: what they see.
        targets: what they are fitted to.
        draw: simulators and weights.
        steps: optimiser steps.
        settings: sizes and rates.
        seed: named stream of this fit.
        ears: who is told.
    """

    def __init__(
        self,
        net: Net,
        layer: int,
        view: View,
        targets: Targets,
        draw: Draw,
        steps: int,
        settings: TrainingSettings,
        seed: Seed,
        ears: Ears,
    ):
        super().__init__()
        self.net, self.layer, self.view, self.targets, self.draw = net, layer, view, targets, draw
        self.settings, self.seed, self.ears = settings, seed, ears
        self.steps, self.start = steps, 0
        self.noisy = users_code(net)
        self.weight = draw.weight
        self.moments: dict[int, dict[str, Tensor]] = {}  # Adam's, by the number of a parameter
        self.snapshots = Snapshots(steps, settings.snapshots)
        self.finished, self.automatic_optimization = False, False

    # -- what Lightning calls ----------------------------------------------------------------------------------------

    def configure_optimizers(self):
        optimiser = torch.optim.Adam(self.net.steps[self.layer].parameters(), fused=True)
        if self.moments:
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": self.moments, "param_groups": groups})
        return optimiser

    def on_fit_start(self) -> None:
        self.view, self.targets = self.view.to(self.device), self.targets.to(self.device)
        self.weight = self.weight.to(self.device)
        self.snapshots.load(self.snapshots.tensors(), self.device)

    def training_step(self, numbers: Sequence[int]) -> None:
        """Some steps on end: to be asked for each of them would take as long as a tenth of it."""
        optimiser = self.trainer.optimizers[0]
        for number in numbers:
            optimiser.param_groups[0]["lr"] = self.settings.learning_rate * one_cycle(number, self.steps)
            optimiser.zero_grad()
            loss = self._loss(number)
            loss.backward()
            optimiser.step()
            risk = float(loss.detach()) / self.net.size
            self._stepped(number + 1, risk)
            if self.finished:
                self.trainer.should_stop = True
                break
        if self.logger is not None:
            self.logger.log_metrics({"train/bellman_risk": risk, "train/layer": float(self.layer)}, number)

    def _loss(self, number: int) -> Tensor:
        """The sum over members of their risks on the batch of a step."""
        rows, columns = self._batch(number)
        noise = self.seed.child("noise", number)  # of Dropout and the like in users' modules
        with noise.as_global(self.device) if self.noisy else nullcontext():
            squares = self._squares(self.view.at(self.net, rows, columns))
        return (squares.mean(-1) * self.weight[:, rows % self.draw.count]).mean(-1).sum()

    def _stepped(self, done: int, risk: float) -> None:
        """Looks at held-out simulators where it is time to, and tells."""
        looked = self.draw.batched < self.draw.count and done % max(1, self.steps // CHECKS) == 0
        if looked or done in self.snapshots.ends:
            self._check(done)
        self.ears.on_step(done, risk)

    # -- to disk and back --------------------------------------------------------------------------------------------

    def unfinished(self, done: int) -> dict[str, dict[str, Tensor]]:
        """Everything to go on from after `done` steps, but for the weights."""
        moments = self.trainer.optimizers[0].state_dict()["state"]
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
        risks = torch.cat([self._squares(*part).mean(2) for part in self._held_out], 1)  # [F, L b]
        risks = risks.unflatten(1, (len(self.draw.draws), -1)).mean(1)  # levels of one simulator are no further ones
        weights = layer_weights(self.net, self.layer)
        self.snapshots.look(done, weights, risks)
        self.finished = done == self.steps
        if self.targets.clean and bool((risks.mean(1) <= CLOSE**2).all()):
            self.snapshots.finish(weights)
            self.finished = True
        if self.finished:
            self.net.require_finite(self.snapshots.stacked())
        self.ears.on_check(done, risks.mean(1).double().cpu())

    @cached_property
    def _held_out(self) -> list[tuple[Seen, Known]]:
        """What checks look at, some rows [k] held out at a time and columns [k, c] of each: always the same ones."""
        rows = self.draw.held_out(len(self.draw.draws))
        columns = self.targets.pick(rows, SEEN, self.seed.child("held-out").generator())
        device = self.view.summary.device
        parts = zip(rows.to(device).split(FEW), columns.to(device).split(FEW), strict=True)
        seen = [self.view.at(self.net, *part) for part in parts]
        return [(some, self.targets.of_seen(some)) for some in seen]

    def _squares(self, seen: Seen, targets: Known | None = None) -> Tensor:
        """Squared errors [F, k, c], over the actions whose targets are known: their mean, or of the one tried."""
        value, known = self.targets.of_seen(seen) if targets is None else targets
        squares = (seen.q(self.net, self.layer) - value).square()
        return squares.mean(-1) if known is None else (squares * known).sum(-1)

    # -- samples -----------------------------------------------------------------------------------------------------

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Random simulators, a level of each, and random columns of it; a function of the step alone."""
        generator, draw = self.seed.child("batch", number).generator(), self.draw
        b = torch.randperm(draw.batched, generator=generator)[: self.settings.batch_simulators]
        rows = b + draw.count * draw.some_draws(len(b), generator)
        columns = self.targets.pick(rows, self.settings.batch_samples, generator)
        device = self.view.summary.device
        return rows.to(device), columns.to(device)


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
