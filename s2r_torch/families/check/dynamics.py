"""What theta does to an environment that is replayed: whether it arrives, and whether all theta share the dynamics."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from s2r_torch.families.check.probe import Probe
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.replay.determinism import plain_traces
from s2r_torch.families.replay.family import ReplayFamily
from s2r_torch.families.replay.sameness import same

COMPARED = 8


def check_dynamics(probe: Probe) -> list[Finding]:
    """Of a family that replays: numbers that theta sets on an environment change what it does."""
    family, checked = probe.family, "theta in the environment"
    if not isinstance(family, ReplayFamily):
        return []
    dynamics, horizon, A = family.dynamics, family.horizon, family.spec.num_actions
    set_ = _set_by(family, probe.theta[:COMPARED])
    findings = []
    if "reset_seed" in family.proposed:
        found = family.proposed["reset_seed"]
        findings.append(
            Finding(checked, NOTE, found, "reality has no seed", "a fixed start, by reset_options or in make")
        )
    if not set_:
        return findings or [Finding(checked, OK, "theta is not handed to it: it decides readings and payoffs")]
    traces = [plain_traces(dynamics, theta, A, horizon) for theta in probe.theta[:COMPARED]]
    acts = any(
        not same(
            [(s.observation, s.reward, s.ended) for t in one for s in t],
            [(s.observation, s.reward, s.ended) for t in traces[0] for s in t],
        )
        for one in traces[1:]
    )
    if acts:
        return [
            *findings,
            Finding(checked, OK, f"it arrives ({', '.join(set_)}), and changes what the environment does"),
        ]
    wrapper = any("wrapper" in name for name in set_)
    found = f"theta sets {', '.join(set_)}, and all theta act alike on {len(traces[0])} paths"
    cause = "attributes of a wrapper are not seen inside" if wrapper else "the environment does not use them"
    write = "set it on env.unwrapped, or hand it to the constructor"
    return [*findings, Finding(checked, REFUSED if wrapper else NOTE, found, cause, write)]


def _set_by(family: ReplayFamily, theta: Tensor) -> list[str]:
    """The attributes, by name, in which the environments of two theta differ."""
    one, other = (family.episode(row).source for row in (theta[0], theta[-1]))
    if not hasattr(one, "unwrapped"):
        return []
    found = []
    try:
        for layer, twin in zip(_layers(one), _layers(other), strict=False):
            kind = "the wrapper " if layer is not one.unwrapped else ""
            for name, value in vars(layer).items():
                if _plain(value) and not same(value, vars(twin).get(name)):
                    found.append(f"{name} of {kind}{type(layer).__name__}")
    finally:
        one.close()
        other.close()
    return found


def _layers(env) -> list:
    """An environment's wrappers, outermost first, and what they wrap."""
    found = [env]
    while found[-1] is not env.unwrapped:
        found.append(found[-1].env)
    return found


def _plain(value: object) -> bool:
    """Whether a value is a number, or numbers."""
    kinds = int | float | np.ndarray | np.generic | Tensor | tuple | list
    return isinstance(value, kinds) and not isinstance(value, bool)
