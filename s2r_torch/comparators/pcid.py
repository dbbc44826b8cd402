r"""PCID (Du et al. 2019) in the real world, with reward: learns what the states are, layer by layer, then plans.

    for h = 1 .. H-1:  n episodes: follow the policy to a decoded state of layer h - 1, then act at random
        regress the label (state, action) of layer h - 1 on x_h by least squares:  g(x) ~ backward probabilities
        cluster g(x_h): clusters are the decoded states of layer h;  policies to them by dynamic programming on counts
    plan on all episodes' counts and rewards r(s, a)

Paper deviation:
    Scheme of the released code. k-means with the most clusters, at most S, that all have half of the readings of a
    state that a single label leads to (30 there; a threshold in the paper). Rewards belong to (decoded state, action),
    not to the next decoded state. Features are quadratic. Where supports of states overlap (mixture) this is no block
    MDP and nothing is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.cluster import vq
from torch import Tensor

from s2r_torch.comparators.contract import Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.episodes import Act, Guard, Rollouts, rollout
from s2r_torch.rng import Seed
from s2r_torch.schema import Settings, Size

FEWEST = 3  # readings in a cluster


@dataclass(frozen=True, eq=False)
class Decoder:
    """x -> decoded state of one layer."""

    centre: Tensor  # [d] of the readings it was made from
    scale: Tensor  # [d]
    weights: Tensor  # [features, labels]
    clusters: Tensor  # [k, labels]

    @staticmethod
    def fit(x: Tensor, labels: Tensor, num_labels: int, most: int) -> Decoder:
        """From readings x [n, d] with labels [n] of the layer above; at most `most` states."""
        centre, scale = x.mean(0), x.std(0).clamp(min=1e-9)
        features = _quadratic((x - centre) / scale)
        wanted = torch.nn.functional.one_hot(labels, num_labels).double()
        weights = torch.linalg.lstsq(features, wanted, driver="gelsd").solution
        return Decoder(centre, scale, weights, _clusters(features @ weights, most, len(x) / (2 * num_labels)))

    def __call__(self, x: Tensor) -> Tensor:
        """States [...] of readings [..., d]."""
        g = _quadratic((x - self.centre) / self.scale) @ self.weights
        return (g[..., None, :] - self.clusters).square().sum(-1).argmin(-1)

    @property
    def size(self) -> int:
        return len(self.clusters)


@dataclass(frozen=True, eq=False)
class Start:
    """The one state of layer 0."""

    size = 1

    def __call__(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[:-1], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class PCIDLearner:
    """PCID in every world by itself."""

    most_states: int
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: (H - 1) n episodes per world."""
        seed = worlds.seed.child("pcid", self.n)
        return worlds.one_by_one(lambda world: (self._learn(world, seed), True))

    def _learn(self, world: Guard, seed: Seed) -> Act:
        decoders: list = [Start()]
        logged: list[Rollouts] = []
        A, H = world.spec.num_actions, world.spec.horizon
        for step in range(1, H):
            seen = explore_layer(world, decoders, logged, self.n, seed.child(step))
            labels = decoders[-1](seen.x[0, :, step - 1]) * A + seen.actions[0, :, step - 1]
            decoders.append(Decoder.fit(seen.x[0, :, step], labels, decoders[-1].size * A, self.most_states))
            logged.append(seen)
        tables = plan([counted(decoders, logged, A, step) for step in range(H)])
        return lambda step, x: tables[step][decoders[step](x)]


def explore_layer(world: Guard, decoders: Sequence, logged: Sequence[Rollouts], n: int, seed: Seed) -> Rollouts:
    """n episodes to the states of the deepest decoded layer, evenly; from there on actions are uniform."""
    deepest, A = len(decoders) - 1, world.spec.num_actions
    model = [counted(decoders, logged, A, step) for step in range(deepest)]
    tables = [plan(model, goal) for goal in torch.eye(decoders[deepest].size, dtype=torch.float64)]
    generator = seed.child("actions", *world.ids).generator()
    target = torch.randint(len(tables), (n,), generator=generator)

    def act(step: int, x: Tensor) -> Tensor:
        if step >= deepest:
            return torch.randint(A, x.shape[:2], generator=generator)
        table = torch.stack([tables[goal][step] for goal in range(len(tables))])  # [goals, states]
        return table[target, decoders[step](x)]

    return rollout(world, act, n, seed)


def plan(model: Sequence[tuple[Tensor, Tensor]], worth: Tensor | None = None) -> list[Tensor]:
    """The best actions, one [states] per decoded layer, by dynamic programming on counts.

    Args:
        model: rewards [k, A] and moves [k, A, k'] of layers, from the first one on (`counted`).
        worth: `[k']` what the states after these layers are worth, instead of all rewards before; None for rewards.
    """
    following = torch.zeros(1, dtype=torch.float64) if worth is None else worth
    tables: list[Tensor] = []
    for rewards, moves in reversed(model):
        Q = moves @ following + (rewards if worth is None else 0.0)
        tables.append(Q.argmax(-1))
        following = Q.amax(-1)
    return tables[::-1]


def counted(decoders: Sequence, logged: Sequence[Rollouts], num_actions: int, step: int) -> tuple[Tensor, Tensor]:
    """Mean rewards [k, A] of a layer's decoded states, and how often [k, A, k'] each leads where."""
    now = decoders[step]
    after = decoders[step + 1] if step + 1 < len(decoders) else Start()
    total, moved = torch.zeros(now.size, num_actions), torch.zeros(now.size, num_actions, after.size)
    total, moved = total.double(), moved.double()
    for seen in logged:
        place = (now(seen.x[0, :, step]), seen.actions[0, :, step])
        total.index_put_(place, seen.rewards[0, :, step], accumulate=True)
        where = after(seen.x[0, :, step + 1]) if step + 1 < seen.x.shape[2] else torch.zeros_like(place[0])
        moved.index_put_((*place, where), torch.ones(len(where), dtype=torch.float64), accumulate=True)
    count = moved.sum(-1).clamp(min=1)
    return total / count, moved / count[..., None]


def _quadratic(x: Tensor) -> Tensor:
    """1, x_i and x_i x_j of x [..., d]."""
    rows, columns = torch.triu_indices(x.shape[-1], x.shape[-1])
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., rows] * x[..., columns]], -1)


def _clusters(g: Tensor, most: int, enough: float) -> Tensor:
    """The centres of as many clusters, at most `most`, as all have enough points; started from points far apart."""
    for k in range(min(most, len(g)), 1, -1):
        starts = [int((g - g.mean(0)).square().sum(-1).argmax())]
        while len(starts) < k:
            starts.append(int(torch.cdist(g, g[starts]).amin(1).argmax()))
        try:
            centres, members = vq.kmeans2(g.numpy(), g[starts].numpy(), minit="matrix", iter=50, missing="raise")
        except vq.ClusterError:
            continue
        if torch.bincount(torch.from_numpy(members).long(), minlength=k).min() >= max(FEWEST, enough):
            return torch.from_numpy(centres)
    return g.mean(0, keepdim=True)


@register_comparator("pcid")
@dataclass(frozen=True)
class PCID(Settings):
    """PCID, with the number of states per layer known.

    Args:
        n: episodes per layer, its one knob.
    """

    n: Size = 100

    label = "PCID (Du 2019)"
    access = Access(reward="yes", graph="learnt", predictors="decoders")
    learner = PCIDLearner

    def fit(self, known: Known) -> PCIDLearner:
        """No episodes, and nothing from simulators."""
        return PCIDLearner(known.problem.spec.max_states_per_layer, self.n)
