"""The help of the commands: their own words, then every setting."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable

from s2r_torch.encoders import ENCODERS
from s2r_torch.families import FAMILIES
from s2r_torch.predictors.nets.settings import NetSettings
from s2r_torch.predictors.registry import NETS
from s2r_torch.reports.help import settings_help, words_of
from s2r_torch.runs.deploy_settings import WORLDS, DeploySettings
from s2r_torch.runs.settings import RunSettings


def parameters_of(family: Callable) -> str:
    """A family's parameters with their defaults, as a command line has them."""
    named = inspect.signature(family).parameters.values()
    return " ".join(f"env.{p.name}={'???' if p.default is p.empty else p.default}" for p in named)


def help_on_checks(doc: str | None) -> str:
    """The help of the command that checks: its own words, and what it looks at of a run's settings."""
    lines = [
        words_of(doc),
        "",
        f"env=grid: one of {', '.join(FAMILIES)}, or yours; env.KEY=VALUE",
        f"encoder=identity: one of {', '.join(ENCODERS)}, or yours; encoder.KEY=VALUE",
        "plugins=[]: modules of yours that register families and encoders",
        "seed=0: of all that is drawn",
        "",
        "s2r-run --help: every family's parameters, and all settings of a run",
    ]
    return "\n".join(lines)


def help_on_deployments(doc: str | None) -> str:
    """The help of the command that deploys: its own words, then every setting."""
    lines = [words_of(doc), "", "Settings: KEY=VALUE on the command line; what is shown is the default.", ""]
    lines += settings_help(DeploySettings, leave_out=["world"])
    for kind, record in WORLDS.items():
        named = f"world={kind}" if kind != "family" else f"world=family, or one of {', '.join(FAMILIES)}, or yours"
        lines += ["", f"{named}: {str(inspect.getdoc(record)).splitlines()[0]}", *settings_help(record, "world")]
    return "\n".join(lines)


def help_on_runs(doc: str | None) -> str:
    """The help of a command that makes runs: its own words, then every setting."""
    lines = [
        words_of(doc),
        "",
        "Settings: KEY=VALUE on the command line; what is shown is the default. Values of your own: env/NAME.yaml and",
        "experiment/NAME.yaml in the working folder or its conf/, for env=NAME and +experiment=NAME.",
        "",
        "env=grid: a family, with its parameters env.KEY=VALUE, or one that plugins register",
        *(line for name in FAMILIES for line in textwrap.wrap(f"env={name} {parameters_of(FAMILIES[name])}", 110)),
        f"net=lookup: a network: {', '.join(NETS)}, or one that plugins register;",
        "    'net=[lookup,conv]' takes both",
        *settings_help(NetSettings, "net.NAME"),
        "plugins=[]: modules of yours that register families and networks",
        *settings_help(RunSettings, leave_out=["nets"]),
        "",
        "hydra.run.dir=FOLDER: where results go; --multirun (-m): several values per key, a,b,c; --hydra-help: more",
    ]
    return "\n".join(lines)
