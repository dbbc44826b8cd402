"""Simulators and worlds of a `ReplayFamily`: the former replay, the latter step environments for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.defaults import plainly
from s2r_torch.episodes import require_actions, require_episodes, require_generators
from s2r_torch.families.layered import require_ids, running
from s2r_torch.families.replay.tree import Episode, ReplayTree


@dataclass(frozen=True, eq=False)
class Moves:
    """What mean rewards may depend on, beside theta."""

    latent: Tensor  # [B, n, l]
    actions: Tensor  # [B, n]
    following: Tensor  # [B, n, l]
    raw: Tensor  # [B, n] the environment's own rewards; NaN where they are no numbers
    place: Tensor  # [B, n] number of the latent numbers that the move starts from; equal ones have one number


RewardModel = Callable[[Tensor, Moves], Tensor]  # (theta [B, k], moves) -> mean rewards [B, n]


def own_reward(theta: Tensor, moves: Moves) -> Tensor:
    """The environment's own rewards, whatever theta is."""
    return moves.raw


@plainly("reset", "step")
class ReplaySimulators:
    """B simulators (`base.Simulators`) that replay every action path once and draw readings and rewards in batch.

    Args:
        family: the `ReplayFamily`.
        theta: `[B, k]`.
        ids: `[B]` names.
        tree: what happens along action paths.
        roots: `[B]` each simulator's root in the tree; all 0 where dynamics are shared.
    """

    def __init__(self, family, theta: Tensor, ids: Sequence[int], tree: ReplayTree, roots: Tensor):
        self.family, self.spec, self.theta, self.tree, self.roots = family, family.spec, theta, tree, roots
        self.ids = require_ids(theta, ids)
        self._generators: Sequence[torch.Generator] = ()
        self._nodes: Tensor | None = None
        self._step = 0

    def __len__(self) -> int:
        return len(self.ids)

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        require_generators(generators, len(self))
        self._generators, self._step = generators, 0
        return self._enter(self.roots[:, None].repeat(1, n))

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        following, mean = self.family.moves(self.tree, self.theta, running(self._nodes), actions)
        reward = self.family.pay(mean, self._generators)
        self._step += 1
        if self._step == self.spec.horizon:
            self._nodes = None
            return None, reward
        return self._enter(following), reward

    def select(self, indices: Sequence[int]) -> ReplaySimulators:
        rows = list(indices)
        return ReplaySimulators(self.family, self.theta[rows], [self.ids[i] for i in rows], self.tree, self.roots[rows])

    def close(self) -> None:
        """Closes the environments; they are opened again when needed."""
        self.tree.close()

    def _enter(self, nodes: Tensor) -> Tensor:
        """What is read at these nodes [B, n], where the episodes are from now on."""
        self._nodes = nodes
        return self.family.read(self.theta, self.tree.latent(nodes), self._generators)


@dataclass
class Walk:
    """Episodes of one batch whose actions were the same so far, in the one environment that they share."""

    episode: Episode
    taken: tuple[int, ...] = ()

    def move(self, action: int) -> Walk:
        """Goes on with an action."""
        self.episode.move(action)
        return Walk(self.episode, (*self.taken, action))


@plainly("reset", "step")
class SteppedWorld:
    """One world (`base.UnlabelledWorld`): its environments are stepped, and rewards are not looked at.

    Dynamics and starts hold no chance, so episodes of a batch whose actions were the same so far share an environment;
    where their actions part, others go the same way again.

    Args:
        family: the `ReplayFamily`.
        theta: `[k]`.
        generator: draws the readings; kept.
    """

    def __init__(self, family, theta: Tensor, generator: torch.Generator):
        self.family, self.spec, self.theta = family, family.spec, theta
        self._generator = generator
        self._episodes: list[Episode] = []  # environments, opened when first needed
        self._walks: list[Walk] = []
        self._walk_of: list[int] | None = None  # of every episode
        self._step = 0

    def reset(self, n: int) -> Tensor:
        require_episodes(n)
        self._walks, self._walk_of, self._step = [], [0] * n, 0
        self._walks.append(self._along(()))
        return self._read(self._walk_of)

    def step(self, actions: Tensor) -> Tensor:
        before = running(self._walk_of if self._step + 1 < self.spec.horizon else None)
        require_actions(actions, (len(before),), self.spec.num_actions)
        self._step += 1
        ways = list(zip(before, actions.tolist(), strict=True))  # (walk, action) of every episode
        apart = {way: number for number, way in enumerate(dict.fromkeys(ways))}
        going, moved = dict(reversed(apart)), []  # the first of its actions that a walk goes on with
        for walk, action in apart:
            if going[walk] == action:
                moved.append(self._walks[walk].move(action))
            else:
                moved.append(self._along((*self._walks[walk].taken, action)))
                self._walks.append(moved[-1])
        self._walks, self._walk_of = moved, [apart[way] for way in ways]
        return self._read(self._walk_of)

    def close(self) -> None:
        """Closes all environments."""
        self._walks, self._walk_of = [], None
        while self._episodes:
            self._episodes.pop().close()

    def _along(self, actions: tuple[int, ...]) -> Walk:
        """A walk of these actions, in an environment that no other one is in."""
        taken = {id(walk.episode) for walk in self._walks}
        free = next((episode for episode in self._episodes if id(episode) not in taken), None)
        if free is None:
            free = self.family.episode(self.theta)
            self._episodes.append(free)
        free.reset()
        walk = Walk(free)
        for action in actions:
            walk = walk.move(action)
        return walk

    def _read(self, walk_of: list[int]) -> Tensor:
        """What every episode reads, given its walk."""
        seen = torch.tensor([walk.episode.latent() for walk in self._walks], dtype=torch.float64)
        return self.family.read(self.theta[None], seen[walk_of][None], [self._generator])[0]
