r"""Is this world like the simulators? Tests on a world's densities, ranked together against fresh simulators.

    joint        all states together: the Mahalanobis distance of their summaries
    state        one state alone: the largest Mahalanobis distance of a state's summaries from what all other states say
                 of them; it sees a change of few states that `joint` drowns
    passage      the same of a state that is reached in a second way: do paths merge as they do in the simulators?
    shape        the largest relative sup distance between the densities of two passages through one state

What other states say of one comes from a factor model of the simulators' summaries (`Population`): given theta, states
are estimated from independent readings, so that what they share are few factors, and the rest is noise of each alone.

M fresh simulators that went through the same deploy procedure (same cover, n_real and bandwidth) have the same scores
[M, K]. They are peeled off: the largest by the first test, the largest of the rest by the second, and so on, in turns.
The world's p is r / (M + 1), r the first turn whose simulator it exceeds by that turn's test. If the world is drawn
like the simulators, P(p <= r / (M + 1)) = r / (M + 1), whatever the scores are and however they depend on each other
(statistically equivalent blocks: Tukey, 1947; for one test this is a conformal rank). For one file, whose M scores are
what they are, the rate of p <= r / (M + 1) is Beta(r, M + 1 - r): `Reference.false_alarms`.

Only what the cover passes is tested: its states, and those edges between them that it walks (`edges.py` walks others).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import scipy
import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.patches import Densities, Patches, dense, heights
from s2r_torch.deployment.factors import Factors, fit_factors
from s2r_torch.deployment.summaries import named_summaries, summaries
from s2r_torch.errors import SettingError
from s2r_torch.graph import after
from s2r_torch.problem import Problem

CONSISTENT, DOUBTFUL, REFUSED, UNTESTED = "consistent", "doubtful", "refused", "untested"
TESTS = ("joint", "state", "passage", "shape")  # columns of scores; without second passages only the first two
DOUBT, REFUSE = 0.05, 0.01  # false alarms among worlds from the prior
INTERVAL = 0.95  # of the rate of one file
LEAST_SCALE = 1e-6  # of a summary over simulators
NOTABLE = 3.0  # standard deviations from which one number is worth a word


@dataclass(frozen=True)
class Likeness:
    """What the tests say of one world."""

    verdict: str  # consistent, doubtful, refused or untested
    p: float  # of all tests together; 1 where untested
    p_unlike: float  # the smaller rank among `joint` and `state`, alone
    p_disagree: float  # likewise of `passage` and `shape`; 1 without second passages
    reasons: tuple[str, ...]  # what is most unusual, and what could not be said, for people

    def __str__(self) -> str:
        if self.verdict == UNTESTED:
            return f"{UNTESTED}: {self.reasons[0]}"
        text = f"{self.verdict} (p = {self.p:.3g}: densities {self.p_unlike:.3g}, merging {self.p_disagree:.3g})"
        return text if self.verdict == CONSISTENT else f"{text}; {'; '.join(self.reasons)}"


def untested(reason: str) -> Likeness:
    """No rank is exact here; says why."""
    return Likeness(UNTESTED, 1.0, 1.0, 1.0, (reason,))


@dataclass(frozen=True, eq=False)
class Sight:
    """What worlds showed along the cover, in numbers; leading sizes are those of the worlds."""

    first: Tensor  # [..., xi, q] summaries of every state's density
    again: Tensor  # [..., v, q] of states that were passed again
    shape: Tensor  # [..., v] relative sup distances of their two densities

    @staticmethod
    def of(D: Densities, again: Densities, passages: Sequence[int], grid: DensityGrid) -> Sight:
        """Of densities D [..., xi, G], and [..., v, G] of the states `passages` [v] that were passed again."""
        return Sight(summaries(D, grid), summaries(again, grid), disagreement(D, again, passages))

    @staticmethod
    def joined(parts: Sequence[Sight]) -> Sight:
        """Of all worlds in the parts, in order."""
        return Sight(*(torch.cat([getattr(part, name) for part in parts]) for name in ("first", "again", "shape")))


@dataclass(frozen=True, eq=False)
class Population:
    """The summaries of many simulators, as a factor model.

    Args:
        mean: `[xi, q]` of the summaries.
        scale: `[xi, q]` their standard deviations, > 0.
        factors: of the standardised summaries.
    """

    mean: Tensor
    scale: Tensor
    factors: Factors

    @staticmethod
    def of(values: Tensor) -> Population:
        """The population of simulators with summaries [B, xi, q].

        Raises:
            SettingError: fewer than two simulators.
        """
        if len(values) < 2:
            raise SettingError(expected="at least 2 simulators", got=str(len(values)), cause="one has no spread")
        mean, scale = values.mean(0), values.std(0).clamp(min=LEAST_SCALE)
        return Population(mean, scale, fit_factors((values - mean) / scale))

    def scores(self, sight: Sight, passages: Sequence[int]) -> Tensor:
        """[..., K] the tests' scores, each larger where a world is less like the simulators."""
        z, away = self.away(sight.first)
        columns = [self.factors.distance(z), self.factors.distances(away).amax(-1)]
        if len(passages):
            rows = list(passages)
            second = self.second(sight, z, away, rows)
            columns += [self.factors.distances(second, rows).amax(-1), sight.shape.amax(-1)]
        return torch.stack(columns, -1)

    def away(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised summaries z [..., xi, q], and how far each state's are from what all others say of them."""
        z = (first - self.mean) / self.scale
        return z, self.factors.residuals(z)

    def second(self, sight: Sight, z: Tensor, away: Tensor, rows: list[int]) -> Tensor:
        """How far second passages [..., v, q] through states `rows` are from what all other states say of these."""
        again = (sight.again - self.mean[rows]) / self.scale[rows]
        return again - (z - away)[..., rows, :]


@dataclass(frozen=True, eq=False)
class Reference:
    """What a world is compared with: stored in the policy file.

    Args:
        population: of simulators that gave no score.
        scores: `[M, K]` of fresh simulators after the same deploy procedure.
        n_real: episodes along every sequence that it took; None where nobody says.
    """

    population: Population
    scores: Tensor
    n_real: int | None = None

    @property
    def without_passages(self) -> Reference:
        """For worlds where no state was passed a second time: their densities are ranked, and nothing else."""
        return replace(self, scores=self.scores[:, :2])

    @cached_property
    def peeled(self) -> tuple[Tensor, Tensor]:
        """In which order simulators are peeled off: the test [M] of every turn, and the score [M] that was largest."""
        return peel(self.scores)

    @property
    def can_doubt(self) -> bool:
        """Whether any test alone can reach p <= 0.05."""
        M, K = self.scores.shape
        return turns(DOUBT, M) >= K

    @property
    def can_refuse(self) -> bool:
        """Whether any test alone can reach p <= 0.01."""
        return can_refuse(*self.scores.shape)

    @property
    def weakness(self) -> str:
        """Says so where no world can be refused; empty elsewhere."""
        if self.can_refuse:
            return ""
        M, K = self.scores.shape
        wanted = math.ceil(K / REFUSE) - 1
        return f"no world can be refused with {M} scores of fresh simulators: {wanted} are needed for {K} tests"

    def false_alarms(self, level: float) -> tuple[float, float, float]:
        """The rate at which this file's tests give p <= level in worlds like the simulators, and a 95 % interval.

        Over all files the rate averages to r / (M + 1); that of one, given its scores, is Beta(r, M + 1 - r).
        """
        M = len(self.scores)
        r = turns(level, M)
        if r == 0:
            return 0.0, 0.0, 0.0
        low, high = (float(scipy.special.betaincinv(r, M + 1 - r, q)) for q in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2))
        return r / (M + 1), low, high

    def p_values(self, scores: Tensor) -> Tensor:
        """p [...] of all tests together, for scores [..., K]."""
        test, largest = self.peeled
        exceeds = scores[..., test] >= largest
        turn = torch.where(exceeds.any(-1), exceeds.int().argmax(-1) + 1, len(largest) + 1)
        return turn.double() / (len(largest) + 1)

    def refuses(self, sight: Sight, passages: Sequence[int]) -> Tensor:
        """[...] bool: which worlds are refused."""
        p = self.p_values(self.population.scores(sight, passages))
        return (p <= REFUSE) & self.can_refuse

    def judge(self, D_real: Densities, again: Densities, passages: Sequence[int], problem: Problem) -> Likeness:
        """Ranks a world among the fresh simulators.

        Args:
            D_real: `[xi, G]` its densities.
            again: `[v, G]` densities of states that were passed again.
            passages: `[v]` those states.
            problem: grid, state graph and coordinate names of the policy.

        Returns:
            The verdict: `refused` for p <= 0.01, `doubtful` for p <= 0.05, else `consistent`. Where M is too small for
            a p of 0.01, `doubtful` is the worst verdict, and says so; too small for one of 0.05: `untested`.
        """
        if not self.can_doubt:
            return untested(f"{len(self.scores)} fresh simulators are too few to rank a world among")
        sight = Sight.of(D_real, again, passages, problem.grid)
        scores = self.population.scores(sight, passages)
        p = float(self.p_values(scores))
        alone = [rank(score, column) for score, column in zip(scores, self.scores.T, strict=True)]
        p_unlike, p_disagree = min(alone[:2]), min(alone[2:], default=1.0)
        verdict = REFUSED if p <= REFUSE and self.can_refuse else DOUBTFUL if p <= DOUBT else CONSISTENT
        differs = p_disagree < p_unlike
        reasons = [self._passage(sight, passages, problem) if differs else self._most_unusual(sight, problem)]
        if verdict != CONSISTENT:
            reasons.append(self._rate(REFUSE if verdict == REFUSED else DOUBT))
        if p <= REFUSE and self.weakness:
            reasons.append(self.weakness)
        return Likeness(verdict, p, p_unlike, p_disagree, tuple(reasons))

    def _rate(self, level: float) -> str:
        rate, low, high = self.false_alarms(level)
        what = "refused" if level == REFUSE else "doubted or refused"
        return f"of worlds like the simulators {rate:.1%} are {what} ({low:.1%} to {high:.1%} for this file)"

    def _most_unusual(self, sight: Sight, problem: Problem) -> str:
        _, away = self.population.away(sight.first)
        s = int(self.population.factors.distances(away).argmax())
        deviation = self.population.factors.deviations(away)[s]
        words = named_summaries(problem.spec.obs_names)
        j = int(deviation[: len(words)].abs().argmax())
        if abs(float(deviation[j])) < NOTABLE:
            return "no single number is unusual: how they relate to each other is"
        side = "above" if float(deviation[j]) > 0 else "below"
        where = after(problem.graph.paths[s])
        size = abs(float(deviation[j]))
        return (
            f"most unusual: {words[j]} {where}, {size:.1f} standard deviations {side} what the other states say of it"
        )

    def _passage(self, sight: Sight, passages: Sequence[int], problem: Problem) -> str:
        z, away = self.population.away(sight.first)
        rows = list(passages)
        second = self.population.second(sight, z, away, rows)
        s = rows[int(self.population.factors.distances(second, rows).argmax())]
        return (
            "two passages through one state differ by more than sampling explains: paths merge otherwise here; most "
            f"{after(problem.graph.paths[s])}"
        )


def turns(level: float, M: int) -> int:
    """r: how many of M simulators are peeled off until p exceeds a level."""
    return math.floor(level * (M + 1) + 1e-9)


def can_refuse(M: int, K: int) -> bool:
    """Whether any of K tests alone can reach p <= 0.01 among M simulators."""
    return turns(REFUSE, M) >= K


def peel(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the rows of scores [M, K] off one by one: by column 0 the largest, by column 1 the largest of the rest, ..

    Returns:
        The column [M] of every turn, int64, and the largest score [M] in it at that turn.
    """
    M, K = scores.shape
    falling = [iter(column) for column in scores.argsort(0, descending=True).T.tolist()]
    gone, turns = set(), [turn % K for turn in range(M)]
    rows = []
    for k in turns:
        rows.append(next(i for i in falling[k] if i not in gone))
        gone.add(rows[-1])
    test = torch.tensor(turns, dtype=torch.int64)
    return test, scores[torch.tensor(rows, dtype=torch.int64), test]


def rank(score: Tensor, scores: Tensor) -> float:
    """(1 + number of scores >= this one) / (M + 1): a p-value, exact for exchangeable scores."""
    return float(1 + (scores >= score).sum()) / (len(scores) + 1)


def disagreement(D: Densities, again: Densities, passages: Sequence[int]) -> Tensor:
    """Relative sup distances [..., v] of first and further passages: D [..., xi, G], again [..., v, G]."""
    if not len(passages):
        return heights(again)
    if isinstance(D, Patches) and isinstance(again, Patches):
        first = D[:, list(passages)]
        return first.distance(again) / torch.maximum(heights(first), heights(again)).clamp(min=1e-12)

    def of(first: Tensor, second: Tensor) -> Tensor:
        return (first - second).abs().amax(-1) / torch.maximum(first.amax(-1), second.amax(-1)).clamp(min=1e-12)

    pairs = zip(passages, dense(again).unbind(-2), strict=True)  # one at a time they stay in the cache
    return torch.stack([of(dense(D)[..., s, :], second) for s, second in pairs], -1)
