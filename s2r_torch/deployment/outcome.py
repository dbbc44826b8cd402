"""What a deployment leaves: a policy for one world, and what must be known before relying on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from s2r_torch.deployment.edges import NO_CHECK, EdgeCheck
from s2r_torch.deployment.likeness import Likeness
from s2r_torch.deployment.policy import Policy
from s2r_torch.deployment.recording.evidence import Finding
from s2r_torch.deployment.stopping import Look
from s2r_torch.given import without

RARELY = 0.01  # a share of episodes that nobody is told of


@without(act="the policy of a deployment, deployed.policy", q="the policy of a deployment, deployed.policy")
@dataclass(frozen=True, eq=False)
class Deployment:
    """A policy for one world, and what it took to get it."""

    policy: Policy
    D_real: Tensor  # [xi, G]
    episodes: int  # real episodes that were looked at, earlier ones included
    used: Tensor  # [xi] readings that each state's density was estimated from
    wanted: Tensor  # [xi] readings of each that the policy was made for
    likeness: Likeness  # is this world like the simulators?
    looks: tuple[Look, ...] = ()  # of a sequential deployment
    findings: tuple[Finding, ...] = ()  # what the readings say of how they were taken
    looked_before: bool = False  # whether an earlier call looked at these episodes sequentially
    edges: EdgeCheck = NO_CHECK  # do edges that the cover leaves out lead where they should?
    astray: float = 0.0  # share of episodes in which the policy leaves the states that were looked at

    @property
    def as_trained(self) -> bool:
        """Whether D_real has the law that certificates and comparisons with simulators assume.

        That is as many readings of every state as n_real episodes along each sequence of the cover show, numbers that
        were fixed before any was seen.
        """
        return not self.looks and not self.looked_before and bool((self.used == self.wanted).all())

    @property
    def notices(self) -> list[str]:
        """What a user must know of this deployment before relying on it."""
        astray = (
            f"in about {self.astray:.0%} of episodes the policy leaves the states that were looked at, by these "
            "readings: what it meets there was not seen"
        )
        found = [finding.text for finding in self.findings]
        return found + self._notices_of_number() + [astray] * (self.astray > RARELY)

    def _notices_of_number(self) -> list[str]:
        short, more = self.used < self.wanted, self.used > self.wanted
        if self.looks:
            return [_sequential_notice(self.looks, int(self.wanted.min()))]
        if self.looked_before:
            return [
                "these episodes were looked at sequentially before, so that their number may depend on what was seen: "
                "the certificate does not cover this"
            ]
        if bool(short.any()):
            worst = int((self.used / self.wanted).argmin())
            noise = math.sqrt(int(self.wanted[worst]) / int(self.used[worst]))
            return [
                f"{int(short.sum())} of {len(self.used)} states have fewer readings than the policy was made for, one "
                f"{int(self.used[worst])} instead of {int(self.wanted[worst])}: there the density's noise is "
                f"{noise:.1f} times as large, and no certificate holds"
            ]
        if bool(more.any()):
            return [
                f"up to {int(self.used.max())} readings per state instead of {span(self.wanted)}: less noise, but "
                "not the deployment that was certified"
            ]
        return []


def span(numbers: Tensor) -> str:
    """The least and the largest in words: "20 to 60", or "20"."""
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


def _sequential_notice(looks: tuple[Look, ...], n_real: int) -> str:
    last = looks[-1]
    if last.enough:
        return (
            f"stopped at {last.n} of {n_real} readings per state: at those seen, no action could lose more than "
            f"{last.loss:.3g} by further looking; the certificate, made with {n_real}, does not cover this"
        )
    return (
        f"looked at all {n_real} readings per state: at {last.n}, an action could still have lost {last.loss:.3g}; "
        "the certificate does not cover a deployment that might have stopped before"
    )
