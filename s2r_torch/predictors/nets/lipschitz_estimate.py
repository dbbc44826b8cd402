r"""About how large must C_L be? From pairs of training simulators (networks.md).

    Q[b, s, a] = mean reward of a in s + V[b, T(s, a)],   V[b, s] = max_a Q[b, s, a]       averaged over observations
    estimate   = max over b, b', s, a of |Q[b, s, a] - Q[b', s, a]| / max |D_b - D_b'|

f must reproduce these differences, so a smaller C_L cannot hold f*. Noise in Q inflates the estimate, and D's deflates
it. `significant` counts only what exceeds `Z_SCORE` standard errors: a guide, no bound and no test, for those of few
tries are rough, and it is the largest of 10^5 comparisons and more. Where nothing differs at all, 128 simulators with
64 samples a state give 0 of 0.28 for 2 actions (32 tries each), 0.06 of 0.35 for 4 and 0.10 of 0.47 for 8.

A network may need a multiple: an average over states, or a functional that sees little of D, moves less than D does.
Regret of `lookup` in % of V* at C_L over `significant`, measured: grid (0.065) 6 at 1.5, 0.40 at 5, 0.20 at 15, 0.12
at 45, 0.17 at 150; frozenlake (0.21) 35 at 2, 2.9 at 14, 0.7 at 48. Hence `Net.bound_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities, dense, heights
from s2r_torch.episodes import Transitions
from s2r_torch.errors import SettingError
from s2r_torch.graph import StateGraph

if TYPE_CHECKING:
    from s2r_torch.predictors.training.data import TrainingData

MAX_SIMULATORS = 128  # whose pairs are compared
USUAL = 4.0  # height of densities, the mean of their maxima, from which the C_L of every architecture is enough
LARGER, LARGEST = 3.0, 10.0  # times an architecture's own
FEW, AT_MOST = 32, 2**32  # simulators that are compared at least; numbers of their densities, else
Z_SCORE = 5.0


@dataclass(frozen=True)
class LipschitzEstimate:
    """What a realizable C_L must about be, at least, in units of reward over density."""

    largest: float  # of all pairs, noise included
    significant: float  # less `Z_SCORE` standard errors of a pair
    pairs: int


def pairwise_lipschitz(D: Densities, samples: Sequence[Transitions], graph: StateGraph) -> LipschitzEstimate:
    """The estimate above.

    Args:
        D: `[B, xi, G]` densities of B >= 2 simulators, of which the first `MAX_SIMULATORS` are compared.
        samples: `[xi]` transitions of the same simulators at every state.
        graph: the state graph.

    Raises:
        SettingError: fewer than two simulators, or no two that differ.

    Cost:
        O(B^2 xi G) time for B <= `MAX_SIMULATORS`; no episodes.
    """
    B = min(len(D), MAX_SIMULATORS)
    Q, variance = mean_values(tuple(_first(t, B) for t in samples), graph)
    flat = dense(D[:B]).flatten(1).float()
    distance = torch.cdist(flat, flat, p=float("inf")).double()
    one, two = torch.triu_indices(B, B, 1)
    gap, distance = (Q[one] - Q[two]).abs(), distance[one, two]
    noise = Z_SCORE * (variance[one] + variance[two]).sqrt()
    apart = distance > 0
    if not bool(apart.any()):
        raise SettingError(
            expected="at least two training simulators whose densities differ",
            got=f"{B} simulators",
            cause="lipschitz_bound=auto needs several draws of theta, or theta changes no density",
        )
    ratio = lambda size: float((size.nan_to_num(0.0).amax((1, 2)) / distance)[apart].max())  # noqa: E731
    return LipschitzEstimate(ratio(gap), ratio((gap - noise).clamp(min=0)), int(apart.sum()))


def bound_for(data: TrainingData, graph: StateGraph, default: float, factor: float) -> float:
    """C_L for training simulators, where an architecture takes `default` and a multiple `factor` of the estimate.

    C_L is in units of 1 / density, which depend on those of readings: in centimetres densities are a hundredth of what
    they are in metres. Of low densities it is as much more as they are lower than `USUAL`; where simulators ask for
    more than `LARGER` times that, it is what they ask for, `LARGEST` times at most: what theta pays for and does not
    show asks for any C_L, and gets noise. Heuristic; both were set on a few worlds.

    Cost:
        Seconds, however large densities are: few simulators are compared then.
    """
    D, samples = data.D, data.samples
    own = default * max(1.0, USUAL / max(float(heights(D).mean()), 1e-12))
    B = min(len(D), max(FEW, math.isqrt(AT_MOST // (D.shape[1] * D.shape[2]))))
    try:
        asked = factor * pairwise_lipschitz(D[:B], tuple(_first(t, B) for t in samples), graph).significant
    except SettingError:  # no two simulators tell one
        return own
    return min(asked, LARGEST * own) if asked > LARGER * own else own


def mean_values(samples: Sequence[Transitions], graph: StateGraph) -> tuple[Tensor, Tensor]:
    """Q [B, xi, A] averaged over observations, and its squared standard error; NaN below two tries of an action."""
    B, A = len(samples[0].x), graph.num_actions
    Q = torch.full((B, graph.num_states, A), torch.nan, dtype=torch.float64)
    variance = torch.zeros_like(Q)
    V, V_variance = torch.zeros(2, B, graph.num_states, dtype=torch.float64)
    for _, s in graph.backward():
        mean, error = _per_action(samples[s], A)
        mean, error = (one + graph.values_after(two, [s]).squeeze(-2) for one, two in ((mean, V), (error, V_variance)))
        best = mean.nan_to_num(-torch.inf).argmax(1, keepdim=True)
        Q[:, s], variance[:, s] = mean, error
        V[:, s] = mean.gather(1, best)[:, 0].nan_to_num(0.0)
        V_variance[:, s] = error.gather(1, best)[:, 0].nan_to_num(0.0)
    return Q, variance


def _per_action(data: Transitions, num_actions: int) -> tuple[Tensor, Tensor]:
    """Mean reward [B, A] of every action and its squared standard error; NaN below two samples."""
    chosen = torch.nn.functional.one_hot(data.actions, num_actions).double()  # [B, n, A]
    count = chosen.sum(1)
    count = torch.where(count < 2, torch.nan, count)
    reward = data.rewards.double()[..., None]
    mean = (reward * chosen).sum(1) / count
    squares = ((reward - mean[:, None]).square() * chosen).sum(1)
    return mean, squares / (count - 1) / count


def _first(data: Transitions, count: int) -> Transitions:
    return Transitions(data.x[:count], data.actions[:count], data.rewards[:count])
