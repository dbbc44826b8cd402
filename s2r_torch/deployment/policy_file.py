"""Policy files: tensors in safetensors, the rest JSON. Nothing in a file is imported, unpickled or executed.

A file names its kernel, networks and family; names are looked up in this library's own registries. It holds all that
deployment needs, and loads without Hydra, Lightning or Gymnasium. It is written under a temporary name and renamed, so
that a crash never leaves half a file.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, StateGraph
from s2r_torch.coverage import assigned
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.certificate import Certificate
from s2r_torch.deployment.likeness import Population, Reference
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.errors import CheckpointError, S2RError
from s2r_torch.files import tensors as tensor_files
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import group_class
from s2r_torch.problem import Problem

FORMAT = 2


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    return {name: importlib.metadata.version(name) for name in ("s2r_torch", "torch", "numpy", "scipy", "safetensors")}


def save_policy(
    path: Path | str,
    meta_policy: MetaPolicy,
    *,
    family: dict | None = None,
    certificate: Certificate | None = None,
    notes: dict | None = None,
) -> None:
    """Writes a policy file, atomically.

    Args:
        path: where; an existing file is replaced only when the new one is complete.
        meta_policy: what to save, all survivors included.
        family: `{"name", "parameters"}` of the family it was trained on.
        certificate: what was promised of it.
        notes: JSON values to keep with it, such as how it was made and what it reached.
    """
    problem, estimator = meta_policy.problem, meta_policy.estimator
    tensors = {f"grid.axis{j}": axis.double() for j, axis in enumerate(problem.grid.axes)}
    tensors["graph.next_state"], tensors["graph.layer"] = problem.graph.next_state, problem.graph.layer
    recipes = []
    for i, group in enumerate(meta_policy.ensemble.groups):
        recipes.append(group.recipe())
        tensors.update({f"group{i}.{name}": value for name, value in group.tensors().items()})
    if meta_policy.reference is not None:
        tensors.update(_reference_tensors(meta_policy.reference))
    header = {
        "format": FORMAT,
        "versions": versions(),
        "spec": asdict(problem.spec),
        "paths": problem.graph.paths,
        "estimator": {
            "kernel": estimator.kernel.name,
            "order": estimator.kernel.order,
            "bandwidth": estimator.bandwidth,
            "boundary": estimator.boundary,
            "off_grid_limit": estimator.off_grid_limit,
        },
        "exact": meta_policy.ensemble.exact,
        "certified": meta_policy.ensemble.certified,  # for readers; loading asks the networks
        "groups": recipes,
        "chosen": meta_policy.chosen,
        "cover": meta_policy.cover,
        "n_real": meta_policy.n_real,
        "family": family,
        "certificate": certificate.to_json() if certificate else None,
        "notes": notes or {},
    }
    tensor_files.write(Path(path), tensors, header)


def save_exploration(path: Path | str, graph: StateGraph, D_hat: Tensor, estimator: DensityEstimator) -> None:
    """Writes the state graph and densities [B, xi, G] of an exploration, atomically."""
    tensors = {f"grid.axis{j}": axis.double() for j, axis in enumerate(estimator.grid.axes)}
    tensors |= {"graph.next_state": graph.next_state, "graph.layer": graph.layer, "D_hat": D_hat}
    tensor_files.write(Path(path), tensors, {"format": FORMAT, "paths": graph.paths, "bandwidth": estimator.bandwidth})


def load_policy(path: Path | str) -> MetaPolicy:
    """Reads a policy file, checks everything in it, and certifies its networks again.

    Raises:
        CheckpointError: missing, cut, damaged, of a newer format, or with entries missing or not finite.
        LipschitzError: weights that break the declared Lipschitz bound (Assumption 4).
    """
    header, tensors = read(path)
    try:
        policy = _assemble(header, tensors)
    except S2RError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(
            expected="a complete policy file",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:200]} in {path}",
            cause="a file edited by hand, or written by another version",
        ) from error
    if header.get("digest") != tensor_files.digest(tensors):
        raise CheckpointError(
            expected="the numbers that were written", got=f"others in {path}", cause="a damaged copy, or an edited file"
        )
    return policy


def family_of(path: Path | str) -> dict | None:
    """`{"name", "parameters"}` of the family that a policy file was trained on, if it says."""
    return read(path)[0].get("family")


def load_certificate(path: Path | str) -> Certificate | None:
    """What was promised of the policy in this file; None where nothing was.

    Raises:
        CheckpointError: as in `load_policy`.
    """
    values = read(path)[0].get("certificate")
    try:
        return Certificate.from_json(values) if values else None
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            expected="a complete certificate", got=f"{error} in {path}", cause="a file edited by hand"
        ) from error


def read(path: Path | str) -> tuple[dict, dict[str, Tensor]]:
    """The header and tensors of a policy file, with format and completeness checked."""
    header, tensors = tensor_files.read(Path(path))
    if header.get("format") != FORMAT:
        raise CheckpointError(
            expected=f"format {FORMAT}", got=f"{header.get('format')}", cause="a file from a newer or older s2r_torch"
        )
    broken = sorted(name for name, value in tensors.items() if not bool(torch.isfinite(value).all()))
    if broken:
        raise CheckpointError(
            expected="finite tensors", got=f"not finite: {broken[:5]}", cause="a damaged file, or a run that diverged"
        )
    return header, tensors


def _assemble(header: dict, tensors: dict[str, Tensor]) -> MetaPolicy:
    spec = dict(header["spec"])
    for name in ("low", "high", "obs_names"):
        spec[name] = tuple(spec[name])
    spec = ProblemSpec(**spec)
    graph = StateGraph(
        tensors["graph.next_state"], tensors["graph.layer"], tuple(tuple(path) for path in header["paths"])
    )
    if (spec.horizon, spec.num_actions) != (graph.horizon, graph.num_actions):
        raise ValueError(f"horizon and actions {spec.horizon}, {spec.num_actions} with a graph of other ones")
    grid = DensityGrid(tuple(tensors[f"grid.axis{j}"] for j in range(spec.obs_dim)))
    problem = Problem(spec, graph, grid)
    groups = []
    for i, recipe in enumerate(header["groups"]):
        prefix = f"group{i}."
        weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        groups.append(group_class(recipe["kind"]).from_recipe(recipe, weights, problem))
    made = header["estimator"]
    estimator = DensityEstimator(
        grid,
        make_kernel(made["kernel"], made["order"]),
        tuple(made["bandwidth"]),
        made["boundary"],
        off_grid_limit=made["off_grid_limit"],
    )
    ensemble = Ensemble(problem, tuple(groups), header["exact"])
    cover = tuple(tuple(path) for path in header["cover"])
    chosen, n_real = int(header["chosen"]), int(header["n_real"])
    if not (0 <= chosen < ensemble.size and n_real >= 1):
        raise ValueError(f"member {chosen} of {ensemble.size}, n_real {n_real}")
    assigned(graph, cover)  # refuses a cover that misses a state
    return MetaPolicy(ensemble, chosen, estimator, cover, n_real, _reference(tensors))


def _reference_tensors(reference: Reference) -> dict[str, Tensor]:
    population = reference.population
    return {
        "reference.mean": population.mean,
        "reference.scale": population.scale,
        "reference.precision": population.precision,
        "reference.unlike": reference.unlike,
        "reference.disagree": reference.disagree,
    }


def _reference(tensors: dict[str, Tensor]) -> Reference | None:
    """The inverse of `_reference_tensors`; None where a file holds no reference."""
    found = {name.removeprefix("reference."): value for name, value in tensors.items() if name.startswith("reference.")}
    if not found:
        return None
    population = Population(found["mean"], found["scale"], found["precision"])
    return Reference(population, found["unlike"], found["disagree"])
