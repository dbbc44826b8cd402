"""Policy files: tensors in safetensors, the rest JSON. Nothing in a file is imported, unpickled or executed.

A file names its kernel, networks and family; names are looked up in this library's own registries. It holds all that
deployment needs, and loads without Hydra, Lightning or Gymnasium. What is read is what was saved: a checksum is
compared first (files/tensors.py), then every field is checked (header.py), and only then is anything built.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import s2r_torch
from s2r_torch.base import ProblemSpec
from s2r_torch.defaults import plain_torch
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.certificate import Certificate
from s2r_torch.deployment.factors import Factors
from s2r_torch.deployment.header import CAUSE, FALLBACK, check_header, check_promises
from s2r_torch.deployment.likeness import Population, Reference
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.probes import probes, require_probes
from s2r_torch.deployment.signature import sign, verify
from s2r_torch.encoders.encoding import Encoding, rebuilt
from s2r_torch.errors import CheckpointError, S2RError
from s2r_torch.files import tensors as tensor_files
from s2r_torch.files.whole import require_ours
from s2r_torch.given import require_having, taking
from s2r_torch.graph import Path as Actions
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import group_class
from s2r_torch.problem import Problem
from s2r_torch.text import printable

KIND = "policy"


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    theirs = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy", "safetensors")}
    return {"s2r_torch": s2r_torch.__version__, **theirs}  # of the code that runs: a clone need not be installed


# -- saving -----------------------------------------------------------------------------------------------------------


@taking()
@plain_torch()
def save_policy(
    path: Path | str,
    meta_policy: MetaPolicy,
    *,
    family: dict | None = None,
    certificate: Certificate | None = None,
    notes: dict | None = None,
    sign_with: Path | str | None = None,
) -> None:
    """Writes a policy file, atomically, once it is known that it will load.

    Args:
        path: where; an existing policy is replaced only when the new one is complete, another file never.
        meta_policy: what to save, all survivors included.
        family: `{"name", "parameters"}` of the family it was trained on.
        certificate: what was promised of it.
        notes: JSON values to keep with it, such as how it was made and what it reached.
        sign_with: a private key; the signature is written beside the file (signature.py).

    Raises:
        CheckpointError: numbers that are not finite, named with their members; scores of fresh simulators for another
            n_real; or something that no file may hold.
    """
    scored = meta_policy.reference and meta_policy.reference.n_real
    if scored not in (None, meta_policy.n_real):
        got, cause = str(meta_policy.n_real), "a copy: replace(policy, n_real=..., reference=None)"
        raise CheckpointError(expected=f"n_real = {scored}, as scores are for", got=got, cause=cause)
    for group in meta_policy.ensemble.groups:
        require_having("groups", group, ("recipe", "tensors", "lipschitz_bound"), "groups that a file can hold")
    path, tensors = Path(path), _tensors(meta_policy)
    require_ours(path, lambda start: start[8:9] == b"{", "a safetensors file")
    require_finite(tensors, meta_policy.ensemble)
    data = tensor_files.encoded(tensors, _header(meta_policy, family, certificate, notes or {}), KIND)
    header, again = tensor_files.decoded(BytesIO(data), len(data), path, KIND)
    check_header(header, again)
    _policy(header, again, path)
    tensor_files.store(path, data)
    if sign_with is not None:
        sign(path, header["digest"], sign_with)


def require_finite(tensors: dict[str, Tensor], ensemble: Ensemble | None = None) -> None:
    """Raises CheckpointError unless all numbers are finite; names the tensors and, where known, the members."""
    broken = sorted(name for name, value in tensors.items() if not bool(torch.isfinite(value).all()))
    if broken:
        raise CheckpointError(
            expected="finite tensors",
            got=f"not finite: {printable(broken[:5])}{ensemble and _members(tensors, broken[0], ensemble) or ''}",
            cause="a damaged file, or a run that diverged",
        )


def _members(tensors: dict[str, Tensor], name: str, ensemble: Ensemble) -> str:
    """Which members of the class the numbers of one tensor belong to, in words."""
    group, _, _ = name.partition(".")
    sizes = [g.size for g in ensemble.groups]
    value = tensors[name]
    i = int(group.removeprefix("group")) if group.startswith("group") else -1
    if i < 0 or value.ndim < 2 or len(value) % sizes[i]:
        return ""
    rows = (~torch.isfinite(value.unflatten(0, (sizes[i], -1)).flatten(1))).any(1).nonzero().flatten()
    return f" in members {printable((rows + sum(sizes[:i])).tolist()[:5])}"


def _tensors(policy: MetaPolicy) -> dict[str, Tensor]:
    graph = policy.problem.graph
    found = {f"grid.axis{j}": axis.double() for j, axis in enumerate(policy.problem.grid.axes)}
    found |= {"graph.next_state": graph.next_state, "graph.layer": graph.layer}
    for i, group in enumerate(policy.ensemble.groups):
        found |= {f"group{i}.{name}": value for name, value in group.tensors().items()}
    if policy.encoding is not None:
        found |= {f"encoder.{name}": value for name, value in policy.encoding.tensors().items()}
    if policy.reference is not None:
        population = policy.reference.population
        found |= {"reference.mean": population.mean, "reference.scale": population.scale}
        found |= {"reference.loadings": population.factors.loadings, "reference.noise": population.factors.noise}
        found["reference.scores"] = policy.reference.scores
    return found | probes(policy)


def _header(policy: MetaPolicy, family: dict | None, certificate: Certificate | None, notes: dict) -> dict:
    problem, estimator = policy.problem, policy.estimator
    return {
        "versions": versions(),
        "spec": _told(problem.spec),
        "encoder": policy.encoding and {"recipe": policy.encoding.recipe(), "spec": _told(policy.encoding.raw)},
        "paths": problem.graph.paths,
        "estimator": {
            "kernel": estimator.kernel.name,
            "order": estimator.kernel.order,
            "bandwidth": estimator.bandwidth,
            "boundary": estimator.boundary,
            "off_grid_limit": estimator.off_grid_limit,
        },
        "exact": policy.ensemble.exact,
        "certified": policy.ensemble.certified,  # for readers; loading asks the networks
        "groups": [group.recipe() for group in policy.ensemble.groups],
        "chosen": policy.chosen,
        "cover": policy.cover,
        "n_real": policy.n_real,
        "family": family,
        "certificate": certificate.to_json() if certificate else None,
        "notes": notes,
    }


def _told(spec: ProblemSpec) -> dict:
    """What a file says of a problem; what readings hold beside, its encoder says."""
    return {name: value for name, value in asdict(spec).items() if name != "beside"}


# -- loading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """All that a policy file holds, read at once: its parts are of one file, whatever is written there meanwhile.

    Args:
        policy: ready to be deployed.
        family: `{"name", "parameters"}` of the family that it was trained on, if the file says.
        certificate: what was promised of it; None where nothing was.
        fallback: H actions to follow where a world is refused, the best list on the simulators; None for none.
    """

    policy: MetaPolicy
    family: dict | None
    certificate: Certificate | None
    fallback: Actions | None


def load_policy(path: Path | str, *, verify_with: Path | str | None = None) -> MetaPolicy:
    """The policy of a file, and nothing else; arguments and errors are those of `load_policy_file`."""
    return load_policy_file(path, verify_with=verify_with).policy


@taking()
def load_policy_file(path: Path | str, *, verify_with: Path | str | None = None) -> PolicyFile:
    """Reads a policy file, checks everything in it, and certifies its networks again.

    Args:
        path: the file.
        verify_with: the public key that it must be signed by; None asks for no signature.

    Raises:
        CheckpointError: missing, cut, damaged, of another format, not signed by that key, or with anything in it that
            `save_policy` would not have written.
        LipschitzError: weights that break the declared Lipschitz bound (Assumption 4).
        SettingError: a network of a plugin that was not imported.
    """
    header, tensors = read(path)
    if verify_with is not None:
        verify(path, header["digest"], verify_with)
    policy, promised, fallback = _policy(header, tensors, path), header["certificate"], header["notes"].get(FALLBACK)
    certificate = Certificate.from_json(promised) if promised else None
    return PolicyFile(policy, header["family"], certificate, None if fallback is None else tuple(fallback))


@taking()
def sign_policy(path: Path | str, private_key: Path | str) -> None:
    """Signs a policy file as it is; the signature is written beside it (signature.py)."""
    sign(path, read(path)[0]["digest"], private_key)


@taking()
def verify_policy(path: Path | str, public_key: Path | str) -> None:
    """Raises CheckpointError unless the file is intact and was signed by the owner of that key."""
    verify(path, read(path)[0]["digest"], public_key)


def read(path: Path | str) -> tuple[dict, dict[str, Tensor]]:
    """The header and tensors of a policy file: as they were written, legal, and in agreement with each other."""
    header, tensors = tensor_files.read(Path(path), KIND)
    require_finite(tensors)
    check_header(header, tensors)
    return header, tensors


@plain_torch()
def _policy(header: dict, tensors: dict[str, Tensor], path: Path | str) -> MetaPolicy:
    """The policy of a file whose header was checked; whatever does not fit together is one CheckpointError."""
    try:
        policy = _assemble(header, tensors)
        _try_once(policy)
    except S2RError:
        raise
    except Exception as error:  # whatever a network says that does not fit its file
        raise CheckpointError(
            expected="a complete policy file",
            got=f"{type(error).__name__}: {printable(' '.join(str(error).split()))} in {printable(path)}",
            cause=CAUSE,
        ) from error
    return policy


def _assemble(header: dict, tensors: dict[str, Tensor]) -> MetaPolicy:
    phi = _encoding(header, tensors, _spec(header["spec"]))
    spec = phi.spec if phi else _spec(header["spec"])
    paths, cover = (tuple(tuple(path) for path in header[name]) for name in ("paths", "cover"))
    graph = StateGraph(tensors["graph.next_state"], tensors["graph.layer"], paths)
    problem = Problem(spec, graph, DensityGrid(tuple(tensors[f"grid.axis{j}"] for j in range(spec.obs_dim))))
    groups = []
    for i, recipe in enumerate(header["groups"]):
        weights = _below(f"group{i}.", tensors)
        groups.append(group_class(recipe.get("kind")).from_recipe(recipe, weights, problem))
    ensemble = Ensemble(problem, tuple(groups), header["exact"])
    check_promises(header, ensemble)
    made = dict(header["estimator"])
    kernel = make_kernel(made.pop("kernel"), made.pop("order"))
    estimator = DensityEstimator(problem.grid, kernel, tuple(made.pop("bandwidth")), **made)
    chosen, n_real = header["chosen"], header["n_real"]
    policy = MetaPolicy(ensemble, chosen, estimator, cover, n_real, _reference(tensors, n_real), phi)
    require_probes(policy, tensors)
    return policy


def _spec(values: dict) -> ProblemSpec:
    told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return ProblemSpec(**told)


def _encoding(header: dict, tensors: dict[str, Tensor], spec: ProblemSpec) -> Encoding | None:
    """The encoder of a file; None where readings are taken as they are."""
    told = header["encoder"]
    return told and rebuilt(told["recipe"], _below("encoder.", tensors), _spec(told["spec"]), spec)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one part of a file, by their names in it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _try_once(policy: MetaPolicy) -> None:
    """Asks every group for values at every step, so that a class that cannot act is refused now and not in reality."""
    problem, phi = policy.problem, policy.encoding
    if phi:
        phi(torch.tensor([phi.raw.low, phi.raw.high], dtype=torch.float64))
    D = torch.zeros(1, problem.graph.num_states, problem.grid.num_points, dtype=torch.float64)
    middle = torch.tensor([problem.spec.low, problem.spec.high], dtype=torch.float64).mean(0)
    x = problem.spec.widened(middle).expand(1, 1, -1)
    for group in policy.ensemble.groups:
        conditioned = group.condition(D)
        for step in range(problem.graph.horizon):
            q = group.q(conditioned, step, x)
            if q.shape != (group.size, 1, 1, problem.spec.num_actions) or not bool(torch.isfinite(q).all()):
                raise ValueError(f"values of shape {list(q.shape)} at step {step}, or not finite")


def _reference(tensors: dict[str, Tensor], n_real: int) -> Reference | None:
    """What a world is compared with; None where a file holds no reference."""
    found = _below("reference.", tensors)
    if not found:
        return None
    factors = Factors(found["loadings"], found["noise"])
    return Reference(Population(found["mean"], found["scale"], factors), found["scores"], n_real)
