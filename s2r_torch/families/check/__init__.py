"""Is a family what it says? Simulators that lie are found in seconds, before a run: one table, causes in words.

>>> from s2r_torch.families import make_family
>>> report = check_family(make_family("grid"))
>>> report.refused, report.notes
((), ())
>>> report.require()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from s2r_torch.defaults import plain_torch
from s2r_torch.errors import S2RError, SettingError, SimulatorError
from s2r_torch.families.check.contract import (
    check_float32,
    check_parameters,
    check_prior,
    check_proposals,
    check_simulators,
)
from s2r_torch.families.check.dynamics import check_dynamics
from s2r_torch.families.check.payoff import check_payoff, check_theta
from s2r_torch.families.check.probe import Explore, Probe
from s2r_torch.families.check.randomness import check_rows, check_seeds
from s2r_torch.families.check.readings import check_box, check_buffers, check_independence, check_readings
from s2r_torch.families.check.report import LEVELS, NOTE, OK, REFUSED, Finding, Report
from s2r_torch.families.check.rewards import check_rewards
from s2r_torch.families.check.truth import check_states, check_truth
from s2r_torch.families.check.worlds import check_world
from s2r_torch.families.contract import Family, require_family, users
from s2r_torch.given import taking
from s2r_torch.rng import Seed, kept_globals
from s2r_torch.text import printable

__all__ = ["LEVELS", "NOTE", "OK", "REFUSED", "Finding", "Report", "check_family"]

Check = Callable[[Probe], list[Finding]]


def check_known_states(probe: Probe) -> list[Finding]:
    """`check_states`, where the graph is known or explored."""
    return [] if probe.graph is None else check_states(probe, probe.graph)


FIRST: tuple[tuple[str, Check], ...] = (
    ("name and parameters", check_parameters),
    ("taken from simulation", check_proposals),
    ("prior", check_prior),
    ("simulators", check_simulators),
    ("theta in the environment", check_dynamics),
)
CHECKS: tuple[tuple[str, Check], ...] = (
    ("rewards and whole episodes", check_rewards),
    ("randomness", check_seeds),
    ("one simulator beside others", check_rows),
    ("readings are kept", check_buffers),
    ("readings vary", check_readings),
    ("box of readings", check_box),
    ("distance of readings from 0", check_float32),
    ("fixed start, deterministic dynamics", check_independence),
    ("truth", check_truth),
    ("one state graph for all", check_known_states),
    ("theta matters", check_theta),
    ("what pays shows", check_payoff),
    ("worlds", check_world),
)
FATAL = ("prior", "simulators")  # without these nothing else can be looked at


@taking(only=(str, Collection, None))
@plain_torch()
def check_family(
    family: Family, seed: int = 0, *, explore: Explore | None = None, only: Collection[str] | None = None
) -> Report:
    """Checks a family as far as simulation can, in seconds.

    Args:
        family: what is checked; only its simulators are run, and one world.
        seed: of everything that is drawn.
        explore: (simulators, seed) -> the state graph, for families that do not know it (`runs.checking`); without it
            what needs the graph is not looked at there.
        only: names of `CHECKS` to run, beside the first ones; all by default.

    Returns:
        What was found, line by line; `report.require()` raises where a run would be wrong.

    Cost:
        About 10^5 to 10^6 simulator episodes, 1 to 10 seconds for the families that ship.
    """
    require_family("family", family)
    only = {only} if isinstance(only, str) else only
    unknown = sorted({*(only or ())} - {name for name, _ in (*FIRST, *CHECKS)})
    if unknown:
        known = ", ".join(name for name, _ in CHECKS)
        raise SettingError(expected=f"names of checks: {known}", got=printable(unknown), cause="a typo")
    probe = Probe(family, Seed.root(seed).child("check"), explore)
    findings: list[Finding] = []
    said: set[str] = set()
    with kept_globals():
        for name, check in (*FIRST, *((n, c) for n, c in CHECKS if only is None or n in only)):
            findings += _checked(name, check, probe, said)
            if any(f.level == REFUSED and f.checked in FATAL for f in findings):
                break
        close = getattr(family, "close", None)
        if close:
            with users("close()"):
                close()
    name, ledger = str(getattr(family, "name", type(family).__name__)), probe.ledger
    return Report(name, tuple(findings), ledger.counts.total(), ledger.steps.total())


def _checked(name: str, check: Check, probe: Probe, said: set[str]) -> Sequence[Finding]:
    """What one check found; an error that a check before it met is not said again."""
    try:
        with users(f"the check of {name}", "a fault in the family's own code, or in the check"):
            return check(probe)
    except S2RError as error:
        key = f"{error.cause}"
        if key in said:
            return []
        said.add(key)
        kind = type(error) if isinstance(error, SettingError) else SimulatorError
        return [Finding(name, REFUSED, f"expected {error.expected}; got {error.got}", error.cause, "", kind)]
