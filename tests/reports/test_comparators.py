"""The table and the figure of comparators, from cells made by hand."""

import csv
from io import StringIO

import pytest
import torch
from rich.console import Console

from s2r_torch.comparators.contract import COMPARATORS
from s2r_torch.reports.comparators_figure import comparators_figure
from s2r_torch.reports.comparators_table import Line, Point, comparators_table, lines_of, where_we_lose, write_lines
from s2r_torch.reports.style import save_figure
from s2r_torch.runs.curves import Measured
from s2r_torch.runs.results import Cell


def cell(name, n, share, episodes, seed=0, worlds=50, accepted=1.0, simulator=0):
    optimal = torch.linspace(0.4, 0.8, worlds, dtype=torch.float64)
    return Cell(name, n, seed, share * optimal, optimal, episodes, accepted, simulator, "")


def by_hand() -> Measured:
    cells = [
        cell("ours", 5, 0.9, 15, seed=0), cell("ours", 5, 0.94, 15, seed=1), cell("ours", 50, 1.0, 150),
        cell("bayes", 3, 0.97, 3), cell("open_loop", None, 0.75, 0), cell("random", None, 0.6, 0),
        cell("lsvee", 40, 0.91, 900, accepted=0.3), cell("lsvee", 10, 0.8, 240), cell("cutler2015", 5, 0.99, 10),
    ]  # fmt: skip
    return Measured(cells, {cell.name: 2.0 for cell in cells}, {"pcid": "no block MDP"})


def test_seeds_are_pooled_and_points_ordered():
    lines = {line.name: line for line in lines_of(by_hand())}
    assert list(lines) == ["ours", "bayes", "open_loop", "random", "lsvee", "cutler2015"]
    first = lines["ours"].points[0]
    assert first.share == pytest.approx(0.92) and first.worlds == 100
    assert [point.episodes for point in lines["lsvee"].points] == [240, 900]


def test_a_share_is_a_ratio_of_means_with_the_interval_of_the_paired_gap():
    """95 % of the mean gap over 50 worlds, by the t distribution's 2.0096, in units of the mean optimum."""
    optimal = torch.linspace(0.4, 0.8, 50, dtype=torch.float64)
    gap = torch.linspace(0.0, 0.2, 50, dtype=torch.float64)
    point = lines_of(Measured([Cell("ours", 5, 0, optimal - gap, optimal, 15, 1.0, 0, "")], {"ours": 0.0}))[0].points[0]
    assert point.share == pytest.approx(0.5 / 0.6)
    assert point.half == pytest.approx(2.0096 * float(gap.std()) / 50**0.5 / 0.6, rel=1e-4)


def test_episodes_are_read_between_points_on_a_log_axis():
    line = Line("ours", tuple(Point(n, s, 0.0, 1.0, 9) for n, s in ((10, 0.9), (1000, 1.0))), 0, 0.0)
    assert line.episodes_for(0.95) == pytest.approx(100) and line.episodes_for(0.85) == 10
    assert line.share_after(100) == pytest.approx(0.95) and line.share_after(5) is None
    flat = Line("open_loop", (Point(0, 0.7, 0.0, 1.0, 9),), 0, 0.0)
    assert flat.episodes_for(0.95) is None and flat.share_after(300) == 0.7


def test_the_table_has_what_everybody_saw_and_who_is_left_out():
    lines = lines_of(by_hand())
    console = Console(file=StringIO(), width=280)
    console.print(comparators_table(lines, "comparators on grid", by_hand().left_out))
    text = console.file.getvalue()
    for word in ("real reward", "theta labels", "through the bank", "never", "> 900", "is left out: no block MDP"):
        assert word in text
    assert all(line.label.split()[0] in text for line in lines)


def test_it_says_where_ours_loses():
    """Ours reaches .95 after 15 (150/15)^((.95 - .92) / .08) episodes, Cutler 2015 after 10; the limit is no rival."""
    (ninety_five, ninety_nine) = where_we_lose(lines_of(by_hand()))
    needs = 15 * 10 ** (0.03 / 0.08)
    assert f"({needs:,.0f} episodes)" in ninety_five and "Cutler 2015) (10)" in ninety_five
    assert "Bayes" not in ninety_five and "0.99" in ninety_nine


def test_figure_and_rows_are_written(tmp_path):
    lines = lines_of(by_hand())
    figure = comparators_figure(lines, "comparators on grid")
    left, right = figure.axes
    shown = [{text.get_text() for text in axes.get_legend().get_texts()} for axes in (left, right)]
    assert COMPARATORS["lsvee"].label in shown[1] - shown[0]
    assert {COMPARATORS["ours"].label, COMPARATORS["bayes"].label} <= shown[0] & shown[1]
    assert left.get_xticklabels()[0].get_text() == "0" and left.get_xscale() == "log"
    save_figure(figure, tmp_path / "comparators.png")
    write_lines(lines, tmp_path)
    rows = list(csv.DictReader(StringIO((tmp_path / "curves.csv").read_text())))
    assert len(rows) == 8 and rows[0]["method"] == "ours" and rows[-1]["reward"] == "yes"
    assert (tmp_path / "comparators.png").stat().st_size > 20_000
