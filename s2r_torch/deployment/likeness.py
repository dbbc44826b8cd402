r"""Is this world like the simulators? Two tests on a world's densities, ranked against fresh simulators.

    unlike     how far the world's densities lie from those of the training simulators: the Mahalanobis distance of
               every state's mass, means, spreads and height, jointly over states, so that also what states have in
               common (one offset, one heading) must fit
    disagree   how much two passages through one state differ: the largest sup-norm distance of their densities,
               relative to the higher one; large where the world's paths do not merge as the simulators' do

Both scores are ranked against M fresh simulators that went through the same deploy procedure (same cover, n_real and
bandwidth). If the world is drawn like them, its rank is uniform, so p <= alpha happens with probability at most alpha,
whatever the scores are: conformal ranks (Vovk et al., 2005). The smaller of two p-values counts twice (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.deployment.recording.episodes import after
from s2r_torch.errors import SettingError
from s2r_torch.problem import Problem

CONSISTENT, DOUBTFUL, REFUSED, UNTESTED = "consistent", "doubtful", "refused", "untested"
DOUBT, REFUSE = 0.05, 0.01  # false alarms among worlds from the prior
RIDGE = 0.03  # share of the identity in the correlation matrix
LEAST_SPREAD = 0.1  # in node spacings, added to a state's spread: a stuck sensor has none
LEAST_MASS = 0.05  # of a density on the grid, for means
NOTABLE = 3.0  # standard deviations from which one number is worth a word


@dataclass(frozen=True)
class Likeness:
    """What the tests say of one world."""

    verdict: str  # consistent, doubtful, refused or untested
    p: float  # 1 where untested
    p_unlike: float
    p_disagree: float
    reasons: tuple[str, ...]  # what is most unusual, for people

    def __str__(self) -> str:
        if self.verdict == UNTESTED:
            return f"{UNTESTED}: {self.reasons[0]}"
        text = f"{self.verdict} (p = {self.p:.3g}: densities {self.p_unlike:.3g}, merging {self.p_disagree:.3g})"
        return text if self.verdict == CONSISTENT else f"{text}; {'; '.join(self.reasons)}"


def untested(reason: str) -> Likeness:
    """No rank is exact here; says why."""
    return Likeness(UNTESTED, 1.0, 1.0, 1.0, (reason,))


@dataclass(frozen=True, eq=False)
class Population:
    """Densities of many simulators, summarised.

    Args:
        mean: `[p]` of the summaries.
        scale: `[p]` their standard deviations, > 0.
        precision: `[p, p]` inverse of their shrunk correlation matrix.
    """

    mean: Tensor
    scale: Tensor
    precision: Tensor

    @staticmethod
    def of(D: Tensor, grid: DensityGrid) -> Population:
        """The population of the simulators with densities D [B, xi, G].

        Raises:
            SettingError: fewer than two simulators.
        """
        if len(D) < 2:
            raise SettingError(expected="at least 2 simulators", got=str(len(D)), cause="one has no spread")
        values = summaries(D, grid).flatten(1)
        mean, scale = values.mean(0), values.std(0).clamp(min=1e-6)
        z = (values - mean) / scale
        correlation = (1 - RIDGE) * z.T @ z / (len(z) - 1) + RIDGE * torch.eye(z.shape[1], dtype=z.dtype)
        return Population(mean, scale, torch.linalg.inv(correlation))

    def standardised(self, D: Tensor, grid: DensityGrid) -> Tensor:
        """Summaries of D [..., xi, G] in standard deviations from the mean: [..., p]."""
        return (summaries(D, grid).flatten(-2) - self.mean) / self.scale

    def distance(self, D: Tensor, grid: DensityGrid) -> Tensor:
        """Mahalanobis distances [...] of densities D [..., xi, G]."""
        z = self.standardised(D, grid)
        return ((z @ self.precision) * z).sum(-1).clamp(min=0).sqrt()


@dataclass(frozen=True, eq=False)
class Reference:
    """What a world is compared with: stored in the policy file.

    Args:
        population: of the training simulators.
        unlike: `[M]` scores of fresh simulators after the same deploy procedure.
        disagree: `[M]` likewise.
    """

    population: Population
    unlike: Tensor
    disagree: Tensor

    @staticmethod
    def of(population: Population, D: Tensor, again: Tensor, passages: Sequence[int], grid: DensityGrid) -> Reference:
        """The reference that M fresh simulators make: D [M, xi, G], again [M, v, G]."""
        return Reference(population, population.distance(D, grid), disagreement(D, again, passages))

    def judge(self, D_real: Tensor, again: Tensor, passages: Sequence[int], problem: Problem) -> Likeness:
        """Ranks a world among the fresh simulators.

        Args:
            D_real: `[xi, G]` its densities.
            again: `[v, G]` densities of states that were passed again.
            passages: `[v]` those states.
            problem: grid, state graph and coordinate names of the policy.

        Returns:
            The verdict: `refused` for p <= 0.01, `doubtful` for p <= 0.05, else `consistent`; `untested` where M is too
            small for a p of 0.05.
        """
        tests = 2 if len(passages) else 1
        if tests / (len(self.unlike) + 1) > DOUBT:
            return untested(f"{len(self.unlike)} fresh simulators are too few to rank a world among")
        p_unlike = rank(self.population.distance(D_real, problem.grid), self.unlike)
        p_disagree = rank(disagreement(D_real, again, passages), self.disagree) if len(passages) else 1.0
        p = min(1.0, tests * min(p_unlike, p_disagree))
        verdict = REFUSED if p <= REFUSE else DOUBTFUL if p <= DOUBT else CONSISTENT
        if p_disagree < p_unlike:
            reason = "two passages through one state differ by more than sampling explains: paths merge otherwise here"
        else:
            reason = self._most_unusual(D_real, problem)
        return Likeness(verdict, p, p_unlike, p_disagree, (reason,))

    def _most_unusual(self, D_real: Tensor, problem: Problem) -> str:
        names, paths = problem.spec.obs_names, problem.graph.paths
        words = ["mass on the grid", *(f"mean of {n}" for n in names), *(f"spread of {n}" for n in names), "height"]
        z = self.population.standardised(D_real, problem.grid).reshape(len(paths), len(words))
        s, j = divmod(int(z.abs().argmax()), len(words))
        worst = float(z[s, j])
        if abs(worst) < NOTABLE:
            return "no single state is unusual: how states relate to each other is"
        side = "above" if worst > 0 else "below"
        return (
            f"most unusual: {words[j]} {after(paths[s])}, {abs(worst):.1f} standard deviations {side} the simulators'"
        )


def rank(score: Tensor, scores: Tensor) -> float:
    """(1 + number of scores >= this one) / (M + 1): a p-value, exact for exchangeable scores."""
    return float(1 + (scores >= score).sum()) / (len(scores) + 1)


def disagreement(D: Tensor, again: Tensor, passages: Sequence[int]) -> Tensor:
    """Largest relative sup distance [...] between first and further passages: D [..., xi, G], again [..., v, G]."""
    if not len(passages):
        return D.new_zeros(D.shape[:-2])
    first = D[..., list(passages), :]
    height = torch.maximum(first.amax(-1), again.amax(-1)).clamp(min=1e-12)
    return ((first - again).abs().amax(-1) / height).amax(-1)


def summaries(D: Tensor, grid: DensityGrid) -> Tensor:
    """Mass, means, log spreads and log height of densities D [..., G]: [..., 2 d + 2], float64."""
    weighted, nodes = D.double() * grid.weights, grid.nodes.double()
    mass = weighted.sum(-1, keepdim=True)
    share = weighted / mass.clamp(min=LEAST_MASS)
    mean = share @ nodes
    variance = (share @ nodes.square() - mean.square()).clamp(min=0)
    floor = LEAST_SPREAD * torch.tensor(grid.spacing, dtype=torch.float64)
    height = D.double().amax(-1, keepdim=True).clamp(min=1e-12)
    return torch.cat([mass, mean, (variance + floor.square()).log() / 2, height.log()], -1)
