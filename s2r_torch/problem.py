"""What the class F may depend on: the sizes of a problem, its state graph, and the grid of its densities."""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.base import ProblemSpec
from s2r_torch.density.grid import DensityGrid
from s2r_torch.given import taking
from s2r_torch.graph import StateGraph


@taking()
@dataclass(frozen=True, eq=False)
class Problem:
    """All that a predictor class may depend on (theory.md C8): never on the judges' densities."""

    spec: ProblemSpec
    graph: StateGraph
    grid: DensityGrid
