"""One predictor in one world: D is fixed, so all that depends on it is prepared once; what policies and programs run.

`actor(group, D, graph)` makes it: of a `Net`, tables of its densities and the matrices of every step; of any other
`PredictorGroup`, the group conditioned on D. An actor has `q` for a step that is known, and is a module that gives all
steps at once, which `torch.export` can trace.
"""

from __future__ import annotations

from functools import singledispatch
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor, nn

from s2r_torch.arrays import check_shape
from s2r_torch.base import PredictorGroup
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.lookup import LookUp, by_axis, place
from s2r_torch.density.patches import dense
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.nets.net import Net

ROWS = 2**14  # readings evaluated at once, so that memory does not grow with them


class GroupActor(nn.Module):
    """A group of one member, conditioned on D `[xi, G]`."""

    def __init__(self, group: PredictorGroup, D: Tensor, graph: StateGraph, readings: float | None = None):
        super().__init__()
        self.group, self.conditioned, self.horizon = group, group.condition(D[None], readings), graph.horizon

    def q(self, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) for x `[n, d]`: `[n, A]`."""
        q = self.group.q(self.conditioned, step, x[None])
        check_shape("values", q, (1, 1, None, None), f"q of {type(self.group).__name__} gives [members, B, n, A]")
        return q[0, 0]

    def forward(self, x: Tensor) -> Tensor:
        """The same at every step: `[H, n, A]`."""
        return torch.stack([self.q(step, x) for step in range(self.horizon)])


class NetActor(nn.Module):
    """A net of one member, for D `[xi, G]`: what `Net.q` computes, without its tiles, so that n stays free.

    A single reading goes through in NumPy and plain numbers where the head is a chain of products: on a robot readings
    come alone, and forty small tensors cost three times what is computed with them.
    """

    def __init__(self, net: Net, D: Tensor, graph: StateGraph, readings: float | None = None):
        super().__init__()
        self.grid, self.scaled_x = net.problem.grid, net.scaled_x
        self.steps = list(net.steps)  # not as submodules: what they prepared holds all that is needed
        conditioned = net.condition(D[None], readings)
        self.prepared = [step.part(slice(0, 1), slice(0, 1)) for step in conditioned.steps]
        layers = [graph.states_of(step) if net.looks_up else [] for step in range(graph.horizon)]
        self.looked_up, self.of_step = _looked_up(self.grid, dense(conditioned.D)[0] / net.height, layers)
        chains = (step.chain(prepared) for step, prepared in zip(self.steps, self.prepared, strict=True))
        self.chains = [[(weight[0].numpy(), rows) for weight, rows in chain] for chain in chains]
        self.box = list(zip(net.x_centre.tolist(), net.x_half.tolist(), strict=True))

    def q(self, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) for finite x `[n, d]`: `[n, A]`."""
        n = x.shape[0]
        if n > ROWS:
            return torch.cat([self.q(step, part) for part in x.split(ROWS)])
        if n == 1 and self.chains[step]:
            return torch.from_numpy(self._alone(step, x)).clamp_(0, 1)
        with torch.inference_mode():
            scaled, cell, inside = self._placed(x)
            values = self._values(step, scaled, self.looked_up(cell, inside, self.of_step[step]))
        return values.clamp(0, 1).mT  # out of inference mode: an ordinary tensor

    def forward(self, x: Tensor) -> Tensor:
        """The same at every step: `[H, n, A]`."""
        scaled, cell, inside = self._placed(x)
        looked_up = self.looked_up(cell, inside)
        values = [self._values(step, scaled, looked_up[rows]) for step, rows in enumerate(self.of_step)]
        return torch.stack(values).clamp(0, 1).mT.contiguous()

    def _placed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x in [-1, 1], [d, n]; cell [n] and place in it [d, n]."""
        rows = by_axis(x)
        return self.scaled_x(rows.mT).mT, *place(self.grid, rows[: self.grid.obs_dim])

    def _values(self, step: int, scaled: Tensor, looked_up: Tensor) -> Tensor:
        """Unclamped f, [A, n]."""
        columns = torch.cat([scaled, looked_up])  # as of `Step.columns`
        return self.steps[step].values(self.prepared[step], columns, columns.shape[1])[0]

    def _alone(self, step: int, x: Tensor) -> np.ndarray:
        """Unclamped f at a single reading, [1, A]."""
        (row,) = x.tolist()
        scaled = [min(max((value - c) / half, -3.0), 3.0) for value, (c, half) in zip(row, self.box, strict=True)]
        u = np.array([*scaled, *self.looked_up.at(row[: self.grid.obs_dim], x.dtype, self.of_step[step])], np.float32)
        for weight, rows in self.chains[step]:
            if rows:
                np.abs(u[:rows], out=u[:rows])
            u = weight.dot(u)  # not @: it warns of what a core set while it padded rows
        return u[None]


def _looked_up(grid: DensityGrid, D: Tensor, layers: list[list[int]]) -> tuple[LookUp, list[slice]]:
    """What columns hold beside x, of all steps, step by step: the densities of its states, and the constant 1."""
    ends = [0, *accumulate(len(states) + 1 for states in layers)]
    functions, outside = D.new_ones(ends[-1], D.shape[1]), D.new_ones(ends[-1])
    parts = [slice(start, stop) for start, stop in pairwise(ends)]
    for rows, states in zip(parts, layers, strict=True):
        functions[rows.start : rows.stop - 1], outside[rows.start : rows.stop - 1] = D[states], 0.0
    return LookUp(grid, functions, outside), parts


Actor = GroupActor | NetActor


@singledispatch
def actor(group: PredictorGroup, D: Tensor, graph: StateGraph, readings: float | None = None) -> Actor:
    """A group of one member in a world with densities D `[xi, G]` of so many readings."""
    return GroupActor(group, D, graph, readings)


actor.register(Net)(NetActor)
