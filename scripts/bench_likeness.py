"""Are worlds unlike the simulators found, and like ones left alone? One change at a random place in every world.

Found is `doubtful` or worse, or readings that Deploy cannot use at all; the refused are among the found. Places are
those that the cover passes; what it leaves out is checked by `edges.py`, with n_real episodes a sequence. Exit code 1
if a gate fails: 95 % of the sparse changes found; like worlds doubted in 5 % and refused in 1 %, beyond what 2.5
standard errors explain, those of the scores included. Rows without a gate tell what can be expected.

    python scripts/bench.py likeness                      # 200 worlds of each kind, 400 like ones; about half an hour
    python scripts/bench.py likeness --policies grid --worlds 20 --like 40
    python scripts/bench.py likeness --policies runs/digits/policy.safetensors
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from s2r_torch.assurance.rehearsal import make_reference
from s2r_torch.coverage import edges_of, path_cover, walked_edges
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.collection import Collection, Collector
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.edges import check_edges, missing_walks
from s2r_torch.deployment.likeness import CONSISTENT, DOUBT, DOUBTFUL, REFUSE, REFUSED
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import load_policy_file
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import ObservationError
from s2r_torch.families import make_family
from s2r_torch.families.contract import Family, KnowsGraph
from s2r_torch.families.encoded import EncodedFamily
from s2r_torch.families.frozenlake import MAP
from s2r_torch.graph import Path as Actions
from s2r_torch.graph import StateGraph
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed

SHIPPED = ("grid", "frozenlake")
UNTRAINED = {  # the verdict needs no trained predictor: family, parameters, nodes per axis, n_real
    "mixture": ("mixture", {}, 97, 500),
    "lock": ("lock", {}, 97, 100),
    "grid5": ("grid", {"width": 5}, 30, 100),
}
CHECKPOINTS = Path(__file__).resolve().parent.parent / "checkpoints"
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # of the lake: left, down, right, up
POWER = 0.95
ERRORS = 2.5

Cell = tuple[int, int]
Place = int | Cell  # a state of the family's graph, or a cell of the lake


def arguments(parser: argparse.ArgumentParser) -> None:
    known = [*SHIPPED, *UNTRAINED]
    parser.add_argument("--policies", nargs="+", default=known, help=f"{', '.join(known)}, or policy files")
    parser.add_argument("--worlds", type=int, default=200, help="changed worlds of each kind")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS], help="of changes")
    parser.add_argument("--like", type=int, default=400, help="worlds that are drawn like the simulators")
    parser.add_argument("--scores", type=int, default=2000, help="fresh simulators, where a file holds fewer scores")
    parser.add_argument("--seed", type=int, default=0)


def main(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    passed = True
    for name in options.policies:
        table = Table(f"{name}: worlds", "found", "refused", "wanted", "")
        site = prepared(name, options.scores)
        for row in rows(site, options):
            table.add_row(row.name, f"{row.found:.3f}", f"{row.refused:.3f}", row.wanted, row.word)
            passed &= row.passes
        Console(width=110).print(table)
    return 0 if passed else 1


@dataclass(frozen=True)
class Row:
    """What was found among the worlds of one kind."""

    name: str
    found: float
    refused: float
    wanted: str = ""
    passes: bool = True

    @property
    def word(self) -> str:
        return ("pass" if self.passes else "FAIL") if self.wanted else ""


@dataclass(frozen=True, eq=False)
class Site:
    """A policy, its family, and where action paths lead in it."""

    policy: MetaPolicy
    family: Family

    @property
    def is_lake(self) -> bool:
        return self.family.name == "frozenlake"

    @cached_property
    def whole(self) -> StateGraph:
        """Where all action paths lead, those that a pruned policy does not look at, too; the family's own numbers."""
        known = self.family.known_graph() if isinstance(self.family, KnowsGraph) else None
        return self.policy.problem.graph if known is None else known

    @cached_property
    def latents(self) -> Tensor:
        """Latent numbers [xi, l] of every state, of a family that replays dynamics."""
        graph, nodes = self.family._merged
        self.whole.require_same(graph)
        return self.family._tree.latent(nodes)

    def place(self, path: Actions) -> Place:
        return lake_cell(path, MAP) if self.is_lake else self.whole.end(path)

    @cached_property
    def passed(self) -> list[Actions]:
        """All that the cover walks."""
        return [path[:step] for path in self.policy.cover for step in range(len(path) + 1)]

    def read(self, theta: Tensor, place: Place, n: int, generator: torch.Generator) -> Tensor:
        """Readings [n, d] at a place."""
        if self.is_lake:
            cell = torch.tensor(place, dtype=torch.float64).expand(1, n, 2)
            return self.family.sensor.read(theta[None], cell, [generator])[0]
        if hasattr(self.family, "emit"):
            return self.family.emit(theta[None], torch.full((1, n), place), [generator])[0]
        return self.family.sensor.read(theta[None], self.latents[place].expand(1, n, -1), [generator])[0]


@dataclass(eq=False)
class World:
    """A world, all of whose episodes take the same actions: where paths lead and what is read there may be changed."""

    site: Site
    theta: Tensor
    generator: torch.Generator
    place: Callable[[Actions], Place]
    change: Callable[[Tensor, Actions], Tensor]

    @property
    def spec(self):
        return self.site.family.spec

    def reset(self, n: int) -> Tensor:
        self._path, self._n = (), n
        return self._read()

    def step(self, actions: Tensor) -> Tensor:
        self._path += (int(actions[0]),)
        return self._read()

    def _read(self) -> Tensor:
        x = self.site.read(self.theta, self.place(self._path), self._n, self.generator)
        return self.change(x, self._path)


def prepared(name: str, scores: int) -> Site:
    """A shipped policy, or an untrained one; with so many scores."""
    if name in UNTRAINED:
        site = untrained(*UNTRAINED[name])
    else:
        file = load_policy_file(CHECKPOINTS / f"{name}.safetensors" if name in SHIPPED else Path(name))
        site = Site(file.policy, make_family(file.family["name"], **file.family["parameters"]))
    reference = site.policy.reference
    if reference is not None and len(reference.scores) >= scores:
        return site
    seed, encoding = Seed.root(1), site.policy.encoding
    family = EncodedFamily(site.family, encoding) if encoding else site.family

    def simulators(purpose: str, count: int) -> Guard:
        theta = family.prior(count, seed.child(purpose).generator())
        return Guard(family.simulators(theta, range(count)), Ledger(), purpose)

    seeing = site.policy.behind_encoder
    reference = make_reference(seeing, simulators("known", 256), simulators("fresh", scores), seed.child("look"))
    return replace(site, policy=replace(site.policy, reference=reference))


def untrained(name: str, parameters: dict, nodes: int, n_real: int) -> Site:
    family = make_family(name, **parameters)
    grid = DensityGrid.uniform(family.spec.low, family.spec.high, nodes)
    bandwidth = tuple((3 if grid.obs_dim == 1 else 1) * 1.05 * spacing for spacing in grid.spacing)
    net = LookupNet(Problem(family.spec, family.graph, grid), 1, torch.Generator().manual_seed(0))
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), bandwidth)
    policy = MetaPolicy(Ensemble(net.problem, (net,)), 0, estimator, path_cover(family.graph), n_real)
    return Site(policy, family)


def rows(site: Site, options: argparse.Namespace) -> Iterable[Row]:
    """Every kind of world that the family has."""
    yield like_row(site, options.like, options.seed)
    graph = site.policy.problem.graph
    if OFF_COVER in options.kinds and set(edges_of(graph)) - walked_edges(graph, site.policy.cover):
        yield like_row(site, options.like, options.seed, edges=True)
    for name, make in ((name, KINDS[name]) for name in options.kinds):
        verdicts = []
        for number in range(options.worlds):
            seed = Seed.root(options.seed).child(name, number)
            generator = seed.generator()
            theta = site.family.prior(1, generator)[0]
            made = make(site, theta, random.Random(seed.integer()))
            if made is None:
                break
            judge = verdict_of_edges if name == OFF_COVER else verdict_of
            verdicts.append(judge(site, replace(World(site, theta, generator, site.place, as_it_is), **made)))
        if verdicts:
            found, refused = shares(verdicts)
            gate = name in GATED
            yield Row(name, found, refused, f">= {POWER}" if gate else "", not gate or found >= POWER)


def like_row(site: Site, count: int, seed: int, edges: bool = False) -> Row:
    """Worlds from the prior: false alarms, of what the cover walks or of all that it leaves out."""
    verdicts, judge = [], verdict_of_edges if edges else verdict_of
    for number in range(count):
        generator = Seed.root(seed).child("like", number).generator()
        theta = site.family.prior(1, generator)[0]
        verdicts.append(judge(site, World(site, theta, generator, site.place, as_it_is)))
    found, refused = shares(verdicts)
    M, passes = math.inf if edges else len(site.policy.reference.scores), True
    for share, level in ((found, DOUBT), (refused, REFUSE)):
        passes &= share <= level + ERRORS * math.sqrt(level * (1 - level) * (1 / count + 1 / M))
    return Row("like the simulators" + ", edges off the cover" * edges, found, refused, f"<= {DOUBT}, {REFUSE}", passes)


def verdict_of(site: Site, world: World) -> str:
    try:
        return deploy(site.policy, world, refuse=False).likeness.verdict
    except ObservationError:
        return REFUSED


def verdict_of_edges(site: Site, world: World) -> str:
    """Of every edge, not only of those that the policy takes."""
    policy, graph = site.policy, site.policy.problem.graph
    collector = Collector(GuardedWorld(world, Ledger()), graph, policy.cover)
    phi = policy.encoding
    seen_as = lambda recording: recording.encoded(phi) if phi else recording  # noqa: E731
    seen = Collection.of(seen_as(collector.until(policy.n_real)), graph, policy.cover, policy.n_real)
    edges, n = edges_of(graph), policy.n_real
    recording = seen_as(collector.walk(missing_walks(policy, edges, collector.recording, n)))
    return check_edges(policy, edges, seen, recording).verdict


def shares(verdicts: list[str]) -> tuple[float, float]:
    found = sum(verdict in (DOUBTFUL, REFUSED) for verdict in verdicts)
    assert found + verdicts.count(CONSISTENT) == len(verdicts), "a world was not tested"
    return found / len(verdicts), verdicts.count(REFUSED) / len(verdicts)


# -- changes: what of a `World` is replaced, or None where the family has no such change ------------------------------


def as_it_is(x: Tensor, path: Actions) -> Tensor:
    return x


def at_state(site: Site, state: int) -> Callable[[Actions], bool]:
    graph = site.policy.problem.graph
    return lambda path: len(path) == int(graph.layer[state]) and graph.end(path) == state


def moved(site: Site, theta: Tensor, rng: random.Random) -> dict | None:
    """One state's readings, by half a cell in a random direction; pixels have no cells."""
    if site.family.spec.obs_dim > 2:
        return None
    here = at_state(site, rng.randrange(site.policy.problem.graph.num_states))
    angle = rng.uniform(0, 2 * math.pi)
    by = [math.cos(angle), math.sin(angle)] if site.family.spec.obs_dim == 2 else [rng.choice((-1.0, 1.0))]
    by = 0.5 * torch.tensor(by, dtype=torch.float64)
    return {"change": lambda x, path: x + by if here(path) else x}


def behaves_as_another(site: Site, theta: Tensor, rng: random.Random) -> dict:
    """One state shows the readings of another one of its layer."""
    graph = site.policy.problem.graph
    layers = [graph.states_of(step) for step in range(graph.horizon)]
    state, other = rng.choice([(s, t) for layer in layers for s in layer for t in layer if s != t])
    here = at_state(site, state)
    return {"place": lambda path: site.place(graph.paths[other]) if here(path) else site.place(path)}


def edge_changed(site: Site, theta: Tensor, rng: random.Random) -> dict:
    """One edge that the cover walks leads to another state of the next layer."""
    return _bent(site, rng, walked_edges(site.policy.problem.graph, site.policy.cover))


def edge_off_the_cover(site: Site, theta: Tensor, rng: random.Random) -> dict | None:
    """Likewise one that the cover does not walk."""
    graph = site.policy.problem.graph
    return _bent(site, rng, set(edges_of(graph)) - walked_edges(graph, site.policy.cover))


def _bent(site: Site, rng: random.Random, edges: set[tuple[int, int]]) -> dict | None:
    graph = site.policy.problem.graph
    layers = {edge: graph.states_of(int(graph.layer[edge[0]]) + 1) for edge in sorted(edges)}
    others = [(edge, t) for edge, layer in layers.items() for t in layer if t != int(graph.next_state[edge])]
    if not others:
        return None
    edge, other = rng.choice(others)
    whole, (state, action) = site.whole, edge
    bent = replace(whole, next_state=whole.next_state.clone())
    bent.next_state[whole.end(graph.paths[state]), action] = whole.end(graph.paths[other])
    return {"place": lambda path: site.place(whole.paths[bent.end(path)])}


def hole_added(site: Site, theta: Tensor, rng: random.Random) -> dict | None:
    return _lake(site, rng, "F", "H")


def hole_removed(site: Site, theta: Tensor, rng: random.Random) -> dict | None:
    return _lake(site, rng, "H", "F")


def _lake(site: Site, rng: random.Random, old: str, new: str) -> dict | None:
    """One cell is changed, such that the cover shows other cells."""
    if not site.is_lake:
        return None
    maps = []
    for row, column in ((r, c) for r in range(len(MAP)) for c in range(len(MAP)) if MAP[r][c] == old):
        rows = [list(line) for line in MAP]
        rows[row][column] = new
        if any(lake_cell(path, rows) != lake_cell(path, MAP) for path in site.passed):
            maps.append(rows)
    if not maps:  # a pruned policy may pass no such cell
        return None
    chosen = rng.choice(maps)
    return {"place": lambda path: lake_cell(path, chosen)}


def lake_cell(path: Actions, rows) -> Cell:
    """The cell after a path; holes and goals keep one."""
    row, column = 0, 0
    for down, right in (MOVES[a] for a in path):
        if rows[row][column] in "HG":
            break
        row, column = (min(max(v, 0), len(MAP) - 1) for v in (row + down, column + right))
    return row, column


def gain(site: Site, theta: Tensor, rng: random.Random) -> dict:
    return {"change": lambda x, path: 1.1 * x}


def drift(site: Site, theta: Tensor, rng: random.Random) -> dict:
    """Readings move by 0.2 along an episode."""
    return {"change": lambda x, path: x + 0.2 * len(path) / (site.family.spec.horizon - 1)}


def noise(site: Site, theta: Tensor, rng: random.Random) -> dict | None:
    """Noise 1.1 times as wide as any simulator's: its half-width is affine in the last number of theta, in [0, 1]."""
    owners = [getattr(site.family, part, None) for part in ("camera", "sensor")]
    words = [(owner, word) for owner in (site.family, *owners) for word in ("noise", "flicker")]
    edges = [(getattr(o, f"{w}_low"), getattr(o, f"{w}_high")) for o, w in words if hasattr(o, f"{w}_high")]
    if not edges:
        return None
    low, high = edges[0]
    theta = theta.clone()
    theta[-1] = (1.1 * high - low) / (high - low)
    return {"theta": theta}


OFF_COVER = "an edge off the cover, check=edges"
KINDS = {
    "a state moved by half a cell": moved,
    "a state behaves as another": behaves_as_another,
    "an edge leads elsewhere": edge_changed,
    "a hole added": hole_added,
    "a hole removed": hole_removed,
    OFF_COVER: edge_off_the_cover,
    "gain 1.1": gain,
    "drift 0.2": drift,
    "noise 1.1 of the widest": noise,
}
GATED = [*KINDS][:5]
