"""Deploys a trained policy in a world that shows no reward, from its policy file alone.

s2r-deploy checkpoint=runs/grid/.../policy.safetensors world=grid world.seed=7
s2r-deploy checkpoint=FILE collect_only=true template=plan.csv      # what to record: a form to fill in
s2r-deploy checkpoint=FILE world=recorded world.file=yesterday.csv  # episodes that were logged
s2r-deploy checkpoint=FILE world=gym world.make=my_robot:connect log=real.csv sequential=true
"""

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from s2r_torch.commands.configuration import plain_config, script
from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.recording.files import write_template
from s2r_torch.files.whole import fixed_path
from s2r_torch.reports.deployment import promises, report, to_collect
from s2r_torch.reports.endings import say, terminal
from s2r_torch.runs.deploy_settings import deploy_settings
from s2r_torch.runs.deploying import deploy_at, site_of
from s2r_torch.text import printable


def run(cfg: DictConfig, folder: Path, console: Console) -> None:
    """One deployment: what to collect, then, unless that was all, what came of it."""
    settings = deploy_settings(plain_config(cfg))
    export = settings.export and fixed_path(settings.export)
    with site_of(settings) as site:
        console.print(to_collect(site), soft_wrap=True)
        if settings.template:
            write_template(settings.template, site.missing, site.policy.spec)
            say(console, f"template with empty readings written to {printable(settings.template)}")
        if settings.collect_only:
            return
        if site.keeps_nothing:
            say(console, "note: these episodes are not kept; log=real.csv would, also when this is interrupted")
        deployed = deploy_at(site)
    console.print(report(site.policy, deployed))
    say(console, promises(site, deployed.deployment))
    if export:
        export_policy(deployed.deployment.policy, export)
        say(console, f"policy of this world written to {printable(settings.export)}")
    if deployed.not_closed:
        raise deployed.not_closed


def kept(cfg: DictConfig, folder: Path) -> str:
    return f"what was seen is in {cfg.log}: the same command goes on from there" if cfg.log else "nothing was kept"


def about() -> str:
    from s2r_torch.commands.help import help_on_deployments

    return help_on_deployments(__doc__)


def main() -> None:
    script("deploy", run, kept=kept, about=about, console=terminal())
