"""A family seen through a frozen encoder: the same environments, with phi(X) in place of every reading X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from s2r_torch.base import Simulators, UnlabelledWorld
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.families.contract import Family, GroundTruth, KnowsGraph
from s2r_torch.graph import StateGraph

AT_ONCE = 2**22  # raw numbers of a ground truth that are held at once
IN_CACHE = 2**20  # raw numbers of simulators that are held at once: 4 MiB


class EncodedFamily:
    """A family (`contract.Family`) whose readings go through phi; name and parameters are those of the inner one.

    Args:
        inner: any family.
        phi: a frozen encoder of its readings.
    """

    def __init__(self, inner: Family, phi: Encoding):
        self.inner, self.phi, self.spec = inner, phi, phi.spec
        self.name = inner.name
        self.theta_names = getattr(inner, "theta_names", ())
        box = ", ".join(
            f"{name} in {low:.3g} .. {high:.3g}"
            for name, low, high in zip(phi.spec.obs_names, phi.spec.low, phi.spec.high, strict=True)
        )
        self.proposed = {**getattr(inner, "proposed", {}), "features": f"{box}, of encoder={phi.name}"}

    def prior(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws theta [n, k]; consumes the generator."""
        return self.inner.prior(n, generator)

    def simulators(self, theta: Tensor, ids: Sequence[int]) -> EncodedSimulators:
        """The inner family's simulators, seen through phi."""
        return EncodedSimulators(self.inner.simulators(theta, ids), self.phi)

    def trust(self, theta: Tensor) -> None:
        """Lets the inner family rely on theta [B, k], where it checks any."""
        getattr(self.inner, "trust", lambda theta: None)(theta)

    def world(self, theta: Tensor, generator: torch.Generator) -> EncodedWorld:
        """The inner family's world, seen through phi."""
        return EncodedWorld(self.inner.world(theta, generator), self.phi)

    def truth(self, theta: Tensor) -> GroundTruth | None:
        """The inner truth, every quadrature point seen through phi; a few theta at a time, since points are large."""
        one = self.inner.truth(theta[:1])
        if one is None:
            return None
        if hasattr(self.inner, "trust"):
            self.inner.simulators(theta, range(len(theta)))  # checks all theta as one, in place of every part of them
        count = max(1, AT_ONCE // one.x.numel())
        parts = [self._seen(self.inner.truth(rows)) for rows in theta.split(count)]
        return GroundTruth(one.graph, *(torch.cat(part) for part in zip(*parts, strict=True)))

    def known_graph(self) -> StateGraph | None:
        """The inner family's state graph, where it is known."""
        return self.inner.known_graph() if isinstance(self.inner, KnowsGraph) else None

    def mean_rewards(self, theta: Tensor) -> Tensor:
        """Mean rewards [B, xi, A] of `known_graph`."""
        assert isinstance(self.inner, KnowsGraph)
        return self.inner.mean_rewards(theta)

    def parameters(self) -> dict:
        """Keyword arguments that rebuild the inner family."""
        return self.inner.parameters()

    def close(self) -> None:
        """Closes the inner family, where it can be."""
        getattr(self.inner, "close", lambda: None)()

    def _seen(self, truth: GroundTruth | None) -> tuple[Tensor, Tensor, Tensor]:
        assert truth is not None
        return self.phi(truth.x), truth.weight, truth.reward


class EncodedSimulators:
    """Simulators (`base.Simulators`) seen through phi, a few at a time: raw readings are large, and go out of cache.

    Args:
        inner: B simulators.
        phi: a frozen encoder of their readings.
    """

    def __init__(self, inner: Simulators, phi: Encoding):
        self.inner, self.phi, self.spec, self.ids = inner, phi, phi.spec, tuple(inner.ids)
        self._parts: list[Simulators] = []  # those of the running episodes, in order

    def reset(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        count = max(1, IN_CACHE // (n * self.phi.raw.obs_dim))
        if count >= len(self.ids):
            self._parts = [self.inner]
        else:
            rows = torch.arange(len(self.ids)).split(count)
            self._parts = [self.inner.select(some.tolist()) for some in rows]
        return torch.cat([self.phi(p.reset(n, of)) for p, of in zip(self._parts, self._split(generators), strict=True)])

    def step(self, actions: Tensor) -> tuple[Tensor | None, Tensor]:
        seen, rewards = [], []
        for part, taken in zip(self._parts or [self.inner], self._split(actions), strict=True):
            x, reward = part.step(taken)
            seen += [] if x is None else [self.phi(x)]
            rewards.append(reward)
        return torch.cat(seen) if seen else None, torch.cat(rewards)

    def select(self, indices: Sequence[int]) -> EncodedSimulators:
        return EncodedSimulators(self.inner.select(indices), self.phi)

    def close(self) -> None:
        getattr(self.inner, "close", lambda: None)()

    def _split(self, rows: Any) -> list[Any]:
        """What is given for every simulator, part by part."""
        count = len(self._parts[0].ids) if self._parts else len(self.ids)
        return [rows[i : i + count] for i in range(0, len(self.ids), count)]


class EncodedWorld:
    """A world (`base.UnlabelledWorld`) seen through phi."""

    def __init__(self, inner: UnlabelledWorld, phi: Encoding):
        self.inner, self.phi, self.spec = inner, phi, phi.spec

    def reset(self, n: int) -> Tensor:
        return self.phi(self.inner.reset(n))

    def step(self, actions: Tensor) -> Tensor:
        return self.phi(self.inner.step(actions))

    def close(self) -> None:
        getattr(self.inner, "close", lambda: None)()


def placed_alone(family: Family) -> Family:
    """The family with readings that hold nothing beside what densities live on."""
    if not isinstance(family, EncodedFamily):
        return family
    return EncodedFamily(family.inner, replace(family.phi, spec=replace(family.spec, beside=0)))


def unencoded(family: Family) -> Family:
    """The family behind an encoder; any other one as it is."""
    return family.inner if isinstance(family, EncodedFamily) else family
