r"""Architectures for the class F: stacked members, one small network per step, certified in the densities.

Every architecture is made of a summary of D without parameters, an embedding learned from it or none, and a head:

    D -> summary -> embedding -> head(embedding, densities looked up at x, x) -> f(D, x, .)
    |f(D, x, a) - f(D', x, a)| <= C_L max |D - D'|          for every x and a

A density of few readings is noisy, and what is best to believe of it depends on how few. So summaries are centred by
what they are on average at so many readings, and the head is told `scarcity`, from 0 for the most readings that
training saw to 1 for the fewest: numbers that do not depend on D.

To add one, subclass `Net`, give it `summary` (1-Lipschitz statistics of D) and, if it learns more from
them, `make_embedding`; `@register("name")` makes `net=name` work:

    @register("peaks")
    class Peaks(Net):
        def summary(self, D):
            return layer_means(D.amax(-1, keepdim=True), self.problem.graph.layer).flatten(1)
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from s2r_torch.arrays import check_shape
from s2r_torch.defaults import plain_torch
from s2r_torch.density.patches import Densities, Patches, dense, heights, looked_up, taken, takes_patches
from s2r_torch.errors import LipschitzError
from s2r_torch.given import refuse_kind
from s2r_torch.memory import slices
from s2r_torch.plain import is_real, require_count
from s2r_torch.predictors.nets.heads import head_class
from s2r_torch.predictors.nets.learned_embeddings import Embedding
from s2r_torch.predictors.nets.lipschitz import module_list
from s2r_torch.predictors.nets.lipschitz_estimate import LipschitzEstimate, bound_for
from s2r_torch.predictors.nets.recipe import empty_net, require_like
from s2r_torch.predictors.nets.settings import LARGEST, net_settings, require_constructor, with_defaults
from s2r_torch.predictors.nets.steps import Constants, Sizes, Step
from s2r_torch.predictors.nets.summaries import is_ours, require_summary
from s2r_torch.problem import Problem

if TYPE_CHECKING:
    from s2r_torch.predictors.training.data import TrainingData

AUTO = "auto"
TILE = 2**19  # hidden values of one layer evaluated at once: 2 MiB, which stay in the cache
COLUMNS = 256  # samples in a tile, of one simulator where it has as many
TOO_LARGE = "more than a policy file may hold"
SUMMARISED = 2**24  # numbers of densities at once: 64 MiB, of which summaries make copies


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A group conditioned on the densities of B simulators."""

    D: Densities  # [B, xi, G]
    summary: Tensor  # [B, K] standardised
    scarcity: Tensor  # [B]
    steps: tuple  # [H] what every step's networks prepared from these


class Net(nn.Module):
    """F stacked members of one architecture: a `PredictorGroup` (base.py).

    Args:
        problem: state graph, grid and sizes.
        members: F.
        generator: draws the initial weights; consumed. None where weights are to be loaded (`lipschitz.initial`).
        settings: those of `NetSettings`, and the architecture's own, among `Net.options`.

    Raises:
        SettingError: a size that makes no network, or an unknown setting.
    """

    name = ""
    x_centre: Tensor  # [d], float64
    x_half: Tensor  # [d], float64
    height: Tensor  # [] of densities
    centre: Tensor  # [K] of summaries
    drift: Tensor  # [K] of the centre, with scarcity
    readings: Tensor  # [2] fewest and most per state that training saw
    spread: Tensor  # [K]

    @plain_torch()
    def __init__(self, problem: Problem, members: int, generator: torch.Generator | None, **settings):
        super().__init__()
        told, self.options = net_settings(self.name, self.options, settings)
        told = with_defaults(told, self.default_bound, self.default_head, self.default_depth)
        bound, self.head, self.depth = told.lipschitz_bound or 1.0, told.head or "", told.depth or 1  # all of them told
        self.awaits_bound = isinstance(bound, str)  # AUTO
        self.estimate: LipschitzEstimate | None = None
        self.declared_bound = 1.0 if isinstance(bound, str) else bound
        self.problem, self.size = problem, require_count("members", members)
        self.width, self.x_width = told.width, told.x_width
        grid, spec = problem.grid, problem.spec
        low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (spec.low, spec.high))
        self.register_buffer("x_centre", spec.widened((low + high) / 2), persistent=False)  # the spec says them
        self.register_buffer("x_half", spec.widened((high - low) / 2, 1.0), persistent=False)
        self.register_buffer("height", torch.ones((), dtype=torch.float32))
        self.setup()
        require_summary(self, problem)
        with torch.no_grad():
            nothing = self.height.new_zeros(1, problem.graph.num_states, grid.num_points)
            self.summary_size = self.summary(nothing).shape[-1]
        for name, value in (("centre", 0.0), ("spread", 1.0), ("drift", 0.0)):
            self.register_buffer(name, self.height.new_full((self.summary_size,), value))
        self.register_buffer("readings", self.height.new_ones(2))
        self.steps = module_list(
            self.make_step(states if self.looks_up else 0, generator) for states in problem.graph.states_per_layer
        )

    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        require_constructor(cls)

    def size_of(self, option: str, least: int = 1) -> int:
        """An option that is a size, its own default where a subclass has other options instead.

        Raises:
            SettingError: it is no size, or more than a policy file may hold.
        """
        told = ChainMap(self.options, *(vars(cls).get("options", {}) for cls in type(self).__mro__))
        return require_count(f"net.{self.name}.{option}", told[option], LARGEST, TOO_LARGE, least=least)

    # -- what an architecture gives ---------------------------------------------------------------------------------

    limits = ""  # one line: why it falls short where the others do not, as measured; tables print it
    certified = True  # whether `lipschitz_bound` is a proof; False for a user's own network without one
    looks_up = True  # whether densities are looked up at x
    common_spread = False  # whether all summaries share one scale
    bound_factor = 2.0  # C_L over the pairwise estimate, for lipschitz_bound=auto (lipschitz_estimate.py)
    default_bound, default_head, default_depth = 40.0, "mlp", 2
    options: dict = {}  # further settings, JSON values, with their defaults
    fixed: tuple[str, ...] = ()  # buffers that follow from the problem; a file cannot change them

    def setup(self) -> None:
        """Registers constant buffers; called before `summary` is first used."""

    def summary(self, D: Tensor) -> Tensor:
        """1-Lipschitz statistics of D [B, xi, G], without parameters: [B, K]; see `takes_patches`, too."""
        raise NotImplementedError

    def make_embedding(self, generator: torch.Generator | None) -> Embedding | None:
        """A learned map of the summary (learned_embeddings.py), or None for the summary itself."""
        return None

    @classmethod
    def suited(cls, problem: Problem, data: TrainingData, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as given, and those that training data decide where none are given."""
        own, factor = cls.default_bound, cls.bound_factor
        if settings.get("lipschitz_bound") is not None or not cls.certified or not is_real(own):  # AUTO asks them, too
            return dict(settings)
        return {**settings, "lipschitz_bound": bound_for(data, problem.graph, own, factor)}

    def make_step(self, states: int, generator: torch.Generator | None) -> Step:
        """The networks of one step with that many states to look up."""
        embedding = self.make_embedding(generator)
        if not isinstance(embedding, Embedding | None):
            refuse_kind(f"make_embedding of net {self.name!r}", embedding, "an Embedding, or None")
        inputs = self.summary_size if embedding is None else embedding.size
        return head_class(self.head)(embedding, self.sizes(inputs, states), generator)

    def sizes(self, inputs: int, states: int) -> Sizes:
        """What a head must know, for an embedding of that size and that many states to look up."""
        spec = self.problem.spec
        return Sizes(
            members=self.size,
            inputs=inputs,
            states=states,
            obs_dim=spec.width,
            num_actions=spec.num_actions,
            width=self.width,
            depth=self.depth,
            x_width=self.x_width,
            bound=self.declared_bound,
        )

    # -- scales, frozen from the training densities ------------------------------------------------------------------

    @torch.no_grad()
    def fit_scales(self, D: Densities) -> None:
        """Freezes reference and scale of every summary from training densities [B, xi, G]; never per D."""
        self.height.fill_(heights(D).to(self.height.dtype).mean().clamp(min=1e-12))
        values = self.summaries(D)
        self.centre.copy_(values.mean(0))
        if self.common_spread:
            self.spread.fill_(1 / self.declared_bound)  # C_L is applied at the input: rows below it then have norm 1
        else:
            spread = (values - self.centre).square().mean(0).sqrt()
            self.spread.copy_(spread.clamp(min=1e-2 * float(spread.max()) if len(spread) else 1.0))
        self.spread.clamp_(min=1e-12)

    @torch.no_grad()
    def fit_readings(self, levels: Mapping[float, Densities]) -> None:
        """Freezes between which numbers of readings training saw densities, and what few of them do to summaries.

        Args:
            levels: readings per state -> densities [k B, xi, G] of the same simulators, so many draws of each; after
                `fit_scales` on the first.
        """
        self.readings.copy_(self.readings.new_tensor([min(levels), max(levels)]))
        scarcity = self.scarcity(torch.tensor([*levels]))
        once = min(len(D) for D in levels.values())  # one draw of each is enough
        means = torch.stack([self.summaries(D[:once]).mean(0) for D in levels.values()])  # [L, K]
        drift = (scarcity[:, None] * (means - means[0])).sum(0) / scarcity.square().sum().clamp(min=1e-6)
        self.drift.copy_(drift)

    def constants(self) -> Constants:
        """Lipschitz constants in D of the standardised summaries and of look-ups in units of the height."""
        return Constants(1 / self.spread.abs(), 1 / self.height.abs())  # a damaged file may hold negative scales

    # -- PredictorGroup ----------------------------------------------------------------------------------------------

    def summaries(self, D: Densities) -> Tensor:
        """`summary` [B, K] of many, some simulators at a time."""
        _, xi, G = D.shape
        some = D.split(max(1, SUMMARISED // max(1, xi * G)))
        return torch.cat([self._summary(part.to(self.height.dtype)) for part in some])

    def _summary(self, D: Densities) -> Tensor:
        """`summary` [B, K], of patches where they are small and it says that it takes them."""
        if isinstance(D, Patches):
            return self.summary(taken(self.summary, D) if D.small else dense(D))
        return self.summary(D if is_ours(type(self)) else D.clone())  # it may write into what it is given

    def standardised(self, D: Densities, scarcity: Tensor | None = None) -> Tensor:
        """The summaries that the networks see, [B, K], for densities of scarcity [B]; None for zeros."""
        centre = self.centre if scarcity is None else self.centre + self.drift * scarcity[:, None]
        return (self.summaries(D) - centre) / self.spread

    def scarcity(self, readings: Tensor | float | None) -> Tensor:
        """How noisy densities are, n^(-1/2) on a scale cut at what training saw: 0 for the most readings, 1 for fewest.

        Args:
            readings: n, behind the density of a state, any shape; None for the most.
        """
        most, least = self.readings.rsqrt()  # noise
        if readings is None:
            return torch.zeros_like(least)
        noise = torch.as_tensor(readings, dtype=least.dtype, device=least.device).rsqrt().clamp(least, most)
        return (noise - least) / (most - least).clamp(min=1e-6)

    def local(self, D: Densities, step: int, x: Tensor) -> Tensor:
        """Densities of the step's states looked up at x [B, n, d], in units of the height: [B, n, S_h]."""
        return self.looked_up(D[:, self.problem.graph.states_of(step)] if self.looks_up else D[:, :0], x)

    def looked_up(self, D: Densities, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """The same, given the densities of these states alone [B, S_h, G], or [R, S_h, G] and rows [B] of them."""
        if not self.looks_up:
            return self.height.new_zeros(*x.shape[:2], 0)
        found = looked_up(D, self.problem.grid, self.problem.spec.placed(x), rows)
        return found / self.height.to(found.device)

    def scaled_x(self, x: Tensor) -> Tensor:
        """Observations in [-1, 1], cut at 3; centred in float64, so that a box far from 0 loses nothing."""
        return ((x.double() - self.x_centre) / self.x_half).clamp(-3, 3).to(self.height.dtype)

    def raw_q(self, step: int, summary: Tensor, local: Tensor, x: Tensor, scarcity: Tensor | None = None) -> Tensor:
        """Unclamped f [F, B, n, A] from precomputed features, with gradients: what training uses.

        Args:
            step: 0 .. H-1.
            summary: `[B, K]` from `standardised`.
            local: `[B, n, S_h]` from `local`.
            x: `[B, n, d]`.
            scarcity: `[B]` from `scarcity`; None for zeros.
        """
        net, scarcity = self.steps[step], self.scarcity(None) if scarcity is None else scarcity
        return net(net.prepare(summary, scarcity.expand(len(summary)), self.constants()), local, self.scaled_x(x))

    @takes_patches
    @torch.no_grad()
    def condition(self, D: Densities, readings: float | None = None) -> Conditioned:
        graph, grid = self.problem.graph, self.problem.grid
        check_shape("densities", D, (None, graph.num_states, grid.num_points), "another grid or another state graph")
        D = D.to(self.height.dtype)
        scarcity = self.scarcity(readings).expand(len(D))
        return self._prepared(D, self.standardised(D, scarcity), scarcity)

    @torch.no_grad()
    def condition_like(self, others: Conditioned, rows: Tensor) -> Conditioned:
        """Of some rows of what other members were conditioned on: what no member learns is not done again."""
        return self._prepared(others.D[rows], others.summary[rows], others.scarcity[rows])

    def _prepared(self, D: Densities, summary: Tensor, scarcity: Tensor) -> Conditioned:
        steps = tuple(net.prepare(summary, scarcity, self.constants()) for net in self.steps)
        return Conditioned(D, summary, scarcity, steps)

    @torch.no_grad()
    def q(self, conditioned: Conditioned, step: int, x: Tensor) -> Tensor:
        check_shape("observations", x, (len(conditioned.D), None, self.problem.spec.width), "of other simulators")
        require_count("step", step, len(self.steps) - 1, "an episode longer than the horizon", least=0)
        net, prepared, (batch, n, _) = self.steps[step], conditioned.steps[step], x.shape
        columns = net.columns(self.local(conditioned.D, step, x), self.scaled_x(x))  # [*, B, n]
        q = columns.new_empty(self.size, self.problem.spec.num_actions, batch, n)
        wide = min(max(1, n), COLUMNS)
        for rows in slices(batch, COLUMNS // wide):
            for members in slices(self.size, TILE // (self.width * wide * (rows.stop - rows.start))):
                part = prepared.part(members, rows)
                for samples in slices(n, wide):
                    tile = columns[:, rows, samples]
                    q[members, :, rows, samples] = net.values(part, tile.flatten(1), tile.shape[2]).unflatten(
                        2, tile.shape[1:]
                    )
        return q.clamp_(0, 1).permute(0, 2, 3, 1)

    def recipe(self) -> dict:
        return {"kind": "net", "name": self.name, "members": self.size, "settings": self.settings()}

    def tensors(self) -> dict[str, Tensor]:
        return self.state_dict()

    @staticmethod
    def from_recipe(recipe: dict, tensors: dict[str, Tensor], problem: Problem) -> Net:
        """Rebuilds members of a registered network around these weights, frozen and certified again.

        Raises:
            CheckpointError: a recipe that no network has, or other weights than it asks for.
            LipschitzError: weights that break the declared bound.
        """
        net = empty_net(recipe, tensors, problem)
        require_like(net, tensors)
        net.load_state_dict(tensors, assign=True)
        net.requires_grad_(False)
        net.certify()
        return net

    def subset(self, members: Sequence[int]) -> Net:
        return self.with_members({k: v[list(members)] for k, v in self.stacked().items()})

    def lipschitz_bound(self) -> Tensor:
        if not self.certified:
            return torch.full((self.size,), torch.inf, dtype=torch.float64)
        return torch.stack([step.lipschitz_bound(self.constants()) for step in self.steps]).amax(0)

    def certify(self) -> Tensor:
        """The certified bounds [F]; raises LipschitzError if one exceeds the declared C_L, or a member is not finite.

        A network without a certificate has the bound infinity, and passes: `Ensemble.certified` tells.
        """
        self.require_finite(self.stacked())
        bound = self.lipschitz_bound()
        if self.certified and not bool((bound <= self.declared_bound * (1 + 1e-6)).all()):
            raise LipschitzError(
                expected=f"a Lipschitz constant of at most {self.declared_bound:g}",
                got=f"{float(bound.max()):g}",
                cause="weights that were changed or damaged after training",
            )
        return bound

    def require_finite(self, weights: dict[str, Tensor]) -> None:
        """Raises LipschitzError where weights, members first, are not finite; it names the members."""
        for name, value in weights.items():
            broken = (~torch.isfinite(value.flatten(1))).any(1).nonzero().flatten().tolist()
            if broken:
                raise LipschitzError(
                    expected=f"finite weights of all {len(value)} members of net {self.name!r}",
                    got=f"NaN or inf in {name} of member {', '.join(map(str, broken[:8]))}",
                    cause="training that diverged: lower learning_rate; values far beyond 0 .. 1; or a damaged file",
                )

    def with_estimate(self, estimate: LipschitzEstimate) -> Net:
        """The same members with C_L chosen from a pairwise estimate, which is kept beside it."""
        bound = self.bound_factor * (estimate.significant or estimate.largest)
        settings = self.settings() | {"lipschitz_bound": bound}
        net = type(self)(self.problem, self.size, torch.Generator(), **settings)
        net.load_state_dict(self.state_dict())
        net.estimate = estimate
        return net

    # -- weights -----------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Learned numbers of all members."""
        return sum(parameter.numel() for parameter in self.parameters())

    def stacked(self) -> dict[str, Tensor]:
        """The parameters, each with the members as first axis."""
        shapes = {}
        for name, parameter in self.named_parameters():
            value = parameter.detach()
            per_member = value.shape[0] == self.size
            shapes[name] = value if per_member else value.view(self.size, -1, *value.shape[1:])
        return shapes

    def with_members(self, stacked: dict[str, Tensor]) -> Net:
        """A net of this architecture and these scales around other members' parameters."""
        members = next(iter(stacked.values())).shape[0]
        net = type(self)(self.problem, members, torch.Generator(), **self.settings())
        scales = {k: v for k, v in self.state_dict().items() if k not in stacked}
        weights = {k: v.reshape(p.shape) for (k, p), v in zip(net.named_parameters(), stacked.values(), strict=True)}
        net.load_state_dict({**scales, **weights})
        net.estimate = self.estimate
        net.requires_grad_(False)
        return net

    def settings(self) -> dict:
        """Keyword arguments (JSON values) that rebuild this architecture."""
        return {
            "lipschitz_bound": AUTO if self.awaits_bound else self.declared_bound,
            "head": self.head,
            "width": self.width,
            "depth": self.depth,
            "x_width": self.x_width,
            **self.options,
        }
