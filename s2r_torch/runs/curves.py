"""Value against real episodes: every comparator at every sample size, in the same worlds, each cell a stage of its own.

    encode, explore, train, calibrate, learn  as in any run: what our own method and all comparators know
    fit-NAME                                  what a comparator learns before it sees a world
    NAME-n                                    its policy after that many real episodes, valued in the first W worlds

Cells are kept in the folder of the run (`folder.RunFolder`), so that a comparison killed anywhere goes on, and one more
size or comparator costs that one alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from s2r_torch.comparators.attempts import attempted
from s2r_torch.comparators.contract import COMPARATORS, Access, Learner, fitted_learner
from s2r_torch.errors import SettingError
from s2r_torch.families.contract import Family
from s2r_torch.progress import Progress
from s2r_torch.runs import stages
from s2r_torch.runs.context import Context
from s2r_torch.runs.evaluation import attempt_values, optimal_values
from s2r_torch.runs.results import Cell, Fitted, require_kept
from s2r_torch.runs.run import Stages, learn_until_good
from s2r_torch.runs.settings import Curve, RunSettings


@dataclass
class Measured:
    """What a comparison has found so far; grows cell by cell, so that an interrupted one has something to show."""

    cells: list[Cell] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # CPU seconds by comparator, of its fits and cells
    left_out: dict[str, str] = field(default_factory=dict)  # comparator -> why it does not run on this family


def measure(
    settings: RunSettings,
    family: Family,
    curves: Mapping[str, Curve],
    worlds: int,
    folder: Path | None,
    progress: Progress,
    found: Measured,
) -> None:
    """Runs every curve with one seed; cells that `folder` holds already are read instead.

    Args:
        settings: of the run whose policy is ours.
        family: where.
        curves: comparator -> its curve.
        worlds: W, how many held-out worlds there are.
        folder: where finished cells are kept; None keeps nothing.
        progress: where progress goes.
        found: where every finished cell is added.

    Raises:
        FolderError: the folder is of another configuration or version.
    """
    comparators = {name: COMPARATORS.named(name)(**curve.settings) for name, curve in curves.items()}
    run = Stages(settings, family, folder, progress, tuple(curves))
    run.see(run.do(stages.encode))
    run.do(stages.check)
    learned = whole = learn_until_good(run)
    if learned[0].exploration.graph.pruned:  # others do not look where we do, and must know of all states
        with run.beside("whole-", replace(settings, pruning=replace(settings.pruning, tolerance=0.0))):
            whole = learn_until_good(run)
    for name, curve in curves.items():
        told = json.dumps(dict(curve.settings), sort_keys=True)
        looks = comparators[name].access.looks != Access().looks
        explored, trained, _, policy, _ = learned if looks else whole
        fitted = run.do(_fitting(name, comparators[name]), explored, trained, policy, name=f"fit-{name}", of=told)
        found.seconds[name] += run.finished[f"fit-{name}"].cpu_seconds
        if fitted.learner is None:
            found.left_out[name] = fitted.left_out
            continue
        for n in curve.sizes or (None,):
            place = name if n is None else f"{name}-{n}"
            told = f"{curve.worlds} of {worlds} worlds"
            found.cells.append(run.do(_valuing(name, n, worlds, curve.worlds), fitted, name=place, of=told))
            found.seconds[name] += run.finished[place].cpu_seconds


def _fitting(name: str, comparator) -> Callable[..., Fitted]:
    """The stage in which a comparator learns what it can before it sees a world."""

    def fit(context: Context, explored, trained, learned) -> Fitted:
        known = stages.known_before(context, explored, trained, learned)
        try:
            learner = fitted_learner(name, comparator, known)
        except SettingError as error:  # settings were checked before: it is the family that it does not fit
            return Fitted(None, f"{error.got}: {error.cause}")
        require_kept(name, learner)
        return Fitted(learner, "")

    return fit


def _valuing(name: str, n: int | None, worlds: int, few: int | None) -> Callable[..., Cell]:
    """The stage that values one comparator at one size."""

    def value(context: Context, fitted: Fitted) -> Cell:
        context.progress.stage(name if n is None else f"{name}, n = {n}", None)
        held_out = stages.held_out(context, worlds).first(few)
        assert fitted.learner is not None  # those that do not fit the family are valued nowhere
        attempt = attempted(name, _sized(fitted.learner, n), held_out)
        values: Tensor = attempt_values(attempt, held_out, context.settings.evaluation.n_rollouts)
        return Cell(
            name,
            n,
            context.settings.seed,
            values,
            optimal_values(held_out),
            attempt.episodes,
            attempt.accepted,
            attempt.simulator,
            attempt.note,
        )

    return value


def _sized(learner: Learner, n: int | None) -> Learner:
    return learner if n is None else replace(cast(Any, learner), n=n)
