"""Tests that every family passes, for pytest: subclass, and say how the family is made.

    class TestMine(FamilyContract):
        def make(self):
            return make_family("mine")

Each test is a part of `check.check_family`, which is run once per class.
"""

from __future__ import annotations

from s2r_torch.families.check import Report, check_family
from s2r_torch.families.contract import Family


class FamilyContract:
    """What simulation can say about a family, as tests; `make` is the only thing to write."""

    seed = 0
    allowed: tuple[str, ...] = ()  # notes that are known and meant, by what was checked
    _reports: dict[type, Report] = {}

    def make(self) -> Family:
        """The family under test."""
        raise NotImplementedError("make(self) returns the family under test")

    def report(self) -> Report:
        """What was found, once per class."""
        if type(self) not in self._reports:
            self._reports[type(self)] = check_family(self.make(), self.seed)
        return self._reports[type(self)]

    def test_name_parameters_and_prior(self):
        self._fine("name and parameters", "prior")

    def test_simulators_are_named_and_do_not_depend_on_each_other(self):
        self._fine("simulators", "one simulator beside others")

    def test_all_randomness_is_handed_in(self):
        self._fine("randomness")

    def test_start_and_dynamics_are_fixed(self):
        self._fine("theta in the environment", "fixed start, deterministic dynamics", "one state graph for all")

    def test_rewards_of_whole_episodes(self):
        self._fine("rewards and whole episodes")

    def test_readings(self):
        self._fine("readings vary", "box of readings", "distance of readings from 0", "states can be told apart")

    def test_truth_is_what_simulators_show(self):
        self._fine("truth")

    def test_theta_matters_and_shows(self):
        self._fine("theta matters", "what pays shows")

    def test_worlds_are_like_simulators(self):
        self._fine("worlds")

    def test_nothing_else_is_refused_or_noted(self):
        report = self.report()
        found = [f for f in (*report.refused, *report.notes) if f.checked not in self.allowed]
        assert not found, "\n".join(report.lines())

    def _fine(self, *checked: str) -> None:
        refused = [f for f in self.report().refused if f.checked in checked]
        assert not refused, "\n".join(Report(self.report().family, tuple(refused)).lines())
