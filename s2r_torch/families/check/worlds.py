"""Worlds without rewards against simulators of the same theta; and what holds a machine must be able to close it."""

from __future__ import annotations

import torch

from s2r_torch.episodes import GuardedWorld
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
        inner = family.world(theta, probe.seed.child("world").generator())
    world, findings = GuardedWorld(inner, probe.ledger, "check"), []
    try:
        for number, path in enumerate(probe.random_lists("world", 4)):
            x = [world.reset(EPISODES)]
            for a in path[:-1].tolist():
                x.append(world.step(torch.full((EPISODES,), a, dtype=torch.int64)))
            simulated = run(
                probe.simulators(theta[None]), path.expand(COMPARED, -1), probe.generators([0], "world", number)
            ).x[0]
            p = ks_p_values(torch.stack(x), simulated.transpose(0, 1))  # [H]
            if float(p.min()) < SURELY:
                h = int(p.argmin())
                found = (
                    f"after actions {tuple(path[:h].tolist())} it shows other readings than a simulator of its theta"
                )
                cause = "world(theta, generator) and simulators(theta, ids) are two sensors"
                findings.append(Finding(checked, REFUSED, found, cause, "one sensor for both"))
                break
        findings += _closes(inner)
    finally:
        getattr(inner, "close", lambda: None)()
    return findings or [Finding(checked, OK, "show what simulators of their theta show; no reward")]


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
