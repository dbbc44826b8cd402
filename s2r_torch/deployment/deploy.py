"""Algorithm 7, Deploy: look at a world without rewards along a path cover, then act.

deploy            episodes of a live world
deploy_recorded   episodes that were logged before
Stopping          either of them, ending as soon as further episodes could not change what is done (stopping.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec, UnlabelledWorld
from s2r_torch.coverage import passages, passes
from s2r_torch.defaults import plain_torch
from s2r_torch.density.patches import Densities
from s2r_torch.deployment.collection import Collection, Collector, missing_episodes
from s2r_torch.deployment.edges import EdgeChecker, share_astray
from s2r_torch.deployment.likeness import CONSISTENT, DOUBTFUL, REFUSED, Likeness, untested
from s2r_torch.deployment.live import GuardedWorld, require_time_limit
from s2r_torch.deployment.outcome import Deployment
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.recording.causes import off_range
from s2r_torch.deployment.recording.contents import examine
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.evidence import Finding
from s2r_torch.deployment.stopping import Stopping, look
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, RecordingError, SettingError, UnlikeSimulatorsError
from s2r_torch.given import refuse_kind, require_having, taking
from s2r_torch.graph import Path, after, spelt
from s2r_torch.plain import require_count

LEAST_SHARE = 0.25  # of n_real: half of it is missing in every state, and the noise of D_real doubles


@taking()
def deploy(
    meta_policy: MetaPolicy,
    world: UnlabelledWorld,
    ledger: Ledger | None = None,
    *,
    recording: Recording | None = None,
    keep: Callable[[Recording], None] = lambda new: None,
    stopping: Stopping | None = None,
    refuse: bool = True,
    check: str = "cover",
    time_limit: float | None = None,
) -> Deployment:
    """Estimates a world's densities from unlabelled episodes and conditions the policy on them (Algorithm 7, Deploy).

    Args:
        meta_policy: a trained meta-policy.
        world: shows observations; has no reward.
        ledger: where real episodes are counted.
        recording: episodes of this world that were seen before; only the missing ones are drawn.
        keep: called with the new episodes of each batch as soon as it is over, also where it fails or is interrupted.
        stopping: look in several goes, and end as soon as it is enough; None takes n_real readings of every state.
        refuse: raise where the world is not like the simulators; otherwise the verdict is only reported.
        check: `cover`, or also edges that the policy takes and the cover leaves out (`edges.EdgeChecker`).
        time_limit: seconds that a reset or a step of the world may take; None for any time.

    Returns:
        The policy for this world, D_real, the number of episodes, and whether the world is like the simulators.

    Raises:
        SettingError: the world has other actions, steps or sensors than the policy was made for.
        ObservationError: observations off the grid, not finite, or of another shape.
        UnlikeSimulatorsError: the verdict on this world is `refused`.

    Paper deviation:
        Episodes follow a path cover: w n_real of them instead of n_dist H S A, with n_real observations per state and
        sequence that passes it, all of which are used (theory.md 3.1, 3.3).

    Cost:
        w n_real real-world episodes, fewer with `recording` or `stopping`; at most as many again with check=auto.
    """
    require_same_problem(meta_policy, world)
    require_time_limit(time_limit)
    if recording is not None:
        recording.require_of(meta_policy.spec)
    graph = meta_policy.problem.graph
    guarded = GuardedWorld(world, Ledger() if ledger is None else ledger, time_limit=time_limit)
    with plain_torch():
        collector = Collector(guarded, graph, meta_policy.cover, recording, keep, off_grid_watch(meta_policy))
        edges = EdgeChecker(check, lambda walks: _seen(meta_policy, collector.walk(walks)))
        return _condition(meta_policy, collector.until, False, stopping, refuse, edges)


@taking()
@plain_torch()
def deploy_recorded(
    meta_policy: MetaPolicy,
    recording: Recording,
    *,
    minimum: int | None = None,
    every_reading: bool = False,
    stopping: Stopping | None = None,
    refuse: bool = True,
    check: str = "cover",
) -> Deployment:
    """Conditions the policy on episodes that were logged before.

    As many readings of every state are used as `deploy` takes, the first ones, whatever sequences they come from: they
    are independent draws of the state's law, as in `deploy`, so D_real has the same law, too (recording/episodes.py).

    Args:
        meta_policy: a trained meta-policy.
        recording: the episodes.
        minimum: readings that every state must have; None for a quarter of n_real, which doubles the noise
            of its density.
        every_reading: use those beyond that, too; simulators are compared with the first ones.
        stopping: look at the first readings, and end as soon as they are enough.
        refuse: as in `deploy`.
        check: as in `deploy`; edges that no episode has walked are told.

    Raises:
        RecordingError: a state has too few readings; the message says which, and what to record.
        ObservationError: readings off the grid, or of a stuck sensor.
        UnlikeSimulatorsError: the verdict on this world is `refused`.
    """
    recording.require_of(meta_policy.spec)
    if recording.x.ndim != 3:
        got, cause = f"shape {list(recording.x.shape)}", "policy.condition_on takes those of several worlds"
        raise RecordingError(expected="readings of one world [episodes, H, d]", got=got, cause=cause)
    n_real = meta_policy.n_real
    if minimum is not None and require_count("minimum", minimum) > n_real and not every_reading:
        cause = "more than are used: every_reading=True uses all"
        raise SettingError(expected=f"minimum <= {n_real}, the policy's n_real", got=str(minimum), cause=cause)
    least = math.ceil(LEAST_SHARE * n_real) if minimum is None else minimum

    def until(n: int) -> Recording:
        require_readings(meta_policy, recording, n if stopping else least if every_reading else min(least, n))
        return recording

    return _condition(meta_policy, until, every_reading, stopping, refuse, EdgeChecker(check))


def require_readings(meta_policy: MetaPolicy, recording: Recording, n: int) -> None:
    """Raises RecordingError, with the missing episodes, unless every state has n readings."""
    graph = meta_policy.problem.graph
    counts = recording.counts(graph)
    short = (counts < n).nonzero().flatten().tolist()
    if short:
        walks, n_real = missing_episodes(recording, graph, meta_policy.cover, n), meta_policy.n_real
        noise = (
            f" (the policy was made for {n_real}; with {n}, densities are {math.sqrt(n_real / n):.1f} times as noisy)"
        )
        raise RecordingError(
            expected=f"at least {n} readings of every state{noise if n < n_real else ''}",
            got=_listed([f"{int(counts[s])} {after(graph.paths[s])}" for s in short]),
            cause=_late_actions(recording, meta_policy.cover)
            + "episodes still to be run: "
            + _listed([f"{count} of {spelt(actions)}" for actions, count in walks]),
        )


def _late_actions(recording: Recording, cover: tuple[Path, ...]) -> str:
    """Says so where every episode follows the cover once its actions are read one row later, and not as they are."""
    if not len(recording) or len(cover[0]) < 2 or any(bool(recording.follows(path).any()) for path in cover[1:]):
        return ""
    moved = recording.actions[:, 1:].tolist()
    late = all(any(list(path[:-1]) == actions for path in cover) for actions in moved)
    return "actions that were logged one row late; or " if late else ""


def require_same_problem(meta_policy: MetaPolicy, world: UnlabelledWorld) -> None:
    """Raises SettingError unless the world has the actions, horizon and sensors that the policy was made for."""
    require_having("world", world, ("reset", "step", "spec"), "a world, with spec, reset(n) and step(actions)")
    if not isinstance(world.spec, ProblemSpec):
        cause = "an environment: EnvWorld(env, policy.spec) of s2r_torch.families.gym.world makes a world of it"
        refuse_kind("world.spec", world.spec, "ProblemSpec", cause)
    for name in ("num_actions", "horizon", "obs_dim", "obs_names"):
        ours, theirs = getattr(meta_policy.spec, name), getattr(world.spec, name)
        if ours != theirs:
            raise SettingError(
                expected=f"a world with {name} = {ours}, as the policy was trained for",
                got=f"{theirs}",
                cause="another world, or another version of its sensors",
            )


def off_grid_watch(meta_policy: MetaPolicy) -> Callable[[int, Tensor], None]:
    """A check of readings [n, d] of a state that raises ObservationError as soon as too many of them are off the grid.

    No later reading could mend that, so no further episode is spent on it.
    """
    estimator, graph = meta_policy.estimator, meta_policy.problem.graph
    off = torch.zeros(graph.num_states, dtype=torch.int64)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (estimator.grid.low, estimator.grid.high))

    def check(state: int, x: Tensor) -> None:
        x = meta_policy.problem.spec.placed(meta_policy.encoding(x) if meta_policy.encoding else x)
        off[state] += estimator.count_off_grid(x)
        try:
            estimator.check_off_grid(off[state], meta_policy.n_real)
        except ObservationError as error:
            i, j = ((x < low) | (x > high)).nonzero()[0].tolist()
            name, path = meta_policy.problem.spec.obs_names[j], graph.paths[state]
            raise ObservationError(
                expected=error.expected,
                got=f"{error.got} {after(path)}, such as {name!r} = {float(x[i, j]):g}; the grid's is {low[j]:g} .. "
                f"{high[j]:g}",
                cause=off_range(
                    x.numpy(), j, estimator.grid.low, estimator.grid.high, meta_policy.problem.spec.obs_names
                ),
            ) from error

    return check


def collect(meta_policy: MetaPolicy, world: UnlabelledWorld) -> Recording:
    """Walks the cover, n_real episodes a sequence."""
    return Collector(world, meta_policy.problem.graph, meta_policy.cover).until(meta_policy.n_real)


def likeness_of(meta_policy: MetaPolicy, seen: Collection) -> Likeness:
    """Whether a world that showed this is like the simulators; of every place n_real readings are compared, no more."""
    if meta_policy.reference is None:
        return untested("the policy was saved without scores of fresh simulators to compare a world with")
    scored = meta_policy.reference.n_real or meta_policy.n_real
    if any(x.shape[-2] != scored for x in seen.observations):
        return untested(f"scores are for {scored} readings of every state, no more and no fewer")
    reference, problem = meta_policy.reference, meta_policy.problem
    if any(x.shape[-2] != scored for x in seen.again):
        D = meta_policy.densities(seen.observations)
        told = reference.without_passages.judge(D, D[:0], (), problem)
        if told.verdict != CONSISTENT:
            return told
        few = "too few readings of states that were reached in a second way"
        return untested(f"{few}; densities by themselves are not unusual")
    states = [s for s, _ in passages(problem.graph, meta_policy.cover)]
    return reference.judge(*densities_apart(meta_policy, seen), states, problem)


def densities_apart(
    meta_policy: MetaPolicy, seen: Collection, worlds: Sequence[str] = ()
) -> tuple[Densities, Densities]:
    """Densities [..., xi, G] of every state, and [..., v, G] of those that were passed again, from other readings.

    Where worlds have names there are many of them, and their densities are patches.
    """
    graph, cover = meta_policy.problem.graph, meta_policy.cover
    at = meta_policy.patches_at if worlds else meta_policy.densities_at
    first = at(graph.paths, seen.observations, worlds)
    paths = [cover[i][: int(graph.layer[s])] for s, i in passages(graph, cover)]
    return first, at(paths, seen.again, worlds) if paths else first[..., :0, :]


def _condition(
    meta_policy: MetaPolicy,
    until: Callable[[int], Recording],
    every_reading: bool,
    stopping: Stopping | None,
    refuse: bool,
    check_edges: EdgeChecker,
) -> Deployment:
    """Looks until it is enough, then conditions.

    Args:
        meta_policy: what is deployed.
        until: gives a recording with n readings of every state, and sequence that passes it.
        every_reading: whether all readings are used, unless it is enough before.
        stopping: when it is enough; None at n_real.
        refuse: whether a verdict `refused` is an error.
        check_edges: what is done about edges that the cover leaves out.
    """
    door, meta_policy = meta_policy, meta_policy.behind_encoder
    graph, cover, n_real, looks = meta_policy.problem.graph, meta_policy.cover, meta_policy.n_real, []
    for n in stopping.schedule(n_real) if stopping else [n_real]:
        recording = _seen(door, until(n))
        every = every_reading and n >= n_real
        first = Collection.of(recording, graph, cover, n)
        samples = recording.samples(graph, None if every else n * passes(graph, cover))
        if stopping and n < n_real:
            looks.append(look(meta_policy, n, samples, stopping))
            if looks[-1].enough:
                break
    spec = meta_policy.problem.spec
    placed = replace(recording, x=spec.placed(recording.x))
    findings = examine(placed, graph, meta_policy.estimator, spec.obs_names)
    D_real = _densities(meta_policy, samples, findings)
    likeness = _doubted(likeness_of(meta_policy, first), findings)
    if refuse and likeness.verdict == REFUSED:
        raise UnlikeSimulatorsError(
            expected="a world like the simulators",
            got="; ".join([str(likeness), *(finding.text for finding in findings)]),
            cause="another machine, swapped axes, other units, a stuck sensor, or theta outside the prior",
        )
    used = torch.tensor([len(x) for x in samples])
    policy = meta_policy.condition(D_real, used)
    astray = share_astray(policy, samples)
    seen = Collection.of(recording, graph, cover, len(recording)) if every else first
    edges, recording = check_edges(meta_policy, policy, seen, recording)
    if refuse and edges.verdict == REFUSED:
        raise UnlikeSimulatorsError(
            expected="edges that lead where they led in the simulators",
            got=str(edges),
            cause="dynamics that differ from the simulators': a wall, a slip, an action that does something else",
        )
    wanted, policy = meta_policy.readings, replace(policy, encoding=door.encoding)
    return Deployment(
        policy, D_real, len(recording), used, wanted, likeness, tuple(looks), findings, edges=edges, astray=astray
    )


def _seen(meta_policy: MetaPolicy, recording: Recording) -> Recording:
    """Episodes as the policy sees them: through its encoder, where it has one."""
    return recording.encoded(meta_policy.encoding) if meta_policy.encoding else recording


def _densities(meta_policy: MetaPolicy, samples: Sequence[Tensor], findings: tuple[Finding, ...]) -> Tensor:
    """D_real [xi, G]; where there is none, what was found about how readings were taken is told as a likely cause."""
    try:
        return meta_policy.densities(samples)
    except ObservationError as error:
        cause = "; ".join([error.cause, *(finding.text for finding in findings)])
        raise ObservationError(expected=error.expected, got=error.got, cause=cause) from error


def _doubted(likeness: Likeness, findings: tuple[Finding, ...]) -> Likeness:
    """The verdict, which is not `consistent` where readings were not taken as they should be."""
    reasons = tuple(finding.text for finding in findings if finding.doubt)
    if likeness.verdict != CONSISTENT or not reasons:
        return likeness
    return replace(likeness, verdict=DOUBTFUL, reasons=reasons)


def _listed(items: list[str], most: int = 6) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
