"""Objects of another kind, given to what people call: one error that says which was meant."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.policies import policy_of, spread

import s2r_torch
from s2r_torch import given
from s2r_torch.base import ProblemSpec
from s2r_torch.comparators.contract import register_comparator
from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import write_recording, write_template
from s2r_torch.deployment.stopping import Stopping
from s2r_torch.errors import FileError, ObservationError, RecordingError, S2RError, SettingError
from s2r_torch.families import FAMILIES
from s2r_torch.families.gym.family import held_actions, make_env
from s2r_torch.families.sensors import AffineSensor, uniform_prior
from s2r_torch.predictors.registry import register
from s2r_torch.runs.settings import RunSettings

FAMILY = ("name", "spec", "prior", "simulators", "world", "truth", "parameters")
GRID = s2r_torch.make_family("grid")
META = policy_of()
WORLD = GRID.world(GRID.prior(1, torch.Generator().manual_seed(0))[0], torch.Generator().manual_seed(0))
D = spread(META.problem.grid, 9)
ACTIONS, SEEN, LENGTH = torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 5, 2), torch.full((3,), 5)
LOG, THETA = Recording(ACTIONS, SEEN, LENGTH), GRID.prior(2, torch.Generator().manual_seed(0))
X = [torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in range(9)]


def deployed(actions, x=SEEN, length=LENGTH):
    return s2r_torch.deploy_recorded(META, Recording(actions, x, length))


class Environment:
    """As gymnasium has them: its `spec` is no problem."""

    spec, reset, step = object(), None, None


class Unspecified(type(GRID)):
    @property
    def spec(self):
        raise RuntimeError("no box")


CALLS = {
    "no world": (lambda: s2r_torch.deploy(META, None), "world: a world, .*; got NoneType"),
    "an environment": (lambda: s2r_torch.deploy(META, Environment()), r"world.spec: ProblemSpec; .*EnvWorld\(env"),
    "a family": (lambda: s2r_torch.deploy(META, GRID), "world: a world, .*; got Grid"),
    "a word for false": (lambda: s2r_torch.deploy(META, None, refuse="no"), "refuse: True or False; got str: 'no'"),
    "a mapping": (lambda: s2r_torch.deploy(META, None, stopping={"alpha": 0.1}), "stopping: Stopping; got dict"),
    "a time in words": (lambda: s2r_torch.deploy(META, None, time_limit="5s"), "time_limit: a number; got str"),
    "a path for a log": (lambda: s2r_torch.deploy_recorded(META, "a.csv"), "recording: Recording; .*read_recording"),
    "a policy for a spec": (lambda: s2r_torch.read_recording("a.csv", META), "spec: ProblemSpec; .*policy.spec is"),
    "no path": (lambda: s2r_torch.load_policy(None), "path: a path; got NoneType"),
    "bytes": (lambda: s2r_torch.load_policy(b"abc"), "path: a path; got bytes: .*the path of a file, not what is in"),
    "conditioned": (
        lambda: s2r_torch.save_policy("a.safetensors", META.condition_on(X)),
        "meta_policy: MetaPolicy; got Policy: .*conditioned already",
    ),
    "not conditioned": (lambda: export_policy(META, "a.pt2"), "policy: Policy; got MetaPolicy: .*condition_on"),
    "settings": (lambda: s2r_torch.execute({"name": "a"}, GRID), r"settings: RunSettings; got dict: .*RunSettings\("),
    "a name": (lambda: s2r_torch.execute(RunSettings(name="a"), "grid"), "family: a family; .*make_family"),
    "no results": (lambda: s2r_torch.write_reports(None, "a"), "results: Results; got NoneType"),
    "a name to check": (lambda: s2r_torch.check_family("grid"), "family: a family; got str: 'grid'"),
    "no such check": (lambda: s2r_torch.check_family(GRID, only=["priro"]), r"names of checks: .*; got \['priro'\]"),
    "one plugin": (
        lambda: s2r_torch.import_plugins("robot"),
        r"a list of modules; got 'robot'; .*was meant",
    ),
    "densities": (lambda: META.condition(np.zeros((9, 4))), "D_hat: Tensor; got ndarray: .*torch.as_tensor"),
    "by name": (lambda: META.condition_on(dict(enumerate(X))), "observations in a list, .*; got dict of int"),
    "arrays": (lambda: META.condition_on([x.numpy() for x in X]), "observations in a list, .*; got list of ndarray"),
    "act unseen": (lambda: META.act(0, X[0]), "a policy that has seen a world, deploy.*; got act of a MetaPolicy"),
    "a ledger in words": (lambda: s2r_torch.deploy(META, WORLD, "ledger.json"), "ledger: Ledger; got str"),
    "kept in a list": (lambda: s2r_torch.deploy(META, WORLD, keep=[]), "keep: a function; got list"),
    "true for a time": (lambda: s2r_torch.deploy(META, WORLD, time_limit=True), "time_limit: a number; got bool"),
    "a file's all": (
        lambda: s2r_torch.deploy("p.safetensors", WORLD),
        r"meta_policy: MetaPolicy; got str: .*load_policy\(path\)",
    ),
    "shares of cells": (
        lambda: META.condition(D / D.sum(-1, keepdim=True)),
        "densities that integrate to 1; got one of",
    ),
    "ten times": (lambda: META.condition(10 * D), "densities that integrate to 1; got one of 10"),
    "nothing anywhere": (lambda: META.condition(0 * D), "densities that integrate to 1; got one of 0"),
    "counts": (lambda: META.condition(D.long()), "densities, float32 or float64; got torch.int64"),
    "worlds of none": (lambda: META.condition(D[None][:0]), "densities of a world; got none"),
    "readings of two": (lambda: META.condition(D, torch.ones(2)), "how many readings each of 9 states has"),
    "no readings": (lambda: META.condition(D, torch.zeros(9)), "how many readings each of 9 states has, >= 1; got 0.0"),
    "a vector": (lambda: META.condition_on([x[:, 0] for x in X]), r"readings \[n, d\] .*shape \[9\]"),
    "an empty state": (lambda: META.condition_on([x[:0] for x in X]), "readings .* n >= 1; got 0 at the start"),
    "arrays for tensors": (lambda: Recording(np.zeros((3, 4)), X[0], X[0]), "actions as a tensor .*; got ndarray"),
    "actions in halves": (lambda: Recording(ACTIONS + 0.5, SEEN, LENGTH), "actions as a tensor of whole numbers"),
    "actions from 1": (lambda: deployed(ACTIONS + 2), r"actions in 0 .. 1; got 2 at step 0 of episode 1"),
    "actions from 1, conditioned on": (
        lambda: META.condition_on(Recording(ACTIONS + 2, SEEN, LENGTH)),
        r"actions in 0 .. 1; got 2 at step 0 of episode 1",
    ),
    "actions from 1, written": (
        lambda: write_recording("no/such/folder/a.csv", Recording(ACTIONS + 2, SEEN, LENGTH), META.spec),
        r"actions in 0 .. 1; got 2 at step 0 of episode 1",
    ),
    "actions below 0": (lambda: deployed(ACTIONS - 1), r"actions in 0 .. 1; got -1"),
    "steps too few": (
        lambda: deployed(ACTIONS[:, 1:], SEEN[:, 1:], LENGTH - 1),
        r"readings \[episodes, 5 steps, 2 numb",
    ),
    "NaN seen": (lambda: deployed(ACTIONS, SEEN * torch.nan), "finite readings; got NaN or inf at step 0 of episode 1"),
    "nowhere": (
        lambda: deployed(ACTIONS, SEEN + 1e30),
        "readings of 'row' near -1.1 .. 3.1; got 1e.30 at step 0 of epi",
    ),
    "looks in halves": (lambda: Stopping(looks=2.5), "looks: a whole number >= 2; got 2.5"),
    "alpha in words": (lambda: Stopping(alpha="0.05"), "alpha: a number in .0, 1.; got '0.05'"),
    "a word for no": (
        lambda: s2r_torch.read_recording("a.csv", META.spec, short_episodes="no"),
        "short_episodes: True",
    ),
    "a seed in words": (lambda: s2r_torch.check_family(GRID, seed="1"), "seed: a whole number; got str"),
    "a class of families": (lambda: s2r_torch.check_family(type(GRID)), "family: a family; .*a class: make one first"),
    "numbers of rows in halves": (lambda: GRID.prior(2.5, torch.Generator()), "n: a whole number; got float"),
    "a seed for a generator": (lambda: GRID.prior(2, 0), "generator: Generator; got int"),
    "a bar of progress": (
        lambda: s2r_torch.execute(RunSettings(name="a"), GRID, progress=SimpleNamespace(advance=0)),
        "progress: a Progress; got SimpleNamespace.*; likely cause: it has no stage, record, say",
    ),
    "half a family": (
        lambda: s2r_torch.execute(RunSettings(name="a"), SimpleNamespace(**dict.fromkeys(FAMILY[2:])), None, None),
        "family: a family; got SimpleNamespace.*; likely cause: it has no name, spec",
    ),
    "workers": (lambda: s2r_torch.execute(RunSettings(name="a"), GRID, None, None, 2), "workers: workers, .*; got int"),
    "an edge alone": (lambda: ProblemSpec(2, 3, 3, 1, 0.0, 1.0), "low: a number per coordinate, in a tuple; got 0.0"),
    "edges in words": (lambda: ProblemSpec(2, 3, 3, 1, ("0",), ("1",)), "low: a number per coordinate"),
    "a width in words": (lambda: AffineSensor(("x",), width="0.1"), "width: a number per coordinate"),
    "two offsets": (
        lambda: AffineSensor(("x",), offset=(0.1, 0.2)),
        "offset: a finite number, 1 of them, or a function",
    ),
    "no gain": (lambda: AffineSensor(("x",), gain=float("nan")), "gain: a finite number"),
    "no points": (lambda: AffineSensor(("x",), points=0), "points >= 1, a whole number; got 0"),
    "ranges in words": (lambda: uniform_prior(("0", "1")), r"ranges \(low, high\)"),
    "no ranges": (lambda: uniform_prior(), r"ranges \(low, high\)"),
    "an object to register": (lambda: s2r_torch.register_family("zz")(GRID), "a class or a function as family 'zz'"),
    "nothing to import": (lambda: s2r_torch.import_plugins(None), "a list of modules; got None"),
    "an environment of no name": (lambda: make_env("NoSuch-v0"), "an environment that Gymnasium knows; .*'module:Id'"),
    "a typo in a setting": (lambda: make_env("CartPole-v1", gravty=3), "settings of CartPole-v1; .*gravty"),
    "more actions than there are": (lambda: make_env("CartPole-v1", 3), "among those of CartPole-v1: .*; got 3"),
    "few of a continuum": (lambda: make_env("Pendulum-v1", 3), r"among those of Pendulum-v1: Box.*; got 3"),
    "held of discrete ones": (lambda: held_actions(make_env("CartPole-v1"), [[1.0]]), "actions are a Box; got Disc"),
    "off the box": (lambda: held_actions(make_env("Pendulum-v1"), [[9.0]]), r"within Box.*; got \[\[9.0\]\]"),
    "numbers for vectors": (lambda: held_actions(make_env("Pendulum-v1"), [1.0]), r"actions \[A, \*\[1\]\]"),
    "steps of none": (lambda: held_actions(make_env("Pendulum-v1"), [[1.0]], 0), "steps >= 1, a whole number"),
    "no numbers of episodes": (lambda: write_template("a.csv", META.cover, META.spec), "walks: .*how many episodes"),
    "half an episode": (
        lambda: write_template("a.csv", ((META.cover[0], 0.5),), META.spec),
        "episodes of a walk >= 0, a whole number; got 0.5",
    ),
    "no step seen": (lambda: Recording.of((0, 1), []), "readings of 1 .. 3 steps, as 2 actions show; got 0"),
    "more than was done": (lambda: Recording.of((0,), [SEEN[:, 0]] * 3), "readings of 1 .. 2 steps.*; got 3"),
    "one length": (lambda: Recording(ACTIONS, SEEN, LENGTH[0]), r"length as a tensor .*; got torch.int64, shape \[\]"),
    "parts of two": (
        lambda: Recording.joined([Recording(ACTIONS, SEEN, LENGTH), Recording(ACTIONS, SEEN[..., :1], LENGTH)]),
        r"parts of one problem; got readings \[3, 5, 2\], \[3, 5, 1\]",
    ),
    "several worlds": (
        lambda: deployed(ACTIONS, SEEN.expand(2, 3, 5, 2)),
        r"readings of one world .*; got shape \[2, 3, 5, 2\]",
    ),
    "names as numbers": (lambda: AffineSensor((1, 2)), r"names as text, in a tuple; got \(1, 2\)"),
    "columns below 0": (lambda: AffineSensor(("x",), columns=(-1,)), "columns >= 0, a whole number; got -1"),
    "columns by name": (lambda: AffineSensor(("x",), columns=("x",)), "columns >= 0, a whole number; got 'x'"),
    "a family without a spec": (
        lambda: s2r_torch.check_family(SimpleNamespace(**dict.fromkeys(FAMILY, None))),
        "family.spec: ProblemSpec; got NoneType",
    ),
    "half at once": (
        lambda: s2r_torch.deploy(META, SimpleNamespace(spec=META.spec, reset=0, step=0, episodes_at_once=2.5)),
        "episodes_at_once >= 1, a whole number; got 2.5",
    ),
    "no name": (lambda: register(type("Mine", (), {})), "a name for a network: .*brackets"),
    "no network": (lambda: register("mine")(type("Mine", (), {})), "a class derived from Net"),
    "settings in order": (lambda: s2r_torch.make_family("grid", 3), "arguments of make_family: name, .*; got too many"),
    "a family to register without a name": (lambda: s2r_torch.register_family(), "arguments of register_family: name"),
    "a sensor of nothing": (lambda: AffineSensor(), "arguments of AffineSensor: names, .*; got missing"),
    "a check by its number": (lambda: s2r_torch.check_family(GRID, only=3), "only: str or Collection; got int: 3"),
    "a number of observations": (lambda: META.condition_on(3), "observations: a list of tensors; got int: 3"),
    "no observations": (lambda: META.condition_on(None), "observations: a list of tensors; got NoneType"),
    "scores for a reference": (lambda: replace(META, reference=3), "reference: a Reference, as runs make; got int"),
    "theta in words": (
        lambda: GRID.simulators("w", (0,)),
        r"finite theta of shape \[B, 3\]: .*; got str: <U1 of shape",
    ),
    "no theta": (lambda: GRID.world(None, torch.Generator()), r"finite theta of shape \[3\]: .*; got NoneType"),
    "theta of many": (
        lambda: GRID.world(THETA, torch.Generator()),
        r"theta of shape \[3\]: .*\[2, 3\]; .*several at once",
    ),
    "theta that turns": (lambda: GRID.simulators(THETA + 1j, (0, 1)), r"finite theta of .*; got Tensor: complex128"),
    "theta nowhere": (lambda: GRID.simulators(THETA.to("meta"), (0, 1)), "finite theta of .*; got Tensor: Cannot copy"),
    "theta of fewer than none": (lambda: GRID.prior(-1, torch.Generator()), "n >= 0, a whole number; got -1"),
    "one recording to join": (lambda: Recording.joined(LOG), "parts: a list of recordings; got Recording"),
    "nothing to join": (lambda: Recording.joined([LOG, None]), "parts: a list of recordings; got list"),
    "another part of a log": (
        lambda: replace(LOG, rewards=0),
        "arguments of Recording: actions, x, .*; got .*'rewards'",
    ),
    "no networks": (lambda: RunSettings(name="a", nets={}), "at least one network in nets; got none"),
    "an encoder without a name": (lambda: RunSettings(name="a", encoder={}), "encoder.name"),
    "a spec that fails": (lambda: s2r_torch.check_family(Unspecified()), "family: a family; got RuntimeError: no box"),
    "no comparator": (
        lambda: register_comparator("mine")(lambda: 3),
        "label, access, fit, learner of comp",
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_was_meant_is_said(kind):
    call, words = CALLS[kind]
    with pytest.raises(S2RError) as caught:
        call()
    assert isinstance(caught.value, SettingError | ObservationError | RecordingError) and re.search(
        words, str(caught.value)
    )


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    one, two = AffineSensor(("x",), gain=np.float64(2), width=torch.tensor(0.1)), AffineSensor(("x",), gain=2.0)
    theta, latent = torch.zeros(3, 1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    torch.testing.assert_close(one.quadrature(theta, latent), two.quadrature(theta, latent), atol=1e-8, rtol=0)
    AffineSensor(("x", "y"), offset=np.zeros(2), width=[np.float32(0.1), torch.tensor(0.2)], columns=np.array([1, 0]))
    draws = [
        uniform_prior(edges)(5, torch.Generator().manual_seed(0))
        for edges in ((0, 2), np.array([0.0, 2.0]), (torch.tensor(0), np.int64(2)))
    ]
    assert torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[2])
    spec = ProblemSpec(np.int64(2), 3, 3, 1, np.zeros(1, np.float32), (torch.tensor(1.5),))
    assert (spec.num_actions, spec.low, spec.high) == (2, (0.0,), (1.5,)) and type(spec.high[0]) is float
    for k, walks in enumerate((((p, np.int64(2)) for p in META.cover), [(p, 2) for p in META.cover])):
        write_template(tmp_path / f"{k}.csv", walks, META.spec)
    forms = [(tmp_path / f"{k}.csv").read_text() for k in range(2)]
    assert forms[0] == forms[1] and forms[0].count("\n") == 1 + 2 * len(META.cover) * META.spec.horizon


def test_readings_may_come_one_state_at_a_time():
    assert torch.equal(META.condition_on(iter(X)).q(0, X[0]), META.condition_on(X).q(0, X[0]))


def test_what_lies_beyond_the_end_of_an_episode_says_nothing():
    actions, x, length = ACTIONS.clone(), SEEN.clone(), torch.tensor([5, 2, 1])
    actions[1, 1:], actions[2], x[1, 2:], x[2, 1:] = -1, 99, torch.nan, torch.inf
    Recording(actions, x, length).require_of(META.spec)
    with pytest.raises(RecordingError, match="got 99 at step 0 of episode 3"):
        Recording(actions, x, torch.tensor([5, 2, 2])).require_of(META.spec)


def test_what_a_family_s_function_returns_is_a_family(monkeypatch):
    monkeypatch.setattr(FAMILIES, "_known", dict(FAMILIES._known))
    s2r_torch.register_family("three")(lambda: 3)
    with pytest.raises(SettingError, match=r"what three\(...\) returned: a family; got int: 3"):
        s2r_torch.make_family("three")
    s2r_torch.register_family("four")(lambda: GRID)
    assert s2r_torch.make_family("four") is GRID  # another name for it
    other = type("Other", (type(GRID),), {"name": "other"})()
    s2r_torch.register_family("five")(lambda: other)
    with pytest.raises(SettingError, match="a family whose name is a registered one, as five is; got other"):
        s2r_torch.make_family("five")


def test_a_minimum_is_at_most_what_is_used():
    recording = s2r_torch.deployment.recording.episodes.Recording.empty(META.spec)
    with pytest.raises(SettingError, match=f"minimum <= {META.n_real}, .*; got 100000"):
        s2r_torch.deploy_recorded(META, recording, minimum=100000)
    with pytest.raises(SettingError, match="minimum: .*; got float: 2.5"):
        s2r_torch.deploy_recorded(META, recording, minimum=2.5)
    with pytest.raises(SettingError, match="minimum >= 1, a whole number; got 0"):
        s2r_torch.deploy_recorded(META, recording, minimum=0)
    with pytest.raises(RecordingError, match="at least 1 readings of every state"):  # one is enough
        s2r_torch.deploy_recorded(META, recording, minimum=1)


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path):
    path = tmp_path / "notes.safetensors"
    path.write_text("my notes, which are long enough")
    with pytest.raises(FileError, match="a safetensors file to replace; got a file of something else"):
        s2r_torch.save_policy(path, META)
    assert path.read_text().startswith("my notes")
    path.unlink()
    for _ in range(2):  # a policy is replaced
        s2r_torch.save_policy(path, META)


def test_notes_that_json_does_not_have_are_one_error(tmp_path: Path):
    with pytest.raises(S2RError, match="Tensor of several numbers, which JSON does not have"):
        s2r_torch.save_policy(tmp_path / "a.safetensors", META, notes={"x": torch.zeros(3)})


def test_arguments_that_there_are_not_are_told():
    @given.taking()
    def look(world: object, *, time_limit: float = 1.0) -> None: ...

    for wrong, got, cause in (
        (lambda: look(1, time_limt=2.0), "unexpected keyword argument 'time_limt'", "a typo for time_limit"),
        (lambda: look(1, 2.0), "too many positional arguments", "one too many"),
        (lambda: look(), "missing a required argument: 'world'", "one left out"),
    ):
        with pytest.raises(SettingError, match=f"arguments of .*look: world, time_limit; got {got}; .*{cause}"):
            wrong()

    class Robot:
        @given.taking()
        def __init__(self, port: int): ...

    with pytest.raises(SettingError, match=r"arguments of [^ ]*Robot: port; got .*; likely cause: a typo for port"):
        Robot(prt=3)
