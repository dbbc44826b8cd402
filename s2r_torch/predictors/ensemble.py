"""The class F: groups of predictors behind one interface that returns reductions, never [F, B, n, A].

Members have one global index 0 .. F-1 for ever. Eliminated members are dropped physically (`Evaluator.keep`), and their
entries in results are NaN, so that a result always has the shape of the whole class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import PredictorGroup
from s2r_torch.episodes import Transitions
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.predictors.nets import Problem

CHUNK = 2**16  # (member, sample) pairs evaluated at once: a hidden layer then fits in cache


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The finite class F.

    Args:
        problem: state graph, density grid and sizes that every member was made for.
        groups: groups of members; global indices follow this order.
        exact: whether the class holds f* by construction (Assumption 2), as only known families can say.
    """

    problem: Problem
    groups: tuple[PredictorGroup, ...]
    exact: bool = False

    def __post_init__(self):
        if not self.groups or self.size < 1:
            raise SettingError(expected="at least one predictor", got="none", cause="an empty `net` list")

    @property
    def size(self) -> int:
        """F."""
        return sum(group.size for group in self.groups)

    def lipschitz_bound(self) -> Tensor:
        """Certified constants [F], float64."""
        return torch.cat([group.lipschitz_bound() for group in self.groups])

    def subset(self, members: Sequence[int]) -> Ensemble:
        """The class of these members only, in ascending order."""
        groups, start = [], 0
        for group in self.groups:
            inside = [m - start for m in sorted(members) if start <= m < start + group.size]
            if inside:
                groups.append(group.subset(inside))
            start += group.size
        return Ensemble(self.problem, tuple(groups), self.exact)

    def evaluator(self, D: Tensor) -> Evaluator:
        """The class conditioned on the densities D [B, xi, G] of B simulators."""
        return Evaluator(self, D)


class Evaluator:
    """The class F conditioned on densities; the embedding of D is computed once per member and simulator.

    All accumulations are in float64; memory is bounded by `CHUNK` whatever F, B and n are.
    """

    def __init__(self, ensemble: Ensemble, D: Tensor):
        self.size = ensemble.size
        self._ensemble, self._D = ensemble, D
        self._members = torch.arange(ensemble.size)
        self._conditioned = [group.condition(D) for group in ensemble.groups]

    def holds(self, alive: Tensor) -> bool:
        """Whether every member that is alive [F] is still evaluated."""
        return int(alive[self._members].sum()) == int(alive.sum())

    def keep(self, alive: Tensor) -> Evaluator:
        """The same class without the members that are not alive [F]; they give NaN from now on."""
        wanted = alive[self._members]
        if bool(wanted.all()):
            return self
        local = wanted.nonzero().flatten().tolist()
        kept = Evaluator(self._ensemble.subset(local), self._D)
        kept.size, kept._members = self.size, self._members[local]
        return kept

    def greedy_values(self, step: int, x: Tensor) -> Tensor:
        """V_hat[f, b] = mean_i max_a f(D_b, x_i, a) for x [B, n, d]: [F, B] (Algorithm 4, line 3)."""
        total = torch.zeros(len(self._members), x.shape[0], dtype=torch.float64)
        for rows, q in self._chunks(step, x):
            total[rows[0]] += q.amax(-1).sum(-1, dtype=torch.float64)
        return self._scatter(total / x.shape[1])

    def bellman_risks(self, step: int, data: Transitions, V_next: Tensor | None) -> tuple[Tensor, Tensor]:
        """Bellman risks, and greedy values from the same samples (Algorithm 5, line 4; theory.md C6).

            Risk[f, b]  = mean_i (f(D_b, x_i, a_i) - r_i - V_next[f, b, a_i])^2
            V_hat[f, b] = mean_i max_a f(D_b, x_i, a)

        Args:
            step: the layer of the state that the data come from.
            data: `[B, n]` transitions.
            V_next: `[F, B, A]` values of the successors, or None in the last layer.

        Returns:
            Risks [F, B] and values [F, B].

        Raises:
            ObservationError: a risk is not finite; it would eliminate every predictor.
        """
        risks = torch.zeros(len(self._members), data.x.shape[0], dtype=torch.float64)
        V_hat = torch.zeros_like(risks)
        for rows, q, h in self._residuals(step, data, V_next):
            risks[rows[0]] += (h - data.rewards[:, rows[1]]).square().sum(-1)
            V_hat[rows[0]] += q.amax(-1).sum(-1, dtype=torch.float64)
        if not bool(torch.isfinite(risks).all()):
            raise ObservationError(
                expected="finite Bellman risks",
                got=f"{int((~torch.isfinite(risks)).sum())} of {risks.numel()} not finite",
                cause="damaged weights, rewards that are not numbers, or successors that were never valued",
            )
        n = data.x.shape[1]
        return self._scatter(risks / n), self._scatter(V_hat / n)

    def distances(self, step: int, data: Transitions, V_next: Tensor | None) -> Tensor:
        """||h_f - h_g||_n on every simulator, h_f = f - V_next: [F', F', B] over the kept members only."""
        parts = [(rows, h) for rows, _, h in self._residuals(step, data, V_next)]
        h = torch.cat([torch.cat([h for rows, h in parts if rows[0] == block], -1) for block in _ordered(parts)])
        gram = torch.einsum("fbn,gbn->fgb", h, h) / data.x.shape[1]
        norm = gram.diagonal().T  # [F', B]
        return (norm[:, None] + norm[None] - 2 * gram).clamp(min=0).sqrt()

    def q_of(self, member: int, step: int, x: Tensor) -> Tensor:
        """f(D_b, x, a) of one member, by global index: [B, n, A]."""
        position = int((self._members == member).nonzero())
        for group, conditioned in zip(self._ensemble.groups, self._conditioned, strict=True):
            if position < group.size:
                return group.q(conditioned, step, x)[position]
            position -= group.size
        raise AssertionError("unreachable: members and groups agree by construction")

    def _residuals(self, step: int, data: Transitions, V_next: Tensor | None) -> Iterator[tuple[tuple, Tensor, Tensor]]:
        """(members and samples, q [f, B, n, A], h_f(x_i, a_i) = f(D_b, x_i, a_i) - V_next[f, b, a_i]) by chunks."""
        kept = None if V_next is None else V_next[self._members]
        for rows, q in self._chunks(step, data.x):
            actions = data.actions[:, rows[1]].expand(q.shape[:-1])
            h = q.gather(-1, actions[..., None]).squeeze(-1).double()
            yield rows, q, (h if kept is None else h - kept[rows[0]].gather(-1, actions))

    def _chunks(self, step: int, x: Tensor) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
        """((members, samples), q [f, B, n, A]) over groups and samples."""
        start = 0
        for group, conditioned in zip(self._ensemble.groups, self._conditioned, strict=True):
            width = max(1, CHUNK // (group.size * x.shape[0]))
            for i in range(0, x.shape[1], width):
                piece = slice(i, min(i + width, x.shape[1]))
                yield (slice(start, start + group.size), piece), group.q(conditioned, step, x[:, piece])
            start += group.size

    def _scatter(self, values: Tensor) -> Tensor:
        full = values.new_full((self.size, *values.shape[1:]), torch.nan)
        full[self._members] = values
        return full


def _ordered(parts: Sequence[tuple[tuple, Tensor]]) -> list[slice]:
    """The member blocks of a chunk list, each once, in order."""
    blocks: list[slice] = []
    for rows, _ in parts:
        if rows[0] not in blocks:
            blocks.append(rows[0])
    return blocks


ClassFactory = Callable[[Problem], Ensemble]
