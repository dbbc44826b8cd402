"""Policies, and what is promised of them, made by hand: no training."""

import functools
from dataclasses import replace

import torch

from s2r_torch.assurance.rehearsal import make_reference
from s2r_torch.coverage import path_cover
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.certificate import Certificate, Gap, Refusals
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.families import make_family
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import net_class
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed


def policy_of(nets=("lookup",), family_name="grid", nodes=12, beside=0) -> MetaPolicy:
    family = make_family(family_name)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, nodes)
    problem = Problem(replace(family.spec, beside=beside), family.graph, grid)
    generator = torch.Generator().manual_seed(0)
    groups = []
    for name in nets:
        net = net_class(name)(problem, 3, generator, width=8)
        net.fit_scales(torch.rand(5, family.graph.num_states, grid.num_points, generator=generator))
        groups.append(net)
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(s * 0.7 for s in grid.spacing))
    return MetaPolicy(Ensemble(problem, tuple(groups)), 1, estimator, path_cover(family.graph), 25)


def spread(grid: DensityGrid, *lead: int, seed: int = 3) -> torch.Tensor:
    """Random densities [*lead, G], rough ones that integrate to 1."""
    D = torch.rand(*lead, grid.num_points, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return D / (D * grid.weights).sum(-1, keepdim=True)


@functools.cache
def judged_policy():
    """An untrained policy whose reference is made as in a run, from 200 simulators and 500 fresh ones."""
    family = make_family("grid")
    policy = policy_of(nodes=24)
    grid = policy.problem.grid
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), tuple(0.62 * s for s in grid.spacing))
    policy = replace(policy, estimator=estimator, n_real=100)
    seed = Seed.root(0)

    def simulators(purpose, count):
        theta = family.prior(count, seed.child(purpose).generator())
        return Guard(family.simulators(theta, range(count)), Ledger(), purpose)

    return replace(
        policy, reference=make_reference(policy, simulators("train", 200), simulators("look", 500), seed.child("look"))
    )


def certificate_by_hand(**gap) -> Certificate:
    gap = replace(Gap(0.2, 0.1, 0.3, 0.01, "given", 3, True, False), **gap)
    used = (0.69, 0.64, 2, 0.0, Refusals(500, 0.01, 0.006, 0.015))
    return Certificate(200, 50, 100, 3, 0.05, "betting", 0.7, 0.65, 0.9, 0.4, gap, *used)
