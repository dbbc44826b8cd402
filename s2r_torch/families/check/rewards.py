"""Rewards: totals in [0, 1] over whole episodes, also rare ones; every simulator pays."""

from __future__ import annotations

from torch import Tensor

from s2r_torch.episodes import Rollouts
from s2r_torch.errors import RewardError, S2RError
from s2r_torch.families.check.probe import MANY, Probe, named, of_edges, run
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.graph import StateGraph

PAYING = 128  # episodes of every simulator, half of them along lists that pay
EXPECTED = 30  # payments of the others, above which a simulator without any is noted
TOLERANCE = 1e-6


def check_rewards(probe: Probe) -> list[Finding]:
    """Whole episodes along all action lists, or many: rewards, their totals, and the number of steps."""
    checked, guard = "rewards and whole episodes", probe.simulators(probe.theta)
    tried = probe.tried
    totals = [run(guard, probe.telling_lists(PAYING), probe.generators(guard.ids, "all")), tried]
    try:
        graph, edges = probe.graph, probe.edges
    except S2RError:  # `check_truth` says so
        graph, edges = None, None
    findings = []
    if graph is not None and edges is not None:
        totals.append(edges)
        findings += _possible_total(checked, graph, of_edges(edges.rewards, graph))
    most = max(float(runs.returns.max()) for runs in totals)
    findings += _paying(probe, guard.ids, totals[0])
    return findings or [
        Finding(checked, OK, f"totals of 0 .. {most:.3g}, {probe.spec.horizon} steps, on all paths tried")
    ]


def _possible_total(checked: str, graph: StateGraph, seen: Tensor) -> list[Finding]:
    """The largest total that rewards seen at single moves [B, copies, xi, A] can add up to."""
    total = float(graph.best_totals(seen.amax(1).double())[0][:, 0].max())
    if total <= 1 + TOLERANCE:
        return []
    return [
        Finding(
            checked,
            REFUSED,
            f"payments that were seen add up to {total:.3g} along one path",
            "several steps of an episode can pay, each up to 1 (rewards paid at random where their means should be)",
            f"bernoulli_rewards=False, or reward_scale times {total:.3g}",
            RewardError,
        )
    ]


def _paying(probe: Probe, ids: tuple[int, ...], runs: Rollouts) -> list[Finding]:
    """Simulators that never paid where the others did often."""
    payments = (runs.rewards > 0).sum((1, 2))
    usual = float(payments.double().median())
    silent = (payments == 0).nonzero().flatten()
    if usual >= EXPECTED and 0 < len(silent) <= MANY // 4:
        found = (
            f"{named(ids, silent)} never paid in {runs.rewards.shape[1]} episodes, where others paid {usual:.0f} times"
        )
        cause = "a theta for which nothing pays, or a broken simulator"
        return [Finding("every simulator pays", NOTE, found, cause, "look at that theta")]
    if not bool((runs.rewards > 0).any()):
        found = f"no episode of {runs.rewards[..., 0].numel()} paid anything"
        return [Finding("every simulator pays", NOTE, found, "rewards are rare on random paths, or there are none", "")]
    return []
