"""What rehearsed policies are worth, as a certificate counts it: by episodes, or exactly; and what is done in worlds
that are refused."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.comparators.policies import follow
from s2r_torch.episodes import Act, Guard, rollout
from s2r_torch.errors import SettingError
from s2r_torch.families import exact
from s2r_torch.families.contract import Family, GroundTruth
from s2r_torch.graph import Path
from s2r_torch.rng import Seed
from s2r_torch.runs.settings import RunSettings


def require_exact_values(settings: RunSettings, family: Family) -> None:
    """Raises SettingError where a certificate is to rest on exact values that the family does not know."""
    if settings.certificate.values != "exact" or not settings.certificate.simulators:
        return
    if family.truth(family.prior(1, torch.Generator().manual_seed(0))) is None:
        raise SettingError(
            expected="a family that knows its ground truth, for certificate.values=exact",
            got=family.name,
            cause="dynamics that theta changes, or a sensor without quadrature; leave certificate.values=episodes",
        )


def exact_values(truth: GroundTruth | None, act: Act) -> Tensor | None:
    """What a policy is worth in the simulators of a ground truth, [M] in [0, 1]; None without one."""
    return None if truth is None else exact.policy_values(truth, act)[:, 0].clamp(0, 1)  # rounding


def refused_values(
    fallback: Path | None, truth: GroundTruth | None, simulators: Guard, n_rollouts: int, seed: Seed
) -> Tensor | float:
    """What M simulators earn, [M], if they are refused: 0, or what a fixed list of actions does.

    Cost:
        n_rollouts episodes per simulator for a list, where there is no ground truth.
    """
    if fallback is None:
        return 0.0
    if truth is not None:
        return exact.policy_values(truth, follow(fallback))[:, 0].clamp(0, 1)
    return rollout(simulators, follow(fallback), n_rollouts, seed).returns.mean(1)
