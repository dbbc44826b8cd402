"""What checks look through: a family, some of its simulators, and the episodes that they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from s2r_torch.episodes import Guard, Ledger, Rollouts
from s2r_torch.families.contract import Family, GroundTruth, KnowsGraph, users
from s2r_torch.given import refuse_kind
from s2r_torch.graph import StateGraph
from s2r_torch.rng import Seed

FEW, MANY = 12, 64  # simulators that are looked at closely, and in which one that is unlike the others is looked for
HALF = 8  # episodes of every (state, action), behind one estimate of what it pays
MOST_LISTS = 2048  # action lists that are all tried, if there are no more of them
MOST_EPISODES = 3000  # per simulator, through every (state, action)
AGAIN = 1000  # per simulator, at a state and action that seem to be off
PURPOSE = "check"

Explore = Callable[[Guard, Seed], StateGraph]


@dataclass(eq=False)
class Probe:
    """A family under check.

    Args:
        family: what is checked.
        seed: of everything that is drawn.
        explore: finds the state graph, where the family does not know it.
        ledger: where episodes are counted.
    """

    family: Family
    seed: Seed
    explore: Explore | None = None
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def spec(self):
        return self.family.spec

    @cached_property
    def theta(self) -> Tensor:
        """theta [MANY, k]."""
        return self.draw(MANY, "theta")

    def draw(self, n: int, purpose: str) -> Tensor:
        """theta [n, k] from the prior."""
        with users("a draw from the prior"):
            return self.family.prior(n, self.seed.child(purpose).generator())

    def simulators(self, theta: Tensor, ids: Sequence[int] | None = None) -> Guard:
        """Guarded simulators of theta [B, k]; ids are 0 .. B-1, as in runs."""
        with users("simulators(theta, ids)"):
            inner = self.family.simulators(theta, range(len(theta)) if ids is None else ids)
        return Guard(inner, self.ledger, PURPOSE)

    @cached_property
    def few(self) -> Guard:
        """The simulators of the first FEW theta."""
        return self.simulators(self.theta[:FEW])

    @cached_property
    def truth(self) -> GroundTruth | None:
        """The ground truth of the first FEW theta, where the family knows it."""
        with users("truth(theta)"):
            truth = self.family.truth(self.theta[:FEW])
        if not isinstance(truth, GroundTruth | None):
            refuse_kind("what truth(theta) returned", truth, "GroundTruth or None")
        return truth

    @cached_property
    def graph(self) -> StateGraph | None:
        """The state graph, where the family knows it."""
        if self.truth is not None:
            return self.truth.graph
        known = self.family.known_graph() if isinstance(self.family, KnowsGraph) else None
        if known is None and self.explore is not None:
            return self.explore(self.few, self.seed.child("explore"))
        return known

    def rewards(self, theta: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean rewards [B, xi, A] in units of total reward, twice: as the family knows them, or two estimates."""
        if self.graph is None:
            return None
        if isinstance(self.family, KnowsGraph) and self.family.known_graph() is not None:
            mean = self.family.mean_rewards(theta)  # before the truth, whose readings may be images
            return mean, mean
        with users("truth(theta)"):
            truth = self.family.truth(theta) if self.truth is not None else None
        if truth is not None:
            mean = (truth.weight[..., None] * truth.reward).sum(2)
            return mean, mean
        simulators = self.simulators(theta)
        runs = run(simulators, edge_lists(self.graph).repeat(2 * HALF, 1), self.generators(simulators.ids, "rewards"))
        one, two = of_edges(runs.rewards, self.graph).split(HALF, 1)
        return one.mean(1), two.mean(1)

    def generators(self, names: Sequence[int], *purpose) -> list[torch.Generator]:
        """One generator per name."""
        return self.seed.child(*purpose).generators(names)

    def random_lists(self, purpose: str, n: int) -> Tensor:
        """n random action lists [n, H]."""
        generator = self.seed.child("lists", purpose).generator()
        return torch.randint(self.spec.num_actions, (n, self.spec.horizon), generator=generator)

    @cached_property
    def lists(self) -> Tensor:
        """Action lists [n, H]: all of them, or many random ones and some through every state and action."""
        A, H = self.spec.num_actions, self.spec.horizon
        if H * math.log(A) <= math.log(MOST_LISTS):
            return torch.cartesian_prod(*[torch.arange(A)] * H).reshape(-1, H)
        found = self.random_lists("many", MOST_LISTS)
        return found if self.graph is None else torch.cat([edge_lists(self.graph), found])

    @cached_property
    def tried(self) -> Rollouts:
        """One episode along every one of `lists`, on the few simulators."""
        return run(self.few, self.lists, self.generators(self.few.ids, "tried"))

    @cached_property
    def edges(self) -> Rollouts | None:
        """Episodes through every (state, action), as many of each, on the few simulators; None without a graph."""
        if self.graph is None:
            return None
        actions = edge_lists(self.graph)
        copies = max(2, MOST_EPISODES // len(actions))
        return run(self.few, actions.repeat(copies, 1), self.generators(self.few.ids, "edges"))

    def at(self, graph: StateGraph, s: int, a: int) -> tuple[Tensor, Tensor]:
        """Readings [B, AGAIN, d] of a state and what an action pays there [B, AGAIN], anew, on the few simulators."""
        actions = edge_lists(graph)[s * graph.num_actions + a].expand(AGAIN, -1)
        runs, step = run(self.few, actions, self.generators(self.few.ids, "again", s, a)), int(graph.layer[s])
        return runs.x[:, :, step], runs.rewards[:, :, step]

    def telling_lists(self, n: int) -> Tensor:
        """n action lists [n, H], some that pay and some at random: a simulator that is unlike others shows on them."""
        returns = self.tried.returns.mean(0)
        best = returns.topk(min(n // 2, len(returns))).indices
        return torch.cat([self.lists[best], self.random_lists("telling", n - len(best))])


def edge_lists(graph: StateGraph) -> Tensor:
    """For every (state, action) an action list [xi A, H] that takes the action in the state."""
    A, H = graph.num_actions, graph.horizon
    return torch.tensor([[*path, a, *[a] * (H - 1 - len(path))] for path in graph.paths for a in range(A)])


def of_edges(values: Tensor, graph: StateGraph) -> Tensor:
    """What was seen at every (state, action): values [B, copies xi A, H, ...] -> [B, copies, xi, A, ...]."""
    B, xi, A = len(values), graph.num_states, graph.num_actions
    values = values.unflatten(1, (-1, xi, A))
    copies = values.shape[1]
    step = graph.layer[:, None, None].expand(xi, A, 1)
    index = step.reshape(1, 1, xi, A, 1, *[1] * (values.ndim - 5)).expand(B, copies, xi, A, 1, *values.shape[5:])
    return values.gather(4, index).squeeze(4)


def run(simulators: Guard, actions: Tensor, generators: Sequence[torch.Generator]) -> Rollouts:
    """Whole episodes along action sequences [n, H], the same ones in every simulator."""
    B, (n, H) = len(simulators), actions.shape
    actions = actions.expand(B, n, H)
    x, xs, rewards = simulators.reset(n, generators), [], []
    for step in range(H):
        xs.append(x)
        following, reward = simulators.step(actions[:, :, step].contiguous())
        rewards.append(reward)
        x = x if following is None else following  # nothing follows the last action
    return Rollouts(torch.stack(xs, 2), actions, torch.stack(rewards, 2))


def same_rows(one: Rollouts, other: Rollouts) -> Tensor:
    """Which simulators [B] show the same readings and rewards in both, up to rounding."""
    x, rewards = (
        torch.isclose(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(a.abs().max())))
        for a, b in ((one.x, other.x), (one.rewards, other.rewards))
    )
    return x.flatten(1).all(1) & rewards.flatten(1).all(1)


def named(ids: Sequence[int], rows: Tensor | Sequence[int], most: int = 4) -> str:
    """The simulators at these positions, by their ids."""
    rows = rows.tolist() if isinstance(rows, Tensor) else list(rows)
    shown = ", ".join(str(ids[row]) for row in rows[:most]) + (
        f" and {len(rows) - most} more" if len(rows) > most else ""
    )
    return f"simulator {shown}" if len(rows) == 1 else f"simulators {shown}"
