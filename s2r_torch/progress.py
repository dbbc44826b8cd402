"""Where long work says how far it is; a terminal shows it (reports/console.py), tests are silent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

from s2r_torch.errors import SettingError
from s2r_torch.given import require_having
from s2r_torch.held import faults_of

Row = tuple[str, int, float]  # (series, step, value): one point of a curve


class Progress(Protocol):
    """Told by every stage of a run what it does, how far it is, and which numbers belong into curves."""

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins, of `total` parts where that is known."""

    def advance(self, done: int, note: str = "") -> None:
        """So many parts of it are done."""

    def record(self, series: str, step: int, value: float) -> None:
        """One point of a curve."""

    def say(self, text: str) -> None:
        """What the stage found, in a few words."""


def require_progress(progress: object) -> None:
    """Raises SettingError unless it is a `Progress` whose methods take what theirs take."""
    told = {"stage": ("a stage", None), "advance": (1, "a note"), "record": ("a series", 1, 0.5), "say": ("a text",)}
    require_having("progress", progress, tuple(told), "a Progress")
    for name, arguments in told.items():
        try:
            inspect.signature(getattr(progress, name)).bind(*arguments)
        except ValueError:  # written in C, such as a deque's `append`: nobody can tell
            continue
        except TypeError as error:
            expected = f"{name}({', '.join(inspect.signature(getattr(Progress, name)).parameters)}) of a Progress"
            raise SettingError(expected=expected, got=str(error), cause="another class's method") from error


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: int | None) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def record(self, series: str, step: int, value: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Recorded:
    """Shows what another one shows, and keeps the curves of one stage.

    Args:
        shown: where everything is passed on to.
    """

    def __init__(self, shown: Progress):
        self.rows: list[Row] = []
        named = (lambda method: method) if type(shown).__module__.startswith("s2r_torch.") else _named
        self.stage: Callable[[str, int | None], None] = named(shown.stage)
        self.advance: Callable[..., None] = named(shown.advance)
        self.say: Callable[[str], None] = named(shown.say)
        self._record: Callable[[str, int, float], None] = named(shown.record)

    def record(self, series: str, step: int, value: float) -> None:
        """One point of a curve."""
        self.rows.append((series, step, value))
        self._record(series, step, value)


def _named(method: Callable[..., None]) -> Callable[..., None]:
    """A method of a user's progress, whose faults are named as what they are; its SystemExit is no end of a run."""
    name = getattr(method, "__qualname__", type(method).__name__)

    def call(*arguments: object) -> None:
        with faults_of(f"{name} of the progress to succeed", "a fault in it, or nowhere to write to"):
            method(*arguments)

    return call
