"""One run, stage by stage: explore, train, calibrate, Sim2Real, deploy, evaluate. Every finished stage is saved."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Protocol

import torch
from torch import Tensor

from s2r_torch.deployment import likeness
from s2r_torch.comparators.density_free import best_action_list, blind, follow, uniform
from s2r_torch.learning.calibration import Calibration, bellman_table, calibrate
from s2r_torch.deployment.certificate import Certificate
from s2r_torch.assurance.certify import certify
from s2r_torch.deployment.policy_file import save_exploration, save_policy
from s2r_torch.coverage import path_cover
from s2r_torch.density.bandwidth import SHRINK, lepski_bandwidth, paper_bandwidth, reference_bandwidth
from s2r_torch.density.estimator import DensityEstimator
from s2r_torch.density.grid import DensityGrid
from s2r_torch.density.kernels import make_kernel
from s2r_torch.assurance.diagnostics import Diagnosis, DiagnosticSettings, diagnose
from s2r_torch.runs.draws import Draws
from s2r_torch.learning.elimination import Elimination
from s2r_torch.families.contract import Family
from s2r_torch.families.mixture.predictors import MixturePredictors
from s2r_torch.episodes import Guard, Ledger, Transitions, observe, try_actions
from s2r_torch.errors import SettingError
from s2r_torch.runs.evaluation import (
    Deployed,
    Looking,
    Population,
    check_graph,
    deploy_in,
    value_deployed,
    value_of_looking,
    value_population,
)
from s2r_torch.learning.exploration import Exploration, explore
from s2r_torch.learning.estimator import estimate_densities
from s2r_torch.planner.budget import Budget
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.nets.net import Net
from s2r_torch.problem import Problem
from s2r_torch.predictors.registry import net_class
from s2r_torch.predictors.registry import variants
from s2r_torch.learning.estimator import make_estimator

from s2r_torch.predictors.training.fit import TrainingData, TrainingSettings, fit, tensorboard_logger
from s2r_torch.assurance.rehearsal import rehearse
from s2r_torch.rng import Seed
from s2r_torch.learning.estimator import DensitySettings
from s2r_torch.runs.settings import RunSettings
from s2r_torch.learning.sim2real import Outcome, Trial, method_named

TRAINING = "training"  # folder of unfinished fits, below the run's


class Reporter(Protocol):
    """Where progress goes (reports/console.py shows it; tests are silent)."""

    def stage(self, name: str, total: int | None) -> None: ...

    def advance(self, done: int, note: str = "") -> None: ...

    def record(self, series: str, step: int, value: float) -> None: ...

    def say(self, text: str) -> None: ...


class Silent:
    """Reports nothing."""

    def stage(self, name: str, total: int | None) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def record(self, series: str, step: int, value: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@dataclass(eq=False)
class Run:
    """A run and what its finished stages left; later stages read what earlier ones wrote.

    Args:
        settings: validated settings.
        family: what is learned about.
        folder: where finished stages are saved; None saves nothing.
        reporter: where progress goes.
    """

    settings: RunSettings
    family: Family
    folder: FilePath | None = None
    reporter: Reporter = field(default_factory=Silent)

    exploration: Exploration | None = None
    estimator: DensityEstimator | None = None
    samples: tuple[Transitions, ...] = ()
    ensemble: Ensemble | None = None
    blind: Ensemble | None = None
    blind_member: int = 0
    calibration: Calibration | None = None
    budget: Budget | None = None
    outcome: Outcome | None = None
    meta_policy: MetaPolicy | None = None
    diagnosis: Diagnosis | None = None
    certificate: Certificate | None = None
    D_real: Tensor | None = None
    deployed: Deployed | None = None
    population: Population | None = None
    looking: Looking | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.seed = Seed.root(self.settings.seed)
        self.ledger = Ledger()
        self.draws = Draws(self.family, self.seed, self.ledger)
        if self.settings.predictors.kind == "known" and not hasattr(self.family, "known_class"):
            raise SettingError(
                expected="a family with a ready-made class, such as mixture",
                got=self.family.name,
                cause="predictors=known with a family whose f* is not known",
            )

    def execute(self) -> Run:
        """Runs all stages, each timed."""
        for stage in STAGES:
            start = time.perf_counter()
            stage(self)
            self.seconds[stage.__name__] = time.perf_counter() - start
        return self


def explore_family(run: Run) -> None:
    """Fixes the density estimator, then finds the state graph on the training simulators (Algorithm 2)."""
    density, count = run.settings.density, run.settings.predictors.num_simulators
    spec = run.family.spec
    simulators = run.draws.simulators("train", count).for_purpose("explore")
    run.estimator = make_estimator(density, simulators, run.settings.budget.n_dist, run.seed)
    merge = density.merge
    if merge.zeta == "auto" and spec.zeta:
        merge = replace(merge, zeta=spec.zeta)
    run.reporter.stage("explore (Algorithm 2)", 1 + (spec.horizon - 1) * spec.max_states_per_layer * spec.num_actions)
    visited = 0

    def on_visit(visit) -> None:
        nonlocal visited
        visited += 1
        run.reporter.advance(visited, f"path {visit.path}: {'state' if visit.merged else 'new state'} {visit.state}")

    n_dist = run.settings.budget.n_dist
    run.exploration = explore(simulators, run.estimator, merge, n_dist, run.seed.child("explore"), on_visit)
    run.settings = replace(run.settings, density=replace(density, merge=merge))
    graph = run.exploration.graph
    if run.folder:
        save_exploration(run.folder / "exploration.safetensors", graph, run.exploration.D_hat, run.estimator)
    run.reporter.say(f"{graph.num_states} states, {graph.states_per_layer} per layer")


def train_predictors(run: Run) -> None:
    """Draws training transitions; makes the class F, and the density-blind baseline on the same draws.

    Started again in the folder of an interrupted run, training goes on where it was, to the bit.
    """
    predictors, graph = run.settings.predictors, run.exploration.graph
    problem = Problem(run.family.spec, graph, run.estimator.grid)
    simulators = run.draws.simulators("train", predictors.num_simulators)
    seed = run.seed.child("train")
    run.samples = tuple(
        try_actions(simulators, path, predictors.n_samples, seed.child("state", s))
        for s, path in enumerate(graph.paths)
    )
    data = TrainingData(run.exploration.D_hat, run.samples)
    if predictors.kind == "known":
        run.ensemble = known_class(run, problem)
    else:
        training = predictors.training
        wanted = [(name, pair) for name, several in run.settings.nets.items() for pair in enumerate(variants(several))]
        nets = [train_one(run, problem, data, training, name, kw, number) for name, (number, kw) in wanted]
        run.ensemble = Ensemble(problem, tuple(nets))
    few = replace(predictors.training, members=predictors.blind_members)
    run.blind = Ensemble(problem, (train_one(run, problem, data, few, "blind", {}, 0),))
    n_real = run.settings.budget.n_real or run.settings.budget.n_dist
    _save(run, "class", MetaPolicy(run.ensemble, 0, run.estimator, path_cover(graph), n_real))
    if run.folder:
        shutil.rmtree(run.folder / TRAINING, ignore_errors=True)  # the class is saved


def calibrate_class(run: Run) -> None:
    """Measures misspecification, and picks the blind baseline's member, on simulators drawn for this alone."""
    settings = run.settings.predictors.calibration
    simulators = run.draws.simulators("calibrate", settings.simulators)
    run.reporter.stage("calibrate", None)
    seed = run.seed.child("calibrate")
    xi, G = run.exploration.D_hat.shape[1:]
    unseen = torch.zeros(len(simulators), xi, G)  # what the blind class makes of densities
    risks, _ = bellman_table(simulators, unseen, run.blind, settings.n, seed.child("blind"))
    run.blind_member = int(risks.mean(1).sum(1).argmin())
    if run.ensemble.exact:
        return
    graph, n_dist = run.exploration.graph, run.settings.budget.n_dist
    D_hat = estimate_densities(simulators, graph, run.estimator, n_dist, seed.child("density"))
    run.calibration = calibrate(simulators, D_hat, run.ensemble, settings, seed)
    if run.folder:
        path = run.folder / "calibration.json"
        path.write_text(json.dumps({"slack": run.calibration.slack, "value_bias": run.calibration.value_bias}))


def learn(run: Run) -> None:
    """Sim2Real (Algorithm 1), or its sweep, on B fresh simulators; writes the policy file."""
    settings, graph = run.settings, run.exploration.graph
    run.budget = settings.budget.make(
        graph.horizon, graph.num_actions, run.ensemble.size, graph.num_states, settings.density.merge.n_merge
    )
    run.reporter.stage(f"{settings.method} (Algorithm 1), rule {settings.rule}", graph.num_states)
    calls = 0

    def on_call(name: str, state: int, survivors: int) -> None:
        nonlocal calls
        calls += 1
        run.reporter.advance(calls, f"{name} at state {state}: {survivors} survivors")
        run.reporter.record("survivors", calls, survivors)

    trial = Trial(
        run.estimator,
        settings.density.merge,
        run.budget,
        elimination_of(run),
        run.seed.child("learn"),
        oracle_bias(run),
        on_call,
    )
    sample = lambda count: run.draws.simulators("judge", count)  # noqa: E731
    run.outcome = method_named(settings.method)(sample, run.ensemble, trial)
    learned = run.outcome.learned
    alive = learned.knowledge.alive.nonzero().flatten().tolist()
    run.meta_policy = MetaPolicy(
        run.ensemble.subset(alive), alive.index(learned.member), run.estimator, path_cover(graph), run.budget.n_real
    )
    _save(run, "policy", run.meta_policy)


def certify_policy(run: Run) -> None:
    """Rehearses the deploy procedure on fresh simulators: promises, and scores that worlds are compared with."""
    settings = run.settings.certificate
    if not settings.simulators:
        return
    run.reporter.stage("certify", None)
    simulators, seed = run.draws.simulators("certify", settings.simulators), run.seed.child("certify")
    rehearsal = rehearse(run.meta_policy, simulators, settings.n_rollouts, seed.child("rehearse"))
    run.certificate = certify(run.meta_policy, simulators, rehearsal, settings, seed)
    grid = run.estimator.grid
    known = likeness.Population.of(run.exploration.D_hat, grid)
    reference = likeness.Reference.of(known, rehearsal.D_hat, rehearsal.again, rehearsal.passages, grid)
    run.meta_policy = replace(run.meta_policy, reference=reference)
    run.reporter.say(f"value >= {run.certificate.value_lower:.3f}, confidence {1 - settings.delta:.0%}")
    _save(run, "policy", run.meta_policy)
    if run.folder:
        (run.folder / "certificate.txt").write_text(run.certificate.page() + "\n")


def diagnose_assumptions(run: Run) -> None:
    """Checks what data can say about Assumptions 1-5, on simulators drawn for this alone."""
    count = run.settings.diagnose
    if not count:
        return
    run.reporter.stage("diagnose (Assumptions 1-5)", None)
    simulators, seed = run.draws.simulators("diagnose", count), run.seed.child("diagnose")
    graph, n_dist = run.exploration.graph, run.settings.budget.n_dist
    D_hat = estimate_densities(simulators, graph, run.estimator, n_dist, seed.child("density"))
    run.diagnosis = diagnose(
        simulators, D_hat, run.exploration, run.meta_policy.ensemble, run.estimator, DiagnosticSettings(), seed
    )


def deploy_worlds(run: Run) -> None:
    """Deploys in held-out worlds that show no reward (Algorithm 7)."""
    count = run.settings.world.num_worlds
    run.reporter.stage("deploy (Algorithm 7)", count)
    on_world = lambda w: run.reporter.advance(w + 1)  # noqa: E731
    run.D_real, run.real_per_world, run.verdicts = deploy_in(run.meta_policy, run.draws, count, on_world)


def evaluate(run: Run) -> None:
    """After the fact: what the deployed policies, the optimum and the baselines are worth."""
    world = run.settings.world
    run.reporter.stage("evaluate", None)
    run.deployed = value_deployed(
        run.meta_policy, run.D_real, run.draws, world.n_rollouts, run.real_per_world, run.verdicts
    )
    run.looking = value_of_looking(
        run.meta_policy, run.draws, world.population, world.num_worlds, world.readings, world.n_rollouts
    )
    run.population = value_population(
        run.draws,
        world.population,
        world.n_rollouts,
        blind(run.blind, run.blind_member),
        lambda: follow(best_action_list(run.exploration.graph, run.samples)),
        lambda seed: uniform(run.family.spec.num_actions, seed),
    )
    wrong = check_graph(run.meta_policy, run.draws)
    if wrong:
        run.notices.append(wrong)
    if run.population.open_loop >= run.deployed.value or run.population.open_loop >= 0.98 * run.population.optimal:
        run.notices.append("a fixed action list does as well: on this family densities are not needed")


STAGES: tuple[Callable[[Run], None], ...] = (
    explore_family,
    train_predictors,
    calibrate_class,
    learn,
    diagnose_assumptions,
    certify_policy,
    deploy_worlds,
    evaluate,
)


def train_one(
    run: Run, problem: Problem, data: TrainingData, training: TrainingSettings, name: str, settings: dict, number: int
) -> Net:
    """Trains one architecture: members x snapshots of it; `number` tells variants of one name apart."""
    seed, label = run.seed.child("net", name, number), f"{name}-{number}" if number else name
    net = net_class(name)(problem, training.members, seed.child("weights").generator(), **settings)
    run.reporter.stage(f"train {label} ({training.members} members together)", training.steps * problem.graph.horizon)

    def on_step(done: int, total: int, loss: float) -> None:
        run.reporter.advance(done, f"Bellman risk {loss:.4f}")
        run.reporter.record(f"bellman_risk/{label}", done, loss)

    def on_check(done: int, risks: Tensor) -> None:
        for member, risk in enumerate(risks.tolist()):
            run.reporter.record(f"held_out_risk/{label}/{member}", done, risk)

    wanted = run.settings.tensorboard and run.folder
    return fit(
        net,
        data,
        training,
        seed.child("fit"),
        accelerator=run.settings.accelerator,
        logger=tensorboard_logger(run.folder, label) if wanted else False,
        on_step=on_step,
        on_check=on_check,
        folder=run.folder,
        state=run.folder / TRAINING / f"{label}.safetensors" if run.folder else None,
    )


def known_class(run: Run, problem: Problem) -> Ensemble:
    """The family's own finite class, which holds f*."""
    group = run.family.known_class(problem.grid, **run.settings.predictors.known)
    return Ensemble(problem, (group,), exact=True)


def elimination_of(run: Run) -> Elimination:
    """The rule, with what calibration measured where the rule uses it."""
    settings = run.settings
    slack = run.calibration.slack if run.calibration and settings.rule == "calibrated" else None
    bias = run.calibration.value_bias if run.calibration else 0.0
    return Elimination(settings.rule, settings.on_empty, slack, bias)


def oracle_bias(run: Run) -> Callable[[Tensor], float] | None:
    """b_bar from the judges' true theta, where the class is known: an oracle that only known families have.

    b_bar = 2 phi_D + omega (theory.md 2.1), with phi_D the true error of f* on the judges' densities and omega
    Hoeffding's bound on V_hat over all members, judges and states, with probability 1 - delta / 8.
    """
    if not run.ensemble.exact or run.settings.budget.b_bar is not None:
        return None
    theta, budget = run.draws.theta("judge", run.settings.budget.num_simulators), run.budget
    values = 2 * run.ensemble.size * budget.num_simulators * run.exploration.graph.num_states
    n = min(budget.n_train, budget.n_test)
    omega = run.family.spec.reward_width * math.sqrt(math.log(8 * values / budget.delta) / (2 * n))

    def bias(D_hat: Tensor) -> float:
        b_bar = 2 * run.ensemble.groups[0].bias_bound(D_hat, theta) + omega
        run.notices.append(
            f"b_bar = {b_bar:.4g} is computed from the judges' true theta: only a known family can say it"
        )
        return b_bar

    return bias


def _save(run: Run, name: str, meta_policy: MetaPolicy) -> None:
    """Saves a policy file, with what is promised of it so far."""
    if run.folder is None:
        return
    notes = {"experiment": run.settings.name, "seed": run.settings.seed, "finished": list(run.seconds)}
    family = {"name": run.family.name, "parameters": run.family.parameters()}
    path = run.folder / f"{name}.safetensors"
    save_policy(path, meta_policy, family=family, certificate=run.certificate, notes=notes)
