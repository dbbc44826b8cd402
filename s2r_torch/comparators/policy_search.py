r"""Policy search by dynamic programming (PSDP; Bagnell, Kakade, Ng and Schneider 2003): policies of step and reading.

Backward over steps h = H-1 .. 0, with the policies of later steps fixed and w a weight of the states of step h:

    Q_h(x, a)  =  E_w[ r + V(theta, T(s, a)) | x, a ],    pi_h(x) = argmax_a Q_h(x, a)
    V(theta, s)  =  E[ r + V(theta, T(s, pi_h(x))) | theta, s ]

where the first mean is over theta and states that read x, and the second is theta's own, so that what a later step
cannot see is not promised to it. With w the states that a policy passes, what is found earns no less than it, up to
errors of regression. So sweeps are repeated: the first one weighs all states alike, each further one the states that
the policy before it passes, too.

A regression is a mean of targets by the corners of the cells that readings lie in (`DensityGrid.locate`): linear in
the number of readings, nothing is iterated, and consistent as cells shrink and hold ever more readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid, look_up
from s2r_torch.episodes import Act, Transitions
from s2r_torch.graph import StateGraph

PRIOR = 1.0  # readings that the mean over a step counts for, at every node


@dataclass(frozen=True, eq=False)
class GridPolicy:
    """Greedy actions of Q_h, interpolated between the nodes of a grid; off it, those of its mean."""

    grid: DensityGrid
    means: tuple[Tensor, ...]  # [H] of [A]
    tables: tuple[Tensor, ...]  # [H] of [A, G], what is added to the means

    @property
    def act(self) -> Act:
        """The policy, the same in every world."""

        def act(step: int, x: Tensor) -> Tensor:
            return self.actions(step, *_located(self.grid, x))

        return act

    def actions(self, step: int, index: Tensor, weight: Tensor) -> Tensor:
        """Actions [...] at readings that lie between nodes `[..., 2^d]`."""
        corners = index.shape[-1]
        Q = look_up(self.tables[step][None], index.reshape(1, -1, corners), weight.reshape(1, -1, corners))[0]
        return (Q + self.means[step]).argmax(-1).reshape(index.shape[:-1])


def _located(grid: DensityGrid, x: Tensor) -> tuple[Tensor, Tensor]:
    """Corners and weights of readings, which may hold more than densities live on."""
    return grid.locate(x[..., : grid.obs_dim])


@dataclass(frozen=True, eq=False)
class _Layer:
    """All decisions at the states of one step, S of them in B simulators."""

    states: list[int]
    index: Tensor  # [B, S n, 2^d] nodes around readings
    weight: Tensor  # [B, S n, 2^d]
    actions: Tensor  # [B, S n]
    rewards: Tensor  # [B, S n]
    following: Tensor  # [B, S n] states that follow, -1 after the last step

    def by_state(self, values: Tensor) -> Tensor:
        """Values [B, S n] as [B, S, n]."""
        return values.unflatten(1, (len(self.states), -1))


class PolicySearch:
    """PSDP on one grid.

    Args:
        graph: the state graph.
        samples: `[xi]` transitions [B, n] at every state, every action as often.
        grid: of the regressions.
    """

    def __init__(self, graph: StateGraph, samples: Sequence[Transitions], grid: DensityGrid):
        self.graph, self.grid = graph, grid
        self.layers = [self._layer(samples, graph.states_of(step)) for step in range(graph.horizon)]

    def best(self, sweeps: int) -> GridPolicy:
        """The policy that earns most on the samples, of so many sweeps."""
        found, passed = [], torch.ones(len(self.layers[0].actions), self.graph.num_states, dtype=torch.float64)
        for _ in range(sweeps):
            policy, value = self.swept(passed)
            found.append((value, policy))
            passed = (self.passed(policy) + 1 / self.graph.num_states) / 2
        return max(found, key=lambda one: one[0])[1]

    def swept(self, passed: Tensor) -> tuple[GridPolicy, float]:
        """The policy of one sweep, and what it earns on the samples.

        Args:
            passed: `[B, xi]` weights of the states.
        """
        V = torch.zeros(len(passed), self.graph.num_states + 1, dtype=torch.float64)  # the last one after the end
        means: list[Tensor] = []
        tables: list[Tensor] = []
        for layer in reversed(self.layers):
            target = layer.rewards + V.gather(1, layer.following % V.shape[1])
            weight = passed[:, layer.states].repeat_interleave(target.shape[1] // len(layer.states), 1)
            mean, table = self._regressed(layer, target, weight)
            means, tables = [mean, *means], [table, *tables]
            policy = GridPolicy(self.grid, (mean,), (table,))
            V[:, layer.states] = self._earned(layer, target, policy.actions(0, layer.index, layer.weight))
        return GridPolicy(self.grid, tuple(means), tuple(tables)), float(V[:, 0].mean())

    def passed(self, policy: GridPolicy) -> Tensor:
        """How likely a policy passes every state `[B, xi]`."""
        leaving = []
        for step, layer in enumerate(self.layers):
            chosen = layer.by_state(policy.actions(step, layer.index, layer.weight))
            leaving.append(torch.stack([(chosen == a).double().mean(-1) for a in range(self.graph.num_actions)], -1))
        return self.graph.walked(leaving)

    def _layer(self, samples: Sequence[Transitions], states: list[int]) -> _Layer:
        some = [samples[s] for s in states]
        actions = torch.cat([t.actions for t in some], 1)
        each = torch.tensor(states).repeat_interleave(actions.shape[1] // len(states))
        return _Layer(
            states,
            *_located(self.grid, torch.cat([t.x for t in some], 1)),
            actions,
            torch.cat([t.rewards for t in some], 1),
            self.graph.next_state[each, actions],
        )

    def _regressed(self, layer: _Layer, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of targets of every action `[A]`, and by how much they differ from it at every node `[A, G]`."""
        A, G = self.graph.num_actions, self.grid.num_points
        weight = weight / weight.mean()
        flat = layer.actions.flatten()
        count, total = (torch.zeros(A, dtype=torch.float64) for _ in range(2))
        count.index_add_(0, flat, weight.flatten())
        mean = total.index_add_(0, flat, (weight * target).flatten()) / count.clamp(min=1e-300)
        node = (layer.actions[..., None] * G + layer.index).flatten()
        share = weight[..., None] * layer.weight
        excess = share * (target - mean[layer.actions])[..., None]
        seen, sums = (torch.zeros(A * G, dtype=torch.float64) for _ in range(2))
        seen.index_add_(0, node, share.flatten())
        return mean, (sums.index_add_(0, node, excess.flatten()) / (seen + PRIOR)).view(A, G)

    def _earned(self, layer: _Layer, target: Tensor, chosen: Tensor) -> Tensor:
        """What chosen actions [B, S n] earn in every state `[B, S]`: the mean of those that were taken by chance.

        Where none was, in no sample of a simulator, what they earn in all.
        """
        taken = layer.by_state((chosen == layer.actions).double())
        sums, counts = (taken * layer.by_state(target)).sum(-1), taken.sum(-1)
        overall = sums.sum(0) / counts.sum(0).clamp(min=1)
        return torch.where(counts > 0, sums / counts.clamp(min=1), overall)
