"""The deploy procedure on fresh simulators: what certificates and the likeness of a world are measured on.

look       the first half of it: M simulators are looked at, in parts that fit into memory; only numbers are kept
rehearse   all of it: looked at, conditioned on, then acted in
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from s2r_torch.coverage import passages
from s2r_torch.density.patches import Densities, all_rows
from s2r_torch.deployment.collection import Collection
from s2r_torch.deployment.deploy import collect, densities_apart
from s2r_torch.deployment.likeness import Population, Reference, Sight
from s2r_torch.deployment.policy import MetaPolicy, Policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.episodes import Guard, Rollouts, rollout
from s2r_torch.given import taking
from s2r_torch.rng import Seed
from s2r_torch.workers.simulators import in_parts, map_simulators


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """M simulators after the deploy procedure: each looked at, conditioned on, then acted in."""

    D_hat: Densities  # [M, xi, G] as Deploy estimates them
    sight: Sight  # what they are compared with other worlds by
    rollouts: Rollouts  # [M, k, H, ...] episodes of the conditioned policy

    @property
    def values(self) -> Tensor:
        """Mean return per simulator [M], in [0, 1]."""
        return self.rollouts.returns.mean(1)


@taking(simulators=object)
def rehearse(meta_policy: MetaPolicy, simulators: Guard, n_rollouts: int, seed: Seed) -> Rehearsal:
    """Deploys in M fresh simulators exactly as in a world (Algorithm 7), then runs n_rollouts episodes in each.

    Cost:
        w n_real + n_rollouts episodes per simulator.
    """
    parts = map_simulators(_rehearse, in_parts(simulators), meta_policy, n_rollouts, seed)
    return Rehearsal(
        all_rows([part.D_hat for part in parts]),
        Sight.joined([part.sight for part in parts]),
        Rollouts.joined([part.rollouts for part in parts]),
    )


def _rehearse(simulators: Guard, meta_policy: MetaPolicy, n_rollouts: int, seed: Seed) -> Rehearsal:
    """In some simulators."""
    recording = collect(meta_policy, _AsWorlds(simulators, seed.child("look")))
    samples = recording.samples(meta_policy.problem.graph, meta_policy.readings)
    D_hat = meta_policy.patches(samples, _named(simulators))
    act, sight = meta_policy.condition(D_hat).act, _sight(meta_policy, simulators, recording)
    return Rehearsal(D_hat, sight, rollout(simulators, act, n_rollouts, seed.child("act")))


def look(meta_policy: MetaPolicy, simulators: Guard, seed: Seed) -> Sight:
    """What Deploy would see in M simulators, in the numbers that worlds are compared by; nothing is acted in.

    Cost:
        w n_real episodes per simulator. Memory does not grow with M, but for M numbers per state and passage.
    """
    return Sight.joined(map_simulators(_look, in_parts(simulators), meta_policy, seed))


def _look(simulators: Guard, meta_policy: MetaPolicy, seed: Seed) -> Sight:
    """At some simulators."""
    return _sight(meta_policy, simulators, collect(meta_policy, _AsWorlds(simulators, seed.child("look"))))


@taking(known=object, fresh=object)
def make_reference(meta_policy: MetaPolicy, known: Guard, fresh: Guard, seed: Seed) -> Reference:
    """What worlds are compared with.

    Args:
        meta_policy: whose deploy procedure is rehearsed.
        known: simulators that show what is normal: any, for example those of training.
        fresh: M simulators that are used for nothing else; ranks among them are exact (`likeness.Reference`).
        seed: named stream.

    Cost:
        w n_real episodes per simulator.
    """
    population = Population.of(look(meta_policy, known, seed.child("known")).first)
    sight = look(meta_policy, fresh, seed.child("fresh"))
    return Reference(population, population.scores(sight, passed_again(meta_policy)), meta_policy.n_real)


def passed_again(meta_policy: MetaPolicy) -> tuple[int, ...]:
    """[v] the states that the cover passes once more than it must."""
    return tuple(s for s, _ in passages(meta_policy.problem.graph, meta_policy.cover))


def policies_after(meta_policy: MetaPolicy, simulators: Guard, readings: Sequence[int], seed: Seed) -> Iterator[Policy]:
    """What Deploy would act by in M simulators after ever more episodes along every sequence of the cover.

    Cost:
        w episodes per simulator for each of the most readings: later policies see the earlier episodes, too.
    """
    most = max(readings)
    seen = collect(replace(meta_policy, n_real=most), _AsWorlds(simulators, seed.child("look")))
    along = torch.arange(len(seen)).view(len(meta_policy.cover), most)  # sequence by sequence
    for n in readings:
        first = seen.only(along[:, :n].flatten())
        yield replace(meta_policy, n_real=n).condition_on(first, _named(simulators))


def _sight(meta_policy: MetaPolicy, simulators: Guard, recording: Recording) -> Sight:
    """What the comparison with simulators makes of episodes along the cover."""
    problem, cover = meta_policy.problem, meta_policy.cover
    seen = Collection.of(recording, problem.graph, cover, meta_policy.n_real)
    apart = densities_apart(meta_policy, seen, _named(simulators))
    return Sight.of(*apart, passed_again(meta_policy), problem.grid)


def _named(simulators: Guard) -> list[str]:
    return [f"simulator {i}" for i in simulators.ids]


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
        return self._simulators.move(actions.expand(len(self._simulators), -1).contiguous())
