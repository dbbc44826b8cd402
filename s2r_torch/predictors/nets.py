r"""Architectures for the class F: stacked members, one small network per step, certified in the densities.

Every architecture shares one head (networks.md: look-up, summaries of the densities, then normalised layers):

    first   = C_L-Lipschitz rows on (embedding of D, densities looked up at x)  +  u(x)       u free
    f       = normalised layers with MaxMin on first, one output per action
    |f(D, x, a) - f(D', x, a)| <= C_L max |D - D'|          for every x and a

and differs in the embedding alone. To add one, subclass `Net`, give it `summary` (1-Lipschitz statistics of D, without
parameters) and, if it learns more from them, `make_embedding`; `@register("name")` makes `net=name` work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.base import ProblemSpec, StateGraph, check_shape
from s2r_torch.density import DensityGrid
from s2r_torch.errors import LipschitzError, SettingError
from s2r_torch.predictors.embeddings import layer_means, linear_functionals, look_up, sorted_values
from s2r_torch.predictors.lipschitz import (
    StackedConv,
    StackedLinear,
    affine,
    after_maxmin,
    maxmin,
    rotate_outputs,
    row_norms,
)

NETS: dict[str, type[Net]] = {}

RANK_SHARES = (0.0, 0.004, 0.01, 0.018, 0.03, 0.045, 0.065, 0.09, 0.14, 0.25)  # of G, in decreasing order of density


def register(name: str) -> Callable[[type[Net]], type[Net]]:
    """Makes an architecture known by name, to configurations and to policy files."""

    def add(cls: type[Net]) -> type[Net]:
        cls.name = name
        NETS[name] = cls
        return cls

    return add


def net_class(name: str) -> type[Net]:
    """The architecture of that name."""
    if name not in NETS:
        raise SettingError(
            expected=f"one of the networks {sorted(NETS)}", got=repr(name), cause="a typo, or a plugin not imported"
        )
    return NETS[name]


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a predictor class may depend on (theory.md C8): never on the judges' densities."""

    spec: ProblemSpec
    graph: StateGraph
    grid: DensityGrid


@dataclass(frozen=True, eq=False)
class Prepared:
    """One step's networks with everything that depends on D alone already computed."""

    offset: Tensor  # [F, B, width] first layer on the embedding of D
    local_weight: Tensor  # [F, width, S_h] first layer on the densities looked up at x


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A group conditioned on the densities of B simulators."""

    D: Tensor  # [B, xi, G] float32
    steps: tuple[Prepared, ...]  # [H]


class StepNet(nn.Module):
    """The networks of one step, for all members."""

    def __init__(self, net: Net, states: int, generator: torch.Generator):
        super().__init__()
        members, width, spec = net.size, net.width, net.problem.spec
        self.embedding = net.make_embedding(generator)
        self.first = StackedLinear(
            members, net.embedding_size + states, width, generator, bound=net.declared_bound, bias=False
        )
        self.from_x = StackedLinear(members, spec.obs_dim, net.x_width, generator, bound=None)
        self.mix_x = StackedLinear(members, net.x_width, width, generator, bound=None)
        self.hidden = nn.ModuleList(StackedLinear(members, width, width, generator) for _ in range(net.depth - 1))
        self.out = StackedLinear(members, width, spec.num_actions, generator)

    def prepare(self, summary: Tensor, constants: Tensor) -> Prepared:
        """The part that depends on D: summary [B, K] -> Prepared."""
        embedded = summary if self.embedding is None else self.embedding(summary)  # [B, K] or [F, B, E]
        weight = rotate_outputs(self.first.effective(constants))
        size = embedded.shape[-1]
        bias = rotate_outputs(self.mix_x.bias, -1)
        return Prepared(affine(embedded, weight[..., :size], bias), weight[..., size:])

    def forward(self, prepared: Prepared, local: Tensor, x: Tensor) -> Tensor:
        """Unclamped f for local [B, n, S_h] and x [B, n, d] in [-1, 1]: [F, B, n, A].

        Hidden layers are kept as (a - b, a + b) of the halves (a, b) that MaxMin compares.
        """
        batch, n, _ = x.shape
        given_x = torch.tanh(self.from_x(x.reshape(batch * n, -1)))
        hidden = given_x @ rotate_outputs(self.mix_x.weight).mT
        if local.shape[-1]:
            local = local.reshape(batch * n, -1)
            hidden = hidden.baddbmm_(local.expand(len(hidden), *local.shape), prepared.local_weight.mT)
        hidden = hidden.unflatten(1, (batch, n)).add_(prepared.offset[:, :, None]).flatten(1, 2)
        for layer in self.hidden:
            hidden = after_maxmin(hidden, rotate_outputs(layer.effective()), rotate_outputs(layer.bias, -1))
        return after_maxmin(hidden, self.out.effective(), self.out.bias).unflatten(1, (batch, n))

    def lipschitz_bound(self, constants: Tensor) -> Tensor:
        """Certified constant [F], float64: the product of the layers' constants along the path from D."""
        bound = row_norms(self.first.effective(constants), constants)
        if self.embedding is not None:  # `constants` of embedded inputs assume an embedding of norm at most 1
            bound = bound * self.embedding.norm().clamp(min=1.0)
        for layer in (*self.hidden, self.out):
            bound = bound * layer.norm()
        return bound


class Net(nn.Module):
    """F stacked members of one architecture: a `PredictorGroup` (base.py).

    Args:
        problem: state graph, grid and sizes.
        members: F.
        generator: draws the initial weights; consumed.
        lipschitz_bound: C_L in density units, > 0 (Assumption 4).
        width: hidden units, even.
        depth: number of hidden layers, >= 1.
        x_width: hidden units of the free branch in x.

    Raises:
        SettingError: a size that makes no network.
    """

    name = ""

    def __init__(
        self,
        problem: Problem,
        members: int,
        generator: torch.Generator,
        *,
        lipschitz_bound: float = 10.0,
        width: int = 32,
        depth: int = 2,
        x_width: int = 16,
    ):
        super().__init__()
        if members < 1 or width < 2 or width % 2 or depth < 1 or x_width < 1 or not lipschitz_bound > 0:
            raise SettingError(
                expected="members, depth, x_width >= 1, an even width >= 2 and lipschitz_bound > 0",
                got=f"{members}, {depth}, {x_width}, {width} and {lipschitz_bound}",
                cause="a typo in conf/net",
            )
        self.problem, self.size = problem, members
        self.declared_bound, self.width, self.depth, self.x_width = float(lipschitz_bound), width, depth, x_width
        grid, spec = problem.grid, problem.spec
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        self.register_buffer("x_centre", ((low + high) / 2).float())
        self.register_buffer("x_half", ((high - low) / 2).float())
        self.register_buffer("height", torch.ones(()))
        self.setup()
        with torch.no_grad():
            size = self.summary(torch.zeros(1, problem.graph.num_states, grid.num_points)).shape[-1]
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.embedding_size = size
        self.steps = nn.ModuleList()
        for states in problem.graph.states_per_layer:
            self.steps.append(StepNet(self, states if self.looks_up else 0, generator))

    # -- what an architecture gives ---------------------------------------------------------------------------------

    looks_up = True  # whether densities are looked up at x
    common_spread = False  # whether all summaries share one scale

    def setup(self) -> None:
        """Registers constant buffers; called before `summary` is first used."""

    def summary(self, D: Tensor) -> Tensor:
        """1-Lipschitz statistics of D [B, xi, G], without parameters: [B, K]."""
        raise NotImplementedError

    def make_embedding(self, generator: torch.Generator) -> nn.Module | None:
        """A learned 1-Lipschitz map [B, K] -> [F, B, E] with `norm()` [F]; sets `embedding_size`. None keeps [B, K]."""
        return None

    # -- scales, frozen from the training densities ------------------------------------------------------------------

    @torch.no_grad()
    def fit_scales(self, D: Tensor) -> None:
        """Freezes reference and scale of every summary from training densities [B, xi, G]; never per D."""
        D = D.float()
        self.height.fill_(D.amax(-1).mean().clamp(min=1e-12))
        values = self.summary(D)
        self.centre.copy_(values.mean(0))
        if self.common_spread:
            self.spread.fill_(1 / self.declared_bound)  # C_L is applied at the input: rows below it then have norm 1
        else:
            spread = (values - self.centre).square().mean(0).sqrt()
            self.spread.copy_(spread.clamp(min=1e-2 * float(spread.max()) if len(spread) else 1.0))
        self.spread.clamp_(min=1e-12)

    def constants(self, step: int) -> Tensor:
        """Lipschitz constants [E + S_h] of the first layer's inputs."""
        local = self.steps[step].first.weight.shape[-1] - self.embedding_size
        embedded = 1 / self.spread.abs()  # a damaged file may hold negative scales
        if self.steps[step].embedding is not None:  # which has norm <= 1 on summaries that share one scale
            embedded = embedded.amax().expand(self.embedding_size)
        return torch.cat([embedded, (1 / self.height.abs()).expand(local)])

    # -- PredictorGroup ----------------------------------------------------------------------------------------------

    def standardised(self, D: Tensor) -> Tensor:
        """The summaries that the networks see, [B, K]."""
        return (self.summary(D) - self.centre) / self.spread

    def local(self, D: Tensor, step: int, x: Tensor) -> Tensor:
        """Densities of the step's states looked up at x [B, n, d], in units of the height: [B, n, S_h]."""
        if not self.looks_up:
            return x.new_zeros(*x.shape[:2], 0, dtype=torch.float32)
        states = self.problem.graph.states_of(step)
        return look_up(D[:, states], *self.problem.grid.locate(x)) / self.height.to(D.device)

    def scaled_x(self, x: Tensor) -> Tensor:
        """Observations in [-1, 1], float32."""
        return ((x.float() - self.x_centre) / self.x_half).clamp(-3, 3)

    def raw_q(self, step: int, summary: Tensor, local: Tensor, x: Tensor) -> Tensor:
        """Unclamped f [F, B, n, A] from precomputed features, with gradients: what training uses."""
        net = self.steps[step]
        return net(net.prepare(summary, self.constants(step)), local, self.scaled_x(x))

    @torch.no_grad()
    def condition(self, D: Tensor) -> Conditioned:
        graph, grid = self.problem.graph, self.problem.grid
        check_shape("densities", D, (None, graph.num_states, grid.num_points), "another grid or another state graph")
        D = D.float()
        summary = self.standardised(D)
        return Conditioned(D, tuple(net.prepare(summary, self.constants(step)) for step, net in enumerate(self.steps)))

    @torch.no_grad()
    def q(self, conditioned: Conditioned, step: int, x: Tensor) -> Tensor:
        local = self.local(conditioned.D, step, x)
        return self.steps[step](conditioned.steps[step], local, self.scaled_x(x)).clamp_(0, 1)

    def subset(self, members: Sequence[int]) -> Net:
        return self.with_members({k: v[list(members)] for k, v in self.stacked().items()})

    def lipschitz_bound(self) -> Tensor:
        bounds = [net.lipschitz_bound(self.constants(step)) for step, net in enumerate(self.steps)]
        return torch.stack(bounds).amax(0)

    def certify(self) -> Tensor:
        """The certified bounds [F]; raises LipschitzError if one exceeds the declared C_L or is not finite."""
        bound = self.lipschitz_bound()
        if not bool((bound <= self.declared_bound * (1 + 1e-6)).all()):
            raise LipschitzError(
                expected=f"a Lipschitz constant of at most {self.declared_bound:g}",
                got=f"{float(bound.max()):g}",
                cause="weights that were changed or damaged after training",
            )
        return bound

    # -- weights -----------------------------------------------------------------------------------------------------

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
        return net.requires_grad_(False)

    def settings(self) -> dict:
        """Keyword arguments (JSON values) that rebuild this architecture."""
        return {
            "lipschitz_bound": self.declared_bound,
            "width": self.width,
            "depth": self.depth,
            "x_width": self.x_width,
        }


@register("lookup")
class LookupNet(Net):
    """Densities looked up at x; sorted values and mean positions, averaged over the states of every layer."""

    def setup(self) -> None:
        grid = self.problem.grid
        ranks = sorted({min(grid.num_points - 1, round(share * grid.num_points)) for share in RANK_SHARES})
        self.register_buffer("ranks", torch.tensor(ranks))
        centred = grid.nodes - (grid.nodes.amax(0) + grid.nodes.amin(0)) / 2
        self.register_buffer("functionals", centred.T.float().contiguous())

    def summary(self, D: Tensor) -> Tensor:
        statistics = torch.cat([sorted_values(D, self.ranks), linear_functionals(D, self.functionals)], -1)
        return layer_means(statistics, self.problem.graph.layer).flatten(1)


class FlatEmbedding(nn.Module):
    """An l_inf-normalised MLP."""

    def __init__(self, members: int, inputs: int, outputs: int, generator: torch.Generator):
        super().__init__()
        self.layers = nn.ModuleList(
            [StackedLinear(members, inputs, outputs, generator), StackedLinear(members, outputs, outputs, generator)]
        )

    def forward(self, summary: Tensor) -> Tensor:
        for layer in self.layers:
            summary = maxmin(layer(summary))
        return summary

    def norm(self) -> Tensor:
        return self.layers[0].norm() * self.layers[1].norm()


@register("mlp")
class MLPNet(Net):
    """An MLP over the flattened densities, averaged over the states of every layer; densities looked up at x."""

    common_spread = True

    def summary(self, D: Tensor) -> Tensor:
        return layer_means(D, self.problem.graph.layer).flatten(1)

    def make_embedding(self, generator: torch.Generator) -> nn.Module:
        inputs = self.problem.graph.horizon * self.problem.grid.num_points
        self.embedding_size = self.width
        return FlatEmbedding(self.size, inputs, self.width, generator)


class ConvEmbedding(nn.Module):
    """Two normalised convolutions with MaxMin, then global maximum and mean of every channel."""

    def __init__(self, net: Net, channels: int, generator: torch.Generator):
        super().__init__()
        self.members, self.shape = net.size, (net.problem.graph.horizon, *net.problem.grid.shape)
        self.channels, d = channels, net.problem.spec.obs_dim
        self.one = StackedConv(1, self.shape[0], net.size * channels, 5, d, 3, generator)  # inputs shared by members
        self.two = StackedConv(net.size, channels, channels, 3, d, 2, generator)

    def forward(self, summary: Tensor) -> Tensor:
        maps = self._maxmin(self.one(summary.unflatten(1, self.shape)))
        maps = self._maxmin(self.two(maps)).flatten(2).unflatten(1, (self.members, self.channels))  # [B, F, C, *]
        return torch.cat([maps.amax(-1), maps.mean(-1)], -1).transpose(0, 1)

    def _maxmin(self, maps: Tensor) -> Tensor:
        return maxmin(maps.unflatten(1, (self.members, self.channels)), 2).flatten(1, 2)

    def norm(self) -> Tensor:
        one = row_norms(self.one.effective().flatten(1).view(self.members, self.channels, -1))
        return one * self.two.norm()


@register("conv")
class ConvNet(Net):
    """Convolutions over the densities, averaged over the states of every layer; densities looked up at x."""

    common_spread = True
    channels = 8

    def summary(self, D: Tensor) -> Tensor:
        return layer_means(D, self.problem.graph.layer).flatten(1)

    def make_embedding(self, generator: torch.Generator) -> nn.Module:
        self.embedding_size = 2 * self.channels
        return ConvEmbedding(self, self.channels, generator)


@register("blind")
class BlindNet(Net):
    """Sees x and the step but no density: the baseline that shows what densities are worth. Its constant is 0."""

    looks_up = False

    def summary(self, D: Tensor) -> Tensor:
        return D.new_zeros(D.shape[0], 0)
