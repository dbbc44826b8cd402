"""Our own method, after ever more readings of every state: no reward of the real world is seen."""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.assurance.rehearsal import policies_after
from s2r_torch.comparators.contract import UNLABELLED, Access, Attempt, Known, Worlds, register_comparator
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.schema import Settings, Size


@dataclass(frozen=True, eq=False)
class Deploying:
    """Deploy (Algorithm 7) with n episodes along every sequence of the path cover."""

    policy: MetaPolicy
    n: int

    def attempt(self, worlds: Worlds) -> Attempt:
        """Cost: w n episodes per world."""
        (policy,) = policies_after(self.policy, worlds.guard(UNLABELLED), [self.n], worlds.seed.child("ours"))
        return Attempt(policy.act, unlabelled=len(self.policy.cover) * self.n)


@register_comparator("ours")
@dataclass(frozen=True)
class Ours(Settings):
    """Sim2Real (Algorithm 1), then Deploy (Algorithm 7).

    Args:
        n: episodes along every sequence of the path cover; None for the policy's own n_real.
    """

    n: Size | None = None

    label = "ours"
    access = Access(
        looks="yes", simulators="yes, with reward", graph="discovered there", predictors="F trained", memory="none"
    )
    learner = Deploying

    def fit(self, known: Known) -> Deploying:
        """Nothing beyond the policy."""
        return Deploying(known.policy, self.n or known.policy.n_real)
