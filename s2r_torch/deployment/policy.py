"""From a predictor to actions: a meta-policy sees densities first, then acts on observations."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from s2r_torch.arrays import check_shape, require_numbers, unmasked
from s2r_torch.base import ProblemSpec
from s2r_torch.coverage import passes, typical
from s2r_torch.defaults import full_precision, plain_torch
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import same_axes
from s2r_torch.density.patches import Densities, Patches
from s2r_torch.density.samples import by_name
from s2r_torch.deployment.likeness import Reference
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.errors import ObservationError, SettingError
from s2r_torch.given import refuse_kind, require_having, taking, without
from s2r_torch.graph import Path, after
from s2r_torch.predictors.acting import Actor, actor
from s2r_torch.predictors.ensemble import Ensemble, greedy_actions
from s2r_torch.problem import Problem
from s2r_torch.text import printable

FAR = 3.0  # half-widths of the box from its middle, where networks cut readings
MASS = 5.0  # that a typical density may integrate to, or its inverse: few readings on few nodes come near 2

UNSEEN = "a policy that has seen a world, deploy(policy, world).policy or policy.condition_on(readings)"


@taking(reference=object)
@without(act=UNSEEN, q=UNSEEN)
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

    @plain_torch()
    def __post_init__(self):
        if not 0 <= self.chosen < self.ensemble.size or self.n_real < 1:
            raise SettingError(
                expected=f"chosen in 0 .. {self.ensemble.size - 1} and n_real >= 1",
                got=f"{self.chosen} and {self.n_real}",
                cause="an index into the whole class instead of the survivors, or an empty budget",
            )
        if self.reference is not None:
            require_having("reference", self.reference, ("scores", "can_refuse"), "a Reference, as runs make")
        mine, grid = self.problem.grid, self.estimator.grid
        if grid is not mine and not same_axes(grid, mine):
            expected, cause = (
                f"an estimator on the class's grid, {mine.shape} nodes",
                "one that was made for another run",
            )
            raise SettingError(expected=expected, got=f"one on {grid.shape}", cause=cause)
        graph = self.problem.graph
        cover, steps = tuple(map(tuple, self.cover)), graph.horizon - 1
        fits = all(len(path) == steps and all(0 <= a < graph.num_actions for a in path) for path in cover)
        actions = torch.tensor(cover if fits else (), dtype=torch.int64).reshape(len(cover) if fits else 0, steps)
        object.__setattr__(self, "cover", tuple(map(tuple, actions.tolist())))
        if len(graph.visited(actions).unique()) < graph.num_states:
            expected = f"sequences of {steps} actions that visit all {graph.num_states} states"
            cause = "a part of a cover, or one of another graph: path_cover(graph) makes one"
            raise SettingError(expected=expected, got=printable(cover, 80), cause=cause)

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

    @taking(D_hat=object)
    @plain_torch()
    def condition(self, D_hat: Densities, readings: Tensor | None = None) -> Policy:
        """The policy for one world's densities.

        Args:
            D_hat: `[xi, G]`, or `[B, xi, G]` of B worlds, which may be patches (`density.patches`).
            readings: `[xi]` how many each state's density was estimated from; None for as many as Deploy takes.
        """
        if not isinstance(D_hat, Tensor | Patches):
            refuse_kind("D_hat", D_hat, "Tensor")
        one = len(D_hat.shape) == 2
        self._require_densities(D_hat, one)
        many = typical(self.readings if readings is None else self._counted(readings))
        acting = self.ensemble.subset([self.chosen])
        if isinstance(D_hat, Patches) or not one:
            q = self._tried(partial(acting.evaluator(D_hat, many).q_of, 0), (len(D_hat),))
            return Policy(q, self.problem, len(D_hat), encoding=self.encoding)
        alone = actor(acting.groups[0], D_hat, self.problem.graph, many)
        return Policy(self._tried(alone.q, ()), self.problem, None, alone, self.encoding)

    def _require_densities(self, D_hat: Densities, one: bool) -> None:
        """Raises ObservationError unless these are densities of every state, [xi, G] or [B, xi, G]."""
        expected = (self.problem.graph.num_states, self.problem.grid.num_points)
        check_shape("densities", D_hat, expected if one else (None, *expected), "another grid, or another state graph")
        numbers, weights = D_hat.values if isinstance(D_hat, Patches) else D_hat, self.problem.grid.weights
        if not len(D_hat):
            raise ObservationError(expected="densities of a world", got="none", cause="an empty batch")
        if numbers.dtype not in (torch.float32, torch.float64):
            raise ObservationError(expected="densities, float32 or float64", got=str(numbers.dtype), cause="counts")
        require_numbers("densities", numbers)
        mass = D_hat.sums(weights[None])[..., 0] if isinstance(D_hat, Patches) else D_hat @ weights.to(D_hat)
        if not bool(torch.isfinite(mass).all()):  # it is not, where one of the densities' numbers is not
            raise ObservationError(expected="finite densities", got="NaN or inf", cause="a damaged estimate")
        least = 1 / MASS / 2**self.problem.grid.obs_dim  # half of a density may be cut at every edge of the box
        if not bool(((mass >= least) & (mass <= MASS)).all() and (mass.median(-1).values >= 1 / MASS).all()):
            odd = float(mass.flatten()[mass.log().abs().nan_to_num(torch.inf).argmax()])
            cause = "counts, or shares of cells: divide by their sum and by the volume of a cell"
            raise ObservationError(expected="densities that integrate to 1", got=f"one of {odd:.3g}", cause=cause)

    def _counted(self, readings: Tensor) -> Tensor:
        """Numbers of readings [xi]; raises ObservationError for others."""
        states = self.problem.graph.num_states
        if readings.shape != (states,) or not bool((readings >= 1).all()):
            got = f"shape {list(readings.shape)}" if readings.shape != (states,) else str(float(readings.min()))
            cause = "one number for all, or states without readings"
            raise ObservationError(
                expected=f"how many readings each of {states} states has, >= 1", got=got, cause=cause
            )
        return readings

    def _tried(self, q: Callable[[int, Tensor], Tensor], lead: tuple[int, ...]) -> Callable[[int, Tensor], Tensor]:
        """The same values: numbers at one reading of every step; of networks that may have none elsewhere, looked at.

        Raises:
            ObservationError: they are no numbers; it names the member.
        """
        looked_at, grid = partial(_finite_of, q, self.ensemble.described(self.chosen)), self.problem.grid
        middle = torch.tensor([grid.low, grid.high], dtype=torch.float64).mean(0)
        middle = self.problem.spec.widened(middle).expand(*lead, 1, -1)
        for step in range(self.problem.graph.horizon):
            looked_at(step, middle)
        return q if self.ensemble.certified else looked_at

    @plain_torch()
    def condition_on(self, observations: Sequence[Tensor] | Recording, worlds: Sequence[str] = ()) -> Policy:
        """The policy for a world's observations.

        Args:
            observations: one tensor [n_s, d] per state, in the graph's order, or [B, n_s, d] of B worlds; or recorded
                episodes, of which as many readings of every state are used as Deploy takes, the first ones.
            worlds: as in `densities`.
        """
        if isinstance(observations, Recording):
            observations.require_of(self.spec)
            observations = observations.samples(self.problem.graph, self.readings)
        if isinstance(observations, Iterator | Tensor):
            observations = list(observations)
        if not isinstance(observations, Iterable):
            refuse_kind("observations", observations, "a list of tensors")
        if isinstance(observations, str | Mapping) or not all(isinstance(x, Tensor) and x.ndim for x in observations):
            odd = next((x for x in observations if not isinstance(x, Tensor)), observations)
            raise ObservationError(
                expected="observations in a list, one torch.Tensor [n, d] per state in the graph's order",
                got=f"{type(observations).__name__} of {type(odd).__name__}",
                cause="an array, or states by name: [torch.as_tensor(x) for x in ...]",
            )
        if self.encoding:
            observations = [self.encoding(x) for x in observations]
        readings = torch.tensor([x.shape[-2] if x.ndim > 1 else 0 for x in observations])
        few = (readings < 1).nonzero().flatten().tolist()
        if few and len(observations) == self.problem.graph.num_states:
            where = after(self.problem.graph.paths[few[0]])
            got = f"{int(readings[few[0]])} {where}, shape {list(observations[few[0]].shape)}"
            cause = "a state without readings, or readings [n] in place of [n, d]"
            raise ObservationError(expected="readings [n, d] of every state, n >= 1", got=got, cause=cause)
        leads = {tuple(x.shape[:-2]) for x in observations}
        if len(leads) > 1 or any(len(lead) > 1 or 0 in lead for lead in leads):
            got, cause = f"leading sizes {printable(sorted(leads), 60)}", "states of other worlds, or an axis too many"
            raise ObservationError(
                expected="[n, d] of every state, or [B, n, d] of the same B worlds", got=got, cause=cause
            )
        of = self.densities if leads <= {()} else self.patches
        return self.condition(of(observations, worlds), readings)

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
        return self.densities_at(self._of_every_state(observations), observations, worlds)

    def patches(self, observations: Sequence[Tensor], worlds: Sequence[str] = ()) -> Patches:
        """The same of many worlds, kept only where they are not 0."""
        return self.patches_at(self._of_every_state(observations), observations, worlds)

    def _of_every_state(self, observations: Sequence[Tensor]) -> Sequence[Path]:
        """The paths to the states that observations are of; raises ObservationError where some are left out."""
        paths = self.problem.graph.paths
        if len(observations) != len(paths):
            raise ObservationError(
                expected=f"observations at {len(paths)} states", got=f"{len(observations)}", cause="states left out"
            )
        return paths

    def densities_at(self, paths: Sequence[Path], observations: Sequence[Tensor], worlds: Sequence[str] = ()) -> Tensor:
        """The densities [..., p, G] of observations [..., n, d] at the ends of p paths; as `densities`."""
        with self._by_name(paths, worlds):
            return self.estimator.of_states([self.problem.spec.placed(x) for x in observations])

    def patches_at(self, paths: Sequence[Path], observations: Sequence[Tensor], worlds: Sequence[str]) -> Patches:
        """`densities_at` of many worlds, kept only where they are not 0."""
        with self._by_name(paths, worlds):
            return self.estimator.patches([self.problem.spec.placed(x) for x in observations])

    def _by_name(self, paths: Sequence[Path], worlds: Sequence[str]) -> AbstractContextManager[None]:
        """Within it, observations at the ends of paths are refused by the names of sensors, worlds and paths."""

        def where(index: tuple[int, ...]) -> str:
            *world, s = index
            within = [f"in {worlds[w] if worlds else f'world {w}'}" for w in world]
            return " ".join([*within, after(paths[s])])

        return by_name(self.problem.spec.obs_names, where)


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
        expected = (None, spec.width) if self.num_worlds is None else (self.num_worlds, None, spec.width)
        check_shape("observations", x, expected, "a missing batch axis, other worlds, or another sensor")
        if self.encoding is None:
            self.problem.grid.require_resolved(x.dtype)
            if not self._all_near(x):
                self._look_into(x)
        with full_precision():
            return self._q(step, self.encoding(x) if self.encoding else x)

    @cached_property
    def _near(self) -> tuple[Tensor, Tensor]:
        """Edges [d] beyond which networks see no difference."""
        low, high = (torch.tensor(e, dtype=torch.float64, device="cpu") for e in (self.spec.low, self.spec.high))
        middle, half = (low + high) / 2, (high - low) / 2
        near, far = self.spec.widened(middle - FAR * half, -math.inf), self.spec.widened(middle + FAR * half, math.inf)
        return near, far

    @cached_property
    def _told(self) -> set[int]:
        """Sensors that were warned of."""
        return set()

    @cached_property
    def _edges(self) -> list[tuple[float, float]]:
        return list(zip(*(edge.tolist() for edge in self._near), strict=True))

    def _all_near(self, x: Tensor) -> bool:
        """Whether all readings are finite and near the box; few are looked at one by one, which takes less time."""
        if x.shape[-1] == x.numel():
            return all(
                low <= value <= high for value, (low, high) in zip(x.flatten().tolist(), self._edges, strict=True)
            )
        flat = x.reshape(-1, x.shape[-1])
        low, high = self._near
        return not len(flat) or bool((flat.amin(0) >= low).all() and (flat.amax(0) <= high).all())  # not of NaN

    def _look_into(self, x: Tensor) -> None:
        """Raises ObservationError for readings that are not finite; warns of those far off the box, which are cut.

        Once of every sensor: noise may have heavy tails, and Python keeps every warning of other words for good.
        """
        if not bool(torch.isfinite(x).all()):
            raise ObservationError(expected="finite observations", got="NaN or inf", cause="a broken or stuck sensor")
        low, high = self._near
        new = {*((x < low) | (x > high)).nonzero()[:, -1].tolist()} - self._told
        if not new:
            return
        self._told.update(new)
        j = min(new)
        values = x.detach()[..., j].flatten()
        odd = float(values[(values - (low[j] + high[j]) / 2).abs().argmax()])
        text = f"{self.spec.obs_names[j]} = {odd:g} is far off {self.spec.low[j]:g} .. {self.spec.high[j]:g}"
        warnings.warn(f"{text}, and is acted upon as if it were near: other units, or a broken sensor?", stacklevel=4)

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


def _finite_of(q: Callable[[int, Tensor], Tensor], name: str, step: int, x: Tensor) -> Tensor:
    """q(step, x); raises ObservationError, with the member's name, unless all of them are numbers."""
    values = q(step, x)
    if not bool(torch.isfinite(values).all()):
        cause = "damaged weights, training that diverged, or a network of your own that has none at some readings"
        raise ObservationError(expected=f"finite values of {name}", got=f"NaN or inf at step {step}", cause=cause)
    return values


def _readings(x: object) -> Tensor:
    """Readings on the CPU, in float32 or float64."""
    x = (x if x.is_meta else x.cpu()) if isinstance(x, Tensor) else _array(x)
    if x.layout != torch.strided or x.is_complex() or x.is_quantized:
        got = f"{x.dtype} of layout {x.layout}"
        raise ObservationError(expected="real observations, all of them there", got=got, cause="another sensor")
    x = x if x.dtype in (torch.float32, torch.float64) else x.double()
    require_numbers("observations", x)
    return x


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
