"""Reinforcement learning trained on many simulators and deployed in a world where no reward is ever seen.

For deployment, all that is needed:

    policy = s2r_torch.load_policy("policy.safetensors")
    deployed = s2r_torch.deploy(policy, world)                                  # a live world (UnlabelledWorld)
    log = s2r_torch.read_recording("yesterday.csv", policy.problem.spec)        # or episodes that were logged
    deployed = s2r_torch.deploy_recorded(policy, log)
    actions = deployed.policy.act(step, x)

A whole run, without a configuration file:

    family = s2r_torch.make_family("grid", width=3)
    s2r_torch.check_family(family).require()                                    # is it what it says? a run asks, too
    results = s2r_torch.execute(s2r_torch.RunSettings(name="mine"), family, Path("runs/mine"))
    summary = s2r_torch.write_reports(results, Path("runs/mine"))

Names are imported when they are first used: deployment never waits for training.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s2r_torch.comparators.contract import register_comparator
    from s2r_torch.deployment.deploy import deploy, deploy_recorded
    from s2r_torch.deployment.policy_file import load_policy, save_policy
    from s2r_torch.deployment.recording.files import read_recording
    from s2r_torch.families import make_family, register_family
    from s2r_torch.families.check import check_family
    from s2r_torch.predictors.nets.net import Net
    from s2r_torch.predictors.registry import register as register_net
    from s2r_torch.registry import import_plugins
    from s2r_torch.reports.files import write_reports
    from s2r_torch.reports.summary import Summary
    from s2r_torch.runs.run import execute
    from s2r_torch.runs.settings import RunSettings

__version__ = "0.2.0"

_HOMES = {
    "load_policy": "deployment.policy_file",
    "save_policy": "deployment.policy_file",
    "deploy": "deployment.deploy",
    "deploy_recorded": "deployment.deploy",
    "read_recording": "deployment.recording.files",
    "make_family": "families",
    "register_family": "families",
    "check_family": "families.check",
    "Net": "predictors.nets.net",
    "register_net": "predictors.registry:register",
    "register_comparator": "comparators.contract",
    "import_plugins": "registry",
    "RunSettings": "runs.settings",
    "execute": "runs.run",
    "Summary": "reports.summary",
    "write_reports": "reports.files",
}
__all__ = [
    "Net",
    "RunSettings",
    "Summary",
    "check_family",
    "deploy",
    "deploy_recorded",
    "execute",
    "import_plugins",
    "load_policy",
    "make_family",
    "read_recording",
    "register_comparator",
    "register_family",
    "register_net",
    "save_policy",
    "write_reports",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
