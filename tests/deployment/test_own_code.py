"""A user's functions and copies of policies in a deployment: nothing that they do reaches what is deployed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.policies import judged_policy, policy_of

from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.policy_file import load_policy, save_policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.episodes import Ledger
from s2r_torch.errors import CheckpointError, ObservationError, SettingError
from s2r_torch.families import make_family

FAMILY = make_family("grid")
THETA = FAMILY.prior(1, torch.Generator().manual_seed(3))[0]


def world(seed=0):
    return FAMILY.world(THETA, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def policy():
    return judged_policy()


def test_scores_hold_for_the_readings_that_they_were_made_from(policy, tmp_path):
    """A copy that looks less was never rehearsed: its noise would be taken for another world."""
    few, path = replace(policy, n_real=20), tmp_path / "policy.safetensors"
    assert deploy(few, world(), refuse=False).likeness.verdict == "untested"
    with pytest.raises(CheckpointError, match="n_real = 100, as scores are for; got 20"):
        save_policy(path, few)
    save_policy(path, policy)
    for meta in (policy, load_policy(path)):
        assert deploy(meta, world(), refuse=False).likeness.verdict in ("consistent", "doubtful")


def test_episodes_that_are_handed_on_are_a_copy_and_a_fault_there_is_one_error(policy):
    seen, theirs = [], []

    def keep(new):
        theirs.append(Recording(new.actions.clone(), new.x.clone(), new.length.clone()))
        new.x.zero_()

    plain = deploy(policy, world(), keep=seen.append)
    written = deploy(policy, world(), keep=keep)
    assert torch.equal(plain.D_real, written.D_real)
    assert torch.equal(Recording.joined(seen).x, Recording.joined(theirs).x)
    with pytest.raises(SettingError, match=r"keep\(recording\) to keep new episodes; got ZeroDivisionError"):
        deploy(policy, world(), keep=lambda new: 1 / 0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_limit_is_looked_at_before_the_first_episode(policy, seconds):
    ledger = Ledger()
    with pytest.raises(SettingError, match="time_limit > 0 seconds"):
        deploy(policy, world(), ledger, time_limit=seconds)
    assert not ledger.counts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_real": "100"}, "n_real: a whole number; got str"),
        ({"n_real": 100.0}, "n_real: a whole number; got float"),
        ({"chosen": 0.0}, "chosen: a whole number; got float"),
        ({"cover": ((0, 1),)}, r"sequences of 4 actions that visit all 9 states; got \(\(0, 1\),\)"),
        ({"cover": ()}, "sequences of 4 actions that visit all 9 states"),
        ({"cover": ((0, 0, 0, 2), *policy_of().cover)}, "sequences of 4 actions that visit all 9 states"),
        ({"cover": ((0, 0, 0, 0),)}, "sequences of 4 actions that visit all 9 states"),
    ],
)
def test_a_copy_of_a_policy_is_looked_at_when_it_is_made(changes, words):
    with pytest.raises(SettingError, match=words):
        replace(policy_of(), **changes)
    cover = policy_of().cover
    for listed in ([list(path) for path in cover], np.array(cover), torch.tensor(cover)):
        again = replace(policy_of(), cover=listed).cover
        assert again == cover and {type(a) for path in again for a in path} == {int}


def test_readings_of_every_state_are_of_one_world_or_of_the_same_ones():
    meta, g = policy_of(), torch.Generator().manual_seed(0)
    of = lambda *lead: torch.rand(9, *lead, 30, 2, generator=g, dtype=torch.float64)  # noqa: E731
    several, x = of(3), torch.rand(3, 5, 2, generator=g, dtype=torch.float64)
    values = meta.condition_on(several).q(1, x)
    assert torch.equal(values, meta.condition_on(list(several)).q(1, x))
    for w in range(3):
        torch.testing.assert_close(meta.condition_on(several[:, w]).q(1, x[w]), values[w])
    for odd in (of(2, 3), [*several[:8], of()[0]], [of()[0], *several[1:]], [*several[:8], of(2)[0]], of(0)):
        with pytest.raises(ObservationError, match=r"\[n, d\] of every state, or \[B, n, d\] of the same B worlds"):
            meta.condition_on(odd)


def test_half_precision_is_no_density(policy):
    D = deploy(policy, world(), refuse=False).D_real
    with pytest.raises(ObservationError, match="densities, float32 or float64; got torch.float16"):
        policy.condition(D.half())


def test_autocast_changes_no_bit(policy):
    x = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = deploy(policy, world(), refuse=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = deploy(policy, world(), refuse=False)
        q = plain.policy.q(1, x)
    assert torch.equal(plain.D_real, inside.D_real)
    assert torch.equal(q, plain.policy.q(1, x)) and torch.equal(inside.policy.q(1, x), q)


def test_a_path_is_whatever_names_a_file(tmp_path):
    save_policy(tmp_path / "policy.safetensors", policy_of())

    class Named:
        def __fspath__(self):
            return str(tmp_path / "policy.safetensors")

    assert load_policy(Named()).n_real == policy_of().n_real
