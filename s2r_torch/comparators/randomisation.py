r"""Domain randomisation (Tobin 2017, Peng 2018): one policy for all theta, which must find out within the episode.

    history FQI, backward over layers h = H-1 .. 0, from episodes of uniform actions, theta fresh in every simulator:
        fit Q_h([x_0 .. x_h, a_0 .. a_{h-1}], .)  to  r_h + max_a Q_{h+1}([..., x_{h+1}, a_h], a)

It sees nothing of the real world before it acts: 0 real episodes. Memory of the episode is what recurrent policies are
given; here the whole history is, because T is known and A^H is small, so that every history is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2r_torch.comparators.contract import Access, Attempt, Drawn, Known, Worlds, register_comparator
from s2r_torch.comparators.random_actions import uniform
from s2r_torch.episodes import Rollouts, rollout
from s2r_torch.rng import Seed
from s2r_torch.schema import Settings, Size

BATCH, PEAK = 4096, 1e-2  # episodes per step, and the peak of the one-cycle learning rate

Network = tuple[Tensor, ...]  # centre, scale, then weights and offsets of three layers; () where nothing pays any more


@dataclass(eq=False)
class HistoryPolicy:
    """Greedy actions of Q_h on the history of the running episode."""

    networks: Sequence[Network]  # [H]
    num_actions: int
    _seen: list[Tensor] = field(default_factory=list, repr=False)

    has_memory = True

    def __call__(self, step: int, x: Tensor) -> Tensor:
        """Actions [W, n] at x [W, n, d]; step 0 starts afresh."""
        if step == 0:
            self._seen = []
        self._seen.append(x.float())
        network = self.networks[step]
        if network:
            actions = q_values(network, torch.cat(self._seen, -1)).argmax(-1)
        else:
            actions = torch.zeros(x.shape[:2], dtype=torch.int64)
        self._seen.append(torch.nn.functional.one_hot(actions, self.num_actions).float())
        return actions


def histories(seen: Rollouts, num_actions: int) -> list[Tensor]:
    """The inputs [L, features] of every step: x_0, a_0, x_1, a_1, .., x_h, of all L episodes."""
    x, taken = (
        seen.x.flatten(0, 1).float(),
        torch.nn.functional.one_hot(seen.actions.flatten(0, 1), num_actions).float(),
    )
    parts, found = [], []
    for step in range(x.shape[1]):
        parts.append(x[:, step])
        found.append(torch.cat(parts, -1))
        parts.append(taken[:, step])
    return found


def q_values(network: Network, history: Tensor) -> Tensor:
    """[..., A]."""
    centre, scale, *weights = network
    z = (history - centre) / scale
    for matrix, offset in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        z = torch.nn.functional.silu(z @ matrix + offset)
    return z @ weights[-2] + weights[-1]


def fit_network(history: Tensor, actions: Tensor, target: Tensor, num_actions: int, width: int, steps: int, seed: Seed):
    """Regresses targets [L] of the actions taken [L] on histories [L, features]."""
    g = seed.generator()
    sizes = (history.shape[1], width, width, num_actions)
    weights: list[Tensor] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        weights += [torch.randn(a, b, generator=g) / a**0.5, torch.zeros(b)]
    trained = [weight.requires_grad_() for weight in weights]
    centre, scale = history.mean(0), history.std(0).clamp(min=1e-3)
    optimiser = torch.optim.Adam(trained, lr=PEAK)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(history), (min(BATCH, len(history)),), generator=g)
        q = q_values((centre, scale, *trained), history[rows]).gather(1, actions[rows, None]).squeeze(1)
        loss = (q - target[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return (centre, scale, *(weight.detach() for weight in trained))


def history_fqi(seen: Rollouts, num_actions: int, width: int, steps: int, seed: Seed) -> tuple[Network, ...]:
    """Q_h of every step, from the last one backwards; layers from which on nothing pays are left out."""
    inputs, actions = histories(seen, num_actions), seen.actions.flatten(0, 1)
    rewards = seen.rewards.flatten(0, 1).float()
    networks: list[Network] = []
    following = torch.zeros(len(rewards))
    for step in reversed(range(rewards.shape[1])):
        if not networks and not bool(rewards[:, step].any()):
            continue
        target = rewards[:, step] + following
        networks.append(
            fit_network(inputs[step], actions[:, step], target, num_actions, width, steps, seed.child(step))
        )
        following = torch.cat([q_values(networks[-1], part).amax(-1) for part in inputs[step].split(2**16)])
    return (*reversed(networks), *((),) * (rewards.shape[1] - len(networks)))


@dataclass(frozen=True, eq=False)
class Randomised:
    """A policy for all worlds alike."""

    networks: tuple[Network, ...]
    num_actions: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """No real episodes."""
        return Attempt(HistoryPolicy(self.networks, self.num_actions))


@register_comparator("history_fqi")
@dataclass(frozen=True)
class HistoryFQI(Settings):
    """Domain randomisation with the whole history of the episode.

    Args:
        simulators: fresh ones, each with a theta of its own.
        episodes: in each of them.
        width: of two hidden layers.
        steps: optimiser steps per layer.
    """

    simulators: Size = 4096
    episodes: Size = 64
    width: Size = 64
    steps: Size = 2000

    label = "domain randomisation, history FQI"
    access = Access(simulators="yes, with reward", predictors="own networks", memory="episode")
    learner = Randomised

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """Episodes of random actions."""
        return (Drawn("randomise", self.simulators, rollouts=self.episodes),)

    def fit(self, known: Known) -> Randomised:
        """Cost: simulators x episodes simulator episodes."""
        A, seed = known.problem.spec.num_actions, known.seed.child("history_fqi")
        simulators = known.draws.simulators("randomise", self.simulators)
        seen = rollout(simulators, uniform(A, seed.child("actions")), self.episodes, seed.child("episodes"))
        return Randomised(history_fqi(seen, A, self.width, self.steps, seed.child("fit")), A)
