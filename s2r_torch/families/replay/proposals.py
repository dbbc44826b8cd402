"""What simulation says where the user says nothing: the horizon, S, the box of readings, the scale of rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.errors import SettingError
from s2r_torch.families.replay.tree import MOST_PLACES, ReplayTree
from s2r_torch.families.sensors import Sensor, readings_of
from s2r_torch.graph import StateGraph

LONGEST = 64  # steps until every episode must have ended, for a horizon to be proposed
MOST_STEPS = 5000  # taken in an environment, for that
MARGIN = 0.05  # of the range of readings, on either side; and, at least, of the largest total reward
RATHER_SMALL, TENTH = 0.5, 10  # total reward whose noise would drown it if it were paid at random; see `propose_scale`


def propose_horizon(tree: ReplayTree, limit: int | None) -> int:
    """The number of steps after which every episode has ended or is cut.

    Raises:
        SettingError: episodes do not end.
    """
    actions = torch.arange(tree.num_actions)
    frontier = torch.zeros(1, dtype=torch.int64)
    for step in range(1, (limit or LONGEST) + 1):
        nodes, _ = tree.step(frontier[:, None].expand(-1, tree.num_actions), actions.expand(len(frontier), -1))
        nodes = nodes.flatten()
        nodes = nodes[~tree.ended(nodes)]
        first = {int(place): int(node) for place, node in zip(tree.place(nodes), nodes, strict=True)}
        if not first or step == limit:
            return step
        if tree.num_places > MOST_PLACES or tree.steps_run > MOST_STEPS:
            break
        frontier = torch.tensor(list(first.values()))
    raise SettingError(
        expected="episodes that all end, or a `horizon`",
        got=f"some that go on after {step} steps, through {tree.num_places} different places",
        cause="an environment without an end: say after how many decisions an episode is over (horizon=...)",
    )


def propose_box(
    sensor: Sensor, theta: Tensor, latent: Tensor, generators: list[torch.Generator]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A box around the readings at latent numbers [n, l] under theta [B, k], with a margin."""
    x = readings_of(sensor, theta, latent.expand(len(theta), *latent.shape), generators).flatten(0, 1)
    low, high = x.amin(0), x.amax(0)
    margin = MARGIN * (high - low).clamp(min=1e-6)
    return tuple((low - margin).tolist()), tuple((high + margin).tolist())


def largest_totals(graph: StateGraph, reward: Tensor) -> Tensor:
    """The largest total over paths [B] of each simulator, for rewards [B, xi, A]."""
    return graph.best_totals(reward.double())[0][:, 0]


def propose_scale(totals: Tensor) -> float:
    """What rewards are divided by, from the largest totals [B] of B theta: 1 where their largest lies in 1/2 .. 1.

    Else more than hardly any theta pays. Where totals have an exponential tail, the largest of B lies about ln 10 above
    the tenth, in units of its mean excess: four times that further up, a theta exceeds it with a chance of 10^-4 / B.
    """
    most, tenth = (float(totals.topk(k).values[-1]) for k in (1, min(TENTH, len(totals))))
    if RATHER_SMALL <= most <= 1 or most <= 0:
        return 1.0
    return most + max(MARGIN * most, 4 * (most - tenth))


def most_payments(graph: StateGraph, reward: Tensor) -> int:
    """How many steps of one episode can pay, at most."""
    return int(graph.best_totals((reward > 0).double())[0][:, 0].max())
