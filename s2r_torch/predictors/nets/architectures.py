"""The networks that ship: `lookup` (default), `mlp`, `conv`, `sets`, `linear`, `charfun`, `cones`, and `blind`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities, centres, dense, takes_patches
from s2r_torch.encoders.regression import Regression
from s2r_torch.predictors.nets.embeddings import (
    agreement,
    layer_means,
    linear_functionals,
    places_between,
    sorted_values,
    steepest_falls,
    sup_distances,
)
from s2r_torch.predictors.nets.heads import ConeStep
from s2r_torch.predictors.nets.learned_embeddings import ConvEmbedding, Embedding, FlatEmbedding, SetEmbedding
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.nets.steps import Step
from s2r_torch.predictors.registry import register
from s2r_torch.problem import Problem
from s2r_torch.workers.threads import in_threads

if TYPE_CHECKING:
    from s2r_torch.predictors.training.data import TrainingData

ANGLES = 64  # at which the constant of a wave is computed
WAVES = (2.0, 19.0)  # least and largest frequency of `charfun`: on grid, 1 to 9 in units of the sensor
TOLD = 0.05  # share of the variance of mean rewards from which further statistics are worth their room
REACH = (1, 2, 4)  # nodes over which a density falls
PLACES, FEW_PLACES = 1024, 32  # most and fewest places of a state
LOOKED_AT = 2**15  # places of all states together, but for that
RANK_SHARES = (0.0, 0.004, 0.01, 0.018, 0.03, 0.045, 0.065, 0.09, 0.14, 0.25)  # of G, in decreasing order of density


def ways(dimension: int) -> list[tuple[int, ...]]:
    """Steps of `REACH` nodes along every axis and every diagonal of two, to and fro."""
    several = (v for v in itertools.product((-1, 0, 1), repeat=dimension) if 1 <= sum(map(abs, v)) <= 2)
    return [tuple(k * e for e in v) for v in several for k in REACH]


class StatisticsNet(Net):
    """Networks that see sorted values and mean positions of every state's density."""

    bound_factor = 50.0  # averages move much less than D does
    fixed = (*Net.fixed, "ranks", "functionals")
    ranks: Tensor  # [ranks] int64, of sorted nodes
    functionals: Tensor  # [d, G] centred nodes

    def setup(self) -> None:
        grid = self.problem.grid
        ranks = sorted({min(grid.num_points - 1, round(share * grid.num_points)) for share in RANK_SHARES})
        self.register_buffer("ranks", torch.tensor(ranks))
        centred = grid.nodes - (grid.nodes.amax(0) + grid.nodes.amin(0)) / 2
        self.register_buffer("functionals", centred.T.float().contiguous())

    def statistics(self, D: Densities) -> Tensor:
        """Sorted values and mean positions of D [B, xi, G]: [B, xi, ranks + d]."""
        return torch.cat([sorted_values(D, self.ranks), linear_functionals(D, self.functionals)], -1)


@register("lookup")
class LookupNet(StatisticsNet):
    """Densities looked up at x; sorted values and mean positions, averaged over the states of every layer.

    With `profiles`, how steeply densities fall along every way, too; with `positions`, the mean position of every state
    by itself; with `places`, how well densities agree with where so many training simulators see the states
    (`agreement`). Where nobody says so, training data decide (`suited`).
    """

    options = {"profiles": False, "positions": False, "places": 0}
    places: Tensor | None  # [K, xi, d]

    def setup(self) -> None:
        super().setup()
        size = self.size_of("places", least=0), self.problem.graph.num_states, self.problem.grid.obs_dim
        places = torch.zeros(size, dtype=torch.float32) if size[0] else None  # as in files older than this option
        self.register_buffer("places", places)

    @takes_patches
    def summary(self, D: Densities) -> Tensor:
        grid, layer, chosen = self.problem.grid, self.problem.graph.layer, self.options.get  # or a user's own options
        parts = [layer_means(self.statistics(D), layer).flatten(1)]
        if chosen("profiles"):
            parts.append(layer_means(steepest_falls(D, grid.shape, ways(grid.obs_dim)), layer).flatten(1))
        if chosen("positions"):
            parts.append(linear_functionals(D, self.functionals).flatten(1))
        if self.places is not None:
            parts.append(agreement(D, self.places, grid)[:, None])
        return torch.cat(parts, -1)

    @torch.no_grad()
    def fit_scales(self, D: Densities) -> None:
        """Training simulators say where states are seen."""
        if self.places is not None:
            self.places.copy_(places_between(centres(D, self.problem.grid), len(self.places)))
        super().fit_scales(D)

    @classmethod
    @torch.no_grad()
    def suited(cls, problem: Problem, data: TrainingData, settings: Mapping[str, Any]) -> dict[str, Any]:
        """With what tells, held-out, `TOLD` more of what rewards differ by between simulators.

        Profiles and positions of the densities of the most readings, places at the fewest.
        """
        settings = super().suited(problem, data, settings)
        undecided = [name for name in LookupNet.options if name in cls.options and name not in settings]
        if not undecided:
            return settings
        graph, grid = problem.graph, problem.grid
        paid = data.mean_rewards(problem.spec.num_actions).flatten(1)

        def seen(D: Densities, **options: Any) -> Tensor:
            return LookupNet(problem, 1, torch.Generator(), **options).summaries(D).double()

        shapes, d = ("profiles", "positions"), grid.obs_dim
        several, (H, xi) = seen(data.D, **dict.fromkeys(shapes, True)), (graph.horizon, graph.num_states)
        always, *more = several.split([several.shape[1] - H * len(ways(d)) - xi * d, H * len(ways(d)), xi * d], 1)

        def told(chosen: tuple[bool, ...]) -> float:
            some = [part for part, taken in zip(more, chosen, strict=True) if taken]
            return Regression(torch.cat([always, *some], 1)).explained(paid) - TOLD * sum(chosen)

        possible = [(False, True) if name in undecided else (settings.get(name, False),) for name in shapes]
        choices = [*itertools.product(*possible)]
        best = max(zip(choices, in_threads(told, choices), strict=True), key=lambda pair: pair[1])[0]
        settings |= {name: True for name, taken in zip(shapes, best, strict=True) if taken and name in undecided}
        if "places" in undecided and data.fewer:
            fewest = data.fewer[min(data.fewer)][: len(data.D)]  # drawn once
            count = min(PLACES, max(FEW_PLACES, LOOKED_AT // graph.num_states))
            without, places = seen(fewest), places_between(centres(data.D, grid), count).float()
            agreed = agreement(fewest.to(torch.float32), places, grid)[:, None]
            both = (without, torch.cat([without, agreed], 1))
            told_by = [*in_threads(lambda features: Regression(features).explained(paid), both)]
            settings["places"] = count if told_by[1] - told_by[0] > TOLD else 0
        return settings


@register("sets")
class SetsNet(StatisticsNet):
    """DeepSets over states: an MLP of every state's statistics, averaged over each layer; densities looked up at x."""

    options = {"set_width": 8}

    @takes_patches
    def summary(self, D: Densities) -> Tensor:
        return self.statistics(D).flatten(1)

    @torch.no_grad()
    def fit_scales(self, D: Densities) -> None:
        """One scale and reference per statistic, shared by all states."""
        super().fit_scales(D)
        xi = self.problem.graph.num_states
        centre, spread = self.centre.view(xi, -1), self.spread.view(xi, -1)
        between = (centre - centre.mean(0)).square().mean(0)
        self.spread.copy_((spread.square().mean(0) + between).sqrt().repeat(xi))
        self.centre.copy_(centre.mean(0).repeat(xi))

    def fit_readings(self, levels: Mapping[float, Densities]) -> None:
        super().fit_readings(levels)
        xi = self.problem.graph.num_states
        self.drift.copy_(self.drift.view(xi, -1).mean(0).repeat(xi))

    def make_embedding(self, generator: torch.Generator | None) -> Embedding:
        layer, width = self.problem.graph.layer, self.size_of("set_width")
        statistics = self.summary_size // len(layer)
        return SetEmbedding(self.size, layer, statistics, width, self.declared_bound, generator)


class MapsNet(Net):
    """Networks that see whole densities, averaged over the states of every layer."""

    common_spread = True
    bound_factor = 500.0  # sums over the grid move even less; grid: `conv` at C_L = 30, 460 times the estimate

    def summary(self, D: Tensor) -> Tensor:
        return layer_means(D, self.problem.graph.layer).flatten(1)


@register("mlp")
class MLPNet(MapsNet):
    """An MLP over the flattened densities; densities looked up at x."""

    bound_factor = 1500.0  # grid: C_L = 100
    default_bound = 100.0  # grid, seed 0: regret 0.1 - 0.4 at 10, 0.07 - 0.1 at 100 and at 1000
    limits = "sums over the whole grid hardly tell how wide a density is, and the less the smaller C_L"

    def make_embedding(self, generator: torch.Generator | None) -> Embedding:
        return FlatEmbedding(self.size, self.summary_size, self.width, self.declared_bound, generator)


@register("linear")
class LinearNet(MapsNet):
    """Learned linear functionals of the densities and look-ups, combined with weights that depend on (x, a)."""

    limits = "linear functionals cannot tell how wide a density is from where it lies; a larger C_L does not help"
    default_head, default_depth = "signed", 1

    def make_embedding(self, generator: torch.Generator | None) -> Embedding:
        return FlatEmbedding(self.size, self.summary_size, self.width, self.declared_bound, generator, depth=1)


@register("conv")
class ConvNet(MapsNet):
    """Convolutions over the densities; densities looked up at x."""

    default_bound = 30.0  # grid, three seeds: regret 0.043 at 10, 0.019 at 30
    default_head = "signed"
    options = {"channels": 8}

    def make_embedding(self, generator: torch.Generator | None) -> Embedding:
        shape = (self.problem.graph.horizon, *self.problem.grid.shape)
        return ConvEmbedding(self.size, shape, self.size_of("channels"), generator)


@register("charfun")
class CharFunNet(Net):
    r"""The modulus of every density's characteristic function: marginal transfer learning in the sup norm.

        c_m(D_s) = |integral of D_s(y) exp(i omega_m . y) dy| / k_m
        k_m      = max over t of the integral of |cos(omega_m . y - t)|

    It does not change when a density moves, and tells how wide it is: a mean embedding with random Fourier features
    (Blanchard, Lee, Scott 2011), of which the modulus is taken. Where D changes by at most 1, the integral changes by
    at most k_m, in whatever direction t: c_m is 1-Lipschitz in the sup norm. k_m is about 2/3 of the box's volume;
    hence the large C_L: embeddings are at home in L1.
    """

    bound_factor = 1500.0  # grid: C_L = 100
    default_bound = 100.0  # grid, seed 0: 0.998 of the best value at 100 and at 200
    options = {"frequencies": 12}
    waves: Tensor  # [2, G, m]

    def setup(self) -> None:
        """omega along each axis and the diagonal in turn, from WAVES[0] to WAVES[1] over half the box."""
        grid, count = self.problem.grid, self.size_of("frequencies")
        low, high = grid.nodes.amin(0), grid.nodes.amax(0)
        places = (2 * grid.nodes - low - high) / (high - low)  # [G, d] in [-1, 1]
        ways = torch.cat([torch.eye(grid.obs_dim), torch.ones(1, grid.obs_dim)]).double()
        ways = (ways / ways.norm(dim=1, keepdim=True))[torch.arange(count) % len(ways)]  # [m, d]
        phase = places @ (ways * torch.linspace(*WAVES, count, dtype=torch.float64)[:, None]).T  # [G, m]
        weights = grid.weights[:, None]
        angles = (torch.arange(ANGLES, dtype=torch.float64) * (torch.pi / ANGLES)).tolist()
        k = torch.stack([((phase - t).cos().abs() * weights).sum(0) for t in angles]).amax(0)
        k = k / math.cos(torch.pi / (2 * ANGLES))  # angles between two of them included
        waves = torch.stack([phase.cos(), phase.sin()]) * weights / k  # [2, G, m]
        self.register_buffer("waves", waves.float(), persistent=False)  # cosines differ from machine to machine

    def summary(self, D: Tensor) -> Tensor:
        moduli = (D @ self.waves[:, None].to(D.dtype)).norm(dim=0)  # [B, xi, m]
        return layer_means(moduli, self.problem.graph.layer).flatten(1)


@register("cones")
class ConesNet(StatisticsNet):
    """Cones around training densities, by the largest difference of a statistic: a McShane extension, as a baseline."""

    looks_up = False
    bound_factor = 10.0
    default_bound = 1.0
    options = {"anchors": 32}
    anchors: Tensor  # [anchors, K]

    def setup(self) -> None:
        super().setup()
        size = self.problem.graph.horizon * (len(self.ranks) + len(self.functionals))
        self.register_buffer("anchors", torch.zeros(self.size_of("anchors"), size, dtype=torch.float32))

    def summary(self, D: Tensor) -> Tensor:
        return sup_distances(self._statistics(D), self.anchors)

    @torch.no_grad()
    def fit_scales(self, D: Densities) -> None:
        """The first training densities become anchors, repeated where there are too few; distances stay as they are."""
        first = torch.arange(len(self.anchors), device="cpu") % len(D)
        self.anchors.copy_(self._statistics(dense(D[first]).to(self.anchors.dtype)))
        super().fit_scales(D)
        self.centre.zero_()
        self.spread.fill_(1.0)

    def fit_readings(self, levels: Mapping[float, Densities]) -> None:
        super().fit_readings(levels)
        self.drift.zero_()

    def make_step(self, states: int, generator: torch.Generator | None) -> Step:
        return ConeStep(self.sizes(self.summary_size, states), generator)

    def _statistics(self, D: Tensor) -> Tensor:
        return layer_means(self.statistics(D), self.problem.graph.layer).flatten(1)


@register("blind")
class BlindNet(Net):
    """Sees x and the step but no density: the baseline that shows what densities are worth. Its constant is 0."""

    looks_up = False

    def summary(self, D: Tensor) -> Tensor:
        return D.new_zeros(D.shape[0], 0)
