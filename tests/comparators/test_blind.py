"""The best policy without densities: never below the best fixed list on its simulators, and what looking is worth."""

import itertools
from dataclasses import replace

import pytest
from support.known import known_on, worlds_of

from s2r_torch.comparators import blind
from s2r_torch.comparators.blind import Blind, BlindPolicy
from s2r_torch.comparators.open_loop import ActionList, OpenLoop
from s2r_torch.comparators.policies import follow
from s2r_torch.comparators.policy_search import GridPolicy
from s2r_torch.graph import Path
from s2r_torch.runs.evaluation import attempt_values, best_without_looking

SETTINGS = {"sweeps": 2, "simulators": 8, "n": 200}


def extremes(known) -> tuple[Path, Path]:
    """The lists of actions that earn least and most, by exact values."""
    worlds = worlds_of(known.draws.family, 100)

    def value(actions: Path) -> float:
        return float(attempt_values(ActionList(actions).attempt(worlds), worlds, 1).mean())

    lists = sorted(itertools.product(range(2), repeat=5), key=value)
    return lists[0], lists[-1]


@pytest.mark.parametrize("better", ["the list", "the search"])
def test_the_better_candidate_on_its_simulators_is_taken(better, monkeypatch):
    """A search that goes where least pays gives way to the list; one that earns more than the list does not."""
    known = known_on("grid")
    least, most = extremes(known)
    listed, acting = (most, least) if better == "the list" else (least, most)
    monkeypatch.setattr(GridPolicy, "act", property(lambda policy: follow(acting)))
    monkeypatch.setattr(blind, "best_action_list", lambda graph, samples: listed)
    assert Blind(**SETTINGS).fit(known).actions == (listed if better == "the list" else None)


def test_it_earns_no_less_than_the_list_and_says_when_it_is_one():
    known = known_on("grid")
    worlds = worlds_of(known.draws.family, 200)
    fitted = Blind(**SETTINGS).fit(known)
    listed = BlindPolicy(fitted.policy, OpenLoop().fit(known).actions)
    by_list = float(attempt_values(OpenLoop().fit(known).attempt(worlds), worlds, 1).mean())
    assert float(attempt_values(listed.attempt(worlds), worlds, 1).mean()) == pytest.approx(by_list, abs=1e-12)
    assert "best fixed list" in listed.attempt(worlds).note and not replace(listed, actions=None).attempt(worlds).note
    assert float(attempt_values(fitted.attempt(worlds), worlds, 1).mean()) >= by_list - 0.05


def test_densities_are_measured_against_the_best_that_does_not_look():
    """Whoever looks or is paid in the real world does not count, however much it earns; nor does the optimum."""
    values = {"optimal": 0.7, "open_loop": 0.5, "blind": 0.52, "random": 0.4, "bayes": 0.69, "real_list": 0.68}
    assert best_without_looking(values) == ("blind", 0.52)
    assert best_without_looking({**values, "open_loop": 0.53}) == ("open_loop", 0.53)
    assert best_without_looking({"optimal": 0.7}) is None
