"""value.png: what real-world episodes are worth, although none shows a reward."""

from __future__ import annotations

from matplotlib.figure import Figure

from s2r_torch.reports.style import new_figure
from s2r_torch.reports.summary import OPTIMAL, Summary, label_of

OURS, BEST = "#1b6ca8", "#2a9d55"
COLOURS = ("#8a8a8a", "#b07a3f", "#7a5195", "#c0504d", "#4f8a8b")  # of comparators, in order


def value_figure(summary: Summary) -> Figure:
    """What deployed policies are worth against the number of real-world episodes that were looked at."""
    value, certificate, curve = summary.value, summary.certificate, summary.value.looking
    figure = new_figure(7.2, 3.9)
    axes = figure.subplots()
    axes.axhline(curve.optimal, color=BEST, lw=1.5, label=f"best possible, {curve.optimal:.3f}")
    others = [name for name in value.policies if name not in (OPTIMAL, "random")]
    for name, colour in zip(others, COLOURS * len(others), strict=False):
        level = value.policies[name]
        axes.axhline(level, color=colour, linestyle="--", lw=1.5, label=f"{label_of(name)}, {level:.3f}")
    axes.fill_between(curve.episodes, curve.low, curve.high, color=OURS, alpha=0.2, lw=0)
    axes.plot(curve.episodes, curve.value, "o-", color=OURS, lw=2, label=f"ours, up to {curve.value[-1]:.3f}")
    if certificate:
        sure = f"ours, certified: {certificate.value_lower:.3f} ({1 - certificate.delta:.0%} sure)"
        axes.plot(summary.real.drawn, certificate.value_lower, "v", color="black", label=sure)
    axes.set_xscale("log")
    axes.set_xticks(curve.episodes, [f"{episodes:,}" for episodes in curve.episodes])
    axes.minorticks_off()
    axes.set_xlabel("real-world episodes, none with a reward")
    axes.set_ylabel("expected total reward per episode")
    axes.set_title(f"{summary.experiment}: what looking is worth", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
