"""Real episodes are scarce: what was seen is kept, whatever happens, and never drawn again."""

import importlib.util
import json

import pytest
import torch
from support.logs import COVER, GRAPH, WORLD
from support.worlds import policy_of, random_class

from s2r_torch.coverage import assigned, passages, passes
from s2r_torch.deployment.collection import Collection, Collector
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.live import GuardedWorld
from s2r_torch.deployment.logbook import ledger_of, open_logbook, read_log
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import read_recording
from s2r_torch.episodes import Ledger
from s2r_torch.errors import ObservationError, RecordingError, SettingError, SimulatorError

META = policy_of(WORLD, random_class(WORLD, 3, 0), n_real=20)
PARQUET = importlib.util.find_spec("pyarrow") is not None
FORMATS = ["csv", "npz", pytest.param("parquet", marks=pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra"))]
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


def go_on(path, world, **settings):
    """Deploys with a log; the deployment, or the error."""
    with open_logbook(path, WORLD.spec) as logbook:
        return deploy(META, world, logbook.ledger, recording=logbook.recording, keep=logbook.append, **settings)


def kept(path):
    return read_log(path, WORLD.spec, short_episodes=True, empty=True)


def drawn(path):
    return json.loads(ledger_of(path).read_text())["real_episodes"]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("fail_at", range(CALLS))
def test_whatever_was_seen_is_saved_and_gone_on_from(tmp_path, fail_at, ending):
    path = tmp_path / f"real.{ending}"
    with pytest.raises(KeyboardInterrupt):
        go_on(path, Flaky(fail_at))
    assert int(kept(path).length.sum()) == fail_at * 20
    begun = fail_at // GRAPH.horizon + 1  # sequences: also the one whose first call failed was counted before
    assert drawn(path) == 20 * begun

    world = Flaky(10**6, seed=1)
    deployed = go_on(path, world)
    whole = fail_at // GRAPH.horizon  # sequences that were finished
    assert world.sizes == [20] * (len(COVER) - whole)
    assert (
        torch.equal(deployed.used, 20 * passes(GRAPH, COVER))
        and len(read_recording(path, WORLD.spec, short_episodes=True)) == deployed.episodes
    )
    assert drawn(path) == 20 * (begun + len(world.sizes))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, ledger_of(path).name]


def test_nothing_is_drawn_when_all_is_there(tmp_path):
    path = tmp_path / "real.npz"
    first = go_on(path, Flaky(10**6))
    second = go_on(path, Flaky(0))  # would raise in its first call
    assert torch.equal(first.D_real, second.D_real)
    assert drawn(path) == 20 * len(COVER)


@pytest.mark.parametrize("error", [OSError("cable"), RuntimeError("emergency stop"), SystemExit(0)])
def test_a_world_that_fails_loses_nothing(tmp_path, error):
    with pytest.raises(SimulatorError, match=str(error)):
        go_on(tmp_path / "real.csv", Flaky(6, error))
    assert int(kept(tmp_path / "real.csv").length.sum()) == 6 * 20


def test_one_robot_runs_one_episode_after_another():
    world = Flaky(10**6, episodes_at_once=1)
    ledger = Ledger()
    deployed = deploy(META, world, ledger)
    assert world.sizes == [1] * (20 * len(COVER)) and ledger.counts == {"real": 20 * len(COVER)}
    assert torch.equal(deployed.used, 20 * passes(GRAPH, COVER))
    few = Flaky(10**6, episodes_at_once=7)
    deploy(META, few)
    assert few.sizes == [7, 7, 6] * len(COVER)


def test_a_broken_sensor_loses_nothing_before_it(tmp_path):
    world = Flaky(10**6, episodes_at_once=1)
    step = world.step
    world.step = lambda actions: step(actions) * (torch.nan if len(world.sizes) == 9 else 1)
    with pytest.raises(ObservationError, match="NaN.*sensor 'x_1' shows nan at step 1 of real episode 9"):
        go_on(tmp_path / "real.csv", world)
    recording = kept(tmp_path / "real.csv")
    assert recording.length.tolist() == [GRAPH.horizon] * 8 + [1]


def test_the_ledger(tmp_path):
    path = tmp_path / "real.csv"
    with open_logbook(path, WORLD.spec) as logbook:
        Collector(GuardedWorld(WORLD.world(0.1, 0), logbook.ledger), GRAPH, COVER, keep=logbook.append).until(4)
        logbook.note(status="complete")
    entry = json.loads((tmp_path / "real.csv.ledger.json").read_text())
    assert entry["real_episodes"] == entry["recorded_episodes"] == 4 * len(COVER) and entry["status"] == "complete"
    assert entry["by_actions"] == {" ".join(map(str, path)): 4 for path in COVER}

    def counted():
        with open_logbook(path, WORLD.spec) as logbook:
            return logbook.ledger.counts["real"]

    (tmp_path / "real.csv.ledger.json").write_text('{"real_episodes": 99}')  # some were lost
    assert counted() == 99
    (tmp_path / "real.csv.ledger.json").unlink()
    assert counted() == 4 * len(COVER)
    for text in ("{", "[]", '{"real_episodes": -1}', '{"real_episodes": true}', '{"real_episodes": 1e400}', 9999 * "["):
        (tmp_path / "real.csv.ledger.json").write_text(text)
        with pytest.raises(RecordingError, match="delete it to count the recorded episodes alone"):
            counted()
    path = tmp_path / "real.xlsx"
    with pytest.raises(SettingError, match="ends in .csv"):
        counted()


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


@pytest.mark.parametrize("seed", range(4))
def test_passages_have_readings_of_episodes_that_follow_their_path_so_far(seed):
    """Of a log of any actions, cut anywhere: against a loop over episodes."""
    g = torch.Generator().manual_seed(seed)
    N, H, n = 60, GRAPH.horizon, 4
    actions = torch.randint(GRAPH.num_actions, (N, H - 1), generator=g)
    actions[::2] = torch.tensor(COVER)[torch.arange(N // 2) % len(COVER)]
    length = torch.randint(1, H + 1, (N,), generator=g)
    recording = Recording(actions, torch.arange(N * H).double().view(N, H, 1), length)
    owner = [(s, COVER[int(i)]) for s, i in enumerate(assigned(GRAPH, COVER))]
    taken, found = set(), []
    for s, path in owner + [(s, COVER[i]) for s, i in passages(GRAPH, COVER)]:
        step = int(GRAPH.layer[s])
        rows = [i for i in range(N) if tuple(actions[i, :step].tolist()) == path[:step] and int(length[i]) > step]
        rows = [i for i in rows if (i, step) not in taken][:n]
        taken |= {(i, step) for i in rows}
        found.append([i * H + step for i in rows])
    seen = Collection.of(recording, GRAPH, COVER, n)
    for readings, own in zip(seen.observations, found, strict=False):
        assert readings[:, 0].tolist()[: len(own)] == own
    lent = {int(x) for readings in seen.observations for x in readings}
    again = [[x for x in rows if x not in lent] for rows in found[GRAPH.num_states :]]
    assert [readings[:, 0].tolist() for readings in seen.again] == again
