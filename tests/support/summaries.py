"""Summaries by hand, for tables and figures: no run."""

from s2r_torch.learning.bought import Bought
from s2r_torch.learning.elimination import Call
from s2r_torch.planner.looking import Looking
from s2r_torch.reports.summary import (
    ClassFacts,
    Eliminated,
    Merging,
    ProblemFacts,
    RealEpisodes,
    Summary,
    Value,
)
from s2r_torch.runs.evaluation import Worth


def summary_by_hand(regret=0.02, certified=True, size=8, calls=((0, 5), (3, 3)), **changes) -> Summary:
    """A run that lost that share of the optimum, with calls of TD-Eliminate as (state, survivors)."""
    worth = 0.6 * (1 - regret)
    facts = {
        "experiment": "grid",
        "seed": 0,
        "method": "sim2real",
        "rule": "calibrated",
        "net": "lookup",
        "family": {"name": "grid", "parameters": {"width": 3}},
        "problem": ProblemFacts(2, 5, 2, 9, (1, 2, 3, 2, 1), 9),
        "density": {"nodes": (24, 24), "bandwidth": (0.2, 0.2)},
        "merging": Merging(17, 0.4, 0.25, 2.0, 4.9),
        "ensemble": ClassFacts(
            size, 1234, calls[-1][1] if calls else size, 1, 10.0 if certified else None, (), certified, False, None
        ),
        "elimination": Eliminated(
            "accepted", (), tuple(Call(s, n, 0.1, 0.2, 0.01) for s, n in calls), None, None, 0.0, Bought(5.0, None, 0)
        ),
        "appraisal": None,
        "value": Value(
            Worth(worth, worth - 0.01, worth + 0.01, 0.6, "exact", 40),
            {"consistent": 40},
            Looking((5, 10), (15, 30), (worth - 0.1, worth), (0.4, 0.5), (0.5, 0.6), 0.6),
            {"optimal": 0.6, "open_loop": 0.5, "blind": 0.45, "random": 0.4},
        ),
        "episodes": {"explore": 1000},
        "steps": {"explore": 3000},
        "real": RealEpisodes(300, 3, 100, 900, 3000),
        "certificate": None,
        "assumptions": (),
        "notices": (),
        "warnings": (),
        "seconds": {"explore": 1.0},
        "cpu_seconds": 7.0,
        "versions": {},
    }
    return Summary(**facts | changes)
