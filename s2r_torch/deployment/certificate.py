"""What is promised of a policy, as a record that travels in its file and as one page of text."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Gap:
    """Upper bounds on how far the deployed policy is below the best possible one, on average over worlds.

    All three hold together with probability at least 1 - delta, beside the probability that f* survived.
    """

    performance_difference: float
    paired: float
    upper_minus_lower: float
    density_error: float  # phi_T
    density_error_kind: str  # "given", or "measured": a heuristic
    survivors: int  # over which the maximum was taken
    realizable: bool  # whether the class holds f* by construction
    pruned: bool  # whether policies that leave the states that are looked at were left out

    @property
    def least(self) -> float:
        """The smallest of the three bounds; they hold together."""
        return min(self.performance_difference, self.paired, self.upper_minus_lower)

    @property
    def contradicted(self) -> bool:
        """Whether the bounds are impossible: nobody earns less than nothing more, so an assumption must be wrong."""
        return self.least < 0

    @property
    def proved(self) -> bool:
        """Whether nothing in the bounds was measured or is known to be wrong."""
        return self.realizable and self.density_error_kind == "given"


@dataclass(frozen=True)
class Refusals:
    """How often a world that is drawn like the simulators is refused all the same."""

    scores: int  # of fresh simulators that worlds are ranked among
    rate: float  # on average over files
    low: float  # the rate of this file lies in low .. high, with confidence 95 %
    high: float


@dataclass(frozen=True)
class Certificate:
    """Promises on a policy; every one holds with probability at least 1 - delta over the M draws, by itself."""

    simulators: int  # M
    n_rollouts: int  # k
    n_real: int  # of the deploy procedure that was rehearsed
    sequences: int  # likewise
    delta: float
    bound: str
    value_mean: float
    value_lower: float
    share: float
    share_value: float  # that share of worlds is worth at least this; 0 says nothing
    gap: Gap
    used_mean: float  # as value_mean, but a world that is refused earns refused_value
    used_lower: float
    refused: int  # of the M simulators
    refused_value: float  # what a refused world earns, on average
    refusals: Refusals | None  # None where worlds are never refused

    def page(self) -> str:
        """One page of text: what is promised, with which confidence, under which assumptions, and what is not."""
        return _page(self)

    def to_json(self) -> dict:
        """Numbers and strings only; the inverse of `from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict) -> Certificate:
        """Raises TypeError for fields of another version."""
        refusals = values["refusals"] and Refusals(**values["refusals"])
        return Certificate(**{**values, "gap": Gap(**values["gap"]), "refusals": refusals})


PROMISES = 4  # each spends delta
LIST = ", what the best fixed list of actions earns on average"


def _page(c: Certificate) -> str:
    together = max(0.0, 1 - PROMISES * c.delta)
    lines = [
        f"CERTIFICATE, from {c.simulators} fresh simulators",
        "",
        f"Each numbered line holds with confidence {1 - c.delta:.0%} by itself; all {PROMISES} together with at least "
        f"{together:.0%}.",
        "",
        "Promised, assuming only that the world's hidden parameters are drawn like the simulators':",
        *_used(c),
        f"  2. Made to act in all such worlds, it earns at least {c.value_lower:.3f} per episode on average.",
        f"     (Measured: {c.value_mean:.3f}; bound: {c.bound}.)",
    ]
    if c.share_value > 0:
        lines.append(f"  3. At least {c.share:.0%} of such worlds are worth {c.share_value:.3f} or more.")
    else:
        lines.append(
            f"  3. Nothing on single worlds: {c.simulators} simulators are too few for {c.share:.0%} of worlds."
        )
    lines += [
        f"  All hold for this file as it is: {c.sequences} action sequences, {c.n_real} episodes each, then act.",
        "",
        *_gap(c.gap),
        "",
        "Not promised:",
        "  - What the policy earns in this one world: a world can be worse than the average.",
        "  - Anything in a world unlike the simulators. Read the verdict on the world first.",
        "  - Anything once policy, sensors, action sequences or numbers of episodes are changed, or if this policy was",
        "    picked among several by these very numbers.",
    ]
    return "\n".join(lines)


def _used(c: Certificate) -> list[str]:
    """The promise on the procedure as it is used."""
    if c.refusals is None:
        why = "worlds are never refused: too few simulators were only looked at"
        return [f"  1. As used, the same as 2 ({why})."]
    found = f"(Measured: {c.used_mean:.3f}; {c.refused} of {c.simulators} were refused.)"
    rate = c.refusals
    here = f"{rate.low:.1%} to {rate.high:.1%} by this one"
    return [
        f"  1. As used, it earns at least {c.used_lower:.3f} per episode on average, of at most 1, where a world that",
        f"     is refused counts as {c.refused_value:.3f}{LIST if c.refused_value else ''}. {found}",
        f"     Of such worlds {rate.rate:.1%} are refused on average over files, {here}.",
    ]


def _gap(gap: Gap) -> list[str]:
    """What may be said of policies that would be better."""
    exact = f"that {_survivors(gap.survivors)} exact (A2)"
    if gap.contradicted:
        return [
            "Under further assumptions:",
            f"  4. Nothing. The bound on what a better policy could earn came out as {gap.least:.3f}, which is",
            "     impossible: evidence that an assumption is wrong. They are that observations determine values",
            f"     (A1), {exact}, and that densities are accurate enough (A4).",
        ]
    who = "No policy that goes where this one looks" if gap.pruned else "No policy"
    lines = [
        f"Under further assumptions{'' if gap.proved else ' (HEURISTIC here)'}:",
        f"  4. {who} earns more than {gap.least:.3f} above it,",
        "     on average over such worlds if it acts in all.",
        "     Its confidence comes beside that of the elimination itself.",
        f"     Assumes that observations determine values (A1) and {exact}.",
    ]
    if not gap.realizable:
        lines.append("     A trained class never holds an exact predictor: read this number as an estimate.")
    if gap.pruned:
        lines.append("     What elsewhere is worth was estimated on training simulators (pruning), not bounded.")
    if gap.density_error_kind == "measured":
        lines.append(f"     What density errors do to values was measured ({gap.density_error:.3g}), not proved (A4).")
    return lines


def _survivors(count: int) -> str:
    return "the surviving predictor is" if count == 1 else f"one of the {count} surviving predictors is"
