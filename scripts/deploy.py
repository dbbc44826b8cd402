"""Deploys a trained policy in a world that shows no reward, from its policy file alone.

python scripts/deploy.py checkpoint=runs/grid/.../policy.safetensors world=grid world.seed=7
python scripts/deploy.py checkpoint=FILE collect_only=true template=plan.csv      # what to record: a form to fill in
python scripts/deploy.py checkpoint=FILE world=recorded world.file=yesterday.csv  # episodes that were logged
python scripts/deploy.py checkpoint=FILE world=gym world.make=my_robot:connect log=real.csv sequential=true
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import importlib
import signal
from dataclasses import asdict
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.base import UnlabelledWorld
from s2r_torch.deployment import export
from s2r_torch.deployment.collection import Plan, missing_episodes
from s2r_torch.deployment.deploy import Deployment, deploy, deploy_recorded
from s2r_torch.deployment.likeness import CONSISTENT
from s2r_torch.deployment.logbook import Logbook
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import family_of, load_certificate, load_policy
from s2r_torch.deployment.recording.episodes import Recording, spelt
from s2r_torch.deployment.recording.files import read_recording, write_template
from s2r_torch.deployment.recording.tables import check_ending
from s2r_torch.deployment.stopping import Stopping
from s2r_torch.errors import CheckpointError, S2RError, SettingError
from s2r_torch.families import exact, make_family
from s2r_torch.families.contract import Family
from s2r_torch.registry import import_plugins, search_working_folder
from s2r_torch.reports.console import clear_ending
from s2r_torch.rng import Seed

CONF = str(Path(__file__).resolve().parent.parent / "conf")


# -- worlds ---------------------------------------------------------------------------------------------------------


def family_for(checkpoint: str, name: str, parameters: dict) -> Family:
    """The policy's own family; what the command line says must not contradict it."""
    trained = family_of(checkpoint) or {"name": name, "parameters": parameters}
    if trained["name"] != name:
        raise CheckpointError(
            expected=f"world={trained['name']}, which this policy was trained for",
            got=f"world={name}",
            cause="another checkpoint was meant",
        )
    for key, value in parameters.items():
        if key not in trained["parameters"] or trained["parameters"][key] != value:
            raise CheckpointError(
                expected=f"{key}={trained['parameters'].get(key)}, as this policy was trained with",
                got=f"world.parameters.{key}={value}",
                cause="family parameters come from the checkpoint; leave them out",
            )
    return make_family(name, **trained["parameters"])


def function_named(name: str):
    """The function that `module:function` names, on the command line only; the working folder is searched, too."""
    module, _, function = name.partition(":")
    search_working_folder()
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            expected="world.make=module:function",
            got=f"{name} ({type(error).__name__}: {error})",
            cause="a typo, or a module that is neither installed nor in the working folder",
        ) from error


def simulated_world(cfg: DictConfig, seen: int) -> tuple[Family, Tensor, UnlabelledWorld]:
    """A built-in family, theta [k] of this world, and the world, which goes on after the episodes seen before."""
    parameters = OmegaConf.to_container(cfg.world.parameters, resolve=True)
    family = family_for(cfg.checkpoint, cfg.world.family, parameters)
    seed = Seed.root(cfg.world.seed).child("deploy")
    theta = family.prior(1, seed.child("theta").generator())[0]
    stream = seed.child("world", seen) if seen else seed.child("world")  # never the same episodes again
    return family, theta, family.world(theta, stream.generator())


def world_of_user(cfg: DictConfig, policy: MetaPolicy) -> UnlabelledWorld:
    """What the function world.make returns."""
    from s2r_torch.families.gym.world import as_world  # Gymnasium is imported for this only

    connect, arguments = function_named(cfg.world.make), OmegaConf.to_container(cfg.world.arguments, resolve=True)
    try:
        made = connect(**arguments)
    except Exception as error:
        raise SettingError(
            expected=f"a world from {cfg.world.make}",
            got=f"{type(error).__name__}: {error}",
            cause="a fault in that function, or wrong world.arguments",
        ) from error
    return as_world(made, policy.problem.spec, cfg.world.seed)


# -- what is printed --------------------------------------------------------------------------------------------------


def plan(console: Console, policy: MetaPolicy, episodes: Plan, seen: Recording) -> None:
    """Says what is still to be collected: action sequences, and how often each."""
    spec, total = policy.problem.spec, sum(count for _, count in episodes)
    if len(seen):
        readings = _range(seen.counts(policy.problem.graph))
        console.print(f"seen so far: {len(seen)} episodes, {readings} readings per state")
    if not total:
        console.print("nothing more to collect")
        return
    console.print(
        f"to collect: {total} episodes, {', '.join(spec.obs_names)} at each of {spec.horizon} steps; no reward"
    )
    view = Table()
    view.add_column("episodes", justify="right")
    view.add_column("actions")
    for actions, count in episodes:
        view.add_row(str(count), spelt(actions))
    console.print(view)


def report(policy: MetaPolicy, deployment: Deployment, title: str) -> Table:
    """What was spent, what it rests on, and what must be known of it."""
    view = Table(title=title, title_justify="left", show_header=False)
    view.add_row("real episodes", f"{deployment.episodes}, none with a reward")
    view.add_row("readings per state", _range(deployment.used))
    view.add_row("like the simulators", str(deployment.likeness))
    if not policy.ensemble.certified:
        view.add_row("C_L", "NOT certified: nothing that rests on Assumption 4 is promised")
    for look in deployment.looks:
        verdict = "enough" if look.enough else "go on"
        view.add_row(f"look at {look.n} per state", f"an action may lose up to {look.loss:.3g}: {verdict}")
    for notice in deployment.notices:
        view.add_row("note", notice)
    return view


def promises(console: Console, checkpoint: str, deployment: Deployment) -> None:
    """Prints the certificate, where it covers this deployment; never without a warning in a world that is doubtful."""
    certificate = load_certificate(checkpoint)
    if certificate is None:
        console.print("no certificate: nothing was promised of this policy")
    elif not deployment.as_trained:
        console.print("no certificate: it covers a fixed number of readings of every state, not this deployment")
    else:
        if deployment.likeness.verdict != CONSISTENT:
            console.print(
                f"[bold red]WARNING[/]: this world is {deployment.likeness.verdict}. What follows is promised for "
                "worlds like the simulators, and may not hold here.",
                highlight=False,
            )
        console.print(certificate.page(), highlight=False, soft_wrap=True, markup=False)


def after_the_fact(view: Table, policy: MetaPolicy, deployment: Deployment, family: Family, theta: Tensor) -> None:
    """Adds what the policy is worth in a simulated world, where the family knows."""
    truth = family.truth(theta[None])
    if truth is not None:
        value = float(exact.policy_values(truth, policy.condition(deployment.D_real[None]).act)[0, 0])
        best = float(exact.optimal(truth)[0][0, 0])
        view.add_row("value of the policy", f"{value:.4f}, of {best:.4f} optimal in this world (after the fact)")


def _range(numbers: Tensor) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


# -- the stages -------------------------------------------------------------------------------------------------------


def check(cfg: DictConfig) -> None:
    """Refuses contradictions before anything is loaded or drawn."""
    for key in ("checkpoint", "world.file", "world.make"):
        group, _, name = key.rpartition(".")
        node = cfg[group] if group else cfg
        needed = not group or not cfg.collect_only
        if needed and OmegaConf.is_missing(node, name):
            raise SettingError(expected=f"{key}=...", got="nothing", cause="a setting that has no default")
    if cfg.log and cfg.world.kind == "recorded":
        raise SettingError(
            expected="log=... with a live world", got="world=recorded", cause="recorded episodes are in world.file"
        )
    for path, ending in ((cfg.log, check_ending), (cfg.template, check_ending), (cfg.export, export.check_ending)):
        if path:
            ending(path)


def seen_before(cfg: DictConfig, policy: MetaPolicy) -> tuple[Recording, Logbook | None]:
    """Episodes that are there already, and the logbook of a live world."""
    spec = policy.problem.spec
    if cfg.world.kind == "recorded" and not OmegaConf.is_missing(cfg.world, "file"):
        return read_recording(cfg.world.file, spec, short_episodes=cfg.world.short_episodes), None
    if cfg.log:
        logbook = Logbook(cfg.log, spec)
        return logbook.recording, logbook
    return Recording.empty(spec), None


def stopping_from(cfg: DictConfig) -> Stopping | None:
    """When to stop looking; None where that was not asked for."""
    try:
        return Stopping(**cfg.stopping) if cfg.sequential else None
    except TypeError as error:
        raise SettingError(expected="the fields of stopping", got=str(error), cause="a typo") from error


def deploy_live(
    cfg: DictConfig, policy: MetaPolicy, world: UnlabelledWorld, logbook: Logbook | None, stopping: Stopping | None
) -> Deployment:
    """Deploys in a live world; the ledger says how it ended, whatever happens."""
    if logbook is None:
        return deploy(policy, world, stopping=stopping, refuse=cfg.refuse)
    facts = {"status": "interrupted"}
    try:
        deployment = deploy(
            policy,
            world,
            logbook.ledger,
            recording=logbook.recording,
            save=lambda recording: logbook.save(recording, status="collecting"),
            stopping=stopping,
            refuse=cfg.refuse,
        )
        facts = {"status": "complete", "looks": [asdict(look) for look in deployment.looks]}
        return deployment
    except S2RError as error:
        facts = {"status": f"{type(error).__name__}: {error}"}
        raise
    finally:
        logbook.note(**facts)


def run(cfg: DictConfig, console: Console) -> None:
    check(cfg)
    import_plugins(cfg.plugins)
    policy = load_policy(cfg.checkpoint)
    seen, logbook = seen_before(cfg, policy)
    episodes = missing_episodes(seen, policy.problem.graph, policy.cover, policy.n_real)
    plan(console, policy, episodes, seen)
    if cfg.template:
        write_template(cfg.template, episodes, policy.problem.spec)
        console.print(f"template with empty readings written to {cfg.template}", soft_wrap=True, highlight=False)
    if cfg.collect_only:
        return
    stopping = stopping_from(cfg)
    family = theta = None
    if cfg.world.kind == "recorded":
        chosen = {"minimum": cfg.world.minimum, "every_reading": cfg.world.every_reading}
        deployment = deploy_recorded(policy, seen, **chosen, stopping=stopping, refuse=cfg.refuse)
        title = str(cfg.world.file)
    elif cfg.world.kind == "gym":
        if logbook is None:
            console.print("note: these episodes are not kept; log=real.csv would, also when this is interrupted")
        deployment = deploy_live(cfg, policy, world_of_user(cfg, policy), logbook, stopping)
        title = cfg.world.make
    else:
        family, theta, world = simulated_world(cfg, len(seen))
        deployment = deploy_live(cfg, policy, world, logbook, stopping)
        title = f"{family.name}, world {cfg.world.seed}"
    view = report(policy, deployment, title)
    if family is not None:
        after_the_fact(view, policy, deployment, family, theta)
    console.print(view)
    promises(console, cfg.checkpoint, deployment)
    if cfg.export:
        export.export_policy(deployment.policy, cfg.export)
        console.print(f"policy of this world written to {cfg.export}", soft_wrap=True, highlight=False)


@hydra.main(version_base="1.3", config_path=CONF, config_name="deploy")
def main(cfg: DictConfig) -> None:
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service that is stopped is interrupted, not killed
    kept = f"what was seen is in {cfg.log}: the same command goes on from there" if cfg.log else "nothing was kept"
    with clear_ending(console, kept):
        run(cfg, console)


if __name__ == "__main__":
    main()
