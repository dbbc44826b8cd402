"""Real episodes are scarce: what was seen is kept, whatever happens, and never drawn again."""

import json

import pytest
import torch
from support.logs import COVER, GRAPH, WORLD
from support.worlds import policy_of, random_class

from s2r_torch.deployment.collection import Collector
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.logbook import Logbook
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import read_recording
from s2r_torch.episodes import GuardedWorld, Ledger
from s2r_torch.errors import ObservationError, RecordingError, SettingError, SimulatorError

META = policy_of(WORLD, random_class(WORLD, 3, 0), n_real=20)
CALLS = GRAPH.horizon * len(COVER)  # of a world that runs any number of episodes at once


class Flaky:
    """A world that fails in its k-th call, counted from 0."""

    def __init__(self, fail_at, error=KeyboardInterrupt, seed=0, episodes_at_once=None):
        self.inner, self.spec = WORLD.world(0.1, seed), WORLD.spec
        self.left, self.error, self.episodes_at_once = fail_at, error, episodes_at_once
        self.sizes = []

    def reset(self, n):
        self.sizes.append(n)
        return self._call(self.inner.reset, n)

    def step(self, actions):
        return self._call(self.inner.step, actions)

    def _call(self, method, argument):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return method(argument)


@pytest.mark.parametrize("fail_at", range(CALLS))
def test_whatever_was_seen_is_saved_and_gone_on_from(tmp_path, fail_at):
    path = tmp_path / "real.csv"
    logbook = Logbook(path, WORLD.spec)
    with pytest.raises(KeyboardInterrupt):
        deploy(META, Flaky(fail_at), logbook.ledger, recording=logbook.recording, save=logbook.save)
    readings = fail_at * 20
    seen = Logbook(path, WORLD.spec)
    assert int(seen.recording.length.sum()) == readings
    begun = fail_at // GRAPH.horizon + (fail_at % GRAPH.horizon > 0)
    assert seen.ledger.counts["real"] == logbook.ledger.counts["real"] >= 20 * begun

    world = Flaky(10**6, seed=1)
    deployed = deploy(META, world, seen.ledger, recording=seen.recording, save=seen.save)
    whole = fail_at // GRAPH.horizon  # sequences that were finished
    assert world.sizes == [20] * (len(COVER) - whole)
    assert (deployed.used == 20).all() and len(
        read_recording(path, WORLD.spec, short_episodes=True)
    ) == deployed.episodes


def test_nothing_is_drawn_when_all_is_there(tmp_path):
    logbook = Logbook(tmp_path / "real.npz", WORLD.spec)
    first = deploy(META, Flaky(10**6), logbook.ledger, recording=logbook.recording, save=logbook.save)
    again = Logbook(tmp_path / "real.npz", WORLD.spec)
    second = deploy(META, Flaky(0), again.ledger, recording=again.recording)  # would raise in its first call
    assert torch.equal(first.D_real, second.D_real) and again.ledger.counts["real"] == 20 * len(COVER)


@pytest.mark.parametrize("error", [OSError("cable"), RuntimeError("emergency stop")])
def test_a_world_that_fails_loses_nothing(tmp_path, error):
    logbook = Logbook(tmp_path / "real.csv", WORLD.spec)
    with pytest.raises(SimulatorError, match=str(error)):
        deploy(META, Flaky(6, error), logbook.ledger, recording=logbook.recording, save=logbook.save)
    assert int(Logbook(tmp_path / "real.csv", WORLD.spec).recording.length.sum()) == 6 * 20


def test_one_robot_runs_one_episode_after_another():
    world = Flaky(10**6, episodes_at_once=1)
    ledger = Ledger()
    deployed = deploy(META, world, ledger)
    assert world.sizes == [1] * (20 * len(COVER)) and ledger.counts == {"real": 20 * len(COVER)}
    assert (deployed.used == 20).all()
    few = Flaky(10**6, episodes_at_once=7)
    deploy(META, few)
    assert few.sizes == [7, 7, 6] * len(COVER)


def test_a_broken_sensor_loses_nothing_before_it(tmp_path):
    logbook = Logbook(tmp_path / "real.csv", WORLD.spec)
    world = Flaky(10**6, episodes_at_once=1)
    step = world.step
    world.step = lambda actions: step(actions) * (torch.nan if len(world.sizes) == 9 else 1)
    with pytest.raises(ObservationError, match="NaN"):
        deploy(META, world, logbook.ledger, recording=logbook.recording, save=logbook.save)
    recording = Logbook(tmp_path / "real.csv", WORLD.spec).recording
    assert recording.length.tolist() == [GRAPH.horizon] * 8 + [1]


def test_the_ledger(tmp_path):
    path = tmp_path / "real.csv"
    logbook = Logbook(path, WORLD.spec)
    Collector(GuardedWorld(WORLD.world(0.1, 0), logbook.ledger), GRAPH, COVER, save=logbook.save).until(4)
    logbook.note(status="complete")
    entry = json.loads((tmp_path / "real.csv.ledger.json").read_text())
    assert entry["real_episodes"] == entry["recorded_episodes"] == 4 * len(COVER) and entry["status"] == "complete"
    assert entry["by_actions"] == {" ".join(map(str, path)): 4 for path in COVER}

    (tmp_path / "real.csv.ledger.json").write_text('{"real_episodes": 99}')  # some were lost
    assert Logbook(path, WORLD.spec).ledger.counts["real"] == 99
    (tmp_path / "real.csv.ledger.json").unlink()
    assert Logbook(path, WORLD.spec).ledger.counts["real"] == 4 * len(COVER)
    (tmp_path / "real.csv.ledger.json").write_text("{")
    with pytest.raises(RecordingError, match="delete it to count the recorded episodes alone"):
        Logbook(path, WORLD.spec)
    with pytest.raises(SettingError, match="ends in .csv"):
        Logbook(tmp_path / "real.xlsx", WORLD.spec)


def test_a_collector_goes_on_where_it_was():
    world = Flaky(10**6)
    collector = Collector(GuardedWorld(world, Ledger()), GRAPH, COVER)
    for n in (3, 5, 5, 9):
        recording = collector.until(n)
        assert bool((recording.counts(GRAPH) >= n).all()) and len(recording) == n * len(COVER)
    assert isinstance(recording, Recording) and world.sizes == [3] * len(COVER) + [2] * len(COVER) + [4] * len(COVER)


def test_readings_off_the_grid_end_the_search_at_once():
    """Metres instead of millimetres: seen in the first readings, so no further episode is spent."""
    ledger, inner = Ledger(), WORLD.world(0.2, seed=1)

    class InMillimetres:
        spec = inner.spec

        def reset(self, n):
            return 1000 * inner.reset(n)

        def step(self, actions):
            pytest.fail("a step after readings that cannot be used")

    with pytest.raises(ObservationError, match="off the grid"):
        deploy(META, InMillimetres(), ledger)
    assert ledger.counts["real"] == META.n_real and len(META.cover) > 1
