"""What policies are worth: exactly where the family knows its ground truth, by episodes where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from s2r_torch.deployment import deploy
from s2r_torch.draws import Draws
from s2r_torch.envs import exact
from s2r_torch.episodes import Act, rollout
from s2r_torch.errors import GraphMismatchError
from s2r_torch.policy import MetaPolicy
from s2r_torch.rng import Seed

BATCH = 100  # environments whose ground truth is held at once


@dataclass(frozen=True)
class Deployed:
    """The worth of a deployed meta-policy on held-out worlds."""

    value: float  # mean expected total reward over the worlds
    low: float  # 95 % interval of that mean, from the paired gap to the optimum, cut at 0 and the optimum
    high: float
    optimal: float  # mean over the same worlds
    optimal_kind: str  # "exact", or what the bound is
    num_worlds: int
    real_per_world: int  # real episodes


def deploy_in(meta_policy: MetaPolicy, draws: Draws, count: int, on_world: Callable[[int], None]) -> tuple[Tensor, int]:
    """Deploys in `count` fresh worlds, one after another (Algorithm 7): D_real [count, xi, G], episodes per world."""
    densities, episodes = [], 0
    for w, theta in enumerate(draws.theta("worlds", count)):
        world = draws.family.world(theta, draws.seed.child("world", w).generator())
        deployed = deploy(meta_policy, world, draws.ledger, refuse=False)
        densities.append(deployed.D_real)
        episodes = deployed.episodes
        on_world(w)
    return torch.stack(densities), episodes


def value_deployed(meta_policy: MetaPolicy, D_real: Tensor, draws: Draws, n_rollouts: int, episodes: int) -> Deployed:
    """Compares the policies conditioned on D_real [W, xi, G] with the best possible ones in the same worlds."""
    count = len(D_real)
    theta = draws.theta("worlds", count)
    act = meta_policy.condition(D_real).act
    truth = draws.family.truth(theta)
    if truth is None:
        simulators = draws.simulators("worlds", count).for_purpose("evaluate")
        value = rollout(simulators, act, n_rollouts, draws.seed.child("evaluate")).returns.mean(1)
        optimal, kind = torch.ones_like(value), "bound: an episode's total is at most 1"
    else:
        value, optimal, kind = exact.policy_values(truth, act)[:, 0], exact.optimal(truth)[0][:, 0], "exact"
    gap = optimal - value
    half = stats.t.ppf(0.975, count - 1) * float(gap.std()) / math.sqrt(count)
    mean, best = float(value.mean()), float(optimal.mean())
    return Deployed(mean, max(0.0, mean - half), min(best, mean + half), best, kind, count, episodes)


@dataclass(frozen=True)
class Population:
    """Values over the prior of policies that need no density."""

    optimal: float
    open_loop: float
    blind: float
    random: float


def value_population(
    draws: Draws, count: int, n_rollouts: int, blind: Act, open_loop: Callable[[], Act], random: Callable[[Seed], Act]
) -> Population:
    """Values over `count` fresh draws of theta: exact where the family can, else by episodes."""
    theta = draws.theta("population", count)
    if draws.family.truth(theta[:1]) is None:
        simulators = draws.simulators("population", count).for_purpose("evaluate")
        seed = draws.seed.child("population")

        def value(name: str, act: Act) -> float:
            return float(rollout(simulators, act, max(1, n_rollouts // 10), seed.child(name)).returns.mean())

        return Population(
            1.0, value("open_loop", open_loop()), value("blind", blind), value("random", random(seed.child("actions")))
        )
    parts = [draws.family.truth(part) for part in theta.split(BATCH)]
    share = [len(part.x) / count for part in parts]
    mean_reward = sum(
        w * (part.weight[..., None] * part.reward).sum(2).mean(0) for w, part in zip(share, parts, strict=True)
    )

    def mean(values: Callable[[object], Tensor]) -> float:
        return sum(w * float(values(part).mean()) for w, part in zip(share, parts, strict=True))

    return Population(
        optimal=mean(lambda part: exact.optimal(part)[0][:, 0]),
        open_loop=exact.best_list(parts[0].graph, mean_reward)[1],
        blind=mean(lambda part: exact.policy_values(part, blind)[:, 0]),
        random=mean(exact.uniform_value),
    )


def check_graph(meta_policy: MetaPolicy, draws: Draws) -> str | None:
    """A sentence if the discovered graph differs from the true one, where the family knows it; for the report only."""
    truth = draws.family.truth(draws.theta("worlds", 1))
    if truth is None:
        return None
    try:
        meta_policy.problem.graph.require_same(truth.graph)
    except GraphMismatchError as error:
        return f"the discovered state graph is not the true one: {error}"
    return None
