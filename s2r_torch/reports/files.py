"""What a run leaves for people, in its folder: summary, curves and pictures."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from s2r_torch.defaults import plain_torch
from s2r_torch.files.whole import fixed_path, write_bytes, write_text
from s2r_torch.given import taking
from s2r_torch.reports.console import write_metrics
from s2r_torch.reports.exploration_figure import exploration_figure
from s2r_torch.reports.learning_figure import learning_figure, surfaces
from s2r_torch.reports.page import run_page
from s2r_torch.reports.run_figure import run_figure
from s2r_torch.reports.style import plain_look, png
from s2r_torch.reports.summary import Summary
from s2r_torch.reports.value_figure import value_figure
from s2r_torch.runs.folder import write_json
from s2r_torch.runs.origin import origin_of
from s2r_torch.runs.run import Results


@taking()
@plain_torch()
def write_reports(results: Results, folder: Path | str) -> Summary:
    """summary.json, metrics.csv, every picture, and report.html with all of it."""
    folder = fixed_path(folder)
    summary = Summary.of(results)
    write_json(folder / "summary.json", summary.to_json())
    write_metrics(folder / "metrics.csv", results.rows)
    with plain_look():
        pictures = {name: png(figure) for name, figure in figures(results, summary).items()}
    for name, picture in pictures.items():
        write_bytes(folder / f"{name}.png", picture)
    write_text(folder / "report.html", run_page(summary, pictures, origin_of(results.settings, results.family)))
    return summary


def figures(results: Results, summary: Summary) -> dict[str, Figure]:
    """The pictures of a run, by name."""
    judges = results.learned.outcome.exploration.D_hat
    shown = surfaces(results.certified.meta_policy, judges, results.draws.theta("judge", len(judges)))
    explored, names = results.explored, results.family.spec.obs_names
    return {
        "run": run_figure(summary, results.rows),
        "exploration": exploration_figure(explored.exploration, explored.estimator.grid, names),
        "learning": learning_figure(summary, results.rows, shown),
        "value": value_figure(summary),
    }
