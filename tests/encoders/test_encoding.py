"""The door that readings enter by: the same bits whatever is read at once, and what it refuses."""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.registries import as_before
from support.strip import strip
from torch import nn

from s2r_torch.encoders import ENCODERS, register_encoder
from s2r_torch.encoders.contract import Encoder
from s2r_torch.encoders.encoding import BLOCK, examined, in_blocks, made, rebuilt, require_rebuilt
from s2r_torch.errors import CheckpointError, ObservationError, S2RError, SettingError
from s2r_torch.rng import Seed
from s2r_torch.runs.encoding import fitted

RAW = strip().spec


@register_encoder("first_two")
class FirstTwo(Encoder):
    """A user's fixed module, with a number of its own."""

    def __init__(self, obs_dim: int, gain: float = 1.0):
        super().__init__(obs_dim)
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x):
        return self.gain * x[:, :2]


def wrong(name, forward=None, fails=False):
    """An encoder of a user with a fault."""

    def init(self, obs_dim):
        Encoder.__init__(self, obs_dim)
        if fails:
            raise RuntimeError("no weights found")

    return register_encoder(name)(
        type(name, (Encoder,), {"__init__": init, "forward": forward, "__module__": __name__})
    )


SEEING = [("pca", {"see": 5}), ("learned", {"see": 5})]


@pytest.mark.parametrize(("name", "settings"), [("pca", {}), ("learned", {}), ("first_two", {}), *SEEING])
def test_features_do_not_depend_on_what_else_is_read(name, settings):
    phi = made(name, settings, RAW)
    x = torch.rand(3 * BLOCK + 7, RAW.obs_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = phi(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(phi(x[order]), z[order])
    assert torch.equal(torch.cat([phi(row[None]) for row in x[:9]]), z[:9])
    assert torch.equal(phi(x[:10].view(2, 5, -1)), z[:10].view(2, 5, -1)) and z.dtype == torch.float64
    assert phi(x[:0]).shape == (0, z.shape[1])
    torch.testing.assert_close(in_blocks(phi.module, x.float()), phi.module(x.float()).detach())


@pytest.mark.parametrize(("name", "settings"), SEEING)
def test_what_predictors_see_beside_features_comes_after_them(name, settings):
    phi, without = made(name, settings, RAW), made(name, {}, RAW)
    again = rebuilt(phi.recipe(), phi.tensors(), RAW, replace(phi.spec, beside=0))  # a file does not say it
    x = torch.rand(40, RAW.obs_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (phi.spec.obs_dim, phi.spec.beside, phi.spec.width) == (2, 5, 7)
    if name == "learned":
        without = rebuilt(without.recipe(), phi.tensors(), RAW, without.spec)
    assert torch.equal(phi.spec.placed(phi(x)), without(x)) and without.spec.width == 2
    beside = x.float() - phi.module.mean
    components = phi.module.components[2:7] if name == "pca" else phi.module.components[:5]
    torch.testing.assert_close(phi(x)[:, 2:], (beside @ components.T).double())
    assert torch.equal(again(x), phi(x)) and again.spec == phi.spec
    assert made(name, {**settings, "see": 50}, RAW).spec.beside == (12 if name == "pca" else 14)  # all that there are


NO_COUNT = "beside of the encoder beside >= 0, a whole number"


@pytest.mark.parametrize(
    ("beside", "words"),
    [(-1, NO_COUNT), (1.0, NO_COUNT), (True, NO_COUNT), ("2", NO_COUNT), (257, "<= 256"), (3, "d = 0")],
)
def test_other_than_a_number_of_numbers_beside_is_refused(beside, words, monkeypatch):
    if "beside" not in ENCODERS:
        wrong("beside", lambda self, x: x[:, :3])
    monkeypatch.setattr(ENCODERS["beside"], "beside", beside)
    with pytest.raises(SettingError, match=words):
        made("beside", {}, RAW)


@pytest.mark.parametrize("name", ["identity", "pca"])
def test_numbers_beside_are_no_family_s(name):
    with pytest.raises(SettingError, match="readings of obs_dim numbers; got beside=2 in its spec"):
        made(name, {}, replace(RAW, beside=2))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(4, 3), "readings of 14 numbers"),
        (torch.full((2, 14), torch.nan), "finite readings"),
        (torch.full((2, 14), 1e300, dtype=torch.float64), "finite readings"),
        (torch.full((2, 14), 3e38), "finite features"),
    ],
)
def test_readings_that_are_refused(x, words):
    with pytest.raises(ObservationError, match=words):
        made("first_two", {"gain": 10.0}, RAW)(x)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("pcs", {}, "a typo for 'pca'"),
        ("pca", {"dim": 4}, "d = 1 .. 3"),
        ("pca", {"dims": 2}, "a typo for dim"),
        ("pca", {"dim": 0}, "encoder.dim"),
        ("learned", {"dim": 3, "inputs": 2}, "encoder.dim <= 2"),
        ("broken", {}, "no weights found"),
        ("wide", {}, "d = 1 .. 3"),
        ("listing", {}, "list"),
        ("double", {}, "float64"),
    ],
)
def test_encoders_that_are_refused(name, settings, words):
    made_here = {
        "broken": lambda: wrong("broken", fails=True),
        "wide": lambda: wrong("wide", lambda self, x: x),
        "listing": lambda: wrong("listing", lambda self, x: x.tolist()),
        "double": lambda: wrong("double", lambda self, x: x[:, :1].double()),
    }
    if name in made_here and name not in ENCODERS:
        made_here[name]()
    with pytest.raises(SettingError, match=words):
        made(name, settings, RAW)


def _counting(self, x):
    self.calls = getattr(self, "calls", 0) + 1
    return x[:, :2] if self.calls < 1000 else -x[:, :2]


CALLS = [0]


def _counting_outside(self, x):
    CALLS[0] += 1
    return x[:, :2] if CALLS[0] < 10**6 else -x[:, :2]


def _read(x):
    path = Path(tempfile.gettempdir()) / "s2r_shift.txt"
    path.write_text("0.5")
    return x[:, :2] + float(path.read_text())


def _remembering(self, x):
    self.first = getattr(self, "first", x[:, :2])
    return self.first


NO_FUNCTIONS = {
    "noisy": (lambda self, x: x[:, :2] + torch.rand(len(x), 2), "the same features for the same readings"),
    "counting": (_counting, "what it holds to stay as it is .*; got others after a call: calls"),
    "counting outside": (_counting_outside, "a forward that changes nothing .*; got others after a call: CALLS"),
    "standardising": (lambda self, x: (x - x.mean(0))[:, :2], "features reading by reading"),
    "sorting": (lambda self, x: x.sort(0).values[:, :2], "features reading by reading"),
    "spreading": (lambda self, x: x[:1, :2].expand(len(x), 2), "features reading by reading"),
    "remembering": (_remembering, "features reading by reading"),
    "cutting": (lambda self, x: x[:4, :2], r"got torch.float32 of shape \[4, 2\] for N = 128"),
    "sparse": (lambda self, x: x[:, :2].to_sparse(), "expected float32 features"),
    "reading": (lambda self, x: _read(x), "a forward without files .*; got one that opens .*s2r_shift.txt"),
    "seeding": (
        lambda self, x: (torch.manual_seed(0), x[:, :2] + torch.rand(()))[1],
        "a forward that draws no numbers",
    ),
    "little noise": (
        lambda self, x: x[:, :2] + 1e-6 * torch.rand(len(x), 2),
        "the same features for the same readings",
    ),
    "half a block away": (lambda self, x: x[:, :2] + x.roll(64, 0)[:, :2], "features reading by reading"),
    "looking at padding": (
        lambda self, x: x[:, :2] - x[:, :2].mean(0) * bool((x[-1] == 0).all()),
        "features reading by reading",
    ),
    "a variable": (lambda self, x: x[:, :2] * float(os.environ.get("S2R_GAIN", "1")), "without environment variables"),
    "leaving": (lambda self, x: sys.exit(0), "got SystemExit: 0"),
}


@pytest.mark.parametrize("kind", NO_FUNCTIONS)
def test_an_encoder_that_is_no_function_of_one_reading_is_refused(kind, monkeypatch):
    monkeypatch.setenv("S2R_GAIN", "2")
    (forward, words), name = NO_FUNCTIONS[kind], kind.replace(" ", "_")
    if name not in ENCODERS:
        wrong(name, forward)
    with pytest.raises(SettingError, match=words):
        made(name, {}, RAW)


def test_an_encoder_that_learns_once_it_is_fitted_is_refused_by_its_numbers():
    def forward(self, x):
        return self.norm(x)[:, :2]

    def init(self, obs_dim):
        Encoder.__init__(self, obs_dim)
        self.norm = nn.BatchNorm1d(obs_dim)

    if "norm" not in ENCODERS:
        kind = type("Norm", (Encoder,), {"__init__": init, "forward": forward, "__module__": __name__})
        register_encoder("norm")(kind)
    phi = made("norm", {}, RAW)  # in use it is a function
    phi.module.norm.train()
    with pytest.raises(SettingError, match="others after a call: norm.running_mean"):
        examined(phi.module, "norm", RAW)


def _scale(self):
    self.scale = 3.0


def _replace(self):
    self.net = nn.Sequential(nn.Linear(14, 3), nn.Linear(3, 2))


def _unsaved(self):
    self.kept.fill_(2.0)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (_scale, "features that follow from settings, .*; got others when rebuilt.*register_buffer"),
        (_unsaved, "features that follow from settings"),
        (_replace, "a fit that keeps its parameters and buffers .*parts that fit replaced"),
    ],
)
def test_a_fit_that_no_file_holds_is_refused_when_it_is_done(fit, words):
    class Fitted(Encoder):
        def __init__(self, obs_dim: int):
            super().__init__(obs_dim)
            self.scale, self.net = 1.0, nn.Linear(obs_dim, 2)
            self.register_buffer("kept", torch.ones(2), persistent=False)

        def forward(self, x):
            return self.net(x) * self.scale * self.kept

    register_encoder(f"fitted{fit.__name__}")(Fitted)
    phi = made(f"fitted{fit.__name__}", {}, RAW)
    require_rebuilt(phi)
    fit(phi.module)
    with pytest.raises(SettingError, match=words):
        require_rebuilt(phi)


def test_an_encoder_that_takes_no_readings_is_one_error():
    class Nothing(Encoder):
        def __init__(self):
            super().__init__(14)

    register_encoder("nothing")(Nothing)
    with pytest.raises(SettingError, match=r"Nothing for encoder that can be called; got Nothing\(\)"):
        made("nothing", {}, RAW)


def test_what_was_written_is_rebuilt_and_nothing_else():
    phi = made("first_two", {"gain": 3.0}, RAW)
    x = torch.rand(5, 14, generator=torch.Generator().manual_seed(0))
    again = rebuilt(phi.recipe(), phi.tensors(), RAW, phi.spec)
    assert torch.equal(again(x), phi(x)) and not again.module.gain.requires_grad
    for tensors in ({}, {"gain": torch.zeros(2)}, {"gain": torch.tensor(1.0), "more": torch.zeros(1)}):
        with pytest.raises(CheckpointError, match="first_two"):
            rebuilt(phi.recipe(), tensors, RAW, phi.spec)
    with pytest.raises(CheckpointError):
        rebuilt(phi.recipe(), phi.tensors(), RAW, made("pca", {"dim": 3}, RAW).spec)
    for recipe in ({"name": "first_two"}, {**phi.recipe(), "code": "x"}, {"name": "nobody", "settings": {}}):
        with pytest.raises(S2RError):
            rebuilt(recipe, phi.tensors(), RAW, phi.spec)


def test_features_are_another_sensor_of_the_same_problem():
    raw = replace(RAW, zeta=0.5)
    spec = made("pca", {"dim": 3}, raw).spec
    assert (spec.obs_dim, spec.obs_names, spec.zeta) == (3, ("feature_1", "feature_2", "feature_3"), None)
    assert (spec.num_actions, spec.horizon, spec.reward_scale) == (raw.num_actions, raw.horizon, raw.reward_scale)


def test_making_an_encoder_leaves_torchs_own_stream_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(
        made("learned", {}, RAW).tensors()["net.net.0.weight"], made("learned", {}, RAW).tensors()["net.net.0.weight"]
    )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda self, views, seed: 1 / 0, "fit of the encoder .* to succeed; got ZeroDivisionError"),
        (lambda self, views, seed: sys.exit(0), "fit of the encoder .* to succeed; got SystemExit"),
        (lambda self, views, seed: 3.0, "sentences in a tuple from fit .*; got 3.0"),
        (lambda self, views, seed: (self.l.weight.data.fill_(float("nan")), ())[1], "finite numbers from fit"),
        (
            lambda self, views, seed: (self.to("meta"), None)[1],
            "finite numbers from fit of the encoder fits.*; got .* in .*l.weight",
        ),
        (lambda self, views, seed: (torch.set_default_dtype(torch.float16), "one sentence")[1], "one sentence"),
        (lambda self, views, seed: None, ""),
    ],
    ids=["raises", "exits", "a number", "nan", "no numbers", "a text and defaults of its own", "nothing"],
)
def test_what_a_fit_raises_or_returns_is_one_error(fit, words):
    class Fits(Encoder):
        def __init__(self, obs_dim: int):
            super().__init__(obs_dim)
            self.l = nn.Linear(obs_dim, 2)

        def forward(self, x):
            return self.l(x)

    Fits.fit = fit
    name = f"fits{len(ENCODERS)}"
    register_encoder(name)(Fits)
    phi = made(name, {}, RAW)
    if words in ("one sentence", ""):
        assert fitted(phi, None, Seed.root(0)) == ((words,) if words else ())
        assert torch.get_default_dtype() == torch.float32
        return
    with pytest.raises(SettingError, match=words):
        fitted(phi, None, Seed.root(0))


def test_a_constructor_reads_no_file(tmp_path):
    class Reads(Encoder):
        def __init__(self, obs_dim: int):
            super().__init__(obs_dim)
            self.scale = float((tmp_path / "scale.txt").read_text())

        def forward(self, x):
            return x[:, :2] * self.scale

    (tmp_path / "scale.txt").write_text("2.0")
    register_encoder(f"reads{len(ENCODERS)}")(Reads)
    with pytest.raises(SettingError, match="a constructor without files .*scale.txt; .*read it in `fit`"):
        require_rebuilt(made(Reads.name, {}, RAW))


def test_an_encoder_does_not_see_inference_mode():
    def forward(self, x):
        return x[:, :2] * (3 if torch.is_inference_mode_enabled() else 1)

    wrong("modes", forward)
    phi, x = made("modes", {}, RAW), torch.rand(4, RAW.obs_dim)
    with torch.inference_mode():
        seen = phi(torch.rand(4, RAW.obs_dim).copy_(x))
    assert torch.equal(seen, phi(x))


def test_an_encoder_may_write_into_readings_and_these_stay_as_they_are():
    class Doubling(Encoder):
        def forward(self, x):
            return x.mul_(2.0)[:, :2]

    with as_before(ENCODERS):
        register_encoder("doubling_in_place")(Doubling)
        phi = made("doubling_in_place", {}, RAW)
    x = torch.rand(200, 14, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    z = phi(x)
    assert torch.equal(x, kept) and torch.equal(z.float(), 2 * kept[:, :2])


def test_settings_are_values_that_a_file_holds():
    class Told(Encoder):
        def __init__(self, obs_dim: int, gain=1.0):
            super().__init__(obs_dim)
            self.gain = gain if isinstance(gain, float) else 1.0

        def forward(self, x):
            return x[:, :2] * self.gain

    with as_before(ENCODERS):
        register_encoder("told")(Told)
        phi = made("told", {"gain": np.float32(2)}, RAW)
        assert phi.recipe() == {"name": "told", "settings": {"gain": 2.0}} and type(phi.settings["gain"]) is float
        assert made("told", {"gain": [np.int64(2), {"a": np.bool(True)}]}, RAW).settings == {"gain": [2, {"a": True}]}
        for gain in (nn.Linear(2, 2), abs, torch.zeros(2), float("nan")):
            with pytest.raises(SettingError, match="settings of the encoder told that are JSON values"):
                made("told", {"gain": gain}, RAW)


def test_readings_come_in_a_tensor():
    with pytest.raises(ObservationError, match="readings in a torch.Tensor; got ndarray"):
        made("pca", {}, RAW)(np.zeros((3, 14)))
