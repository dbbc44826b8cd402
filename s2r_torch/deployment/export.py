"""A conditioned policy as one file that runs without this library: torch.export (`.pt2`) or ONNX (`.onnx`).

    program = torch.export.load("policy.pt2").module()
    actions, q = program(torch.tensor(step), x)          # x [n, d] float32, n >= 0; step 0 .. H-1, int32 or int64

The file holds one world's densities for good. What it takes:

    readings   float32; float64 where the box lies so far from 0 that float32 does not tell readings apart
               (`reading_dtype`). Another type or number of columns is an error, of torch or of the runtime.
               Steps of an .onnx file are int64.
    refused    readings that are not finite, and steps beyond the horizon, get action -1: a program has no other way.
               1e39 is finite in float64, and infinite in float32.
    device     the CPU that it was made on. `torch.export.passes.move_to_device_pass(program, "cuda")`, applied to what
               `torch.export.load` gives and before `.module()`, moves all that a .pt2 file holds; `.to("cuda")` of the
               module does not. Tested without a GPU: that nothing stays behind.
    versions   a .pt2 file is tied to the torch that wrote it; export again from the policy file, which is not.

It computes what `Policy.act` does by the same code (predictors/acting.py), one reading or many.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from s2r_torch.defaults import plain_torch
from s2r_torch.deployment.policy import Policy
from s2r_torch.errors import SettingError
from s2r_torch.files.whole import replacing, require_ours, write_bytes
from s2r_torch.given import taking
from s2r_torch.predictors.ensemble import greedy_actions

ENDINGS = {".pt2": b"PK", ".onnx": b"\x08"}  # and what such files begin with
ROWS = 8  # observations in the example that is traced; any number works afterwards


class Program(nn.Module):
    """What is exported: (step [], x [n, d]) -> actions [n], -1 where there is none, and values q [n, A].

    Raises:
        SettingError: a policy of several worlds.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        if policy.actor is None:
            raise SettingError(
                expected="a policy of one world", got=f"{policy.num_worlds}", cause="condition on densities [xi, G]"
            )
        self.horizon, self.values = policy.problem.graph.horizon, policy.actor
        self.encoder = policy.encoding.module if policy.encoding else nn.Identity()

    def forward(self, step: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        q = self.values(self.encoder(x)).index_select(0, step.clamp(0, self.horizon - 1).reshape(1))[0]
        known = torch.isfinite(x).all(-1) & torch.isfinite(q).all(-1) & (step >= 0) & (step < self.horizon)
        return torch.where(known, greedy_actions(q), -1), q


@plain_torch()
@taking()
def export_policy(policy: Policy, path: Path | str) -> None:
    """Writes the policy of one world; the file's ending says how.

    Args:
        policy: conditioned on one world.
        path: ends in `.pt2`, which needs torch alone, or `.onnx` (pip install 's2r_torch[onnx]').

    Raises:
        SettingError: another ending, a policy of several worlds, onnx is not installed, or a network that cannot be
            traced.
        FileError: the file cannot be written.
    """
    path = Path(path)
    check_ending(path)
    program = traced(policy)
    if path.suffix == ".onnx":
        with replacing(path) as partial:
            _save_onnx(program, partial)
    else:
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        write_bytes(path, buffer.getvalue())


def check_ending(path: Path | str) -> None:
    """Raises SettingError unless policies can be exported to a file with this ending, and no file of others is lost."""
    ending = Path(path).suffix
    require_ours(path, lambda start: start.startswith(ENDINGS.get(ending, b"")), "an exported policy")
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


def reading_dtype(policy: Policy) -> torch.dtype:
    """What the program's readings are: float32 where it tells them apart, else float64."""
    return torch.float32 if policy.encoding or policy.problem.grid.takes_float32 else torch.float64


@plain_torch()
def traced(policy: Policy) -> torch.export.ExportedProgram:
    """The policy as a graph, for any number of observations.

    Raises:
        SettingError: a policy of several worlds, or a network of a user's own whose code depends on the numbers that
            it sees.
    """
    program = Program(policy).eval()
    box = policy.encoding.raw if policy.encoding else policy.problem.grid
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (box.low, box.high))
    share = torch.linspace(0.1, 0.9, ROWS, dtype=torch.float64)
    x = (low + (high - low) * share[:, None]).to(reading_dtype(policy))
    step, shapes = torch.zeros((), dtype=torch.int64), {"step": None, "x": {0: torch.export.Dim("n")}}
    with torch.no_grad():
        program(step, x)  # fills what the grid computes once, outside the trace
        try:
            return torch.export.export(program, (step, x), dynamic_shapes=shapes)
        except Exception as error:  # whatever a user's own code makes of being traced
            reason = str(error).strip().partition("\n")[0][:200]
            raise SettingError(
                expected="a network that torch.export can trace",
                got=f"{type(error).__name__}: {reason}",
                cause="a network of your own that looks at numbers (`.item()`, `if`), or at how many rows there are; "
                "deploy it with this library",
            ) from error


def _save_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    chatter = logging.getLogger("torch.onnx")
    level = chatter.level
    try:
        chatter.setLevel(logging.ERROR)  # it lists operators of libraries that are not installed
        with warnings.catch_warnings(action="ignore"):  # deprecations between torch and onnxscript
            torch.onnx.export(
                program,
                (),
                str(path),
                input_names=["step", "x"],
                output_names=["actions", "q"],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        chatter.setLevel(level)
