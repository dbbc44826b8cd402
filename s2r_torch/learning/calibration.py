r"""How far is a trained class from holding f*? Measured on simulators drawn for this alone.

A trained class never holds f*, so a rule that allows for noise only would eliminate every member. One member stands for
f*, the same at every state, as theory.md 2.9 has it:

    f0       = argmin of the Bellman risk, over states and simulators, among the members whose policies earn the most
    b_bar(s) = sqrt of the quantile over b of  Risk_b(f0) - min_f Risk_b(f)  at state s

b_bar stands for the bias that the calibrated rule allows, in units of total reward. This is heuristic: it measures how
unevenly f0 fits the simulators, not its distance from f*. Risks alone do not choose f0: a member that fits best where
no good policy goes may earn little. What members earn is told by the same samples, with noise; whoever is within one
standard error of the best earns as much (the rule of Breiman et al. 1984 for choosing among models). Because
calibration simulators and judges are exchangeable, a fresh simulator's excess lies below b_bar^2 with probability about
the quantile, and that is all that is promised.

`density_b_bar` is what densities alone can add to b_bar (theory.md 2.1), from a certificate and a band. That of a
trained class holds their error already, having been measured on estimates of the same size: it is reported beside the
it and not added. An exact class has no other bias: there it is b_bar (`sim2real.gather_judges`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.density.patches import Densities
from s2r_torch.episodes import Guard, Transitions, rollout
from s2r_torch.graph import START, StateGraph
from s2r_torch.learning.rules import Evidence, RuleSettings, calibrated
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.rng import Seed
from s2r_torch.schema import Range, Settings, Size
from s2r_torch.tours import decisions
from s2r_torch.workers.simulators import in_parts, map_simulators


@dataclass(frozen=True)
class CalibrationSettings(Settings):
    """Sizes of the calibration stage.

    Args:
        simulators: how many simulators are drawn for it.
        n: samples per state and simulator.
        n_rollouts: episodes per simulator that measure the class's overrating of itself.
        quantile: share of simulators whose excess b_bar^2 covers.

    Raises:
        SettingError: a size below 1, or a quantile out of range.
    """

    simulators: Size = 32
    n: Size = 500
    n_rollouts: Size = 32
    quantile: Annotated[float, Range(0, 1, open="low")] = 0.9


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the calibration simulators showed."""

    b_bar: tuple[float, ...]  # [xi] bias allowed at every state, in units of total reward
    f0: int  # the member that stands for f*
    earners: tuple[int, ...]  # members whose policies earned as much as any, but for noise
    risk: tuple[float, ...]  # [F] Bellman risk, mean over simulators, summed over states
    value_bias: float  # V_hat* of f0 minus what its policy earned


@dataclass(frozen=True, eq=False)
class BellmanTable:
    """What samples at all states say of all members: `[F, B, xi]` each, in units of total reward."""

    risks: Tensor
    V_hat: Tensor  # what members promise
    earned: Tensor  # what their policies earn

    @property
    def risk(self) -> Tensor:
        """[F] mean over simulators, summed over states."""
        return self.risks.mean(1).sum(1)


def bellman_table(simulators: Guard, D_hat: Densities, ensemble: Ensemble, n: int, seed: Seed) -> BellmanTable:
    """Bellman risks and values of all members at all states, backward over layers.

    Args:
        simulators: B simulators.
        D_hat: `[B, xi, G]` their densities.
        ensemble: the class F.
        n: samples per state and simulator.
        seed: named stream.

    Cost:
        That of `tours.decisions`.
    """
    parts = map_simulators(_table, in_parts(simulators, D_hat), ensemble, n, seed)
    return BellmanTable(*(torch.cat(one, 1) for one in zip(*(vars(part).values() for part in parts), strict=True)))


def _table(simulators: Guard, D_hat: Densities, ensemble: Ensemble, n: int, seed: Seed) -> BellmanTable:
    """Of some simulators."""
    return tabulated(decisions(simulators, ensemble.problem.graph, n, seed), D_hat, ensemble)


def tabulated(data: Sequence[Transitions], D_hat: Densities, ensemble: Ensemble) -> BellmanTable:
    """The table of decisions [xi] that were drawn in B simulators with densities `[B, xi, G]`."""
    graph: StateGraph = ensemble.problem.graph
    evaluator = ensemble.evaluator(D_hat)
    risks = torch.zeros(ensemble.size, *D_hat.shape[:2], dtype=torch.float64)
    V_hat, earned = torch.zeros_like(risks), torch.zeros_like(risks)
    for step, s in graph.backward():
        last = step == graph.horizon - 1
        after = (None, None) if last else (graph.values_after(V, [s]).squeeze(-2) for V in (V_hat, earned))
        risks[:, :, s], V_hat[:, :, s], earned[:, :, s] = evaluator.bellman_risks(step, data[s], *after)
    return BellmanTable(risks, V_hat, earned)


def earn_the_most(earned: Tensor) -> Tensor:
    """[F] bool: who earns as much as the best, but for one standard error over simulators; of earnings [F, B]."""
    behind = earned[earned.mean(1).argmax()] - earned
    noise = behind.std(1) / math.sqrt(earned.shape[1]) if earned.shape[1] > 1 else torch.inf
    return behind.mean(1) <= noise


def stand_in(table: BellmanTable) -> tuple[int, Tensor]:
    """f0, which stands for f*, and [F] bool: who earns the most."""
    earners = earn_the_most(table.earned[:, :, START])
    return int(torch.where(earners, table.risk, torch.inf).argmin()), earners


def density_b_bar(graph: StateGraph, lipschitz_bound: float, radius: float) -> tuple[float, ...]:
    """What errors of the densities add to b_bar at every state, at most (theory.md 2.1).

        phi_D = min(1, C_L radius);    phi_D in the last layer, 2 phi_D before, where V_hat of the successor errs too

    Args:
        graph: the state graph.
        lipschitz_bound: C_L, in units of total reward per unit of density.
        radius: of a sup-norm band around the densities that predictors are given (`Exploration.band`).

    Returns:
        A bound per state, in units of total reward; 1 is all that a value can be.

    Paper deviation:
        A band holds 95 % of the time, at each state; omega, the noise of V_hat, is left out. Hence heuristic.
    """
    phi_D = min(1.0, lipschitz_bound * radius)
    return tuple(phi_D if step == graph.horizon - 1 else 2 * phi_D for step in graph.layer.tolist())


def measured_b_bar(risks: Tensor, f0: int, quantile: float) -> Tensor:
    """The b_bar above, [xi], from risks [F, B, xi] of the calibration simulators.

    The quantile is the conformal one: the ceil((B + 1) quantile)-th smallest excess, or the largest where B is too
    small for that. `rules.calibrated` says what it promises.
    """
    excess = risks[f0] - risks.amin(0)  # [B, xi]
    rank = min(len(excess), math.ceil((len(excess) + 1) * quantile))
    return excess.sort(0).values[rank - 1].sqrt()


def replay(risks: Tensor, layer: Tensor, n: int, b_bars: Tensor, delta: float) -> Tensor:
    """Who would survive a backward sweep of the calibrated rule, from one table of risks, at every b_bar.

    Args:
        risks: `[F, B, xi]` Bellman risks of the judges, from n samples a state (`bellman_table`).
        layer: `[xi]` the layer of each state.
        n: samples per state and simulator.
        b_bars: `[K, xi]` biases to try.
        delta: failure probability of the sweep; every state gets its share.

    Returns:
        `[K, F]` bool.

    Cost:
        No episodes: O(K F B xi) time.
    """
    F, B, xi = risks.shape
    alive = torch.ones(len(b_bars), F, dtype=torch.bool)
    for state in sorted(range(xi), key=lambda s: -int(layer[s])):
        for k, b_bar in enumerate(b_bars[:, state].tolist()):
            settings = RuleSettings(0.0, b_bar, F, delta / xi)
            evidence = Evidence(risks[alive[k], :, state], n, lambda: torch.empty(0))
            alive[k, alive[k].clone()] = calibrated(evidence, settings).keep
    return alive


def calibrate(
    simulators: Guard, D_hat: Densities, ensemble: Ensemble, settings: CalibrationSettings, seed: Seed
) -> Calibration:
    """Measures misspecification and overrating on calibration simulators with densities D_hat [B, xi, G].

    Cost:
        n decisions at every state (`tours.decisions`) and n_rollouts episodes per simulator.
    """
    table = bellman_table(simulators, D_hat, ensemble, settings.n, seed.child("table"))
    f0, earners = stand_in(table)
    b_bar = measured_b_bar(table.risks, f0, settings.quantile)
    act = ensemble.subset([f0]).evaluator(D_hat).policy_of(0)
    episodes = rollout(simulators, act, settings.n_rollouts, seed.child("rollout"))
    bias = float(table.V_hat[f0, :, START].mean() - episodes.returns.mean())
    among = tuple(earners.nonzero().flatten().tolist())
    return Calibration(tuple(b_bar.tolist()), f0, among, tuple(table.risk.tolist()), bias)
