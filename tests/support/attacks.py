"""Small problems for networks, densities of every kind, and an attack on a certified Lipschitz bound.

The local constant of f in the sup norm at D is ||grad_D f(D, x, a)||_1. Networks here are piecewise linear in D, so the
gradient itself has no gradient: the attack climbs by keeping the steepest places and moving on from them, along
+-sign(grad), by noise, and by single spikes.
"""

import copy

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.density.grid import DensityGrid
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.nets.heads import HEADS
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import NETS, net_class
from s2r_torch.problem import Problem

SMALL = {"cones": {"anchors": 4}, "conv": {"channels": 4}, "sets": {"set_width": 4}}
OPTIONS = {"profiles": True, "positions": True, "places": 12}
PROBLEMS = ("line", "plane", "single", "beside")  # d = 1; d = 2; one state and one step; three numbers beside d = 2


def problem(kind: str = "line", nodes: int | None = None) -> Problem:
    """A problem with as few states as can tell layers apart."""
    if kind == "single":
        graph = StateGraph(torch.tensor([[-1, -1, -1]]), torch.tensor([0]), ((),))
        spec = ProblemSpec(3, 1, 1, 1, (-1.0,), (3.0,))
        return Problem(spec, graph, DensityGrid.uniform(spec.low, spec.high, nodes or 25))
    following = [[1, 3], [2, 2], [-1, -1], [2, 4], [-1, -1]]
    graph = StateGraph(torch.tensor(following), torch.tensor([0, 1, 2, 1, 2]), ((), (0,), (0, 0), (1,), (1, 1)))
    low, high = ((-1.0,), (2.0,)) if kind == "line" else ((-1.0, 0.0), (2.0, 4.0))
    spec = ProblemSpec(2, 3, 2, len(low), low, high, beside=3 if kind == "beside" else 0)
    return Problem(spec, graph, DensityGrid.uniform(low, high, nodes or (27 if kind == "line" else 7)))


def make_net(name: str, where: Problem, members: int = 3, seed: int = 0, loud: float = 1.0, **settings) -> Net:
    """A network NAME, NAME/HEAD or NAME+OPTION with scales from random densities; `loud` multiplies its weights."""
    name, *options = name.split("+")
    generator, (name, *head) = torch.Generator().manual_seed(seed), name.split("/")
    settings = (
        {"lipschitz_bound": 4.0, "width": 8, "x_width": 4, "head": head[0] if head else None}
        | SMALL.get(name, {})
        | {option: OPTIONS[option] for option in options}
        | settings
    )
    net = net_class(name)(where, members, generator, **settings)
    net.fit_scales(bumps(where, 16, generator))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= loud
    return net


def names() -> list[str]:
    """Every network that ships, and the default one with every other head, and with all that it may see."""
    shipped = sorted(name for name, cls in NETS.items() if cls.__module__.startswith("s2r_torch."))
    return [
        *shipped,
        *(f"lookup/{head}" for head in HEADS if head != "mlp"),
        "lookup+profiles+positions",
        "lookup+places",
    ]


def uniform(shape: tuple[int, ...], generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


def readings(where: Problem, shape: tuple[int, ...], generator: torch.Generator, margin: float = 0.0) -> Tensor:
    """Observations [*shape, d + beside], uniform over the box, or over a wider one."""
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (where.spec.low, where.spec.high))
    low, high = where.spec.widened(low, -1.0), where.spec.widened(high, 1.0)
    u = uniform((*shape, where.spec.width), generator, -margin, 1 + margin)
    return low + (high - low) * u


def bumps(where: Problem, count: int, generator: torch.Generator) -> Tensor:
    """Densities [count, xi, G] that look like estimates: one Gaussian bump of random place and width per state."""
    xi, nodes = where.graph.num_states, where.grid.nodes
    centre = where.spec.placed(readings(where, (count, xi), generator))
    size = uniform((count, xi, 1), generator, 0.2, 0.8)
    gap = (nodes - centre[:, :, None]).square().sum(-1)  # [count, xi, G]
    D = torch.exp(-gap / (2 * size**2))
    return D / (D * where.grid.weights).sum(-1, keepdim=True)


def densities(where: Problem, count: int, generator: torch.Generator) -> Tensor:
    """Densities of every kind [6 count, xi, G]: bumps, flat noise, signed noise, spikes, constants, enormous values."""
    shape = (count, where.graph.num_states, where.grid.num_points)
    spikes = torch.zeros(shape, dtype=torch.float64)
    spikes.scatter_(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=generator), 1.0)
    constants = uniform((*shape[:-1], 1), generator, -1, 1).expand(shape)
    kinds = [bumps(where, count, generator), uniform(shape, generator), uniform(shape, generator, -1, 1)]
    return torch.cat([*kinds, spikes, constants, 1e2 * uniform(shape, generator, -1, 1)])


def slopes(net: Net, step: int, D: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """||grad_D f(D_b, x_b, a)||_1 [F, B, A] at x [B, 1, d], and the steepest gradient of each b [B, xi, G]."""
    D = D.to(net.height.dtype, copy=True).requires_grad_()
    q = net.raw_q(step, net.standardised(D), net.local(D, step, x), x)[:, :, 0]  # [F, B, A]
    found = torch.zeros(q.shape, dtype=torch.float64)
    steepest, best = torch.zeros_like(D, requires_grad=False), torch.zeros(len(D), dtype=torch.float64)
    for f in range(q.shape[0]):
        for a in range(q.shape[2]):
            if not q.requires_grad:
                continue
            (grad,) = torch.autograd.grad(q[f, :, a].sum(), D, retain_graph=True, materialize_grads=True)
            found[f, :, a] = grad.double().abs().sum((1, 2))
            better = found[f, :, a] > best
            steepest[better], best[better] = grad[better], found[f, :, a][better]
    return found, steepest


def quotients(net: Net, step: int, D: Tensor, other: Tensor, x: Tensor) -> Tensor:
    """|f(D, x, a) - f(D', x, a)| / max |D - D'| [F, B, A], of what users see: clamped values at x [B, 1, d]."""
    moved = (net.q(net.condition(D), step, x) - net.q(net.condition(other), step, x))[:, :, 0].double().abs()
    return moved / (D - other).abs().amax((1, 2)).double()[:, None].clamp(min=1e-12)


def attack(net: Net, generator: torch.Generator, rounds: int = 6, count: int = 4) -> Tensor:
    """The largest local constant found, per member [F]; also by finite differences along sign(grad). In float64."""
    net = copy.deepcopy(net).double().requires_grad_(False)
    where, worst = net.problem, torch.zeros(net.size, dtype=torch.float64)
    for step in range(where.graph.horizon):
        D = densities(where, count, generator)
        x = readings(where, (len(D), 1), generator, margin=0.1)
        scale = float(net.height)
        for _ in range(rounds):
            found, grad = slopes(net, step, D, x)
            worst = torch.maximum(worst, found.amax((1, 2)))
            for size in (1e-2, 1.0):
                worst = torch.maximum(worst, quotients(net, step, D, D + size * scale * grad.sign(), x).amax((1, 2)))
            best = found.amax((0, 2)).topk(len(D) // 6).indices
            steps = scale * 10 ** uniform((len(best), 1, 1), generator, -2, 0.5)
            noise = uniform((len(best), *D.shape[1:]), generator, -1, 1)
            spike = densities(where, len(best), generator)[3 * len(best) : 4 * len(best)]
            D = torch.cat([D[best] + steps * move for move in (grad[best].sign(), -grad[best].sign(), noise, spike)])
            x = torch.cat([x[best]] * 2 + [readings(where, (len(best), 1), generator)] * 2)
            extra = densities(where, 1, generator)
            D, x = torch.cat([D, extra]), torch.cat([x, readings(where, (len(extra), 1), generator)])
    return worst
