"""Compares whole runs: every entry of a comparison with every seed, then one table, one figure and the rows as CSV.

s2r-compare compare=nets +experiment=grid
s2r-compare compare=comparators +experiment=grid     published methods, in the same held-out worlds
s2r-compare compare=nets +experiment=frozenlake 'compare.seeds=[0]'

Finished runs are kept: started again, it goes on where it was stopped, and redoes only runs whose settings changed.
"""

import re
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from s2r_torch.commands.configuration import composed, plain_config, script, task_overrides
from s2r_torch.errors import OtherRunError, SettingError
from s2r_torch.families.contract import Family
from s2r_torch.files.whole import probe
from s2r_torch.progress import Silent
from s2r_torch.reports.comparators_figure import comparators_figure
from s2r_torch.reports.comparators_table import LINES, comparators_table, lines_of, where_we_lose, write_lines
from s2r_torch.reports.comparison import ROWS, ComparedRun, comparison_table, write_comparison
from s2r_torch.reports.endings import terminal
from s2r_torch.reports.style import plain_look, save_figure
from s2r_torch.reports.summary import Summary
from s2r_torch.runs.configuring import configured
from s2r_torch.runs.curves import Measured, measure
from s2r_torch.runs.folder import cleared, held, require_whole, write_json
from s2r_torch.runs.run import execute
from s2r_torch.runs.settings import ComparisonSettings, RunSettings
from s2r_torch.schema import build
from s2r_torch.text import from_here, printable
from s2r_torch.workers.choice import workers_of


class Bars(Silent):
    """Two progress bars: runs done, and the stage of the current one."""

    def __init__(self, console: Console, total: int):
        columns = (TextColumn("{task.description:<48}"), BarColumn(24), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.runs = self.progress.add_task("runs", total=total)
        self.current = self.progress.add_task("", total=None)
        self.label = ""

    def stage(self, name: str, total: int | None) -> None:
        self.progress.reset(self.current, description=f"{self.label}: {name}", total=total)

    def advance(self, done: int, note: str = "") -> None:
        self.progress.update(self.current, completed=done)


def run(settings: RunSettings, family: Family, folder: Path, progress: Silent) -> Summary:
    """One run; finished stages of the same configuration and version are kept, of another one replaced."""
    torch.set_num_threads(settings.trainer.threads)
    with closing(workers_of(settings.workers)) as workers:
        try:
            results = execute(settings, family, folder, progress, workers)
        except OtherRunError:
            cleared(folder)
            results = execute(settings, family, folder, progress, workers)
    summary = Summary.of(results)
    write_json(folder / "summary.json", summary.to_json())
    return summary


def compare(comparison: ComparisonSettings, title: str, given: list[str], folder: Path, console: Console) -> None:
    """All entries with all seeds; table, rows and figure of what is finished, also after an interruption."""
    cells = [
        (entry, seed, configured(plain_config(composed([*comparison.common, *given, *changes, f"seed={seed}"]))))
        for seed in comparison.seeds
        for entry, changes in comparison.entries.items()
    ]  # whatever is wrong with one of them is known before the first begins
    wanted, rows = comparison.wanted, []
    reporter = Bars(console, len(cells))
    try:
        with reporter.progress:
            for entry, seed, (settings, family) in cells:
                reporter.label, place = f"{entry}, seed {seed}", folder / f"{entry}-seed{seed}"
                rows.append(ComparedRun.of(entry, seed, run(settings, family, place, reporter)))
                console.print(
                    f"{reporter.label}: regret {rows[-1].regret:.4f} ({rows[-1].cpu_seconds:.0f} CPU s)",
                    highlight=False,
                )
                reporter.progress.advance(reporter.runs)
    finally:
        if rows:
            write_comparison(rows, title, wanted, folder)
            console.print(comparison_table(rows, title, wanted))
            console.print(f"written to {from_here(folder)}", soft_wrap=True, highlight=False)


def compare_comparators(
    comparison: ComparisonSettings, title: str, given: list[str], folder: Path, console: Console
) -> None:
    """Every comparator's curve; table, points and figure of what is finished, also after an interruption."""
    runs = [
        configured(plain_config(composed([*comparison.common, *given, f"seed={seed}"]))) for seed in comparison.seeds
    ]
    found, reporter = Measured(), Bars(console, len(runs))
    places = [folder / f"seed{settings.seed}" for settings, _ in runs]
    with ExitStack() as all_held:
        for place in places:
            all_held.enter_context(held(place))
            require_whole(place)  # before one is gone on with, and a table of all is replaced by one of some
        try:
            with reporter.progress:
                for number, (settings, family) in enumerate(runs):
                    torch.set_num_threads(settings.trainer.threads)
                    chosen = {name: curve for name, curve in comparison.curves.items() if number < curve.seeds}
                    reporter.label = f"seed {settings.seed}"
                    measure(settings, family, chosen, comparison.worlds, places[number], reporter, found)
                    reporter.progress.advance(reporter.runs)
        finally:
            if found.cells:
                write_comparators(found, title, folder, console)


def write_comparators(found: Measured, title: str, folder: Path, console: Console) -> None:
    """The table, the figure, the points, and where ours loses."""
    lines = lines_of(found)
    write_lines(lines, folder)
    with plain_look():
        save_figure(comparators_figure(lines, title), folder / "comparators.png")
    console.print(comparators_table(lines, title, found.left_out))
    for sentence in where_we_lose(lines):
        console.print(sentence, highlight=False)
    console.print(f"written to {from_here(folder)}", soft_wrap=True, highlight=False)


def job(cfg: DictConfig, folder: Path, console: Console) -> None:
    given = [text for text in task_overrides() if not text.lstrip("+~").startswith("compare")]
    seeds = [text for text in given if re.match(r"[+~]*seed\b", text)]
    if seeds:
        raise SettingError(
            expected="compare.seeds=[...]",
            got=printable(seeds[0]),
            cause="every entry is run with each of compare.seeds",
        )
    comparison = build(ComparisonSettings, plain_config(cfg)["compare"], "compare")
    title = f"{comparison.name} on {cfg.name}"
    do, written = (compare_comparators, LINES) if comparison.curves else (compare, ROWS)
    with held(folder):
        for name in written:
            probe(folder / name)
        do(comparison, title, given, folder, console)


def about() -> str:
    from s2r_torch.commands.help import help_on_runs

    return help_on_runs(__doc__)


def main() -> None:
    console = terminal() if sys.stdout.isatty() else Console(width=160)
    going_on = "the same command goes on from here"
    script("compare", job, kept=lambda cfg, folder: going_on, about=about, console=console)
