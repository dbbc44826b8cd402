"""A whole run: explore, train, calibrate, learn; check and promise; deploy; compare and evaluate.

>>> from s2r_torch.families import make_family
>>> results = execute(RunSettings(name="mine"), make_family("grid"), Path("runs/mine"))  # doctest: +SKIP
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from s2r_torch.defaults import plain_torch, trainable
from s2r_torch.deployment.header import FALLBACK
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.encoders.encoding import Encoding
from s2r_torch.episodes import Ledger
from s2r_torch.errors import RealizabilityError, SettingError
from s2r_torch.families.contract import Family, require_family
from s2r_torch.families.draws import Draws
from s2r_torch.families.recipe import EncodedRecipe, FamilyRecipe, recipe_of, require_travel
from s2r_torch.files.whole import fixed_path
from s2r_torch.given import FILE, require_having, taking
from s2r_torch.planner.looking import NOTE
from s2r_torch.progress import Progress, Recorded, Row, Silent, require_progress
from s2r_torch.rng import Seed
from s2r_torch.runs import stages
from s2r_torch.runs.certifying import require_exact_values
from s2r_torch.runs.configuring import known_class
from s2r_torch.runs.context import Context
from s2r_torch.runs.folder import Finished, RunFolder, held
from s2r_torch.runs.origin import chained, origin_of
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
    Trained,
    codec,
)
from s2r_torch.runs.settings import RunSettings
from s2r_torch.workers.engines import SERIAL, Workers
from s2r_torch.workers.threads import threads


@dataclass(frozen=True, eq=False)
class Results:
    """Everything that a run left."""

    settings: RunSettings
    family: Family  # as it was seen: through the encoder, where there is one
    encoded: Encoded
    checked: Checked
    explored: Explored
    trained: Trained
    calibrated: Calibrated
    learned: Learned
    appraised: Appraised
    diagnosed: Diagnosed
    certified: Certified
    deployed: Deployed
    compared: Compared
    evaluated: Evaluated
    finished: dict[str, Finished]  # stage -> what it found and took, in order

    def __getstate__(self) -> dict[str, Any]:  # a family travels as its recipe
        return {**vars(self), "family": recipe_of(self.family) or self.family}

    def __setstate__(self, state: dict[str, Any]) -> None:
        family = state["family"]
        made = family.made() if isinstance(family, FamilyRecipe | EncodedRecipe) else family
        vars(self).update(state, family=made)

    @property
    def meta_policy(self) -> MetaPolicy:
        """The policy as it is deployed: on raw readings, where there is an encoder."""
        return replace(self.certified.meta_policy, encoding=self.encoded.encoding)

    @property
    def draws(self) -> Draws:
        """The same environments again, for looking at; what is drawn from them is counted nowhere."""
        return Draws(self.family, Seed.root(self.settings.seed), Ledger())

    @property
    def episodes(self) -> Counter:
        """Episodes by purpose, of all stages."""
        return sum((Counter(stage.episodes) for stage in self.finished.values()), Counter())

    @property
    def steps(self) -> Counter:
        """Steps of environments by purpose, of all stages."""
        return sum((Counter(stage.steps) for stage in self.finished.values()), Counter())

    @property
    def rows(self) -> list[Row]:
        """The curves of all stages."""
        return [row for stage in self.finished.values() for row in stage.rows]

    @property
    def warnings(self) -> list[str]:
        """What libraries warned of, in all stages; once each."""
        return list(dict.fromkeys(text for stage in self.finished.values() for text in stage.warnings))

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all stages."""
        return sum(stage.cpu_seconds for stage in self.finished.values())


@taking(folder=(*FILE, None))
@plain_torch()
@trainable()
def execute(
    settings: RunSettings,
    family: Family,
    folder: Path | None = None,
    progress: Progress | None = None,
    workers: Workers = SERIAL,
) -> Results:
    """Runs all stages; those that `folder` holds already are read instead.

    Args:
        settings: validated settings.
        family: what is learned about.
        folder: where every finished stage is kept; None keeps nothing.
        progress: where progress and curves go.
        workers: who does what can be done side by side; results are the same to the bit.

    Raises:
        FolderError: the folder is of another configuration or version, in use, or cannot be written to.
        SettingError: the family cannot travel to workers.
    """
    require_family("family", family)
    asked = ("map", "start", "close", "threads")
    require_having("workers", workers, asked, "workers, such as s2r_torch.workers.choice.workers_of(2)")
    if progress is not None:
        require_progress(progress)
    known_class(settings, family)  # these refuse what cannot be, before anything is drawn
    require_exact_values(settings, family)
    require_travel(family, workers)
    folder = None if folder is None else fixed_path(folder)
    with held(folder):
        return all_stages(Stages(settings, family, folder, progress or Silent(), workers=workers))


def all_stages(run: Stages) -> Results:
    """The method, from first to last."""
    encoded = run.see(run.do(stages.encode))
    checked = run.do(stages.check)
    explored, trained, calibrated, learned, appraised = learn_until_good(run)
    diagnosed = run.do(stages.diagnose, explored, learned)
    certified = run.do(stages.certify, trained, learned)
    deployed = run.do(stages.deploy_worlds, certified)
    compared = run.do(stages.compare, explored, trained, learned)
    evaluated = run.do(stages.evaluate, explored, appraised, certified, deployed, compared)
    return Results(
        run.settings,
        run.family,
        encoded,
        checked,
        explored,
        trained,
        calibrated,
        learned,
        appraised.after(sum(name.startswith("appraise") for name in run.finished)),
        diagnosed,
        certified,
        deployed,
        compared,
        evaluated,
        run.finished,
    )


Attempt = tuple[Explored, Trained, Calibrated, Learned, Appraised]


def learn_until_good(run: Stages) -> Attempt:
    """Learns; again with twice the sizes while the policy surely falls short, `appraisal.attempts` times at most.

    The attempt whose policy lost the least of what could be had is gone on with. Every one was appraised on simulators
    of its own, and certificates come of others. A further one that cannot be made is given up, with a warning.
    """
    found = best = learn(run)
    kept = run.settings, run.attempt
    while found[-1].falls_short and run.may_learn_again:
        run.again()
        try:
            found = learn(run)
        except (SettingError, MemoryError, RealizabilityError) as error:  # of twice the sizes
            warnings.warn(f"attempt {run.attempt} at learning was given up: {error}", stacklevel=2)
            break
        if found[-1].lost < best[-1].lost:
            best, kept = found, (run.settings, run.attempt)
    run.settings, run.attempt = kept
    return best


def learn(run: Stages) -> Attempt:
    """One attempt, to what its policy earns on fresh simulators."""
    explored = run.do(stages.explore)
    trained = run.do(stages.train, explored)
    calibrated = run.do(stages.calibrate, explored, trained)
    learned = run.do(stages.learn, explored, trained, calibrated)
    return explored, trained, calibrated, learned, run.do(stages.appraise, trained, learned)


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """The warnings that come up inside, which are shown as ever."""
    shown, told = warnings.showwarning, []

    def show(message, category, *rest, **more) -> None:
        told.append(f"{category.__name__}: {message}")
        shown(message, category, *rest, **more)

    warnings.showwarning = show
    try:
        yield told
    finally:
        warnings.showwarning = shown


class Stages:
    """Does stages, or reads them; each one is timed, and counts its own episodes. Arguments are those of `execute`.

    Args:
        comparators: those whose results occur, beside those of the settings.
    """

    def __init__(
        self,
        settings: RunSettings,
        family: Family,
        folder: Path | None,
        progress: Progress,
        comparators: tuple[str, ...] = (),
        workers: Workers = SERIAL,
    ):
        self.settings, self.family, self._progress, self._workers = settings, family, progress, workers
        self._origin = origin_of(settings, family)
        self._folder = folder and RunFolder(folder, self._origin, codec((*settings.comparators, *comparators)))
        self._encoding: Encoding | None = None
        self._digests: dict[int, str] = {}  # of the results so far, which are all kept, by their id
        self.finished: dict[str, Finished] = {}
        self.attempt = 1  # at learning
        self._named = ""  # what the names of stages begin with

    def see(self, encoded: Encoded) -> Encoded:
        """Lets all later stages see readings through this encoder, if it is one."""
        self.family = encoded.through(self.family)
        self._encoding = encoded.encoding
        return encoded

    @property
    def may_learn_again(self) -> bool:
        """Whether another attempt is allowed; a ready-made class has nothing to learn again."""
        return self.settings.predictors.kind == "trained" and self.attempt < self.settings.appraisal.attempts

    def again(self) -> None:
        """Lets stages be done once more, with twice the sizes; what was found before stays where it was."""
        self.settings, self.attempt = self.settings.doubled(), self.attempt + 1

    @contextmanager
    def beside(self, named: str, settings: RunSettings) -> Iterator[None]:
        """Stages that are done inside have names of their own, and these settings."""
        before = self.settings, self.attempt, self._named
        self.settings, self.attempt, self._named = settings, 1, named
        try:
            yield
        finally:
            self.settings, self.attempt, self._named = before

    def do(self, stage: Callable[..., Any], *earlier: Any, name: str | None = None, of: str = "") -> Any:
        """The result of a stage that reads these earlier results.

        Args:
            stage: (context, earlier results) -> its result.
            earlier: results of this object.
            name: of the stage, where its function has none of its own.
            of: whatever else it is a function of.
        """
        name = self._named + (name or stage.__name__)
        if name in self.finished:
            name = f"{name}-{self.attempt}"
        digest = chained(self._origin, name, of, *(self._digests[id(result)] for result in earlier))
        finished = self._folder.load(name, digest) if self._folder else None
        if finished:
            self._show_again(name, finished)
        else:
            finished = self._done(stage, earlier)
            if self._folder:
                self._folder.save(name, digest, finished)
        self.finished[name], self._digests[id(finished.result)] = finished, digest
        self._keep_policy(finished.result)
        return finished.result

    def _done(self, stage: Callable[..., Any], earlier: tuple) -> Finished:
        shown, ledger = Recorded(self._progress), Ledger()
        fits = self._folder.fits if self._folder else None
        board = self._folder.path if self._folder and self.settings.trainer.tensorboard else None
        context = Context(self.settings, self.family, shown, ledger, fits, board, self._workers, self.attempt)
        wall, cpu = time.perf_counter(), self._cpu_seconds()
        with noted_warnings() as warned, threads(self._workers.threads):
            result = stage(context, *earlier)
        took = time.perf_counter() - wall, self._cpu_seconds() - cpu
        return Finished(result, dict(ledger.counts), dict(ledger.steps), *took, tuple(shown.rows), tuple(warned))

    def _cpu_seconds(self) -> float:
        """Of this process and of whoever works for it."""
        return time.process_time() + self._workers.cpu_seconds

    def _show_again(self, name: str, finished: Finished) -> None:
        self._progress.stage(name.replace("_", " "), 1)
        for row in finished.rows:
            self._progress.record(*row)
        self._progress.advance(1, f"kept from before, {finished.seconds:.1f} s then")

    def _keep_policy(self, result: Any) -> None:
        """The policy file, as soon as there is a policy; again with its certificate, and with what it is worth."""
        if not self._folder or not isinstance(result, Learned | Certified | Evaluated):
            return
        if isinstance(result, Learned) and self._folder.has_policy:
            return  # it is there, perhaps with what is promised of it
        notes = {"experiment": self.settings.name, "seed": self.settings.seed}
        if isinstance(result, Evaluated):
            notes[NOTE], result = asdict(result.looking), self.finished["certify"].result
        certificate = result.certificate if isinstance(result, Certified) else None
        family = {"name": self.family.name, "parameters": self.family.parameters()}
        if getattr(result, "fallback", None):
            notes[FALLBACK] = list(result.fallback)
        policy = replace(result.meta_policy, encoding=self._encoding)  # reality shows raw readings
        self._folder.save_policy(policy, certificate, family, notes)
