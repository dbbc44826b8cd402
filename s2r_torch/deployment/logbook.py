"""A live world's episodes in a file, and beside it the ledger of what they cost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from s2r_torch.base import ProblemSpec
from s2r_torch.deployment.recording.episodes import Recording, spelt
from s2r_torch.deployment.recording.files import read_recording, write_recording
from s2r_torch.deployment.recording.tables import check_ending
from s2r_torch.episodes import Ledger
from s2r_torch.errors import RecordingError
from s2r_torch.files.whole import replacing


class Logbook:
    """A world's episodes in a file, and beside it the ledger of what they cost (`FILE.ledger.json`).

    Args:
        path: CSV, NPZ or Parquet; an existing file is gone on from.
        spec: what is recorded.

    Raises:
        RecordingError: the existing file, or its ledger, is damaged or of other sensors.
        SettingError: another ending.
    """

    def __init__(self, path: Path | str, spec: ProblemSpec):
        check_ending(path)
        self.path, self.spec = Path(path), spec
        self.ledger_path = self.path.with_name(self.path.name + ".ledger.json")
        exists = self.path.exists()
        self.recording = read_recording(path, spec, short_episodes=True) if exists else Recording.empty(spec)
        self.ledger = Ledger()
        self.ledger.add("real", max(len(self.recording), self._counted()))

    def save(self, recording: Recording, **facts: object) -> None:
        """Writes the episodes, then the ledger with these JSON facts; each file is replaced in one go."""
        if len(recording):
            write_recording(self.path, recording, self.spec)
        self.recording = recording
        self.note(**facts)

    def note(self, **facts: object) -> None:
        """Writes the ledger alone."""
        along = Counter(map(spelt, map(tuple, self.recording.actions.tolist())))
        entry = {
            "real_episodes": self.ledger.counts["real"],
            "recorded_episodes": len(self.recording),
            "by_actions": along,
            **facts,
        }
        with replacing(self.ledger_path) as partial:
            partial.write_text(json.dumps(entry, indent=2) + "\n")

    def _counted(self) -> int:
        if not self.ledger_path.exists():
            return 0
        try:
            return int(json.loads(self.ledger_path.read_text())["real_episodes"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(
                expected=f"a ledger with real_episodes in {self.ledger_path}",
                got=f"{type(error).__name__}: {error}",
                cause="a file edited by hand; delete it to count the recorded episodes alone",
            ) from error
