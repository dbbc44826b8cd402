"""The best policy without densities: never below the best fixed list on its simulators, and what looking is worth."""

from dataclasses import replace

import pytest
import torch
from support.known import known_on, worlds_of

from s2r_torch.comparators import blind
from s2r_torch.comparators.blind import Blind, BlindPolicy
from s2r_torch.comparators.open_loop import OpenLoop
from s2r_torch.runs.evaluation import attempt_values, best_without_looking

SETTINGS = {"members": 1, "simulators": 8, "n": 200}


@pytest.mark.parametrize("bad", [True, False], ids=["an untrained class", "a class that sees what pays"])
def test_the_better_candidate_on_its_simulators_is_taken(bad, monkeypatch):
    """A class that never goes where it pays gives way to the list; one that earns more than the list does not."""
    known = known_on("grid")
    best, calls = OpenLoop().fit(known).actions, []

    def acting(ensemble):
        calls.append(ensemble)
        first = 1 - best[0] if bad else best[0]
        worst_or_best = (first, *((1 - a if bad else a) for a in best[1:]))
        return lambda step, x: torch.full(x.shape[:2], worst_or_best[step], dtype=torch.int64)

    monkeypatch.setattr(blind, "reactive", acting)
    if not bad:  # a list worse than the class
        monkeypatch.setattr(blind, "best_action_list", lambda graph, samples: tuple(1 - a for a in best))
    found = Blind(**SETTINGS).fit(known)
    assert (found.actions == best) if bad else (found.actions is None) and calls


def test_it_earns_no_less_than_the_list_and_says_when_it_is_one():
    known = known_on("grid")
    worlds = worlds_of(known.draws.family, 200)
    fitted = Blind(**SETTINGS).fit(known)
    listed = BlindPolicy(fitted.ensemble, OpenLoop().fit(known).actions)
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
