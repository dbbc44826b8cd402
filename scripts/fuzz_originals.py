"""The small policy files that `bench.py fuzz` damages: made by hand, in no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from fuzz_mutations import Original

from s2r_torch.coverage import passages, path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.certificate import Certificate, Gap, Refusals
from s2r_torch.deployment.likeness import Population, Reference, Sight
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import read, save_policy
from s2r_torch.encoders.encoding import made
from s2r_torch.families import make_family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import net_class
from s2r_torch.problem import Problem


def make_originals(path: Path) -> list[Original]:
    """One that is certified and has a reference, one of two networks, one that sees all that networks may see, an exact
    class, and one behind an encoder."""
    found = []
    for name, (policy, certificate) in {
        "certified": certified(),
        "two networks": (networks(("lookup", "conv")), None),
        "all seen": (networks(("lookup",), profiles=True, positions=True, places=5), None),
        "exact": (exact(), None),
        "encoder": (encoded(), None),
    }.items():
        family = {"name": "grid", "parameters": {"width": 3, "noise_low": 0.15}}
        save_policy(path, policy, family=family, certificate=certificate, notes={"seed": 4, "finished": ["learn"]})
        found.append(Original(name, path.read_bytes(), *read(path)))
    return found


def originals_of(files: Sequence[Path]) -> list[Original]:
    """Policy files that are there."""
    return [Original(file.name, file.read_bytes(), *read(file)) for file in files]


def networks(names: tuple[str, ...], **options) -> MetaPolicy:
    """Untrained networks for the grid family."""
    family, g = make_family("grid"), torch.Generator().manual_seed(0)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 7)
    problem, groups = Problem(family.spec, family.graph, grid), []
    for name in names:
        net = net_class(name)(problem, 3, g, width=4, x_width=3, **({"channels": 2} if name == "conv" else options))
        net.fit_scales(torch.rand(5, family.graph.num_states, grid.num_points, generator=g))
        groups.append(net)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(0.9 * s for s in grid.spacing))
    return MetaPolicy(Ensemble(problem, tuple(groups)), 1, estimator, path_cover(family.graph), 25)


def encoded() -> MetaPolicy:
    """Readings of four numbers, of which a fixed matrix makes two."""
    policy, g = networks(("lookup",)), torch.Generator().manual_seed(2)
    spec = policy.problem.spec
    raw = replace(spec, obs_dim=4, low=(-1.0,) * 4, high=(3.0,) * 4, obs_names=("a", "b", "c", "d"), zeta=None)
    phi = made("pca", {"dim": 2}, raw)
    noise = {name: 0.02 * torch.randn(value.shape, generator=g) for name, value in phi.tensors().items()}
    phi.module.load_state_dict(noise | {"components": noise["components"] + torch.eye(2, 4)})
    return replace(policy, encoding=replace(phi, spec=spec))


def certified() -> tuple[MetaPolicy, Certificate]:
    """Numbers of the right shape in place of a reference, and of a certificate."""
    policy, g = networks(("lookup",)), torch.Generator().manual_seed(1)
    grid, xi = policy.problem.grid, policy.problem.graph.num_states
    D = torch.rand(400, xi, grid.num_points, dtype=torch.float64, generator=g)
    states = [s for s, _ in passages(policy.problem.graph, policy.cover)]
    again = D[:, states] + 0.1 * torch.rand(400, len(states), grid.num_points, dtype=torch.float64, generator=g)
    sight = Sight.of(D, again, states, grid)
    population = Population.of(sight.first)
    reference = Reference(population, population.scores(sight, states))
    policy = MetaPolicy(policy.ensemble, 1, policy.estimator, policy.cover, 25, reference)
    used = (0.69, 0.64, 1, 0.0, Refusals(400, 0.01, 0.005, 0.02))
    gap = Gap(0.2, 0.1, 0.3, 0.01, "measured", policy.ensemble.size, False, policy.problem.graph.pruned)
    return policy, Certificate(40, 50, 25, len(policy.cover), 0.05, "betting", 0.7, 0.65, 0.9, 0.4, gap, *used)


def exact() -> MetaPolicy:
    """A few members of the mixture's class."""
    family = make_family("mixture", horizon=2)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, 31)
    group = MixturePredictors.build(family, grid, flips=2, gains=(1.0, 0.5))
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), (0.4,), boundary="legendre")
    problem = Problem(family.spec, family.graph, grid)
    return MetaPolicy(Ensemble(problem, (group,), exact=True), 0, estimator, path_cover(family.graph), 9)
