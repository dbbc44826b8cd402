"""Algorithm 7, Deploy: look at a world without rewards along a path cover, then act."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import UnlabelledWorld
from s2r_torch.coverage import assigned, passages
from s2r_torch.episodes import GuardedWorld, Ledger
from s2r_torch.errors import SettingError, UnlikeSimulatorsError
from s2r_torch.likeness import REFUSED, Likeness, untested
from s2r_torch.policy import MetaPolicy, Policy


@dataclass(frozen=True, eq=False)
class Deployment:
    """A policy for one world, and what it took to get it."""

    policy: Policy
    D_real: Tensor  # [xi, G]
    episodes: int  # real episodes drawn
    likeness: Likeness  # is this world like the simulators?


def deploy(
    meta_policy: MetaPolicy, world: UnlabelledWorld, ledger: Ledger | None = None, *, refuse: bool = True
) -> Deployment:
    """Estimates a world's densities from unlabelled episodes and conditions the policy on them (Algorithm 7, Deploy).

    Args:
        meta_policy: a trained meta-policy.
        world: shows observations; has no reward.
        ledger: where real episodes are counted.
        refuse: raise where the world is not like the simulators; otherwise the verdict is only reported.

    Returns:
        The policy for this world, D_real, the number of episodes, and whether the world is like the simulators.

    Raises:
        SettingError: the world has other actions, steps or sensors than the policy was made for.
        ObservationError: observations off the grid, not finite, or of another shape.
        UnlikeSimulatorsError: the verdict on this world is `refused`.

    Paper deviation:
        Episodes follow a path cover: w n_real of them instead of n_dist H S A, with n_real observations per state
        (theory.md 3.1, 3.3).

    Cost:
        w n_real real-world episodes.
    """
    ledger = ledger or Ledger()
    guarded = GuardedWorld(world, ledger)
    require_same_problem(meta_policy, world)
    seen = collect(meta_policy, guarded)
    D_real = torch.stack([meta_policy.estimator(x) for x in seen.observations])
    likeness = likeness_of(meta_policy, seen, D_real)
    if refuse and likeness.verdict == REFUSED:
        raise UnlikeSimulatorsError(
            expected="a world like the simulators",
            got=str(likeness),
            cause="another machine, swapped axes, other units, a stuck sensor, or theta outside the prior",
        )
    episodes = len(meta_policy.cover) * meta_policy.n_real
    return Deployment(meta_policy.condition(D_real), D_real, episodes, likeness)


@dataclass(frozen=True, eq=False)
class Collection:
    """What was seen along a path cover; leading sizes are those of the world."""

    observations: list[Tensor]  # [xi] of [..., n_real, d], each from the one sequence that supplies its state
    again: list[Tensor]  # of [..., n_real, d]: states that a later sequence passed again, in `coverage.passages` order


def collect(meta_policy: MetaPolicy, world: UnlabelledWorld) -> Collection:
    """Walks the cover, n_real episodes a sequence: n_real observations of every state."""
    graph, cover = meta_policy.problem.graph, meta_policy.cover
    source = assigned(graph, cover)
    observations: list[Tensor] = [torch.empty(0)] * graph.num_states
    again = []
    for number, actions in enumerate(cover):
        x = world.reset(meta_policy.n_real)
        for step in range(graph.horizon):
            state = graph.end(actions[:step])
            if int(source[state]) == number:
                observations[state] = x
            else:
                again.append(x)
            if step < graph.horizon - 1:
                x = world.step(torch.full((meta_policy.n_real,), actions[step], dtype=torch.int64))
    return Collection(observations, again)


def likeness_of(meta_policy: MetaPolicy, seen: Collection, D_real: Tensor) -> Likeness:
    """Whether a world with densities D_real [xi, G] is like the simulators."""
    if meta_policy.reference is None:
        return untested("the policy was saved without scores of fresh simulators to compare a world with")
    problem = meta_policy.problem
    states = [s for s, _ in passages(problem.graph, meta_policy.cover)]
    return meta_policy.reference.judge(D_real, densities_again(meta_policy, seen, D_real), states, problem)


def densities_again(meta_policy: MetaPolicy, seen: Collection, D: Tensor) -> Tensor:
    """Densities [..., v, G] of the states that were passed again; D [..., xi, G] gives the leading sizes."""
    again = [meta_policy.estimator(x) for x in seen.again]
    return torch.stack(again, -2) if again else D.new_zeros(*D.shape[:-2], 0, D.shape[-1])


def require_same_problem(meta_policy: MetaPolicy, world: UnlabelledWorld) -> None:
    """Raises SettingError unless the world has the actions, horizon and sensors that the policy was made for."""
    for name in ("num_actions", "horizon", "obs_dim", "obs_names"):
        ours, theirs = getattr(meta_policy.problem.spec, name), getattr(world.spec, name)
        if ours != theirs:
            raise SettingError(
                expected=f"a world with {name} = {ours}, as the policy was trained for",
                got=f"{theirs}",
                cause="another world, or another version of its sensors",
            )
