"""The density benchmarks run at smoke size; peers are optional."""

import subprocess
import sys
from pathlib import Path

import pytest

from s2r_torch.density.kernels import LegendreKernel

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.slow
def test_speed_and_memory():
    command = [
        sys.executable,
        str(SCRIPTS / "bench.py"),
        "density",
        "--samples",
        "2000",
        "--repeats",
        "1",
        "--skip-errors",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a gate is missed, as it may be at this size
    for words in ("d = 1, G = 256, n = 2000", "times the limit", "beyond 30 n", "scipy / ours, d = 1"):
        assert words in done.stdout


def test_errors_are_ratios_to_the_best_bandwidth(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from bench_bandwidth import SHAPES, errors

    assert set(SHAPES) == {"normal", "bimodal", "skewed", "claw"}
    oracle, (paper, reference, lepski) = errors(SHAPES["bimodal"], LegendreKernel(2), 300, trials=10)
    assert 0.05 < oracle < 0.2 and 0.9 < paper < 1.2 and reference > 2 and 0.9 < lepski < 1.2
