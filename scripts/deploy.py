"""Deploys a trained policy in a world that shows no reward, from its policy file alone.

python scripts/deploy.py checkpoint=runs/grid/.../policy.safetensors world=grid world.seed=7
python scripts/deploy.py checkpoint=FILE collect_only=true template=plan.csv      # what to record: a form to fill in
python scripts/deploy.py checkpoint=FILE world=recorded world.file=yesterday.csv  # episodes that were logged
python scripts/deploy.py checkpoint=FILE world=gym world.make=my_robot:connect log=real.csv sequential=true
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import signal
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.recording.files import write_template
from s2r_torch.reports.console import clear_ending
from s2r_torch.reports.deployment import plan, promises, report, say
from s2r_torch.runs.command_line import completed
from s2r_torch.runs.deploy_settings import deploy_settings
from s2r_torch.runs.deploying import deploy_at, site_of

CONF = Path(__file__).resolve().parent.parent / "conf"
WORLDS = {path.stem for path in (CONF / "world").glob("*.yaml")}


def run(cfg: DictConfig, console: Console) -> None:
    """One deployment: what to collect, then, unless that was all, what came of it."""
    settings = deploy_settings(OmegaConf.to_container(cfg, resolve=True))
    with site_of(settings) as site:
        console.print(plan(site), soft_wrap=True)
        if settings.template:
            write_template(settings.template, site.plan, site.policy.problem.spec)
            say(console, f"template with empty readings written to {settings.template}")
        if settings.collect_only:
            return
        if site.keeps_nothing:
            say(console, "note: these episodes are not kept; log=real.csv would, also when this is interrupted")
        deployed = deploy_at(site)
    console.print(report(site.policy, deployed))
    console.print(promises(site, deployed.deployment), soft_wrap=True)
    if settings.export:
        export_policy(deployed.deployment.policy, settings.export)
        say(console, f"policy of this world written to {settings.export}")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="deploy")
def main(cfg: DictConfig) -> None:
    console = Console()
    for ending in (signal.SIGTERM, signal.SIGHUP):  # a service that is stopped is interrupted, not killed
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, signal.default_int_handler)
    kept = f"what was seen is in {cfg.log}: the same command goes on from there" if cfg.log else "nothing was kept"
    with clear_ending(console, kept):
        run(cfg, console)


if __name__ == "__main__":
    sys.argv[1:] = completed(sys.argv[1:], WORLDS)
    main()
