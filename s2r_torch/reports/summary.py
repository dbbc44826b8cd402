"""What a run found, as JSON values and as sentences."""

from __future__ import annotations

import math
from dataclasses import asdict

from s2r_torch.deployment.policy_file import versions
from s2r_torch.learning.calibration import density_bias
from s2r_torch.runs.pipeline import Run


def summary(run: Run) -> dict:
    """What the run found, as JSON values; `seconds` is all that differs between two runs of one seed."""
    settings, spec, graph = run.settings, run.family.spec, run.exploration.graph
    learned, n_real = run.outcome.learned, run.meta_policy.n_real
    return {
        "experiment": settings.name,
        "seed": settings.seed,
        "method": settings.method,
        "rule": settings.rule,
        "net": settings.net,
        "family": {"name": run.family.name, "parameters": run.family.parameters()},
        "problem": {
            "num_actions": spec.num_actions,
            "horizon": spec.horizon,
            "obs_dim": spec.obs_dim,
            "num_states": graph.num_states,
            "states_per_layer": graph.states_per_layer,
        },
        "density": {"nodes": list(run.estimator.grid.shape), "bandwidth": list(run.estimator.bandwidth)},
        "merging": {
            "paths": len(run.exploration.visits),
            "noise": run.exploration.noise,
            "largest_merged": run.exploration.largest_merged,
            "largest_z": run.exploration.largest_z,
            "zeta_hat": run.exploration.zeta_hat if math.isfinite(run.exploration.zeta_hat) else None,
        },
        "ensemble": {
            "size": run.ensemble.size,
            "parameters": round(run.ensemble.num_parameters / run.ensemble.size),  # learned numbers per member
            "survivors": int(learned.knowledge.alive.sum()),
            "member": learned.member,
            "lipschitz_bound": float(run.ensemble.lipschitz_bound().max()) if run.ensemble.certified else None,
            "lipschitz_estimates": estimates(run),
            "certified": run.ensemble.certified,
            "exact": run.ensemble.exact,
            "f_star_survives": bool(learned.knowledge.alive[0]) if run.ensemble.exact else None,
        },
        "elimination": {
            "stopped": learned.stopped,
            "rounds": [asdict(r) for r in learned.rounds],
            "calls": [asdict(call) for call in learned.knowledge.history],
            "slack": list(run.calibration.slack) if run.calibration else None,  # squared; measured, densities included
            "density_bias": density_bias_of(run),  # not squared; what densities alone may add, from C_L and a band
            "value_bias": run.calibration.value_bias if run.calibration else 0.0,
        },
        "value": {
            "deployed": run.deployed.value,
            "deployed_low": run.deployed.low,
            "deployed_high": run.deployed.high,
            "optimal": run.deployed.optimal,
            "optimal_kind": run.deployed.optimal_kind,
            "optimal_population": run.population.optimal,
            "open_loop": run.population.open_loop,
            "blind": run.population.blind,
            "random": run.population.random,
            "num_worlds": run.deployed.num_worlds,
            "verdicts": run.deployed.verdicts,
            "looking": asdict(run.looking),
        },
        "episodes": {
            **{
                name: run.ledger.counts[name]
                for name in ("explore", "train", "calibrate", "eliminate", "rollout", "diagnose", "certify")
            },
            "real_per_world": run.real_per_world,
            "real_one_path_per_state": graph.num_states * n_real,
            "real_as_stated": spec.horizon * spec.max_states_per_layer * spec.num_actions * n_real,  # n H S A
            "evaluate": run.ledger.counts["evaluate"],
        },
        "certificate": run.certificate.to_json() if run.certificate else None,
        "cover": len(run.meta_policy.cover),
        "n_real": n_real,
        "assumptions": {f.assumption: asdict(f) for f in run.diagnosis.findings} if run.diagnosis else {},
        "notices": [*verdict(run), *run.notices],
        "seconds": {name: round(value, 2) for name, value in run.seconds.items()},
        "versions": versions(),
    }


def density_bias_of(run: Run) -> list[float] | None:
    """The density part of b_bar at every state; None where a member's C_L is not certified."""
    if not run.ensemble.certified:
        return None
    bound = float(run.ensemble.lipschitz_bound().max())
    return list(density_bias(run.exploration.graph, bound, run.outcome.exploration.band))


def estimates(run: Run) -> list[dict]:
    """Lower bounds for C_L from pairs of simulators, of the networks whose C_L was chosen by them."""
    chosen = [group for group in run.ensemble.groups if getattr(group, "estimate", None)]
    return [{"net": g.name, "factor": g.bound_factor, **asdict(g.estimate)} for g in chosen]


def verdict(run: Run) -> list[str]:
    """Sentences on what the elimination did, for the end of the report."""
    learned, F = run.outcome.learned, run.ensemble.size
    survivors = int(learned.knowledge.alive.sum())
    lines = []
    if survivors == F and F > 1:
        least = min(call.threshold for call in learned.knowledge.history)
        lines.append(
            f"rule {run.settings.rule} eliminated nothing: all {F} predictors survive, because it allows an excess "
            f"Bellman risk of {least:.3g} or more"
        )
        if run.settings.rule == "paper":
            lines.append("that is expected: the printed rule needs phi below any practical size (theory.md F2)")
    if learned.stopped == "no_progress":
        lines.append(
            "stopped=no_progress: the last policy earned less than predicted and every state is learned; "
            "the survivor of least Bellman risk is returned"
        )
    if not run.ensemble.certified:
        lines.append("C_L is NOT certified: nothing that rests on Assumption 4 (Lipschitz in D) is promised")
    if run.settings.rule == "calibrated":
        lines.append("rule calibrated is heuristic: its slack is measured, not proved")
    return lines


def partial_summary(run: Run, stopped_by: str) -> dict:
    """What is known of a run that did not finish."""
    return {
        "experiment": run.settings.name,
        "seed": run.settings.seed,
        "status": "unfinished",
        "stopped_by": stopped_by,
        "finished_stages": list(run.seconds),
        "episodes": dict(run.ledger.counts),
        "seconds": {name: round(value, 2) for name, value in run.seconds.items()},
        "versions": versions(),
    }
