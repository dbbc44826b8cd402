"""What a run found, as one frozen record: what its tables, figures, pages and `summary.json` say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s2r_torch.assurance.appraisal import Appraisal
from s2r_torch.assurance.diagnostics import Finding
from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.deployment.certificate import Certificate
from s2r_torch.deployment.policy_file import versions
from s2r_torch.given import taking
from s2r_torch.learning.bought import Bought, bought
from s2r_torch.learning.calibration import density_b_bar
from s2r_torch.learning.elimination import Call
from s2r_torch.learning.learn_on_simulators import Round
from s2r_torch.planner.looking import Looking
from s2r_torch.predictors.ensemble import Ensemble
from s2r_torch.runs.evaluation import Worth
from s2r_torch.runs.results import NetEstimate
from s2r_torch.runs.run import Results
from s2r_torch.schema import build, plain

OPTIMAL, OURS = "optimal", "deployed"  # names in `Value.policies` beside those of comparators


@dataclass(frozen=True)
class ProblemFacts:
    """The problem, and the state graph that was found."""

    num_actions: int
    horizon: int
    obs_dim: int
    num_states: int  # that are looked at
    states_per_layer: tuple[int, ...]
    states_found: int  # before the graph was pruned


@dataclass(frozen=True)
class Merging:
    """How clearly paths were merged, in units of density."""

    paths: int
    noise: float
    largest_merged: float
    largest_z: float
    zeta_hat: float | None  # None where no layer has two states


@dataclass(frozen=True)
class ClassFacts:
    """The class F before and after elimination."""

    size: int
    parameters: int  # learned numbers per member
    survivors: int
    member: int  # the one that is deployed, by its place in F
    lipschitz_bound: float | None  # the largest of the class; None where one is not certified
    lipschitz_estimates: tuple[NetEstimate, ...]
    certified: bool
    exact: bool
    f_star_survives: bool | None  # None where nobody knows


@dataclass(frozen=True)
class Eliminated:
    """What the rule did, call by call."""

    stopped: str
    rounds: tuple[Round, ...]
    calls: tuple[Call, ...]
    b_bar: tuple[float, ...] | None  # [xi] in units of total reward; measured, densities included
    density_b_bar: tuple[float, ...] | None  # [xi] what densities alone may add to it, from C_L and a band
    value_bias: float
    bought: Bought


@dataclass(frozen=True)
class Value:
    """Expected total rewards."""

    worth: Worth  # of the deployed policies, in the held-out worlds
    verdicts: dict[str, int]  # of those worlds: are they like the simulators?
    looking: Looking  # against real episodes
    policies: dict[str, float]  # over the prior: `optimal`, and every comparator by its name

    @property
    def share(self) -> float:
        """Deployed over optimal, in the same worlds."""
        return self.worth.value / self.worth.optimal


@dataclass(frozen=True)
class RealEpisodes:
    """Episodes in one world, none with a reward."""

    drawn: int
    sequences: int  # of the path cover
    n_real: int  # readings of every state
    one_path_per_state: int  # what would be drawn along a path of its own for every state
    as_stated: int  # n H S A


@dataclass(frozen=True)
class Summary:
    """What a run found; `seconds` is all that differs between two runs of one seed."""

    experiment: str
    seed: int
    method: str
    rule: str
    net: str
    family: dict[str, Any]  # name and parameters
    problem: ProblemFacts
    density: dict[str, tuple]  # nodes and bandwidth, per axis
    merging: Merging
    ensemble: ClassFacts
    elimination: Eliminated
    appraisal: Appraisal | None  # from simulators alone, before anything was deployed
    value: Value
    episodes: dict[str, int]  # by purpose; those of simulators, and `real` of all worlds together
    steps: dict[str, int]  # that these took, by purpose
    real: RealEpisodes
    certificate: Certificate | None
    assumptions: tuple[Finding, ...]
    notices: tuple[str, ...]
    warnings: tuple[str, ...]  # of libraries
    seconds: dict[str, float]  # by stage
    cpu_seconds: float
    versions: dict[str, str]

    def to_json(self) -> dict:
        """JSON values; `from_json` makes the same record of them."""
        return plain(self)

    @staticmethod
    def from_json(values: Mapping) -> Summary:
        """Raises SettingError for values of another version."""
        return build(Summary, values, "summary")

    @staticmethod
    @taking()
    def of(results: Results) -> Summary:
        """The summary of a finished run."""
        settings, family = results.settings, results.family
        exploration, ensemble = results.explored.exploration, results.trained.ensemble
        diagnosis = results.diagnosed.diagnosis
        return Summary(
            experiment=settings.name,
            seed=settings.seed,
            method=settings.method,
            rule=settings.rule,
            net=settings.net,
            family={"name": family.name, "parameters": family.parameters()},
            problem=_problem(results),
            density={
                "nodes": tuple(results.explored.estimator.grid.shape),
                "bandwidth": tuple(results.explored.estimator.bandwidth),
            },
            merging=Merging(
                paths=len(exploration.visits),
                noise=exploration.noise,
                largest_merged=exploration.largest_merged,
                largest_z=exploration.largest_z,
                zeta_hat=exploration.zeta_hat if math.isfinite(exploration.zeta_hat) else None,
            ),
            ensemble=_class(results),
            elimination=_eliminated(results, ensemble),
            appraisal=results.appraised.appraisal,
            value=Value(
                results.evaluated.worth,
                results.deployed.verdicts,
                results.evaluated.looking,
                results.evaluated.values,
            ),
            episodes=dict(results.episodes),
            steps=dict(results.steps),
            real=_real(results),
            certificate=results.certified.certificate,
            assumptions=diagnosis.findings if diagnosis else (),
            notices=(
                *results.checked.notes,
                *verdicts(results),
                *_of_training(results),
                *results.learned.notices,
                *_appraised(results),
                *results.evaluated.notices,
            ),
            warnings=tuple(results.warnings),
            seconds={name: round(stage.seconds, 2) for name, stage in results.finished.items()},
            cpu_seconds=round(results.cpu_seconds, 2),
            versions=versions(),
        )


def _of_training(results: Results) -> tuple[str, ...]:
    """What training falls short of; nothing where the policy loses no more than is tolerated, whatever members lose."""
    found = results.appraised.appraisal
    return () if found and found.cleared else results.trained.notices


def _appraised(results: Results) -> list[str]:
    """What the appraisal tells."""
    found = results.appraised.appraisal
    return found.sentences() if found else []


def label_of(policy: str) -> str:
    """What a policy of `Value.policies` is called in tables and figures."""
    return {OPTIMAL: "optimal", OURS: "deployed, no reward seen"}.get(policy) or COMPARATORS[policy].label


def verdicts(results: Results) -> list[str]:
    """Sentences on what the elimination did, and on what the certificate cannot do."""
    choice, F, rule = results.learned.outcome.choice, results.trained.ensemble.size, results.settings.rule
    lines = []
    if int(choice.knowledge.alive.sum()) == F and F > 1:
        least = min(call.threshold for call in choice.knowledge.history)
        lines.append(
            f"rule {rule} eliminated nothing: all {F} predictors survive, because it allows an excess "
            f"Bellman risk of {least:.3g} or more"
        )
        if rule == "paper":
            lines.append("that is expected: the printed rule needs phi below any practical size (theory.md F2)")
    if choice.stopped == "no_progress":
        lines.append(
            "stopped=no_progress: the last policy earned less than predicted and every state is learned; "
            "the survivor of least Bellman risk is returned"
        )
    if not results.trained.ensemble.certified:
        lines.append("C_L is NOT certified: nothing that rests on Assumption 4 (Lipschitz in D) is promised")
    reference = results.certified.meta_policy.reference
    if reference and reference.weakness:
        lines.append(f"{reference.weakness}: raise certificate.scores")
    if results.certified.fallback and results.settings.certificate.refused == "list":
        actions = " ".join(map(str, results.certified.fallback))
        lines.append(f"as used, the certificate counts on the actions {actions} where a world is refused")
    if rule == "calibrated":
        lines.append("rule calibrated is heuristic: its b_bar is measured, not proved")
    return lines


def unfinished(experiment: str, seed: int, stopped_by: str, stages: Mapping[str, Mapping]) -> dict:
    """What is known of a run that did not finish, from the stages that its folder holds: JSON values."""
    return {
        "experiment": experiment,
        "seed": seed,
        "status": "unfinished",
        "stopped_by": stopped_by,
        "finished_stages": list(stages),
        "episodes": {name: stage["episodes"] for name, stage in stages.items()},
        "steps": {name: stage["steps"] for name, stage in stages.items()},
        "seconds": {name: round(stage["seconds"], 2) for name, stage in stages.items()},
        "versions": versions(),
    }


def _problem(results: Results) -> ProblemFacts:
    spec, found = results.family.spec, results.explored.exploration
    graph, sizes = found.graph, (spec.num_actions, spec.horizon, spec.obs_dim)
    return ProblemFacts(*sizes, graph.num_states, tuple(graph.states_per_layer), found.whole.num_states)


def _class(results: Results) -> ClassFacts:
    ensemble, choice = results.trained.ensemble, results.learned.outcome.choice
    certified = ensemble.certified
    return ClassFacts(
        size=ensemble.size,
        parameters=round(ensemble.num_parameters / ensemble.size),
        survivors=int(choice.knowledge.alive.sum()),
        member=choice.member,
        lipschitz_bound=float(ensemble.lipschitz_bound().max()) if certified else None,
        lipschitz_estimates=results.trained.estimates,
        certified=certified,
        exact=ensemble.exact,
        f_star_survives=bool(choice.knowledge.alive[0]) if ensemble.exact else None,
    )


def _eliminated(results: Results, ensemble: Ensemble) -> Eliminated:
    outcome, calibration = results.learned.outcome, results.calibrated.calibration
    of_densities = None
    if ensemble.certified:
        bound = float(ensemble.lipschitz_bound().max())
        of_densities = density_b_bar(outcome.exploration.graph, bound, outcome.exploration.band)
    return Eliminated(
        stopped=outcome.choice.stopped,
        rounds=outcome.choice.rounds,
        calls=outcome.choice.knowledge.history,
        b_bar=calibration.b_bar if calibration else None,
        density_b_bar=of_densities,
        value_bias=calibration.value_bias if calibration else 0.0,
        bought=bought(
            outcome.choice.knowledge,
            outcome.exploration.graph,
            results.learned.budget,
            consensus=results.settings.method == "sim2real",
            reward_width=ensemble.problem.spec.reward_width,
        ),
    )


def _real(results: Results) -> RealEpisodes:
    spec, policy = results.family.spec, results.certified.meta_policy
    return RealEpisodes(
        drawn=results.deployed.episodes,
        sequences=len(policy.cover),
        n_real=policy.n_real,
        one_path_per_state=policy.problem.graph.num_states * policy.n_real,
        as_stated=spec.horizon * spec.max_states_per_layer * spec.num_actions * policy.n_real,
    )
