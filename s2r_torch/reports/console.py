"""What a terminal shows of a run: progress while it works, then a table."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from s2r_torch.errors import S2RError


@contextmanager
def clear_ending(console: Console, kept: str) -> Iterator[None]:
    """How a script ends early: 130 after Ctrl-C, saying what is kept; 2 after an error of ours, in one line."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {kept}", soft_wrap=True, highlight=False)
        sys.exit(130)
    except S2RError as error:
        console.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


class LiveReporter:
    """Shows the stages of a run as they go; a plain line per stage where there is no terminal."""

    def __init__(self, console: Console):
        self.console = console
        columns = (
            TextColumn("{task.description:<44}"),
            BarColumn(24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console)
        self.task, self.started = None, 0.0
        self.rows: list[tuple[str, int, float]] = []

    def __enter__(self) -> LiveReporter:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *exception) -> None:
        self._finish(failed=exception[0] is not None)
        if self.console.is_terminal:
            self.progress.stop()

    def stage(self, name: str, total: int | None) -> None:
        self._finish()
        self.task, self.started = self.progress.add_task(name, total=total, note=""), time.perf_counter()

    def advance(self, done: int, note: str = "") -> None:
        if self.task is not None:
            self.progress.update(self.task, completed=done, note=note)

    def record(self, series: str, step: int, value: float) -> None:
        self.rows.append((series, step, value))

    def say(self, text: str) -> None:
        if self.task is not None:
            self.progress.update(self.task, note=text)

    def _finish(self, failed: bool = False) -> None:
        """Closes the running stage; its total was an upper bound."""
        if self.task is None:
            return
        task = self.progress.tasks[self.task]
        if not failed:
            total = task.completed or 1
            self.progress.update(self.task, total=total, completed=total)
        if not self.console.is_terminal:
            elapsed = time.perf_counter() - self.started
            line = f"{task.description:<44} {elapsed:7.1f} s  {task.fields['note']}"
            self.console.print(line, highlight=False, soft_wrap=True)
        self.task = None


def write_metrics(path: Path, rows: list[tuple[str, int, float]]) -> None:
    """metrics.csv: one tidy row per recorded value."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("series", "step", "value"))
        writer.writerows(rows)


def table(summary: dict) -> Table:
    """The summary of a run, for the end of its output."""
    value, episodes, ensemble = summary["value"], summary["episodes"], summary["ensemble"]
    view = Table(title=f"{summary['experiment']}  seed {summary['seed']}", title_justify="left", show_header=False)
    view.add_column(style="bold")
    view.add_column()
    problem = summary["problem"]
    view.add_row(
        "problem",
        f"{problem['num_states']} states in {problem['horizon']} layers {problem['states_per_layer']}, "
        f"{problem['num_actions']} actions, observations in R^{problem['obs_dim']}",
    )
    merging = summary["merging"]
    apart = f"{merging['zeta_hat']:.3g}" if merging["zeta_hat"] else "none to compare"
    view.add_row(
        "merging",
        f"{merging['paths']} paths; same states differ by at most {merging['largest_merged']:.3g}, "
        f"different ones by at least {apart}; noise {merging['noise']:.3g}",
    )
    certified = ensemble["certified"]
    bound = f"C_L <= {ensemble['lipschitz_bound']:.3g} certified" if certified else "NOT certified: no C_L"
    for found in ensemble["lipschitz_estimates"]:
        bound += f" ({found['net']}: {found['factor']:g} x {found['significant'] or found['largest']:.3g} from pairs)"
    view.add_row(
        "class F",
        f"{ensemble['size']} predictors ({summary['net']}), {bound}; "
        f"{ensemble['survivors']} survive {summary['method']} with rule {summary['rule']}",
    )
    if ensemble["f_star_survives"] is not None:
        view.add_row("f*", "survives" if ensemble["f_star_survives"] else "was eliminated")
    share = value["deployed"] / value["optimal"]
    view.add_row(
        "deployed value",
        f"{value['deployed']:.4f}  (95 %: {value['deployed_low']:.4f} .. {value['deployed_high']:.4f}), "
        f"{share:.3f} of optimal, on {value['num_worlds']} held-out worlds",
    )
    kind = "" if value["optimal_kind"] == "exact" else f"  ({value['optimal_kind']})"
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(value["verdicts"].items()))
    view.add_row("those worlds", f"{verdicts} (like the simulators? judged before acting)")
    view.add_row("optimal there", f"{value['optimal']:.4f}{kind}")
    view.add_row(
        "over the prior",
        f"optimal {value['optimal_population']:.4f}, best fixed action list {value['open_loop']:.4f}, "
        f"density-blind {value['blind']:.4f}, random {value['random']:.4f}",
    )
    names = ("explore", "train", "calibrate", "eliminate", "rollout", "diagnose", "certify")
    view.add_row("simulator episodes", ", ".join(f"{name} {episodes[name]:,}" for name in names))
    view.add_row(
        "real episodes",
        f"{episodes['real_per_world']:,} per world, none with a reward, along {summary['cover']} action sequences; "
        f"one path per state would take {episodes['real_one_path_per_state']:,}, "
        f"n H S A {episodes['real_as_stated']:,}",
    )
    if summary["certificate"]:
        view.add_row("certified", _promise(summary["certificate"]))
    view.add_row("seconds", f"{sum(summary['seconds'].values()):.1f}")
    for found in summary["assumptions"].values():
        view.add_row(f"{found['assumption']} {found['verdict']}", found["text"])
    for notice in summary["notices"]:
        view.add_row("note", notice)
    return view


def _promise(certificate: dict) -> str:
    """The promises in one line; `certificate.txt` has the page."""
    most = f"; at least {certificate['share']:.0%} of worlds reach {certificate['share_value']:.3f}"
    return (
        f"mean over worlds >= {certificate['value_lower']:.4f}"
        f"{most if certificate['share_value'] > 0 else ''}; confidence {1 - certificate['delta']:.0%}, "
        f"from {certificate['simulators']} fresh simulators, assuming i.i.d. theta only"
    )
