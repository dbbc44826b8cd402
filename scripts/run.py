"""Runs the whole method on a family: explore, train F, eliminate, deploy in held-out worlds, report.

python scripts/run.py +experiment=grid
python scripts/run.py +experiment=frozenlake seed=1
python scripts/run.py +experiment=grid net=mlp method=sweep rule=sharp
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import json
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from s2r_torch.registry import import_plugins
from s2r_torch.reports.console import LiveReporter, clear_ending, table, write_metrics
from s2r_torch.reports.exploration_figure import exploration_figure
from s2r_torch.reports.learning_figure import learning_figure, surfaces
from s2r_torch.reports.run_figure import run_figure
from s2r_torch.reports.summary import partial_summary, summary
from s2r_torch.reports.value_figure import value_figure
from s2r_torch.runs.pipeline import Run
from s2r_torch.runs.settings import RunSettings, settings_from

CONF = str(Path(__file__).resolve().parent.parent / "conf")


def run(cfg: DictConfig, folder: Path, console: Console) -> dict:
    """One run in its folder; whatever stages finish are left there, also when it is interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    import_plugins(cfg.plugins)
    settings: RunSettings = settings_from(OmegaConf.to_container(cfg, resolve=True))
    torch.set_num_threads(cfg.trainer.threads)
    family = instantiate(cfg.env)
    with LiveReporter(console) as reporter:
        job = Run(settings, family, folder, reporter)
        try:
            job.execute()
        except BaseException as error:
            _write(folder, partial_summary(job, type(error).__name__))
            raise
        finally:
            write_metrics(folder / "metrics.csv", reporter.rows)
    result = summary(job)
    _write(folder, result)
    run_figure(result, reporter.rows, folder / "run.png")
    exploration_figure(job.exploration, job.estimator.grid, family.spec.obs_names, folder / "exploration.png")
    judges = job.outcome.exploration.D_hat
    shown = surfaces(job.meta_policy, judges, job.draws.theta("judge", len(judges)))
    learning_figure(result, reporter.rows, shown, folder / "learning.png")
    value_figure(result, folder / "value.png")
    console.print(table(result))
    console.print(f"written to {folder}", soft_wrap=True, highlight=False)
    return result


def _write(folder: Path, result: dict) -> None:
    (folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n")


@hydra.main(version_base="1.3", config_path=CONF, config_name="run")
def main(cfg: DictConfig) -> None:
    console = Console()
    folder = Path(HydraConfig.get().runtime.output_dir)
    with clear_ending(console, f"the same command with hydra.run.dir={folder} goes on from there"):
        run(cfg, folder, console)


if __name__ == "__main__":
    main()
