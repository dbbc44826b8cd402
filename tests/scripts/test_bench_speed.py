"""The report on speed at smoke size: everything that it times can be done."""

import argparse
from pathlib import Path

import pytest
from rich.console import Console

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.slow
def test_everything_that_is_timed_can_be_done(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_speed

    assert {case.size for case in bench_speed.cases()} == {"B", "n", "G", "F", "xi", "H, xi"}
    for case in bench_speed.cases():
        sizes = case.scaled(0.001)
        assert len(set(sizes)) == len(case.sizes) and case.scaled(1.0) == list(case.sizes)
        case.make(sizes[0])()
    options = argparse.Namespace(repeats=1, scale=0.02)
    for part in ("densities", "classes", "decisions"):
        for gate in bench_speed.PARTS[part](Console(quiet=True), options):
            assert gate.value > 0


def test_a_slope_is_the_exponent(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from bench_speed import slope

    assert slope([10, 20, 40, 80], [3, 12, 48, 192]) == pytest.approx(2)
