"""From a predictor to actions: a meta-policy sees densities first, then acts on observations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from s2r_torch.base import Path, ProblemSpec, after, check_shape, unmasked
from s2r_torch.coverage import passes, typical
from s2r_torch.defaults import plain_torch
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.patches import Densities, Patches
from s2r_torch.density.samples import by_name
from s2r_torch.deployment.likeness import Reference
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.given import refuse_kind
from s2r_torch.predictors.acting import Actor, actor
from s2r_torch.predictors.ensemble import Ensemble, greedy_actions
from s2r_torch.problem import Problem
from s2r_torch.text import printable

FEW = 16


@dataclass(frozen=True, eq=False)
class MetaPolicy:
    """A predictor and all that it takes to use it anywhere: `condition` on densities, then `act`.

    Args:
        ensemble: the survivors.
        chosen: which of them acts, an index into `ensemble`.
        estimator: kernel, bandwidth and grid that densities must be estimated with.
        cover: action sequences that visit every state.
        n_real: episodes along every sequence of the cover that a world is asked for; every state has at least so many
            readings, and one that several sequences pass has more.
        reference: what a world is compared with before anybody acts in it; None leaves worlds untested.
        encoding: the frozen encoder that a world's readings go through; None where they are taken as they are.

    Raises:
        SettingError: no such survivor, or no observation at all.
    """

    ensemble: Ensemble
    chosen: int
    estimator: DensityEstimator
    cover: tuple[tuple[int, ...], ...]
    n_real: int
    reference: Reference | None = None
    encoding: Encoding | None = None

    def __post_init__(self):
        if not 0 <= self.chosen < self.ensemble.size or self.n_real < 1:
            raise SettingError(
                expected=f"chosen in 0 .. {self.ensemble.size - 1} and n_real >= 1",
                got=f"{self.chosen} and {self.n_real}",
                cause="an index into the whole class instead of the survivors, or an empty budget",
            )

    @property
    def problem(self) -> Problem:
        return self.ensemble.problem

    @property
    def spec(self) -> ProblemSpec:
        """What worlds must be like, and show: raw readings, where there is an encoder."""
        return self.encoding.raw if self.encoding else self.problem.spec

    @property
    def behind_encoder(self) -> MetaPolicy:
        """The same policy for those who see features already."""
        return replace(self, encoding=None)

    @property
    def readings(self) -> Tensor:
        """How many readings of every state Deploy estimates its density from, `[xi]`."""
        return self.n_real * passes(self.problem.graph, self.cover)

    @plain_torch()
    def condition(self, D_hat: Densities, readings: Tensor | None = None) -> Policy:
        """The policy for one world's densities.

        Args:
            D_hat: `[xi, G]`, or `[B, xi, G]` of B worlds, which may be patches (`density.patches`).
            readings: `[xi]` how many each state's density was estimated from; None for as many as Deploy takes.
        """
        if not isinstance(D_hat, Tensor | Patches):
            refuse_kind("D_hat", D_hat, "Tensor")
        many = typical(self.readings if readings is None else readings)
        one, numbers = len(D_hat.shape) == 2, D_hat.values if isinstance(D_hat, Patches) else D_hat
        expected = (self.problem.graph.num_states, self.problem.grid.num_points)
        check_shape("densities", D_hat, expected if one else (None, *expected), "another grid, or another state graph")
        if not _all_finite(numbers):
            raise ObservationError(expected="finite densities", got="NaN or inf", cause="a damaged estimate")
        acting = self.ensemble.subset([self.chosen])
        if isinstance(D_hat, Patches) or not one:
            evaluator = acting.evaluator(D_hat, many)
            self._require_values(partial(evaluator.q_of, 0), (len(D_hat),))
            return Policy(partial(evaluator.q_of, 0), self.problem, len(D_hat), encoding=self.encoding)
        alone = actor(acting.groups[0], D_hat, self.problem.graph, many)
        self._require_values(alone.q, ())
        return Policy(alone.q, self.problem, None, alone, self.encoding)

    def _require_values(self, q: Callable[[int, Tensor], Tensor], lead: tuple[int, ...]) -> None:
        """Raises ObservationError, with the member's name, unless its values are numbers, as seen at one reading."""
        grid = self.problem.grid
        middle = torch.tensor([grid.low, grid.high], dtype=torch.float64).mean(0).expand(*lead, 1, -1)
        for step in range(self.problem.graph.horizon):
            if not bool(torch.isfinite(q(step, middle)).all()):
                raise ObservationError(
                    expected=f"finite values of {self.ensemble.described(self.chosen)}",
                    got=f"NaN or inf at step {step}",
                    cause="damaged weights, or training that diverged",
                )

    @plain_torch()
    def condition_on(self, observations: Sequence[Tensor] | Recording, worlds: Sequence[str] = ()) -> Policy:
        """The policy for a world's observations.

        Args:
            observations: one tensor [n_s, d] per state, in the graph's order; or recorded episodes, of which as many
                readings of every state are used as Deploy takes, the first ones.
            worlds: as in `densities`.
        """
        if isinstance(observations, Recording):
            observations = observations.samples(self.problem.graph, self.readings)
        if isinstance(observations, str | Mapping) or not all(isinstance(x, Tensor) for x in observations):
            odd = next((x for x in observations if not isinstance(x, Tensor)), observations)
            raise ObservationError(
                expected="observations in a list, one torch.Tensor [n, d] per state in the graph's order",
                got=f"{type(observations).__name__} of {type(odd).__name__}",
                cause="an array, or states by name: [torch.as_tensor(x) for x in ...]",
            )
        if self.encoding:
            observations = [self.encoding(x) for x in observations]
        readings = torch.tensor([x.shape[-2] if x.ndim > 1 else 0 for x in observations])
        if (readings == 1).any():
            short = after(self.problem.graph.paths[int((readings == 1).nonzero()[0])])
            cause = "no density of a single reading"
            raise ObservationError(expected="at least 2 readings of every state", got=f"1 {short}", cause=cause)
        return self.condition(self.densities(observations, worlds), readings)

    @plain_torch()
    def densities(self, observations: Sequence[Tensor], worlds: Sequence[str] = ()) -> Tensor:
        """The densities [..., xi, G] of observations [..., n_s, d] of every state.

        Args:
            observations: of every state, in the graph's order; features where there is an encoder. A leading size is
                that of worlds.
            worlds: what these are called in messages; "world 0" and so on by default.

        Raises:
            ObservationError: states left out, or observations that no density can be estimated from; it says where.
        """
        paths = self.problem.graph.paths
        if len(observations) != len(paths):
            raise ObservationError(
                expected=f"observations at {len(paths)} states", got=f"{len(observations)}", cause="states left out"
            )
        return self.densities_at(paths, observations, worlds)

    def densities_at(self, paths: Sequence[Path], observations: Sequence[Tensor], worlds: Sequence[str] = ()) -> Tensor:
        """The densities [..., p, G] of observations [..., n, d] at the ends of p paths; as `densities`."""

        def where(index: tuple[int, ...]) -> str:
            *world, s = index
            within = [f"in {worlds[w] if worlds else f'world {w}'}" for w in world]
            return " ".join([*within, after(paths[s])])

        with by_name(self.problem.spec.obs_names, where):
            return self.estimator.of_states(observations)


@dataclass(frozen=True, eq=False)
class Policy:
    """A meta-policy conditioned on densities: a map from (step, observation) to an action."""

    _q: Callable[[int, Tensor], Tensor]  # f(D, x, .) for checked x
    problem: Problem
    num_worlds: int | None  # B, or None for one world without that axis
    actor: Actor | None = None  # of one world: every step at once, for programs
    encoding: Encoding | None = None  # what raw readings go through first

    @property
    def spec(self) -> ProblemSpec:
        """What readings are like: raw ones, where there is an encoder."""
        return self.encoding.raw if self.encoding else self.problem.spec

    def q(self, step: int, x: Tensor) -> Tensor:
        """f(D, x, a) for x [n, d] (one world) or [B, n, d] (B worlds): [..., A].

        Args:
            step: 0 .. H-1.
            x: finite readings, n >= 0. float32 and float64 are taken as they are, other numbers as float64; arrays,
                lists and tensors on another device are brought to the CPU.

        Raises:
            SettingError: a step beyond the horizon.
            ObservationError: another shape, readings that are not finite real numbers, or float32 in a box so far from
                0 that it does not tell readings apart.
        """
        spec, step = self.spec, self._step(step)
        x = _readings(x)
        expected = (None, spec.obs_dim) if self.num_worlds is None else (self.num_worlds, None, spec.obs_dim)
        check_shape("observations", x, expected, "a missing batch axis, other worlds, or another sensor")
        if self.encoding:
            return self._q(step, self.encoding(x))
        self.problem.grid.require_resolved(x.dtype)
        if not _all_finite(x):
            raise ObservationError(expected="finite observations", got="NaN or inf", cause="a broken or stuck sensor")
        return self._q(step, x)

    def _step(self, step: int) -> int:
        """A step of the horizon, whatever kind of whole number it is."""
        try:
            found = operator.index(step)
        except TypeError:
            found = -1
        if not 0 <= found < self.spec.horizon:
            cause = "an episode longer than the horizon, or no whole number"
            raise SettingError(expected=f"a step in 0 .. {self.spec.horizon - 1}", got=printable(step), cause=cause)
        return found

    def act(self, step: int, x: Tensor) -> Tensor:
        """Greedy actions for x [n, d] or [B, n, d]: [...] int64."""
        return greedy_actions(self.q(step, x))


def _all_finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinite; few numbers are looked at one by one, which takes less time."""
    if x.numel() <= FEW:
        return all(map(math.isfinite, x.flatten().tolist()))
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())  # a sum of finite numbers may overflow


def _readings(x: object) -> Tensor:
    """Readings on the CPU, in float32 or float64."""
    x = x.cpu() if isinstance(x, Tensor) else _array(x)
    if x.layout != torch.strided or x.is_complex():
        got = f"{x.dtype} of layout {x.layout}"
        raise ObservationError(expected="real observations, all of them there", got=got, cause="another sensor")
    return x if x.dtype in (torch.float32, torch.float64) else x.double()


def _array(x: object) -> Tensor:
    """Arrays of whatever library, and lists; values that a mask hides are none."""
    try:
        found = unmasked(x)
        if found.dtype.kind not in "iufb":
            raise TypeError(f"{found.dtype} of shape {list(found.shape)}")
        same = found.dtype.type in (np.float32, np.float64)  # a copy: no stride below 0, native bytes, not read-only
        return torch.from_numpy(found.astype(found.dtype.newbyteorder("=") if same else np.float64, order="C"))
    except (TypeError, ValueError) as error:  # NumPy's words for what is no array of numbers
        raise ObservationError(
            expected="observations as numbers", got=printable(error), cause="text, nothing, or rows of several lengths"
        ) from error
