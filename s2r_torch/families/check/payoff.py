"""Does theta matter, and does what pays show? The best list of actions against the best one for every theta."""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.coverage import near_readings
from s2r_torch.encoders.regression import Regression, statistics_of
from s2r_torch.families import exact
from s2r_torch.families.check.overlap import check_overlap
from s2r_torch.families.check.probe import FEW, Probe, run
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.families.encoded import unencoded
from s2r_torch.graph import StateGraph
from s2r_torch.tours import readings

SIMULATORS = 400
MOST_STATES = 16  # that statistics are taken of
LOOKS = ((50, 5), (200, 25))  # readings of a state, and quantiles of them; the second where the first tell little
NEEDED = 0.03  # of the optimum, that knowing theta must add for densities to be needed
SHOWS, HIDDEN = 0.5, 0.3  # shares of what knowing theta adds that readings recover
MOST_LISTS = 64
AT_ONCE = 2**25  # raw numbers of ground truths that are worth looking at


def check_theta(probe: Probe) -> list[Finding]:
    """Every number of theta changes readings or rewards."""
    checked, theta = "theta matters", probe.theta[:FEW]
    names = list(getattr(probe.family, "theta_names", ())) or [f"number {j}" for j in range(theta.shape[1])]
    actions = probe.telling_lists(256)
    base = run(probe.simulators(theta), actions, probe.generators(range(FEW), "theta"))
    idle = []
    for j, name in enumerate(names):
        changed = theta.clone()
        changed[:, j] = theta[:, j].roll(1)
        if bool((changed == theta).all()):
            continue
        other = run(probe.simulators(changed), actions, probe.generators(range(FEW), "theta"))
        if torch.equal(base.x, other.x) and torch.equal(base.rewards, other.rewards):
            idle.append(name)
    if not idle:
        return [Finding(checked, OK, f"each of {', '.join(names)} changes readings or rewards")]
    cause = "it never reaches the environment: an attribute set on a wrapper, or a default used in its place"
    return [
        Finding(
            checked,
            REFUSED if len(idle) == len(names) else NOTE,
            f"{', '.join(idle)} changes neither readings nor rewards",
            cause,
            "hand theta to the environment itself (env.unwrapped), or leave the number out",
        )
    ]


def check_payoff(probe: Probe) -> list[Finding]:
    """Whether densities are needed, and whether they show what pays (where mean rewards are known)."""
    graph = probe.graph
    theta = probe.draw(SIMULATORS, "payoff")
    rewards = probe.rewards(theta)
    return [] if graph is None or rewards is None else payoff_findings(probe, graph, theta, *rewards)


def payoff_findings(probe: Probe, graph: StateGraph, theta: Tensor, rewards: Tensor, again: Tensor) -> list[Finding]:
    """What a list of actions earns: the best one, the best one for each theta, and the one that readings advise.

    Args:
        probe: the family.
        graph: its states.
        theta: `[B, k]`.
        rewards: `[B, xi, A]` mean rewards, by which lists are chosen.
        again: `[B, xi, A]` the same, or an independent estimate, by which they are valued.
    """
    lists = _candidates(graph, rewards)
    chosen, valued = (graph.totals(r, lists) for r in (rewards, again))
    fixed = int(chosen.mean(0).argmax())
    listed = valued.gather(1, chosen.argmax(1, keepdim=True)).flatten()
    best, known, optimum = float(valued[:, fixed].mean()), float(listed.mean()), _optimum(probe, theta, listed)
    text = f"the best fixed list of actions earns {best:.3f}, the best list for each theta {known:.3f}"
    text += "" if optimum is None else f", the optimum {optimum:.3f}"
    if max(known, optimum or 0.0) - best < NEEDED * max(known, optimum or 0.0, 1e-12):
        cause = "theta changes what is seen, not what pays: all theta share one best list"
        return [Finding("densities are needed", NOTE, text, cause, "let theta decide what pays too, and show it")]
    findings = [Finding("densities are needed", OK, text)]
    if known - best < NEEDED * known:
        return findings  # what pays depends on the readings at hand, not on theta alone
    findings.append(check_overlap(probe, graph, theta, rewards))
    for look in LOOKS:
        features = statistics(probe, graph, theta, *look)
        predicted = Regression(features).held_out(chosen)
        seen = float(valued.gather(1, predicted.argmax(1, keepdim=True)).mean())
        share = (seen - best) / (known - best)
        text = f"lists chosen by statistics of the readings earn {seen:.3f} of {known:.3f} (a fixed one {best:.3f})"
        if share >= SHOWS:
            return [*findings, Finding("what pays shows", OK, text)]
    hidden = _hidden(probe, theta, chosen, features)
    cause = f"{hidden} decides what pays, and readings hardly tell it" if hidden else "readings hardly tell what pays"
    write = "let it change what is seen too: a noise level, a gain, a colour (Assumption 1)"
    return [*findings, Finding("what pays shows", REFUSED if share < HIDDEN else NOTE, text, cause, write)]


def _candidates(graph: StateGraph, rewards: Tensor) -> Tensor:
    """Action lists [K, H]: the best fixed one and the best ones of single simulators."""
    lists = dict.fromkeys([exact.best_list(graph, rewards.mean(0))[0]])
    for row in rewards:
        if len(lists) < MOST_LISTS:
            lists.setdefault(exact.best_list(graph, row)[0])
    return torch.tensor(list(lists))


def _optimum(probe: Probe, theta: Tensor, listed: Tensor) -> float | None:
    """The mean optimum, where it is known: what lists earn [B], and what they lack at as many theta as is cheap."""
    if probe.truth is None:
        return None
    numbers = probe.truth.weight[0].numel() * unencoded(probe.family).spec.obs_dim  # raw ones, of a theta
    some = theta[: max(FEW, AT_ONCE // numbers)]
    truth = probe.family.truth(some)
    if truth is None:
        return None
    lacking = exact.optimal(truth)[0][:, 0] - listed[: len(some)]
    return float(listed.mean() + lacking.mean())


def statistics(probe: Probe, graph: StateGraph, theta: Tensor, n: int, quantiles: int) -> Tensor:
    """Statistics [B, p] of n readings each of some states (`statistics_of`)."""
    needs = near_readings(graph, MOST_STATES, n)
    drawn = readings(probe.simulators(theta), graph, needs, probe.seed.child("statistics", n))
    return torch.cat([statistics_of(drawn[s], quantiles) for s in needs.nonzero().flatten().tolist()], 1)


def _hidden(probe: Probe, theta: Tensor, values: Tensor, features: Tensor) -> str:
    """The numbers of theta that decide what lists earn and that readings do not tell."""
    names = list(getattr(probe.family, "theta_names", ())) or [f"number {j} of theta" for j in range(theta.shape[1])]
    decides = [Regression(theta[:, [j]]).explained(values) for j in range(theta.shape[1])]
    shown = [Regression(features).explained(theta[:, [j]]) for j in range(theta.shape[1])]
    return ", ".join(n for n, d, s in zip(names, decides, shown, strict=True) if d > 0.1 and s < 0.5)
