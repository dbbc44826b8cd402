r"""Trains stacked members together by the Bellman risk, backward over layers, with Lightning.

The layer of step h is fitted while the layers below it are frozen:

    minimise  mean over b, s in layer h, i of  weight[f, b] (f(D_b, x_i, a_i) - r_i - V_hat[f, b, T(s, a_i)])^2
    then      V_hat[f, b, s] = mean_i max_a clamp(f(D_b, x_i, a), 0, 1)       for the states of layer h

so that targets never move while they are fitted. Members differ by their initial weights and by a bootstrap over
simulators (`weight`).

D_b may come from many readings or from few: densities of the same simulators from ever fewer readings are further rows,
with the same samples, and a batch takes one of its rows for every simulator. So members learn what to make of a noisy
density, and how many readings it has is told to them (`Net.scarcity`).

Every layer's steps are cut into `snapshots` equal spans, and of each span every member keeps one state (snapshots.py):
the last one, unless simulators that no batch uses say that it is worse than an earlier one; they are asked `CHECKS`
times a layer. So snapshots are states of different steps, a member that diverges is kept from before, and V_hat comes
from the state kept of the last span. Without held-out simulators it is the state at the end of a span.

A fit goes on where it was stopped, to the bit: batches depend on the step alone, and a state file (fit_state.py) holds
everything else: weights, Adam's moments, V_hat and the states kept so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import Logger
from torch import Tensor

from s2r_torch.base import StateGraph
from s2r_torch.predictors.nets.lipschitz_estimate import pairwise_lipschitz
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.settings import TrainingSettings, device_of
from s2r_torch.predictors.training.snapshots import Snapshots
from s2r_torch.predictors.training.state import load_state, origin_of, save_state
from s2r_torch.predictors.training.trainer import EVERY, run_steps
from s2r_torch.rng import Seed

CHECKS = 20  # times a layer that held-out risks are looked at
SAVE_SECONDS = 10.0  # between states written to disk


def fit(
    net: Net,
    data: TrainingData,
    settings: TrainingSettings,
    seed: Seed,
    *,
    accelerator: str = "cpu",
    logger: Logger | bool = False,
    on_step: Callable[[int, int, float], None] = lambda done, total, loss: None,
    on_check: Callable[[int, Tensor], None] = lambda done, risks: None,
    folder: FilePath | None = None,
    state: FilePath | None = None,
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
        on_check: called with (steps done, risks [F]) when held-out risks are looked at. Both are told again what came
            before when a fit goes on.
        folder: Lightning's working folder.
        state: file to go on from, if it is there, and to write to every `SAVE_SECONDS` and at the end.

    Returns:
        The net of all snapshots, frozen and certified, on the CPU. The last `settings.members` are the final ones.

    Raises:
        LipschitzError: a certificate above the declared bound.
        CheckpointError: `state` is cut or damaged, or of another fit.
        SettingError: there is no such accelerator.
        KeyboardInterrupt: Ctrl-C, as ever; Terminated after SIGTERM.
    """
    if net.awaits_bound:
        net = net.with_estimate(pairwise_lipschitz(data.D, data.samples, net.problem.graph))
    net.fit_scales(data.D)
    net.fit_readings(data.levels)
    module = _BellmanFit(net, data, settings, seed, on_step, on_check, state)
    if module.start < module.total_steps:
        run_steps(module, range(module.start, module.total_steps), device_of(accelerator), logger, folder)
    trained = module.net_of_snapshots()
    trained.certify()
    return trained


class _BellmanFit(LightningModule):
    """One fit: the layers H-1 .. 0 one after another, `settings.steps` optimiser steps each."""

    def __init__(
        self,
        net: Net,
        data: TrainingData,
        settings: TrainingSettings,
        seed: Seed,
        on_step: Callable,
        on_check: Callable,
        state: FilePath | None,
    ):
        super().__init__()
        self.net, self.settings, self.seed = net, settings, seed
        self.on_step, self.on_check, self.state_file = on_step, on_check, state
        self.graph: StateGraph = net.problem.graph
        self.total_steps = settings.steps * self.graph.horizon
        self.count, self.num_levels, self.samples = len(data.D), len(data.levels), data.samples
        self.D = torch.cat([D.float() for D in data.levels.values()])  # rows: L levels of B simulators each
        self.scarcity = net.scarcity(torch.tensor([*data.levels])).repeat_interleave(self.count)
        count, held_out = self.count, int(settings.held_out * self.count)
        self.batched = count - (held_out if held_out > 1 else 0)  # simulators in batches: the first ones
        self.V_hat = self.D.new_zeros(net.size, len(self.D), self.graph.num_states)
        self.weight = self.D.new_ones(net.size, count)
        if settings.bootstrap:  # Bayesian bootstrap over simulators
            uniform = torch.rand(net.size, count, generator=seed.child("bootstrap").generator(), dtype=torch.float32)
            self.weight = -uniform.clamp(min=1e-12).log()
        self.summary = net.standardised(self.D, self.scarcity)
        self.layer = self.graph.horizon  # the layer in training; none yet
        self.snapshots = Snapshots(settings.steps, settings.snapshots)
        self.checked = torch.zeros(0, 1 + net.size, dtype=torch.float64)  # steps done, held-out risks: what was told
        self.told = torch.zeros(0, 2, dtype=torch.float64)  # steps done, mean Bellman risk
        self.start, self.moments, self.saved = 0, {}, time.monotonic()
        self.origin = origin_of(net, data.tensors(), settings, seed) if state else {}
        if state and state.exists():
            self._go_on_from(state)

    # -- what Lightning calls ----------------------------------------------------------------------------------------

    def configure_optimizers(self):
        optimiser = torch.optim.Adam(self.net.parameters(), lr=self.settings.learning_rate, fused=True)
        if self.moments:
            groups = optimiser.state_dict()["param_groups"]
            optimiser.load_state_dict({"state": self.moments, "param_groups": groups})
        rate = lambda step: one_cycle(self.start + step, self.settings.steps)  # noqa: E731
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        for name in ("V_hat", "weight", "summary", "scarcity"):
            setattr(self, name, getattr(self, name).to(self.device))
        self.snapshots.load(self.snapshots.tensors(), self.device)

    def training_step(self, number: int) -> Tensor:
        layer = self.graph.horizon - 1 - int(number) // self.settings.steps
        if layer < self.layer:
            self._enter(layer)
        rows, x, actions, local, target = self._batch(int(number))
        with self.seed.child("noise", int(number)).as_global(self.device):  # of Dropout and the like in users' modules
            q = self.net.raw_q(layer, self.summary[rows], local, x, self.scarcity[rows])
        loss = (_errors(q, actions, target).mean(-1) * self.weight[:, rows % self.count]).mean(-1)  # [F]
        if self.logger is not None:
            self.log_dict({"train/bellman_risk": loss.mean().detach(), "train/layer": float(layer)})
        return loss.sum()

    def on_train_batch_end(self, outputs, batch: int, batch_idx: int) -> None:
        done, steps = int(batch) + 1, self.settings.steps
        within = (done - 1) % steps + 1
        if within in self.snapshots.ends or self.batched < self.count and within % max(1, steps // CHECKS) == 0:
            self._check(done, within)
        if within == steps:
            self._leave()
        if done % EVERY == 0 or done == self.total_steps:
            risk = float(outputs["loss"]) / self.net.size
            self.told = torch.cat([self.told, torch.tensor([[done, risk]], dtype=torch.float64)])
            self.on_step(done, self.total_steps, risk)
        if self.state_file and (time.monotonic() - self.saved > SAVE_SECONDS or done == self.total_steps):
            self._save(done)

    # -- a layer, from its start to its end --------------------------------------------------------------------------

    def _enter(self, layer: int) -> None:
        """Precomputes a layer's features and targets; the layer below is frozen and valued."""
        self.layer = layer
        states = self.graph.states_of(layer)
        x = torch.stack([self.samples[s].x for s in states], 1)  # [B, S, n, d]
        places = x.flatten(1, 2).repeat(self.num_levels, 1, 1)
        self.features = self.net.local(self.D, layer, places)  # on the CPU, where the density grid is
        self.x = x.to(self.device)
        self.actions = torch.stack([self.samples[s].actions for s in states], 1).to(self.device)
        reward = torch.stack([self.samples[s].rewards for s in states], 1).float().to(self.device)
        self.features = self.features.unflatten(1, x.shape[1:3]).to(self.device)  # [L B, S, n, S]
        reward, actions = (t.repeat(self.num_levels, 1, 1) for t in (reward, self.actions))
        self.target = reward.expand(self.net.size, *reward.shape)  # [F, L B, S, n]
        if layer + 1 < self.graph.horizon:
            following = self.graph.next_state[states].to(self.device)  # [S, A]
            V_next = self.V_hat[:, :, following]  # [F, L B, S, A]
            self.target = reward + V_next.gather(-1, actions.expand(self.net.size, *actions.shape))

    @torch.no_grad()
    def _check(self, done: int, within: int) -> None:
        """Shows the members' states, and their risks on the simulators held out, to the snapshots."""
        risks = torch.cat([_errors(q, *rest).mean(2) for q, *rest in self._held_out()], 1)  # [F, L b]
        risks = risks.unflatten(1, (self.num_levels, -1)).mean(1)  # levels of one simulator are no further ones
        self.snapshots.look(within, self._of_layer(), risks)
        row = torch.cat([risks.new_tensor([done]), risks.mean(1)]).double().cpu()
        self.checked = torch.cat([self.checked, row[None]])
        self.on_check(done, row[1:])

    @torch.no_grad()
    def _leave(self) -> None:
        """What is kept of the last span becomes the layer, which values its states from the same draws."""
        for name, value in self._of_layer().items():
            value.copy_(self.snapshots.kept[-1][name])
        states, n = self.x.shape[1:3]
        for rows in torch.arange(len(self.D)).split(32):
            value = self._q(rows).amax(-1).clamp(0, 1).unflatten(2, (states, n)).mean(-1)
            self.V_hat[:, rows[:, None], self.graph.states_of(self.layer)] = value

    def _of_layer(self) -> dict[str, Tensor]:
        """The weights of the layer in training, by name, members first; views, not copies."""
        return {n: value for n, value in self.net.stacked().items() if n.startswith(f"steps.{self.layer}.")}

    # -- samples -----------------------------------------------------------------------------------------------------

    def _q(self, rows: Tensor) -> Tensor:
        """f on all samples of these rows: [F, rows, S n, A]."""
        x, local = self.x[rows % self.count].flatten(1, 2), self.features[rows].flatten(1, 2)
        return self.net.raw_q(self.layer, self.summary[rows], local, x, self.scarcity[rows])

    def _held_out(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(q, actions, target) of the simulators that tell which state is kept, level by level, a few at a time."""
        first = self.batched if self.batched < self.count else 0  # of all where none is held out
        rows = torch.arange(len(self.D)).view(self.num_levels, -1)[:, first:].flatten()
        for part in rows.split(32):
            actions = self.actions[part % self.count].flatten(1, 2)
            yield self._q(part), actions, self.target[:, part].flatten(2, 3)

    def _batch(self, number: int) -> tuple[Tensor, ...]:
        """Random simulators, a random level of each, and random samples of every state of the layer.

        A function of the step alone.
        """
        generator = self.seed.child("batch", number).generator()
        _, states, n, _ = self.x.shape
        b = torch.randperm(self.batched, generator=generator)[: self.settings.batch_simulators]
        size = min(n, self.settings.batch_samples)
        i = (
            torch.rand(len(b), states, n, generator=generator, dtype=torch.float32)
            .topk(size, -1)
            .indices.to(self.device)
        )
        rows = b + self.count * torch.randint(self.num_levels, b.shape, generator=generator)
        state = torch.arange(states, device=self.device)[None, :, None]
        of_b, of_row = ((k.to(self.device)[:, None, None], state, i) for k in (b, rows))
        x, actions, local = self.x[of_b], self.actions[of_b], self.features[of_row]
        target = self.target[(slice(None), *of_row)]
        return rows, x.flatten(1, 2), actions.flatten(1, 2), local.flatten(1, 2), target.flatten(2, 3)

    # -- to disk and back --------------------------------------------------------------------------------------------

    def _save(self, done: int) -> None:
        moments = self.optimizers().optimizer.state_dict()["state"]
        parts = {
            "net": self.net.state_dict(),
            "moments": {f"{i}.{key}": value for i, values in moments.items() for key, value in values.items()},
            "snapshots": self.snapshots.tensors(),
            "fit": {"V_hat": self.V_hat, "checked": self.checked, "told": self.told},
        }
        save_state(self.state_file, self.origin, done, parts)
        self.saved = time.monotonic()

    def _go_on_from(self, path: FilePath) -> None:
        """Takes up what `_save` left."""
        self.start, parts = load_state(path, self.origin)
        self.net.load_state_dict(parts["net"])
        for place, value in parts["moments"].items():
            number, _, key = place.partition(".")
            self.moments.setdefault(int(number), {})[key] = value
        self.snapshots.load(parts.get("snapshots", {}), torch.device("cpu"))
        self.V_hat, self.checked, self.told = (parts["fit"][name] for name in ("V_hat", "checked", "told"))
        for done, risk in self.told.tolist():
            self.on_step(int(done), self.total_steps, risk)
        for done, *risks in self.checked.tolist():
            self.on_check(int(done), torch.tensor(risks, dtype=torch.float64))

    def net_of_snapshots(self) -> Net:
        stacked = self.snapshots.stacked()
        return self.net.cpu().with_members({name: stacked[name] for name in self.net.stacked()})


def _errors(q: Tensor, actions: Tensor, target: Tensor) -> Tensor:
    """(f(x, a) - target)^2 for q [F, b, m, A], actions [b, m], target [F, b, m]: [F, b, m]."""
    return (q.gather(-1, actions.expand(q.shape[:-1])[..., None]).squeeze(-1) - target).square()


def one_cycle(step: int, steps: int, warm: float = 0.3) -> float:
    """Share of the peak rate: a linear rise over `warm` of the steps, then a cosine fall; restarts every `steps`.

    >>> [round(one_cycle(s, 10), 2) for s in (0, 2, 9)]
    [0.33, 1.0, 0.02]
    """
    position = (step % steps + 1) / steps
    if position <= warm:
        return position / warm
    fall = (position - warm) / (1 - warm)
    return max(0.5 * (1 + float(torch.cos(torch.tensor(fall * torch.pi, dtype=torch.float32)))), 2e-2)
