"""What a check of a family found, as a table of plain values."""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.errors import S2RError, SettingError, SimulatorError

OK, NOTE, REFUSED = "ok", "note", "refused"
LEVELS = (OK, NOTE, REFUSED)


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Args:
        checked: what was looked at.
        level: `ok`, `note` (a run is possible, read this first) or `refused` (a run would be wrong, or fail).
        found: what was seen, with numbers and names.
        cause: the likely cause.
        write: what to write instead.
        error: the error that `Report.require` raises for it.
    """

    checked: str
    level: str
    found: str
    cause: str = ""
    write: str = ""
    error: type[S2RError] = SimulatorError


@dataclass(frozen=True)
class Report:
    """All findings on one family, in the order of the checks.

    Args:
        family: its name.
        findings: one or more per check.
        episodes: simulator episodes that the checks took.
        steps: what these took of the environment.
    """

    family: str
    findings: tuple[Finding, ...]
    episodes: int = 0
    steps: int = 0

    def __getitem__(self, checked: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.checked == checked)

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What makes a run wrong, or fail."""
        return tuple(f for f in self.findings if f.level == REFUSED)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth reading before a run."""
        return tuple(f for f in self.findings if f.level == NOTE)

    def require(self) -> None:
        """Raises one error that says what was refused: SettingError for settings, else SimulatorError."""
        if not self.refused:
            return
        first, *others = self.refused
        kind = SettingError if issubclass(first.error, SettingError) else SimulatorError
        more = f" (and {len(others)} more: {', '.join(f.checked for f in others)})" if others else ""
        cause = "; ".join(part for part in (first.cause, first.write) if part)
        raise kind(expected=f"{self.family}: {first.checked}", got=first.found + more, cause=cause)

    def lines(self) -> list[str]:
        """One line of text per finding."""
        return [
            f"{f.level:<8}{f.checked}: " + "; ".join(part for part in (f.found, f.cause, f.write) if part)
            for f in self.findings
        ]
