"""What the networks of a fit see, what they are to learn from it, and what of it they miss: of a layer, or of all.

Nothing here is kept but the networks: all of it follows from them, the data, and the values that memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from s2r_torch.density.patches import all_rows
from s2r_torch.encoders.regression import Regression
from s2r_torch.predictors.ensemble import users_code
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.predictors.training.draw import Draw
from s2r_torch.predictors.training.memory import Job, Memory
from s2r_torch.predictors.training.shortfall import Shortfall, shortfall, spread, unexplained
from s2r_torch.predictors.training.targets import (
    CLOSE,
    FEW,
    Payments,
    Rewards,
    Values,
    View,
    best_shares,
    require_finite,
    told_of_rest,
)
from s2r_torch.predictors.training.work import Work
from s2r_torch.rng import Seed
from s2r_torch.workers.threads import in_threads

Result = TypeVar("Result")

LOOSER = 4.0  # times as large as before is the C_L of networks that cannot follow their targets
VALUED = 16  # samples of a state that its value is the mean over, at most


class Lessons:
    """All layers of the networks of rewards and of F, on one set of data.

    Args:
        net: stacked members with fresh weights and fitted scales, of which those of rewards are a copy.
        data: transitions at every state of B simulators.
        draw: which of them batches use.
    """

    def __init__(self, net: Net, data: TrainingData, draw: Draw):
        self.net, self.rewards, self.data, self.draw = net, _copy(net), data, draw
        self.graph, self.first_bound = net.problem.graph, net.declared_bound
        levels, sizes = data.levels, [len(D) for D in data.levels.values()]
        self.scarcity = net.scarcity(torch.tensor([*levels])).repeat_interleave(torch.tensor(sizes))
        self.rows = torch.arange(len(self.scarcity))  # level by level, draw by draw, B simulators each
        by_level = zip(levels.values(), self.scarcity.split(sizes), strict=True)
        self.summary = torch.cat([net.standardised(D, scarcity) for D, scarcity in by_level])
        self.payments = Payments.of(data, self.graph.num_actions)
        V_hat = torch.zeros(net.size, len(self.rows), self.graph.num_states, dtype=torch.float32)
        self.memory = Memory.blank(V_hat, self.graph.horizon)

    def loosen(self, values: bool, times: int, seed: Seed) -> None:
        """Networks of values, or of rewards, with fresh weights and a larger C_L; scales are what they were."""
        old = self.net if values else self.rewards
        settings = old.settings() | {"lipschitz_bound": self.first_bound * LOOSER**times}
        fresh = type(old)(old.problem, old.size, seed.generator(), **settings)
        for mine, theirs in zip(fresh.buffers(recurse=False), old.buffers(recurse=False), strict=True):
            mine.copy_(theirs)
        self.net, self.rewards = (fresh, self.rewards) if values else (self.net, fresh)

    # -- rewards -----------------------------------------------------------------------------------------------------

    @cached_property
    def paying(self) -> list[int]:
        """The layers in which some reward varies, from the last one."""
        return self.payments.layers(self.graph)

    @torch.no_grad()
    def unexplained(self, layer: int, rows: Tensor) -> float:
        """What the median member misses of a layer's mean rewards, on these simulators."""
        paid, tried = self._paid(layer)
        return float(unexplained(self._said(layer, rows, self._columns(layer)), paid[rows], tried[rows]).median())

    def spread(self, layer: int) -> float:
        """The variance over simulators of a layer's mean rewards."""
        return spread(*self._paid(layer))

    def _paid(self, layer: int) -> tuple[Tensor, Tensor]:
        """What was paid at a layer's states, and which actions were tried: [B, S, n, A]."""
        states = self.graph.states_of(layer)
        targets = Rewards.of(self.data, self.payments, states)
        return targets.paid.unflatten(1, (len(states), -1)), targets.tried.unflatten(1, (len(states), -1))

    @cached_property
    @torch.no_grad()
    def rest(self) -> Tensor:
        """What networks miss of rewards once fitted, as far as densities tell (`told_of_rest`): [F, R, xi, A].

        Where the first draw of a level tells nothing, the others are not asked.
        """
        count, size = len(self.data.D), (len(self.rows), self.graph.num_states, self.graph.num_actions)
        found = torch.zeros(self.net.size, *size, dtype=torch.float32)
        layers = {h: self.graph.states_of(h) for h in self.paying}
        if not layers or not self.summary.shape[1] or not bool(torch.isfinite(self.summary).all()):
            return found
        for h, states in layers.items():
            found[:, :, states] = self._missed(h)

        def told(rows: Tensor) -> list[Tensor]:
            looks = Regression(self.summary[rows].double())
            return [told_of_rest(found[:, rows[:, None], states].double(), looks) for states in layers.values()]

        def ask(draws: list[Tensor]) -> None:
            for rows, parts in zip(draws, in_threads(told, draws), strict=True):
                for states, part in zip(layers.values(), parts, strict=True):
                    found[:, rows[:, None], states] = part.float()

        by_level = self.rows.split([count * times for times in self.draw.draws])
        ask([rows[:count] for rows in by_level])
        for rows, states in product(by_level, layers.values()):
            if not bool(found[:, rows[:count, None], states].any()):
                found[:, rows[:, None], states] = 0
        ask([more for rows in by_level for more in rows[count:].split(count) if bool(found[:, more].any())])
        return found

    def _missed(self, layer: int) -> Tensor:
        """Mean rewards of a layer minus what networks say of them, where they vary and were tried: [F, R, S, A]."""
        paid, tried = (part.sum(2) for part in self._paid(layer))
        said = self._said(layer, self.rows, self._columns(layer, VALUED), lambda q: q.mean(3))
        times = sum(self.draw.draws)
        left = (paid / tried.clamp(min=1)).repeat(times, 1, 1) - said
        return torch.where(tried.repeat(times, 1, 1) > 0, left, 0)

    def _said(
        self, layer: int, rows: Tensor, columns: Tensor, made_of: Callable[[Tensor], Tensor] = lambda q: q
    ) -> Tensor:
        """What networks say of rewards at columns [S, c] of rows [k], or what is made of it: [F, k, S, c, A] in [0, 1].

        0 at states whose rewards never vary, which nobody asks them about.
        """
        view, told = self.view(layer), self.payments.varies[self.graph.states_of(layer)].any(1)
        columns = columns[told]

        def of_some(few: Tensor) -> Tensor:
            seen = view.at(self.rewards, few, columns.flatten().expand(len(few), -1))
            return made_of(seen.q(self.rewards, layer).clamp(0, 1).unflatten(2, columns.shape))

        said = torch.cat([*self._each(of_some, rows.split(FEW))], 1)
        found = said.new_zeros(*said.shape[:2], len(told), *said.shape[3:])
        found[:, :, told] = said
        return found

    # -- values ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def induct(self) -> None:
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
        view, targets, columns = self.view(layer), self.values(layer), self._columns(layer, VALUED)

        def of_some(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            seen = view.at(self.rewards, rows, columns.flatten().expand(len(rows), -1))
            Q_hat = targets.of_seen(seen)[0].unflatten(2, columns.shape)
            return rows, Q_hat.amax(-1).mean(-1), best_shares(Q_hat, CLOSE).mean((0, 3))

        return self._each(of_some, self.rows.split(FEW))

    def _each(self, task: Callable[[Tensor], Result], items: Iterable[Tensor]) -> Iterator[Result]:
        """map(task, items), of several at once where this process has threads for them."""
        return (map if users_code(self.net) else in_threads)(task, items)

    @torch.no_grad()
    def shortfall(self, rows: Tensor) -> Shortfall:
        """What the members have not learned, on these simulators at the most readings."""

        def of_layer(layer: int) -> tuple[Tensor, Tensor]:
            view, targets, valued = self.view(layer), self.values(layer), self._columns(layer, VALUED)
            seen = view.at(self.net, rows, valued.flatten().expand(len(rows), -1))
            said, Q_hat = seen.q(self.net, layer).clamp(0, 1), targets.of_seen(seen)[0]
            return said.unflatten(2, valued.shape), Q_hat.unflatten(2, valued.shape)

        return shortfall(self.graph, of_layer, self.memory.V_hat[:, rows, 0].mean(1))

    # -- a layer -----------------------------------------------------------------------------------------------------

    def work(self, job: Job) -> Work:
        """What is fitted in one job."""
        states = self.graph.states_of(job.layer)
        targets = self.values(job.layer) if job.values else Rewards.of(self.data, self.payments, states)
        return Work(job, self.view(job.layer), targets)

    def view(self, layer: int) -> View:
        """What a layer's networks see."""
        states = self.graph.states_of(layer)
        looked_up = states if self.net.looks_up else []
        D = all_rows([D[:, looked_up].to(torch.float32) for D in self.data.levels.values()])
        return View(self.data.columns(states).x, D, self.summary, self.scarcity)

    def _columns(self, layer: int, most: int | None = None) -> Tensor:
        """The columns [S, n] of a layer's states, or the first of each state."""
        n = self.data.samples[0].x.shape[1]
        return torch.arange(len(self.graph.states_of(layer)) * n).view(-1, n)[:, :most]

    def values(self, layer: int) -> Values:
        """What a layer of F is fitted to."""
        n = self.data.samples[0].x.shape[1]
        memory, rest = self.memory, self.rest[:, :, self.graph.states_of(layer)]
        return Values.of(self.rewards, self.payments, memory.V_hat, memory.walked, layer, n, rest)


def _copy(net: Net) -> Net:
    """The same members, to be trained apart."""
    copy = net.with_members(net.stacked())
    for mine, theirs in zip(copy.parameters(), net.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    return copy
