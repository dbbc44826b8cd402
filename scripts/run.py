"""Runs the whole method on a family: explore, train F, eliminate, deploy in held-out worlds, report.

python scripts/run.py +experiment=grid
python scripts/run.py +experiment=frozenlake seed=1
python scripts/run.py +experiment=grid net=mlp method=sweep rule=sharp

Stopped anywhere, the same command with hydra.run.dir=FOLDER goes on from there.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from s2r_torch.errors import FolderError
from s2r_torch.registry import import_plugins
from s2r_torch.reports.console import LiveReporter, clear_ending, table
from s2r_torch.reports.files import write_reports
from s2r_torch.reports.summary import unfinished
from s2r_torch.runs.folder import finished_stages, write_json, write_text
from s2r_torch.runs.run import execute
from s2r_torch.runs.settings import settings_from

CONF = str(Path(__file__).resolve().parent.parent / "conf")


def run(cfg: DictConfig, folder: Path, console: Console) -> None:
    """One run in its folder; whatever stages finish are left there, also when it is interrupted."""
    import_plugins(cfg.plugins)
    settings = settings_from(OmegaConf.to_container(cfg, resolve=True))
    torch.set_num_threads(cfg.trainer.threads)
    family = instantiate(cfg.env)
    try:
        with LiveReporter(console) as progress:
            results = execute(settings, family, folder, progress)
    except FolderError:
        raise  # that folder is another run's
    except BaseException as error:
        left = unfinished(settings.name, settings.seed, type(error).__name__, finished_stages(folder))
        write_json(folder / "summary.json", left)
        raise
    write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    console.print(table(write_reports(results, folder)))
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)


@hydra.main(version_base="1.3", config_path=CONF, config_name="run")
def main(cfg: DictConfig) -> None:
    console = Console()
    folder = Path(HydraConfig.get().runtime.output_dir)
    with clear_ending(console, f"the same command with hydra.run.dir={folder} goes on from there"):
        run(cfg, folder, console)


if __name__ == "__main__":
    main()
