"""Checks a family in seconds, before any run: what was looked at, what was found, the likely cause, what to write.

s2r-check env=grid
s2r-check env=grid env.width=5 env.noise_high=0.3
s2r-check env=digits encoder=pca      what an encoder makes of the readings: fitted as a run does, then checked
s2r-check env=my_world                a family of your own, from my_world.py in this folder

Exit code 2 if a run would be wrong.
"""

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from s2r_torch.commands.configuration import plain_config, script
from s2r_torch.reports.console import LiveReporter
from s2r_torch.reports.endings import Ended, say, terminal
from s2r_torch.reports.family_check import check_table
from s2r_torch.runs.checking import check_encoded
from s2r_torch.runs.configuring import configured


def check(cfg: DictConfig, folder: Path, console: Console) -> None:
    """One check, of the family and the encoder that a run with these settings would have."""
    settings, family = configured(plain_config(cfg))
    with LiveReporter(console) as progress:
        encoded, report = check_encoded(settings, family, progress)
    for note in encoded.notes:
        say(console, note)
    console.print(check_table(report))
    if report.refused:
        raise Ended(2)


def kept(cfg: DictConfig, folder: Path) -> str:
    return "nothing was written"


def about() -> str:
    from s2r_torch.commands.help import help_on_checks

    return help_on_checks(__doc__)


def main() -> None:
    script("check", check, kept=kept, about=about, console=terminal())
