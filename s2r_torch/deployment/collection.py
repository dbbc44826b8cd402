"""Looking at a world: episodes along the path cover, kept as they come, never drawn twice.

Real episodes are the scarce good. A `Collector` runs only those that are still missing, and hands each batch on to be
kept before it runs the next, also one that fails or is interrupted. `Collection.of` picks from any episodes, whatever
sequences they followed, the readings that Deploy wants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from s2r_torch.base import UnlabelledWorld
from s2r_torch.coverage import Walks, assigned, fewest_walks, passages, passes
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.graph import Path as Actions
from s2r_torch.graph import StateGraph
from s2r_torch.held import faults_of


@dataclass(frozen=True, eq=False)
class Collection:
    """The readings that Deploy wants; leading sizes are those of the world."""

    observations: list[Tensor]  # [xi] of [..., n_s, d]
    again: list[Tensor]  # of [..., n_s, d]: states that a later sequence passes again, in `coverage.passages` order

    @staticmethod
    def of(recording: Recording, graph: StateGraph, cover: tuple[Actions, ...], n: int) -> Collection:
        """At most n readings of every state, and of every state that a later sequence of the cover passes again.

        A state's readings are those at the end of its own path along the cover; where these are too few, any others.
        Those for a later passage are at the end of that path, and never the same ones. Episodes along the cover, n
        each, give what `rehearsal.py` sees.
        """
        # `places` are (state, sequence that supplies it): first the xi states, numbered like them, then the passages.
        # `picked[j]` are the episodes (rows of the recording) whose reading at steps[j] goes to place j, and
        # taken[row, step] says that a reading has a place. Passages may lend theirs to a state that has too few.
        xi, states = graph.num_states, recording.states(graph)
        places = [(s, cover[int(i)]) for s, i in enumerate(assigned(graph, cover))]
        places += [(s, cover[i]) for s, i in passages(graph, cover)]
        steps = [int(graph.layer[s]) for s, _ in places]
        picked, taken = [], torch.zeros_like(states, dtype=torch.bool)
        shows = {path: recording.shows(path) for path in cover}
        for step, (_, path) in zip(steps, places, strict=True):
            rows = ((shows[path] >= step) & ~taken[:, step]).nonzero().flatten()[:n]
            taken[rows, step] = True
            picked.append(rows)
        lenders = defaultdict(list)
        for j in range(xi, len(places)):
            lenders[places[j][0]].append(j)
        for state in range(xi):
            others = ((states[:, steps[state]] == state) & ~taken[:, steps[state]]).nonzero().flatten()
            again = lenders[state]
            more = torch.cat([others, *(picked[j] for j in again)])[: n - len(picked[state])]
            picked[state] = torch.cat([picked[state], more])
            for j in again:
                picked[j] = picked[j][~torch.isin(picked[j], more)]
        readings = [recording.x[..., rows, step, :] for step, rows in zip(steps, picked, strict=True)]
        return Collection(readings[:xi], readings[xi:])


def missing_episodes(recording: Recording, graph: StateGraph, cover: tuple[Actions, ...], n: int) -> Walks:
    """Episodes after which every state has the readings that n along every sequence of the cover show.

    Where all episodes so far follow the cover, what is missing of n along each of its sequences; otherwise the fewest
    episodes that will do (theory.md 3.1, last line).
    """
    counts, wanted = recording.counts(graph), n * passes(graph, cover)
    if bool((counts >= wanted).all()):
        return ()
    along = torch.stack([recording.follows(path) for path in cover])  # [w, N]
    if bool(along.any(0)[recording.length == graph.horizon].all()):
        left = ((path, n - int(whole.sum())) for path, whole in zip(cover, along, strict=True))
        return tuple((path, count) for path, count in left if count > 0)
    return fewest_walks(graph, (wanted - counts).clamp(min=0))


class Collector:
    """Runs real episodes until every state has as many readings as wanted.

    Args:
        world: guarded, so that every episode is counted and checked; or several side by side (`rehearsal.py`).
        graph: the state graph.
        cover: action sequences that visit every state.
        recording: what was seen before.
        keep: called with the new episodes of each batch as soon as it is over, also where it was cut short.
        check: called with (state, readings) at every step; raises where no further episode can help.
    """

    def __init__(
        self,
        world: UnlabelledWorld,
        graph: StateGraph,
        cover: tuple[Actions, ...],
        recording: Recording | None = None,
        keep: Callable[[Recording], None] = lambda new: None,
        check: Callable[[int, Tensor], None] = lambda state, x: None,
    ):
        self.world, self.graph, self.cover, self._check = world, graph, cover, check
        self._parts = [Recording.empty(world.spec) if recording is None else recording]
        self._keep = keep

    @property
    def recording(self) -> Recording:
        """All episodes so far."""
        self._parts = [Recording.joined(self._parts)]
        return self._parts[0]

    def until(self, n: int) -> Recording:
        """Runs what is missing for n readings of every state; returns all episodes.

        Raises:
            ObservationError, SimulatorError: what the world shows cannot be used; what was seen before is kept.
        """
        return self.walk(missing_episodes(self.recording, self.graph, self.cover, n))

    def walk(self, walks: Walks) -> Recording:
        """Runs these episodes; returns all episodes. Raises as `until` does."""
        for actions, episodes in walks:
            for size in self._batches(episodes):
                self._run(actions, size)
        return self.recording

    def _batches(self, episodes: int) -> Iterator[int]:
        most = getattr(self.world, "episodes_at_once", None) or episodes
        for start in range(0, episodes, most):
            yield min(most, episodes - start)

    def _run(self, actions: Actions, n: int) -> None:
        """n episodes side by side; those that are interrupted keep the readings that they have."""
        seen = []
        try:
            seen.append(self.world.reset(n))
            self._check(0, seen[-1])
            for step, a in enumerate(actions):
                seen.append(self.world.step(torch.full((n,), a, dtype=torch.int64)))
                self._check(self.graph.end(actions[: step + 1]), seen[-1])
        finally:
            if seen:
                self._parts.append(Recording.of(actions, seen))
                with faults_of("keep(recording) to keep new episodes", "a fault in the function that was given"):
                    self._keep(Recording.of(actions, seen))  # its own: it may write into it
