"""The mixture's density estimates from any number of readings, exactly in law: 10^10 of them cost what 10 do.

The box kernel of half-width h = m spacings sees at a node only how many of n readings lie within m spacings of it:

    D_hat(node i) = (N_{i-m} + .. + N_{i+m-1}) / (2 h n),    N the numbers of readings between neighbouring nodes

and N is one multinomial draw, whatever n is. The sizes are the least by which the radius at nodes (theory.md 3.6) is as
small as a theorem asks for: no constant is guessed.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import Kernel, make_kernel
from s2r_torch.density.radius import bias_constant, radius_at_nodes
from s2r_torch.families.mixture.family import HALF_WIDTH, Mixture
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.families.noise import bump_density
from s2r_torch.graph import StateGraph

MOST_READINGS = 2**52  # float64 counts them
AT_ONCE = 2**21  # numbers of densities


@dataclass(frozen=True)
class Look:
    """How densities are estimated.

    Args:
        intervals: between the nodes of the whole box, G - 1; a multiple of the cells.
        window: h, in these.
        n: readings.
    """

    intervals: int
    window: int
    n: int

    def grid(self, mixture: Mixture) -> DensityGrid:
        return DensityGrid.uniform(mixture.spec.low, mixture.spec.high, self.intervals + 1)


def cheapest_look(mixture: Mixture, radius: float, densities: int, delta: float, intervals: int | None = None) -> Look:
    """The bandwidth by which the fewest readings reach a radius at all nodes of so many densities at once.

    They grow like 1 / (h (radius - bias)^2), least where the bias is radius / (1 + 2 alpha). h is one interval of a
    grid made for it, or some of a given one.
    """
    constants, J = mixture.constants(), mixture.num_cells
    kernel = make_kernel("box", constants.alpha)
    steep = bias_constant(kernel, 1) * constants.C_alpha
    best = (radius / ((1 + 2 * constants.alpha) * steep)) ** (1 / constants.alpha)
    window = 1 if intervals is None else max(1, math.floor(best * intervals / J))
    intervals = intervals or J * math.ceil(1 / best)

    def enough(n: int) -> bool:
        return _radius(mixture, kernel, Look(intervals, window, n), densities, delta) <= radius

    return Look(intervals, window, 1 + bisect.bisect_left(range(1, MOST_READINGS), True, key=enough))


def _radius(mixture: Mixture, kernel: Kernel, look: Look, densities: int, delta: float) -> float:
    constants, h = mixture.constants(), look.window * mixture.num_cells / look.intervals
    bounds = {"holder_constant": constants.C_alpha, "density_bound": constants.P_inf}
    return radius_at_nodes(kernel, look.n, h, delta=delta, nodes=(look.intervals + 1) * densities, **bounds).total


@dataclass(frozen=True, eq=False)
class Seen:
    """What estimates at the end of every path said, over all environments.

    Args:
        theta_hat: `[B]` by the densities of every state's first path.
        error: the largest distance of an estimate from its density, at nodes.
        merged: whether every environment alone would merge those paths, and only those, that end in one state.
    """

    theta_hat: Tensor
    error: float
    merged: bool


def see(mixture: Mixture, members: MixturePredictors, theta: Tensor, look: Look, draws: np.random.Generator) -> Seen:
    """Estimates of environments theta [B] at every path that DFS-Distribution looks at, each from its own readings."""
    graph, theta_hat, error, merged = mixture.graph, [], 0.0, True
    for some in theta.split(max(1, AT_ONCE // (look.intervals * graph.num_states))):
        true, D_hat = true_densities(mixture, some, look), {}  # D_hat of every state's first path
        for state in _ends(graph):
            drawn = draw(mixture, some, state, look, draws)  # [b, G]
            error = max(error, float((drawn - true[:, state]).abs().max()))
            for known in (s for s in D_hat if graph.layer[s] == graph.layer[state]):
                near = (drawn - D_hat[known]).abs().amax(-1) <= mixture.spec.zeta / 2
                merged &= bool((near == (known == state)).all())
            D_hat.setdefault(state, drawn)
        theta_hat.append(members.theta_hat(torch.stack([D_hat[s] for s in range(graph.num_states)], 1)))
    return Seen(torch.cat(theta_hat), error, merged)


def _ends(graph: StateGraph) -> list[int]:
    """Where the paths end that DFS-Distribution looks at: the start, then one action beyond every state."""
    return [0, *graph.next_state[graph.next_state >= 0].tolist()]


def draw(mixture: Mixture, theta: Tensor, state: int, look: Look, draws: np.random.Generator) -> Tensor:
    """D_hat [B, G] at a state from n readings in each of the environments theta [B]."""
    p = _shares(mixture, theta, look)[:, state]
    return estimate(torch.from_numpy(draws.multinomial(look.n, p.numpy())), mixture, look)


def estimate(counts: Tensor, mixture: Mixture, look: Look) -> Tensor:
    """D_hat [B, G] from the numbers [B, G - 1] of readings between neighbouring nodes."""
    m = look.window
    below = torch.nn.functional.pad(counts.double().cumsum(-1), (1, 0))  # [B, G] left of every node
    rows = torch.arange(look.intervals + 1)
    within = below[:, (rows + m).clamp(max=look.intervals)] - below[:, (rows - m).clamp(min=0)]
    return within / (2 * m * mixture.num_cells / look.intervals * look.n)


def true_densities(mixture: Mixture, theta: Tensor, look: Look) -> Tensor:
    """D [B, xi, G] at the nodes."""
    centres = torch.arange(mixture.num_cells) + HALF_WIDTH
    nodes = look.grid(mixture).nodes
    bumps = bump_density((nodes - centres) / HALF_WIDTH, mixture.smoothness) / HALF_WIDTH  # [G, J]
    return mixture.cell_probabilities(theta[:, None]) @ bumps.T


def _shares(mixture: Mixture, theta: Tensor, look: Look) -> Tensor:
    """Probabilities [B, xi, G - 1] of a reading between neighbouring nodes."""
    nodes, k = look.grid(mixture).nodes[:, 0], mixture.smoothness + 1
    left = torch.arange(mixture.num_cells, dtype=torch.float64)[:, None]
    inside = (nodes - left).clamp(0, 1).numpy()
    mass = torch.from_numpy(scipy.special.betainc(k, k, inside)).diff(dim=-1)  # [J, G - 1]: the bump's law is a beta
    return mixture.cell_probabilities(theta[:, None]) @ mass
