"""Workers of every kind give what this process gives: results, bits, counts, errors, in order and exactly once."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from joblib.externals import loky
from joblib.externals.loky.backend import resource_tracker
from support import tasks
from torch import nn

from s2r_torch.density.patches import dense
from s2r_torch.encoders import encoding
from s2r_torch.encoders.views import Views
from s2r_torch.episodes import Ledger, observe
from s2r_torch.errors import SettingError, SimulatorError
from s2r_torch.families import make_family
from s2r_torch.families.draws import Draws
from s2r_torch.families.encoded import EncodedFamily
from s2r_torch.families.grid import Grid
from s2r_torch.families.recipe import recipe_of, require_travel
from s2r_torch.learning.estimator import DensitySettings, make_estimator
from s2r_torch.learning.exploration import explore
from s2r_torch.learning.merging import MergeSettings
from s2r_torch.rng import Seed
from s2r_torch.runs.origin import origin_of
from s2r_torch.runs.settings import RunSettings
from s2r_torch.signals import ENDING
from s2r_torch.workers.choice import workers_of
from s2r_torch.workers.engines import SERIAL, Made, Serial, unheard
from s2r_torch.workers.parcels import pack, unpack
from s2r_torch.workers.processes import MANAGER, Processes, _killing
from s2r_torch.workers.simulators import AT_ONCE, in_parts, map_simulators

SEED, ROOT = Seed.root(0), Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def two():
    workers = Processes(2)
    yield workers
    workers.close()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(12.0).view(3, 4)[:, 1:3],
        torch.zeros(3, 0),
        torch.tensor(3),
        torch.ones(1).expand(5, 2),
        torch.tensor([True, False]),
        torch.ones(4, dtype=torch.float64, requires_grad=True),
    ],
)
def test_tensors_travel_with_their_layout(tensor):
    found = unpack(pack({"it": tensor}))["it"]
    assert torch.equal(found, tensor) and found.dtype == tensor.dtype and found.requires_grad == tensor.requires_grad
    if tensor.numel() and 0 not in tensor.stride():
        assert found.is_contiguous() == (tensor.is_contiguous() or tensor.shape == (3, 2))  # a part of rows is dense


def test_a_view_travels_without_what_it_is_a_view_of():
    whole = torch.rand(10000, 8)
    assert sum(part.nbytes for part in pack(whole[:4]).body) == 4 * 8 * 4
    net = nn.Linear(3, 4)
    found = unpack(pack(net))
    assert isinstance(found.weight, nn.Parameter) and torch.equal(found.weight, net.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_of_a_tensor_that_is_mostly_zero_the_rest_travels_to_the_bit(dtype):
    tensor = torch.zeros(40, 1000, dtype=dtype)
    tensor[3:7, 100:110] = torch.arange(40).view(4, 10)
    if dtype.is_floating_point:
        tensor[9, :4] = torch.tensor([-0.0, torch.nan, torch.inf, 1e-42])
    for given in (tensor, tensor.T):
        parcel = pack(given)
        found = unpack(parcel)
        assert found.stride() == given.stride() and found.numpy().tobytes() == given.numpy().tobytes()
        assert sum(part.nbytes for part in parcel.body) < tensor.nbytes / 50
        found += 1  # it is the receiver's own


def test_a_closure_is_no_recipe():
    with pytest.raises(TypeError, match="no recipe"):
        pack(lambda: None)


def test_results_come_in_order_and_news_before_them(two):
    for workers in (SERIAL, two):
        heard, found = [], []
        for result in workers.map(tasks.power, 2, Made(abs, range(-9, 1)), heard.append):
            found.append(result)
            assert heard[-1] == ("asked", 10 - len(found))
        assert found == [2**k for k in range(9, -1, -1)] and len(heard) == 10


def test_large_tensors_are_shared_and_nothing_changes(two):
    base = torch.rand(400, 1000, dtype=torch.float64, generator=SEED.generator())
    for found, k in zip(two.map(tasks.power, base, [1, 2]), [1, 2], strict=True):
        assert torch.equal(found, base**k)


def test_the_first_failure_in_order_is_raised(two):
    for workers in (SERIAL, two):
        done = workers.map(tasks.fails_at_three, None, [0, 1, 2, 5, 4, 3])
        assert [next(done) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(SimulatorError, match="got 5; likely cause: a test"):
            next(done)


@pytest.mark.parametrize(
    ("name", "error", "told"), [(MANAGER, KeyError(17), 0), (MANAGER, OSError(), 1), ("x", KeyError(17), 1)]
)
def test_what_joblib_says_of_processes_that_are_killed_is_kept_back(name, error, told, monkeypatch):
    """Its own thread's KeyError, and nothing else."""
    heard = []
    monkeypatch.setattr(threading, "excepthook", heard.append)

    def fail():
        raise error

    with _killing():
        thread = threading.Thread(target=fail, name=name)
        thread.start()
        thread.join()
    assert len(heard) == told and threading.excepthook == heard.append


def test_warnings_and_threads_are_those_of_this_process(two):
    with pytest.warns(UserWarning, match="number 7"):
        found = list(two.map(tasks.warns, None, [7]))
    assert found == [torch.get_num_threads()]


def test_workers_begin_with_a_task_that_readies_them():
    """Each of two; one that dies of it is replaced, and whoever closes them need not have asked for anything."""
    workers = Processes(2)
    workers.start(tasks.readied)
    assert list(workers.map(tasks.power, 2, [])) == [] and workers.cpu_seconds > 0.1
    workers.start(tasks.dies_readied)
    assert list(workers.map(tasks.power, 2, [3])) == [8]
    workers.start(tasks.readied)
    workers.close()


def test_a_search_for_garbage_passes_over_what_modules_hold(two):
    """joblib has one done every second; it took an eighth of what workers did."""
    list(two.map(tasks.power, 2, range(8)))  # each has had a task
    assert max(two.map(tasks.looked_through, None, range(8))) < 0.2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do otherwise")
def test_workers_keep_the_memory_that_every_step_frees():
    """8 MB, freed and asked for again: 2048 pages of 4 kB each time, where they had been given back."""
    code = """
import os, resource
from s2r_torch.workers.beginning import begin
begin(os.getppid())
import torch
asked = []
for _ in range(10):
    several = [torch.zeros(2**18) for _ in range(8)]
    del several
    asked.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(asked[-1] - asked[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 9 * 2048 / 4  # of 18,432 without


def test_what_a_killed_worker_had_is_done_again(two, tmp_path):
    assert list(two.map(tasks.dies_once, tmp_path / "killed", range(6))) == list(range(6))
    assert (tmp_path / "killed").exists()


KILLED = """
import os, signal
from support import tasks
from s2r_torch.workers.processes import Processes
print(*Processes(2).map(tasks.process_of, None, range(8)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def running(process: int) -> bool:
    """Whether there is such a process, and it has not ended; somebody may still have to ask how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_cleans_up_is_deaf_to_all_that_a_terminal_sends(two):
    resource_tracker.ensure_running()
    status = Path(f"/proc/{resource_tracker._resource_tracker._pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    deaf = int(fields["SigBlk"], 16) | int(fields["SigIgn"], 16)
    assert {number for number in ENDING if not deaf >> (number - 1) & 1} == set()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*ENDING}  # this process hears them


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed():
    place = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command, environment = [sys.executable, "-c", KILLED], {**os.environ, "PYTHONPATH": place}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    workers, deadline = {int(word) for word in done.stdout.split()}, time.monotonic() + 20
    assert done.returncode == -signal.SIGKILL and workers, done.stderr
    while any(map(running, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(running, workers))


STOPPED = """
from support import tasks
from s2r_torch.workers.processes import Processes
two = Processes(2)
answers = two.map(tasks.for_so_long, None, [0.0, *[3600.0] * 8])
print(next(answers), flush=True)
two.close()  # as where whoever asked for answers was stopped between two of them
print("closed", flush=True)
"""


@pytest.mark.slow
def test_a_run_that_is_stopped_waits_for_no_task():
    """A stop ends workers in the middle of a task, and what waits to be handed on does not hold it up."""
    place = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command, environment = [sys.executable, "-c", STOPPED], {**os.environ, "PYTHONPATH": place}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split() == ["0.0", "closed"] and done.returncode == 0, done.stderr


# -- simulators -------------------------------------------------------------------------------------------------------


def drawn(workers, name="frozenlake", count=40, purpose="test"):
    """Readings of simulators in parts, and what the ledger says."""
    draws = Draws(make_family(name), SEED, Ledger(), workers)
    simulators = draws.simulators(purpose, count)
    path = (0,) * 2
    return torch.cat(map_simulators(tasks.seen, in_parts(simulators), path, 7, SEED)), draws.ledger, simulators


@pytest.mark.parametrize("name", ["grid", "frozenlake"])
def test_simulators_travel_as_recipes_and_their_episodes_are_counted_once(name, two):
    here, ledger, simulators = drawn(SERIAL, name)
    there, other, _ = drawn(two, name)
    assert torch.equal(here, there) and vars(ledger) == vars(other) and ledger.counts == Counter(test=40 * 7)
    assert torch.equal(here, observe(simulators, (0, 0), 7, SEED))  # and parts are the whole


def test_parts_do_not_depend_on_workers():
    simulators = Draws(make_family("grid"), SEED, Ledger()).simulators("test", 2 * AT_ONCE + 1)
    rows = torch.arange(len(simulators))
    assert [(len(part), own.tolist()[0]) for part, own in in_parts(simulators, rows)] == [(16, 0), (16, 16), (1, 32)]


def test_a_failing_simulator_is_named(two):
    for workers in (SERIAL, two):
        draws = Draws(make_family("grid"), SEED, Ledger(), workers)
        with pytest.raises(SimulatorError, match="the arm is stuck.*one of simulators 16, 17, 18, 19"):
            map_simulators(tasks.reset_of, in_parts(draws.simulators("test", 40)), 3, SEED)


@pytest.mark.slow
def test_a_simulator_that_kills_its_process_is_named(two):
    draws = Draws(make_family("grid"), SEED, Ledger(), two)
    with pytest.raises(SimulatorError, match="death, 3 times, in one of simulators 32, 33, 34, 35"):
        map_simulators(tasks.seen_unless, in_parts(draws.simulators("test", 40)), (), 3, SEED, 33)
    assert list(two.map(tasks.power, 2, [3])) == [8]  # others find workers as ever


def test_a_family_travels_with_the_encoder_that_it_is_seen_through(two):
    """Simulators and worlds elsewhere give the features that they give here, to the bit."""
    inner = make_family("grid")
    phi = encoding.made("pca", {"dim": 1}, inner.spec)
    phi.module.fit(Views(Draws(inner, SEED, Ledger()).simulators("encode", 8), SEED), SEED)
    family = EncodedFamily(inner, phi)
    require_travel(family, two)
    found = []
    for workers in (SERIAL, two):
        simulators = Draws(family, SEED, Ledger(), workers).simulators("test", 40)
        found.append(torch.cat(map_simulators(observe, in_parts(simulators), (0,), 3, SEED)))
    assert found[0].shape == (40, 3, 1) and torch.equal(*found)
    draws = unpack(pack(Draws(family, SEED, Ledger())))
    assert draws.world("test", 0, draws.theta("test", 1)[0]).reset(3).shape == (3, 1)


class Counting(Serial):
    """This process, and how many payloads each map has."""

    def __init__(self):
        self.payloads = []

    def map(self, task, shared, payloads, hear=unheard):
        self.payloads.append(len(payloads))
        return super().map(task, shared, payloads, hear)


def test_a_layer_of_paths_is_shared_and_the_graph_is_the_same(two):
    found, counting = {}, Counting()
    for name, workers in (("here", counting), ("there", two)):
        draws, visited = Draws(make_family("grid"), SEED, Ledger(), workers), []
        simulators = draws.simulators("explore", 20)
        estimator = make_estimator(DensitySettings(), simulators, 60, SEED)
        found[name] = explore(simulators, estimator, MergeSettings(), 60, SEED, visited.append), draws.ledger, visited
    (here, counted, seen), (there, also_counted, also_seen) = found.values()
    assert torch.equal(dense(here.D_hat), dense(there.D_hat)) and here.graph.paths == there.graph.paths
    assert here.visits == there.visits and seen == also_seen and vars(counted) == vars(also_counted)
    begun = [1, 1, 1, 1, 1]  # sequences of actions: at most 4 in a layer
    looked_at = [1, 1, 1, 2, 1]  # 1, 2, 4, 6 and 4 ends
    layers = [payloads for layer in zip(begun, looked_at, strict=True) for payloads in layer]
    assert counting.payloads == [*layers, 2]  # and 20 simulators


class GridByHand(Grid):
    """Nobody registered it."""

    name = "by_hand"


def test_a_family_that_nobody_can_make_again_is_refused_at_once(two):
    family = GridByHand()
    assert recipe_of(make_family("grid")) is not None
    require_travel(family, SERIAL)
    with pytest.raises(SettingError, match="a registered family.*got by_hand"):
        require_travel(family, two)


def test_a_setting_says_who_works_and_changes_no_result():
    assert workers_of(1) is SERIAL and workers_of(3).count == 3
    origins = [origin_of(RunSettings(workers=workers), make_family("grid")) for workers in (1, 2, "auto", "ray")]
    assert all(origin == origins[0] for origin in origins)
    with pytest.raises(SettingError, match="workers"):
        RunSettings(workers=0)
    with pytest.raises(SettingError, match="workers"):
        RunSettings(workers="dask")


@pytest.mark.parametrize("given", ["abc", "", "2.5"])
def test_a_variable_that_joblib_cannot_read_is_told_before_any_work(monkeypatch, given):
    for fine in ("4", " 4 ", "+4", "-1"):
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", fine)
        assert workers_of(2).count == 2 and loky.cpu_count() >= 1
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", given)
    with pytest.raises(ValueError):
        loky.cpu_count()
    with pytest.raises(SettingError, match="2 processes of joblib; got .*'LOKY_MAX_CPU_COUNT'"):
        workers_of(2)


@pytest.mark.parametrize(
    "variable", ["JOBLIB_MULTIPROCESSING=0", "JOBLIB_MULTIPROCESSING=abc", "JOBLIB_START_METHOD=x"]
)
def test_an_environment_without_processes_is_told_before_any_work(variable):
    """joblib reads these when it is imported, and would take threads in their place."""
    code = "from s2r_torch.workers.choice import workers_of; workers_of(2)"
    name, _, value = variable.partition("=")
    environment = {**os.environ, name: value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert "SettingError: expected 2 processes of joblib; got" in done.stderr and f"'{name}'" in done.stderr
