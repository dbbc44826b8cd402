r"""Which candidate is taken: states must be told apart, then densities should tell what pays; both held-out.

    separation    1 - (share of readings of path p that lie nearer to one of path q than to another of p) - (vice versa)

is 0 for paths to one state, 1 for readings that never overlap; means over simulators. Which paths end in different
states nobody knows yet: those do that any candidate tells apart. `payoff` is what the lists earn that are chosen, held
out, by a regression of what lists pay on moments of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.encoders.fitting import Lists, by_path, moments, same_paths
from s2r_torch.encoders.regression import Regression
from s2r_torch.encoders.views import Seen

DIFFERENT = 0.3  # separation from which paths count as ending in different states
AS_GOOD = 0.9  # share of the largest smallest separation, from which what pays decides
CLOSE = 0.6  # smallest separation below which a fit says so


@dataclass(frozen=True, eq=False)
class Judged:
    """What one candidate shows of held-out simulators.

    Args:
        separation: `[H, K, K]` of paths up to every step; 0 for equal ones.
        payoff: what lists earn that its densities choose.
        fixed: what the best fixed list earns.
    """

    separation: Tensor  # [H, K, K]
    payoff: float
    fixed: float


def judge(seen: Seen) -> Judged:
    """Judges features [B, n, H, d]."""
    lists = Lists.of(seen).mean
    told = Regression(moments(by_path(seen.z)).double()).held_out(lists)
    chosen = lists.gather(1, told.argmax(1, keepdim=True))
    return Judged(separations(seen), float(chosen.mean()), float(lists.mean(0).max()))


def separations(seen: Seen) -> Tensor:
    """How well paths are told apart at every step, `[H, K, K]`, by nearest readings."""
    z = by_path(seen.z)  # [B, K, R, H, d]
    B, K, _, H, _ = z.shape
    nearer = torch.zeros(H, K, K)
    for one in z:
        for step in range(H):
            nearer[step] += nearer_to_others(one[:, :, step])
    apart = (1 - (nearer + nearer.mT) / B).clamp(min=0)
    return apart.masked_fill(same_paths(seen.sequences), 0.0)


def nearer_to_others(x: Tensor) -> Tensor:
    """Of readings [..., n, d] of each of S laws, the share nearer to one of another than to its own: [..., S, S]."""
    S, n, _ = x.shape[-3:]
    flat = x.flatten(-3, -2)
    distance = torch.cdist(flat, flat)
    distance.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    nearest = distance.view(*x.shape[:-3], S, n, S, n).amin(-1)  # [..., S, n, S]
    own = nearest.diagonal(dim1=-3, dim2=-1).mT[..., None]  # [..., S, n, 1]
    return (nearest < own).to(x.dtype).mean(-2)


def smallest(judged: Sequence[Judged]) -> list[float]:
    """The smallest separation that each candidate leaves between paths that any one tells apart; 1 without any."""
    different = torch.stack([one.separation for one in judged]).amax(0) > DIFFERENT
    return [float(one.separation[different].min()) if bool(different.any()) else 1.0 for one in judged]


def best_of(judged: Sequence[Judged]) -> int:
    """The candidate that is taken."""
    least = smallest(judged)
    able = [i for i, value in enumerate(least) if value >= AS_GOOD * max(least)]
    return max(able, key=lambda i: judged[i].payoff)


def sentences(names: Sequence[str], judged: Sequence[Judged], best: int) -> tuple[str, ...]:
    """What was found, for people."""
    told = [
        f"{name}: smallest separation {least:.2f}, lists chosen by its densities earn {one.payoff:.3f}"
        for name, one, least in zip(names, judged, smallest(judged), strict=True)
    ]
    found = [f"encoder: {names[best]} taken (a fixed list earns {judged[best].fixed:.3f}); {'; '.join(told)}"]
    if smallest(judged)[best] < CLOSE:
        found.append(
            f"the encoder's features of two states overlap (separation {smallest(judged)[best]:.2f}): "
            "encoder.dim=3, more encoder.steps, or readings that do not show the state (Assumption 5)"
        )
    return tuple(found)
