"""What a decision costs once a policy is conditioned on a world: as it is, exported, in ONNX Runtime; a bare network.

The bare network has three layers of the default width on as many numbers as the policy's own network sees, and argmax:
it neither looks densities up nor checks anything. Gates, of the policy as it is: at most 60 microseconds for one
reading, and at most twice the bare network for 4096.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.policy import MetaPolicy, Policy
from s2r_torch.deployment.policy_file import load_policy
from s2r_torch.families import make_family
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.problem import Problem

BATCHES = (1, 64, 4096)
READINGS = 22_000  # at which actions are compared
WIDTH = 32  # of the bare network, as of networks by default
Act = Callable[[int, Tensor], Tensor]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", help="a policy file; without one, an untrained policy of the grid family")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time of every measurement")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    meta = load_policy(options.checkpoint) if options.checkpoint else untrained()
    graph, grid = meta.problem.graph, meta.problem.grid
    generator = torch.Generator().manual_seed(0)
    D = any_densities(meta.problem, generator)
    policy = meta.condition(D)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"{agreement(meta, policy, D, generator):,} actions are those of the class, off the grid included")
    table, least = Table("how", *(f"batch {n}" for n in BATCHES)), None
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        x = {n: around(grid, n, generator, 0.0).float() for n in BATCHES}
        for how, act in ways(policy, Path(folder)).items():
            times = [microseconds(act, graph.horizon, x[n], options.seconds) for n in BATCHES]
            least = least or times
            cells = (f"{time:,.0f} ({time / one:.2f} x)" for time, one in zip(times, least, strict=True))
            table.add_row(how, *cells)
    names = ", ".join(type(group).__name__ for group in meta.ensemble.groups)
    console.print(f"CPU microseconds a call, one thread: {names}, H = {graph.horizon}, G = {grid.num_points}")
    console.print(table)


def any_densities(problem: Problem, generator: torch.Generator) -> Tensor:
    """Random densities [xi, G]."""
    D = torch.rand(problem.graph.num_states, problem.grid.num_points, generator=generator, dtype=torch.float64)
    return D / (D @ problem.grid.weights)[:, None]


def around(grid: DensityGrid, n: int, generator: torch.Generator, beyond: float) -> Tensor:
    """Readings in the grid's box, widened on every side by a share of it."""
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (grid.low, grid.high))
    share = torch.rand(n, grid.obs_dim, generator=generator, dtype=torch.float64)
    return low + (high - low) * ((1 + 2 * beyond) * share - beyond)


def agreement(meta: MetaPolicy, policy: Policy, D: Tensor, generator: torch.Generator) -> int:
    """How many actions of the policy were compared with those of the class, by the path that training takes."""
    act, horizon = meta.ensemble.evaluator(D[None]).policy_of(meta.chosen), meta.problem.graph.horizon
    each = -(-READINGS // horizon)
    for step in range(horizon):
        x = around(meta.problem.grid, each, generator, 0.2)
        alone = torch.cat([policy.act(step, row[None]) for row in x])
        for actions in (policy.act(step, x), alone):
            assert torch.equal(actions, act(step, x[None])[0]), f"another action at step {step}"
    return each * horizon


def ways(policy: Policy, folder: Path) -> dict[str, Act]:
    """Every way to ask for actions, a bare network first."""
    export_policy(policy, folder / "policy.pt2")
    program = torch.export.load(folder / "policy.pt2").module()
    acts = {
        "bare network, argmax": bare(policy),
        "eager, policy.act": policy.act,
        "torch.export": lambda step, x: program(torch.tensor(step), x)[0],
    }
    if all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime")):
        acts["ONNX Runtime"] = onnx(policy, folder / "policy.onnx")
    return acts


def bare(policy: Policy) -> Act:
    """Three layers on as many numbers as the policy's network sees in the widest layer."""
    problem, widest = policy.problem, max(policy.problem.graph.states_per_layer)
    inputs = problem.spec.obs_dim + widest
    layers = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, problem.spec.num_actions))
    rows = {n: torch.rand(n, inputs) for n in BATCHES}
    return lambda step, x: net(rows[len(x)]).argmax(-1)


def onnx(policy: Policy, path: Path) -> Act:
    import numpy as np
    import onnxruntime

    export_policy(policy, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda step, x: torch.from_numpy(session.run(["actions"], {"step": np.asarray(step), "x": x.numpy()})[0])


def microseconds(act: Act, horizon: int, x: Tensor, seconds: float) -> float:
    """Median CPU time of a call."""
    times, end = [], time.process_time() + seconds
    for step in range(horizon):
        act(step, x)
    while time.process_time() < end:
        start = time.process_time()
        for step in range(horizon):
            act(step, x)
        times.append((time.process_time() - start) / horizon)
    return 1e6 * statistics.median(times)


def untrained() -> MetaPolicy:
    """A policy of the sizes that runs have by default."""
    family = make_family("grid")
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 24)
    net = LookupNet(Problem(family.spec, family.graph, grid), 1, torch.Generator().manual_seed(0))
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), grid.spacing)
    return MetaPolicy(Ensemble(net.problem, (net,)), 0, estimator, path_cover(family.graph), 100)
