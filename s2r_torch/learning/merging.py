"""When two action paths end in the same state: the rule, and what it was measured to tell apart."""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.density.difference import PARTS
from s2r_torch.errors import SettingError

TIMES_NOISE = 1.5  # medians of one state's distances lie at 0.3 to 0.7 of the noise, of different states above 3


@dataclass(frozen=True)
class MergeSettings:
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
        n_merge: observations per path and simulator that decide, >= 4; separate from those that estimate densities.
        zeta: separation of states in sup norm, "auto" or None. Runs put the family's own zeta in place of "auto".
        relative: share of the height, in (0, 1), used when zeta is None.
        margin: distances within this share of the threshold, on either side, are ambiguous: an error.
        deciders: how many simulators decide; all, if there are fewer.
        band_deciders: on how many of them the noise of a state is measured (2 to 20 ms each).

    Raises:
        SettingError: a number out of range.
    """

    n_merge: int = 1000
    zeta: float | str | None = "auto"
    relative: float = 0.5
    margin: float = 0.25
    deciders: int = 16
    band_deciders: int = 5

    def __post_init__(self):
        fine = self.n_merge >= PARTS and self.deciders >= 1 and self.band_deciders >= 1
        fine = fine and 0 < self.relative < 1 and 0 <= self.margin < 1
        zeta = self.zeta is None or (self.zeta == "auto" if isinstance(self.zeta, str) else self.zeta > 0)
        if not (fine and zeta):
            raise SettingError(
                expected=f"n_merge >= {PARTS}, deciders and band_deciders >= 1, relative in (0, 1), margin in [0, 1) "
                "and zeta > 0, auto or null",
                got=str(self),
                cause="a typo in conf/density",
            )

    def threshold(self, noise: float, height: float) -> float:
        """The distance between the same state and different ones."""
        if self.zeta is None:
            return self.relative * height
        return TIMES_NOISE * noise if self.zeta == "auto" else self.zeta / 2
