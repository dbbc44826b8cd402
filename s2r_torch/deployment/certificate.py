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

    @property
    def least(self) -> float:
        """The smallest of the three bounds; they hold together."""
        return min(self.performance_difference, self.paired, self.upper_minus_lower)

    @property
    def proved(self) -> bool:
        """Whether nothing in the bounds was measured or is known to be wrong."""
        return self.realizable and self.density_error_kind == "given"


@dataclass(frozen=True)
class Certificate:
    """Promises on a policy; every one holds with probability at least 1 - delta over the M draws."""

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

    def page(self) -> str:
        """One page of text: what is promised, with which confidence, under which assumptions, and what is not."""
        return _page(self)

    def to_json(self) -> dict:
        """Numbers and strings only; the inverse of `from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict) -> Certificate:
        """Raises TypeError for fields of another version."""
        return Certificate(**{**values, "gap": Gap(**values["gap"])})


def _page(c: Certificate) -> str:
    sure = f"{1 - c.delta:.0%}"
    gap = c.gap
    lines = [
        f"CERTIFICATE, from {c.simulators} fresh simulators",
        "",
        "Promised, assuming only that the world's hidden parameters are drawn like the simulators':",
        f"  1. On average over such worlds the policy earns at least {c.value_lower:.3f} per episode, of at most 1.",
        f"     Confidence {sure}. (Measured: {c.value_mean:.3f}; bound: {c.bound}.)",
    ]
    if c.share_value > 0:
        lines.append(
            f"  2. At least {c.share:.0%} of such worlds are worth {c.share_value:.3f} or more. Confidence {sure}."
        )
    else:
        lines.append(
            f"  2. Nothing on single worlds: {c.simulators} simulators are too few for {c.share:.0%} of worlds."
        )
    lines += [
        f"  Both hold for this file as it is: {c.sequences} action sequences, {c.n_real} episodes each, then act.",
        "",
        f"Under further assumptions{'' if gap.proved else ' (HEURISTIC here)'}:",
        f"  3. No policy earns more than {gap.least:.3f} above it, on average over such worlds.",
        f"     Confidence {sure}, beside that of the elimination itself.",
        f"     Assumes that observations determine values (A1) and that {_survivors(gap.survivors)} exact (A2).",
    ]
    if not gap.realizable:
        lines.append("     A trained class never holds an exact predictor: read this number as an estimate.")
    if gap.density_error_kind == "measured":
        lines.append(f"     What density errors do to values was measured ({gap.density_error:.3g}), not proved (A4).")
    lines += [
        "",
        "Not promised:",
        "  - What the policy earns in this one world: a world can be worse than the average.",
        "  - Anything in a world unlike the simulators. Read the verdict on the world first.",
        "  - Anything once policy, sensors, action sequences or numbers of episodes are changed, or if this policy was",
        "    picked among several by these very numbers.",
    ]
    return "\n".join(lines)


def _survivors(count: int) -> str:
    return "the surviving predictor is" if count == 1 else f"one of the {count} surviving predictors is"
