"""Density estimates: speed beside peers and hardware limits, memory, and the error of bandwidth rules. One thread.

Times are medians of CPU time in one process, candidates interleaved; read the ratios. Peers: pip install -e '.[bench]'.
scipy and scikit-learn sum exactly over other kernels; KDEpy's FFT is approximate (linear binning) and Gaussian.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy: the CPU time of idle, spinning threads would be counted as the peers'

import torch  # noqa: E402
from bench_bandwidth import error_table  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from s2r_torch.density.bandwidth import reference_bandwidth  # noqa: E402
from s2r_torch.density.estimator import DensityEstimator, DensityGrid  # noqa: E402
from s2r_torch.density.kernels import LegendreKernel  # noqa: E402
from s2r_torch.density.moments import CHUNK  # noqa: E402

ORDER, HALF_WIDTH = 4, 5.0
Work = Callable[[], object]


@dataclass(frozen=True)
class Gate:
    """A ratio of times that must be at least, or at most, a bound."""

    name: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="interleaved repetitions of every timing")
    parser.add_argument("--samples", type=int, default=100_000, help="n of the large cases")
    parser.add_argument("--skip-errors", action="store_true", help="speed and memory only")


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    console = Console()
    missing = [name for name in ("scipy", "sklearn", "KDEpy") if find_spec(name) is None]
    if missing:
        console.print(f"not installed, left out: {', '.join(missing)} (pip install -e '.\\[bench]')")
    gates = [*line(console, options), *plane(console, options), *batch(console, options), *memory(console, options)]
    limits(console, options)
    if not options.skip_errors:
        console.print(error_table())
    return verdict(console, gates)


def verdict(console: Console, gates: Sequence[Gate]) -> int:
    """Prints which gates are met; 1 where one is missed."""
    table = Table("gate", "measured", "wanted", "")
    for gate in gates:
        sign = ">=" if gate.at_least else "<="
        table.add_row(gate.name, f"{gate.value:.3g}", f"{sign} {gate.bound:g}", "met" if gate.met else "MISSED")
    console.print(table)
    return 0 if all(gate.met for gate in gates) else 1


def line(console: Console, options: argparse.Namespace) -> list[Gate]:
    """d = 1, G = 256, order 4."""
    x, estimate = normal(options.samples, 1), estimator(1, 256, options.samples)
    h, X, nodes = estimate.bandwidth[0], x.numpy(), estimate.grid.nodes.numpy()
    candidates: dict[str, Work] = {"s2r_torch": lambda: estimate(x), "direct sum": lambda: direct(estimate)(x)}
    if find_spec("scipy"):
        from scipy.stats import gaussian_kde

        candidates["scipy"] = lambda: gaussian_kde(X.T)(nodes.T)
    if find_spec("sklearn"):
        from sklearn.neighbors import KernelDensity

        candidates["sklearn tree"] = lambda: (
            KernelDensity(kernel="epanechnikov", bandwidth=h).fit(X).score_samples(nodes)
        )
    if find_spec("KDEpy"):
        from KDEpy import FFTKDE

        candidates["KDEpy FFT"] = lambda: FFTKDE(bw=h / 5**0.5).fit(X).evaluate(256)
    t = report(console, f"d = 1, G = 256, n = {options.samples}", candidates, options.repeats)
    gates = [
        Gate("scipy / ours, d = 1", t["scipy"] / t["s2r_torch"], 50, True) if "scipy" in t else None,
        Gate("sklearn tree / ours, d = 1", t["sklearn tree"] / t["s2r_torch"], 80, True)
        if "sklearn tree" in t
        else None,
        Gate("ours / KDEpy FFT, d = 1", t["s2r_torch"] / t["KDEpy FFT"], 2.5, False) if "KDEpy FFT" in t else None,
    ]
    return [gate for gate in gates if gate]


def plane(console: Console, options: argparse.Namespace) -> list[Gate]:
    """d = 2, 64 x 64, order 4."""
    x, estimate = normal(options.samples, 2), estimator(2, 64, options.samples)
    candidates: dict[str, Work] = {"s2r_torch": lambda: estimate(x)}
    if find_spec("KDEpy"):
        from KDEpy import FFTKDE

        X, h = x.numpy(), estimate.bandwidth[0]
        candidates["KDEpy FFT"] = lambda: FFTKDE(bw=h / 5**0.5).fit(X).evaluate((64, 64))
    t = report(console, f"d = 2, 64 x 64, n = {options.samples}", candidates, options.repeats)
    return [Gate("ours / KDEpy FFT, d = 2", t["s2r_torch"] / t["KDEpy FFT"], 1, False)] if len(t) > 1 else []


def batch(console: Console, options: argparse.Namespace) -> list[Gate]:
    """512 states of 1000 samples each, d = 1, G = 256."""
    x, estimate = normal(512 * 1000, 1).reshape(512, 1000, 1), estimator(1, 256, 1000)
    candidates: dict[str, Work] = {"s2r_torch, 512 states": lambda: estimate(x)}
    if find_spec("scipy"):
        from scipy.stats import gaussian_kde

        X, nodes = x[0].T.numpy(), estimate.grid.nodes.T.numpy()
        candidates["scipy, 1 state"] = lambda: gaussian_kde(X)(nodes)
    t = report(console, "batched, d = 1, G = 256, n = 1000", candidates, options.repeats)
    ours = t["s2r_torch, 512 states"] / 512
    console.print(f"batched: {ours * 1e3:.4f} ms a state")
    return [Gate("scipy / ours, a state of a batch", t["scipy, 1 state"] / ours, 27, True)] if len(t) > 1 else []


def memory(console: Console, options: argparse.Namespace) -> list[Gate]:
    """Peak memory beyond the samples, for n and 30 n of them, from the kernel's high-water mark."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return []
    estimate, peaks = estimator(1, 256, 10**5), []
    for n in (options.samples, options.samples, 30 * options.samples):  # the first warms up
        x = normal(n, 1)
        reset.write_text("5")
        before = _kibibytes(status, "VmRSS")
        estimate(x)
        peaks.append((_kibibytes(status, "VmHWM") - before) / 1024)
    console.print(f"memory beyond n = {options.samples} samples {peaks[1]:.1f} MiB, beyond 30 n {peaks[2]:.1f} MiB")
    return [Gate("MiB more for 30 times the samples", peaks[2] - peaks[1], 8, False)]


def limits(console: Console, options: argparse.Namespace) -> None:
    """How far from what reading the samples and adding the moments costs, whatever finds their cells."""
    n = 10 * options.samples
    x, estimate = normal(n, 1), estimator(1, 256, n)
    cells = torch.randint(513, (CHUNK,), generator=torch.Generator().manual_seed(0))
    sums, values = torch.zeros(513, dtype=torch.float64), torch.ones(CHUNK, dtype=torch.float64)
    candidates: dict[str, Work] = {
        "s2r_torch": lambda: estimate(x),
        "stream": lambda: x.sum(),
        "scatter": lambda: sums.scatter_add_(0, cells, values),
    }
    t = {name: seconds / n * 1e9 for name, seconds in median_times(candidates, options.repeats).items()}
    t["scatter"] *= n / CHUNK
    powers = estimate.cells(torch.float64)[0].num_powers
    limit = t["stream"] + powers * t["scatter"]
    console.print(
        f"limit, d = 1, n = {n}: {t['stream']:.2f} ns to read a sample + {powers} x {t['scatter']:.2f} ns to add a "
        f"moment = {limit:.2f}; reached {t['s2r_torch']:.2f} ns, {t['s2r_torch'] / limit:.1f} times the limit"
    )


def report(console: Console, title: str, candidates: dict[str, Work], repeats: int) -> dict[str, float]:
    """Times the candidates and prints them beside the first."""
    times = median_times(candidates, repeats)
    ours = next(iter(times.values()))
    table = Table("", "ms", "ratio", title=title)
    for name, seconds in times.items():
        table.add_row(name, f"{seconds * 1e3:.2f}", f"{seconds / ours:.2f}")
    console.print(table)
    return times


def median_times(candidates: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, interleaved, after one run that warms up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, work in candidates.items():
            start = time.process_time()
            work()
            if repeat:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def estimator(d: int, nodes: int, n: int) -> DensityEstimator:
    """On a standard normal's grid, with the normal reference bandwidth."""
    grid, kernel = DensityGrid.uniform((-HALF_WIDTH,) * d, (HALF_WIDTH,) * d, nodes), LegendreKernel(ORDER)
    return DensityEstimator(grid, kernel, reference_bandwidth(normal(1000, d), n, kernel))


def direct(estimate: DensityEstimator) -> DensityEstimator:
    return DensityEstimator(estimate.grid, estimate.kernel, estimate.bandwidth, method="direct")


def normal(n: int, d: int) -> torch.Tensor:
    """n standard normal samples [n, d], float64."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n + d), dtype=torch.float64)


def _kibibytes(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name + ":"))
