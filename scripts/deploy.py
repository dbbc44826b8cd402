"""Deploys a trained policy in a world that shows no reward, from its policy file alone.

python scripts/deploy.py checkpoint=runs/grid/.../policy.safetensors world=grid world.seed=7
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from s2r_torch.checkpoint import family_of, load_policy
from s2r_torch.deployment import Deployment, deploy
from s2r_torch.envs import exact, make_family
from s2r_torch.envs.family import Family
from s2r_torch.errors import CheckpointError, S2RError
from s2r_torch.policy import MetaPolicy
from s2r_torch.predictors.registry import import_plugins
from s2r_torch.rng import Seed

CONF = str(Path(__file__).resolve().parent.parent / "conf")


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


def plan(policy: MetaPolicy) -> Table:
    """What is collected: every action sequence of the cover, and how often."""
    view = Table(title="observations to collect; no reward is needed", title_justify="left")
    view.add_column("episodes", justify="right")
    view.add_column("actions")
    for actions in policy.cover:
        view.add_row(str(policy.n_real), " ".join(map(str, actions)) or "(look at the start only)")
    return view


def report(policy: MetaPolicy, family: Family, theta, deployment: Deployment, seed: int) -> Table:
    """What was spent, and, after the fact, what the policy is worth in this world."""
    view = Table(title=f"{family.name}, world {seed}", title_justify="left", show_header=False)
    view.add_row("real episodes", f"{deployment.episodes}, none with a reward")
    truth = family.truth(theta[None])
    if truth is not None:
        value = float(exact.policy_values(truth, policy.condition(deployment.D_real[None]).act)[0, 0])
        best = float(exact.optimal(truth)[0][0, 0])
        view.add_row("value of the policy", f"{value:.4f}, of {best:.4f} optimal in this world (after the fact)")
    return view


@hydra.main(version_base="1.3", config_path=CONF, config_name="deploy")
def main(cfg: DictConfig) -> None:
    console = Console()
    try:
        import_plugins(cfg.plugins)
        policy = load_policy(cfg.checkpoint)
        parameters = OmegaConf.to_container(cfg.world.parameters, resolve=True)
        family = family_for(cfg.checkpoint, cfg.world.family, parameters)
        console.print(plan(policy))
        seed = Seed.root(cfg.world.seed).child("deploy")
        theta = family.prior(1, seed.child("theta").generator())[0]
        deployment = deploy(policy, family.world(theta, seed.child("world").generator()))
        console.print(report(policy, family, theta, deployment, cfg.world.seed))
    except KeyboardInterrupt:
        sys.exit(130)
    except S2RError as error:
        console.print(f"[bold red]{type(error).__name__}[/]: {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
