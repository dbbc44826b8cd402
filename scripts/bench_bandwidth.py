"""Error of the bandwidth rules beside the best bandwidth: sup-norm error over the oracle's, on four shapes of density.

Pilot and samples are independent; the rule's bandwidth is pooled over the pilot's states, as in a run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.density.bandwidth import lepski_bandwidth, paper_bandwidth, reference_bandwidth
from s2r_torch.density.estimator import DensityEstimator, DensityGrid, sup_distance
from s2r_torch.density.kernels import Kernel, LegendreKernel

GRID = DensityGrid.uniform((-6.0,), (6.0,), 481)


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal densities: (weight, mean, standard deviation) each."""

    parts: tuple[tuple[float, float, float], ...]

    def density(self, x: Tensor) -> Tensor:
        return sum(w * torch.exp(-(((x - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi)) for w, m, s in self.parts)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        weights, means, scales = (torch.tensor(column, dtype=torch.float64) for column in zip(*self.parts, strict=True))
        part = torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator).reshape(shape)
        return means[part] + scales[part] * torch.randn(*shape, generator=generator, dtype=torch.float64)


SHAPES = {
    "normal": Mixture(((1.0, 0.0, 1.0),)),
    "bimodal": Mixture(((0.5, -1.5, 0.4), (0.5, 1.5, 0.4))),
    "skewed": Mixture(((0.2, 0.0, 1.0), (0.2, 0.5, 2 / 3), (0.6, 13 / 12, 5 / 9))),
    "claw": Mixture(((0.5, 0.0, 1.0), *((0.1, k / 2 - 1, 0.1) for k in range(5)))),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", default="2,4,6", help="kernel orders")
    parser.add_argument("--samples", default="100,1000,10000", help="samples per estimate")
    parser.add_argument("--trials", type=int, default=40)


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    orders, samples = (tuple(int(v) for v in text.split(",")) for text in (options.orders, options.samples))
    Console().print(error_table(orders, samples, options.trials))
    return 0


def error_table(orders: tuple[int, ...] = (2, 4), samples: tuple[int, ...] = (100, 1000), trials: int = 40) -> Table:
    """One row per order, n and shape: the oracle's error, and each rule's error as a multiple of it."""
    table = Table("order", "n", "shape", "oracle", "paper", "reference", "lepski", title="sup error / oracle's")
    for order in orders:
        for n in samples:
            for name, shape in SHAPES.items():
                oracle, ratios = errors(shape, LegendreKernel(order), n, trials)
                table.add_row(str(order), str(n), name, f"{oracle:.3f}", *(f"{r:.2f}" for r in ratios))
    return table


def errors(shape: Mixture, kernel: Kernel, n: int, trials: int) -> tuple[float, list[float]]:
    """The least mean error over bandwidths, and the rules' mean errors over it."""
    generator = torch.Generator().manual_seed(n)
    x, pilot = (shape.draw((trials, n, 1), generator) for _ in range(2))
    truth, least = shape.density(GRID.axes[0]), GRID.spacing[0] / 2

    def error(h: float) -> float:
        estimate = DensityEstimator(GRID, kernel, (max(h, least),), off_grid_limit=1.0)
        return float(sup_distance(estimate(x), truth).mean())

    scale = float(pilot.std())
    oracle = min(error(4 * scale * 1.12**-i) for i in range(50))
    rules: list[Callable[[], float]] = [
        lambda: paper_bandwidth(n, kernel.order, 1),
        lambda: reference_bandwidth(pilot, n, kernel)[0],
        lambda: lepski_bandwidth(pilot, n, kernel, GRID)[0],
    ]
    return oracle, [error(rule()) / oracle for rule in rules]
