"""The whole deploy procedure on fresh simulators: what certificates and the likeness of a world are measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from s2r_torch.coverage import passages
from s2r_torch.deployment.deploy import collect, densities_again
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard, Rollouts, rollout
from s2r_torch.rng import Seed


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """M simulators after the deploy procedure: each looked at, conditioned on, then acted in."""

    D_hat: Tensor  # [M, xi, G] as Deploy estimates them
    again: Tensor  # [M, v, G] densities of states that were passed again
    passages: tuple[int, ...]  # [v] those states
    rollouts: Rollouts  # [M, k, H, ...] episodes of the conditioned policy

    @property
    def values(self) -> Tensor:
        """Mean return per simulator [M], in [0, 1]."""
        return self.rollouts.returns.mean(1)


def rehearse(meta_policy: MetaPolicy, simulators: Guard, n_rollouts: int, seed: Seed) -> Rehearsal:
    """Deploys in M fresh simulators exactly as in a world (Algorithm 7), then runs n_rollouts episodes in each.

    Cost:
        w n_real + n_rollouts episodes per simulator.
    """
    seen = collect(meta_policy, _AsWorlds(simulators, seed.child("look")))
    D_hat = meta_policy.densities(seen.observations)
    again = densities_again(meta_policy, seen, D_hat)
    states = tuple(s for s, _ in passages(meta_policy.problem.graph, meta_policy.cover))
    act = meta_policy.condition(D_hat).act
    return Rehearsal(D_hat, again, states, rollout(simulators, act, n_rollouts, seed.child("act")))


def densities_after(meta_policy: MetaPolicy, simulators: Guard, n: int, seed: Seed) -> Tensor:
    """D_hat [M, xi, G] that Deploy would estimate in M simulators if it were given n readings of every state."""
    seen = collect(replace(meta_policy, n_real=n), _AsWorlds(simulators, seed.child("look", n)))
    return meta_policy.densities(seen.observations)


class _AsWorlds:
    """M simulators walked like one world: everywhere the same actions, and no reward."""

    def __init__(self, simulators: Guard, seed: Seed):
        self.spec, self._simulators, self._seed, self._walks = simulators.spec, simulators, seed, 0

    def reset(self, n: int) -> Tensor:
        """Starts n episodes in each; returns x [M, n, d]."""
        self._walks += 1
        return self._simulators.reset(n, self._seed.child(self._walks).generators(self._simulators.ids))

    def step(self, actions: Tensor) -> Tensor:
        """Takes actions [n] in every simulator; returns x [M, n, d]."""
        x, _ = self._simulators.step(actions.expand(len(self._simulators), -1).contiguous())
        return x
