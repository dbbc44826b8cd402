"""Compares whole runs: every entry of a comparison with every seed, then one table, one figure and the rows as CSV.

python scripts/compare.py compare=nets +experiment=grid
python scripts/compare.py compare=comparators +experiment=grid     published methods, in the same held-out worlds
python scripts/compare.py compare=nets +experiment=frozenlake 'compare.seeds=[0]'

Finished runs are kept: started again, it goes on where it was stopped, and redoes only runs whose settings changed.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import shutil
import sys
from pathlib import Path

import hydra
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from s2r_torch.errors import FolderError
from s2r_torch.progress import Silent
from s2r_torch.registry import import_plugins
from s2r_torch.reports.comparators_figure import comparators_figure
from s2r_torch.reports.comparators_table import comparators_table, lines_of, where_we_lose, write_lines
from s2r_torch.reports.comparison import comparison_figure, comparison_table, row_of, write_rows
from s2r_torch.reports.console import clear_ending
from s2r_torch.reports.style import save_figure
from s2r_torch.reports.summary import Summary
from s2r_torch.runs.curves import Curve, Measured, measure
from s2r_torch.runs.folder import write_json
from s2r_torch.runs.run import execute
from s2r_torch.runs.settings import settings_from

CONF = str(Path(__file__).resolve().parent.parent / "conf")


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


def run(cfg: DictConfig, folder: Path, progress: Silent) -> Summary:
    """One run; finished stages of the same configuration and version are kept, of another one replaced."""
    torch.set_num_threads(cfg.trainer.threads)
    settings, family = settings_from(OmegaConf.to_container(cfg, resolve=True)), instantiate(cfg.env)
    try:
        results = execute(settings, family, folder, progress)
    except FolderError:
        shutil.rmtree(folder)
        results = execute(settings, family, folder, progress)
    summary = Summary.of(results)
    write_json(folder / "summary.json", summary.to_json())
    return summary


def compare(cfg: DictConfig, given: list[str], folder: Path, console: Console) -> None:
    """All entries with all seeds; table, rows and figure of what is finished, also after an interruption."""
    cells = [(entry, changes, seed) for seed in cfg.compare.seeds for entry, changes in cfg.compare.entries.items()]
    title, wanted, rows = f"{cfg.compare.name} on {cfg.name}", cfg.compare.wanted, []
    reporter = Bars(console, len(cells))
    try:
        with reporter.progress:
            for entry, changes, seed in cells:
                one = compose("run", [*cfg.compare.common, *given, *changes, f"seed={seed}"])
                reporter.label, place = f"{entry}, seed {seed}", folder / f"{entry}-seed{seed}"
                rows.append(row_of(entry, seed, run(one, place, reporter)))
                console.print(
                    f"{reporter.label}: regret {rows[-1]['regret']:.4f} ({rows[-1]['cpu_seconds']:.0f} CPU s)",
                    highlight=False,
                )
                reporter.progress.advance(reporter.runs)
    finally:
        if rows:
            write_rows(rows, folder)
            save_figure(comparison_figure(rows, title, wanted), folder / "comparison.png")
            console.print(comparison_table(rows, title, wanted))
            console.print(f"written to {folder}", soft_wrap=True, highlight=False)


def compare_comparators(cfg: DictConfig, given: list[str], folder: Path, console: Console) -> None:
    """Every comparator's curve; table, points and figure of what is finished, also after an interruption."""
    curves = OmegaConf.to_container(cfg.compare.curves, resolve=True)
    plan, found = {name: Curve(**curve) for name, curve in curves.items()}, Measured()
    reporter = Bars(console, len(cfg.compare.seeds))
    try:
        with reporter.progress:
            for number, seed in enumerate(cfg.compare.seeds):
                one = compose("run", [*cfg.compare.common, *given, f"seed={seed}"])
                torch.set_num_threads(one.trainer.threads)
                settings = settings_from(OmegaConf.to_container(one, resolve=True))
                chosen = {name: curve for name, curve in plan.items() if number < curve.seeds}
                reporter.label, place = f"seed {seed}", folder / f"seed{seed}"
                measure(settings, instantiate(one.env), chosen, cfg.compare.worlds, place, reporter, found)
                reporter.progress.advance(reporter.runs)
    finally:
        if found.cells:
            write_comparators(found, f"{cfg.compare.name} on {cfg.name}", folder, console)


def write_comparators(found: Measured, title: str, folder: Path, console: Console) -> None:
    """The table, the figure, the points, and where ours loses."""
    lines = lines_of(found)
    write_lines(lines, folder)
    save_figure(comparators_figure(lines, title), folder / "comparators.png")
    console.print(comparators_table(lines, title, found.left_out))
    for sentence in where_we_lose(lines):
        console.print(sentence, highlight=False)
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)


@hydra.main(version_base="1.3", config_path=CONF, config_name="compare")
def main(cfg: DictConfig) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130 if "curves" not in cfg.compare else 250)
    folder = Path(HydraConfig.get().runtime.output_dir)
    given = [text for text in HydraConfig.get().overrides.task if not text.lstrip("+~").startswith("compare")]
    with clear_ending(console, "the same command goes on from here"):
        import_plugins(cfg.plugins)
        (compare_comparators if "curves" in cfg.compare else compare)(cfg, given, folder, console)


if __name__ == "__main__":
    main()
