"""The class F: groups of predictors behind one interface that returns reductions, never [F, B, n, A].

Members have one global index 0 .. F-1 for ever. Eliminated members are dropped physically (`Evaluator.keep`), and their
entries in results are NaN, so that a result always has the shape of the whole class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.base import PredictorGroup
from s2r_torch.density.patches import Densities, taken
from s2r_torch.episodes import Act, Transitions
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.given import refuse_kind, require_having, taking
from s2r_torch.memory import slices
from s2r_torch.plain import require_count
from s2r_torch.problem import Problem
from s2r_torch.workers.threads import in_threads

CHUNK = 2**18  # (member, sample) pairs evaluated at once: results stay in the cache
MEMBERS = 64  # members of a group evaluated at once: a quarter faster than 256 at 4096 samples, as fast at 256


@taking(groups=object)
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
        if not isinstance(self.groups, Iterable):
            refuse_kind("groups", self.groups, "a tuple of groups of predictors", "one group: (group,)")
        object.__setattr__(self, "groups", tuple(self.groups))
        for group in self.groups:
            require_having("groups", group, ("size", "condition", "q", "subset"), "groups of predictors")
        if not self.groups or self.size < 1:
            raise SettingError(expected="at least one predictor", got="none", cause="an empty `net` list")

    @property
    def size(self) -> int:
        """F."""
        return sum(group.size for group in self.groups)

    @property
    def certified(self) -> bool:
        """Whether every member has a certified Lipschitz bound (Assumption 4); a user's own network may have none."""
        return bool(torch.isfinite(self.lipschitz_bound()).all())

    @property
    def num_parameters(self) -> int:
        """Learned numbers of all members; a ready-made class has none."""
        return sum(getattr(group, "num_parameters", 0) for group in self.groups)

    def lipschitz_bound(self) -> Tensor:
        """Certified constants [F], float64; infinite without a certificate."""
        return torch.cat([group.lipschitz_bound() for group in self.groups])

    def subset(self, members: Sequence[int]) -> Ensemble:
        """The class of these members only, in ascending order."""
        members = [require_count("a member", m, self.size - 1, "an index of another class", least=0) for m in members]
        groups, start = [], 0
        for group in self.groups:
            inside = [m - start for m in sorted(members) if start <= m < start + group.size]
            if inside:
                groups.append(group.subset(inside))
                if groups[-1].size != len(inside):
                    expected, got = f"{len(inside)} members from subset of {type(group).__name__}", str(groups[-1].size)
                    raise SettingError(expected=expected, got=got, cause="a subset that leaves nobody out")
            start += group.size
        return Ensemble(self.problem, tuple(groups), self.exact)

    def described(self, member: int) -> str:
        """A member by its global index, and where to find it."""
        place = member
        for group in self.groups:
            if place < group.size:
                name = getattr(group, "name", "") or type(group).__name__
                return f"member {member} ({place} of {group.size} of net {name!r})"
            place -= group.size
        raise IndexError(member)

    def evaluator(self, D: Densities, readings: float | None = None) -> Evaluator:
        """The class conditioned on the densities D [B, xi, G] of B simulators.

        Args:
            D: the densities.
            readings: behind the density of a state; None for as many as training saw at most (`PredictorGroup`).
        """
        return Evaluator(self, D, readings)


@dataclass(frozen=True, eq=False)
class _Block:
    """Members of one group on some simulators, few enough to be evaluated at once."""

    group: PredictorGroup
    members: slice  # positions among the kept members
    simulators: slice
    conditioned: object

    @property
    def pairs(self) -> int:
        """(member, simulator)."""
        return self.group.size * (self.simulators.stop - self.simulators.start)


Piece = tuple[slice, slice, slice]  # members, simulators, samples


def greedy_actions(q: Tensor) -> Tensor:
    """pi^f(x) = argmax_a f(D, x, a), the first one on ties: [..., A] -> [...]."""
    return q.argmax(-1) if q.is_contiguous() else q.max(-1).indices  # across strides argmax takes twenty times as long


class Evaluator:
    """The class F conditioned on densities; the embedding of D is computed once per member and simulator.

    All accumulations are in float64; no group is ever asked for more than `CHUNK` (member, sample) pairs at once,
    whatever F, B and n are.
    """

    def __init__(self, ensemble: Ensemble, D: Densities, readings: float | None = None):
        self.size = ensemble.size
        self._ensemble, self._class, self._D = ensemble, ensemble, D  # what is left of the class, the class
        self._readings, self._members = readings, torch.arange(ensemble.size)
        self._blocks = _blocks(ensemble, D, readings)

    def holds(self, alive: Tensor) -> bool:
        """Whether every member that is alive [F] is still evaluated."""
        return int(alive[self._members].sum()) == int(alive.sum())

    def keep(self, alive: Tensor) -> Evaluator:
        """The same class without the members that are not alive [F]; they give NaN from now on."""
        wanted = alive[self._members]
        if bool(wanted.all()):
            return self
        local = wanted.nonzero().flatten().tolist()
        kept = Evaluator(self._ensemble.subset(local), self._D, self._readings)
        kept.size, kept._class, kept._members = self.size, self._class, self._members[local]
        return kept

    def greedy_values(self, step: int, x: Tensor) -> Tensor:
        """V_hat[f, b] = mean_i max_a f(D_b, x_i, a) for x [B, n, d]: [F, B] (Algorithm 4, line 3).

        Raises:
            ObservationError: a value is not finite; its member is named.
        """
        total = torch.zeros(len(self._members), x.shape[0], dtype=torch.float64)
        for (members, simulators, _), q in self._pieces(step, x):
            total[members, simulators] += q.amax(-1).sum(-1, dtype=torch.float64)
        self._require_finite("values", total)
        return self._scatter(total / x.shape[1])

    def opinions(self, other: Evaluator, step: int, x: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What members think of the actions that were taken, and how much of it is density noise (theory.md 4.2).

        Args:
            other: the same members on other densities D'.
            step: the layer of the readings.
            x: `[B, n, d]`.
            actions: `[B, n]`.

        Returns:
            Three tensors [F, B], of one evaluation for D and one for D':
            mean_i (max_a f(D_b, x_i, a) - f(D_b, x_i, a_i)); mean_i max_a f(D_b, x_i, a); and `largest_change`.
        """
        advantage, greedy, largest = torch.zeros(3, len(self._members), x.shape[0], dtype=torch.float64)
        for (piece, q), (_, moved) in zip(self._pieces(step, x), other._pieces(step, x), strict=True):
            members, simulators, samples = piece
            best = q.amax(-1)
            taken = q.gather(-1, actions[simulators, samples].expand(q.shape[:-1])[..., None]).squeeze(-1)
            advantage[members, simulators] += (best - taken).sum(-1, dtype=torch.float64)
            greedy[members, simulators] += best.sum(-1, dtype=torch.float64)
            change = (q - moved).abs().amax((-2, -1)).double()
            largest[members, simulators] = torch.maximum(largest[members, simulators], change)
        n = x.shape[1]
        return self._scatter(advantage / n), self._scatter(greedy / n), self._scatter(largest)

    def largest_change(self, other: Evaluator, step: int, x: Tensor) -> Tensor:
        """max over i and a of |f(D_b, x_i, a) - f(D'_b, x_i, a)| for x [B, n, d]: [F, B]; D' is that of `other`."""
        largest = torch.zeros(len(self._members), x.shape[0], dtype=torch.float64)
        for (piece, q), (_, moved) in zip(self._pieces(step, x), other._pieces(step, x), strict=True):
            members, simulators, _ = piece
            change = (q - moved).abs().amax((-2, -1)).double()
            largest[members, simulators] = torch.maximum(largest[members, simulators], change)
        return self._scatter(largest)

    def bellman_risks(
        self, step: int, data: Transitions, V_next: Tensor | None, earned_next: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Bellman risks, and greedy values from the same samples (Algorithm 5, line 4; theory.md C6).

            Risk[f, b]   = mean_i (f(D_b, x_i, a_i) - r_i - V_next[f, b, a_i])^2
            V_hat[f, b]  = mean_i max_a f(D_b, x_i, a)
            earned[f, b] = mean_i (A 1{a_i = pi^f(x_i)} r_i + earned_next[f, b, pi^f(x_i)])

        The last is what pi^f earns from the state on, by others' decisions: unbiased where every action is taken
        equally often, and readings of different states are independent.

        Args:
            step: the layer of the state that the data come from.
            data: `[B, n]` transitions.
            V_next: `[F, B, A]` values of the successors, or None in the last layer.
            earned_next: `[F, B, A]` likewise; None for 0.

        Returns:
            Risks, values and what is earned, [F, B] each.

        Raises:
            ObservationError: a risk is not finite; it would eliminate every predictor. Members are named.
        """
        risks, V_hat, earned = torch.zeros(3, len(self._members), data.x.shape[0], dtype=torch.float64)
        for piece, q in self._pieces(step, data.x):
            members, simulators, samples = piece
            rewards, (best, greedy) = data.rewards[simulators, samples], q.max(-1)
            h = self._differences(piece, q, data, V_next)
            risks[members, simulators] += (h - rewards).square().sum(-1)
            V_hat[members, simulators] += best.sum(-1, dtype=torch.float64)
            taken = greedy == data.actions[simulators, samples]
            earned[members, simulators] += q.shape[-1] * (taken * rewards).sum(-1, dtype=torch.float64)
            if earned_next is not None:
                following = earned_next[self._members[members], simulators]
                earned[members, simulators] += following.gather(-1, greedy).sum(-1)
        self._require_finite("Bellman risks", risks)
        n = data.x.shape[1]
        return self._scatter(risks / n), self._scatter(V_hat / n), self._scatter(earned / n)

    def average_bellman_errors(self, step: int, data: Transitions, x_next: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and mean square of  A 1{a_i = pi^f(x_i)} (f(x_i, a_i) - r_i - max_a f(x'_i, a)): [F, B] each.

        The importance-weighted Bellman errors of OLIVE (Jiang et al. 2017), for uniform actions.

        Args:
            step: the layer of the readings.
            data: `[B, n]` transitions.
            x_next: `[B, n, d]` the readings after them, or None in the last layer.
        """
        total = torch.zeros(2, len(self._members), data.x.shape[0], dtype=torch.float64)
        for block in self._blocks:
            for (members, rows, samples), q in self._pieces_of(block, step, data.x):
                taken = data.actions[rows, samples].expand(q.shape[:-1])
                error = q.gather(-1, taken[..., None]).squeeze(-1).double() - data.rewards[rows, samples]
                if x_next is not None:
                    error -= block.group.q(block.conditioned, step + 1, x_next[rows, samples]).amax(-1)
                error *= q.shape[-1] * (greedy_actions(q) == taken)
                total[0, members, rows] += error.sum(-1)
                total[1, members, rows] += error.square().sum(-1)
        mean, square = total / data.x.shape[1]
        return self._scatter(mean), self._scatter(square)

    def distances(self, step: int, data: Transitions, V_next: Tensor | None) -> Tensor:
        """||h_f - h_g||_n on every simulator, h_f = f - V_next: [F', F', B] over the kept members only."""
        count, (B, n) = len(self._members), data.x.shape[:2]
        gram = torch.zeros(B, count, count, dtype=torch.float64)
        for simulators in dict.fromkeys((block.simulators.start, block.simulators.stop) for block in self._blocks):
            rows = slice(*simulators)
            for samples in slices(n, CHUNK // (count * (rows.stop - rows.start))):
                blocks = [block for block in self._blocks if block.simulators == rows]
                pieces = [(block.members, rows, samples) for block in blocks]
                q = (block.group.q(block.conditioned, step, data.x[rows, samples]) for block in blocks)
                h = torch.cat([self._differences(*pair, data, V_next) for pair in zip(pieces, q, strict=True)])
                h = h.transpose(0, 1)  # [B, F', n]
                gram[rows] += h @ h.mT
        gram = gram.permute(1, 2, 0) / n
        norm = gram.diagonal().T  # [F', B]
        return (norm[:, None] + norm[None] - 2 * gram).clamp(min=0).sqrt()

    def q_of(self, member: int, step: int, x: Tensor) -> Tensor:
        """f(D_b, x, a) of one member, by global index: [B, n, A].

        Raises:
            SettingError: the member was dropped, or never was one.
        """
        positions = (self._members == member).nonzero().flatten().tolist()
        position = positions[0] if positions else -1
        found = [
            torch.cat([q[position - block.members.start] for _, q in self._pieces_of(block, step, x)], 1)
            for block in self._blocks
            if block.members.start <= position < block.members.stop
        ]
        if not found:
            raise SettingError(
                expected=f"one of the {len(self._members)} members that are still evaluated",
                got=f"member {member} of {self.size}",
                cause="it was eliminated before, or belongs to another class",
            )
        return torch.cat(found)

    def policy_of(self, member: int) -> Act:
        """The greedy policy pi^f of one member, by global index: act(step, x [B, n, d]) -> actions [B, n]."""
        return lambda step, x: greedy_actions(self.q_of(member, step, x))

    def _differences(self, piece: Piece, q: Tensor, data: Transitions, V_next: Tensor | None) -> Tensor:
        """h_f(x_i, a_i) = f(D_b, x_i, a_i) - V_next[f, b, a_i] on a piece, from q [f, b, i, A]: [f, b, i], float64."""
        members, simulators, samples = piece
        actions = data.actions[simulators, samples].expand(q.shape[:-1])
        h = q.gather(-1, actions[..., None]).squeeze(-1).double()
        return h if V_next is None else h - V_next[self._members[members], simulators].gather(-1, actions)

    def _pieces(self, step: int, x: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """(piece, q [f, b, i, A]) over all members, simulators and samples."""
        return self._asked(self._blocks, step, x)

    def _pieces_of(self, block: _Block, step: int, x: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        return self._asked([block], step, x)

    def _asked(self, blocks: Sequence[_Block], step: int, x: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        def ask(part: tuple[_Block, slice]) -> tuple[Piece, Tensor]:
            (block, samples), rows = part, part[0].simulators
            return (block.members, rows, samples), block.group.q(block.conditioned, step, x[rows, samples])

        one_by_one = any(users_code(block.group) for block in blocks)
        parts = ((block, samples) for block in blocks for samples in slices(x.shape[1], CHUNK // block.pairs))
        return (map if one_by_one else in_threads)(ask, parts)

    def _require_finite(self, what: str, values: Tensor) -> None:
        """Raises ObservationError, with the members' names, unless all values [F', B] are finite."""
        bad = ~torch.isfinite(values)
        if not bool(bad.any()):
            return
        rows = bad.any(1).nonzero().flatten()
        named = ", ".join(self._class.described(member) for member in self._members[rows][:3].tolist())
        some = len(rows) < len(values)
        raise ObservationError(
            expected=f"finite {what}",
            got=f"{int(bad.sum())} of {bad.numel()} not finite: " + (named if some else f"all {len(rows)} members"),
            cause="damaged weights of that member, or training that diverged"
            if some
            else "rewards or readings that are not numbers, or successors that were never valued",
        )

    def _scatter(self, values: Tensor) -> Tensor:
        full = values.new_full((self.size, *values.shape[1:]), torch.nan)
        full[self._members] = values
        return full


def users_code(group: PredictorGroup) -> bool:
    """Whether some of it is not the library's, so that it may keep notes, or ask the global generators."""
    parts = group.modules() if isinstance(group, nn.Module) else [group]
    return any(type(part).__module__.split(".")[0] not in ("s2r_torch", "torch") for part in parts)


def conditioned(group: PredictorGroup, D: Densities, readings: float | None = None) -> object:
    """What a group makes of densities [B, xi, G]; all nodes are written out for one that does not take patches."""
    return group.condition(taken(group.condition, D), readings)


def _blocks(ensemble: Ensemble, D: Densities, readings: float | None) -> list[_Block]:
    """The class in blocks of at most `CHUNK` (member, simulator) pairs; simulators are cut alike for all groups."""
    most = min(CHUNK, MEMBERS)
    widest = min(most, max(group.size for group in ensemble.groups))
    blocks, start = [], 0
    for group in ensemble.groups:
        for part in slices(group.size, most):
            members = slice(start + part.start, start + part.stop)
            piece = group if members.stop - members.start == group.size else group.subset(range(part.start, part.stop))
            for rows in slices(D.shape[0], CHUNK // widest):
                blocks.append(_Block(piece, members, rows, conditioned(piece, D[rows], readings)))
        start += group.size
    return blocks


ClassFactory = Callable[[Problem], Ensemble]
