"""Comparators of one's own: whatever is wrong with one is one error that names it, and what is right is valued."""

from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.known import known_on, worlds_of
from support.registries import as_before
from torch import nn

from s2r_torch.comparators.attempts import attempted
from s2r_torch.comparators.contract import (
    COMPARATORS,
    UNLABELLED,
    Access,
    Attempt,
    fitted_learner,
    register_comparator,
    require_labels,
)
from s2r_torch.comparators.policies import follow
from s2r_torch.episodes import rollout
from s2r_torch.errors import SettingError, SimulatorError
from s2r_torch.families.exact import policy_values
from s2r_torch.files.records import Codec
from s2r_torch.runs.evaluation import attempt_values, reactive
from s2r_torch.runs.results import require_kept
from s2r_torch.runs.settings import RunSettings


@pytest.fixture(autouse=True)
def registries():
    with as_before(COMPARATORS):
        yield


@dataclass(frozen=True, eq=False)
class Learning:
    """A learner whose attempt is a function of the worlds."""

    made: object = None

    def attempt(self, worlds):
        return self.made(worlds)


def still(step, x):
    return torch.zeros(x.shape[:2], dtype=torch.int64)


def of(attempt):
    worlds = worlds_of(known_on("grid").draws.family, 3)
    return attempt_values(attempted("mine", Learning(attempt), worlds), worlds, 20)


def acting(act):
    return lambda worlds: Attempt(act)


def valued(values):
    return lambda worlds: Attempt(still, exact=lambda truth: values)


def written(worlds):
    worlds.theta.zero_()
    return Attempt(still)


NO_ATTEMPTS = {
    "raises": (lambda worlds: 1 / 0, "attempt of the comparator mine to succeed; got ZeroDivisionError"),
    "nothing": (lambda worlds: None, "what attempt of the comparator mine returned: an Attempt; got NoneType"),
    "a policy": (lambda worlds: still, "what attempt of the comparator mine returned: an Attempt; got function"),
    "no act": (lambda worlds: Attempt(torch.zeros(3)), "act of an attempt: a function; got Tensor"),
    "below 0": (lambda worlds: Attempt(still, unlabelled=-5), "unlabelled >= 0 of an attempt; got -5"),
    "NaN": (lambda worlds: Attempt(still, rewarded=float("nan")), "rewarded >= 0 of an attempt; got nan"),
    "endless": (lambda worlds: Attempt(still, simulator=float("inf")), "simulator >= 0 of an attempt; got inf"),
    "no function of the truth": (
        lambda worlds: Attempt(still, exact=0.5),
        "exact of an attempt: a function; got float",
    ),
    "no walk": (lambda worlds: worlds.walk((), 3, worlds.seed, "real"), r"sequences of 5 actions; got \(\)"),
    "complex values": (valued(torch.zeros(3, dtype=torch.complex64)), r"values \[3\] in \[0, 1\] from exact"),
    "in words": (lambda worlds: Attempt(still, rewarded="3"), "rewarded >= 0 of an attempt; got '3'"),
    "more than all": (lambda worlds: Attempt(still, accepted=2.0), r"accepted of an attempt in \[0, 1\]; got 2.0"),
    "int32": (
        acting(lambda h, x: still(h, x).int()),
        "int64 actions of shape .* of the comparator mine",
    ),
    "floats": (acting(lambda h, x: still(h, x).double()), "int64 actions .*; got torch.float64"),
    "one per world": (acting(lambda h, x: torch.zeros(len(x), dtype=torch.int64)), r"int64 actions .*; got .*\[3\]"),
    "turned": (
        acting(lambda h, x: still(h, x).T.contiguous()),
        "int64 actions .* of the comparator mine",
    ),
    "an axis more": (acting(lambda h, x: still(h, x)[..., None]), "int64 actions .*, 1\\]"),
    "NumPy": (acting(lambda h, x: still(h, x).numpy()), "int64 actions .*; got ndarray"),
    "a number": (acting(lambda h, x: 0), "int64 actions .*; got int"),
    "none there": (acting(lambda h, x: still(h, x) - 1), "actions in 0 .. 1 from the policy of the comparator mine"),
    "a fault": (acting(lambda h, x: 1 / 0), "the policy of the comparator mine to succeed; got ZeroDivisionError"),
    "a value": (valued(0.5), r"values \[3\] .* comparator mine; got 0.5"),
    "values of states": (
        lambda worlds: Attempt(still, exact=lambda truth: torch.zeros(3, 9)),
        r"values \[3\] in \[0, 1\]",
    ),
    "values of 7": (
        lambda worlds: Attempt(still, exact=lambda truth: torch.full((3,), 7.0)),
        r"values \[3\] in \[0, 1\]",
    ),
    "values of NaN": (
        lambda worlds: Attempt(still, exact=lambda t: torch.full((3,), torch.nan)),
        r"values \[3\] in \[0",
    ),
    "written into": (written, "attempt of the comparator mine that leaves what it is given as it is"),
    "looks that are not counted": (
        lambda worlds: (worlds.walk(((0,) * 5,), 50, worlds.seed, UNLABELLED), Attempt(still, unlabelled=49))[1],
        "unlabelled of an attempt of the comparator mine: 50, as were drawn; got 49",
    ),
    "rewards that are not counted": (
        lambda worlds: (rollout(worlds.rewarded(0), still, 6, worlds.seed), Attempt(still))[1],
        "rewarded of an attempt of the comparator mine: 2, as were drawn; got 0",
    ),
    "a short walk": (
        lambda worlds: worlds.walk(((0,) * 4,), 3, worlds.seed, "real"),
        r"sequences of 5 actions; got \(\(0, 0, 0, 0\),\)",
    ),
    "a world too far": (lambda worlds: worlds.rewarded(99), "a world in 0 .. 2; got 99"),
    "a policy alone": (
        lambda worlds: worlds.one_by_one(lambda world: still),
        "what was learned in one world: a policy, and whether",
    ),
}


@pytest.mark.parametrize("kind", NO_ATTEMPTS)
def test_an_attempt_that_is_none_is_one_error_that_names_the_comparator(kind):
    attempt, words = NO_ATTEMPTS[kind]
    with pytest.raises((SettingError, SimulatorError), match=words):
        of(attempt)


@pytest.mark.parametrize("count", [-1, 0, "2", 2.0])
def test_worlds_are_counted_in_whole_numbers(count):
    with pytest.raises(SettingError, match="worlds >= 1, a whole number"):
        worlds_of(known_on("grid").draws.family, 3).first(count)
    with pytest.raises(SettingError, match="worlds: Worlds; got list"):
        attempted("mine", Learning(), [1, 2])


def test_numbers_of_other_libraries_and_policies_that_write_are_taken():
    def act(step, x):
        x.zero_()
        return still(step, x)

    plain = of(acting(still))
    assert torch.equal(of(acting(act)), plain)
    act.has_memory = True  # valued by episodes
    assert float((of(acting(act)) - plain).abs().max()) < 0.5
    assert of(valued(torch.full((3,), 0.5))).dtype == torch.float64
    numbers = {"unlabelled": np.float32(3), "rewarded": torch.tensor(2.0), "accepted": np.float64(0.5)}
    assert torch.equal(of(lambda worlds: Attempt(still, **numbers)), plain)
    assert [Attempt(still, accepted=passed).accepted for passed in (True, np.False_, torch.tensor(True))] == [1, 0, 1]
    assert Attempt(still, **numbers).episodes == 5
    assert torch.equal(of(lambda worlds: worlds.one_by_one(lambda world: (still, np.bool_(True)))), plain)
    assert torch.equal(of(lambda worlds: worlds.one_by_one(lambda world: [still, True])), plain)
    worlds = worlds_of(known_on("grid").draws.family, 3)
    for sequences in ([[0] * 5] * 2, np.zeros((2, 5), dtype=int), torch.zeros(2, 5, dtype=torch.int64)):
        assert worlds.walk(sequences, 2, worlds.seed, "real").x.shape[:3] == (3, 4, 5)
    assert [len(worlds.rewarded(i)) for i in torch.arange(3)] == [1, 1, 1]


class Alternating:
    """Takes the other action every time, whatever it reads; it does not say that it remembers."""

    def __call__(self, step, x):
        self.last = still(step, x) if step == 0 else 1 - self.last
        return self.last


def test_policies_that_remember_or_draw_are_valued_by_episodes_though_they_do_not_say_so():
    worlds = worlds_of(known_on("grid").draws.family, 3)
    generator = torch.Generator().manual_seed(0)

    def random(step, x):
        return torch.randint(2, x.shape[:2], generator=generator)

    assert reactive(still, worlds.truth) and reactive(follow((0, 1, 0, 1, 0)), worlds.truth)
    assert not reactive(Alternating(), worlds.truth) and not reactive(random, worlds.truth)
    assert not reactive(lambda step, x: still(step, x) + (x.shape[1] > 1), worlds.truth)  # by how many there are
    found = attempt_values(attempted("mine", Learning(acting(Alternating())), worlds), worlds, 4000)
    exact = policy_values(worlds.truth, follow((0, 1, 0, 1, 0)))[:, 0]
    assert float((found - exact).abs().max()) < 0.05  # 6 standard errors of a reward of 0 or 1 at most


class ByFirst:
    """Remembers what it read at a step, and acts by that afterwards; it does not say so."""

    def __init__(self, layer):
        self.layer, self.taken = layer, None

    def __call__(self, step, x):
        if step <= self.layer or self.taken.shape != x.shape[:2]:
            self.taken = (x[..., 0] > x[..., 0].median()).long() if step == self.layer else still(step, x)
        return self.taken


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_policy_that_remembers_an_early_reading_is_valued_by_episodes(layer):
    worlds = worlds_of(known_on("grid").draws.family, 3)
    assert not reactive(ByFirst(layer), worlds.truth)
    declared = follow((0, 1, 0, 1, 0))
    declared.has_memory = True
    assert attempted("mine", Learning(acting(declared)), worlds).act.has_memory


def test_a_policy_that_remembers_in_a_buffer_that_it_returns_is_valued_by_episodes():
    class Buffered(Alternating):
        def __call__(self, step, x):
            self.last = still(step, x) if step == 0 else self.last.sub_(1).neg_()
            return self.last

    assert not reactive(Buffered(), worlds_of(known_on("grid").draws.family, 3).truth)


def fitted(fit, learner=Learning):
    known = replace(known_on("grid"))
    return fitted_learner(
        "mine", type("Mine", (), {"learner": learner, "fit": lambda self, known: fit(known)})(), known
    )


def test_what_fit_raises_returns_or_writes_is_one_error_that_names_the_comparator():
    rewards = known_on("grid").data.samples[0].rewards
    before = rewards.clone()

    def writing(known):
        known.data.samples[0].rewards.mul_(2)
        return Learning()

    try:
        with pytest.raises(SettingError, match="fit of the comparator mine that leaves what it is given as it is"):
            fitted(writing)
    finally:
        rewards.copy_(before)
    with pytest.raises(SimulatorError, match="fit of the comparator mine .*ZeroDivisionError"):
        fitted(lambda known: 1 / 0)
    larger = type("Larger", (Learning,), {})()  # the run would forget what it adds
    for found in (None, SimpleNamespace(attempt=still), larger):
        with pytest.raises(SettingError, match="what fit of the comparator mine returned: Learning; got"):
            fitted(lambda known, found=found: found)


def test_global_streams_and_defaults_are_the_run_s_in_a_comparator_and_as_before_afterwards():
    seen, state = [], torch.get_rng_state()

    def fit(known):
        torch.set_default_dtype(torch.float64)
        seen.append((float(torch.rand(())), float(np.random.rand())))
        return Learning()

    fitted(fit)
    fitted(fit)
    assert seen[0] == seen[1]
    assert torch.get_default_dtype() == torch.float32 and torch.equal(torch.get_rng_state(), state)


def registered(name, **changes):
    parts = {"label": name, "access": Access(), "learner": Learning, "fit": lambda self, known: Learning()}
    return register_comparator(name)(type(name.title(), (), parts | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"access": {"reward": "no"}}, "access of comparator 'wrong': an Access"),
        ({"access": Access}, "access of comparator 'wrong': an Access.*a class: make one first"),
        ({"label": None}, "label of comparator 'wrong': text"),
        ({"label": " "}, "label of comparator 'wrong': text"),
        ({"learner": 3}, "learner of comparator 'wrong': a dataclass"),
        ({"learner": type("Plain", (), {"attempt": still})}, "learner of comparator 'wrong': a dataclass"),
        ({"drawn": 300}, "drawn of comparator 'wrong': a tuple of Drawn"),
    ],
)
def test_a_comparator_says_what_it_is_when_it_is_registered(changes, words):
    with pytest.raises(SettingError, match=words):
        registered("wrong", **changes)
    assert "wrong" not in COMPARATORS


@pytest.mark.parametrize(
    "drawn", [(), [], property(lambda self: ()), cached_property(lambda self: ())], ids=lambda d: type(d).__name__
)
def test_what_a_comparator_draws_is_listed_or_follows_from_its_settings(drawn):
    assert registered("drawing", drawn=drawn).drawn is drawn


def test_names_and_labels_of_tables_are_taken():
    for name in ("optimal", "deployed"):
        with pytest.raises(SettingError, match=f"a name for a comparator; got '{name}'"):
            registered(name)
    registered("second_random", label=COMPARATORS["random"].label)
    with pytest.raises(SettingError, match="labels of their own; got second_random, random, all called"):
        require_labels(["second_random", "random", "blind"])
    require_labels(name for name in COMPARATORS if COMPARATORS[name].__module__.startswith("s2r_torch."))


@pytest.mark.parametrize("held", [nn.Linear(2, 2), abs, np.zeros(3), {1, 2}, {1: 2}], ids=str)
def test_a_learner_that_no_run_can_keep_is_refused_when_it_is_fitted(held):
    registered("holding")
    with pytest.raises(SettingError, match="a learner of the comparator holding made of tensors"):
        require_kept("holding", Learning(held))
    for number in (1.0, np.float64(1), np.float32(1), np.int64(1), np.True_):
        require_kept("holding", Learning({"a": (torch.zeros(2), "x", number)}))


def test_keys_of_maps_are_text():
    with pytest.raises(TypeError, match="keys that are no text at a"):
        Codec([]).pack({"a": {1: 2}})


def test_a_comparator_that_cannot_be_made_is_named_before_a_run():
    class Failing:
        label, access, learner = "failing", Access(), Learning

        def __init__(self, size: int = 3):
            raise RuntimeError("no accelerator")

        def fit(self, known):
            return Learning()

    register_comparator("failing")(Failing)
    with pytest.raises(SettingError, match="the comparator failing to be made; got RuntimeError: no accelerator"):
        RunSettings(name="mine", comparators={"failing": {}})
    with pytest.raises(SettingError, match="comparators.failing.size: a whole number; got 'x'"):
        RunSettings(name="mine", comparators={"failing": {"size": "x"}})


def test_numbers_of_numpy_are_kept_as_python_s():
    codec = Codec([])
    kept = codec.unpack(*codec.pack((np.float32(0.5), np.int64(3), np.True_, np.float64("inf"))))
    assert kept == (0.5, 3, True, float("inf")) and [type(one) for one in kept] == [float, int, bool, float]
