"""Predictions a second of the class F on one core: a loop over modules, vmap over stacked weights, and the folded path.

A prediction is one member on one sample of one simulator, for all actions, reduced to V_hat as Algorithm 4 wants it.
All three compute the same network (`lookup`, default head) and share what does not depend on the member, the densities
looked up at x; the embedding of D is cached in all. Loop: one nn.Module call per member and simulator. Times are of the
thread, so that a busy machine disturbs little; the GEMM peak is measured in the same process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from s2r_torch.density.grid import DensityGrid
from s2r_torch.envs import make_family
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.lipschitz import maxmin
from s2r_torch.predictors.nets import Net, Problem, net_class

STEP, SIMULATORS = 2, 2
GATES = {(16, 4096): 3.5, (16, 256): 8.0, (32, 4096): 2.5, (32, 256): 5.0, (64, 4096): 2.0}  # folded / loop
VMAP_CHUNK = 2**13  # (member, sample) pairs


@dataclass(frozen=True)
class Case:
    """What is measured: F members of a width on n samples of each of two simulators."""

    members: int
    width: int
    n: int

    @property
    def predictions(self) -> int:
        return self.members * SIMULATORS * self.n


class Member(nn.Module):
    """One member's step as anyone would write it, with its effective weights: (offset, local, x) -> q [n, A]."""

    def __init__(self, net: Net, member: int):
        super().__init__()
        head = net.steps[STEP]
        states = head.sizes.states
        first = head.first.effective(head.input_constants(net.constants()))[member, :, -states:]
        self.inner = _linear(head.branch.inner.weight[member], head.branch.inner.bias[member])
        self.outer = _linear(head.branch.outer.weight[member], head.branch.outer.bias[member])
        self.local = _linear(first, None)
        self.hidden = nn.ModuleList(_linear(h.effective()[member], h.bias[member]) for h in head.hidden)
        self.out = _linear(head.out.effective()[member], head.out.bias[member])

    def forward(self, offset: Tensor, local: Tensor, x: Tensor) -> Tensor:
        u = self.outer(self.inner(x).abs()) + self.local(local) + offset
        for layer in self.hidden:
            u = layer(maxmin(u))
        return self.out(maxmin(u))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().flatten().clone(), requires_grad=False)
    return layer


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", default="16,64,256,1024", help="F")
    parser.add_argument("--widths", default="16,32,64")
    parser.add_argument("--samples", default="256,4096", help="n per simulator")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time spent on each measurement")


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    members, widths, samples = (
        tuple(int(v) for v in text.split(",")) for text in (options.members, options.widths, options.samples)
    )
    cases = [Case(F, width, n) for width in widths for n in samples for F in members]
    table = Table(
        "F",
        "width",
        "n",
        "loop",
        "vmap",
        "folded",
        "folded / loop",
        "wanted",
        "share of GEMM peak",
        "difference",
        title="million predictions a second and core",
    )
    missed = 0
    for case in cases:
        peak = gemm_peak(options.seconds / 4)
        rates, difference = measure(case, options.seconds)
        ratio = rates["folded"] / rates["loop"]
        wanted = GATES.get((case.width, case.n)) if case.members >= 1024 else None
        missed += wanted is not None and ratio < wanted
        table.add_row(
            str(case.members),
            str(case.width),
            str(case.n),
            *(f"{rates[name] / 1e6:.1f}" for name in ("loop", "vmap", "folded")),
            f"{ratio:.1f}",
            "" if wanted is None else f"{wanted:g} {'met' if ratio >= wanted else 'MISSED'}",
            f"{100 * rates['folded'] * flops(case) / peak:.0f} %",
            f"{difference:.0e}",
        )
    Console(width=130).print(table)
    return 1 if missed else 0


def measure(case: Case, seconds: float) -> tuple[dict[str, float], float]:
    """Predictions a second of every path, and the largest difference of V_hat between them."""
    net, D = make(case)
    g = torch.Generator().manual_seed(1)
    x = torch.rand(SIMULATORS, case.n, 2, generator=g, dtype=torch.float64) * 3 - 0.5
    evaluator = Ensemble(net.problem, (net,)).evaluator(D)
    modules = [Member(net, f) for f in range(case.members)]
    stacked = torch.func.stack_module_state(modules)[0]
    offsets = plain_offsets(net, D)

    def local_and_x() -> tuple[Tensor, Tensor]:
        return net.local(D, STEP, x), net.scaled_x(x)

    def loop() -> Tensor:
        local, scaled = local_and_x()
        V_hat = torch.empty(case.members, SIMULATORS, dtype=torch.float64)
        for f, module in enumerate(modules):
            for b in range(SIMULATORS):
                q = module(offsets[f, b], local[b], scaled[b])
                V_hat[f, b] = q.clamp_(0, 1).amax(-1).sum(dtype=torch.float64) / case.n
        return V_hat

    one = torch.func.vmap(
        lambda weights, offset, local, scaled: torch.func.functional_call(modules[0], weights, (offset, local, scaled)),
        in_dims=(0, 0, None, None),
    )

    def vmap() -> Tensor:
        local, scaled = local_and_x()
        V_hat = torch.zeros(case.members, SIMULATORS, dtype=torch.float64)
        width = max(1, VMAP_CHUNK // case.members)
        for b in range(SIMULATORS):
            for i in range(0, case.n, width):
                q = one(stacked, offsets[:, b], local[b, i : i + width], scaled[b, i : i + width])
                V_hat[:, b] += q.clamp_(0, 1).amax(-1).sum(-1, dtype=torch.float64)
        return V_hat / case.n

    paths = {"loop": loop, "vmap": vmap, "folded": lambda: evaluator.greedy_values(STEP, x)}
    with torch.no_grad():
        results = {name: path() for name, path in paths.items()}
        rates = {name: case.predictions / best(path, seconds) for name, path in paths.items()}
    difference = max(float((value - results["loop"]).abs().max()) for value in results.values())
    return rates, difference


def make(case: Case) -> tuple[Net, Tensor]:
    """The network on the grid family, 24 x 24 nodes, and densities [B, xi, G]."""
    family, g = make_family("grid"), torch.Generator().manual_seed(0)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 24)
    net = net_class("lookup")(Problem(family.spec, family.graph, grid), case.members, g, width=case.width)
    D = torch.rand(SIMULATORS, family.graph.num_states, grid.num_points, generator=g)
    net.fit_scales(D)
    return net.requires_grad_(False), D


def plain_offsets(net: Net, D: Tensor) -> Tensor:
    """The first layer on the embedding of D [F, B, width], neither rotated nor folded."""
    head = net.steps[STEP]
    weight = head.first.effective(head.input_constants(net.constants()))[..., : head.sizes.inputs]
    return net.standardised(D) @ weight.mT


def flops(case: Case) -> int:
    """Floating-point operations of one prediction's matrix products."""
    states, d, actions, x_width = 3, 2, 2, 16
    return 2 * (x_width * d + case.width * (x_width + states) + case.width**2 + case.width * actions)


def gemm_peak(seconds: float) -> float:
    """Operations a second of a square product of 1024."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return 2 * 1024**3 / best(lambda: a @ b, seconds)


def best(work: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call, over at least 3 calls and this many seconds of the thread."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)
