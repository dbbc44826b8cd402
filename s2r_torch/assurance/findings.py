r"""What diagnosis says: verdicts that follow from rules, with the limits of `DiagnosticSettings`.

         violated             doubtful                 says nothing                    plausible
    A1   a real difference    a real one, below that   none is seen, but one of        else
    A2   above `tolerance`                             `resolution` could be missed
    A3   order <=             order < `least_share`    no bandwidth stands out         else
         `least_order`        of the kernel's          of the noise
    A4   no finite bound                               certified movement is 1, all    else
                                                       that a value can move, or more
    A5   distance <= noise    distance below                                           else
                              `least_separation` noises

A difference is real if Student's p, times the number of states or pairs that are compared, is at most `level`: where
no assumption fails, a run says so of A1, and of A2, with at most that probability. It could be missed if the upper end
of its one-sided 95 % interval is above `resolution`. `diagnostics.py` says what the assumptions are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from s2r_torch.schema import Drawable, Positive, Settings, Several, Share, Size

PLAUSIBLE, DOUBTFUL, VIOLATED, SILENT = "plausible", "doubtful", "violated", "says nothing"


@dataclass(frozen=True)
class DiagnosticSettings(Settings):
    """Sizes and limits of the checks.

    Args:
        simulators: drawn to check Assumptions 1-5; 0 skips the checks.
        n: transitions per state and simulator (A1, A2).
        n_rough: observations per state on each of `few` simulators (A3); 20,000 and more for a verdict in two
            dimensions.
        few: how many simulators A3 looks at.
        reach: how near two readings must be to count as the same, in bandwidths (A1, A2).
        tolerance: root mean square difference, in units of total reward, above which a real one violates A1 or A2.
        resolution: root mean square difference that must be excluded, at 95 %, for `plausible` (A1, A2).
        level: chance of taking a difference for real where there is none, over all states (A1, A2).
        least_order: order of smoothness up to which A3 is violated (it asks for more than 1).
        least_share: of the kernel's order below which A3 is doubtful. Bandwidths are finite, so that densities smooth
            of order 2 look like 1.4 to 1.6.
        least_separation: distance of two states in units of noise below which A5 is doubtful.

    Raises:
        SettingError: a size or limit out of range.
    """

    simulators: Several = 8
    n: Annotated[int, Drawable(20)] = 1000
    n_rough: Annotated[int, Drawable(2)] = 5000
    few: Size = 4
    reach: Positive = 0.5
    tolerance: Positive = 0.03
    resolution: Positive = 0.1
    level: Share = 0.01
    least_order: Positive = 1.0
    least_share: Positive = 0.65
    least_separation: Positive = 3.0


@dataclass(frozen=True)
class Finding:
    """What was found about one assumption."""

    assumption: str  # A1 .. A5
    verdict: str  # plausible, doubtful, violated or says nothing
    text: str  # with the numbers, for people
    numbers: dict[str, float]  # the same, for machines: those that are finite

    def __post_init__(self):
        finite = {name: value for name, value in self.numbers.items() if math.isfinite(value)}
        object.__setattr__(self, "numbers", finite)


@dataclass(frozen=True)
class Diagnosis:
    """One finding per assumption, in order."""

    findings: tuple[Finding, ...]

    def __getitem__(self, assumption: str) -> Finding:
        return next(f for f in self.findings if f.assumption == assumption)

    def lines(self) -> list[str]:
        """One line of text per assumption."""
        return [f"{f.assumption} {f.verdict}: {f.text}" for f in self.findings]
