"""Forged policy files, whose checksum is right: every illegal or contradicting field is one error, before any work."""

import copy
import math
import resource
import time

import pytest
import torch
from support.policies import certificate_by_hand, judged_policy, policy_of
from support.tampering import crafted

from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.deployment.header import FALLBACK
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import load_policy, load_policy_file, read, save_policy
from s2r_torch.errors import CheckpointError, S2RError
from s2r_torch.families import make_family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.problem import Problem

FAMILY = {"name": "grid", "parameters": {"width": 3}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A certified policy with a reference, as a file and as its parts."""
    path = tmp_path_factory.mktemp("made") / "policy.safetensors"
    save_policy(path, judged_policy(), family=FAMILY, certificate=certificate_by_hand(realizable=False))
    return path, *read(path)


@pytest.fixture
def forged(made, tmp_path):
    """Writes the same file with one value changed, and a checksum that is right."""

    def write(place, value, tensors=None):
        header = copy.deepcopy(made[1])
        inside = header
        for key in place[:-1]:
            inside = inside[key]
        if value is ...:
            del inside[place[-1]]
        else:
            inside[place[-1]] = value
        path = tmp_path / "forged.safetensors"
        crafted(path, header, made[2] | (tensors or {}))
        return path

    return write


SPEC, GAP, NET = ("spec",), ("certificate", "gap"), ("groups", 0, "settings")
ILLEGAL = {
    "the spec's sizes": [
        ((*SPEC, name), v) for name in ("num_actions", "horizon", "obs_dim") for v in (0, 1, 7, 10**30)
    ],
    "the box": [((*SPEC, "low", 0), v) for v in (5.0, 1e300, "0", None)]
    + [((*SPEC, "high"), [3.1]), ((*SPEC, "high"), 3)],
    "names": [((*SPEC, "obs_names"), v) for v in (["a"], ["a", "a"], ["a", ""], "ab", ["a", 2], ["a", "b" * 10_000])],
    "rewards": [((*SPEC, "reward_scale"), 0), ((*SPEC, "reward_width"), 1.5), ((*SPEC, "zeta"), -1)],
    "the widest layer": [((*SPEC, "max_states_per_layer"), v) for v in (2, 0, 3.0, True)],
    "paths": [(("paths", 1), v) for v in ([1], [], [0, 0], [0.0], [2], [10**30], ..., "0", None)] + [(("paths",), [])],
    "the cover": [(("cover", 0), v) for v in (..., [0], [0, 0, 0, 2], [0, 0, 0, -1], [1, 1, 0, 0], [[0]], [0] * 5000)],
    "chosen": [(("chosen",), v) for v in (3, -1, 1.0, True, None, "1", 10**30)],
    "n_real": [(("n_real",), v) for v in (0, 101, 10**9, 1e2, "100", None)],
    "exact": [(("exact",), v) for v in (True, 0, None)],
    "certified": [(("certified",), v) for v in (False, 1, "yes")],
    "the kernel": [(("estimator", "kernel"), v) for v in ("os.system", None, 3)]
    + [(("estimator", "order"), v) for v in (0, 13, 10**9, -1, "2")],
    "the estimate": [
        (("estimator", "bandwidth"), v) for v in ([0.1], [1, 2, 3], [-1, 1], [1e-9, 1e-9], ["1", "1"], 1.0)
    ]
    + [(("estimator", "off_grid_limit"), 2), (("estimator", "boundary"), "soft"), (("estimator", "more"), 1)],
    "the family": [(("family",), v) for v in ("grid", {}, {"name": "grid"}, {"name": 3, "parameters": {}})]
    + [(("family", "parameters"), v) for v in ([], {"a": 10**30}, {"a": [[[[[[[[[1]]]]]]]]]}, {"a": "b" * 20_000})],
    "the certificate": [(("certificate",), v) for v in (True, {}, [], "none")]
    + [(("certificate", name), v) for name in ("delta", "value_mean", "share") for v in (-0.1, 1.1, None, "0.5", True)]
    + [(("certificate", name), v) for name in ("n_real", "sequences") for v in (0, 99, 10**30, 3.0)]
    + [(("certificate", "simulators"), v) for v in (0, 1, 10**30, 3.0)]  # 1: two of them were refused
    + [
        (("certificate", "refusals", name), v)
        for name, v in (("scores", 99), ("rate", 0.02), ("low", 0.1), ("high", 2))
    ]
    + [(("certificate", "refusals"), v) for v in ({}, True, 0.01)]
    + [(("certificate", name), v) for name, v in (("used_lower", 0.7), ("refused", 201), ("refused", -1))]
    + [(("certificate", "value_lower"), 0.71), (("certificate", "bound"), ["betting"]), (("certificate", "more"), 1)],
    "the gap": [
        ((*GAP, name), v) for name in ("paired", "upper_minus_lower", "density_error") for v in (-2, 1e300, "1")
    ]
    + [
        ((*GAP, "survivors"), 4),
        ((*GAP, "realizable"), True),
        ((*GAP, "density_error_kind"), "proved"),
        ((*GAP, "paired"), ...),
    ],
    "the recipe": [(("groups",), v) for v in ([], {}, [{}], [None], [[1]])]
    + [(("groups", 0, name), v) for name in ("kind", "name") for v in ("os.system", None, 3, ...)]
    + [(("groups", 0, "members"), v) for v in (0, 2, 4, 10**6, 10**30, 3.0, True)],
    "the network": [((*NET, "width"), v) for v in (6, 7, 0, 2**14, 2**20, 8.0, True)]
    + [((*NET, "depth"), v) for v in (1, 3, 0, 4096, 10**9)]
    + [((*NET, "x_width"), 2**14), ((*NET, "head"), "film"), ((*NET, "head"), "none"), ((*NET, "lipschitz_bound"), -1)]
    + [((*NET, "lipschitz_bound"), "maybe"), ((*NET, "more"), 1), (("groups", 0, "settings"), [])],
    "notes": [(("notes",), v) for v in (None, [], {"a": [[[[[[[[[1]]]]]]]]]}, {"a": [0] * 20_000})],
    "what is done in refused worlds": [
        (("notes", FALLBACK), v) for v in ([0, 1, 1, 0], [0, 1, 1, 0, 2], [0, 1, 1, 0, True], "0 1 1 0 0", 0, {})
    ],
    "versions": [(("versions",), v) for v in ([], {"torch": 2}, None)],
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_illegal_fields_are_one_error(forged, what):
    for place, value in ILLEGAL[what]:
        with pytest.raises(S2RError) as raised:
            load_policy(forged(place, value))
            pytest.fail(f"{place} = {value} loads")
        assert str(raised.value).isprintable() and len(str(raised.value)) < 900, place


def test_legal_changes_load_and_mean_what_they_say(forged):
    assert load_policy(forged(("chosen",), 2)).chosen == 2
    assert load_policy_file(forged(("certificate", "value_lower"), 0.51)).certificate.value_lower == 0.51
    assert load_policy(forged(("estimator", "off_grid_limit"), 0.25)).estimator.off_grid_limit == 0.25
    assert load_policy(forged(("certificate",), None)).n_real == 100
    assert load_policy_file(forged(("notes", FALLBACK), [0, 1, 1, 0, 0])).fallback == (0, 1, 1, 0, 0)


LOOKING = {"readings": [5], "episodes": [15], "value": [0.6], "low": [0.5], "high": [0.7], "optimal": 0.7}


@pytest.mark.parametrize("note", [{FALLBACK: [0, 1, 1, 0, 2]}, {"looking": 3}, {"looking": LOOKING | {"value": [7.0]}}])
def test_notes_that_are_used_are_checked_when_they_are_saved(tmp_path, note):
    (name,) = note
    with pytest.raises(CheckpointError, match=f"notes.{name}"):
        save_policy(tmp_path / "p.safetensors", judged_policy(), family=FAMILY, notes=note)
    assert not list(tmp_path.iterdir())
    save_policy(tmp_path / "p.safetensors", judged_policy(), family=FAMILY, notes={"looking": LOOKING})


def test_tensors_that_contradict_the_header(forged, made):
    tensors = made[2]
    xi, following = 9, tensors["graph.next_state"]

    def graph(s, a, to):
        changed = following.clone()
        changed[s, a] = to
        return {"graph.next_state": changed}

    wrong = [
        *(graph(0, 0, to) for to in (-1, 0, 2, 5, 9, 10**9, -(2**62))),
        graph(8, 0, 0),
        {"graph.layer": tensors["graph.layer"].roll(1)},
        {"graph.layer": tensors["graph.layer"] - 1},
        {"graph.layer": tensors["graph.layer"].int()},
        {"graph.layer": torch.zeros(xi, dtype=torch.int64)},
        {"grid.axis0": tensors["grid.axis0"].flip(0)},
        {"grid.axis0": tensors["grid.axis0"].float()},
        {"grid.axis0": tensors["grid.axis0"][:1]},
        {"grid.axis0": torch.linspace(0, 1, 10**6, dtype=torch.float64)},
        {"grid.axis2": tensors["grid.axis0"]},
        {"group1.weight": tensors["grid.axis0"]},
        {"group0.more": tensors["grid.axis0"]},
        {"group0.ranks": tensors["group0.ranks"] + 600},
        {"group0.ranks": tensors["group0.ranks"].flip(0)},
        {"group0.functionals": tensors["group0.functionals"] * 2},
        {"group0.functionals": -tensors["group0.functionals"]},
        {"group0.height": -tensors["group0.height"]},
        {"group0.spread": tensors["group0.spread"] * 0},
        {"group0.centre": tensors["group0.centre"].double()},
        {"reference.scale": tensors["reference.scale"] * 0},
        {"reference.scores": -tensors["reference.scores"]},
        {"reference.scores": tensors["reference.scores"][:0]},
        {"reference.scores": tensors["reference.scores"][:10]},
        {"reference.scores": tensors["reference.scores"][:, :2].contiguous()},
        {"reference.scores": tensors["reference.scores"].sum()},
        {"reference.mean": tensors["reference.mean"][:-1]},
        {"reference.loadings": tensors["reference.loadings"][:, :-1].contiguous()},
        {"reference.loadings": tensors["reference.loadings"].sum()},
        {"reference.loadings": tensors["reference.loadings"].repeat(1, 1, 20)},
        {"reference.noise": -tensors["reference.noise"]},
        {"reference.noise": tensors["reference.noise"] + torch.tensor([0.0, 1.0] + [0.0] * 10, dtype=torch.float64)},
    ]
    for changed in wrong:
        with pytest.raises(S2RError):
            load_policy(forged(("notes",), {}, changed))
            pytest.fail(f"{changed} loads")


@pytest.mark.parametrize("width, depth", [(2**14, 2), (2**13, 400), (8, 800)])
def test_a_recipe_of_another_size_costs_nothing(made, forged, width, depth):
    """A 77 kB file asked for 3 GB and 40 s."""
    path = forged(NET, made[1]["groups"][0]["settings"] | {"width": width, "depth": depth})
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(CheckpointError, match="likely cause"):
        load_policy(path)
    assert time.process_time() - start < 1.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(
    "change",
    [
        {"gains": [2.0] * 4},
        {"gains": [1.0]},
        {"flips": ["0" * 5] * 4},
        {"flips": ["2" * 6] * 4},
        {"flips": []},
        {"more": 1},
    ],
)
def test_recipes_of_the_exact_class(tmp_path, change):
    path, mixture = tmp_path / "m.safetensors", make_family("mixture", horizon=2)
    grid = DensityGrid.uniform(mixture.spec.low, mixture.spec.high, 61)
    group = MixturePredictors.build(mixture, grid, flips=4, gains=(1.0,))
    estimator = DensityEstimator(grid, make_kernel("legendre", 2.0), (0.2,))
    ensemble = Ensemble(Problem(mixture.spec, mixture.graph, grid), (group,), exact=True)
    save_policy(path, MetaPolicy(ensemble, 0, estimator, ((0,), (1,)), 9))
    header, tensors = read(path)
    for changed in (change, {"mixture": header["groups"][0]["mixture"] | {"horizon": 3}}, {"mixture": {"horizon": 2}}):
        forged = copy.deepcopy(header)
        forged["groups"][0] |= changed
        crafted(path, forged, tensors)
        with pytest.raises(CheckpointError):
            load_policy(path)


# -- what is saved can be loaded --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused_when_saving_and_named(tmp_path, value):
    policy = policy_of(("lookup", "mlp"))
    weight = dict(policy.ensemble.groups[1].named_parameters())["steps.2.out.bias"]
    with torch.no_grad():
        weight[2].fill_(value)
    with pytest.raises(CheckpointError, match=r"group1\.steps\.2\.out\.bias.* in members \[5\]"):
        save_policy(tmp_path / "p.safetensors", policy)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "said",
    [
        {"family": {"name": "grid"}},
        {"family": {"name": "grid", "parameters": {"a": math.nan}}},
        {"notes": {"a": object()}},
        {"notes": {"a": "b" * 10**5}},
        {"certificate": certificate_by_hand(realizable=False, survivors=5)},  # where three are saved
    ],
)
def test_what_would_not_load_is_not_saved(tmp_path, said):
    with pytest.raises(CheckpointError):
        save_policy(tmp_path / "p.safetensors", judged_policy(), **said)
    assert not list(tmp_path.iterdir())


def test_a_policy_of_a_thousand_readings_more_is_not_saved(tmp_path):
    policy = policy_of()
    with pytest.raises(CheckpointError, match=r"header\.n_real: an integer in 1 \.\. 1000000"):
        save_policy(tmp_path / "p", MetaPolicy(policy.ensemble, 1, policy.estimator, policy.cover, 10**6 + 1))


def test_text_of_a_file_reaches_messages_escaped(forged):
    for place, value in (
        (("estimator", "kernel"), "\x1b[31mred\n"),
        (("groups", 0, "name"), "\x1b[31m"),
        (("\x1b[0m",), 1),
    ):
        with pytest.raises(S2RError) as raised:
            load_policy(forged(place, value))
        assert "\x1b" not in str(raised.value) and "\n" not in str(raised.value)
