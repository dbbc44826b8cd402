"""Recorded episodes: whatever sequences they followed, each reading counts for the state that its actions lead to."""

import pytest
import torch
from support.logs import COVER, GRAPH, WORLD, along_cover, random_paths, record
from support.worlds import policy_of, random_class

from s2r_torch.coverage import passages, passes
from s2r_torch.deployment.collection import Collection, missing_episodes
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.errors import RecordingError
from s2r_torch.graph import after, spelt


def test_every_reading_counts_for_the_state_that_its_actions_lead_to():
    paths = random_paths(60)
    recording = record(paths)
    expected = [[] for _ in range(GRAPH.num_states)]
    for i, path in enumerate(paths):
        for step in range(GRAPH.horizon):
            expected[GRAPH.end(tuple(path[:step]))].append(recording.x[i, step])
    assert recording.counts(GRAPH).tolist() == [len(e) for e in expected]
    for most in (None, 3):
        for sample, e in zip(recording.samples(GRAPH, most), expected, strict=True):
            assert torch.equal(sample, torch.stack(e)[:most])


def test_interrupted_episodes_count_as_far_as_they_went():
    recording = record(random_paths(5))
    cut = Recording(recording.actions, recording.x, torch.tensor([4, 3, 2, 1, 1]))
    states = cut.states(GRAPH)
    assert ((states >= 0).sum(1) == cut.length).all()
    assert int(cut.counts(GRAPH).sum()) == 11 and int(cut.counts(GRAPH)[0]) == 5


def test_how_far_episodes_show_a_path():
    """As counted step by step; some were interrupted."""
    paths = random_paths(40)
    recording = record(paths)
    cut = Recording(recording.actions, recording.x, torch.arange(40) % GRAPH.horizon + 1)
    for wanted in (tuple(paths[0]), tuple(paths[7][:2]), ()):
        for path, length, shown in zip(paths, cut.length.tolist(), cut.shows(wanted).tolist(), strict=True):
            alike = 0
            while alike < min(len(wanted), length - 1) and path[alike] == wanted[alike]:
                alike += 1
            assert shown == alike


def test_actions_beyond_the_end_say_nothing():
    recording = record(random_paths(1))
    odd = Recording(torch.full_like(recording.actions, 99), recording.x, torch.tensor([1]))
    assert odd.states(GRAPH).tolist() == [[0, -1, -1, -1]]


@pytest.mark.parametrize(
    ("actions", "length", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([4, 4]), "H - 1 actions"),
        (torch.zeros(2, 3), torch.tensor([4]), r"lengths \[2\]"),
        (torch.zeros(2, 3), torch.tensor([4, 5]), "another horizon"),
        (torch.zeros(2, 3), torch.tensor([0, 4]), "another horizon"),
    ],
)
def test_sizes_must_agree(actions, length, message):
    with pytest.raises(RecordingError, match=message):
        Recording(actions.long(), torch.zeros(2, 4, 1), length)


def test_readings_that_gradients_are_taken_of_are_readings():
    log = record(random_paths(20))
    taken = Recording(log.actions, log.x.clone().requires_grad_(), log.length)
    assert not taken.x.requires_grad and torch.equal(taken.x, log.x)


def test_nothing_recorded():
    nothing = Recording.empty(WORLD.spec)
    assert len(nothing) == 0 and nothing.counts(GRAPH).tolist() == [0] * GRAPH.num_states
    one = record(random_paths(1))
    assert len(Recording.joined([nothing, one, nothing])) == 1 and len(Recording.joined([nothing, nothing])) == 0


def test_paths_in_words():
    assert spelt((0, 1, 1)) == "0 1 1" and after(()) == "at the start" and after((1, 0)) == "after actions 1 0"


# -- what Deploy takes of it ------------------------------------------------------------------------------------------


def test_episodes_along_the_cover_give_each_state_one_sequence_and_each_passage_its_own():
    recording, n = along_cover(6), 6
    seen = Collection.of(recording, GRAPH, COVER, n)
    owner = [next(i for i, path in enumerate(COVER) if s in visited(path)) for s in range(GRAPH.num_states)]
    for s, x in enumerate(seen.observations):
        start = owner[s] * n
        assert torch.equal(x, recording.x[start : start + n, int(GRAPH.layer[s])])
    for (s, i), x in zip(passages(GRAPH, COVER), seen.again, strict=True):
        assert torch.equal(x, recording.x[i * n : i * n + n, int(GRAPH.layer[s])])


def visited(path):
    return [GRAPH.end(path[:step]) for step in range(GRAPH.horizon)]


@pytest.mark.parametrize("seed", range(4))
def test_no_reading_is_used_twice(seed):
    seen = Collection.of(record(random_paths(80, seed)), GRAPH, COVER, 9)
    values = torch.cat([x.flatten() for x in [*seen.observations, *seen.again]])
    assert len(values.unique()) == len(values)
    assert all(len(x) <= 9 for x in [*seen.observations, *seen.again])


@pytest.mark.parametrize("n", [1, 5, 20, 200])
def test_a_state_takes_readings_from_other_sequences_where_its_own_are_missing(n):
    """As many as there are, whatever that leaves for passages."""
    recording = record(random_paths(80, 1))
    counts = recording.counts(GRAPH)
    seen = Collection.of(recording, GRAPH, COVER, n)
    assert [len(x) for x in seen.observations] == counts.clamp(max=n).tolist()
    values = torch.cat([x.flatten() for x in [*seen.observations, *seen.again]])
    assert len(values.unique()) == len(values)


def test_missing_episodes():
    empty, n = Recording.empty(WORLD.spec), 7
    assert missing_episodes(empty, GRAPH, COVER, n) == tuple((path, n) for path in COVER)
    some = record([COVER[0]] * 5)
    assert missing_episodes(some, GRAPH, COVER, n) == ((COVER[0], 2), *((path, n) for path in COVER[1:]))
    assert missing_episodes(along_cover(7), GRAPH, COVER, n) == ()


def test_missing_episodes_of_a_log_that_went_its_own_ways_are_the_fewest():
    recording, n = record(random_paths(20, 3)), 12
    missing = missing_episodes(recording, GRAPH, COVER, n)
    more = record([path for path, count in missing for _ in range(count)], seed=1)
    assert bool((Recording.joined([recording, more]).counts(GRAPH) >= n).all())
    assert sum(count for _, count in missing) < sum(
        count for _, count in missing_episodes(Recording.empty(WORLD.spec), GRAPH, COVER, n)
    )


def test_a_policy_conditions_on_a_recording():
    meta = policy_of(WORLD, random_class(WORLD, 2, 0), n_real=30)
    recording = along_cover(40)
    x = recording.x[:10, 0]
    expected = meta.condition_on(recording.samples(GRAPH, 30 * passes(GRAPH, COVER)))
    assert torch.equal(meta.condition_on(recording).q(0, x), expected.q(0, x))
