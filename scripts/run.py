"""Runs the whole method on a family: explore, train F, eliminate, deploy in held-out worlds, report.

python scripts/run.py +experiment=grid
python scripts/run.py +experiment=frozenlake seed=1
python scripts/run.py +experiment=grid net=mlp method=sweep rule=sharp
python scripts/run.py +experiment=frozenlake workers=auto trainer.threads=1

Stopped anywhere, the same command with hydra.run.dir=FOLDER goes on from there.
"""

import starting

if __name__ == "__main__":
    starting.end_on_signals()

from contextlib import closing
from pathlib import Path

import torch
from configuration import plain_config, script
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from s2r_torch.errors import FolderError
from s2r_torch.files.whole import write_text
from s2r_torch.reports.console import LiveReporter, table
from s2r_torch.reports.summary import unfinished
from s2r_torch.runs.folder import finished_stages, write_json
from s2r_torch.runs.run import execute
from s2r_torch.runs.settings import configured
from s2r_torch.workers.choice import workers_of


def run(cfg: DictConfig, folder: Path, console: Console) -> None:
    """One run in its folder; whatever stages finish are left there, also when it is interrupted."""
    settings, family = configured(plain_config(cfg))
    torch.set_num_threads(settings.trainer.threads)
    try:
        with LiveReporter(console) as progress, closing(workers_of(settings.workers)) as workers:
            results = execute(settings, family, folder, progress, workers)
    except FolderError:
        raise  # that folder is another run's
    except BaseException as error:
        left = unfinished(settings.name, settings.seed, type(error).__name__, finished_stages(folder))
        write_json(folder / "summary.json", left)
        raise
    from s2r_torch.reports.files import write_reports  # matplotlib: nobody waits for it before there is a result

    write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    console.print(table(write_reports(results, folder)))
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)


def kept(cfg: DictConfig, folder: Path) -> str:
    return f"the same command with hydra.run.dir={folder} goes on from there"


def about() -> str:
    from script_help import help_on_runs

    return help_on_runs(__doc__)


if __name__ == "__main__":
    script("run", run, kept=kept, about=about, console=Console())
