"""What a policy file may say: every field typed and bounded in one table, and what must agree in another.

`SCHEMA` is about single values, `AGREEMENTS` about several values and tensors of one file, `PROMISES` about the file
and the networks that were built from it. All are asked when a policy is saved, too, so that what is saved loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from s2r_torch.density.grid import MAX_NODES
from s2r_torch.density.kernels import KERNELS, MAX_ORDER
from s2r_torch.deployment.factors import RANKS
from s2r_torch.deployment.likeness import can_refuse
from s2r_torch.deployment.probes import PREFIX
from s2r_torch.deployment.summaries import number_of_summaries
from s2r_torch.encoders.encoding import RECIPE
from s2r_torch.errors import CheckpointError
from s2r_torch.files.json_schema import (
    Choice,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Maybe,
    Number,
    Record,
    Schema,
    Text,
    Values,
    check,
)
from s2r_torch.planner.looking import looking_of
from s2r_torch.predictors.ensemble import Ensemble

CAUSE = "no complete policy file as save_policy writes it: edited by hand, or written by another program"

MOST_STATES, MOST_ACTIONS, MOST_STEPS, MOST_SENSORS = 2**16, 2**12, 2**12, 22
MOST_RAW = 2**20  # numbers of a reading before its encoder: an image
MOST_READINGS = 10**6  # of one state
MOST_NUMBERS = 2**26  # in the densities of all states
LARGE = 1e30  # of readings; float32 ends at 3e38

FALLBACK = "where a world is refused"  # among the notes: actions that the certificate counts on there

ACTIONS = ListOf(Integer(0, MOST_ACTIONS - 1), most=MOST_STEPS)
COUNT, PROBABILITY = Integer(1, 10**12), Number(0, 1, above=True)
VALUE, GAP = Number(0, 1 + 1e-6), Number(-1 - 1e-6, 1 + 1e-6)  # rounded sums of rewards


def _spec_of(sensors: int) -> Record:
    """What a file says of a problem with at most so many numbers in a reading."""
    edges = ListOf(Number(-LARGE, LARGE), most=sensors, least=1)
    return Record(
        {
            "num_actions": Integer(1, MOST_ACTIONS),
            "horizon": Integer(1, MOST_STEPS),
            "max_states_per_layer": Integer(1, 10**9),
            "obs_dim": Integer(1, sensors),
            "low": edges,
            "high": edges,
            "obs_names": ListOf(Text(200, least=1), most=sensors, least=1),
            "reward_scale": Number(0, LARGE, above=True),
            "zeta": Maybe(Number(0, LARGE)),
            "reward_width": PROBABILITY,
        }
    )


CERTIFICATE = Record(
    {
        "simulators": COUNT,
        "n_rollouts": COUNT,
        "n_real": COUNT,
        "sequences": COUNT,
        "delta": PROBABILITY,
        "bound": Text(60),
        "value_mean": VALUE,
        "value_lower": VALUE,
        "share": PROBABILITY,
        "share_value": VALUE,
        "gap": Record(
            {
                "performance_difference": GAP,
                "paired": GAP,
                "upper_minus_lower": GAP,
                "density_error": Number(0, 1e12),
                "density_error_kind": Choice(("given", "measured")),
                "survivors": COUNT,
                "realizable": Flag(),
                "pruned": Flag(),
            }
        ),
        "used_mean": VALUE,
        "used_lower": VALUE,
        "refused": Integer(0, 10**12),
        "refused_value": VALUE,
        "refusals": Maybe(Record({"scores": COUNT, "rate": VALUE, "low": VALUE, "high": VALUE})),
    }
)

SCHEMA = Record(
    {
        "format": COUNT,  # these four are the file's own, checked with its bytes
        "kind": Text(60),
        "tensors": MapOf(Values(20, 2), 2**16, 1000),
        "digest": Text(64, least=64, letters="0123456789abcdef"),
        "versions": MapOf(Text(100), 100),
        "spec": _spec_of(MOST_SENSORS),
        "encoder": Maybe(Record({"recipe": RECIPE, "spec": _spec_of(MOST_RAW)})),
        "paths": ListOf(ACTIONS, most=MOST_STATES, least=1),
        "estimator": Record(
            {
                "kernel": Choice(tuple(sorted(KERNELS))),
                "order": Number(0, MAX_ORDER, above=True),
                "bandwidth": ListOf(Number(0, LARGE, above=True), most=MOST_SENSORS, least=1),
                "boundary": Choice(("none", "legendre")),
                "off_grid_limit": Number(0, 1),
            }
        ),
        "exact": Flag(),
        "certified": Flag(),
        "groups": ListOf(MapOf(Values(2**22, 3), 100), most=1000, least=1),  # each kind checks its own
        "chosen": Integer(0, 2**31),
        "cover": ListOf(ACTIONS, most=MOST_STATES, least=1),
        "n_real": Integer(1, MOST_READINGS),
        "family": Maybe(Record({"name": Text(200, least=1), "parameters": MapOf(Values(10_000, 8), 1000)})),
        "certificate": Maybe(CERTIFICATE),
        "notes": MapOf(Values(10_000, 8), 1000),
    }
)

Tensors = dict[str, Tensor]

AGREEMENTS: tuple[tuple[str, Callable[[dict, Tensors], bool]], ...] = (
    ("low, high, obs_names and bandwidth for each of the obs_dim sensors", lambda h, t: _per_sensor(h) == {_d(h)}),
    ("sensors with different names", lambda h, t: len(set(h["spec"]["obs_names"])) == _d(h)),
    ("low below high", lambda h, t: _ordered(h["spec"])),
    ("an encoder of readings of this very problem, with edges and a name for each", lambda h, t: _encoder_fits(h)),
    ("one grid axis per sensor, two or more nodes each, in float64", lambda h, t: _axes_fit(h, t)),
    (f"at most {MOST_NUMBERS:,} density values", lambda h, t: len(h["paths"]) * _nodes(h, t) <= MOST_NUMBERS),
    ("graph, reference and networks only, of the sizes that states and sensors give", lambda h, t: _sizes_fit(h, t)),
    ("a layer for each of the horizon's steps, each leading into the next", lambda h, t: _layered(h, t)),
    ("states in depth-first order, and the path that finds each", lambda h, t: _walked(h, t)),
    (
        "no more states in a layer than max_states_per_layer",
        lambda h, t: _widest(t) <= _spec(h, "max_states_per_layer"),
    ),
    ("cover: different sequences of horizon - 1 known actions", lambda h, t: _covers_known(h)),
    ("a cover that visits every state", lambda h, t: _visited(h, t) == set(range(len(h["paths"])))),
    ("exact only for classes that are known in closed form", lambda h, t: not h["exact"] or not _trained(h)),
    ("a reference with scale > 0, noise that is positive definite, and scores >= 0", lambda h, t: _reference_fits(t)),
    ("a certificate for this cover and n_real", lambda h, t: _promised(h, "sequences", "n_real") in (None, _plan(h))),
    ("a certificate whose bounds are in order, of at most as many refusals as simulators", lambda h, t: _in_order(h)),
    ("a certificate that says whether the graph was pruned", lambda h, t: _pruned(h) in (None, _leads_outside(h, t))),
    ("a certificate of refusals by this reference", lambda h, t: h["certificate"] is None or _refused_by(h, t)),
)

PROMISES: tuple[tuple[str, Callable[[dict, Ensemble], bool]], ...] = (
    ("chosen: one of the members", lambda h, ensemble: h["chosen"] < ensemble.size),
    ("certified as the networks are", lambda h, ensemble: h["certified"] == ensemble.certified),
    ("a certificate of these survivors", lambda h, ensemble: _survivors(h) in (None, (ensemble.size, ensemble.exact))),
)


def check_header(header: dict, tensors: Tensors) -> None:
    """Raises CheckpointError unless every field is legal and all agree, with each other and with the tensors."""
    check(SCHEMA, header, "header", CAUSE)
    check(_fallback_of(header["spec"]), header["notes"].get(FALLBACK), f"notes.{FALLBACK}", CAUSE)
    looking_of(header["notes"], "the file")
    for words, agree in AGREEMENTS:
        if not agree(header, tensors):
            raise CheckpointError(expected=words, got="fields that contradict each other", cause=CAUSE)


def check_promises(header: dict, ensemble: Ensemble) -> None:
    """Raises CheckpointError unless the header says of the class what it is."""
    for words, agree in PROMISES:
        if not agree(header, ensemble):
            raise CheckpointError(expected=words, got="a header that says otherwise", cause=CAUSE)


def _fallback_of(spec: dict) -> Schema:
    """A list of actions for every step of an episode, or none."""
    H = spec["horizon"]
    return Maybe(ListOf(Integer(0, spec["num_actions"] - 1), most=H, least=H))


# -- sizes ------------------------------------------------------------------------------------------------------------


def _spec(h: dict, name: str) -> int:
    return h["spec"][name]


def _d(h: dict) -> int:
    return h["spec"]["obs_dim"]


def _per_sensor(h: dict) -> set[int]:
    return {len(h["spec"][name]) for name in ("low", "high", "obs_names")} | {len(h["estimator"]["bandwidth"])}


def _ordered(spec: dict) -> bool:
    return all(lo < hi for lo, hi in zip(spec["low"], spec["high"], strict=True))


def _encoder_fits(h: dict) -> bool:
    if h["encoder"] is None:
        return True
    raw, names = h["encoder"]["spec"], ("low", "high", "obs_names")
    per_number = all(len(raw[name]) == raw["obs_dim"] for name in names) and _ordered(raw)
    ours = ("num_actions", "horizon", "max_states_per_layer", "reward_scale", "reward_width")
    return per_number and all(raw[name] == h["spec"][name] for name in ours)


def _axes_fit(h: dict, t: Tensors) -> bool:
    axes = [t.get(f"grid.axis{j}") for j in range(_d(h))]
    return all(a is not None and a.dtype == torch.float64 and a.ndim == 1 and len(a) >= 2 for a in axes)


def _nodes(h: dict, t: Tensors) -> int:
    nodes = math.prod(len(t[f"grid.axis{j}"]) for j in range(_d(h)))
    return nodes if nodes <= MAX_NODES else MOST_NUMBERS + 1


def _sizes_fit(h: dict, t: Tensors) -> bool:
    """Every tensor that belongs to no network has its type and shape, and there is none besides."""
    xi, numbers, whole = len(h["paths"]), torch.float64, torch.int64
    expected = {"graph.next_state": (whole, [xi, _spec(h, "num_actions")]), "graph.layer": (whole, [xi])}
    expected |= {f"grid.axis{j}": (numbers, list(t[f"grid.axis{j}"].shape)) for j in range(_d(h))}
    if any(name.startswith("reference.") for name in t):
        q, (r, m) = number_of_summaries(_d(h)), _free_sizes(t)
        shapes = {"mean": [xi, q], "scale": [xi, q], "loadings": [xi, q, r], "noise": [xi, q, q]}
        shapes["scores"] = [m, 4 if _meets_again(h, t) else 2]
        expected |= {f"reference.{name}": (numbers, shape) for name, shape in shapes.items()}
    groups = (PREFIX, *(f"group{i}." for i in range(len(h["groups"]))), *(("encoder.",) if h["encoder"] else ()))
    found = {name: (value.dtype, list(value.shape)) for name, value in t.items() if not name.startswith(groups)}
    return found == expected


# -- graph and cover --------------------------------------------------------------------------------------------------


def _layered(h: dict, t: Tensors) -> bool:
    following, layer, last = t["graph.next_state"], t["graph.layer"], _spec(h, "horizon") - 1
    inner = layer < last
    known = (following >= 0) & (following < len(layer)) & inner[:, None]
    onward = layer[following.clamp(0, len(layer) - 1)] == layer[:, None] + 1
    goes_on = bool(known.any(1)[inner].all())
    legal = bool(((known & onward) | (following == -1)).all())
    return int(layer[0]) == 0 and int(layer.max()) == last and goes_on and legal


def _walked(h: dict, t: Tensors) -> bool:
    """Whether states are numbered as a depth-first search finds them, each by its path (Algorithm 2)."""
    following, paths, found = t["graph.next_state"].tolist(), h["paths"], 1
    actions = range(len(following[0]))
    todo = [(0, a) for a in reversed(actions)]
    while todo:
        s, a = todo.pop()
        after = following[s][a]
        if after == found:
            if paths[found] != [*paths[s], a]:
                return False
            found += 1
            todo.extend((after, b) for b in reversed(actions))
        elif after > found:
            return False  # a state with a larger number was found earlier
    return found == len(paths) and paths[0] == []


def _widest(t: Tensors) -> int:
    return int(t["graph.layer"].bincount().max())


def _covers_known(h: dict) -> bool:
    cover, steps = {tuple(sequence) for sequence in h["cover"]}, _spec(h, "horizon") - 1
    legal = all(len(sequence) == steps and max(sequence, default=0) < _spec(h, "num_actions") for sequence in cover)
    return legal and len(cover) == len(h["cover"])


def _visited(h: dict, t: Tensors) -> set[int]:
    following, found = t["graph.next_state"].tolist(), {0}
    for sequence in h["cover"]:
        state = 0
        for a in sequence:
            state = following[state][a]
            if state < 0:  # a cover never leads out of a pruned graph
                return set()
            found.add(state)
    return found


def _leads_outside(h: dict, t: Tensors) -> bool:
    """Whether the graph is pruned: actions lead out of it before the last layer."""
    inner = t["graph.layer"] < _spec(h, "horizon") - 1
    return bool((t["graph.next_state"][inner] < 0).any())


# -- what is promised -------------------------------------------------------------------------------------------------


def _trained(h: dict) -> bool:
    return any(recipe.get("kind") == "net" for recipe in h["groups"])


def _scores(t: Tensors) -> int | None:
    scores = t.get("reference.scores")
    return None if scores is None else len(scores)


def _free_sizes(t: Tensors) -> tuple[int, int]:
    """Numbers of factors and scores of a reference: its own to choose."""
    loadings, scores = t.get("reference.loadings"), t.get("reference.scores")
    rank = loadings.shape[-1] if loadings is not None and loadings.ndim else 0
    return min(rank, max(RANKS)), max(1, _scores(t) or 1) if scores is None or scores.ndim else 1


def _meets_again(h: dict, t: Tensors) -> bool:
    """Whether two sequences of the cover pass the same state beyond what they share (coverage.passages)."""
    return len(h["cover"]) * _spec(h, "horizon") > len(h["paths"])


def _reference_fits(t: Tensors) -> bool:
    if _scores(t) is None:
        return True
    noise = t["reference.noise"]
    definite = torch.equal(noise, noise.mT) and bool((torch.linalg.eigvalsh(noise) > 0).all())
    return definite and bool((t["reference.scale"] > 0).all()) and bool((t["reference.scores"] >= 0).all())


def _promised(h: dict, *names: str) -> tuple | None:
    return h["certificate"] and tuple(h["certificate"][name] for name in names)


def _plan(h: dict) -> tuple[int, int]:
    return len(h["cover"]), h["n_real"]


def _in_order(h: dict) -> bool:
    c = h["certificate"]
    if c is None:
        return True
    rate = c["refusals"] or {"low": 0, "rate": 0, "high": 0}
    bounds = c["value_lower"] <= c["value_mean"] and c["used_lower"] <= c["used_mean"]
    return bounds and rate["low"] <= rate["rate"] <= rate["high"] and c["refused"] <= c["simulators"]


def _refused_by(h: dict, t: Tensors) -> bool:
    """Whether the certificate counts refusals where there can be any, of worlds that are ranked among these scores."""
    refusals, scores = h["certificate"]["refusals"], t.get("reference.scores")
    if scores is None or not can_refuse(*scores.shape):
        return refusals is None
    return refusals is not None and refusals["scores"] == len(scores)


def _pruned(h: dict) -> bool | None:
    return h["certificate"] and h["certificate"]["gap"]["pruned"]


def _survivors(h: dict) -> tuple[int, bool] | None:
    gap = h["certificate"] and h["certificate"]["gap"]
    return gap and (gap["survivors"], gap["realizable"])
