"""What a run will ask of its simulators, before it starts: episodes, environment steps and hours, stage by stage.

Almost all of it follows from the settings and the state graph: tours of a known graph have a length (`tours.py`), and
so have whole episodes. Two things are assumed: Learn-on-Simulators accepts in its first round, and what is learned is
good enough at the first attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from s2r_torch.assurance.diagnostics import rough_readings
from s2r_torch.base import ProblemSpec
from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.coverage import edge_cover, near_readings, passes, path_cover, typical
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.nodes import nodes_for
from s2r_torch.families.check.payoff import LOOKS, MOST_STATES, SIMULATORS
from s2r_torch.families.check.truth import N_MERGE, other_edges
from s2r_torch.families.contract import Family, KnowsGraph
from s2r_torch.graph import StateGraph
from s2r_torch.learning.estimator import PILOTS
from s2r_torch.learning.pruning import on_lists, part_of, serving
from s2r_torch.learning.walks import walks_of
from s2r_torch.planner.budget import Budget
from s2r_torch.problem import Problem
from s2r_torch.runs.configuring import known_class, prunes
from s2r_torch.runs.evaluation import MOST_WORLDS
from s2r_torch.runs.settings import RunSettings
from s2r_torch.schema import Range, Settings, Size
from s2r_torch.tours import decision_tour, reading_tour

CHECKED = 12  # simulators that a check of the family looks at closely
CHECK = 109_000  # its episodes that depend on nothing


@dataclass(frozen=True)
class ForecastSettings(Settings):
    """What a forecast is told beside a run's own settings.

    Args:
        step_seconds: that one step of one simulator takes.
        reset_seconds: that the start of an episode takes.
        workers: how many simulators run side by side; one column each.
        json: true prints JSON and nothing else.

    Raises:
        SettingError: a value of the wrong type or out of range.
    """

    step_seconds: Annotated[float, Range(0)] = 0.001
    reset_seconds: Annotated[float, Range(0)] = 0.0
    workers: tuple[Size, ...] = (1, 2, 8, 64)
    json: bool = False


@dataclass(frozen=True)
class Cost:
    """What every one of some simulators is asked for."""

    episodes: int
    steps: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.episodes + other.episodes, self.steps + other.steps)

    def __mul__(self, times: int) -> Cost:
        return Cost(times * self.episodes, times * self.steps)


@dataclass(frozen=True)
class Part:
    """One purpose of one stage."""

    stage: str
    purpose: str  # as the ledger counts it
    simulators: int  # B
    each: Cost

    @property
    def episodes(self) -> int:
        return self.simulators * self.each.episodes

    @property
    def steps(self) -> int:
        return self.simulators * self.each.steps

    def hours(self, told: ForecastSettings, workers: int) -> float:
        """With so many simulators side by side; a simulator is on one worker."""
        one = self.each.steps * told.step_seconds + self.each.episodes * told.reset_seconds
        return -(-self.simulators // workers) * one / 3600


@dataclass(frozen=True, eq=False)
class Forecast:
    """All parts of a run, and what the graph is that they are for."""

    parts: tuple[Part, ...]
    graph: StateGraph  # that is explored
    known: bool  # whether the family knows its graph; else it is the largest that the family allows
    looked_at: StateGraph  # what is left of it, where the family knows what pays


def forecast(settings: RunSettings, family: Family) -> Forecast:
    """What a run of these settings asks of the simulators, the check of the family included.

    Cost:
        No episodes.
    """
    graph, known = graph_of(family)
    looked_at = pruned(settings, family, graph) if known else graph
    parts = list(_Counting(settings, family, looked_at, known, graph).parts())
    return Forecast(tuple(part for part in parts if part.episodes), graph, known, looked_at)


def graph_of(family: Family) -> tuple[StateGraph, bool]:
    """The family's state graph, and whether it knows it; else the largest graph that its spec allows."""
    truth = family.truth(family.prior(1, torch.Generator().manual_seed(0)))
    if truth is not None:
        return truth.graph, True
    known = family.known_graph() if isinstance(family, KnowsGraph) else None
    return (known, True) if known is not None else (largest_graph(family.spec), False)


def pruned(settings: RunSettings, family: Family, graph: StateGraph) -> StateGraph:
    """What a run looks at of the family's graph, by exact rewards where the family knows them; else all of it."""
    if not prunes(settings, family):
        return graph
    told = settings.pruning
    theta = family.prior(told.simulators, torch.Generator().manual_seed(0))
    truth = family.truth(theta)
    if truth is None:
        if not isinstance(family, KnowsGraph):
            return graph
        reward = family.mean_rewards(theta)
    elif bool((truth.reward == truth.reward[:, :, :1]).all()):
        reward = truth.reward[:, :, 0]
    else:
        return graph  # rewards depend on readings
    return part_of(graph, on_lists(graph, serving(graph, reward, reward, told.tolerance)))


def largest_graph(spec: ProblemSpec) -> StateGraph:
    """A graph of min(A^h, S) states in layer h, in the order of its layers.

    >>> from s2r_torch.families import make_family
    >>> largest_graph(make_family("grid").spec).states_per_layer
    [1, 2, 3, 3, 3]
    """
    A = spec.num_actions
    sizes = [1]
    while len(sizes) < spec.horizon:
        sizes.append(min(A * sizes[-1], spec.max_states_per_layer))
    paths: list[tuple[int, ...]] = [()]
    rows: list[list[int]] = []
    start = 0
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        targets = [[start + size + (i * A + a) % following if following else -1 for a in range(A)] for i in range(size)]
        rows += targets
        reached = {t: (*paths[start + i], a) for i in reversed(range(size)) for a, t in enumerate(targets[i]) if t >= 0}
        paths += [reached[t] for t in sorted(reached)]
        start += size
    layer = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return StateGraph(torch.tensor(rows), layer, tuple(paths))


@dataclass(frozen=True, eq=False)
class _Counting:
    """Stage by stage, what each simulator is asked for."""

    settings: RunSettings
    family: Family
    graph: StateGraph  # that is looked at
    known: bool
    whole: StateGraph

    def parts(self) -> Iterator[Part]:
        settings, predictors = self.settings, self.settings.predictors
        trained = predictors.kind == "trained"
        if settings.check_family:
            yield Part("check", "check", CHECKED, self._check())
        yield from self._explored(
            "explore", predictors.num_simulators, settings.density.merge.n_merge, settings.budget.n_dist
        )
        if trained and settings.pruning.tolerance and self.whole.num_states > self.whole.horizon:
            few = min(settings.pruning.simulators, predictors.num_simulators)
            each = self._decisions(2 * settings.pruning.n * self.whole.num_actions, self.whole)
            yield Part("explore", "prune", few, each)
        yield Part("train", "train", predictors.num_simulators, self._training(trained))
        if trained:
            n = predictors.calibration
            each = self._readings(settings.budget.n_dist) + self._decisions(n.n) + self._whole(n.n_rollouts)
            yield Part("calibrate", "calibrate", n.simulators, each)
        yield from self._learning()
        yield from self._appraising()
        yield from self._diagnosing()
        yield from self._certifying()
        yield from self._comparing()
        yield from self._evaluating()

    def _readings(self, needs: int | Tensor) -> Cost:
        """`tours.readings`."""
        wanted = torch.as_tensor(needs).expand(self.graph.num_states).tolist()
        tour = reading_tour(self.graph, wanted)
        return Cost(sum(n for _, n, _ in tour), sum(n * len(path) for path, n, _ in tour))

    def _decisions(self, n: int, graph: StateGraph | None = None) -> Cost:
        """`tours.decisions`."""
        graph = graph or self.graph
        tour, each = decision_tour(graph), -(-n // graph.num_actions)
        return Cost(len(tour), sum(len(path) for path, _ in tour)) * each

    def _whole(self, n: int) -> Cost:
        """Episodes of a policy."""
        return Cost(n, n * self.graph.horizon)

    def _look(self, n: int) -> Cost:
        """n episodes along every sequence of the path cover, as in reality."""
        count = n * len(path_cover(self.graph))
        return Cost(count, count * (self.graph.horizon - 1))

    def _visits(self, n: int) -> Cost:
        """Every sequence that finds the graph, n times (Algorithm 2)."""
        return Cost(1, self.graph.horizon - 1) * len(walks_of(self.whole)) * n

    @cached_property
    def _budget(self) -> Budget:
        """The method's own sizes; those of a theorem need the class, which the family has ready."""
        settings, spec = self.settings, self.family.spec
        grid = DensityGrid.uniform(spec.low, spec.high, nodes_for(settings.density.nodes, spec.low, spec.high))
        build, members, C_L = known_class(settings, self.family), 1, math.inf  # of one that is trained
        if build:
            group = build(grid, **settings.predictors.known)
            members, C_L = group.size, float(group.lipschitz_bound().max())
        problem, density = Problem(spec, self.graph, grid), settings.density
        return settings.budget.make(problem, members, C_L, density.order, density.merge.n_merge)

    def _explored(self, stage: str, count: int, n_merge: int, n_dist: int) -> Iterator[Part]:
        settings = self.settings
        if stage == "explore" and settings.density.asks_a_pilot:
            n = settings.density.n_pilot
            yield Part(stage, "explore", min(PILOTS, count), Cost(n, n * (self.graph.horizon - 1)))
        deciders = min(settings.density.merge.deciders, count)
        yield Part(stage, "explore", deciders, self._visits(n_merge))
        yield Part(stage, "explore", count, self._readings(n_dist))

    def _training(self, trained: bool) -> Cost:
        settings, along = self.settings, passes(self.graph, path_cover(self.graph))
        cost = self._decisions(settings.predictors.samples_of(self.graph, self.whole))
        for n in settings.predictors.readings if trained else ():
            if typical(n * along) < settings.budget.n_dist:
                cost += self._readings(n * along) * settings.predictors.draws_of(n, self.graph)
        return cost

    def _learning(self) -> Iterator[Part]:
        budget = self._budget
        B = budget.num_simulators
        yield from self._explored("learn", B, budget.n_merge, budget.n_dist)
        cost = self._decisions(budget.n_train)
        if self.settings.method == "sim2real":
            if budget.n_test > budget.n_train:
                cost += self._readings(budget.n_test)
            yield Part("learn", "rollout", B, self._whole(max(budget.n_rollouts, -(-budget.n_probes // B))))
        yield Part("learn", "eliminate", B, cost)

    def _appraising(self) -> Iterator[Part]:
        sizes = self.settings.appraisal
        if sizes.simulators:
            rehearsed = self._look(self._budget.n_real) + self._whole(sizes.n_rollouts)
            each = rehearsed + self._decisions(sizes.n * self.graph.num_actions, self.whole)
            yield Part("appraise", "appraise", sizes.simulators, each)

    def _diagnosing(self) -> Iterator[Part]:
        sizes = self.settings.diagnostics
        decisions = self._decisions(2 * (sizes.n // 2))
        yield Part("diagnose", "diagnose", sizes.simulators, self._readings(self.settings.budget.n_dist) + decisions)
        rough = self._readings(rough_readings(self.graph, sizes.n_rough))
        yield Part("diagnose", "diagnose", min(sizes.few, sizes.simulators), rough)

    def _certifying(self) -> Iterator[Part]:
        sizes = self.settings.certificate
        if not sizes.simulators:
            return
        looked = self._look(self._budget.n_real)
        known = min(sizes.known, self.settings.predictors.num_simulators)
        yield Part("certify", "look", known + sizes.scores, looked)
        rolled = self._whole(sizes.n_rollouts) * (1 + (sizes.refused == "list" and sizes.values == "episodes"))
        accurate = self._readings(-(-sizes.n_accurate // 2)) * 2
        yield Part("certify", "certify", sizes.simulators, looked + accurate + rolled)

    def _comparing(self) -> Iterator[Part]:
        """What comparators say that they draw before they see a world."""
        for name, given in self.settings.comparators.items():
            for drawn in getattr(COMPARATORS.named(name)(**given), "drawn", ()):
                each = self._whole(drawn.rollouts) + self._decisions(drawn.decisions)
                yield Part("compare", drawn.purpose, drawn.simulators or self.settings.predictors.num_simulators, each)

    def _evaluating(self) -> Iterator[Part]:
        sizes = self.settings.evaluation
        exact = self.family.truth(self.family.prior(1, torch.Generator().manual_seed(0))) is not None
        worlds = min(MOST_WORLDS, sizes.population) if exact else sizes.num_worlds
        looked = self._look(max(sizes.readings))
        if exact:
            yield Part("evaluate", "evaluate", worlds, looked)
            return
        yield Part("evaluate", "evaluate", worlds, looked + self._whole(sizes.n_rollouts) * (1 + len(sizes.readings)))
        valued = self._whole(max(1, sizes.n_rollouts // 10)) * len(self.settings.comparators)
        yield Part("evaluate", "evaluate", sizes.population, valued)

    def _check(self) -> Cost:
        """What `families/check` does, roughly, as if all of it were on the simulators that it looks at closely."""
        whole = replace(self, graph=self.whole)
        H, A, xi = self.whole.horizon, self.whole.num_actions, self.whole.num_states
        lists = A**H if H * math.log(A) <= math.log(2048) else 2048 + xi * A
        payoff = whole._readings(near_readings(self.whole, MOST_STATES, LOOKS[0][0])) * (SIMULATORS // CHECKED)
        theta = self.family.prior(1, torch.Generator().manual_seed(0)).shape[1]
        fixed = CHECK // CHECKED + lists + 400 * (min(A, 4) + 4) + 256 * (1 + theta)
        explored = Cost(0, 0) if self.known else self._visits(250) + whole._readings(100)
        return self._whole(fixed) + whole._readings(N_MERGE) + self._other_ways(N_MERGE) + payoff + explored

    def _other_ways(self, n: int) -> Cost:
        """n episodes along sequences that walk every edge which is on no state's own path."""
        ways = edge_cover(self.whole, other_edges(self.whole))
        return Cost(len(ways), sum(map(len, ways))) * n
