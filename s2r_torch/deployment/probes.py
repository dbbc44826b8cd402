"""What a user's own networks and encoders gave when a policy was saved.

A file holds their numbers and not their code, so another module of the same name would be another policy without a
word. Probed are a network's summaries, and its values before they are cut to [0, 1], at numbers that are always the
same ones; of other kinds of predictors, values; of an encoder, features. What ships has no probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s2r_torch.base import PredictorGroup
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.errors import CheckpointError
from s2r_torch.predictors.nets.net import Net
from s2r_torch.problem import Problem

PREFIX = "probe."  # of their tensors' names
WORLDS, READINGS = 2, 4  # that are probed
RTOL, ATOL = 1e-3, 1e-4  # of what one version of torch, or processor, gives and another one does


@torch.no_grad()
def probes(policy: MetaPolicy) -> dict[str, Tensor]:
    """What users' code gives, by name; nothing where there is none."""
    found: dict[str, Tensor] = {}
    for i, group in enumerate(policy.ensemble.groups):
        if not _ours(group):
            given = _of_net(group, policy.problem) if isinstance(group, Net) else _of_group(group, policy.problem)
            found |= {f"{PREFIX}group{i}.{name}": value for name, value in given.items()}
    if policy.encoding and not _ours(policy.encoding.module):
        found[f"{PREFIX}encoder"] = policy.encoding(_readings(policy.encoding)).float()
    return {name: value.contiguous() for name, value in found.items()}


def require_probes(policy: MetaPolicy, tensors: dict[str, Tensor]) -> None:
    """Raises CheckpointError unless users' code gives what it gave when the file was written; `tensors` has that."""
    kept = {name: value for name, value in tensors.items() if name.startswith(PREFIX)}
    if not kept:
        return
    for name, value in probes(policy).items():
        was = kept.pop(name, None)
        if was is None or was.shape != value.shape or not torch.allclose(was.to(value.dtype), value, RTOL, ATOL):
            what = name.removeprefix(PREFIX).partition(".")[0]
            whose = _named(policy, what)
            raise CheckpointError(
                expected=f"what {whose} gave when this policy was saved",
                got="other numbers from the same weights",
                cause="code that was edited since, or numbers that are drawn or set anew when its module is imported: "
                "buffers are kept, and so are constants in its code",
            )
    if kept:
        raise CheckpointError(
            expected="numbers of users' own code, where there is any",
            got=f"{len(kept)} more",
            cause="a file edited by hand, or a plugin that replaces one of ours",
        )


def _named(policy: MetaPolicy, what: str) -> str:
    if what == "encoder" and policy.encoding:
        return f"the encoder {policy.encoding.name}"
    group = policy.ensemble.groups[int(what.removeprefix("group"))]
    return f"net {getattr(group, 'name', '') or type(group).__name__!r}"


def _ours(thing: object) -> bool:
    return type(thing).__module__.startswith("s2r_torch.")


def _of_net(net: Net, problem: Problem) -> dict[str, Tensor]:
    """Summaries [B, K], and values [H, F, B, n, A] of summaries and look-ups as training saw them."""
    generator, graph = torch.Generator().manual_seed(0), problem.graph
    D, x = _densities(problem, generator), _observations(problem)
    summary = torch.randn(WORLDS, net.summary_size, generator=generator)
    local = torch.rand(WORLDS, READINGS, graph.num_states, generator=generator)
    scarcity = torch.rand(WORLDS, generator=generator)
    q = []
    for step in range(graph.horizon):
        shown = local[..., graph.states_of(step)] if net.looks_up else local[..., :0]
        q.append(net.raw_q(step, summary, shown, x, scarcity))
    return {"summary": net.summaries(D).float(), "q": torch.stack(q).float()}


def _of_group(group: PredictorGroup, problem: Problem) -> dict[str, Tensor]:
    """Values [H, F, B, n, A]."""
    conditioned = group.condition(_densities(problem, torch.Generator().manual_seed(0)))
    x = _observations(problem)
    return {"q": torch.stack([group.q(conditioned, step, x) for step in range(problem.graph.horizon)]).float()}


def _densities(problem: Problem, generator: torch.Generator) -> Tensor:
    """Densities [B, xi, G], rough ones that integrate to 1."""
    grid = problem.grid
    D = torch.rand(WORLDS, problem.graph.num_states, grid.num_points, generator=generator, dtype=torch.float64)
    return D / (D * grid.weights).sum(-1, keepdim=True)


def _observations(problem: Problem) -> Tensor:
    """Readings [B, n, d] within the box."""
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (problem.grid.low, problem.grid.high))
    share = torch.linspace(0.1, 0.9, READINGS, dtype=torch.float64)[:, None]
    return problem.spec.widened(low + (high - low) * share).expand(WORLDS, -1, -1)


def _readings(phi: Encoding) -> Tensor:
    """Raw readings [n, D] within their box."""
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (phi.raw.low, phi.raw.high))
    u = torch.rand(READINGS, phi.raw.obs_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return low + (high - low) * u
