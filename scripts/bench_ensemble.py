"""Predictions a second of the class F on one core: a loop over modules, vmap over stacked weights, and the folded path.

A prediction is one member on one sample of one simulator, for all actions, reduced to V_hat as Algorithm 4 wants it.
All three compute the same network (`lookup`, default head) and share what does not depend on the member, the densities
looked up at x; the embedding of D is cached in all. Loop: one nn.Module call per member and simulator. Times are of the
thread's CPU, medians over rounds in which every path and a large matrix product (the GEMM peak) run in turn, so that a
busy machine disturbs all alike. Every gate prints a line; exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from s2r_torch.density.grid import DensityGrid
from s2r_torch.families import make_family
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.lipschitz import maxmin
from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import net_class
from s2r_torch.problem import Problem

STEP, SIMULATORS = 2, 2
GATES = {(16, 4096): 3.5, (16, 256): 8.0, (32, 4096): 2.5, (32, 256): 5.0, (64, 4096): 2.0}  # folded / loop
VMAP_CHUNK = 2**13  # (member, sample) pairs
PEAK_SIZE = 1024
LEAST = 0.05  # seconds of a measurement


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
    parser.add_argument("--rounds", type=int, default=9, help="times that every path is measured, in turn")


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
        "share of GEMM peak",
        "difference",
        title="million predictions a second and core",
    )
    gates = []
    for case in cases:
        rates, peak, difference = measure(case, options.rounds)
        ratio = rates["folded"] / rates["loop"]
        if case.members == max(members) and (case.width, case.n) in GATES:
            gates.append((case, ratio))
        table.add_row(
            str(case.members),
            str(case.width),
            str(case.n),
            *(f"{rates[name] / 1e6:.1f}" for name in ("loop", "vmap", "folded")),
            f"{ratio:.1f}",
            f"{100 * rates['folded'] * flops(case) / peak:.0f} %",
            f"{difference:.0e}",
        )
    console = Console(width=130)
    console.print(table)
    for case, ratio in gates:
        wanted = GATES[case.width, case.n]
        verdict = "PASS" if ratio >= wanted else "FAIL"
        where = f"width {case.width}, n = {case.n}, F = {case.members}"
        console.print(f"{verdict}  folded >= {wanted:g} x loop at {where}: {ratio:.2f}", highlight=False)
    return int(any(ratio < GATES[case.width, case.n] for case, ratio in gates))


def measure(case: Case, rounds: int) -> tuple[dict[str, float], float, float]:
    """Predictions a second of every path, operations a second of a matrix product, largest difference between paths."""
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
        times = interleaved({**paths, "peak": gemm()}, rounds)
    rates = {name: case.predictions / times[name] for name in paths}
    difference = max(float((value - results["loop"]).abs().max()) for value in results.values())
    return rates, 2 * PEAK_SIZE**3 / times["peak"], difference


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


def gemm() -> Callable[[], Tensor]:
    """A square product, large enough to reach the core's peak."""
    a, b = torch.rand(PEAK_SIZE, PEAK_SIZE), torch.rand(PEAK_SIZE, PEAK_SIZE)
    return lambda: a @ b


def interleaved(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of the thread for a call of each, called in turn; short calls are repeated within a round."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            start, calls = time.thread_time(), 0
            while calls == 0 or time.thread_time() - start < LEAST:
                call()
                calls += 1
            times[name].append((time.thread_time() - start) / calls)
    return {name: statistics.median(values) for name, values in times.items()}
