"""A live world's episodes in a file, and beside it the ledger of what they cost; nothing of either is ever lost.

    real.csv              the episodes
    real.csv.ledger.json  how many were drawn, counted before each draw, and how the last call ended

Every finished batch is appended at once, as lines of CSV, and is on the disk before the next begins. One mechanism for
all formats: a CSV log is its own journal; an NPZ or Parquet file cannot grow, so its lines go to `FILE.journal.csv`,
which is folded into it at the end, or by the next call after a crash. So a kill at any moment costs the batch that was
running, and nothing that was in the file before is written again: labels, further columns, empty forms stay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from s2r_torch.base import ProblemSpec
from s2r_torch.deployment.recording.csv_files import WIDE, lines_of
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import KEYS, columns_of, read_recording, sensor_columns, write_recording
from s2r_torch.deployment.recording.tables import check_ending, read_table
from s2r_torch.episodes import Ledger
from s2r_torch.errors import FileError, RecordingError
from s2r_torch.files.locks import locked
from s2r_torch.files.whole import Appended, fixed_path, probe, real_path, removed, write_bytes, write_text
from s2r_torch.graph import spelt
from s2r_torch.text import printable

COLLECTING = "collecting"


@contextmanager
def open_logbook(path: Path | str, spec: ProblemSpec, world: str | None = None) -> Iterator[Logbook]:
    """A log to go on with, held by this process alone; everything that could fail later is tried first.

    Args:
        path: CSV, NPZ or Parquet; an existing file is gone on from.
        spec: what is recorded.
        world: whose episodes they are, as its ledger says; None where nobody says.

    Raises:
        FileError: another process holds it, or it can never be written.
        RecordingError: the file, or its ledger, is damaged, of other sensors or of another world, or holds what writing
            would lose.
        SettingError: another ending.
    """
    check_ending(path)
    path = fixed_path(path)
    with locked(path):
        for file in {path, ledger_of(path), journal_of(path)}:
            probe(file)
        entry = _of_this_world(_entry(path), path, world)
        note = _mended(journal_of(path)) if entry.get("status") == COLLECTING else None
        _refuse_to_lose(path, spec)
        _fold(path, spec)
        logbook = Logbook(path, spec, read_log(path, spec, short_episodes=True, empty=True), entry)
        logbook.notes += [note] if note else []
        try:
            yield logbook
        except BaseException:
            with suppress(FileError):  # the journal keeps what the file could not take
                _fold(path, spec)
            raise
        _fold(path, spec)


class Logbook:
    """An open log (`open_logbook`).

    Args:
        path: CSV, NPZ or Parquet.
        spec: what is recorded.
        recording: the episodes that it holds.
        entry: its ledger, as it was found.
    """

    def __init__(self, path: Path, spec: ProblemSpec, recording: Recording, entry: dict):
        self.path, self.spec, self.recording, self.entry = path, spec, recording, entry
        self.notes: list[str] = []  # for people
        self._saved = 0
        self._along: Counter[str] = Counter()  # episodes by their actions
        self._count(recording)
        self._journal = Appended(journal_of(path))
        self._layout = _Layout.of(self._journal.path, spec, self._saved)
        self.ledger = _Counting(self, max(self._saved, entry.get("real_episodes", 0)))

    def append(self, new: Recording) -> None:
        """Puts new episodes on the disk.

        Raises:
            FileError: the system refuses; what was there before stays, and the message says how many are not saved.
        """
        try:
            self._journal.add(self._layout.lines(new, self.spec))
        except FileError as error:
            kept = "are in the file" if self._journal.path.exists() else "were in a file that is gone"
            raise FileError(
                expected=error.expected,
                got=f"{error.got}; {len(new)} unsaved episodes (the {self._saved} before them {kept})",
                cause=error.cause,
            ) from error
        self._layout = self._layout.after(len(new))
        self._count(new)

    def note(self, **facts: object) -> None:
        """Writes the ledger with these JSON facts; what else it said stays."""
        self.entry |= {
            "real_episodes": self.ledger.counts["real"],
            "recorded_episodes": self._saved,
            "by_actions": dict(self._along),
            **facts,
        }
        write_text(ledger_of(self.path), json.dumps(self.entry, indent=2) + "\n")

    def _count(self, new: Recording) -> None:
        self._saved += len(new)
        self._along.update(spelt(tuple(path)) for path in new.actions.tolist())


class _Counting(Ledger):
    """A ledger that is on the disk before an episode is drawn."""

    def __init__(self, logbook: Logbook, drawn: int):
        super().__init__(Counter(real=drawn))
        self._logbook = logbook

    def add(self, purpose: str, episodes: int) -> None:
        super().add(purpose, episodes)
        try:
            self._logbook.note(status=COLLECTING)
        except FileError:
            self.counts[purpose] -= episodes  # they will not be drawn
            raise


@dataclass(frozen=True)
class _Layout:
    """The form of a journal's rows."""

    columns: tuple[str, ...]
    sensors: tuple[str, ...]  # which of them are the sensors', in the schema's order
    label: int  # of the next episode
    line_break: str = "\n"
    header: bool = False  # whether the columns are still to be named

    @staticmethod
    def of(path: Path, spec: ProblemSpec, saved: int) -> _Layout:
        """The layout of a file, ours where there is none."""
        path = real_path(path)
        if not path.exists():
            return _Layout((*KEYS, *spec.obs_names), spec.obs_names, saved, header=True)
        table = read_table(path)
        labels = set(table.labels("episode").tolist())
        numbers = [int(label) for label in labels if label.isascii() and label.isdigit()]
        line_break = "\r\n" if path.read_bytes().endswith(b"\r\n") else "\n"
        label = max([len(labels), *(number + 1 for number in numbers)])
        return _Layout(table.source.all_names, tuple(sensor_columns(table, spec)), label, line_break)

    def after(self, episodes: int) -> _Layout:
        """The layout once so many episodes were appended."""
        return replace(self, label=self.label + episodes, header=False)

    def lines(self, new: Recording, spec: ProblemSpec) -> bytes:
        """New episodes as lines; columns that are not ours stay empty."""
        ours = dict(zip((*KEYS, *self.sensors), columns_of(new, spec, self.label).values(), strict=True))
        blank = [""] * len(ours["step"])
        rows = zip(*(ours[name].tolist() if name in ours else blank for name in self.columns), strict=True)
        return lines_of([self.columns, *rows] if self.header else rows, self.line_break)


def read_log(path: Path | str, spec: ProblemSpec, *, short_episodes: bool = False, empty: bool = False) -> Recording:
    """The episodes of a log, those included that a crash kept from being folded into it.

    Raises:
        RecordingError: as `read_recording`; and where there is no file, unless `empty`.
    """
    journal, accept = journal_of(path), {"short_episodes": short_episodes, "empty": empty}
    waiting = journal != Path(path) and real_path(journal).exists()
    there = real_path(path).exists()
    recording = read_recording(path, spec, **accept) if there or not (empty or waiting) else Recording.empty(spec)
    if not waiting:
        return recording
    later = read_recording(journal, spec, short_episodes=True, empty=True)
    first = int(read_table(journal).labels("episode")[0]) if len(later) else 0
    return Recording.joined([recording, later.since(len(recording) - first)])


def ledger_of(path: Path | str) -> Path:
    """Where the ledger of a log is."""
    return Path(path).with_name(Path(path).name + ".ledger.json")


def journal_of(path: Path | str) -> Path:
    """The file that new episodes are appended to: the log itself, if it is CSV."""
    path = Path(path)
    return path if path.suffix.lower() == ".csv" else path.with_name(path.name + ".journal.csv")


def looked_before(path: Path | str) -> bool:
    """Whether a log was once looked at sequentially, so that what it holds may depend on what was seen."""
    return bool(_entry(Path(path)).get("sequential"))


def _of_this_world(entry: dict, path: Path, world: str | None) -> dict:
    """A ledger that says from now on whose episodes are counted; RecordingError where they are another world's."""
    said = entry.get("world")
    if world and said and said != world:
        raise RecordingError(
            expected=f"a log of {printable(world)}",
            got=f"one of {printable(said)}, as {printable(ledger_of(path))} says",
            cause="one log for several worlds, as in a sweep: what one shows says nothing of another",
        )
    return entry | ({"world": world} if world else {})


def _fold(path: Path, spec: ProblemSpec) -> None:
    """Writes a journal's episodes into the file that they belong to, and removes it; again is as good as once."""
    journal = journal_of(path)
    if journal != path and real_path(journal).exists():
        write_recording(path, read_log(path, spec, short_episodes=True, empty=True), spec)
        removed(journal)


def _mended(journal: Path) -> str | None:
    """Cuts a last line off that a crash left unfinished; says so."""
    path = real_path(journal)
    data = path.read_bytes() if path.exists() else b""
    kept = data.rstrip(b"\0")
    kept = kept[: kept.rfind(b"\n") + 1]
    if kept == data:
        return None
    write_bytes(journal, kept)
    return f"the last line of {printable(journal)} was cut by a crash; {len(data) - len(kept)} bytes were removed"


def _refuse_to_lose(path: Path, spec: ProblemSpec) -> None:
    """Raises RecordingError where going on with a file would lose something that it holds."""
    file, lost = real_path(path), []
    if not file.exists():
        return
    if journal_of(path) == path:
        wide = [encoding for mark, encoding in WIDE.items() if file.read_bytes().startswith(mark)]
        lost = [f"its encoding, {wide[0].upper()}"] if wide else []
    else:
        table = read_table(path)
        others = sorted(set(table.names) - {*KEYS, *sensor_columns(table, spec)})
        labels = list(dict.fromkeys(table.labels("episode").tolist()))
        filled = len(read_recording(path, spec, short_episodes=True, empty=True))
        lost += [f"columns {', '.join(others)}"] if others else []
        lost += [f"labels such as {labels[0]!r}"] if labels[:filled] != [*map(str, range(filled))] else []
        lost += [f"{len(labels) - filled} episodes without readings"] if len(labels) > filled else []
    if lost:
        raise RecordingError(
            expected="a log that can be gone on with as it is",
            got=f"{printable(path)}, which would lose {printable('; '.join(lost))}",
            cause="this format is written anew as a whole: take CSV in UTF-8, where rows are appended, or another name",
        )


def _entry(path: Path) -> dict:
    """The ledger of a log; empty where there is none."""
    file = real_path(ledger_of(path))
    if not file.exists():
        return {}
    try:
        entry = json.loads(file.read_text())
        drawn = entry["real_episodes"]
        if type(drawn) is not int or drawn < 0:
            raise ValueError(f"real_episodes = {drawn!r}")
        return entry
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(
            expected=f"a ledger with real_episodes in {printable(ledger_of(path))}",
            got=printable(f"{type(error).__name__}: {error}"),
            cause="a file edited by hand; delete it to count the recorded episodes alone",
        ) from error
