"""Logs that look well: what is wrong with them is found and named, and good ones are left alone."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.pac_checks import check_failure_rate
from support.policies import policy_of

from s2r_torch.coverage import path_cover
from s2r_torch.deployment.recording.causes import off_range
from s2r_torch.deployment.recording.contents import DRIFT, examine
from s2r_torch.deployment.recording.copies import near_copies
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.evidence import Contents, by_state
from s2r_torch.errors import ObservationError, RecordingError
from s2r_torch.families import make_family

GRID = make_family("grid")
POLICY = policy_of()
GRAPH, N = GRID.graph, 40
COVER = path_cover(GRAPH)


def good_log(seed: int = 7, n: int = N, dtype=torch.float64) -> Recording:
    """n episodes along each sequence of the cover, in a world of the grid family."""
    g, parts = torch.Generator().manual_seed(seed), []
    world = GRID.world(GRID.prior(1, g)[0], g)
    for path in COVER:
        seen = [world.reset(n)] + [world.step(torch.full((n,), a)) for a in path]
        parts.append(Recording.of(path, [x.to(dtype) for x in seen]))
    recording = Recording.joined(parts)
    lines = torch.arange(2, 2 + recording.x.shape[0] * GRAPH.horizon).reshape(-1, GRAPH.horizon)
    return replace(recording, places=lines)


def test_states_are_found_in_the_order_of_episodes():
    states = np.random.default_rng(0).integers(-1, 5, size=(30, 4))
    listed = {s: rows.tolist() for s, rows in by_state(states)}
    assert not list(by_state(states[:0])) and not list(by_state(np.full((2, 3), -1)))
    flat = states.ravel().tolist()
    assert listed == {s: [i for i, other in enumerate(flat) if other == s] for s in range(5)}


def found(recording: Recording, allow_constant: bool = False):
    estimator = replace(POLICY.estimator, allow_constant=allow_constant)
    return examine(recording, GRAPH, estimator, GRID.spec.obs_names)


def changed(change, seed: int = 7) -> Recording:
    """A good log whose readings x [N, H, d] were changed."""
    log = good_log(seed)
    x = log.x.clone()
    change(x)
    return replace(log, x=x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_good_logs_get_no_note(dtype):
    """100 worlds; the stated rate, 1 of 1000, leaves one by chance."""
    noted = [text for seed in range(100) for text in found(good_log(seed, dtype=dtype))]
    assert not noted


@pytest.mark.statistical
def test_false_alarms_of_drift_are_as_rare_as_stated():
    logs = 1000
    check_failure_rate(sum(bool(found(good_log(seed))) for seed in range(logs)), logs, DRIFT * 1.1)


def test_resolution_alone_is_no_fault():
    """A sensor of 12 bits over the whole range shows values again by chance."""
    for seed in range(20):
        assert not found(changed(lambda x: x.mul_(1000).round_().div_(1000), seed))


# -- refused ----------------------------------------------------------------------------------------------------------


def test_copied_episodes_are_named_by_their_lines():
    def every_odd_one(x):
        x[1::2] = x[::2]

    with pytest.raises(RecordingError, match=r"got 60 of 120 .* at line 7 is that at line 2; as good as 60"):
        found(changed(every_odd_one))
    log = good_log()
    with pytest.raises(RecordingError, match="the episode at line 2 is that at line 2"):
        found(Recording.joined([log] * 4))  # the same file four times
    with pytest.raises(RecordingError, match="got 1 of 121 .*at step 0 of episode 121 is that at line 2"):
        found(Recording.joined([log, Recording(log.actions[:1], log.x[:1], log.length[:1])]))


@pytest.mark.parametrize("value", [-999.0, 65535.0, 3.5])
@pytest.mark.parametrize("share", [3, 12, 60])
def test_values_that_stand_for_none_are_named(value, share):
    def spoil(x):
        x[:share, 2, 0] = value

    message = rf"'row' on the grid.*; got {value:g}, {share} times exactly, the first at line 4"
    with pytest.raises(ObservationError, match=message):
        found(changed(spoil))


def test_many_readings_off_the_grid_are_named_by_the_first():
    def units(x):
        x[60:] *= 1000

    with pytest.raises(ObservationError, match=r"'row' = .* at line 302, .*a change half-way: other units: .*1000"):
        found(changed(units))


def test_stuck_and_copied_sensors_are_named():
    def stuck(x):
        x[:, 3, 1] = x[0, 3, 1]

    with pytest.raises(ObservationError, match=r"'column' that vary after actions .*times, from line 5 on"):
        found(changed(stuck))
    assert not [f for f in found(changed(stuck), allow_constant=True) if f.doubt]

    def copied(x):
        x[..., 1] = x[..., 0]

    with pytest.raises(ObservationError, match="'column' equal to 'row' in every reading"):
        found(changed(copied))


@pytest.mark.parametrize("digits", [1e-7, 1e-12])
def test_episodes_copied_but_for_the_last_digits_are_named(digits):
    def twice(x):
        later, noise = x.unflatten(0, (-1, N))[:, N // 2 :], torch.randn(1, generator=torch.Generator().manual_seed(0))
        later.copy_(x.unflatten(0, (-1, N))[:, : N // 2] + digits * noise.double())

    with pytest.raises(RecordingError, match="60 of 120 .* but for the last digits: .*; as good as 60"):
        found(changed(twice))


def test_a_number_of_any_size_is_no_reason_to_stop_looking_for_copies():
    log = good_log()
    x = log.x.clone()
    x[0, 0, 0], x[1] = 1e308, x[0]
    with np.errstate(over="raise", invalid="raise"):
        near_copies(Contents.of(replace(log, x=x), GRAPH, GRID.spec.obs_names))


def test_a_reading_that_is_kept_for_all_steps_is_no_copy_of_another_episode():
    log = good_log(n=400)
    kept = replace(log, x=log.x[:, :1].expand_as(log.x).clone())
    assert not [f for f in found_or_refused(kept) if "repeat an earlier one" in f]


def found_or_refused(recording) -> list[str]:
    try:
        return [finding.text for finding in found(recording)]
    except (ObservationError, RecordingError) as error:
        return [str(error)]


def test_a_few_readings_off_the_range_are_no_other_units():
    x = np.random.default_rng(0).uniform(-3, 3, (200, 1))
    x[::40, 0] = np.linspace(-3.1, -9, 5)
    assert "other units: readings" not in off_range(x, 0, (-3.0,), (3.0,), ("angle",))


def test_a_converter_of_ten_bits_has_few_digits_and_no_fault():
    assert not [f for f in found(changed(lambda x: x.mul_(256).round_().div_(256))) if "binary" in f.text]


# -- told -------------------------------------------------------------------------------------------------------------


def sentinel_inside(x):
    x[::10, :, 0] = 0.0


def clipped(x):
    x[..., 0].clamp_(max=2.0)


def coarse(x):
    x[:] = (x * 10).round() / 10


def late(x):
    x[:, 1:] = x[:, :-1].clone()


def late_column(x):
    x[:, 1:, 1] = x[:, :-1, 1].clone()


def recalibrated(x):
    x.unflatten(0, (-1, N))[:, N // 2 :, :, 0] += 0.3


def drifts(x):
    x[..., 0] += torch.linspace(0, 0.5, len(x), dtype=torch.float64)[:, None]


def quieter(x):
    later = x.unflatten(0, (-1, N))[:, N // 2 :]
    later[:] = later.mean(1, keepdim=True) + 0.4 * (later - later.mean(1, keepdim=True))


def one_state_again(x):
    x[1:20:2, 2] = x[0:20:2, 2]


def ended(x):
    x[:5, 3:] = x[:5, 2:3]


@pytest.mark.parametrize(
    ("change", "text", "doubt"),
    [
        (sentinel_inside, "'row' is 0 60 times exactly, first at line 2", False),
        (clipped, r"'row' is 2 \(its largest\) \d+ times exactly", False),
        (coarse, "'row' takes only . different values in .* rounded", True),
        (lambda x: x.copy_(x.half()), "'row' has at most 11 binary digits, as in half precision", True),
        (late, "'row' at step 1 repeats step 0 exactly in 120 of 120 episodes, first at line 3", True),
        (late, "times as close when readings are read one row later", True),
        (late_column, "'column' at step 1 repeats step 0 exactly", True),
        (recalibrated, r"first and second half .* \('row': its readings change", True),
        (drifts, r"first and second half .* \('row': its readings change", True),
        (quieter, "its noise change with time", True),
        (one_state_again, "10 of 600 readings are exact repeats of others: as good as 590", True),
        (ended, "5 episodes repeat one reading to their end, first at line 5", False),
        (
            lambda x: x[3, 0].fill_(-897.1),
            "1 readings lie off the grid, the first 'row' = -897.1 at line 17",
            False,
        ),
    ],
)
def test_what_is_odd_is_told_with_its_place(change, text, doubt):
    findings = [finding for finding in found(changed(change)) if re.search(text, finding.text)]
    assert findings and all(finding.doubt == doubt for finding in findings)


def test_actions_one_row_late():
    log = good_log()
    actions = log.actions.roll(1, 1)
    actions[:, 0] = 0
    rows = torch.randperm(len(log), generator=torch.Generator().manual_seed(0))
    texts = [f.text for f in found(Recording(actions[rows], log.x[rows], log.length[rows]))]
    assert any("when actions are read one row later" in text for text in texts)


def test_short_episodes_and_few_readings():
    log = good_log(n=6)
    for n in (1, 2, 3, len(log)):
        assert not found(Recording(log.actions[:n], log.x[:n], log.length[:n]))
    lengths = torch.arange(len(log)) % GRAPH.horizon + 1
    assert not found(Recording(log.actions, log.x, lengths))
    assert not found(Recording.empty(GRID.spec))
    log.x[3, 0] = -897.1  # one of a few, as chance makes of one of a hundred
    (off,) = found(Recording(log.actions[:5], log.x[:5], log.length[:5]))
    assert "1 readings lie off the grid" in off.text and not off.doubt


# -- causes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x: x * [1000, 1], "1000 times as large"),
        (lambda x: x * [180 / np.pi, 1], "57.3 or 100 times as large"),
        (lambda x: x[:, ::-1], "'angle' and 'height' under each other's names"),
        (lambda x: x + [2 * np.pi, 0], "wrapped elsewhere: 2 pi"),
        (lambda x: x - [360, 0], "wrapped elsewhere: 360"),
        (lambda x: np.stack([(x[:, 0] * 700 + 2100).round(), x[:, 1]], 1), "raw counts of a converter"),
        (lambda x: np.stack([x[:, 0].byteswap(), x[:, 1]], 1), "another byte order"),
        (lambda x: np.where(np.arange(200)[:, None] < 100, x, x + [50, 0]), "a change half-way"),
    ],
)
def test_causes(change, cause):
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(-3, 3, 200), rng.uniform(10, 20, 200)], 1)
    assert re.search(cause, off_range(change(x), 0, (-3.0, 10.0), (3.0, 20.0), ("angle", "height")))
