"""The table of what was found about a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from s2r_torch.text import printable

if TYPE_CHECKING:
    from s2r_torch.families.check import Report

STYLES = {"ok": "green", "note": "yellow", "refused": "bold red"}
LONGEST = 600  # characters of a cell


def check_table(report: Report) -> Table:
    """One row per finding: what was checked, what was found; below it the likely cause, and what to write."""
    took = f"{report.episodes:,} simulator episodes, {report.steps:,} steps"
    view = Table(title=f"{report.family}: {took}", title_justify="left")
    view.add_column("")
    view.add_column("checked", min_width=16, overflow="fold")
    view.add_column("found, likely cause, what to write", overflow="fold")
    for f in report.findings:
        said = [f.found, f.cause and f"cause: {f.cause}", f.write and f"write: {f.write}"]
        text = "\n".join(printable(part, LONGEST) for part in said if part)
        view.add_row(Text(f.level, STYLES[f.level]), Text(printable(f.checked)), Text(text))
    return view
