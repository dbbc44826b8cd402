"""A Ray cluster of local node processes, some of which are killed in the middle: the same results and counts."""

import os
import signal
import subprocess

import pytest
import torch
from support import tasks
from support.smoke import small_settings

from s2r_torch.episodes import Ledger, observe
from s2r_torch.errors import SimulatorError
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.progress import Silent
from s2r_torch.reports.summary import Summary
from s2r_torch.rng import Seed
from s2r_torch.runs.run import execute
from s2r_torch.workers.simulators import in_parts, map_simulators

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own: open sockets, old interfaces
SEED = Seed.root(0)


@pytest.fixture(scope="module")
def local():
    """A cluster of three node processes: a head that keeps no task, and two that work."""
    import ray
    from ray.cluster_utils import Cluster as LocalNodes

    tests = os.path.dirname(os.path.dirname(__file__))
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(tests), tests, before])
    local = LocalNodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        local.add_node(num_cpus=1)
    ray.init(address=local.address, log_to_driver=False, logging_level="ERROR")
    yield local
    ray.shutdown()
    local.shutdown()
    os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def cluster(local):
    from s2r_torch.workers.cluster import Cluster

    return Cluster()


def test_in_order_with_news_and_errors(cluster):
    heard = []
    assert list(cluster.map(tasks.power, 2, range(6), heard.append)) == [1, 2, 4, 8, 16, 32]
    assert heard == [("asked", k) for k in range(6)]
    with pytest.raises(SimulatorError, match="got 5"):
        list(cluster.map(tasks.fails_at_three, None, [0, 5, 4]))


@pytest.mark.slow
def test_a_node_killed_in_the_middle_changes_nothing(cluster, local):
    """SIGKILL to everything of one node while its parts are in work; they are done again on the other ones."""
    draws = Draws(make_family("grid"), SEED, Ledger(), cluster)
    simulators, killed = draws.simulators("test", 160), []

    class Killing:
        cpu_seconds = 0.0

        def map(self, task, shared, payloads):
            for number, result in enumerate(cluster.map(task, shared, payloads)):
                if number == 1:
                    killed.append(lose_a_node(local))
                yield result

    simulators.workers = Killing()
    found = torch.cat(map_simulators(tasks.slowly_seen, in_parts(simulators), (0,), 5, SEED))
    assert killed and draws.ledger.counts == {"test": 160 * 5}
    assert torch.equal(found, observe(simulators, (0,), 5, SEED))


class Striking(Silent):
    """A cluster that loses a node in the middle of every stage that hands work on."""

    cpu_seconds, threads = 0.0, 1

    def __init__(self, cluster, local):
        self.cluster, self.local, self.now, self.struck = cluster, local, "", []

    def stage(self, name, total):
        self.now = name.split(" ")[0].rstrip(":")

    def map(self, task, shared, payloads, hear=lambda news: None):
        for result in self.cluster.map(task, shared, payloads, hear):
            if self.now not in self.struck and len(payloads) > 1:
                self.struck.append(self.now)
                lose_a_node(self.local)
            yield result

    def start(self, task):
        pass

    def close(self):
        pass


@pytest.mark.slow
def test_a_node_killed_in_every_stage_changes_nothing(cluster, local):
    """A whole run, to the last digit of its summary."""
    striking = Striking(cluster, local)
    settings = small_settings("+experiment=grid", "predictors.calibration.simulators=32")
    found = execute(settings, make_family("grid"), progress=striking, workers=striking)
    assert {"explore", "draw", "train", "calibrate", "certify", "deploy", "evaluate"} <= set(striking.struck)
    alone = execute(settings, make_family("grid"))
    assert without_seconds(found) == without_seconds(alone)


def without_seconds(results) -> dict:
    return {k: v for k, v in Summary.of(results).to_json().items() if k not in ("seconds", "cpu_seconds")}


def lose_a_node(local) -> int:
    """Ends the process of a working node, and with it its workers, without a word; another one joins."""
    node = next(iter(local.worker_nodes))
    process = node.all_processes["raylet"][0].process
    children = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True).stdout
    for pid in [process.pid, *map(int, children.split())]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    local.worker_nodes.discard(node)
    local.add_node(num_cpus=1)
    return process.pid


def test_ray_takes_no_signal_of_a_script(monkeypatch):
    """Its own handler ends the process with code 15, where a script says 143 and what is kept."""
    import ray

    from s2r_torch.workers.cluster import Cluster

    def ours(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, ours)
    try:
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, lambda *_: None))
        Cluster()
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)
