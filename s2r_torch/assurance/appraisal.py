"""What a policy earns, against what could be had: from simulators alone, while learning can still go on.

On fresh simulators the deploy procedure is rehearsed, and mean rewards r_hat(s, a) are estimated. The state graph is
known, so that dynamic programming says what could be had there, for each simulator and on average over all:

    optimum    lists of actions that one half of the draws chooses for a simulator, valued by the other half, and the
               reverse: in expectation at most what the best list for it earns, and nearly that
    at most    the largest total of r_hat: in expectation at least what the best list for it earns
    list       the best list for all simulators: what can be had without densities

Intervals are Student's 95 % ones of paired differences over simulators. No certificate rests on these simulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.base import Path, StateGraph
from s2r_torch.episodes import Guard
from s2r_torch.rng import Seed
from s2r_torch.schema import Range, Settings, Several, Share, Size
from s2r_torch.student import half_width
from s2r_torch.tours import decisions
from s2r_torch.workers.simulators import in_parts, map_simulators


@dataclass(frozen=True)
class AppraisalSettings(Settings):
    """Sizes and limits of the appraisal.

    Args:
        simulators: fresh ones for every attempt; 0 appraises nothing.
        n: draws of every action, per state and simulator.
        n_rollouts: episodes of the policy in each.
        tolerance: share of the optimum that a policy may lose, and that densities must be worth.
        attempts: how often a run learns at most, each time with twice the simulators, samples and steps, until no more
            than `tolerance` is surely lost (`budget=auto` makes it 3).

    Raises:
        SettingError: a size or limit out of range.
    """

    simulators: Several = 100
    n: Annotated[int, Range(8)] = 32
    n_rollouts: Size = 50
    tolerance: Share = 0.03
    attempts: Annotated[int, Range(1, 8)] = 1


@dataclass(frozen=True)
class Appraisal:
    """Means over simulators, in units of an episode's total reward, and 95 % intervals."""

    policy: float
    fixed: float  # the best list
    optimum: float  # estimated, at most the true one but for noise
    at_most: float  # estimated from above
    between: tuple[float, float]  # 95 % interval of the best lists' mean, from both estimates
    lost: tuple[float, float]  # optimum - policy, paired
    needed: tuple[float, float]  # optimum - fixed
    over_list: tuple[float, float]  # policy - fixed
    tolerance: float  # share of the optimum
    attempts: int = 1  # at learning, all of the run's

    @property
    def falls_short(self) -> bool:
        """Whether the policy surely loses more than is tolerated."""
        return self.lost[0] > self.tolerance * self.optimum

    @property
    def densities_needed(self) -> bool:
        """False where knowing theta surely adds no more than is tolerated."""
        return self.needed[1] > self.tolerance * self.optimum

    @property
    def worse_than_list(self) -> bool:
        """Whether the policy surely earns less than the best list."""
        return self.over_list[1] < 0

    def sentences(self) -> list[str]:
        """What to tell a user, most important first; nothing where all is well."""
        said = []
        if self.worse_than_list:
            said.append(
                f"deploy the list, not the policy: on fresh simulators the best fixed list of actions earns "
                f"{self.fixed:.3f}, the policy {self.policy:.3f}"
            )
        if not self.densities_needed:
            said.append(
                f"densities are not needed: on fresh simulators the best fixed list of actions earns {self.fixed:.3f} "
                f"of an estimated optimum of {self.optimum:.3f}"
            )
        if self.falls_short:
            more = (
                "budget=auto learns again with twice the predictors.num_simulators, predictors.n_samples and "
                "predictors.training.steps"
                if self.attempts == 1
                else f"it is the best of {self.attempts} attempts, each with twice the sizes; "
                "appraisal.attempts allows more, or another network sees what this one does not (net=)"
            )
            said.append(
                f"the policy falls short: on fresh simulators it earns {self.policy:.3f} of an estimated optimum of "
                f"{self.optimum:.3f} (at most {self.at_most:.3f}); {more}"
            )
        return said


def mean_rewards(simulators: Guard, graph: StateGraph, n: int, seed: Seed) -> Tensor:
    """Mean rewards of two halves of fresh draws, `[2, M, xi, A]`, from n draws of every action at every state.

    Cost:
        n episodes per simulator along each of the fewest sequences that walk every action of every state.
    """
    return torch.cat(map_simulators(_mean_rewards, in_parts(simulators), graph, n, seed), 1)


def _mean_rewards(simulators: Guard, graph: StateGraph, n: int, seed: Seed) -> Tensor:
    """Of some simulators."""
    states = []
    for drawn in decisions(simulators, graph, n * graph.num_actions, seed):
        one = torch.nn.functional.one_hot(drawn.actions, graph.num_actions).double()  # [B, n A, A]
        paid = one * drawn.rewards[..., None]
        halves = [paid[:, h::2].sum(1) / one[:, h::2].sum(1).clamp(min=1) for h in range(2)]
        states.append(torch.stack(halves))
    return torch.stack(states, 2)


def best_lists(graph: StateGraph, reward: Tensor) -> tuple[Tensor, Tensor]:
    """The best list [M, H] for each of M simulators with mean rewards [M, xi, A], and its total [M]."""
    value, best = graph.best_totals(reward)
    here, actions = torch.zeros(len(reward), dtype=torch.int64), []
    for _ in range(graph.horizon):
        actions.append(best.gather(1, here[:, None]).squeeze(1))
        here = graph.next_state[here, actions[-1]].clamp(min=0)  # nothing follows the last action
    return torch.stack(actions, 1), value[:, 0]


def totals(graph: StateGraph, reward: Tensor, lists: Tensor) -> Tensor:
    """What lists [M, H] earn in M simulators with mean rewards [M, xi, A]: [M]."""
    return reward[torch.arange(len(reward))[:, None], graph.visited(lists), lists].sum(1)


def optimum(graph: StateGraph, halves: Tensor) -> tuple[Tensor, Tensor]:
    """What the best lists earn in each of M simulators, from rewards [2, M, xi, A]: about that, and at most [M]."""
    crossed = [totals(graph, halves[1 - h], best_lists(graph, halves[h])[0]) for h in range(2)]
    return torch.stack(crossed).mean(0), best_lists(graph, halves.mean(0))[1]


def appraise(
    graph: StateGraph, policy: Tensor, fixed: Path, halves: Tensor, tolerance: float, attempts: int = 1
) -> Appraisal:
    """Compares what a policy earned in M simulators [M] with lists, by their mean rewards [2, M, xi, A].

    Where a reading tells more than its state does, a policy may earn more than the best list of its simulator: then
    what it earned stands for the optimum.
    """
    best, at_most = optimum(graph, halves)
    if policy.mean() > at_most.mean():
        best = at_most = policy
    listed = totals(graph, halves.mean(0), torch.tensor(fixed).expand(len(policy), -1))
    return Appraisal(
        policy=float(policy.mean()),
        fixed=float(listed.mean()),
        optimum=float(best.mean()),
        at_most=float(at_most.mean()),
        between=(_interval(best)[0], _interval(at_most)[1]),
        lost=_interval(best - policy),
        needed=_interval(best - listed),
        over_list=_interval(policy - listed),
        tolerance=tolerance,
        attempts=attempts,
    )


def _interval(values: Tensor) -> tuple[float, float]:
    """Of the mean of values [M]."""
    mean, half = float(values.mean()), half_width(values)
    return mean - half, mean + half
