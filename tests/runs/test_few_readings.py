"""What the class F is trained on: densities of n_dist readings, and of those that few episodes along the cover show."""

from dataclasses import replace

import pytest
import torch
from support.policies import policy_of

from s2r_torch.assurance.rehearsal import rehearse
from s2r_torch.coverage import passes, path_cover, typical
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.patches import heights
from s2r_torch.deployment.deploy import deploy
from s2r_torch.episodes import Guard, Ledger
from s2r_torch.errors import SettingError
from s2r_torch.families import make_family
from s2r_torch.graph import StateGraph
from s2r_torch.progress import Silent
from s2r_torch.rng import Seed
from s2r_torch.runs import stages
from s2r_torch.runs.budgets import BudgetSettings
from s2r_torch.runs.context import Context
from s2r_torch.runs.settings import EvaluationSettings, PredictorSettings, RunSettings


@pytest.mark.parametrize(("readings", "kept"), [((3, 10, 30), (3, 10)), ((), ()), ((50,), ())])
def test_levels_of_noise_below_that_of_n_dist(readings, kept, monkeypatch):
    """Levels with fewer readings than n_dist, of the same simulators, noisier the fewer; the rest is left out."""
    predictors = PredictorSettings(num_simulators=8, n_samples=2, readings=readings)
    settings = RunSettings(predictors=predictors, budget=BudgetSettings(n_dist=30))
    context = Context(settings, make_family("grid"), Silent(), Ledger())
    explored = stages.explore(context)
    told = []

    def record(context, problem, data):
        told.append(data)
        raise StopIteration

    monkeypatch.setattr(stages, "make_trainer", record)
    with pytest.raises(StopIteration):
        stages.train(context, explored)
    (data,), graph = told, explored.exploration.graph
    along = passes(graph, path_cover(graph))
    assert [*data.levels] == [30, *(typical(n * along) for n in kept)]
    rough = [float(heights(D).mean()) for _, D in sorted(data.levels.items(), reverse=True)]
    assert rough == sorted(rough)
    for n, draws in zip(kept, data.draws[1:], strict=True):  # the fewer, the more often
        assert draws == {3: 5, 10: 2}[n]
    every = [D.dense().flatten(1) for D in data.fewer.values()]
    assert all(len(D.unique(dim=0)) == len(D) for D in every) and data.draws[0] == 1


def test_densities_that_take_much_room_are_drawn_once():
    """On large graphs memory is what there is too little of."""
    line = StateGraph(
        torch.tensor([[k + 1] for k in range(99)] + [[-1]]), torch.arange(100), tuple((0,) * k for k in range(100))
    )
    sizes = PredictorSettings(num_simulators=64)
    assert [sizes.draws_of(n, line) for n in (1, 2, 4, 10, 30)] == [10, 8, 4, 2, 2]
    assert replace(sizes, num_simulators=512).draws_of(1, line) == 1


def test_by_default_f_is_trained_on_as_few_readings_as_a_curve_may_ask_for():
    fewest = PredictorSettings().readings[0]
    EvaluationSettings(readings=(fewest,))
    with pytest.raises(SettingError, match="readings"):
        EvaluationSettings(readings=(fewest - 1,))


def test_one_episode_along_every_sequence_is_enough_to_act_on():
    """The density of a single reading is the kernel around it; the network is told that it is one."""
    family, policy = make_family("grid"), replace(policy_of(), n_real=1, reference=None)
    deployed = deploy(policy, family.world(torch.tensor([0.1, 0.2, 0.5]), torch.Generator().manual_seed(1)))
    along = passes(family.graph, policy.cover)
    assert deployed.used.tolist() == along.tolist() and 1 in along.tolist()
    once = along == 1
    at = torch.tensor([[1.0, 1.2]], dtype=torch.float64)
    x = [at + torch.arange(int(n))[:, None] * torch.tensor([0.02, 0.03]) for n in along]
    acts, seen = policy.condition_on(x), policy.densities(x)
    assert torch.equal(seen[once][0], policy.estimator(x[int(once.nonzero()[0])]))
    assert torch.equal(acts.q(0, x[0]), policy.condition(seen, along).q(0, x[0]))


def test_a_rehearsal_takes_every_reading_that_deploy_takes(monkeypatch):
    """Both estimate a state's density from n_real readings of every sequence that passes it."""
    family, policy = make_family("grid"), policy_of()
    asked = []
    theta = family.prior(2, torch.Generator().manual_seed(0))
    guard = Guard(family.simulators(theta, range(2)), Ledger(), "test")
    estimate = DensityEstimator.patches

    def spied(self, samples):
        asked.extend(x.shape[-2] for x in samples)
        return estimate(self, samples)

    monkeypatch.setattr(DensityEstimator, "patches", spied)
    rehearse(policy, guard, 1, Seed.root(0))
    rehearsed = asked[: family.graph.num_states]
    deployed = deploy(policy, family.world(theta[0], torch.Generator().manual_seed(1)), refuse=False)
    expected = 25 * passes(family.graph, policy.cover)
    assert rehearsed == deployed.used.tolist() == policy.readings.tolist() == expected.tolist()
    assert max(rehearsed) > min(rehearsed) == 25 and deployed.as_trained
