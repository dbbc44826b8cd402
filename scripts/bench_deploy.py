"""What a decision costs once a policy is conditioned on a world: as it is, exported, and in ONNX Runtime."""

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
from torch import Tensor

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
Act = Callable[[int, Tensor], Tensor]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", help="a policy file; without one, an untrained policy of the grid family")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time of every measurement")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    meta = load_policy(options.checkpoint) if options.checkpoint else untrained()
    graph, grid = meta.problem.graph, meta.problem.grid
    generator = torch.Generator().manual_seed(0)
    policy = meta.condition(torch.rand(graph.num_states, grid.num_points, generator=generator))
    low, high = (torch.tensor(edge, dtype=torch.float32) for edge in (grid.low, grid.high))
    names = ", ".join(type(group).__name__ for group in meta.ensemble.groups)
    table = Table(
        "how", *(f"batch {n}" for n in BATCHES),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for how, act in ways(policy, Path(folder)).items():
            x = {n: low + (high - low) * torch.rand(n, grid.obs_dim, generator=generator) for n in BATCHES}
            for step in range(graph.horizon):
                assert torch.equal(act(step, x[64]), policy.act(step, x[64])), how
            table.add_row(how, *(f"{microseconds(act, graph.horizon, x[n], options.seconds):,.0f}" for n in BATCHES))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"CPU microseconds a call, one thread: {names}, H = {graph.horizon}, G = {grid.num_points}")
    console.print(table)


def ways(policy: Policy, folder: Path) -> dict[str, Act]:
    """Every way to ask for actions."""
    export_policy(policy, folder / "policy.pt2")
    program = torch.export.load(folder / "policy.pt2").module()
    acts = {"eager, policy.act": policy.act, "torch.export": lambda step, x: program(torch.tensor(step), x)[0]}
    if all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime")):
        acts["ONNX Runtime"] = onnx(policy, folder / "policy.onnx")
    return acts


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
