r"""Training of one candidate: features by which paths are told apart within every simulator, and which show what pays.

For B simulators, K action paths and r readings at every step, with z = phi(x) standardised:

    paths     cross-entropy of a reading's path under softmax(-|z - c|^2 / 2 T^2), c the mean of other readings of each
              path in the same simulator: where theta moves all readings alike, nothing has to be invariant
    payoff    squared error of a small network that predicts what every action list pays in a simulator from moments of
              its features, step by step: means, spreads and correlations, which densities show
    spread    features of one state keep a spread of LEAST, so that a density grid resolves them

Paths that end in one state cannot be told apart, and cost the same whatever phi is.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from s2r_torch.encoders.contract import rows_alike
from s2r_torch.encoders.views import REPEATS, Seen
from s2r_torch.rng import Seed

REACH = 3.0  # of features, in standard deviations
TEMPERATURE = 0.3  # T, in standard deviations of all features
LEAST = 0.15  # spread of a state's features, in the same unit
SIMULATORS, READINGS = 8, 8  # of one gradient step, and readings of every path
RATE = 3e-3  # at the start; it falls to 0
STRIDE = 4  # every so manieth simulator fixes shift and scale
HEAD = 64  # width of the network that predicts the payoff


class FeatureNet(nn.Module):
    """W c + V net(c), shifted and scaled to mean 0 and variance 1, and bounded softly by REACH.

    Args:
        inputs: numbers of c.
        width: of the two hidden layers.
        dim: d.
    """

    shift: Tensor  # [d]
    scale: Tensor  # [d]

    def __init__(self, inputs: int, width: int, dim: int):
        super().__init__()
        self.linear = nn.Linear(inputs, dim, bias=False)
        layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers)
        self.last = nn.Linear(width, dim, bias=False)
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def forward(self, c: Tensor) -> Tensor:
        return bounded((self.unscaled(c) - self.shift) * self.scale)

    def unscaled(self, c: Tensor) -> Tensor:
        """Features before they are shifted and scaled."""
        return rows_alike(c, self.linear.weight) + rows_alike(self.net(c), self.last.weight)

    def fresh(self, generator: torch.Generator | None) -> FeatureNet:
        """Another one of these sizes: the first inputs as they are, beside a random net; without a generator no net."""
        other = copy.deepcopy(self).requires_grad_(True)
        with torch.no_grad():
            nn.init.eye_(other.linear.weight)
            for layer in (*other.net, other.last):
                if isinstance(layer, nn.Linear):
                    draw = torch.rand(layer.weight.shape, generator=generator) if generator else 0.5
                    layer.weight.copy_((2 * torch.as_tensor(draw) - 1) * layer.in_features**-0.5)
                    if layer.bias is not None:
                        layer.bias.zero_()
        return other

    def seen(self, seen: Seen) -> Seen:
        """The features of inputs [B, n, H, inputs]."""
        with torch.no_grad():
            return replace(seen, z=torch.cat([self(part) for part in seen.z.split(8)]))


def bounded(features: Tensor) -> Tensor:
    """Features in (-REACH, REACH), hardly changed near 0: a grid holds those of all simulators to come."""
    return REACH * (features / REACH).tanh()


def fit_net(net: FeatureNet, seen: Seen, weight: float, steps: int, seed: Seed) -> FeatureNet:
    """Trains a fresh net on the inputs of `seen`; returns it, standardised.

    Args:
        net: as `FeatureNet.fresh` makes it.
        seen: inputs [B, n, H, c] and rewards of training simulators.
        weight: of the payoff.
        steps: gradient steps.
        seed: named stream of the batches.
    """
    lists = Lists.of(seen)
    head = _head(net, seen, lists, seed)
    parameters = [*net.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(parameters, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    z, generator = by_path(seen.z), seed.generator()
    same = same_paths(seen.sequences)
    for _ in range(steps):
        rows = torch.randperm(len(z), generator=generator)[:SIMULATORS]
        readings = torch.randperm(REPEATS, generator=generator)[:READINGS]
        features = net.unscaled(z[rows][:, :, readings])  # [b, K, r, H, d]
        flat = features.detach().flatten(0, 3)
        features = bounded((features - flat.mean(0)) / flat.std(0).clamp(min=1e-6))
        told, spread = path_loss(features, same), spread_loss(features)
        paid = (head(moments(features)) - lists.standard[rows]).square().mean()
        optimiser.zero_grad()
        (told + weight * paid + spread).backward()
        optimiser.step()
        schedule.step()
    return _standardised(net.requires_grad_(False), seen)


@dataclass(frozen=True, eq=False)
class Lists:
    """What every different action list paid.

    Args:
        mean: `[B, U]` mean total reward of every list in every simulator.
        standard: the same with mean 0 and variance 1 over simulators; 0 where a list pays the same everywhere.
    """

    mean: Tensor  # [B, U]
    standard: Tensor  # [B, U]

    @staticmethod
    def of(seen: Seen) -> Lists:
        _, which, counts = seen.sequences.unique(dim=0, return_inverse=True, return_counts=True)
        total = seen.rewards.sum(-1)
        mean = total.new_zeros(len(total), len(counts)).index_add_(1, which, total) / counts
        spread = mean.std(0)
        standard = torch.where(spread > 1e-9, (mean - mean.mean(0)) / spread.clamp(min=1e-9), 0.0)
        return Lists(mean, standard.float())


def by_path(z: Tensor) -> Tensor:
    """[B, n, H, ...] -> [B, K, REPEATS, H, ...]: episodes of one path stand together."""
    return z.unflatten(1, (-1, REPEATS))


def same_paths(sequences: Tensor) -> Tensor:
    """Which of K paths are the same up to every step: `[H, K, K]` bool."""
    paths = sequences[::REPEATS]
    steps = range(sequences.shape[1])
    return torch.stack([(paths[:, None, :h] == paths[None, :, :h]).all(-1) for h in steps])


def path_loss(features: Tensor, same: Tensor) -> Tensor:
    """Cross-entropy of paths, by the distance to the means of the other half of the readings [b, K, r, H, d]."""
    half = features.shape[2] // 2
    centres = features[:, :, :half].mean(2).transpose(1, 2)  # [b, H, K, d]
    query = features[:, :, half:].permute(0, 3, 1, 2, 4)  # [b, H, K, r, d]
    logits = -(query[..., None, :] - centres[:, :, None, None]).square().sum(-1) / (2 * TEMPERATURE**2)
    right = logits.masked_fill(~same[None, :, :, None], -torch.inf).logsumexp(-1)
    return (logits.logsumexp(-1) - right).mean()


def moments(features: Tensor) -> Tensor:
    """Statistics [b, p] of a simulator's features [b, K, r, H, d], step by step: what densities show of theta."""
    d, mean = features.shape[-1], features.mean(2, keepdim=True)
    centred = features - mean
    covariance = torch.einsum("bkrhi,bkrhj->bhij", centred, centred) / (centred.shape[1] * (centred.shape[2] - 1))
    spread = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-8).sqrt()
    i, j = torch.triu_indices(d, d, 1)
    correlation = covariance[..., i, j] / (spread[..., i] * spread[..., j])
    return torch.cat([mean.mean((1, 2)), spread.log(), correlation], -1).flatten(1)


def spread_loss(features: Tensor) -> Tensor:
    """A price of features [b, K, r, H, d] that a path's readings hardly spread over."""
    spread = features.var(2).mean((0, 1)).clamp(min=1e-12).sqrt()  # [H, d]
    return (LEAST / spread).log().clamp(min=0).square().mean()


def _head(net: FeatureNet, seen: Seen, lists: Lists, seed: Seed) -> nn.Module:
    """What predicts the payoff of every list from moments."""
    H, d = seen.z.shape[2], len(net.shift)
    inputs = H * (2 * d + d * (d - 1) // 2)
    with seed.child("head").as_global(torch.device("cpu")):
        return nn.Sequential(nn.Linear(inputs, HEAD), nn.ReLU(), nn.Linear(HEAD, lists.mean.shape[1]))


def _standardised(net: FeatureNet, seen: Seen) -> FeatureNet:
    """The net with its shift and scale as its features on some simulators ask for."""
    with torch.no_grad():
        flat = net.unscaled(seen.z[::STRIDE]).flatten(0, 2)
        net.shift.copy_(flat.mean(0))
        net.scale.copy_(1 / flat.std(0).clamp(min=1e-6))
    return net.eval()
