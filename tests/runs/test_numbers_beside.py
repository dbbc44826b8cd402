"""Predictors see numbers beside those that densities live on: what these alone decide is learned, and densities stay.

One decision. A reading is (y, u): y is spread over 0.2 + 0.6 w, u is +-1 with noise, independent of y. Action 1 pays
if u > 0 and w > 1/2, or neither; else action 0 does. Whoever sees y alone earns 1/2 at most, and so does whoever does
not know w; V* = 1.
"""

import pytest
import torch
from support.smoke import small_settings

from s2r_torch.base import ProblemSpec
from s2r_torch.density.patches import dense
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.policy_file import load_policy
from s2r_torch.deployment.stopping import Stopping
from s2r_torch.encoders import register_encoder
from s2r_torch.encoders.contract import Encoder
from s2r_torch.families.contract import GroundTruth
from s2r_torch.families.layered import LayeredSimulators, LayeredWorld, require_theta
from s2r_torch.families.noise import bump_draws, bump_nodes, uniforms
from s2r_torch.families.sensors import uniform_prior
from s2r_torch.graph import StateGraph
from s2r_torch.rng import Seed
from s2r_torch.runs.checking import check_for_a_run
from s2r_torch.runs.run import execute

SIZES = (
    "encoder=first_one",
    "predictors.num_simulators=96",
    "predictors.training.steps=150",
    "evaluation.num_worlds=40",
    "certificate.scores=500",
    "diagnostics.simulators=4",
)


class FirstOne(Encoder):
    """Readings as they are; densities live on the first number, and predictors see the second one, or do not."""

    def __init__(self, obs_dim: int, see: bool = True):
        super().__init__(obs_dim)
        self.beside = int(see)
        self.register_buffer("one", torch.ones(()))

    def forward(self, x):
        return self.one * x[:, : 1 + self.beside]


register_encoder("first_one")(FirstOne)


class Cued:
    name, theta_names, payment = "cued", ("w",), 1.0
    spec = ProblemSpec(2, 1, 1, 2, (-1.0, -1.5), (1.0, 1.5), ("y", "u"))
    graph = StateGraph(torch.tensor([[-1, -1]]), torch.tensor([0]), ((),))

    def prior(self, n, generator):
        return uniform_prior((0.0, 1.0))(n, generator)

    def simulators(self, theta, ids):
        return LayeredSimulators(self, require_theta(theta, self.theta_names), ids)

    def world(self, theta, generator):
        return LayeredWorld(self, theta, generator)

    def parameters(self):
        return {}

    def emit(self, theta, state, generators):
        n = state.shape[1]
        y = (0.2 + 0.6 * theta) * bump_draws(n, 2, generators)
        side = 2.0 * (uniforms(n, generators) < 0.5) - 1
        return torch.stack([y, side + 0.3 * bump_draws(n, 2, generators)], -1)

    def mean_reward(self, theta, state, x, actions):
        return ((x[..., 1] > 0) == (theta > 0.5)).long().eq(actions).double()

    def truth(self, theta):
        nodes, weights = bump_nodes(9, 2)
        x = torch.stack([(0.2 + 0.6 * theta) * nodes.repeat(2), torch.ones(len(theta), 18).double()], -1)
        x[:, :9, 1] = -1.0
        reward = torch.stack([self.mean_reward(theta, None, x, torch.full((1,), a)) for a in (0, 1)], -1)
        return GroundTruth(self.graph, x[:, None], weights.repeat(2).expand(len(theta), 1, 18) / 2, reward[:, None])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """With the number beside, and without: results and policy file of each."""
    found = []
    for see in ("true", "false"):
        folder = tmp_path_factory.mktemp(see)
        found.append((execute(small_settings(*SIZES, f"+encoder.see={see}"), Cued(), folder), folder))
    return found


def test_what_only_numbers_beside_decide_is_learned(runs):
    (seeing, _), (blind, _) = runs
    assert seeing.evaluated.worth.value > 0.75 and blind.evaluated.worth.value < 0.52
    assert "predictors see 1 numbers beside" in seeing.encoded.notes[0] and blind.encoded.notes == ()


def test_densities_and_what_is_told_of_them_are_those_without(runs):
    (seeing, _), (without, _) = runs
    assert (seeing.family.spec.width, seeing.family.spec.obs_dim, without.family.spec.width) == (2, 1, 1)
    assert seeing.family.spec.low == without.family.spec.low
    assert torch.equal(dense(seeing.explored.exploration.D_hat), dense(without.explored.exploration.D_hat))
    assert seeing.explored.estimator.bandwidth == without.explored.estimator.bandwidth
    ours, theirs = (run.meta_policy.reference for run in (seeing, without))
    assert torch.equal(ours.scores, theirs.scores) and torch.equal(ours.population.mean, theirs.population.mean)


def test_a_policy_file_says_it_by_its_encoder_alone(runs):
    policies = [load_policy(folder / "policy.safetensors") for _, folder in runs]
    assert [policy.problem.spec.width for policy in policies] == [2, 1]
    assert policies[0].spec == Cued.spec == policies[1].spec
    theta, x = torch.tensor([0.9], dtype=torch.float64), torch.tensor([[0.1, 1.0], [0.1, -1.0]]).double()
    for policy, differs in zip(policies, (True, False), strict=True):
        kept = []
        live = deploy(policy, Cued().world(theta, Seed.root(1).generator()), refuse=False, keep=kept.append)
        q = live.policy.q(0, x)
        assert bool((q[0] - q[1]).abs().max() > 1e-3) == differs
        torch.testing.assert_close(torch.cat([live.policy.q(0, row[None]) for row in x]), q, atol=2e-6, rtol=0)
        again = deploy_recorded(policy, kept[0], refuse=False, stopping=Stopping(looks=2))
        assert kept[0].x.shape[-1] == 2 and again.looks
    assert live.policy.act(0, x).shape == (2,)


def test_the_assumptions_are_looked_at(runs):
    verdicts = [{f.assumption: f.verdict for f in run.diagnosed.diagnosis.findings} for run, _ in runs]
    assert verdicts[0].keys() == verdicts[1].keys() and "violated" not in verdicts[0].values()


def test_the_family_is_checked_by_what_densities_live_on(runs):
    """What a check finds is what it finds without the numbers beside."""
    seeing, without = (check_for_a_run(run.family) for run, _ in runs)
    assert seeing.findings == without.findings and len(seeing.findings) > 10
