"""What is promised of a policy is promised through an encoder, too: of the same readings, shown as other numbers.

A linear map of 32 numbers hides a family of two (support/mixed.py); an encoder undoes it. So certificate, verdicts,
densities and actions must be those of the family itself, to the bit.
"""

import pytest
import torch
from support.mixed import Mixed, Plain, Unmix
from support.smoke import small_settings

from s2r_torch.density.patches import dense
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.likeness import CONSISTENT, REFUSED
from s2r_torch.deployment.logbook import open_logbook, read_log
from s2r_torch.deployment.policy_file import load_policy, load_policy_file
from s2r_torch.encoders import register_encoder
from s2r_torch.errors import UnlikeSimulatorsError
from s2r_torch.families.encoded import unencoded
from s2r_torch.rng import Seed
from s2r_torch.runs.run import execute

pytestmark = pytest.mark.slow
SIZES = ("certificate.simulators=12", "certificate.scores=500", "certificate.n_rollouts=8", "certificate.values=exact")

register_encoder("unmix")(Unmix)  # not where it stands: doctests import that file a second time


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Through the encoder, and without: results and policy file of each."""
    folders = [tmp_path_factory.mktemp(name) for name in ("mixed", "plain")]
    through = execute(small_settings("encoder=unmix", *SIZES), Mixed(), folders[0])
    direct = execute(small_settings(*SIZES), Plain(through.family.spec), folders[1])
    paths = [folder / "policy.safetensors" for folder in folders]
    return [*zip((through, direct), paths, strict=True)]


def policies(runs):
    return [load_policy(path) for _, path in runs]


def worlds(runs, theta, seed=3):
    """As reality shows them: readings as they are."""
    return [unencoded(results.family).world(theta, Seed.root(seed).generator()) for results, _ in runs]


def theta(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_a_run_through_it_finds_and_promises_the_same(runs):
    (through, _), (direct, _) = runs
    assert through.family.inner.spec.obs_dim == 32 and direct.family.spec == through.family.spec
    assert torch.equal(dense(through.explored.exploration.D_hat), dense(direct.explored.exploration.D_hat))
    for ours, theirs in zip(through.meta_policy.ensemble.groups, direct.meta_policy.ensemble.groups, strict=True):
        assert all(torch.equal(value, theirs.stacked()[name]) for name, value in ours.stacked().items())
    assert through.certified.certificate == direct.certified.certificate
    assert through.appraised.appraisal == direct.appraised.appraisal
    assert torch.equal(dense(through.deployed.D_real), dense(direct.deployed.D_real))
    assert through.deployed.verdicts == direct.deployed.verdicts
    ours, theirs = through.evaluated, direct.evaluated
    assert (ours.worth, ours.looking, ours.values) == (theirs.worth, theirs.looking, theirs.values)


def test_policy_files_promise_the_same(runs):
    through, direct = (load_policy_file(path) for _, path in runs)
    assert through.certificate == direct.certificate and through.certificate is not None
    assert (through.policy.spec.obs_dim, direct.policy.spec.obs_dim) == (32, 2)


@pytest.mark.parametrize(
    ("where", "verdict"),
    [((0.2, -0.4, 0.7), CONSISTENT), ((0.6, -0.6, 0.0), None), ((0.2, -0.4, 3.0), REFUSED)],
    ids=["inside", "at the edge", "outside the prior"],
)
def test_a_world_is_judged_alike(runs, where, verdict):
    deployed = [deploy(p, w, refuse=False) for p, w in zip(policies(runs), worlds(runs, theta(*where)), strict=True)]
    through, direct = deployed
    assert through.likeness == direct.likeness and verdict in (None, through.likeness.verdict)
    assert torch.equal(through.D_real, direct.D_real)
    raw, plain = (world.reset(50) for world in worlds(runs, theta(*where), seed=9))
    assert torch.equal(through.policy.act(0, raw), direct.policy.act(0, plain))
    if verdict == REFUSED:
        with pytest.raises(UnlikeSimulatorsError):
            deploy(policies(runs)[0], worlds(runs, theta(*where))[0])


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_logs_of_many_numbers_are_judged_and_acted_on_alike(runs, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    found = []
    for number, (policy, world) in enumerate(zip(policies(runs), worlds(runs, theta(-0.3, 0.1, 0.9)), strict=True)):
        path = tmp_path / f"{number}.{ending}"
        with open_logbook(path, policy.spec) as logbook:
            deploy(policy, world, refuse=False, keep=logbook.append, recording=logbook.recording)
        recording = read_log(path, policy.spec)
        assert recording.x.shape[-1] == policy.spec.obs_dim
        found.append(deploy_recorded(policy, recording, refuse=False))
    through, direct = found
    assert torch.equal(through.D_real, direct.D_real) and through.likeness == direct.likeness
    assert through.likeness.verdict == CONSISTENT and through.findings == direct.findings == ()
