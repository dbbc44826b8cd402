"""Worlds without rewards against simulators of the same theta; and what holds a machine must be able to close it."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.arrays import check_shape
from s2r_torch.base import UnlabelledWorld
from s2r_torch.errors import ObservationError
from s2r_torch.families.check.probe import Probe, run
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.check.truth import ks_p_values
from s2r_torch.families.contract import users

EPISODES, COMPARED = 32, 800
SURELY = 1e-8


def check_world(probe: Probe) -> list[Finding]:
    """A world shows what a simulator of its theta shows, and has no reward."""
    checked, family, theta = "worlds", probe.family, probe.theta[0]
    with users("world(theta, generator)"):
        world = family.world(theta, probe.seed.child("world").generator())
    findings = []
    try:
        for number, path in enumerate(probe.random_lists("world", 4)):
            x = _shown(world, path, probe.spec.obs_dim)
            simulated = run(
                probe.simulators(theta[None]), path.expand(COMPARED, -1), probe.generators([0], "world", number)
            ).x[0]
            p = ks_p_values(x, simulated.transpose(0, 1))  # [H]
            if float(p.min()) < SURELY:
                h = int(p.argmin())
                found = (
                    f"after actions {tuple(path[:h].tolist())} it shows other readings than a simulator of its theta"
                )
                cause = "world(theta, generator) and simulators(theta, ids) are two sensors"
                findings.append(Finding(checked, REFUSED, found, cause, "one sensor for both"))
                break
        findings += _closes(world)
    finally:
        getattr(world, "close", lambda: None)()
    return findings or [Finding(checked, OK, "show what simulators of their theta show; no reward")]


def _shown(world: UnlabelledWorld, path: Tensor, d: int) -> Tensor:
    """Readings [H, n, d] along an action list [H].

    Raises:
        ObservationError: readings of another shape or kind, or not finite.
    """
    with users("reset and step of a world"):
        x = [world.reset(EPISODES).clone()]
        for a in path[:-1].tolist():
            x.append(world.step(torch.full((EPISODES,), a, dtype=torch.int64)).clone())
    for reading in x:
        if not (isinstance(reading, Tensor) and reading.is_floating_point() and bool(torch.isfinite(reading).all())):
            raise ObservationError(
                expected="finite readings as a float tensor", got=type(reading).__name__, cause="the sensor of a world"
            )
        check_shape("readings", reading, (EPISODES, d), "a world whose reset or step returns more than readings")
    return torch.stack(x)


def _closes(world: object) -> list[Finding]:
    """Whether a world that holds something that can be closed can be closed itself."""
    if callable(getattr(world, "close", None)):
        return []
    held = (
        [v for v in vars(world).values() if callable(getattr(v, "close", None))] if hasattr(world, "__dict__") else []
    )
    if not held:
        return []
    found = f"holds a {type(held[0]).__name__}, which has close(), and has no close() itself"
    return [Finding("worlds", NOTE, found, "motors stay on and files open after an error", "def close(self): ...")]
