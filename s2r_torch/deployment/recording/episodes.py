"""Recorded episodes of a world: which actions were taken, and what was read before each.

Given the actions, the states are known (the latent dynamics are shared and deterministic), so any episode is of use:
its reading at step h is a sample of the state that its first h actions lead to, whatever sequence was meant to be
followed. Actions may even have been chosen by looking at earlier readings: given its state, a reading does not depend
on them, so the first n readings of a state are n independent draws of its law.

>>> from s2r_torch.graph import StateGraph
>>> graph = StateGraph(torch.tensor([[1, 2], [-1, -1], [-1, -1]]), torch.tensor([0, 1, 1]), ((), (0,), (1,)))
>>> x = torch.tensor([[[0.1], [1.0]], [[0.2], [2.0]], [[0.3], [1.1]]])
>>> recording = Recording(torch.tensor([[0], [1], [0]]), x, torch.tensor([2, 2, 2]))
>>> recording.counts(graph).tolist()
[3, 2, 1]
>>> [len(x) for x in recording.samples(graph, most=2)]
[2, 2, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from s2r_torch.base import ProblemSpec
from s2r_torch.errors import RecordingError
from s2r_torch.given import refuse_kind, taking
from s2r_torch.graph import Path, StateGraph

NOWHERE = 1e6  # times the width of the box from it: no sensor shows that
FLOATS = (torch.float32, torch.float64)
RANKS = {"actions": 2, "x": 3, "length": 1}


@taking(actions=object, x=object, length=object)
@dataclass(frozen=True, eq=False)
class Recording:
    """Episodes in the order in which they were run, in one world or side by side in several.

    Args:
        actions: `[N, H - 1]` int64 actions, in 0 .. A-1; beyond an episode's end they say nothing.
        x: `[..., N, H, d]` readings, float32 or float64; beyond an episode's end they are not looked at. Leading sizes
            are those of worlds that took the same actions.
        length: `[N]` int64 how many readings each episode has, 1 .. H; below H where it was interrupted.
        places: `[N, H]` int64 where each reading stands in a file, counted from 1, and 0 where it is in none; None for
            no file at all.
        unit: what such a place is called, "line" or "row".

    Raises:
        RecordingError: the three disagree in their sizes, or a length is impossible.
    """

    actions: Tensor  # [N, H - 1]
    x: Tensor  # [..., N, H, d]
    length: Tensor  # [N]
    places: Tensor | None = None  # [N, H]
    unit: str = "line"

    def __post_init__(self):
        if isinstance(self.x, Tensor) and self.x.requires_grad:
            object.__setattr__(self, "x", self.x.detach())
        for name, kind in (("actions", "whole numbers"), ("x", "readings"), ("length", "whole numbers")):
            part = getattr(self, name)
            good = isinstance(part, Tensor) and part.dtype in (FLOATS if name == "x" else (torch.int64,))
            if not good or part.ndim < RANKS[name]:
                got = f"{part.dtype}, shape {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                expected = f"{name} as a tensor of {kind}, {'float32 or float64' if name == 'x' else 'int64'}"
                raise RecordingError(
                    expected=expected, got=got, cause="an array: torch.as_tensor(...); or another part"
                )
        N, H = self.x.shape[-3:-1]
        if self.actions.shape != (N, H - 1) or self.length.shape != (N,):
            raise RecordingError(
                expected=f"actions [{N}, {H - 1}] and lengths [{N}] for readings {list(self.x.shape)}",
                got=f"{list(self.actions.shape)} and {list(self.length.shape)}",
                cause="the last step has no action that leads anywhere: H readings, H - 1 actions",
            )
        if N and not (int(self.length.min()) >= 1 and int(self.length.max()) <= H):
            raise RecordingError(
                expected=f"1 .. {H} readings in every episode",
                got=f"{int(self.length.min())} .. {int(self.length.max())}",
                cause="another horizon",
            )

    def require_of(self, spec: ProblemSpec) -> None:
        """Raises RecordingError unless these can be episodes of this problem."""
        H, d, A = spec.horizon, spec.width, spec.num_actions
        if self.x.shape[-2:] != (H, d):
            raise RecordingError(
                expected=f"readings [episodes, {H} steps, {d} numbers], as the policy was made for",
                got=f"shape {list(self.x.shape)}",
                cause="episodes of another problem",
            )
        seen = torch.arange(H) < self.length[:, None]  # [N, H]
        odd = (seen[:, 1:] & ((self.actions < 0) | (self.actions >= A))).nonzero()
        if len(odd):
            i, step = odd[0].tolist()
            got, cause = (
                f"{int(self.actions[i, step])} at {self.at(i, step)}",
                "actions counted from 1, or of another problem",
            )
            raise RecordingError(expected=f"actions in 0 .. {A - 1}", got=got, cause=cause)
        bad = (seen & ~torch.isfinite(self.x).all(-1)).nonzero()
        if len(bad):
            got, cause = (
                f"NaN or inf at {self.at(*bad[0, -2:].tolist())}",
                "a broken sensor, or a length that is too large",
            )
            raise RecordingError(expected="finite readings", got=got, cause=cause)
        low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (spec.low, spec.high))
        lost = (seen[..., None] & ((spec.placed(self.x) - low).abs() > NOWHERE * (high - low))).nonzero()
        if len(lost):
            *_, i, step, j = lost[0].tolist()
            got = f"{float(self.x[tuple(lost[0].tolist())]):g} at {self.at(i, step)}"
            expected = f"readings of {spec.obs_names[j]!r} near {spec.low[j]:g} .. {spec.high[j]:g}"
            raise RecordingError(expected=expected, got=got, cause="a damaged number, or one that stands for none")

    @staticmethod
    def empty(spec: ProblemSpec) -> Recording:
        """No episode yet."""
        H = spec.horizon
        return Recording(
            torch.empty(0, H - 1, dtype=torch.int64),
            torch.empty(0, H, spec.width, dtype=torch.float64),
            torch.empty(0, dtype=torch.int64),
        )

    @staticmethod
    def of(path: Path, seen: Sequence[Tensor]) -> Recording:
        """n episodes along one path of H - 1 actions; `seen` holds x `[..., n, d]` of the steps seen, at least one."""
        if not 1 <= len(seen) <= len(path) + 1:
            expected = f"readings of 1 .. {len(path) + 1} steps, as {len(path)} actions show"
            raise RecordingError(expected=expected, got=f"{len(seen)}", cause="a step without an action before it")
        (*lead, n, d), H = seen[0].shape, len(path) + 1
        x = seen[0].new_full((*lead, n, H, d), torch.nan)
        x[..., : len(seen), :] = torch.stack(list(seen), -2)
        actions = torch.tensor(path, dtype=torch.int64).expand(n, H - 1)
        return Recording(actions, x, torch.full((n,), len(seen)))

    @staticmethod
    def joined(parts: Sequence[Recording]) -> Recording:
        """The episodes of all parts, in order; empty parts leave the others' precision alone."""
        if not isinstance(parts, list | tuple) or not all(isinstance(part, Recording) for part in parts):
            refuse_kind("parts", parts, "a list of recordings")
        parts = [part for part in parts if len(part)] or list(parts[:1])
        if not parts:
            raise RecordingError(
                expected="recordings to join", got="none", cause="no episode yet: Recording.empty(spec)"
            )
        sizes = {(part.x.shape[-2:], part.x.shape[:-3]) for part in parts}
        if len(sizes) > 1:
            got = ", ".join(str(list(part.x.shape)) for part in parts[:3])
            raise RecordingError(
                expected="parts of one problem", got=f"readings {got}", cause="another horizon or sensor"
            )
        filed = [part for part in parts if part.places is not None]
        places = [
            torch.zeros(part.x.shape[-3:-1], dtype=torch.int64) if part.places is None else part.places
            for part in parts
        ]
        return Recording(
            torch.cat([part.actions for part in parts]),
            torch.cat([part.x for part in parts], -3),
            torch.cat([part.length for part in parts]),
            torch.cat(places) if filed else None,
            filed[0].unit if filed else "line",
        )

    def __len__(self) -> int:
        return len(self.length)

    def since(self, first: int) -> Recording:
        """The episodes from that one on."""
        return self.only(slice(first, None))

    def only(self, which: slice | Tensor) -> Recording:
        """Some episodes, by a slice or their numbers."""
        places = None if self.places is None else self.places[which]
        return Recording(self.actions[which], self.x[..., which, :, :], self.length[which], places, self.unit)

    def encoded(self, phi: Callable[[Tensor], Tensor]) -> Recording:
        """The same episodes seen through phi: [..., D] -> [..., d]."""
        seen = torch.arange(self.x.shape[-2]) < self.length[:, None]  # [N, H]
        features = phi(self.x[..., seen, :])
        x = features.new_full((*self.x.shape[:-1], features.shape[-1]), torch.nan)
        x[..., seen, :] = features
        return replace(self, x=x)

    def at(self, i: int, step: int) -> str:
        """Where a reading is: "line 17" of its file, or "step 2 of episode 8" of those drawn."""
        place = 0 if self.places is None else int(self.places[i, step])
        return f"{self.unit} {place}" if place else f"step {step} of episode {i + 1}"

    def states(self, graph: StateGraph) -> Tensor:
        """The state of every reading, `[N, H]` int64; -1 beyond an episode's end."""
        if self.x.shape[-2] != graph.horizon:
            got, cause = f"{self.x.shape[-2]} steps", "episodes of another problem"
            raise RecordingError(expected=f"episodes of {graph.horizon} steps, as the graph has", got=got, cause=cause)
        seen = torch.arange(self.x.shape[-2]) < self.length[:, None]
        known = torch.where(seen[:, 1:], self.actions, 0)
        return torch.where(seen, graph.visited(known), -1)

    def counts(self, graph: StateGraph) -> Tensor:
        """How many readings every state has, `[xi]`."""
        states = self.states(graph)
        return torch.bincount(states[states >= 0], minlength=graph.num_states)

    def follows(self, path: Path) -> Tensor:
        """Which episodes begin with these actions and show what comes after them: `[N]` bool."""
        return self.shows(path) >= len(path)

    def shows(self, path: Path) -> Tensor:
        """How many of these actions each episode begins with, as far as it shows what comes after them: `[N]` int64."""
        same = self.actions[:, : len(path)] == torch.tensor(path, dtype=torch.int64)
        return torch.minimum(same.long().cumprod(1).sum(1), self.length - 1)

    def samples(self, graph: StateGraph, most: int | Tensor | None = None) -> list[Tensor]:
        """Every state's readings `[..., n_s, d]` in the order of the episodes, the first `most` (or `[xi]`) of them."""
        columns, xi = self.states(graph).unbind(1), graph.num_states
        wanted = torch.as_tensor(len(self) if most is None else most).expand(xi).tolist()
        found = ((step, (columns[step] == s).nonzero().flatten()) for s, step in enumerate(graph.layer.tolist()))
        return [self.x[..., rows[:n], step, :] for n, (step, rows) in zip(wanted, found, strict=True)]
