"""report.html: everything about a run, or several side by side, on one page that needs nothing else.

Pictures are in the page itself, text is escaped, and it reads on a phone and in print.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from s2r_torch.reports import console
from s2r_torch.reports.summary import Summary
from s2r_torch.text import printable

CAPTIONS = {
    "run": "Values beside their comparators; survivors of the elimination; training.",
    "exploration": "The state graph, the densities of two simulators, and why paths were merged.",
    "learning": "Every member's learning curve, the survivors, and the chosen policy in two simulators.",
    "value": "What deployed policies are worth against real-world episodes, none with a reward.",
}
LONGEST = 2000  # characters of one cell


@dataclass(frozen=True)
class Section:
    """One part of a page; whatever is empty is left out."""

    name: str
    heading: str
    rows: Sequence[Sequence[str]] = ()
    columns: Sequence[str] = ()
    text: str = ""
    pictures: Sequence[tuple[str, str]] = ()  # (base64 of a PNG, caption)
    notes: Sequence[str] = ()


def run_page(summary: Summary, pictures: Mapping[str, bytes], settings: Mapping[str, object]) -> str:
    """The page of one run.

    Args:
        summary: what it found.
        pictures: its PNGs, by the names of `CAPTIONS`.
        settings: dotted name -> value, of everything that it depends on.
    """
    worth = summary.value.worth
    shown = {name: (_inlined(picture), CAPTIONS[name]) for name, picture in pictures.items()}
    certificate = summary.certificate
    sections = [
        Section("values", "Values", console.lines(summary), pictures=[shown["run"], shown["value"]]),
        Section("certificate", "What is promised", text=certificate.page() if certificate else "Nothing."),
        Section(
            "assumptions",
            "Assumptions 1-5, as far as data can tell",
            [(found.assumption, found.verdict, found.text) for found in summary.assumptions],
            ("assumption", "verdict", "what was found"),
        ),
        Section("exploration", "Exploration", pictures=[shown["exploration"]]),
        Section("learning", "Learning", pictures=[shown["learning"]]),
        Section("warnings", "Notes and warnings", notes=[*summary.notices, *summary.warnings] or ["None."]),
        Section("settings", "Settings and versions", [(name, str(value)) for name, value in settings.items()]),
    ]
    numbers = [
        (f"{worth.value:.3f}", "deployed value per episode, no reward seen"),
        (f"{summary.value.share:.1%}", f"of the best possible in the same {worth.num_worlds} worlds"),
        (f"{summary.real.drawn:,}", "real episodes per world, none with a reward"),
        *([(f"{certificate.value_lower:.3f}", "certified mean value")] if certificate else []),
    ]
    lead = f"{summary.method} with rule {summary.rule}, class {summary.net}, seed {summary.seed}"
    return page(f"{summary.experiment}: trained on simulators, deployed without reward", lead, numbers, sections)


def comparison_page(title: str, rows: Sequence[Mapping[str, object]], picture: bytes) -> str:
    """The page of a comparison.

    Args:
        title: what is compared.
        rows: one per finished run, with the same columns (`comparison.ComparedRun`).
        picture: a PNG of all of them.
    """
    columns = list(rows[0]) if rows else []
    cells = [[f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    sections = [
        Section("figure", "Side by side", pictures=[(_inlined(picture), title)]),
        Section("runs", "Every run", cells, columns),
    ]
    return page(title, f"{len(rows)} finished runs, each judged in the same held-out worlds", (), sections)


def page(title: str, lead: str, numbers: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """One self-contained HTML page."""
    environment = Environment(
        loader=PackageLoader("s2r_torch.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    kept = [_printable(section) for section in sections if _filled(section)]
    return environment.get_template("report.html.j2").render(title=title, lead=lead, numbers=numbers, sections=kept)


def _filled(section: Section) -> bool:
    return bool(section.rows or section.text or section.pictures or section.notes)


def _printable(section: Section) -> Section:
    """The section with every cell on one line of bounded length."""
    rows = [[printable(cell, LONGEST) for cell in row] for row in section.rows]
    notes = [printable(note, LONGEST) for note in section.notes]
    return Section(section.name, section.heading, rows, section.columns, section.text, section.pictures, notes)


def _inlined(picture: bytes) -> str:
    return base64.b64encode(picture).decode()
