"""What a terminal shows of a run: progress while it works, then a table."""

from __future__ import annotations

import csv
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from s2r_torch.deployment.certificate import Certificate
from s2r_torch.files.whole import replacing
from s2r_torch.progress import Row
from s2r_torch.reports.summary import OPTIMAL, Summary, Value, label_of
from s2r_torch.runs.evaluation import best_without_looking

HIDDEN = ("real", "evaluate")  # purposes that are told elsewhere, or belong to nobody's method


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
        self.task: TaskID | None = None
        self.started = 0.0

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
        pass  # curves are kept with the results

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


def write_metrics(path: Path, rows: list[Row]) -> None:
    """metrics.csv: one tidy row per recorded value."""
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("series", "step", "value"))
        writer.writerows(rows)


def table(summary: Summary) -> Table:
    """The summary of a run, for the end of its output."""
    view = Table(title=f"{summary.experiment}  seed {summary.seed}", title_justify="left", show_header=False)
    view.add_column(style="bold")
    view.add_column(overflow="fold")
    for name, text in lines(summary):
        view.add_row(name, escape(text))
    return view


def lines(summary: Summary) -> list[tuple[str, str]]:
    """(what, in words) for everything that a run found."""
    certificate = [("certified", _promise(summary.certificate))] if summary.certificate else []
    return [
        *_problem(summary),
        *_class(summary),
        *_appraisal(summary),
        *_values(summary),
        *_episodes(summary),
        *certificate,
        ("seconds", f"{sum(summary.seconds.values()):.1f}"),
        *((f"{found.assumption} {found.verdict}", found.text) for found in summary.assumptions),
        *(("note", notice) for notice in summary.notices),
    ]


def _appraisal(summary: Summary) -> list[tuple[str, str]]:
    """What the policy earns on simulators, before it is deployed anywhere."""
    found = summary.appraisal
    if not found:
        return []
    again = f"; learned {found.attempts} times" if found.attempts > 1 else ""
    return [
        (
            "on simulators",
            f"earns {found.policy:.3f}, loses {found.loss} of an estimated optimum of {found.optimum:.3f} (95 %: "
            f"{found.between[0]:.3f} .. {found.between[1]:.3f}); best fixed list {found.fixed:.3f}{again}",
        )
    ]


def _problem(summary: Summary) -> list[tuple[str, str]]:
    problem, merging = summary.problem, summary.merging
    apart = f"{merging.zeta_hat:.3g}" if merging.zeta_hat else "none to compare"
    pruned = problem.states_found > problem.num_states
    of = f" of {problem.states_found}, those that good lists of actions pass," if pruned else ""
    return [
        (
            "problem",
            f"{problem.num_states} states{of} in {problem.horizon} layers {list(problem.states_per_layer)}, "
            f"{problem.num_actions} actions, observations in R^{problem.obs_dim}",
        ),
        (
            "merging",
            f"{merging.paths} paths; same states differ by at most {merging.largest_merged:.3g}, "
            f"different ones by at least {apart}; noise {merging.noise:.3g}",
        ),
    ]


def _class(summary: Summary) -> list[tuple[str, str]]:
    ensemble = summary.ensemble
    bound = f"C_L <= {ensemble.lipschitz_bound:.3g} certified" if ensemble.certified else "NOT certified: no C_L"
    for found in ensemble.lipschitz_estimates:
        estimate = found.estimate.significant or found.estimate.largest
        bound += f" ({found.net}: {found.factor:g} x {estimate:.3g} from pairs)"
    text = (
        f"{ensemble.size} predictors ({summary.net}), {bound}; "
        f"{ensemble.survivors} survive {summary.method} with rule {summary.rule}"
    )
    fate = {True: "survives", False: "was eliminated"}
    known = [] if ensemble.f_star_survives is None else [("f*", fate[ensemble.f_star_survives])]
    trained = ensemble.f_star_survives is None  # holds no f*: what it is worth is certified, not derived
    return [("class F", text), *known, *([] if trained else [("sizes buy", _bought(summary))])]


def _bought(summary: Summary) -> str:
    """What the theorems say about this run's sample sizes, and what its survivors show (theory.md 2.5, 2.7)."""
    found, survive = summary.elimination.bought, summary.ensemble.f_star_survives
    before = f"for a class that holds f*, rule sharp: within {found.before:.3g} of V*{_nothing(found.before)}"
    if found.after is None:
        return (
            f"{before}; {found.unlearned} states were not learned, so survivors show nothing (method=sweep learns all)"
        )
    if not survive:
        return f"{before}; f* was eliminated, so survivors show nothing"
    return f"{before}; by this run's survivors: within {found.after:.3g} on its simulators{_nothing(found.after)}"


def _nothing(bound: float) -> str:
    return ", which says nothing" if bound >= 1 else ""


def _values(summary: Summary) -> list[tuple[str, str]]:
    value, worth = summary.value, summary.value.worth
    kind = "" if worth.optimal_kind == "exact" else f"  ({worth.optimal_kind})"
    given = ", ".join(f"{count} {verdict}" for verdict, count in sorted(value.verdicts.items()))
    prior = ", ".join(f"{label_of(name)} {number:.4f}" for name, number in value.policies.items())
    return [
        (
            "deployed value",
            f"{worth.value:.4f}  (95 %: {worth.low:.4f} .. {worth.high:.4f}), "
            f"{value.share:.3f} of optimal, on {worth.num_worlds} held-out worlds",
        ),
        ("those worlds", f"{given} (like the simulators? judged before acting)"),
        ("optimal there", f"{worth.optimal:.4f}{kind}"),
        ("over the prior", prior),
        *_densities(value),
    ]


def _densities(value: Value) -> list[tuple[str, str]]:
    """What looking adds to the best policy that does not look, as a share of the optimum of either's worlds."""
    unseeing = best_without_looking(value.policies)
    if not unseeing:
        return []
    name, without = unseeing[0], unseeing[1] / value.policies[OPTIMAL]
    text = f"{value.share - without:+.3f} of optimal: {value.share:.3f} with them, {without:.3f} by {label_of(name)}"
    return [("densities bring", text)]


def _episodes(summary: Summary) -> list[tuple[str, str]]:
    real = summary.real
    return [
        ("simulator episodes", _by_purpose(summary.episodes)),
        ("simulator steps", _by_purpose(summary.steps)),
        (
            "real episodes",
            f"{real.drawn:,} per world, none with a reward, along {real.sequences} action sequences; "
            f"one path per state would take {real.one_path_per_state:,}, n H S A {real.as_stated:,}",
        ),
    ]


def _by_purpose(counts: dict[str, int]) -> str:
    """What simulators were asked for, in all and by purpose."""
    own = {name: count for name, count in counts.items() if name not in HIDDEN}
    return ", ".join([f"{sum(own.values()):,} in all", *(f"{name} {count:,}" for name, count in own.items())])


def _promise(certificate: Certificate) -> str:
    """The promises in one line; `certificate.txt` has the page."""
    most = f"; at least {certificate.share:.0%} of worlds reach {certificate.share_value:.3f}"
    return (
        f"mean over the prior >= {certificate.value_lower:.4f}"
        f"{most if certificate.share_value > 0 else ''}; confidence {1 - certificate.delta:.0%}, "
        f"from {certificate.simulators} fresh simulators, assuming i.i.d. theta only"
    )
