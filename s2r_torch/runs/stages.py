"""The stages of one run: each a function of earlier stages' results, settings, seed and progress.

encode                                     what turns a rich reading into the numbers that densities live on
check                                      is the family what it says
explore, train, calibrate, learn           what Sim2Real (Algorithm 1) needs and does, on simulators
appraise                                   whether that is good enough, or to be learned again
diagnose, certify                          what can be checked and promised, on further simulators
deploy_worlds                              Algorithm 7, in held-out worlds without reward
compare, evaluate                          what others would have learned, and what everything is worth
"""

from __future__ import annotations

import math
from dataclasses import replace

from s2r_torch.assurance.appraisal import agreed, decided
from s2r_torch.assurance.appraisal import appraise as appraise_policy
from s2r_torch.assurance.certify import certify as certify_policy
from s2r_torch.assurance.diagnostics import diagnose as diagnose_assumptions
from s2r_torch.assurance.rehearsal import make_reference, rehearse
from s2r_torch.base import PredictorGroup
from s2r_torch.comparators.attempts import attempted
from s2r_torch.comparators.contract import COMPARATORS, Known, Worlds, fitted_learner
from s2r_torch.comparators.open_loop import best_action_list
from s2r_torch.coverage import path_cover
from s2r_torch.density.patches import Patches
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.graph import StateGraph, told
from s2r_torch.learning import exploration
from s2r_torch.learning.calibration import calibrate as calibrate_class
from s2r_torch.learning.drawing import decisions
from s2r_torch.learning.estimator import estimate_patches, make_estimator
from s2r_torch.learning.pruning import prune
from s2r_torch.learning.sim2real import Trial, method_named
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.predictors.registry import variants
from s2r_torch.predictors.training.data import TrainingData
from s2r_torch.problem import Problem
from s2r_torch.rng import Seed
from s2r_torch.runs import evaluation
from s2r_torch.runs.certifying import exact_values, refused_values
from s2r_torch.runs.checking import check_for_a_run
from s2r_torch.runs.configuring import known_class, prunes
from s2r_torch.runs.context import Context
from s2r_torch.runs.encoding import encode_readings
from s2r_torch.runs.judging import as_proved, elimination, oracle_b_bar
from s2r_torch.runs.results import (
    Appraised,
    Calibrated,
    Certified,
    Checked,
    Compared,
    Deployed,
    Diagnosed,
    Encoded,
    Evaluated,
    Explored,
    Learned,
    NetEstimate,
    Trained,
    require_kept,
)
from s2r_torch.runs.training import densities_of_fewer, make_trainer, start_trainers


def encode(context: Context) -> Encoded:
    """Fits the encoder on simulators drawn for this alone, and freezes it: later stages see phi(X) for X."""
    return encode_readings(context.settings, context.draws, context.progress)


def check(context: Context) -> Checked:
    """Asks the family whether it is what it says (families/check): seconds, before hours.

    Raises:
        SimulatorError, SettingError: a run would be wrong, or fail; the message says why, and what to write.
    """
    start_trainers(context)
    if not context.settings.check_family:
        return Checked(())
    context.progress.stage("check the family", None)
    report = check_for_a_run(context.family, context.settings.seed)
    context.ledger.add("check", report.episodes)
    context.ledger.walked("check", report.steps)
    report.require()
    notes = tuple(f"{note.checked}: {note.found}; {note.cause}".rstrip("; ") for note in report.notes)
    context.progress.say(f"{len(notes)} notes" if notes else "as it says")
    return Checked(notes)


def explore(context: Context) -> Explored:
    """Fixes the density estimator, then finds the state graph on the training simulators (Algorithm 2)."""
    settings, spec, progress = context.settings, context.family.spec, context.progress
    simulators = context.draws.simulators("train", settings.predictors.num_simulators).for_purpose("explore")
    n_dist, merge = settings.budget.n_dist, settings.density.merge
    estimator = make_estimator(settings.density, simulators, n_dist, context.seed)
    if merge.zeta == "auto" and spec.zeta:
        merge = replace(merge, zeta=spec.zeta)
    progress.stage("explore (Algorithm 2)", 1 + (spec.horizon - 1) * spec.max_states_per_layer * spec.num_actions)
    visited = 0

    def on_visit(visit: exploration.Visit) -> None:
        nonlocal visited
        visited = visited + 1 if visit.path else 1
        progress.advance(visited, f"path {told(visit.path)}: {'state' if visit.merged else 'new state'} {visit.state}")

    def found_in_all(whole: StateGraph, more: str = "") -> None:
        progress.say(f"{whole.num_states} states, {whole.states_per_layer} per layer{more}")

    def look_at(whole: StateGraph) -> StateGraph:
        found_in_all(whole)
        progress.stage("prune states that no good list passes", None)
        return prune(simulators.for_purpose("prune"), whole, settings.pruning, context.seed.child("prune"))

    seed = context.seed.child("explore")
    part = look_at if prunes(settings, context.family) else exploration.all_of
    found = exploration.explore(simulators, estimator, merge, n_dist, seed, on_visit, part)
    took = f"; {found.n_merge} readings a path told them apart" if found.n_merge > merge.n_merge else ""
    if part is look_at:
        kept = found.graph
        progress.say(f"{kept.num_states} states are looked at, along {len(path_cover(kept))} sequences{took}")
    else:
        found_in_all(found.whole, took)
    return Explored(estimator, replace(merge, n_merge=found.n_merge), found)


def train(context: Context, explored: Explored) -> Trained:
    """Draws training transitions and makes the class F: trained on them, or the family's own that holds f*."""
    predictors, found = context.settings.predictors, explored.exploration
    graph, n = found.graph, predictors.samples_of(found.graph, found.whole)
    problem = Problem(context.family.spec, graph, explored.estimator.grid)
    simulators = context.draws.simulators("train", predictors.num_simulators)
    seed = context.seed.child("train")
    context.progress.stage("draw what F is trained on", None)
    samples = tuple(decisions(simulators, graph, n, seed.child("states")))
    build = known_class(context.settings, context.family)
    if build:
        exact_class = build(problem.grid, **predictors.known)
        return Trained(Ensemble(problem, (exact_class,), exact=True), samples)
    fewer = densities_of_fewer(context, explored, simulators, seed)
    trainer = make_trainer(context, problem, TrainingData(found.D_hat, samples, found.n_dist, fewer))
    wanted = [(name, pair) for name, given in context.settings.nets.items() for pair in enumerate(variants(given))]
    fitted = [trainer.fitted(name, given, number=number) for name, (number, given) in wanted]
    nets = [one.net for one in fitted]
    estimates = (NetEstimate(net.name, net.bound_factor, net.estimate) for net in nets if net.estimate)
    groups: tuple[PredictorGroup, ...] = tuple(nets)
    tolerance = predictors.training.tolerance
    short = [f"net {one.net.name}: {said}" for one in fitted if (said := one.shortfall.sentence(tolerance))]
    return Trained(Ensemble(problem, groups), samples, tuple(estimates), tuple(short))


def calibrate(context: Context, explored: Explored, trained: Trained) -> Calibrated:
    """Measures how far a trained class is from exact, on simulators drawn for this alone."""
    if trained.ensemble.exact:
        return Calibrated(None)
    settings = context.settings.predictors.calibration
    context.progress.stage("calibrate", None)
    simulators, seed = context.draws.simulators("calibrate", settings.simulators), context.seed.child("calibrate")
    D_hat = _densities(context, explored, simulators, seed)
    return Calibrated(calibrate_class(simulators, D_hat, trained.ensemble, settings, seed))


def learn(context: Context, explored: Explored, trained: Trained, calibrated: Calibrated) -> Learned:
    """Sim2Real (Algorithm 1), or its sweep, on B fresh simulators."""
    settings, graph, ensemble = context.settings, explored.exploration.graph, trained.ensemble
    C_L = float(ensemble.lipschitz_bound().max()) if ensemble.exact else math.inf
    merge, order = explored.merge, settings.density.order
    budget = settings.budget.make(ensemble.problem, ensemble.size, C_L, order, merge.n_merge)
    judging, deploying = explored.estimator, explored.estimator
    if budget.schedule != "practical":
        merge = replace(merge, n_merge=budget.n_merge)
        judging, deploying = (as_proved(explored.estimator, budget, n) for n in (budget.n_dist, budget.n_real))
    context.progress.stage(f"{settings.method} (Algorithm 1), rule {settings.rule}", graph.num_states)
    calls = 0
    notices: list[str] = []

    def on_call(name: str, state: int, survivors: int) -> None:
        nonlocal calls
        calls += 1
        context.progress.advance(calls, f"{name} at state {state}: {survivors} survivors")
        context.progress.record("survivors", calls, survivors)

    trial = Trial(
        judging,
        merge,
        budget,
        elimination(settings, calibrated),
        context.seed.child("learn"),
        oracle_b_bar(context, graph.num_states, ensemble, budget, notices.append),
        on_call,
        explored.exploration.found_again,
    )
    outcome = method_named(settings.method)(lambda count: context.draws.simulators("judge", count), ensemble, trial)
    choice = outcome.choice
    alive = choice.knowledge.alive.nonzero().flatten().tolist()
    meta_policy = MetaPolicy(
        ensemble.subset(alive), alive.index(choice.member), deploying, path_cover(graph), budget.n_real
    )
    return Learned(budget, outcome, meta_policy, tuple(notices))


def appraise(context: Context, trained: Trained, learned: Learned) -> Appraised:
    """Compares the policy with what could be had, on fresh simulators; on more of them where these do not tell."""
    sizes, meta_policy = context.settings.appraisal, learned.meta_policy
    if not sizes.simulators:
        return Appraised(None)
    context.progress.stage("appraise", None)
    whole = learned.outcome.exploration.whole
    fixed = best_action_list(meta_policy.problem.graph, trained.samples)
    for look in range(sizes.looks):
        purpose = f"appraise {context.attempt}" + (f", look {look + 1}" if look else "")
        simulators = context.draws.simulators(purpose, sizes.simulators * 2**look).for_purpose("appraise")
        seed = context.seed.child(purpose)
        rehearsal = rehearse(meta_policy, simulators, sizes.n_rollouts, seed.child("rehearse"))
        n, rewards = sizes.n * 4**look, seed.child("rewards")
        by_graph, folds = decided(simulators, rehearsal.D_hat, whole, meta_policy, n, rewards)
        earned = agreed(by_graph, rehearsal.values)
        found = appraise_policy(whole, earned, fixed, folds, sizes.tolerance, context.attempt, sizes.looks)
        if not found.worth_another_look:
            break
    context.progress.say(
        f"earns {found.policy:.3f}, estimated optimum {found.optimum:.3f}, best list {found.fixed:.3f}"
    )
    return Appraised(found)


def diagnose(context: Context, explored: Explored, learned: Learned) -> Diagnosed:
    """Checks what data can say about Assumptions 1-5, on simulators drawn for this alone."""
    count = context.settings.diagnostics.simulators
    if not count:
        return Diagnosed(None)
    context.progress.stage("diagnose (Assumptions 1-5)", None)
    simulators, seed = context.draws.simulators("diagnose", count), context.seed.child("diagnose")
    D_hat = _densities(context, explored, simulators, seed)
    survivors = learned.meta_policy.ensemble
    found = explored.exploration
    settings = context.settings.diagnostics
    return Diagnosed(diagnose_assumptions(simulators, D_hat, found, survivors, explored.estimator, settings, seed))


def certify(context: Context, trained: Trained, learned: Learned) -> Certified:
    """Rehearses the deploy procedure on fresh simulators: promises, and scores that worlds are compared with."""
    settings, meta_policy = context.settings.certificate, learned.meta_policy
    if not settings.simulators:
        return Certified(meta_policy, None)
    context.progress.stage("certify", None)
    simulators, seed = context.draws.simulators("certify", settings.simulators), context.seed.child("certify")
    known = context.draws.simulators("train", min(settings.known, context.settings.predictors.num_simulators))
    fresh = context.draws.simulators("look", settings.scores)
    reference = make_reference(meta_policy, known.for_purpose("look"), fresh, seed.child("reference"))
    meta_policy = replace(meta_policy, reference=reference)
    rehearsal = rehearse(meta_policy, simulators, settings.n_rollouts, seed.child("rehearse"))
    exactly, theta = settings.values == "exact", context.draws.theta("certify", settings.simulators)
    truth = context.family.truth(theta) if exactly else None
    fallback = best_action_list(meta_policy.problem.graph, trained.samples)
    acts = fallback if settings.refused == "list" else None
    certificate = certify_policy(
        meta_policy,
        simulators,
        rehearsal,
        settings,
        seed,
        exact_values=exact_values(truth, meta_policy.condition(rehearsal.D_hat).act),
        refused_values=refused_values(acts, truth, simulators, settings.n_rollouts, seed.child("fallback")),
    )
    weak = f"; {reference.weakness}" if reference.weakness else ""
    context.progress.say(f"value >= {certificate.value_lower:.3f}, confidence {1 - settings.delta:.0%}{weak}")
    return Certified(meta_policy, certificate, fallback)


def deploy_worlds(context: Context, certified: Certified) -> Deployed:
    """Deploys in held-out worlds that show no reward (Algorithm 7)."""
    count = context.settings.evaluation.num_worlds
    context.progress.stage("deploy (Algorithm 7)", count)
    on_world = lambda w: context.progress.advance(w + 1)  # noqa: E731
    return Deployed(*evaluation.deploy_in(certified.meta_policy, context.draws, count, on_world))


def compare(context: Context, explored: Explored, trained: Trained, learned: Learned) -> Compared:
    """Lets every comparator learn what it can before it sees a world."""
    context.progress.stage("fit comparators", None)
    known = known_before(context, explored, trained, learned)
    chosen = {name: COMPARATORS.named(name)(**given) for name, given in context.settings.comparators.items()}
    learners = {name: fitted_learner(name, comparator, known) for name, comparator in chosen.items()}
    for name, learner in learners.items():
        require_kept(name, learner)
    return Compared(learners)


def known_before(context: Context, explored: Explored, trained: Trained, learned: Learned) -> Known:
    """What our own method knows before it is deployed: all that a comparator may know."""
    problem, data = trained.ensemble.problem, TrainingData(explored.exploration.D_hat, trained.samples)
    trainer = make_trainer(context, problem, data)
    return Known(
        problem,
        data,
        context.draws,
        trainer.train,
        context.seed,
        learned.meta_policy,
        trained.ensemble,
        explored.exploration.whole,
    )


def held_out(context: Context, count: int) -> Worlds:
    """The first `count` of the worlds in which policies are compared."""
    seed = context.seed.child("population")
    return Worlds(context.draws.theta("population", count), context.draws, "evaluate", seed)


def evaluate(
    context: Context,
    explored: Explored,
    appraised: Appraised,
    certified: Certified,
    deployed: Deployed,
    compared: Compared,
) -> Evaluated:
    """After the fact: what the deployed policies, the optimum and the comparators are worth."""
    sizes, draws, meta_policy = context.settings.evaluation, context.draws, certified.meta_policy
    context.progress.stage("evaluate", None)
    unknown = evaluation.StandIn.of(appraised.appraisal)
    worth = evaluation.value_deployed(meta_policy, deployed.D_real, draws, sizes.n_rollouts, unknown)
    looking = evaluation.value_of_looking(
        meta_policy, draws, sizes.population, sizes.num_worlds, sizes.readings, sizes.n_rollouts, unknown
    )
    worlds = held_out(context, sizes.population)
    attempts = {name: attempted(name, learner, worlds) for name, learner in compared.learners.items()}
    values = evaluation.value_attempts(attempts, worlds, sizes.n_rollouts, unknown)
    wrong = evaluation.check_graph(explored.exploration.whole, draws)
    found = appraised.appraisal  # from simulators alone; what is sure there is not said again
    remarks = (
        [] if found and found.tells_of_a_list else evaluation.worth_of_looking(worth.value / worth.optimal, values)
    )
    return Evaluated(worth, looking, values, (*([wrong] if wrong else []), *remarks))


def _densities(context: Context, explored: Explored, simulators, seed: Seed) -> Patches:
    """D_hat of a stage's own simulators, from n_dist readings a state."""
    n_dist = context.settings.budget.n_dist
    return estimate_patches(simulators, explored.exploration.graph, explored.estimator, n_dist, seed.child("density"))
