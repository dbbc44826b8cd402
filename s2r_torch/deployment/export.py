"""A conditioned policy as one file that runs without this library: torch.export (`.pt2`) or ONNX (`.onnx`).

    program = torch.export.load("policy.pt2").module()
    actions, q = program(torch.tensor(step), x)          # x [n, d] float32, step 0 .. H-1

The file holds one world's densities for good. Observations that are not finite, and steps beyond the horizon, get
action -1: a program has no other way to refuse.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from s2r_torch.deployment.policy import Policy
from s2r_torch.errors import SettingError
from s2r_torch.predictors.ensemble import greedy_actions

ENDINGS = (".pt2", ".onnx")
ROWS = 8  # observations in the example that is traced; any number works afterwards


class Program(nn.Module):
    """What is exported: (step [], x [n, d]) -> actions [n], -1 where there is none, and values q [n, A]."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.horizon, self.values = policy.problem.graph.horizon, policy.actor

    def forward(self, step: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        q = self.values(x).index_select(0, step.clamp(0, self.horizon - 1).reshape(1))[0]
        known = torch.isfinite(x).all(-1) & (step >= 0) & (step < self.horizon)
        return torch.where(known, greedy_actions(q), -1), q


def export_policy(policy: Policy, path: Path | str) -> None:
    """Writes the policy of one world; the file's ending says how.

    Args:
        policy: conditioned on one world.
        path: ends in `.pt2`, which needs torch alone, or `.onnx` (pip install 's2r_torch[onnx]').

    Raises:
        SettingError: another ending, a policy of several worlds, or onnx is not installed.
    """
    path = Path(path)
    check_ending(path)
    if policy.num_worlds is not None:
        raise SettingError(
            expected="a policy of one world", got=f"{policy.num_worlds}", cause="condition on densities [xi, G]"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write = torch.export.save if path.suffix == ".pt2" else _save_onnx
    write(traced(policy), path)


def check_ending(path: Path | str) -> None:
    """Raises SettingError unless policies can be exported to a file with this ending."""
    ending = Path(path).suffix
    if ending not in ENDINGS:
        raise SettingError(
            expected=f"a file that ends in {' or '.join(ENDINGS)}", got=str(path), cause="another kind of file"
        )
    if ending == ".onnx" and importlib.util.find_spec("onnxscript") is None:
        raise SettingError(
            expected="onnx and onnxscript, to write ONNX files",
            got="neither",
            cause="an optional extra: pip install 's2r_torch[onnx]', or export to a .pt2 file",
        )


def traced(policy: Policy) -> torch.export.ExportedProgram:
    """The policy as a graph, for any number of observations."""
    program = Program(policy).eval()
    grid = policy.problem.grid
    low, high = (torch.tensor(edge, dtype=torch.float32) for edge in (grid.low, grid.high))
    x = low + (high - low) * torch.linspace(0.1, 0.9, ROWS)[:, None]
    with torch.no_grad():
        program(torch.tensor(0), x)  # fills what the grid computes once, outside the trace
        return torch.export.export(
            program, (torch.tensor(0), x), dynamic_shapes={"step": None, "x": {0: torch.export.Dim("n", min=1)}}
        )


def _save_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    names = {"input_names": ["step", "x"], "output_names": ["actions", "q"]}
    chatter = logging.getLogger("torch.onnx")
    level = chatter.level
    try:
        chatter.setLevel(logging.ERROR)  # it lists operators of libraries that are not installed
        with warnings.catch_warnings(action="ignore"):  # deprecations between torch and onnxscript
            torch.onnx.export(program, (), str(path), dynamo=True, external_data=False, verbose=False, **names)
    finally:
        chatter.setLevel(level)
