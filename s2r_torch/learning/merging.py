"""When two action paths end in the same state: the rule, and what it was measured to tell apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from s2r_torch.density.difference import PARTS
from s2r_torch.schema import Drawable, Positive, Range, Settings, Share, Size

MORE = 4  # times as many observations halve the noise
TIMES_NOISE = 1.5  # medians of one state's distances lie at 0.3 to 0.7 of the noise, of different states above 3


@dataclass(frozen=True)
class MergeSettings(Settings):
    """When two paths of the same length end in the same state (theory.md C12).

    The median over simulators of the sup distance to the nearest state of that layer decides: the same state below
    (1 - margin) threshold, a different one above (1 + margin) threshold, an error between. The threshold is

        zeta / 2             with zeta a number (Assumption 5);
        1.5 noise            with zeta "auto": noise is what two estimates of one density differ by, 95 % of the time;
        relative * height    with zeta None, height being that of the new path's density.

    Where no number is declared, states closer than that must also agree on average over the deciders: an error where
    their pooled difference z exceeds 6. So states that differ by the noise or more do not merge in silence. Measured
    on 16 deciders (lines and planes, n_merge = 1000): z > 6 in all of 60 trials at 0.75 to 1 of the noise, in a
    third at half of it; at a quarter states look the same. Fewer than 7 deciders never reach z = 6.

    Args:
        n_merge: observations per path and simulator that decide; separate from those that estimate densities.
        zeta: separation of states in sup norm, "auto" or None. Runs put the family's own zeta in place of "auto".
        relative: share of the height, used when zeta is None.
        margin: distances within this share of the threshold, on either side, are ambiguous: an error.
        deciders: how many simulators decide; all, if there are fewer.
        band_deciders: on how many of them the noise of a state is measured (2 to 20 ms each).
        n_merge_most: where these do not tell, all paths are looked at again, with four times as many fresh ones, up to
            that many.

    Raises:
        SettingError: a number out of range.
    """

    n_merge: Annotated[int, Drawable(PARTS)] = 250
    zeta: Positive | Literal["auto"] | None = "auto"
    relative: Share = 0.5
    margin: Annotated[float, Range(0, 1, open="high")] = 0.25
    deciders: Size = 16
    band_deciders: Size = 5
    n_merge_most: Size = 4000

    def with_more(self) -> MergeSettings | None:
        """The same with more observations; None where there are as many as may be."""
        n = min(MORE * self.n_merge, self.n_merge_most)
        return replace(self, n_merge=n) if n > self.n_merge else None

    def threshold(self, noise: float, height: float) -> float:
        """The distance between the same state and different ones."""
        if self.zeta is None:
            return self.relative * height
        return TIMES_NOISE * noise if self.zeta == "auto" else self.zeta / 2
