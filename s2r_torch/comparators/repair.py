r"""Repairing a simulator's rewards by real ones: Cutler 2015 from an optimistic model, Jiang 2018 from a nominal one.

    r(s, a) = max over simulators of the mean reward (envelope), or the mean over them (mean)
    repeat: the best list under r;  n real episodes of it;  pairs (s, a) that it passed get their real means
            envelope: stop when all its pairs are known;    mean: stop when it earned what r predicted

T is shared and states are known from own actions, so rewards are all there is to repair. An envelope that is nowhere
below the truth leads to the best list; a nominal model gets stuck wherever it underrates what it never tries.
For families whose rewards are those of (state, action).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.policies import follow
from s2r_torch.episodes import Act, Guard, Transitions, rollout
from s2r_torch.families.exact import best_list
from s2r_torch.graph import Path, StateGraph
from s2r_torch.rng import Seed
from s2r_torch.schema import Positive, Settings, Size


def rewards_of_simulators(samples: tuple[Transitions, ...], num_actions: int) -> Tensor:
    """Mean rewards [B, xi, A] of every simulator, from transitions [B, n] with uniform actions at every state."""
    means = []
    for data in samples:
        taken = torch.nn.functional.one_hot(data.actions, num_actions).double()  # [B, n, A]
        total = torch.einsum("bna,bn->ba", taken, data.rewards)
        means.append(total / taken.sum(1).clamp(min=1))
    return torch.stack(means, 1)


def repair(
    world: Guard, graph: StateGraph, reward: Tensor, n: int, seed: Seed, trusted: float | None
) -> tuple[Path, bool]:
    """The list that the repaired model calls best.

    Args:
        world: one world with reward.
        graph: the state graph.
        reward: `[xi, A]` the model to start from.
        n: episodes of every list tried.
        seed: named stream.
        trusted: stop when a list earned its prediction within that much; None: when all its pairs are known.

    Returns:
        The list, and whether all its pairs are known.

    Cost:
        n episodes per round, at most as many rounds as there are pairs.
    """
    reward, known = reward.clone(), torch.zeros(reward.shape, dtype=torch.bool)
    for number in range(reward.numel() + 1):
        actions, predicted = best_list(graph, reward)
        states = graph.visited(torch.tensor(actions))
        if bool(known[states, torch.tensor(actions)].all()):
            break
        seen = rollout(world, follow(actions), n, seed.child(number))
        reward[states, torch.tensor(actions)] = seen.rewards.mean((0, 1))
        known[states, torch.tensor(actions)] = True
        if trusted is not None and abs(float(seen.returns.mean()) - predicted) <= trusted:
            break
    return actions, bool(known[states, torch.tensor(actions)].all())


@dataclass(frozen=True, eq=False)
class Repairing:
    """Repairs rewards in every world by itself."""

    graph: StateGraph
    reward: Tensor  # [xi, A]
    trusted: float | None
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: n episodes per list that is tried."""
        seed = worlds.seed.child("repair", self.trusted is None, self.n)

        def learn(world: Guard) -> tuple[Act, bool]:
            actions, known = repair(world, self.graph, self.reward, self.n, seed, self.trusted)
            return follow(actions), known

        return worlds.one_by_one(learn)


@register_comparator("cutler2015")
@dataclass(frozen=True)
class Cutler2015(Settings):
    """Repair from the envelope of the simulators' rewards.

    Args:
        n: episodes of every list that is tried, its one knob.
    """

    n: Size = 40

    label = "repair from the envelope (Cutler 2015)"
    access = Access(
        reward="yes",
        simulators="yes, with reward",
        graph="discovered there",
        predictors="tables",
        memory="own actions",
    )
    learner = Repairing

    def fit(self, known: Known) -> Repairing:
        """No episodes: it uses the training transitions."""
        graph = known.problem.graph
        rewards = rewards_of_simulators(known.data.samples, graph.num_actions)
        return Repairing(graph, rewards.amax(0), None, self.n)


@register_comparator("jiang2018")
@dataclass(frozen=True)
class Jiang2018(Settings):
    """Repair from the simulators' mean rewards, one nominal simulator.

    Args:
        n: episodes of every list that is tried, its one knob.
        epsilon: wanted suboptimality; predictions are trusted to half of it.
    """

    n: Size = 40
    epsilon: Positive = 0.1

    label = "repair from a nominal model (Jiang 2018)"
    access = Cutler2015.access
    learner = Repairing

    def fit(self, known: Known) -> Repairing:
        """No episodes: it uses the training transitions."""
        graph = known.problem.graph
        rewards = rewards_of_simulators(known.data.samples, graph.num_actions)
        return Repairing(graph, rewards.mean(0), self.epsilon / 2, self.n)
