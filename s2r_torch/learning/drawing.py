"""Tours of many simulators (`tours.py`), shared among their workers: the same to the bit, whoever draws."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch import tours
from s2r_torch.episodes import Guard, Transitions
from s2r_torch.graph import StateGraph
from s2r_torch.rng import Seed
from s2r_torch.workers.simulators import in_parts, map_simulators


def readings(simulators: Guard, graph: StateGraph, needs: int | Tensor, seed: Seed) -> list[Tensor]:
    """`tours.readings`: [B, n_s, d] of every state."""
    drawn = map_simulators(tours.readings, in_parts(simulators), graph, needs, seed)
    return [torch.cat(parts) for parts in zip(*drawn, strict=True)]


def decisions(simulators: Guard, graph: StateGraph, n: int, seed: Seed) -> list[Transitions]:
    """`tours.decisions`: n at every state, with their rewards."""
    drawn = map_simulators(tours.decisions, in_parts(simulators), graph, n, seed)
    return [Transitions.joined(parts) for parts in zip(*drawn, strict=True)]
