r"""Trains stacked members together, on simulators alone: rewards, then values, then what has not been learned yet.

    rewards   networks like those of F are fitted to immediate rewards, where these vary; again, with twice as many
              steps, while they leave much of what rewards differ by unexplained, and a round still helps
    values    backward induction on the state graph makes Q_hat of them (targets.py); layers of F are fitted to it
    further   rounds of twice as many steps each, for the layers that cost the class most (shortfall.py)

Members differ by their initial weights and by a bootstrap over simulators. The Bellman error of what comes out is the
error of two fits, whatever the horizon is. How it was trained promises nothing: elimination judges F on other draws.

The layers of a round are fitted side by side where there are workers for them (work.py).

A fit goes on where it was stopped, to the bit: batches depend on the step alone, and state files (state.py) hold
everything else: one the fit, one each layer in work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import TypeVar

import torch
from torch import Tensor

from s2r_torch.density.patches import all_rows
from s2r_torch.encoders.regression import Regression
from s2r_torch.predictors.ensemble import users_code
from s2r_torch.predictors.nets.lipschitz_estimate import pairwise_lipschitz
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.memory import Job, Memory
from s2r_torch.predictors.training.settings import Board, TrainingSettings, device_of
from s2r_torch.predictors.training.shortfall import Shortfall, shortfall, spread, unexplained
from s2r_torch.predictors.training.snapshots import layer_weights
from s2r_torch.predictors.training.state import load_state, origin_of, save_state
from s2r_torch.predictors.training.targets import (
    CLOSE,
    FEW,
    HELPED,
    Payments,
    Rewards,
    Values,
    View,
    best_shares,
    require_finite,
    told_of_rest,
)
from s2r_torch.predictors.training.work import Bench, Check, FittedLayer, Step, Work, fit_layer
from s2r_torch.rng import Seed
from s2r_torch.workers.engines import SERIAL, Made, Workers
from s2r_torch.workers.threads import in_threads

Result = TypeVar("Result")

UNEXPLAINED = 0.1  # share of the variance of mean rewards between simulators that may be left so
NEAR = 0.05  # root mean squared error of mean rewards that is no reason for a further round
VALUED = 16  # samples of a state that its value is the mean over, at most


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
) -> TrainedNet:
    """Fits all members of `net`, and returns the net of all snapshots, members x snapshots of them.

    Args:
        net: stacked members with fresh weights; trained in place, unless lipschitz_bound=auto makes another one.
        data: transitions at every state of B simulators.
        settings: sizes and rates.
        seed: named stream of batches and bootstrap weights.
        accelerator: `cpu` or `gpu`.
        board: of TensorBoard.
        listener: who is told.
        folder: Lightning's working folder.
        state: file to go on from, if it is there, and to write to; layers in work have files of their own beside it.
        workers: who fits layers.

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
    run = _Fit(net, data, settings, seed, listener or Listener(), state)
    run.finish(workers, accelerator, board, folder)
    trained = run.net_of_snapshots()
    trained.certify()
    return TrainedNet(trained, run.left)


class _Fit:
    """All layers, one job after another, and everything that a state file holds."""

    left: Shortfall  # as of the last look, which ends every fit

    def __init__(
        self,
        net: Net,
        data: TrainingData,
        settings: TrainingSettings,
        seed: Seed,
        listener: Listener,
        state: FilePath | None,
    ):
        self.net, self.data, self.settings, self.seed = net, data, settings, seed
        self.listener, self.state_file = listener, state
        self.graph, self.rewards = net.problem.graph, _copy(net)
        count, levels = len(data.D), data.levels
        self.scarcity = net.scarcity(torch.tensor([*levels])).repeat_interleave(count)
        self.rows = torch.arange(len(self.scarcity))  # L levels of B simulators each
        by_level = zip(levels.values(), self.scarcity.split(count), strict=True)
        self.summary = torch.cat([net.standardised(D, scarcity) for D, scarcity in by_level])
        self.draw = Draw.of(net.size, count, len(levels), settings, seed)
        self.payments = Payments.of(data, self.graph.num_actions)
        V_hat = torch.zeros(net.size, len(self.rows), self.graph.num_states, dtype=torch.float32)
        self.memory = Memory.blank(V_hat, self.graph.horizon)
        self.memory.plan(self.payments.layers(self.graph), settings.steps, values=False)
        self.origin = origin_of(net, data.tensors(), settings, seed) if state else {}
        if state and state.exists():
            self._go_on_from(state)

    def finish(self, workers: Workers, accelerator: str, board: Board | None, folder: FilePath | None) -> None:
        """Does all jobs, round by round, and those that they show to be needed."""
        memory = self.memory
        while memory.finished < len(memory.jobs) or self._further():
            jobs = memory.jobs[memory.finished :]  # of one round
            if memory.begins_round():
                self.listener.on_round(*memory.described(jobs[0].round))
            self._save()
            net = self.net if jobs[0].values else self.rewards
            bench = Bench(
                net, self.draw, self.settings, self.seed, accelerator, board, folder, self.state_file, self.origin
            )
            fitted = workers.map(fit_layer, bench, Made(self._work, jobs), self._hear)
            for job, layer in zip(jobs, fitted, strict=True):
                self._leave(job, layer, net)
                if unfinished := bench.state_of(job):
                    unfinished.unlink(missing_ok=True)

    def _further(self) -> bool:
        """Plans the round after one that is done, and says whether there is any."""
        memory, steps = self.memory, self.settings.steps
        if memory.rounds(values=True):
            layers = self._values_again()
        elif again := self._rewards_again():
            memory.plan(again, steps, values=False)
            return True
        else:
            self._induct()
            layers = list(range(self.graph.horizon - 1, -1, -1))
        memory.plan(layers, steps, values=True)
        return bool(layers)

    def _rewards_again(self) -> list[int]:
        """The layers whose rewards another round may explain, from the last one."""
        layers = self.payments.layers(self.graph)
        left = dict(zip(layers, map(self._unexplained, layers), strict=True))
        wanted = [h for h, (error, variance) in left.items() if error > max(UNEXPLAINED * variance, NEAR**2)]
        return self._if_it_helps(wanted, {h: error for h, (error, _) in left.items()}, values=False)

    def _values_again(self) -> list[int]:
        """The layers whose values another round may bring nearer to their targets, from the last one."""
        self.left = found = self.shortfall()
        regret = dict(enumerate(found.of_class.tolist()))
        return self._if_it_helps(found.layers_above(self.settings.tolerance), regret, values=True)

    def _if_it_helps(self, layers: list[int], missed: dict[int, float], values: bool) -> list[int]:
        """Those of the layers that were not fitted in the last round, or of which that round left much less missed."""
        memory = self.memory
        before, last = memory.missed[int(values)], memory.last(values)
        again = [h for h in layers if h not in last or missed[h] <= HELPED * float(before[h])]
        for h, value in missed.items():
            before[h] = value
        return again if memory.rounds(values) < self.settings.rounds else []

    @torch.no_grad()
    def _unexplained(self, layer: int) -> tuple[float, float]:
        """What the median member misses of a layer's mean rewards, on held-out simulators, and their variance."""
        states, rows = self.graph.states_of(layer), self.draw.held_out(1)
        targets, columns = Rewards.of(self.data, self.payments, states), torch.arange(self._view(layer).x.shape[1])
        by_state = self._said(layer, rows, columns.view(len(states), -1))
        paid, tried = (part.unflatten(1, (len(states), -1)) for part in (targets.paid, targets.tried))
        return float(unexplained(by_state, paid[rows], tried[rows]).median()), spread(paid, tried)

    @cached_property
    @torch.no_grad()
    def rest(self) -> Tensor:
        """What networks miss of rewards once fitted, as far as densities tell (`told_of_rest`): [F, R, xi, A]."""
        count, size = len(self.data.D), (len(self.rows), self.graph.num_states, self.graph.num_actions)
        found = torch.zeros(self.net.size, *size, dtype=torch.float32)
        layers = {h: self.graph.states_of(h) for h in self.payments.layers(self.graph)}
        if not layers or not self.summary.shape[1] or not bool(torch.isfinite(self.summary).all()):
            return found
        for h, states in layers.items():
            found[:, :, states] = self._missed(h)

        def told(rows: Tensor) -> list[Tensor]:
            looks = Regression(self.summary[rows].double())
            return [told_of_rest(found[:, rows[:, None], states].double(), looks) for states in layers.values()]

        by_level = self.rows.split(count)
        for rows, parts in zip(by_level, in_threads(told, by_level), strict=True):
            for states, part in zip(layers.values(), parts, strict=True):
                found[:, rows[:, None], states] = part.float()
        return found

    def _missed(self, layer: int) -> Tensor:
        """Mean rewards of a layer minus what networks say of them, where they vary and were tried: [F, R, S, A]."""
        states = self.graph.states_of(layer)
        targets = Rewards.of(self.data, self.payments, states)
        paid, tried = (part.unflatten(1, (len(states), -1)).sum(2) for part in (targets.paid, targets.tried))
        said = self._said(layer, self.rows, self._valued(layer), lambda q: q.mean(3))
        left = (paid / tried.clamp(min=1)).repeat(self.draw.levels, 1, 1) - said
        return torch.where(tried.repeat(self.draw.levels, 1, 1) > 0, left, 0)

    def _said(
        self, layer: int, rows: Tensor, columns: Tensor, made_of: Callable[[Tensor], Tensor] = lambda q: q
    ) -> Tensor:
        """What networks say of rewards at columns [S, c] of rows [k], or what is made of it: [F, k, S, c, A] in [0, 1].

        0 at states whose rewards never vary, which nobody asks them about.
        """
        view, told = self._view(layer), self.payments.varies[self.graph.states_of(layer)].any(1)
        columns = columns[told]

        def of_some(few: Tensor) -> Tensor:
            seen = view.at(self.rewards, few, columns.flatten().expand(len(few), -1))
            return made_of(seen.q(self.rewards, layer).clamp(0, 1).unflatten(2, columns.shape))

        said = torch.cat([*self._each(of_some, rows.split(FEW))], 1)
        found = said.new_zeros(*said.shape[:2], len(told), *said.shape[3:])
        found[:, :, told] = said
        return found

    @torch.no_grad()
    def _induct(self) -> None:
        """V_hat of all states by backward induction, and where the best policy by Q_hat comes."""
        leaving = []
        for layer in range(self.graph.horizon - 1, -1, -1):
            states = self.graph.states_of(layer)
            leaving.append(torch.zeros(len(self.rows), len(states), self.graph.num_actions, dtype=torch.float32))
            for rows, best, shares in self._promised(layer):
                require_finite(best, self.rewards.name, layer)
                self.memory.V_hat[:, rows[:, None], states], leaving[-1][rows] = best, shares
        self.memory.walked = self.graph.walked(leaving[::-1])

    def _promised(self, layer: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of some rows [k] at a time: V_hat [F, k, S] of a layer's states, and shares [k, S, A] of the best actions."""
        view, targets, columns = self._view(layer), self._values(layer), self._valued(layer)

        def of_some(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            seen = view.at(self.rewards, rows, columns.flatten().expand(len(rows), -1))
            Q_hat = targets.of_seen(seen)[0].unflatten(2, columns.shape)
            return rows, Q_hat.amax(-1).mean(-1), best_shares(Q_hat, CLOSE).mean((0, 3))

        return self._each(of_some, self.rows.split(FEW))

    def _each(self, task: Callable[[Tensor], Result], items: Iterable[Tensor]) -> Iterator[Result]:
        """map(task, items), of several at once where this process has threads for them."""
        return (map if users_code(self.net) else in_threads)(task, items)

    @torch.no_grad()
    def shortfall(self) -> Shortfall:
        """What the members have not learned, on simulators that no batch used, at the most readings."""
        rows = self.draw.held_out(1)

        def of_layer(layer: int) -> tuple[Tensor, Tensor]:
            view, targets, valued = self._view(layer), self._values(layer), self._valued(layer)
            seen = view.at(self.net, rows, valued.flatten().expand(len(rows), -1))
            said, Q_hat = seen.q(self.net, layer).clamp(0, 1), targets.of_seen(seen)[0]
            return said.unflatten(2, valued.shape), Q_hat.unflatten(2, valued.shape)

        return shortfall(self.graph, of_layer, self.memory.V_hat[:, rows, 0].mean(1))

    # -- a layer -----------------------------------------------------------------------------------------------------

    def _work(self, job: Job) -> Work:
        """What is fitted in one job."""
        states = self.graph.states_of(job.layer)
        targets = self._values(job.layer) if job.values else Rewards.of(self.data, self.payments, states)
        return Work(job, self._view(job.layer), targets)

    def _view(self, layer: int) -> View:
        states = self.graph.states_of(layer)
        looked_up = states if self.net.looks_up else []
        D = all_rows([D[:, looked_up].to(torch.float32) for D in self.data.levels.values()])
        return View(self.data.columns(states).x, D, self.summary, self.scarcity)

    def _valued(self, layer: int) -> Tensor:
        """The columns [S, n] of a layer's states that their values are means over."""
        n = self.data.samples[0].x.shape[1]
        return torch.arange(len(self.graph.states_of(layer)) * n).view(-1, n)[:, :VALUED]

    def _values(self, layer: int) -> Values:
        n = self.data.samples[0].x.shape[1]
        memory, rest = self.memory, self.rest[:, :, self.graph.states_of(layer)]
        return Values.of(self.rewards, self.payments, memory.V_hat, memory.walked, layer, n, rest)

    def _leave(self, job: Job, fitted: FittedLayer, net: Net) -> None:
        """What is kept of the last span becomes the layer."""
        for name, value in layer_weights(net.cpu(), job.layer).items():
            value.copy_(fitted.kept[-1][name])
        if job.values:
            self.memory.kept[job.layer] = fitted.kept
        self.memory.ends += (self.memory.done + fitted.steps,)
        self.listener.on_layer(job.values, job.layer, self.memory.done)
        self._save()

    # -- who is told, and the disk -----------------------------------------------------------------------------------

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
            nets = {"net": self.net.state_dict(), "rewards": self.rewards.state_dict()}
            save_state(self.state_file, self.origin, self.memory.done, {**nets, **self.memory.parts()})

    def _go_on_from(self, path: FilePath) -> None:
        """Takes up what `_save` left, and tells again what was told."""
        parts = load_state(path, self.origin)
        self.net.load_state_dict(parts.pop("net"))
        self.rewards.load_state_dict(parts.pop("rewards"))
        self.memory = Memory.of(parts)
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
        kept = self.memory.kept
        stacked = {
            name: torch.cat([weights[name] for weights in kept[int(name.split(".")[1])]]) for name in self.net.stacked()
        }
        return self.net.cpu().with_members(stacked)


def _copy(net: Net) -> Net:
    """The same members, to be trained apart."""
    copy = net.with_members(net.stacked())
    for mine, theirs in zip(copy.parameters(), net.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    return copy
