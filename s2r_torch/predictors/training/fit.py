r"""Trains stacked members together, on simulators alone: rewards, then values, then what has not been learned yet.

    rewards   networks like those of F are fitted to immediate rewards, where these vary; again, with twice as many
              steps, while they leave much of what rewards differ by unexplained, and a round still helps
    values    backward induction on the state graph makes Q_hat of them (targets.py); layers of F are fitted to it
    further   rounds of twice as many steps each, for the layers that cost the class most (shortfall.py)
    looser    where what a round left is missed on simulators of its batches, too, C_L may be in the way: all layers are
              fitted anew with a larger one (lessons.py), unless it was given

Members differ by their initial weights and by a bootstrap over simulators. The Bellman error of what comes out is the
error of two fits, whatever the horizon is. How it was trained promises nothing: elimination judges F on other draws.

The layers of a round are fitted side by side where there are workers for them (work.py).

A fit goes on where it was stopped, to the bit: batches depend on the step alone, and state files (state.py) hold
everything else: one the fit, one each layer in work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TypeVar

import torch
from torch import Tensor

from s2r_torch.predictors.nets.lipschitz_estimate import pairwise_lipschitz
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.lessons import Lessons
from s2r_torch.predictors.training.memory import Job, Memory
from s2r_torch.predictors.training.settings import Board, TrainingSettings, device_of
from s2r_torch.predictors.training.shortfall import Shortfall
from s2r_torch.predictors.training.snapshots import layer_weights
from s2r_torch.predictors.training.state import load_state, origin_of, save_state
from s2r_torch.predictors.training.targets import (
    HELPED,
)
from s2r_torch.predictors.training.work import Bench, Check, FittedLayer, Step, fit_layer
from s2r_torch.rng import Seed
from s2r_torch.workers.engines import SERIAL, Made, Workers

Result = TypeVar("Result")

UNEXPLAINED = 0.1  # share of the variance of mean rewards between simulators that may be left so
NEAR = 0.05  # root mean squared error of mean rewards that is no reason for a further round
STIFF = 0.5  # share of what is missed held-out that is missed in batches, too, where C_L keeps networks from it
LOOSEST = 2  # times that networks are made looser, at most: then densities' noise is what they follow


@dataclass(frozen=True, eq=False)
class Listener:
    """Who is told how a fit goes on; a fit that goes on tells again what came before.

    Args:
        on_round: (what is fitted, steps at most) when a round of layers begins.
        on_step: (steps done, mean risk) every `EVERY` steps, and at the end of a layer.
        on_check: (steps done, risks [F]) when held-out risks are looked at.
        on_layer: (of values, or of rewards; layer; steps done) when the fit of a layer ends.
    """

    on_round: Callable[[str, int], None] = lambda what, steps: None
    on_step: Callable[[int, float], None] = lambda done, risk: None
    on_check: Callable[[int, Tensor], None] = lambda done, risks: None
    on_layer: Callable[[bool, int, int], None] = lambda values, layer, done: None


@dataclass(frozen=True, eq=False)
class TrainedNet:
    """What training leaves: the net of all snapshots, frozen and certified, and what it has not learned."""

    net: Net
    shortfall: Shortfall


def fit(
    net: Net,
    data: TrainingData,
    settings: TrainingSettings,
    seed: Seed,
    *,
    accelerator: str = "cpu",
    board: Board | None = None,
    listener: Listener | None = None,
    folder: FilePath | None = None,
    state: FilePath | None = None,
    workers: Workers = SERIAL,
    may_loosen: bool = False,
) -> TrainedNet:
    """Fits all members of `net`, and returns the net of all snapshots, members x snapshots of them.

    Args:
        net: stacked members with fresh weights; trained in place, unless another C_L makes another one.
        data: transitions at every state of B simulators.
        settings: sizes and rates.
        seed: named stream of batches and bootstrap weights.
        accelerator: `cpu` or `gpu`.
        board: of TensorBoard.
        listener: who is told.
        folder: Lightning's working folder.
        state: file to go on from, if it is there, and to write to; layers in work have files of their own beside it.
        workers: who fits layers.
        may_loosen: whether C_L may grow where it keeps members from what they are fitted to.

    Returns:
        The net, on the CPU; its last `settings.members` are the final ones.

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
    device_of(accelerator)
    lessons = Lessons(net, data, Draw.of(net.size, len(data.D), data.draws, settings, seed))
    may_loosen = may_loosen and not net.common_spread  # C_L is in the summaries of some
    run = _Fit(lessons, settings, seed, listener or Listener(), state, may_loosen)
    run.finish(workers, accelerator, board, folder)
    trained = run.net_of_snapshots()
    trained.certify()
    return TrainedNet(trained, run.left)


class _Fit:
    """All layers, one job after another, and everything that a state file holds."""

    left: Shortfall  # as of the last look, which ends every fit

    def __init__(
        self,
        lessons: Lessons,
        settings: TrainingSettings,
        seed: Seed,
        listener: Listener,
        state: FilePath | None,
        may_loosen: bool,
    ):
        self.lessons, self.settings, self.seed = lessons, settings, seed
        self.listener, self.state_file, self.may_loosen = listener, state, may_loosen
        self.graph, self.memory = lessons.graph, lessons.memory
        self.memory.plan(lessons.paying, settings.steps, values=False)
        self.origin = origin_of(lessons.net, lessons.data.tensors(), settings, seed) if state else {}
        if state and state.exists():
            self._go_on_from(state)

    def finish(self, workers: Workers, accelerator: str, board: Board | None, folder: FilePath | None) -> None:
        """Does all jobs, round by round, and those that they show to be needed."""
        memory, lessons = self.memory, self.lessons
        while memory.finished < len(memory.jobs) or self._further():
            jobs = memory.jobs[memory.finished :]  # of one round
            if memory.begins_round():
                self.listener.on_round(*memory.described(jobs[0].round))
            self._save()
            net = lessons.net if jobs[0].values else lessons.rewards
            bench = Bench(
                net, lessons.draw, self.settings, self.seed, accelerator, board, folder, self.state_file, self.origin
            )
            fitted = workers.map(fit_layer, bench, Made(lessons.work, jobs), self._hear)
            for job, layer in zip(jobs, fitted, strict=True):
                self._leave(job, layer, net)
                if unfinished := bench.state_of(job):
                    unfinished.unlink(missing_ok=True)

    # -- which layers are fitted next --------------------------------------------------------------------------------

    def _further(self) -> bool:
        """Plans the round after one that is done, and says whether there is any."""
        memory, steps = self.memory, self.settings.steps
        if memory.rounds(values=True):
            layers = self._values_again()
        elif again := self._rewards_again():
            memory.plan(again, steps, values=False)
            return True
        else:
            self._begin_values()
            layers = self._all_layers()
        memory.plan(layers, steps, values=True)
        return bool(layers)

    def _begin_values(self) -> None:
        """Values of the last layer are rewards: what these needed of C_L, F needs."""
        self.memory.loosened[1] = self.memory.loosened[0]
        self._as_loosened(values=True)
        self.lessons.induct()

    def _all_layers(self) -> list[int]:
        return list(range(self.graph.horizon - 1, -1, -1))

    def _rewards_again(self) -> list[int]:
        """The layers whose rewards another round may explain, from the last one."""
        lessons, paying = self.lessons, self.lessons.paying
        held_out, learned = self._rows()
        error = {h: lessons.unexplained(h, held_out) for h in paying}
        wanted = [h for h in paying if error[h] > max(UNEXPLAINED * lessons.spread(h), NEAR**2)]
        again = self._if_it_helps(wanted, error, values=False)
        missed = sum(error[h] for h in again)
        of_learned = lambda: sum(lessons.unexplained(h, learned) for h in again)  # noqa: E731
        return self._again_or_anew(again, paying, missed, of_learned, values=False)

    def _values_again(self) -> list[int]:
        """The layers whose values another round may bring nearer to their targets, from the last one."""
        held_out, learned = self._rows()
        self.left = found = self.lessons.shortfall(held_out)
        regret = dict(enumerate(found.of_class.tolist()))
        again = self._if_it_helps(found.layers_above(self.settings.tolerance), regret, values=True)
        of_learned = lambda: float(self.lessons.shortfall(learned).of_class.sum())  # noqa: E731
        return self._again_or_anew(again, self._all_layers(), sum(regret.values()), of_learned, values=True)

    def _rows(self) -> tuple[Tensor, Tensor]:
        """The simulators that no batch uses, and as many of those that batches use, at the most readings."""
        held_out = self.lessons.draw.held_out(1)
        return held_out, self.lessons.draw.learned(len(held_out))

    def _again_or_anew(
        self, again: list[int], every: list[int], missed: float, of_learned: Callable[[], float], values: bool
    ) -> list[int]:
        """Layers that are fitted again; or all, anew, where C_L is in the way and that is at most twice the work."""
        loosened = self.memory.loosened
        may = self.may_loosen and loosened[int(values)] < LOOSEST and again and 2 * len(again) >= len(every)
        if not (may and of_learned() >= STIFF * missed):
            return again
        loosened[int(values)] += 1
        self._as_loosened(values)
        return every

    def _as_loosened(self, values: bool) -> None:
        """Makes networks as loose as memory says, if it does."""
        if times := int(self.memory.loosened[int(values)]):
            seed = self.seed.child("loosened", "values" if values else "rewards", times)
            self.lessons.loosen(values, times, seed)

    def _if_it_helps(self, layers: list[int], missed: dict[int, float], values: bool) -> list[int]:
        """Those of the layers that were not fitted in the last round, or of which that round left much less missed."""
        memory = self.memory
        before, last = memory.missed[int(values)], memory.last(values)
        again = [h for h in layers if h not in last or missed[h] <= HELPED * float(before[h])]
        for h, value in missed.items():
            before[h] = value
        return again if memory.rounds(values) < self.settings.rounds else []

    # -- who is told, and the disk -----------------------------------------------------------------------------------

    def _leave(self, job: Job, fitted: FittedLayer, net: Net) -> None:
        """What is kept of the last span becomes the layer."""
        for name, value in layer_weights(net.cpu(), job.layer).items():
            value.copy_(fitted.kept[-1][name])
        if job.values:
            self.memory.kept[job.layer] = fitted.kept
        self.memory.ends += (self.memory.done + fitted.steps,)
        self.listener.on_layer(job.values, job.layer, self.memory.done)
        self._save()

    def _hear(self, news: Step | Check) -> None:
        """Of the layer in work, which counts its own steps."""
        done = self.memory.done + news.done
        if isinstance(news, Step):
            self.memory.tell(done, news.risk)
            self.listener.on_step(done, news.risk)
        else:
            self.memory.check(done, news.risks)
            self.listener.on_check(done, news.risks)

    def _save(self) -> None:
        if self.state_file:
            nets = {"net": self.lessons.net.state_dict(), "rewards": self.lessons.rewards.state_dict()}
            save_state(self.state_file, self.origin, self.memory.done, {**nets, **self.memory.parts()})

    def _go_on_from(self, path: FilePath) -> None:
        """Takes up what `_save` left, and tells again what was told."""
        parts = load_state(path, self.origin)
        net, rewards = parts.pop("net"), parts.pop("rewards")
        self.memory = self.lessons.memory = Memory.of(parts)
        for values in (False, True):
            self._as_loosened(values)
        self.lessons.net.load_state_dict(net)
        self.lessons.rewards.load_state_dict(rewards)
        for number in self.memory.rounds_begun():
            self.listener.on_round(*self.memory.described(number))
        for done, risk in self.memory.told.tolist():
            self.listener.on_step(int(done), risk)
        for done, *risks in self.memory.checked.tolist():
            self.listener.on_check(int(done), torch.tensor(risks, dtype=torch.float64))
        for job, done in zip(self.memory.jobs, self.memory.ends, strict=False):
            self.listener.on_layer(job.values, job.layer, done)

    def net_of_snapshots(self) -> Net:
        """All snapshots as members of one class, span by span."""
        kept, net = self.memory.kept, self.lessons.net
        stacked = {
            name: torch.cat([weights[name] for weights in kept[int(name.split(".")[1])]]) for name in net.stacked()
        }
        return net.cpu().with_members(stacked)
