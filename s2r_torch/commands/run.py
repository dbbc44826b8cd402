"""Runs the whole method on a family: explore, train F, eliminate, deploy in held-out worlds, report.

s2r-run +experiment=grid
s2r-run +experiment=frozenlake seed=1
s2r-run +experiment=grid net=mlp method=sweep rule=sharp
s2r-run +experiment=frozenlake workers=auto

Stopped anywhere, the same command with hydra.run.dir=FOLDER goes on from there.
"""

from contextlib import closing
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from s2r_torch.commands.configuration import plain_config, script
from s2r_torch.errors import FolderError
from s2r_torch.files.whole import write_text
from s2r_torch.reports.console import LiveReporter, table
from s2r_torch.reports.endings import terminal
from s2r_torch.reports.summary import unfinished
from s2r_torch.runs.configuring import configured
from s2r_torch.runs.folder import begun, finished_stages, write_json
from s2r_torch.runs.run import execute
from s2r_torch.text import from_here
from s2r_torch.workers.choice import workers_of


def run(cfg: DictConfig, folder: Path, console: Console) -> None:
    """One run in its folder; whatever stages finish are left there, also when it is interrupted."""
    settings, family = configured(plain_config(cfg))
    torch.set_num_threads(settings.trainer.threads)
    try:
        with LiveReporter(console) as progress, closing(workers_of(settings.workers)) as workers:
            results = execute(settings, family, folder, progress, workers)
    except FolderError:
        raise  # nothing was done in it
    except BaseException as error:
        if begun(folder):
            left = unfinished(settings.name, settings.seed, type(error).__name__, finished_stages(folder))
            write_json(folder / "summary.json", left)
        raise
    from s2r_torch.reports.files import write_reports  # matplotlib: nobody waits for it before there is a result

    write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    console.print(table(write_reports(results, folder)))
    console.print(f"written to {from_here(folder)}", soft_wrap=True, highlight=False)


def kept(cfg: DictConfig, folder: Path) -> str:
    return f"the same command with hydra.run.dir={from_here(folder)} goes on from there"


def about() -> str:
    from s2r_torch.commands.help import help_on_runs

    return help_on_runs(__doc__)


def main() -> None:
    script("run", run, kept=kept, about=about, console=terminal())
