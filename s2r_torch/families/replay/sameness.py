"""Whether two runs of one action path are the same: in observations, latent numbers, rewards and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from s2r_torch.errors import SimulatorError
from s2r_torch.text import printable


@dataclass(frozen=True, eq=False)
class Seen:
    """What one step of an episode showed."""

    actions: tuple[int, ...]  # from the reset on
    observation: object  # raw
    latent: tuple[float, ...]
    reward: float  # raw; NaN if it is no number
    ended: bool

    def __str__(self) -> str:
        end = ", ended" if self.ended else ""
        return f"{printable(self.observation, 60)}, latent {list(self.latent[:6])}, reward {self.reward:g}{end}"


Trace = list[Seen]


def same(one: object, other: object) -> bool:
    """Whether two observations, or structures of them, are the same; NaN is the same as NaN.

    >>> same({"a": [1, float("nan")]}, {"a": [1, float("nan")]})
    True
    """
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    one, other = np.asarray(one), np.asarray(other)
    return bool(np.array_equal(one, other, equal_nan=all(a.dtype.kind in "fc" for a in (one, other))))


def require_same(
    first: list[Trace], second: list[Trace], cause: str, cause_of_rewards: str | None = None, rewards: bool = True
) -> None:
    """Raises SimulatorError unless two lists of traces agree in everything.

    Args:
        first: what was seen along some paths.
        second: the same paths again.
        cause: why they may differ.
        cause_of_rewards: why they may differ in nothing but a reward.
        rewards: whether rewards are compared.
    """
    for one, other in zip(first, second, strict=True):
        for before, after in zip(one, other, strict=True):
            moved = not same(_place(before), _place(after))
            if moved or (rewards and not same(before.reward, after.reward)):
                raise SimulatorError(
                    expected=f"the same after actions {before.actions} of every reset: {before}",
                    got=str(after),
                    cause=cause if moved else cause_of_rewards or cause,
                )


def _place(seen: Seen) -> tuple:
    return seen.observation, seen.latent, seen.ended
