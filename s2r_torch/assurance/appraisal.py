"""What a policy earns, against what could be had: from simulators alone, while learning can still go on.

On fresh simulators the deploy procedure is rehearsed, and decisions are drawn at every state, each with its reward. The
state graph is known, so that dynamic programming says from the same draws what is earned and what could be had there,
for each simulator and on average over all:

    policy     what the policy earns: at a state, mean_i (A 1{a_i = pi(x_i)} r_i + V(T(s, pi(x_i))))
    at least   lists of actions that all folds of the draws but one choose for a simulator, valued by that fold: in
               expectation at most what the best list for it earns
    optimum    where that goes with ever more draws: what noise of size sigma makes wrong choices lose is about
               proportional to sigma^2, so that lists chosen by half of the draws tell how much it still is
    at most    the largest total of mean rewards: in expectation at least what the best list for it earns
    list       the best list for all simulators: what can be had without densities

Where policy and list take the same actions, they are paid by the same draws: what is between them has no noise. Where
episodes of the policy say otherwise than the graph does, as where states were merged that are different, they count.
Intervals are Student's of paired differences over simulators. Where they leave open whether too much is lost, and the
estimate is at least half of that, twice as many fresh simulators are looked at, with four times as many draws, eight
times the episodes: where many lists are nearly as good as the best one, few draws make the optimum too low. Each of K
looks stands for itself at confidence 1 - 0.05 / K, so that all together have 95 %. No certificate rests on these
simulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard
from s2r_torch.graph import START, Path, StateGraph
from s2r_torch.rng import Seed
from s2r_torch.schema import Range, Settings, Several, Share, Size
from s2r_torch.student import half_width
from s2r_torch.tours import decisions
from s2r_torch.workers.simulators import in_parts, map_simulators

FOLDS = 8  # of the draws of every action: more would choose lists hardly better
SURELY = 0.999  # confidence at which episodes contradict the graph


@dataclass(frozen=True)
class AppraisalSettings(Settings):
    """Sizes and limits of the appraisal.

    Args:
        simulators: fresh ones for every attempt; 0 appraises nothing.
        n: draws of every action, per state and simulator.
        n_rollouts: episodes of the policy in each, which must agree with these draws.
        tolerance: share of the optimum that a policy may lose, and that densities must be worth.
        looks: how often at most, while it is open whether more than `tolerance` is lost and half of it seems to be;
            every time at twice as many simulators, with four times as many draws.
        attempts: how often a run learns at most, each time with twice the simulators, samples and steps, until no more
            than `tolerance` is surely lost; 1 never learns again, `budget=auto` makes it 3.

    Raises:
        SettingError: a size or limit out of range.
    """

    simulators: Several = 80
    n: Annotated[int, Range(FOLDS)] = 64
    n_rollouts: Size = 50
    tolerance: Share = 0.03
    looks: Annotated[int, Range(1, 8)] = 2
    attempts: Annotated[int, Range(1, 8)] = 2


@dataclass(frozen=True)
class Appraisal:
    """Means over simulators, in units of an episode's total reward, and 95 % intervals."""

    policy: float
    fixed: float  # the best list
    optimum: float  # estimated
    at_most: float  # estimated from above
    between: tuple[float, float]  # 95 % interval of the best lists' mean, from below and from above
    lost: tuple[float, float]  # optimum - policy, paired; from below, what is at least had - policy
    needed: tuple[float, float]  # optimum - fixed, likewise
    over_list: tuple[float, float]  # policy - fixed
    tolerance: float  # share of the optimum
    attempts: int = 1  # at learning, all of the run's

    @property
    def falls_short(self) -> bool:
        """Whether the policy surely loses more than is tolerated."""
        return self.lost[0] > self.tolerance * self.optimum

    @property
    def cleared(self) -> bool:
        """Whether it surely loses no more."""
        return self.lost[1] <= self.tolerance * self.optimum

    @property
    def undecided(self) -> bool:
        """Whether it may lose more, and may not."""
        return not self.falls_short and not self.cleared

    @property
    def worth_another_look(self) -> bool:
        """Whether it may lose more, and seems to lose half as much at least."""
        return self.undecided and self.optimum - self.policy > self.tolerance * self.optimum / 2

    @property
    def may_fall_short(self) -> bool:
        """Whether it may lose more, and more likely does than not."""
        return self.undecided and self.optimum - self.policy > self.tolerance * self.optimum

    @property
    def densities_needed(self) -> bool:
        """False where knowing theta surely adds no more than is tolerated."""
        return self.needed[1] > self.tolerance * self.optimum

    @property
    def worse_than_list(self) -> bool:
        """Whether the policy surely earns less than the best list."""
        return self.over_list[1] < 0

    @property
    def tells_of_a_list(self) -> bool:
        """Whether it says that a list does as well or better; what else does so without densities is said apart."""
        return self.worse_than_list or not self.densities_needed

    @property
    def loss(self) -> str:
        """What is lost, as a share of the optimum."""
        return " to ".join(f"{max(0.0, edge / max(self.optimum, 1e-12)):.1%}" for edge in self.lost)

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
                "appraisal.attempts allows more (budget=auto 3), or another network sees what this one does not (net=)"
            )
            said.append(
                f"the policy falls short: on fresh simulators it earns {self.policy:.3f} of an estimated optimum of "
                f"{self.optimum:.3f} (at most {self.at_most:.3f}); {more}"
            )
        if self.may_fall_short:
            said.append(
                f"the policy may fall short: on fresh simulators it loses {self.loss} of an estimated optimum of "
                f"{self.optimum:.3f}; more appraisal.looks tell"
            )
        return said


def decided(
    simulators: Guard, D_hat: Densities, whole: StateGraph, meta_policy: MetaPolicy, n: int, seed: Seed
) -> tuple[Tensor, Tensor]:
    """What the policy earns [M], and mean rewards `[FOLDS, M, xi, A]`, from n draws of every action at every state.

    Args:
        simulators: M of them.
        D_hat: `[M, .., G]` densities of the states that the policy looks at, as Deploy estimates them.
        whole: all xi states.
        meta_policy: whose policies act.
        n: draws of every action.
        seed: named stream.

    Cost:
        n episodes per simulator along each of the fewest sequences that walk every action of every state.
    """
    parts = map_simulators(_decided, in_parts(simulators, D_hat), whole, meta_policy, n, seed)
    earned, folds = zip(*parts, strict=True)
    return torch.cat(earned), torch.cat(folds, 1)


def _decided(
    simulators: Guard, D_hat: Densities, graph: StateGraph, meta_policy: MetaPolicy, n: int, seed: Seed
) -> tuple[Tensor, Tensor]:
    """Of some simulators."""
    act = meta_policy.condition(D_hat).act
    B, xi, A = len(simulators), graph.num_states, graph.num_actions
    earned, folds = torch.zeros(B, xi, dtype=torch.float64), torch.zeros(FOLDS, B, xi, A, dtype=torch.float64)
    data = decisions(simulators, graph, n * A, seed)
    for step, s in graph.backward():
        drawn, following = data[s], graph.values_after(earned, [s])[:, 0]  # [B, A]
        taken = act(step, drawn.x)  # [B, n A]
        earned[:, s] = (A * (taken == drawn.actions) * drawn.rewards + following.gather(1, taken)).mean(1)
        paid = drawn.by_action(A)[1]
        folds[:, :, s] = torch.stack([paid[..., k::FOLDS].mean(-1) for k in range(FOLDS)])
    return earned[:, START], folds


def agreed(by_graph: Tensor, in_episodes: Tensor) -> Tensor:
    """What a policy earns [M] by the graph, or in episodes where these surely say otherwise."""
    off = in_episodes - by_graph
    return in_episodes if abs(float(off.mean())) > half_width(off, SURELY) else by_graph


def totals(graph: StateGraph, reward: Tensor, lists: Tensor) -> Tensor:
    """What lists [M, H] earn in M simulators with mean rewards [M, xi, A]: [M]."""
    return reward[torch.arange(len(reward))[:, None], graph.visited(lists), lists].sum(1)


def optimum(graph: StateGraph, folds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the best lists earn in M simulators, by rewards [FOLDS, M, xi, A]: at least, about, at most that [M].

        about = least + (least - halved) v / (1 - v),    v = (1 / chosen by) / (2 / all) = FOLDS / (2 (FOLDS - 1))

    where halved is what lists earn that half of the folds choose, each half in turn.
    """
    least, halved = (
        torch.stack([_valued(graph, folds, chosen) for chosen in combinations(range(len(folds)), size)]).mean(0)
        for size in (len(folds) - 1, len(folds) // 2)
    )
    v = len(folds) / (2 * (len(folds) - 1))
    return least, least + (least - halved) * v / (1 - v), graph.best_totals(folds.mean(0))[0][:, START]


def _valued(graph: StateGraph, folds: Tensor, chosen: tuple[int, ...]) -> Tensor:
    """What lists that these folds [F, M, xi, A] choose earn [M] in the others."""
    others = [k for k in range(len(folds)) if k not in chosen]
    return totals(graph, folds[others].mean(0), graph.best_lists(folds[list(chosen)].mean(0)))


def appraise(
    graph: StateGraph,
    policy: Tensor,
    fixed: Path,
    folds: Tensor,
    tolerance: float,
    attempts: int = 1,
    looks: int = 1,
) -> Appraisal:
    """Compares what a policy earned in M simulators [M] with lists, by their mean rewards [FOLDS, M, xi, A].

    Where a reading tells more than its state does, a policy may earn more than the best list of its simulator: then
    what it earned stands for the optimum. Intervals hold in all of so many looks together.
    """
    least, about, most = optimum(graph, folds)
    if policy.mean() > most.mean():
        least = about = most = policy
    listed = totals(graph, folds.mean(0), torch.tensor(fixed).expand(len(policy), -1))

    def interval(low: Tensor, high: Tensor) -> tuple[float, float]:
        """Of the mean of values that lie between these [M]."""
        ends = [(float(v.mean()), half_width(v, 1 - 0.05 / looks)) for v in (low, high)]
        return ends[0][0] - ends[0][1], max(mean + half for mean, half in ends)

    return Appraisal(
        policy=float(policy.mean()),
        fixed=float(listed.mean()),
        optimum=float(about.mean()),
        at_most=float(most.mean()),
        between=interval(least, most),
        lost=interval(least - policy, about - policy),
        needed=interval(least - listed, about - listed),
        over_list=interval(policy - listed, policy - listed),
        tolerance=tolerance,
        attempts=attempts,
    )
