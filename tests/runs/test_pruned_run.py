"""A whole run of a family of which not all states are worth looking at: what it counts, saves, deploys, promises."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from support.smoke import small_settings

from s2r_torch.coverage import path_cover
from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.policy_file import load_policy_file, save_policy
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.errors import CheckpointError
from s2r_torch.families import make_family
from s2r_torch.progress import Silent
from s2r_torch.reports.summary import Summary
from s2r_torch.runs.curves import Curve, Measured, measure
from s2r_torch.runs.forecast import forecast
from s2r_torch.runs.run import Results, execute

SETTINGS = ("+experiment=lock", "predictors.num_simulators=64", "certificate.scores=100")
N_REAL = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pruned")


@pytest.fixture(scope="module")
def finished(folder) -> Results:
    return execute(small_settings(*SETTINGS), make_family("lock"), folder)


def test_only_what_good_lists_pass_is_looked_at(finished):
    found, truth = finished.explored.exploration, finished.family.truth(finished.draws.theta("worlds", 1))
    assert found.whole.num_states == truth.graph.num_states == 13 and found.graph.num_states == 9
    assert found.D_hat.shape[1] == 9 and len(path_cover(found.graph)) == 2
    assert finished.learned.outcome.exploration.graph.num_states == 9  # of the judges, too
    assert finished.deployed.episodes == 2 * N_REAL and finished.meta_policy.cover == path_cover(found.graph)
    problem = Summary.of(finished).problem
    assert (problem.num_states, problem.states_found) == (9, 13)
    assert not [notice for notice in finished.evaluated.notices if "graph" in notice]


def test_the_forecast_knows_what_is_left(finished):
    expected: dict[str, Counter] = {stage: Counter() for stage in finished.finished}
    rounds = len(finished.learned.outcome.choice.rounds)
    found = forecast(finished.settings, finished.family)
    for part in found.parts:
        expected[part.stage][part.purpose] += part.steps * (rounds if part.purpose == "rollout" else 1)
    counted = {stage: Counter(done.steps) for stage, done in finished.finished.items()}
    counted.pop("deploy_worlds"), expected.pop("deploy_worlds")
    assert counted == expected and counted["explore"]["prune"] > 0
    assert found.looked_at.num_states == 9


def test_the_file_brings_it_back(finished, folder, tmp_path):
    loaded = load_policy_file(folder / "policy.safetensors")
    policy = loaded.policy
    assert torch.equal(policy.problem.graph.next_state, finished.meta_policy.problem.graph.next_state)
    page = loaded.certificate.page()
    assert loaded.certificate.gap.pruned and "No policy that goes where this one looks earns more" in page
    x = [torch.rand(5, 1).double() for _ in range(policy.spec.horizon)]
    D = torch.rand(9, policy.problem.grid.num_points).double()
    ours, theirs = (one.condition(D) for one in (finished.meta_policy, policy))
    assert all(torch.equal(ours.act(h, x[h]), theirs.act(h, x[h])) for h in range(len(x)))
    other = replace(loaded.certificate, gap=replace(loaded.certificate.gap, pruned=False))
    with pytest.raises(CheckpointError, match="whether the graph was pruned"):
        save_policy(tmp_path / "other.safetensors", policy, certificate=other)


@pytest.mark.parametrize("check", ["cover", "edges", "auto"])
def test_a_world_is_looked_at_along_two_sequences(finished, check):
    world = finished.family.world(finished.draws.theta("worlds", 1)[0], torch.Generator().manual_seed(3))
    kept: list[Recording] = []
    deployed = deploy(finished.meta_policy, world, keep=kept.append, refuse=False, check=check)
    assert deployed.episodes >= 2 * N_REAL and deployed.D_real.shape[0] == 9
    assert deployed.likeness.verdict != "untested"


def test_a_log_may_hold_episodes_that_went_astray(finished):
    world, kept = (
        finished.family.world(finished.draws.theta("worlds", 1)[0], torch.Generator().manual_seed(3)),
        list[Recording](),
    )
    deployed = deploy(finished.meta_policy, world, keep=kept.append, refuse=False)
    graph = finished.meta_policy.problem.graph
    s, a = next((s, a) for s, row in enumerate(graph.next_state.tolist()) for a, t in enumerate(row) if t < 0)
    actions = torch.tensor([(*graph.paths[s], a, *(0,) * graph.horizon)[: graph.horizon - 1]])
    astray = Recording(actions, kept[0].x[:1], torch.tensor([graph.horizon]))
    inside = int(graph.layer[s]) + 1
    assert astray.states(graph)[0].tolist() == [*map(graph.end, prefixes(graph.paths[s]))] + [-1] * (
        graph.horizon - inside
    )
    again = deploy_recorded(finished.meta_policy, Recording.joined([*kept, astray]), refuse=False)
    assert torch.equal(again.D_real, deployed.D_real)  # the first readings of every state are used
    assert not [finding for finding in again.findings if "row" in finding.text]


def prefixes(path):
    return [path[:step] for step in range(len(path) + 1)]


def test_whoever_does_not_look_where_we_do_knows_all_states(tmp_path):
    plan = {"ours": Curve((5,)), "real_list": Curve((3,), worlds=4), "cutler2015": Curve((3,), worlds=4)}
    found = Measured()
    measure(small_settings(*SETTINGS, "comparators={}"), make_family("lock"), plan, 6, tmp_path, Silent(), found)
    cells = {cell.name: cell for cell in found.cells}
    assert cells["ours"].episodes == 2 * 5 and cells["real_list"].episodes > 3 * 2 * 4
    stages = {file.stem for file in (tmp_path / "stages").iterdir()}
    assert {"explore", "whole-explore", "whole-learn", "fit-ours"} <= stages
    again = Measured()
    measure(small_settings(*SETTINGS, "comparators={}"), make_family("lock"), plan, 6, tmp_path, Silent(), again)
    assert [c.values.tolist() for c in again.cells] == [c.values.tolist() for c in found.cells]


def test_without_pruning_all_states_are_looked_at():
    settings = small_settings(*SETTINGS, "pruning.tolerance=0")
    assert settings.pruning.tolerance == 0.0
    assert forecast(settings, make_family("lock")).looked_at.num_states == 13
