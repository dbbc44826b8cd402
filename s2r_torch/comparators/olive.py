r"""OLIVE (Jiang et al. 2017): optimism, and importance-weighted Bellman errors, in the real world with reward.

    V_f = mean max_a f(x_1, a) of first readings
    repeat: f_t = argmax over survivors of V_f;  run pi_t:  E_h = mean( f_t(x_h, a_h) - r_h - f_t(x_{h+1}, a_{h+1}) )
            if sum_h E_h <= 5 epsilon / 8: return pi_t;   h_t = argmax_h E_h
            run pi_t, but uniform at h_t:  E(g) = mean( A 1{a = pi_g(x)} (g(x, a) - r - max_a' g(x', a')) )
            keep g iff |E(g)| <= phi_g

Paper deviation:
    Constants are ours. phi_g = 2 sd_g / sqrt(n) + slack instead of one phi for all: a union bound's z of 4.5 hardly
    eliminates at sizes that anybody can afford. f_t always goes when its test failed. An emptied class gives the policy
    of highest measured return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.comparators.bank import Bank, bank_of
from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.comparators.random_actions import uniform
from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Act, Guard, Rollouts, Transitions, observe, rollout
from s2r_torch.predictors.ensemble import Ensemble, Evaluator
from s2r_torch.rng import Seed
from s2r_torch.schema import Positive, Range, Settings, Size

DEVIATIONS = 2.0  # standard errors that an average Bellman error of f* is allowed


@dataclass(frozen=True, eq=False)
class OLIVELearner:
    """OLIVE on a bank of Q-functions, in every world by itself."""

    acting: Ensemble  # the predictor of the bank
    D: Densities  # [N, xi, G] the bank's densities
    epsilon: float
    slack: float
    rounds: int
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: n first readings, and 2 n episodes per failed round, n in the last."""
        bank = Bank.ensemble(self.acting.groups[0], self.D, self.acting.problem)
        seed = worlds.seed.child("olive", self.n)
        return worlds.one_by_one(lambda world: self._learn(world, bank, seed))

    def _learn(self, world: Guard, bank: Ensemble, seed: Seed) -> tuple[Act, bool]:
        unseen = torch.zeros(1, bank.problem.graph.num_states, 0)
        evaluator = bank.evaluator(unseen)
        V = evaluator.greedy_values(0, observe(world, (), self.n, seed.child("first")))[:, 0]
        alive = torch.ones(bank.size, dtype=torch.bool)
        tried: list[tuple[float, Act]] = []  # measured return, policy
        for number in range(self.rounds):
            optimist = int(torch.where(alive, V, -torch.inf).argmax())
            own = bank.subset([optimist]).evaluator(unseen)
            seen = rollout(world, own.policy_of(0), self.n, seed.child("run", number))
            tried.append((float(seen.returns.mean()), own.policy_of(0)))
            errors = own_errors(own, seen)
            if float(errors.sum()) <= 5 * self.epsilon / 8:
                return own.policy_of(0), True
            explored = rolled_in(world, own, int(errors.argmax()), self.n, seed.child("explore", number))
            alive = alive & self._survivors(evaluator, explored, int(errors.argmax()))
            alive[optimist] = False
            if not bool(alive.any()):
                break
        return max(tried, key=lambda item: item[0])[1], False

    def _survivors(self, evaluator: Evaluator, seen: Rollouts, step: int) -> Tensor:
        """Who may be f* [F], by average Bellman errors at one step of episodes with a uniform action there."""
        last = step == seen.x.shape[2] - 1
        data = Transitions(seen.x[:, :, step], seen.actions[:, :, step], seen.rewards[:, :, step])
        mean, square = evaluator.average_bellman_errors(step, data, None if last else seen.x[:, :, step + 1])
        deviation = (square - mean.square()).clamp(min=0).sqrt() / math.sqrt(self.n)
        return (mean.abs() <= DEVIATIONS * deviation + self.slack)[:, 0]


def own_errors(own: Evaluator, seen: Rollouts) -> Tensor:
    """E_h [H] of a lone member along its own episodes: how much it overrates every step."""
    values = [own.greedy_values(step, seen.x[:, :, step])[0, 0] for step in range(seen.x.shape[2])]
    after = [*values[1:], torch.zeros((), dtype=torch.float64)]
    return torch.stack(values) - seen.rewards.mean((0, 1)) - torch.stack(after)


def rolled_in(world: Guard, own: Evaluator, step: int, n: int, seed: Seed) -> Rollouts:
    """n episodes of a lone member's policy with a uniform action at one step."""
    policy, anything = own.policy_of(0), uniform(world.spec.num_actions, seed.child("actions", *world.ids))
    return rollout(world, lambda h, x: anything(h, x) if h == step else policy(h, x), n, seed)


@register_comparator("olive")
@dataclass(frozen=True)
class OLIVE(Settings):
    """OLIVE on a bank of Q-functions of the simulators ("informed").

    Args:
        n: episodes per estimate, its one knob.
        size: Q-functions in the bank.
        epsilon: wanted suboptimality, in units of total episode reward.
        slack: misspecification of the bank, > 0; too small for large n, it empties the class.
        rounds: at most.
    """

    n: Size = 40
    size: Size = 64
    epsilon: Positive = 0.1
    slack: Annotated[float, Range(0)] = 0.1
    rounds: Size = 30

    label = "OLIVE (Jiang 2017)"
    access = Access(reward="yes", simulators="through the bank", predictors="bank of Q-functions")
    learner = OLIVELearner

    def fit(self, known: Known) -> OLIVELearner:
        """No episodes."""
        return OLIVELearner(*bank_of(known, self.size), self.epsilon, self.slack, self.rounds, self.n)
