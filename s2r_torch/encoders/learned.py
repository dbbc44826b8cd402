"""A small network phi: R^D -> R^d that tells action paths apart in every simulator and keeps what predicts the payoff.

    phi(x) = W c(x) + net(c(x)), bounded softly,    c(x) principal components of x

Several candidates are trained (`fitting.py`) on half of the encoder's simulators; on the other half the one is chosen
that tells states apart and whose densities predict best what pays (`choosing.py`). Principal components alone are a
candidate, too, which costs nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.encoders.choosing import best_of, judge, sentences
from s2r_torch.encoders.fitting import FeatureNet, fit_net
from s2r_torch.encoders.pca import Components
from s2r_torch.encoders.views import Views
from s2r_torch.rng import Seed
from s2r_torch.schema import Count, Positive, Size


class Learned(Components):
    """A trained encoder.

    Args:
        obs_dim: D.
        dim: d, how many features.
        width: of the two hidden layers.
        inputs: how many principal components of a reading the network sees; all, if there are fewer.
        payoff: what predicting the payoff weighs beside telling paths apart; one candidate for each.
        steps: gradient steps of every candidate.
        see: how many principal components predictors see beside the features; at most `inputs`.

    Raises:
        SettingError: more features than inputs.
    """

    def __init__(
        self,
        obs_dim: int,
        dim: Size = 2,
        width: Size = 48,
        inputs: Size = 32,
        payoff: tuple[Positive, ...] = (0.3, 1.0),
        steps: Size = 300,
        see: Count = 0,
    ):
        super().__init__(obs_dim, inputs, dim)
        self.payoff, self.steps = payoff, steps
        self.beside = min(see, len(self.components))
        self.net = FeatureNet(len(self.components), width, dim)

    def forward(self, x: Tensor) -> Tensor:
        c = self.projected(x)
        return torch.cat([self.net(c), c[:, : self.beside]], 1) if self.beside else self.net(c)

    def fit(self, views: Views, seed: Seed) -> tuple[str, ...]:
        """Trains the candidates, and takes the best one."""
        self.take(views.pilot)
        seen = views.through(lambda x: self.projected(x.float()))
        half = len(seen.z) // 2
        train, held_out = seen.select(slice(0, half)), seen.select(slice(half, None))
        nets = [self.net.fresh(None)]
        for i, weight in enumerate(self.payoff):
            one = seed.child("candidate", i)
            nets.append(fit_net(self.net.fresh(one.generator()), train, weight, self.steps, one.child("batches")))
        judged = [judge(net.seen(held_out)) for net in nets]
        best = best_of(judged)
        self.net.load_state_dict(nets[best].state_dict())
        names = ["principal components", *(f"payoff weight {weight:g}" for weight in self.payoff)]
        return sentences(names, judged, best)
