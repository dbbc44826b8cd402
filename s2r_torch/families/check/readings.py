"""Readings: do they vary, stay in the box, and tell nothing about each other once theta and state are known?"""

from __future__ import annotations

import scipy
import torch
from torch import Tensor

from s2r_torch.density.nodes import nodes_for
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.families.check.probe import Probe, named, run
from s2r_torch.families.check.report import NOTE, OK, REFUSED, Finding
from s2r_torch.graph import told

EPISODES = 400
REPEATS = 0.02  # share of readings that are exact copies, above which a simulator repeats itself
OFF_BOX = 0.01  # of a state's readings, as density estimates allow
CONSTANT, RANDOM = 4, 4  # action lists along which readings are looked at
SURELY = 1e-9  # p-value of a dependence
TIMES_TOO_WIDE = 0.25  # node spacings in the standard deviation of a state, below which a grid is too coarse
FAR, RARE = 12.0, 0.01  # median deviations from the median, and share, of readings that are outliers
STRETCHED = 1.4  # times the variance without them, that they make a state's


def check_readings(probe: Probe) -> list[Finding]:
    """Readings vary and do not repeat, in every simulator and every step."""
    checked, H = "readings vary", probe.spec.horizon
    guard = probe.simulators(probe.theta)
    actions = probe.random_lists("vary", 40)
    one = run(guard, actions, probe.generators(guard.ids, "vary"))
    x = one.x  # [B, n, H, d]
    constant = (x == x[:, :1]).all(1).any(1)  # [B, d]; an action list leads elsewhere, so no coordinate may stay
    if bool(constant.any()):
        b, j = constant.nonzero()[0].tolist()
        found = f"{probe.spec.obs_names[j]} of {named(guard.ids, [b])} has one value in all episodes of a step"
        return [Finding(checked, REFUSED, found, "a stuck sensor, or no noise at all", "", ObservationError)]
    copies = torch.stack([_copies(rows) for rows in x])  # [B]
    copies = torch.maximum(copies, (x[:, :, 1:] == x[:, :, :-1]).all(-1).double().mean((1, 2)) if H > 1 else copies)
    bad = copies > REPEATS
    if bool(bad.all()):
        found = f"{float(copies.median()):.0%} of all readings are exact copies of others"
        return [Finding(checked, NOTE, found, "rounded or discrete readings, which have no density", "do not round")]
    if bool(bad.any()):
        b = int(copies.argmax())
        return [
            Finding(
                checked,
                REFUSED,
                f"{float(copies[b]):.0%} of the readings of {named(guard.ids, bad.nonzero().flatten())} are exact "
                "copies of others",
                "a simulator that repeats its last reading, or a driver that does while nothing new comes",
                "",
                ObservationError,
            )
        ]
    return [Finding(checked, OK, f"in all {len(guard)} simulators")]


def _copies(rows: Tensor) -> Tensor:
    """The share of readings [n, H, d] that are exact copies of another of the same simulator."""
    flat = rows.flatten(0, 1)
    return 1 - torch.tensor(len(flat.unique(dim=0)) / len(flat), dtype=torch.float64)


def check_box(probe: Probe) -> list[Finding]:
    """Readings lie in the box, which is not much wider than they need, and none lies far from the others."""
    spec, findings = probe.spec, []
    guard = probe.simulators(probe.theta)
    x = run(guard, probe.random_lists("box", 400), probe.generators(guard.ids, "box")).x
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (spec.low, spec.high))
    off = ((x < low) | (x > high)).double().mean(1)  # [B, H, d]
    b, h, j = (int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    share = float(off.max())
    if share > OFF_BOX / 4:
        seen = f"{float(x[..., j].min()):.4g} .. {float(x[..., j].max()):.4g}"
        findings.append(
            Finding(
                "box of readings",
                REFUSED if share > 2 * OFF_BOX else NOTE,
                f"{share:.2%} of {spec.obs_names[j]} at step {h} of simulator {guard.ids[b]} lie outside "
                f"{spec.low[j]:g} .. {spec.high[j]:g}; seen: {seen}",
                "the box is too small, or a sensor is in other units",
                f"low, high of {spec.obs_names[j]} around {seen}",
                SettingError,
            )
        )
    return findings + _width(probe) or [Finding("box of readings", OK, "holds all readings, and fits them")]


def _width(probe: Probe) -> list[Finding]:
    """Whether the usual number of nodes resolves a state, and whether outliers stretch what is measured."""
    spec, guard = probe.spec, probe.few
    x = run(guard, probe.random_lists("width", 1).expand(EPISODES, -1), probe.generators(guard.ids, "width")).x
    centre = x.median(1, keepdim=True).values
    spread = (x - centre).abs().median(1, keepdim=True).values.clamp(min=1e-300)  # [B, 1, H, d]
    findings = []
    far = (x - centre).abs() > FAR * spread
    rare = far.double().mean(1)  # [B, H, d]
    stretch = x.var(1).sum((0, 1)) / (x - centre).masked_fill(far, 0.0).var(1).sum((0, 1))  # [d]
    widths = tuple((1.5 * spread.flatten(0, 2).median(0).values).tolist())
    nodes = nodes_for("auto", spec.low, spec.high, widths)
    for j, name in enumerate(spec.obs_names):
        if 0 < float(rare[..., j].max()) <= RARE and float(stretch[j]) > STRETCHED:  # more would be a part of the law
            found = (
                f"{float(rare[..., j].mean()):.2%} of {name} lie more than {FAR:g} median deviations from the others"
            )
            cause = "outliers: they stretch the scale that bandwidths are taken from"
            findings.append(Finding("box of readings", NOTE, found, cause, "clip them, or model them on purpose"))
        spacing = (spec.high[j] - spec.low[j]) / (nodes[j] - 1)
        width = widths[j]
        if 1e-200 < width < TIMES_TOO_WIDE * spacing:
            found = f"readings of {name} in a state spread over {width:.3g}, {nodes[j]} nodes are {spacing:.3g} apart"
            wanted = round((spec.high[j] - spec.low[j]) / width) + 1
            cause = "the box is much wider than readings need, or noise is small beside what theta does to readings"
            findings.append(
                Finding("box of readings", NOTE, found, cause, f"a narrower box, or density.nodes={wanted}")
            )
    return findings


def check_independence(probe: Probe) -> list[Finding]:
    """Given theta, the readings of an episode at fixed states tell nothing about each other.

    With a fixed start, deterministic dynamics and fresh noise they are independent; a random start or random dynamics
    show as a dependence between steps, a state that outlives episodes as one between episodes.
    """
    checked, H = "fixed start, deterministic dynamics", probe.spec.horizon
    findings = []
    constant = torch.arange(min(probe.spec.num_actions, CONSTANT))[:, None].expand(-1, H)
    for number, actions in enumerate(torch.cat([constant, probe.random_lists("independence", RANDOM)])):
        x = run(probe.few, actions.expand(EPISODES, -1), probe.generators(probe.few.ids, "dependence", number)).x
        features = _features(x)  # [B, n, H, f]
        steps = [_dependence(features[:, :, h], features[:, :, h + 1]) for h in range(H - 1)]
        drift = [_dependence(features[:, 1:, h], features[:, :-1, h]) for h in range(H)]
        path = tuple(actions.tolist())
        if min(drift) < SURELY:
            h = drift.index(min(drift))
            where, p = f"step {h} of actions {told(path)}", min(drift)
            found = f"readings at {where} depend on those of the episode before (p = {p:.1g})"
            cause = "a state or a noise that outlives reset (drift)"
            findings.append(Finding(checked, REFUSED, found, cause, "start every episode afresh"))
            break
        if steps and min(steps) < SURELY:
            h = next(i for i, p in enumerate(steps) if p < SURELY)
            findings.append(_dependent(checked, path, h, steps[h]))
            break
    return findings or [Finding(checked, OK, "given theta, readings of different steps and episodes are independent")]


def _dependent(checked: str, path: tuple[int, ...], h: int, p: float) -> Finding:
    start = h == 0
    return Finding(
        checked,
        REFUSED,
        f"the readings at steps {h} and {h + 1} of actions {told(path)} depend on each other (p = {p:.1g})",
        "a random start: the same actions then lead to different states, and no path has a density of its own"
        if start
        else f"random dynamics (after {h} actions), or sensor noise that lasts over steps",
        "a fixed start; where it can be chosen, let the first action choose it (or, if it is the noise: draw it afresh)"
        if start
        else "deterministic dynamics, and fresh noise at every step",
    )


def _features(x: Tensor) -> Tensor:
    """Ranks [B, n, H, f] of readings and of their distances from the median, centred and scaled."""
    rank = x.argsort(1).argsort(1).double()
    centred = rank - rank.mean(1, keepdim=True)
    both = torch.cat([centred, centred.abs()], -1)
    both = both - both.mean(1, keepdim=True)
    return both / both.square().mean(1, keepdim=True).sqrt()


def _dependence(one: Tensor, other: Tensor) -> float:
    """The p-value that features [B, n, f] of two steps are independent, pooled over simulators, corrected for pairs."""
    n = one.shape[1]
    z = torch.einsum("bnf,bng->bfg", one, other) / n**0.5
    pooled = z.square().sum(0)  # about chi-square with B degrees of freedom
    return float(scipy.special.chdtrc(len(one), float(pooled.max()))) * pooled.numel()


def check_buffers(probe: Probe) -> list[Finding]:
    """Whether a simulator writes into readings that it has already returned; harmless, since they are copied."""
    checked, guard = "readings are kept", probe.few
    if probe.spec.horizon < 2:
        return []
    inner = guard.inner
    x = inner.reset(4, probe.generators(guard.ids, "buffers"))
    before = x.clone()
    inner.step(torch.zeros(len(guard), 4, dtype=torch.int64))
    if torch.equal(before, x):
        return [Finding(checked, OK, "a step leaves earlier readings alone")]
    found = "a step overwrites the readings of the step before"
    return [Finding(checked, NOTE, found, "one buffer for all steps; episodes copy it", "return a fresh tensor")]
