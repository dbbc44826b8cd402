r"""Exact values from the ground truth: optimal, of any policy, of the best fixed action list, blind, random.

Pure functions over `GroundTruth`, by backward induction on the state graph, in float64:

    Q[b, s, i, a] = reward[b, s, i, a] + V[b, T(s, a)]        V[b, s] = sum_i weight[b, s, i] max_a Q[b, s, i, a]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from s2r_torch.episodes import Act
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import GroundTruth
from s2r_torch.given import taking
from s2r_torch.graph import Path, StateGraph


@taking()
def optimal(truth: GroundTruth) -> tuple[Tensor, Tensor]:
    """The optimal values V [B, xi] and Q [B, xi, m, A] of every environment, by a policy that knows theta and state.

    Under Assumption 1 (Q does not depend on the state where observations overlap) it is also that of the best
    policy that sees x alone.
    """
    Q = torch.empty(truth.reward.shape, dtype=torch.float64)

    def value(states: list[int], following: Tensor) -> Tensor:
        Q[:, states] = truth.reward[:, states] + following[:, :, None, :]
        return Q[:, states].amax(-1)

    return _backward(truth, value), Q


@taking()
def policy_values(truth: GroundTruth, act: Act) -> Tensor:
    """The values V [B, xi] of a policy, given as for `episodes.rollout`: act(step, x [B, n, d]) -> actions [B, n].

    Every layer is one call, on the quadrature points of all its states: n = states x points.

    Raises:
        SettingError: a policy that remembers its episode; these calls are not along episodes.
    """
    if getattr(act, "has_memory", False):
        raise SettingError(
            expected="a policy of (step, x) alone",
            got=f"{type(act).__name__}, which remembers its episode",
            cause="values of policies with memory come from episodes (episodes.rollout), or from the policy itself",
        )
    count, _, points, dimension = truth.x.shape

    def value(states: list[int], following: Tensor) -> Tensor:
        x = truth.x[:, states].reshape(count, len(states) * points, dimension)
        actions = act(int(truth.graph.layer[states[0]]), x).reshape(count, len(states), points)
        return _of_actions(truth.reward[:, states], following, actions)

    return _backward(truth, value)


def action_values(truth: GroundTruth, actions: Tensor) -> Tensor:
    """The values V [B, xi] of taking actions [B, xi, m] at the quadrature points."""
    return _backward(
        truth, lambda states, following: _of_actions(truth.reward[:, states], following, actions[:, states])
    )


def uniform_value(truth: GroundTruth) -> Tensor:
    """The value [B] of uniformly random actions."""
    return _backward(truth, lambda states, following: (truth.reward[:, states] + following[:, :, None, :]).mean(-1))[
        :, 0
    ]


def open_loop(truth: GroundTruth) -> tuple[Path, float]:
    """The best fixed list of H actions in expectation over the B environments, and its value.

    T is shared and deterministic, so a list of actions visits fixed states: dynamic programming on the rewards averaged
    over theta and x (architecture.md section 4: the first baseline).
    """
    return best_list(truth.graph, (truth.weight[..., None] * truth.reward).sum(2).mean(0))


def best_list(graph: StateGraph, reward: Tensor) -> tuple[Path, float]:
    """The best fixed list of H actions and its value, for mean rewards [xi, A]."""
    reward = reward.double()
    return tuple(graph.best_lists(reward[None])[0].tolist()), float(graph.best_totals(reward)[0][0])


def best_blind(truth: GroundTruth) -> float:
    """The Bayes optimum, over B equally likely environments, of all policies that see neither densities nor rewards.

    Such a policy knows the state and its whole history. The history of observations carries information on theta, so
    dynamic programming runs over (state, likelihood of every theta): theory.md 5.2, column "blind".

    Raises:
        SettingError: the quadrature points differ between environments, so that they cannot serve as symbols.

    Cost:
        Exponential in H: (A m)^H numbers. For small problems.
    """
    if not bool((truth.x == truth.x[:1]).all()):
        raise SettingError(
            expected="the same quadrature points in every environment",
            got="points that move with theta",
            cause="a family whose supports depend on theta has no finite set of symbols",
        )
    count = truth.x.shape[0]

    def value(state: int, likelihood: Tensor) -> Tensor:
        """The best total [K] from a state on, times the probability of each of K histories: likelihood [K, B]."""
        joint = likelihood[:, :, None] * truth.weight[None, :, state]  # [K, B, m]
        totals = torch.einsum("kbm,bma->kma", joint, truth.reward[:, state])
        for a, following in enumerate(truth.graph.next_state[state].tolist()):
            if following >= 0:
                histories = joint.transpose(1, 2).reshape(-1, count)
                totals[:, :, a] += value(following, histories).reshape(totals.shape[:2])
        return totals.amax(-1).sum(-1)

    return float(value(0, torch.full((1, count), 1 / count, dtype=torch.float64)))


def _of_actions(reward: Tensor, following: Tensor, actions: Tensor) -> Tensor:
    """Reward plus next value [B, S, m] of actions [B, S, m]."""
    return (reward + following[:, :, None, :]).gather(-1, actions[..., None]).squeeze(-1)


def _backward(truth: GroundTruth, value: Callable[[list[int], Tensor], Tensor]) -> Tensor:
    """V [B, xi] from the last layer to the first.

    Args:
        truth: the environments.
        value: (states of a layer [S], next values [B, S, A]) -> values at their points [B, S, m].
    """
    V = torch.zeros(truth.weight.shape[:2], dtype=torch.float64)
    for step in reversed(range(truth.graph.horizon)):
        states = truth.graph.states_of(step)
        V[:, states] = (truth.weight[:, states] * value(states, truth.graph.values_after(V, states))).sum(-1)
    return V
