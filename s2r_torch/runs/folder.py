"""The folder of a run: every finished stage whole or not at all, so that a run killed anywhere goes on from there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2r_torch.deployment.certificate import Certificate
from s2r_torch.deployment.policy import MetaPolicy
from s2r_torch.deployment.policy_file import save_policy
from s2r_torch.errors import CheckpointError, FileError, FolderError, OtherRunError
from s2r_torch.files import tensors
from s2r_torch.files.locks import locked
from s2r_torch.files.records import Codec
from s2r_torch.files.strict_json import parsed
from s2r_torch.files.whole import told, write_text
from s2r_torch.progress import Row
from s2r_torch.runs.origin import differences
from s2r_torch.text import printable

STAGES, FITS = "stages", "training"  # folders of finished stages and of unfinished fits
ORIGIN = "origin.json"  # among the stages
POLICY = "policy.safetensors"
REPORTS = ("certificate.txt", "config.yaml", "metrics.csv", "report.html", "summary.json")
PICTURES = ("exploration.png", "learning.png", "run.png", "value.png")
WRITTEN = (POLICY, *REPORTS, *PICTURES)  # beside the two folders
STAGE = re.compile(r"[a-z][\w-]*")  # names of stages
DAMAGED = "a damaged file; delete it, and the stage is done again"
MOST_TOLD = 6  # differences that a message lists


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished stage: what it found, and what that took."""

    result: Any
    episodes: dict[str, int]  # by purpose
    steps: dict[str, int]  # of environments, by purpose
    seconds: float  # of wall time
    cpu_seconds: float
    rows: tuple[Row, ...]  # its curves
    warnings: tuple[str, ...] = ()  # that libraries gave meanwhile


class RunFolder:
    """Finished stages on disk. Nothing else is needed to go on, and nothing of another run is ever taken up.

    Args:
        path: the folder; made if it is not there.
        origin: what the run is a function of (`origin.origin_of`).
        codec: writes and reads the stages' results.

    Raises:
        OtherRunError: the folder holds stages of another configuration or version; it names what differs.
        FolderError: no run was begun in it, and there are files that this one would write over; or a stage is damaged.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any], codec: Codec):
        self.path, self._codec = Path(path), codec
        place = self.path / STAGES / ORIGIN
        if begun(self.path):
            self._require_same(_origin(place), origin)
            require_whole(self.path)
        else:
            self._require_free()
            write_json(place, origin)

    def load(self, stage: str, digest: str) -> Finished | None:
        """What the stage left when it was a function of the same things; None where it has not finished.

        Raises:
            CheckpointError: a damaged file.
        """
        place = self._place(stage)
        if not place.exists():
            return None
        header, found = tensors.read(place)
        if header.get("of") != digest:
            return None
        try:
            return Finished(
                self._codec.unpack(header["result"], found),
                header["episodes"],
                header["steps"],
                header["seconds"],
                header["cpu_seconds"],
                self._codec.unpack(header["rows"], {}),
                tuple(header["warnings"]),
            )
        except (KeyError, CheckpointError) as error:
            expected = f"the stage {stage} in {printable(place)}"
            raise CheckpointError(expected=expected, got=str(error), cause=DAMAGED) from error

    def save(self, stage: str, digest: str, finished: Finished) -> None:
        """Keeps a finished stage; its unfinished fits are not needed any more."""
        packed, found = self._codec.pack(finished.result)
        header = {
            "of": digest,
            "result": packed,
            "episodes": finished.episodes,
            "steps": finished.steps,
            "seconds": finished.seconds,
            "cpu_seconds": finished.cpu_seconds,
            "rows": self._codec.pack(finished.rows)[0],  # a curve may hold values that are not finite
            "warnings": finished.warnings,
        }
        tensors.write(self._place(stage), found, header)
        shutil.rmtree(self.fits, ignore_errors=True)

    @property
    def fits(self) -> Path:
        """Where unfinished fits are kept."""
        return self.path / FITS

    @property
    def has_policy(self) -> bool:
        """Whether there is a policy file."""
        return (self.path / POLICY).exists()

    def save_policy(self, meta_policy: MetaPolicy, certificate: Certificate | None, family: dict, notes: dict) -> None:
        """policy.safetensors, and certificate.txt where something is promised."""
        save_policy(self.path / POLICY, meta_policy, family=family, certificate=certificate, notes=notes)
        if certificate:
            write_text(self.path / "certificate.txt", certificate.page() + "\n")

    def _place(self, stage: str) -> Path:
        return self.path / STAGES / f"{stage}.safetensors"

    def _require_free(self) -> None:
        there = [name for name in WRITTEN if (self.path / name).exists()]
        if there:
            raise FolderError(
                expected=f"a folder for this run, new or its own: {printable(self.path)}",
                got=f"one without a run, and with {', '.join(there)}, which the run would write over",
                cause="a folder of something else, or of a run whose stages were deleted; choose a fresh one",
            )

    def _require_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        unlike = differences(before, now)
        if unlike:
            more = f" and {len(unlike) - MOST_TOLD} more" if len(unlike) > MOST_TOLD else ""
            raise OtherRunError(
                expected=f"the configuration and version that {self.path} was begun with",
                got=f"others: {', '.join(unlike[:MOST_TOLD])}{more}",
                cause="another command or another version; choose a fresh folder, or give the settings of this one",
            )


def require_whole(path: Path) -> None:
    """Reads all stages before one is done, and before the policy of an earlier one takes a later one's place.

    Raises:
        FolderError: one is damaged.
    """
    for file in _stages(path):
        try:
            tensors.read(file)
        except CheckpointError as error:
            got = f"{error.got} (expected {error.expected})"
            raise FolderError(expected=f"a whole stage {file.stem}", got=got, cause=DAMAGED) from error


def _origin(place: Path) -> dict:
    """What a folder says that it was begun with."""
    try:
        found = parsed(place.read_text())
        if not isinstance(found, dict):
            raise ValueError("no record")
        return found
    except (OSError, ValueError) as error:
        raise FolderError(
            expected=f"what a run is a function of, in {printable(place)}",
            got=printable(f"{type(error).__name__}: {error}"),
            cause="a file that was edited or cut short; choose a fresh folder",
        ) from error


@contextmanager
def held(path: Path | None) -> Iterator[None]:
    """Keeps a folder for this process alone; None holds nothing.

    Raises:
        FolderError: another process has it, or it cannot be written to.
    """
    with ExitStack() as stack:
        if path is not None:
            try:
                with told(path):
                    path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(path))
            except FileError as error:
                raise FolderError(expected=error.expected, got=error.got, cause=error.cause) from error
        yield


def cleared(path: Path) -> None:
    """Removes another run from a folder, and nothing else that is there.

    Raises:
        FolderError: as `held`.
    """
    with held(path), told(path, "to be cleared"):
        for folder in (path / STAGES, path / FITS):
            if folder.exists():
                shutil.rmtree(folder)
        for name in WRITTEN:
            (path / name).unlink(missing_ok=True)


def begun(path: Path) -> bool:
    """Whether a folder is a run's."""
    return (path / STAGES / ORIGIN).exists()


def finished_stages(path: Path) -> dict[str, dict]:
    """Stage -> episodes and steps by purpose, and seconds, of a folder's stages in the order of their ending."""
    files = sorted(_stages(path), key=lambda file: file.stat().st_mtime_ns)
    headers = {file.stem: tensors.header(file) for file in files}
    return {name: {key: header[key] for key in ("episodes", "steps", "seconds")} for name, header in headers.items()}


def _stages(path: Path) -> list[Path]:
    """The stages' files; others that lie beside them, such as a copy of a file manager's, are nobody's."""
    return [file for file in (path / STAGES).glob("*.safetensors") if STAGE.fullmatch(file.stem)]


def write_json(path: Path, values: object) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(values, indent=2) + "\n")
