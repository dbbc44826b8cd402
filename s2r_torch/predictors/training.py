r"""Trains stacked members together by the Bellman risk, backward over layers, with Lightning.

The layer of step h is fitted while the layers below it are frozen:

    minimise  mean over b, s in layer h, i of  weight[f, b] (f(D_b, x_i, a_i) - r_i - V_hat[f, b, T(s, a_i)])^2
    then      V_hat[f, b, s] = mean_i max_a clamp(f(D_b, x_i, a), 0, 1)       for the states of layer h

so that targets never move while they are fitted. Members differ by their initial weights and by a bootstrap over
simulators (`weight`); snapshots along every layer's fit join the class.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor
from torch.utils.data import DataLoader

from s2r_torch.base import StateGraph
from s2r_torch.episodes import Transitions
from s2r_torch.errors import SettingError
from s2r_torch.predictors.lipschitz_estimate import pairwise_lipschitz
from s2r_torch.predictors.nets import Net
from s2r_torch.rng import Seed


@dataclass(frozen=True)
class TrainingSettings:
    """How one architecture is trained.

    Args:
        members: networks trained side by side, each with its own seed and bootstrap weights.
        snapshots: how many moments of training join the class, the last one included.
        steps: optimiser steps per layer.
        batch_simulators: simulators per step.
        batch_samples: samples per state and simulator per step.
        learning_rate: peak of the one-cycle schedule.
        bootstrap: whether members weight simulators at random.

    Raises:
        SettingError: a size below 1 or a rate that is not positive.
    """

    members: int = 16
    snapshots: int = 4
    steps: int = 400
    batch_simulators: int = 64
    batch_samples: int = 8
    learning_rate: float = 1e-2
    bootstrap: bool = True

    def __post_init__(self):
        sizes = (self.members, self.snapshots, self.steps, self.batch_simulators, self.batch_samples)
        if min(sizes) < 1 or not self.learning_rate > 0 or self.snapshots > self.steps:
            raise SettingError(
                expected="sizes >= 1, snapshots <= steps and a positive learning rate",
                got=str(self),
                cause="a typo in conf/predictors",
            )


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Draws of theta that train F, and judge nothing."""

    D: Tensor  # [B, xi, G] estimated densities
    samples: tuple[Transitions, ...]  # [xi] transitions at every state


def fit(
    net: Net,
    data: TrainingData,
    settings: TrainingSettings,
    seed: Seed,
    *,
    accelerator: str = "cpu",
    logger: Logger | bool = False,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
    folder: FilePath | None = None,
) -> Net:
    """Fits all members of `net` and returns the net of all snapshots, members x snapshots of them.

    Args:
        net: stacked members with fresh weights; trained in place, unless lipschitz_bound=auto makes another one.
        data: transitions at every state of B simulators.
        settings: sizes and rates.
        seed: named stream of batches and bootstrap weights.
        accelerator: `cpu` or `gpu`.
        logger: a Lightning logger, or False.
        on_step: called every 20 steps and at the end with (steps done, steps in all, mean Bellman risk).
        folder: Lightning's working folder.

    Returns:
        The net of all snapshots, frozen and certified, on the CPU. The last `settings.members` are the final weights.

    Raises:
        LipschitzError: a certificate above the declared bound.
        KeyboardInterrupt: Ctrl-C, as ever.
    """
    if net.awaits_bound:
        net = net.with_estimate(pairwise_lipschitz(data.D, data.samples, net.problem.graph))
    net.fit_scales(data.D)
    module = _BellmanFit(net, data, settings, seed, on_step)
    quiet = logging.getLogger("lightning.pytorch")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")  # worker and logging hints: batches are index tensors
            warnings.filterwarnings("ignore", ".*LeafSpec.*")  # raised inside lightning by torch 2.13's pytree
            trainer = Trainer(
                max_steps=module.total_steps,
                max_epochs=1,
                accelerator=accelerator,
                devices=1,
                logger=logger,
                log_every_n_steps=20,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
            )
            own = torch.Generator()  # else the loader draws from the global one
            trainer.fit(module, DataLoader(range(module.total_steps), batch_size=None, generator=own))
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into exit(1)
            raise KeyboardInterrupt from error
        raise
    finally:
        quiet.setLevel(level)
    trained = module.net_of_snapshots()
    trained.certify()
    return trained


class _BellmanFit(LightningModule):
    """One fit: the layers H-1 .. 0 one after another, `settings.steps` optimiser steps each."""

    def __init__(self, net: Net, data: TrainingData, settings: TrainingSettings, seed: Seed, on_step: Callable):
        super().__init__()
        self.net, self.settings, self.seed, self.on_step = net, settings, seed, on_step
        self.graph: StateGraph = net.problem.graph
        self.total_steps = settings.steps * self.graph.horizon
        self.D, self.samples = data.D.float(), data.samples
        count = self.D.shape[0]
        self.V_hat = torch.zeros(net.size, count, self.graph.num_states)
        self.weight = torch.ones(net.size, count)
        if settings.bootstrap:  # Bayesian bootstrap over simulators
            uniform = torch.rand(net.size, count, generator=seed.child("bootstrap").generator())
            self.weight = -uniform.clamp(min=1e-12).log()
        self.summary = net.standardised(self.D)
        self.snapshots: list[dict[str, Tensor]] = [{} for _ in range(settings.snapshots)]
        self.layer = self.graph.horizon  # the layer in training; none yet

    def configure_optimizers(self):
        optimiser = torch.optim.Adam(self.net.parameters(), lr=self.settings.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: one_cycle(step, self.settings.steps))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        for name in ("V_hat", "weight", "summary"):
            setattr(self, name, getattr(self, name).to(self.device))

    def training_step(self, number: int) -> Tensor:
        layer = self.graph.horizon - 1 - int(number) // self.settings.steps
        if layer < self.layer:
            self._enter(layer)
        b, x, actions, local, target = self._batch(int(number))
        q = self.net.raw_q(layer, self.summary[b], local, x)
        predicted = q.gather(-1, actions.expand(q.shape[:-1])[..., None]).squeeze(-1)
        loss = ((predicted - target).square().mean(-1) * self.weight[:, b]).mean(-1)  # [F]
        if self.logger is not None:
            self.log_dict({"train/bellman_risk": loss.mean().detach(), "train/layer": float(layer)})
        return loss.sum()

    def on_train_batch_end(self, outputs, batch: int, batch_idx: int) -> None:
        done = int(batch) + 1
        within, steps = (done - 1) % self.settings.steps + 1, self.settings.steps
        for k in range(self.settings.snapshots):
            if within == round(steps * (k + 1) / self.settings.snapshots):
                self._save_layer(k)
        if done % 20 == 0 or done == self.total_steps:
            self.on_step(done, self.total_steps, float(outputs["loss"]) / self.net.size)

    def _enter(self, layer: int) -> None:
        """Freezes the layer below, values its states, and precomputes the new layer's features and targets."""
        if layer + 1 < self.graph.horizon:
            self._value_states(layer + 1)
        self.layer = layer
        states = self.graph.states_of(layer)
        x = torch.stack([self.samples[s].x for s in states], 1)  # [B, S, n, d]
        self.features = self.net.local(self.D, layer, x.flatten(1, 2))  # on the CPU, where the density grid is
        self.x = x.to(self.device)
        self.actions = torch.stack([self.samples[s].actions for s in states], 1).to(self.device)
        reward = torch.stack([self.samples[s].rewards for s in states], 1).float().to(self.device)
        self.features = self.features.unflatten(1, x.shape[1:3]).to(self.device)  # [B, S, n, S]
        self.target = reward.expand(self.net.size, *reward.shape)  # [F, B, S, n]
        if layer + 1 < self.graph.horizon:
            following = self.graph.next_state[states].to(self.device)  # [S, A]
            V_next = self.V_hat[:, :, following]  # [F, B, S, A]
            self.target = reward + V_next.gather(-1, self.actions.expand(self.net.size, *self.actions.shape))

    @torch.no_grad()
    def _value_states(self, layer: int) -> None:
        """V_hat of the states of a finished layer, from the same draws."""
        rows, (states, n) = self.x.flatten(1, 2), self.x.shape[1:3]
        for b in torch.arange(self.D.shape[0]).split(32):
            q = self.net.raw_q(layer, self.summary[b], self.features[b].flatten(1, 2), rows[b])
            value = q.amax(-1).clamp(0, 1).unflatten(2, (states, n)).mean(-1)
            self.V_hat[:, b[:, None], self.graph.states_of(layer)] = value

    def _batch(self, number: int) -> tuple[Tensor, ...]:
        """Random simulators, and random samples of every state of the layer; a function of the step alone."""
        generator = self.seed.child("batch", number).generator()
        count, states, n, d = self.x.shape
        b = torch.randperm(count, generator=generator)[: self.settings.batch_simulators]
        size = min(n, self.settings.batch_samples)
        i = torch.rand(len(b), states, n, generator=generator).topk(size, -1).indices.to(self.device)
        rows = b.to(self.device)[:, None, None], torch.arange(states, device=self.device)[None, :, None], i
        x, actions, local = self.x[rows], self.actions[rows], self.features[rows]
        target = self.target[(slice(None), *rows)]
        return b, x.flatten(1, 2), actions.flatten(1, 2), local.flatten(1, 2), target.flatten(2, 3)

    def _save_layer(self, k: int) -> None:
        prefix = f"steps.{self.layer}."
        stacked = self.net.stacked()
        self.snapshots[k].update({n: v.cpu().clone() for n, v in stacked.items() if n.startswith(prefix)})

    def net_of_snapshots(self) -> Net:
        names = list(self.net.stacked())
        merged = {name: torch.cat([snapshot[name] for snapshot in self.snapshots]) for name in names}
        return self.net.cpu().with_members(merged)


def tensorboard_logger(folder: FilePath, name: str) -> Logger:
    """Logs a fit for TensorBoard under folder/tensorboard/name."""
    try:
        return TensorBoardLogger(folder, name="tensorboard", version=name)
    except ModuleNotFoundError as error:
        raise SettingError(
            expected="the package tensorboard", got=str(error), cause="install the extra: pip install '.[tensorboard]'"
        ) from error


def one_cycle(step: int, steps: int, warm: float = 0.3) -> float:
    """Share of the peak rate: a linear rise over `warm` of the steps, then a cosine fall; restarts every `steps`.

    >>> [round(one_cycle(s, 10), 2) for s in (0, 2, 9)]
    [0.33, 1.0, 0.02]
    """
    position = (step % steps + 1) / steps
    if position <= warm:
        return position / warm
    fall = (position - warm) / (1 - warm)
    return max(0.5 * (1 + float(torch.cos(torch.tensor(fall * torch.pi)))), 2e-2)
