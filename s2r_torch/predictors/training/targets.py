"""What the networks of one layer see, and what they are fitted to: rewards first, then values.

    r_hat[f, b, i, a]  what a network says of rewards, where an action's reward varies; elsewhere what was always paid
    rest[f, b, s, a]   what r_hat misses of the mean reward of other simulators whose densities look like b's
    Q_hat[f, b, i, a]  = r_hat[f, b, i, a] + rest[f, b, s, a] + V_hat[f, b, T(s, a)]        for columns i of state s
    V_hat[f, b, s]     = mean over the columns of s of max_a clamp(Q_hat[f, b, i, a], 0, 1)

The state graph is known, so values follow from rewards by backward induction, exactly: a layer's targets hold no fit of
a layer below, and errors of layers do not add up (docs/networks.md). What a policy loses, it loses where it comes: so
half of all samples are of states on the way of the best policy by Q_hat, however many states there are.

b counts rows: simulators at one number of readings after another, and what a density of few readings tells of rewards
is all that its values promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities
from s2r_torch.encoders.regression import Regression, missed
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.training.data import TrainingData

CLOSE = 2e-3  # root mean squared error, in units of an episode's total reward, that needs no further step
FEW = 32  # rows evaluated at once
HELPED = 0.8  # what leaves more than this share of what it is for is not worth it
ON_THE_WAY = 0.5  # share of a batch from states where the best policy by Q_hat comes; the rest from all alike


@dataclass(frozen=True, eq=False)
class View:
    """What a layer's networks see: R rows, every level of every simulator, of m columns, the samples state by state.

    Densities are looked up where a batch is: in all of their samples they would be S^2 numbers for a layer of S states.
    """

    x: Tensor  # [B, m, d] on the CPU, where the grid is
    D: Densities  # [R, S, G] of the layer's states, on the CPU
    summary: Tensor  # [R, K]
    scarcity: Tensor  # [R]

    def at(self, net: Net, rows: Tensor, columns: Tensor) -> Seen:
        """What nets like this one, of the same grid and scales, see of rows [k] at columns [k, c] of each."""
        return Seen(net, self, rows, columns)

    def to(self, device: torch.device) -> View:
        """On another device, but for what is looked up."""
        return View(self.x, self.D, self.summary.to(device), self.scarcity.to(device))


@dataclass(frozen=True, eq=False)
class Seen:
    """Some samples as nets see them; densities are looked up once, when the first net is asked."""

    like: Net
    view: View
    rows: Tensor  # [k]
    columns: Tensor  # [k, c]

    def q(self, net: Net, layer: int) -> Tensor:
        """What a net says of them: [F, k, c, A], unclamped."""
        view, (local, x) = self.view, self._local
        return net.raw_q(layer, view.summary[self.rows], local, x, view.scarcity[self.rows])

    def q_of(self, net: Net, layer: int, some: Tensor) -> Tensor:
        """What a net says of those that `some` [k, c] bool says: [F, m, A]."""
        view, (local, x), step = self.view, self._local, net.steps[layer]
        prepared = step.prepare(view.summary[self.rows], view.scarcity[self.rows], net.constants())
        alone = prepared.part(slice(None), some.nonzero()[:, 0])  # a row for each
        return step(alone, local[some][:, None], net.scaled_x(x[some][:, None]))[:, :, 0]

    @cached_property
    def _local(self) -> tuple[Tensor, Tensor]:
        """Densities looked up [k, c, S], and readings [k, c, d]."""
        view, here = self.view, self.rows.cpu()
        x = view.x[(here % len(view.x))[:, None], self.columns.cpu()]
        device = view.summary.device
        return self.like.looked_up(view.D, x, here).to(device), x.to(device)


Known = tuple[Tensor, Tensor | None]  # values [F or 1, k, c, A] of samples; which of them are known, or None for all


class Targets(Protocol):
    """What a layer is fitted to."""

    @property
    def clean(self) -> bool:
        """Whether a network could meet them: they hold no noise of rewards."""

    def pick(self, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Random columns [k, count] of rows [k], those that matter most the most often."""

    def of_seen(self, seen: Seen) -> Known:
        """Values [F or 1, k, c, A] of some samples; and which of them are known, or None for all."""

    def to(self, device: torch.device) -> Targets:
        """On another device."""


@dataclass(frozen=True, eq=False)
class Payments:
    """Which actions are paid differently from sample to sample, and what the others are always paid.

    A reward that no sample shows is not known here: rare ones need more samples.
    """

    varies: Tensor  # [xi, A] bool
    constant: Tensor  # [xi, A] float32; 0 for an action that was never tried

    @staticmethod
    def of(data: TrainingData, num_actions: int) -> Payments:
        """From all samples of all simulators."""
        varies = torch.zeros(len(data.samples), num_actions, dtype=torch.bool)
        constant = torch.zeros(len(data.samples), num_actions, dtype=torch.float32)
        for s, sample in enumerate(data.samples):
            for a in range(num_actions):
                paid = sample.rewards[sample.actions == a].float()
                if len(paid):
                    constant[s, a], varies[s, a] = paid[0], bool((paid != paid[0]).any())
        return Payments(varies, constant)

    def layers(self, graph: StateGraph) -> list[int]:
        """The layers in which some reward varies, from the last one."""
        return [h for h in reversed(range(graph.horizon)) if bool(self.varies[graph.states_of(h)].any())]


@dataclass(frozen=True, eq=False)
class Rewards:
    """Rewards that were paid, each for the one action that was tried; only those that vary are learned."""

    paid: Tensor  # [B, m, A] 0 where another action was tried
    tried: Tensor  # [B, m, A] 1 for the action tried, where its reward varies; else 0
    tells: Tensor  # [B, m] whether that is so: what batches are drawn from, on the CPU
    clean = False

    @staticmethod
    def of(data: TrainingData, payments: Payments, states: list[int]) -> Rewards:
        """Of these states."""
        samples = data.columns(states)
        varies = payments.varies[states].repeat_interleave(samples.x.shape[1] // len(states), 0)
        tried = torch.nn.functional.one_hot(samples.actions, payments.varies.shape[1]) * varies
        return Rewards(samples.rewards.float()[..., None] * tried, tried.float(), tried.sum(-1).float())

    def pick(self, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
        tells = self.tells[rows % len(self.tells)]
        none = tells.sum(-1, keepdim=True) == 0  # a simulator that tells nothing is asked all the same, and ignored
        return torch.multinomial(tells + none, count, replacement=True, generator=generator)

    def of_seen(self, seen: Seen) -> Known:
        b, columns = (seen.rows % len(self.paid))[:, None], seen.columns
        return self.paid[b, columns][None], self.tried[b, columns]

    def to(self, device: torch.device) -> Rewards:
        return Rewards(self.paid.to(device), self.tried.to(device), self.tells)


@dataclass(frozen=True, eq=False)
class Values:
    """Q_hat: rewards as networks predict them, and V_hat of the layer below."""

    teacher: Net | None  # what predicts rewards; None where none varies
    layer: int
    varies: Tensor  # [m, A]
    constant: Tensor  # [m, A]
    beside: Tensor  # [F, R, S, A] what is added to rewards: what they miss, and V_hat of the states that follow
    state: Tensor  # [m] among the layer's
    walked: Tensor  # [R, S] how often the best policy by Q_hat comes to the layer's states, on the CPU
    clean = True

    @staticmethod
    def of(
        teacher: Net, payments: Payments, V_hat: Tensor, walked: Tensor, layer: int, n: int, rest: Tensor | float = 0.0
    ) -> Values:
        """Of one layer, n samples a state, given V_hat [F, R, xi] of the layer below, and walked [R, xi].

        Args:
            rest: `[F, R, S, A]`.
        """
        graph = teacher.problem.graph
        states = graph.states_of(layer)
        return Values(
            teacher if bool(payments.varies[states].any()) else None,
            layer,
            payments.varies[states].repeat_interleave(n, 0),
            payments.constant[states].repeat_interleave(n, 0),
            graph.values_after(V_hat, states) + rest,
            torch.arange(len(states)).repeat_interleave(n),
            walked[:, states],
        )

    def pick(self, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
        size, n = self.walked.shape[1], len(self.state) // self.walked.shape[1]
        shares = ON_THE_WAY * self.walked[rows] + (1 - ON_THE_WAY) / size
        state = torch.multinomial(shares, count, replacement=True, generator=generator)
        return state * n + torch.randint(n, state.shape, generator=generator)

    @torch.no_grad()
    def of_seen(self, seen: Seen) -> Known:
        r_hat, varies = self.constant[seen.columns], self.varies[seen.columns]  # [k, c, A]
        some = varies.any(-1)
        if self.teacher is not None and bool(some.all()):
            r_hat = torch.where(varies, seen.q(self.teacher, self.layer).clamp(0, 1), r_hat)
        elif self.teacher is not None and bool(some.any()):
            predicted = seen.q_of(self.teacher, self.layer, some).clamp(0, 1)
            r_hat = r_hat.repeat(len(predicted), 1, 1, 1)
            r_hat[:, some] = torch.where(varies[some], predicted, r_hat[:, some])
        place = seen.rows[:, None] * self.beside.shape[2] + self.state[seen.columns]  # [k, c] among all [R, S]
        beside = self.beside.flatten(1, 2).index_select(1, place.flatten()).unflatten(1, place.shape)
        return (r_hat + beside).clamp(0, 1), None

    def to(self, device: torch.device) -> Values:
        teacher = None if self.teacher is None else self.teacher.to(device)
        varies, constant, beside, state = (
            part.to(device) for part in (self.varies, self.constant, self.beside, self.state)
        )
        return Values(teacher, self.layer, varies, constant, beside, state, self.walked)


def require_finite(V_hat: Tensor, net: str, layer: int) -> None:
    """Raises SettingError, with the members of the net, where values [F, ...] of a layer are not finite."""
    if not bool(torch.isfinite(V_hat).all()):
        broken = (~torch.isfinite(V_hat.flatten(1))).any(1).nonzero().flatten().tolist()
        raise SettingError(
            expected=f"finite values of all {len(V_hat)} members of net {net!r} at step {layer}",
            got=f"NaN or inf at some readings of member {', '.join(map(str, broken[:8]))}",
            cause="a logarithm, a root or a division in a network of your own, or training that diverged",
        )


def best_shares(q: Tensor, tie: float) -> Tensor:
    """Shares [..., A] of the best actions by q [..., A]: those within `tie` of the best have the same."""
    best = (q >= q.amax(-1, keepdim=True) - tie).to(q.dtype)
    return best / best.sum(-1, keepdim=True)


def told_of_rest(rest: Tensor, looks: Regression) -> Tensor:
    """What simulators that look alike tell of each other's rest [F, B, S, A]; 0 where they leave most of it untold.

    By kernel regression, each without its own rewards: what densities do not tell, no value may promise. What it tells
    is rough, and costs a fit of values more than a little is worth.
    """
    by_row = rest.movedim(0, 1)  # [B, F, S, A]
    typical = by_row.mean(1).flatten(1)  # members miss much the same, so that one regression serves all
    hat = looks.best(typical)
    if missed(hat, typical).square().mean() > HELPED * typical.square().mean():
        return torch.zeros_like(rest)
    y = by_row.flatten(1)
    return (y - missed(hat, y)).view_as(by_row).movedim(0, 1)
