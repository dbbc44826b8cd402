"""torch's global defaults are the user's: they change no bit of what is loaded, decided or exported."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support.optional import needs
from support.policies import policy_of
from support.smoke import SMALL, composed

from s2r_torch.defaults import defaults_now, plain_torch, torch_with
from s2r_torch.deployment.deploy import deploy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import read_recording, write_recording
from s2r_torch.errors import SettingError
from s2r_torch.families import FAMILIES, make_family
from s2r_torch.registry import import_plugins
from s2r_torch.reports.files import write_reports
from s2r_torch.runs.configuring import configured
from s2r_torch.runs.run import execute

ROOT = Path(__file__).resolve().parents[1]

USED = """
import hashlib, sys, warnings
warnings.simplefilter("error")
import torch

torch.set_default_dtype(torch.float64)  # before anything is imported, as a robot's stack may
import s2r_torch
from s2r_torch.deployment.deploy import deploy_recorded
from s2r_torch.deployment.export import export_policy
from s2r_torch.deployment.policy_file import load_policy, load_policy_file, save_policy
from s2r_torch.deployment.recording.episodes import Recording

checkpoint, folder, cpu = *sys.argv[1:3], torch.device("cpu")
with cpu:
    x = 2 * torch.rand(9, 100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    episodes = Recording(
        torch.tensor([[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]]).repeat_interleave(100, 0),
        2 * torch.rand(300, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        torch.full((300,), 5),
    )

def digest_of(*found):
    digest = hashlib.sha256()
    for t in found:
        digest.update(repr((t.dtype, t.shape)).encode())
        digest.update(t.detach().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()

def use(change, exported):
    policy = load_policy(checkpoint)
    change()  # a policy that was loaded before is the same as one that is loaded now
    for policy in (policy, load_policy(checkpoint)):
        acting = policy.condition_on(list(x))
        found = [t for group in policy.ensemble.groups for _, t in sorted(group.tensors().items())]
        found.append(policy.densities(list(x)))
        for readings in (x[0], x[0].float()):
            for step in range(5):
                found += [acting.q(step, readings), acting.act(step, readings)]
        deployed = deploy_recorded(policy, episodes, refuse=False)
        certificate = load_policy_file(checkpoint).certificate
        save_policy(folder + "/again", policy, certificate=certificate)
        saved = hashlib.sha256(open(folder + "/again", "rb").read()).hexdigest()
        yield digest_of(*found, deployed.D_real), saved, str(deployed.likeness), certificate.page()
    if exported:
        export_policy(acting, folder + "/policy.pt2")
        with cpu:
            program = torch.export.load(folder + "/policy.pt2").module()
            assert torch.equal(program(torch.tensor(1), x[0].float())[1], acting.q(1, x[0].float()))

def plain():
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float32)

dtypes = (torch.float64, torch.float16, torch.bfloat16)
changes = [lambda dtype=dtype: torch.set_default_dtype(dtype) for dtype in dtypes]
changes += [lambda: torch.set_default_device("meta"), plain]
for i, change in enumerate(changes):
    for result in use(change, exported=i in (0, 3)):
        print(result)
"""


@pytest.mark.slow
def test_loading_acting_exporting_and_saving_are_the_same_to_the_bit(tmp_path):
    command = [sys.executable, "-c", USED, str(ROOT / "checkpoints" / "grid.safetensors"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = done.stdout.splitlines()
    assert len(results) == 10 and "CERTIFICATE" in results[0]
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_familys_worlds_and_simulators_are_the_same(name, device):
    needs(name)
    still = torch.zeros(2, 3, dtype=torch.int64)

    def drawn():
        family, numbers = make_family(name), [torch.Generator().manual_seed(i) for i in range(4)]
        theta = family.prior(2, numbers[0])
        world, simulators = family.world(theta[0], numbers[1]), family.simulators(theta, range(2))
        found = [theta, world.reset(3), world.step(still[0]), simulators.reset(3, numbers[2:])]
        return [*found, *simulators.step(still)]

    before = drawn()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device(device):
            found = drawn()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, found, before))


def test_settings_are_checked_under_any_defaults():
    config = OmegaConf.to_container(composed(*SMALL), resolve=True)
    try:
        torch.set_default_dtype(torch.float64)
        assert configured(config)[1].name == "grid"
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_log_is_the_same(tmp_path):
    spec, path = make_family("grid").spec, tmp_path / "log.csv"
    log = Recording.of((0, 0, 0, 0), [torch.rand(3, 2, dtype=torch.float64) for _ in range(5)])
    with torch.device("meta"):
        write_recording(path, log, spec)
        found = read_recording(path, spec)
    assert torch.equal(found.x, log.x) and torch.equal(found.actions, log.actions)


@pytest.mark.slow
def test_a_run_under_other_defaults_is_the_same(tmp_path):
    config = OmegaConf.to_container(composed(*SMALL), resolve=True)
    before = policy_bits(config, tmp_path / "plain")
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            found = policy_bits(config, tmp_path / "other")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == before


def policy_bits(config, folder) -> list[bytes]:
    folder.mkdir()
    results = execute(*configured(config))
    write_reports(results, folder)
    tensors = (group.tensors() for group in results.meta_policy.ensemble.groups)
    return [value.detach().numpy().tobytes() for found in tensors for _, value in sorted(found.items())]


class Telling:
    """A world of the grid that notes the defaults that it is called with."""

    def __init__(self):
        family = make_family("grid")
        theta = family.prior(1, torch.Generator().manual_seed(0))[0]
        self.inner, self.found = family.world(theta, torch.Generator().manual_seed(1)), set()
        self.spec = self.inner.spec

    def reset(self, n):
        return self.told(self.inner.reset, n)

    def step(self, actions):
        return self.told(self.inner.step, actions)

    def told(self, call, given):
        self.found.add((torch.get_default_dtype(), torch.get_default_device().type))
        with plain_torch():
            return call(given)


def test_a_live_world_finds_its_users_defaults_and_they_change_no_bit():
    plain, policy = Telling(), policy_of()
    before = deploy(policy, plain, check="edges")
    try:
        theirs = Telling()
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            found = deploy(policy, theirs, check="edges")
    finally:
        torch.set_default_dtype(torch.float32)
    assert plain.found == {(torch.float32, "cpu")} and theirs.found == {(torch.float64, "meta")}
    assert torch.equal(found.D_real, before.D_real) and str(found.edges) == str(before.edges)


def test_a_plugin_changes_no_default(tmp_path, monkeypatch):
    (tmp_path / "greedy_plugin.py").write_text(
        "import torch; torch.set_default_dtype(torch.float64); torch.set_default_device('meta')"
    )
    (tmp_path / "rude_plugin.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    import_plugins(["greedy_plugin"])
    assert torch.ones(1).dtype == torch.float32 and torch.ones(1).device.type == "cpu"
    with pytest.raises(SettingError, match="an importable module 'rude_plugin'; got SystemExit: 0"):
        import_plugins(["rude_plugin"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_users_defaults_are_theirs_again_afterwards(dtype):
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            with plain_torch():
                assert torch.ones(1).dtype == torch.float32 and torch.ones(1).device.type == "cpu"
            with pytest.raises(KeyError), plain_torch():
                raise KeyError
            assert torch.ones(1).dtype == dtype and torch.ones(1).device.type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_beside_each_other_leave_users_defaults():
    """The first to come is the first to go, and the second computes on."""
    entered, left, found = threading.Event(), threading.Event(), []

    def second():
        with plain_torch():
            entered.set()
            left.wait(60)
            found.append((torch.get_default_dtype(), defaults_now()[0]))
        found.append(torch.get_default_dtype())

    thread = threading.Thread(target=second)
    try:
        torch.set_default_dtype(torch.float64)
        with plain_torch():
            thread.start()
            entered.wait(60)
        seen = defaults_now()[0]
        left.set()
        thread.join(60)
        assert seen == torch.float64  # what a live world that is made now is to find
        assert found == [(torch.float32, torch.float32), torch.float64]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_thread_that_computes_finds_float32_whatever_worlds_of_others_ask_for():
    entered, seen = threading.Event(), []

    def world():
        with plain_torch(), torch_with(torch.float64, torch.device("cpu")):
            seen.append(torch.get_default_dtype())
            entered.set()
        seen.append(torch.get_default_dtype())

    try:
        torch.set_default_dtype(torch.float64)
        with plain_torch():
            thread = threading.Thread(target=world)
            thread.start()
            while thread.is_alive():
                assert torch.ones(1).dtype == torch.float32
        assert entered.is_set() and seen == [torch.float32, torch.float32]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


FORKED = """
import os, select, threading, torch
from s2r_torch.defaults import defaults_now, plain_torch

torch.set_num_threads(2)
torch.set_default_dtype(torch.float64)
large = torch.rand(500, 500)
large @ large  # OpenMP's threads are there now
entered, leave = threading.Event(), threading.Event()

def inside():
    with plain_torch():
        entered.set()
        leave.wait(60)

threading.Thread(target=inside, daemon=True).start()
entered.wait(60)
end, other_end = os.pipe()
child = os.fork()
if child == 0:
    with plain_torch():
        large @ large
    os.write(other_end, str(torch.get_default_dtype()).encode())
    os._exit(0)
done = select.select([end], [], [], 60)[0]
leave.set()
os.kill(child, 9)
print(os.read(end, 40).decode() if done else "it waits for threads that it does not have")
"""


def test_a_forked_process_computes():
    found = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=150)
    assert found.stdout.strip() == "torch.float64", found.stderr
