"""report.html: whole, escaped, self-contained, and readable in a real browser where there is one."""

import re
import shutil
import subprocess

import pytest
from support.summaries import summary_by_hand

from s2r_torch.reports.page import CAPTIONS, run_page
from s2r_torch.reports.style import new_figure, png

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pictures() -> dict[str, bytes]:
    figures = {name: new_figure(4, 2) for name in CAPTIONS}
    for figure in figures.values():
        figure.subplots().plot([0, 1])
    return {name: png(figure) for name, figure in figures.items()}


def page(**changes) -> str:
    return run_page(summary_by_hand(**changes), pictures(), {"budget.n_dist": 100})


def test_it_has_everything_and_needs_nothing_else():
    text = page(notices=("a note",), warnings=("UserWarning: one",))
    assert text.count("data:image/png;base64,") == len(CAPTIONS)
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    for words in ("budget.n_dist", "a note", "UserWarning: one", "best fixed action list", "300"):
        assert words in text


def test_text_from_outside_stays_text():
    text = page(notices=("<script>alert(1)</script>", "a\x1b[31mb"))
    assert "<script>" not in text and "&lt;script&gt;" in text and "\x1b" not in text


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
def test_a_browser_shows_it_on_a_phone_and_in_print(tmp_path):
    place, profile = tmp_path / "report.html", tmp_path / "profile"
    place.write_text(page())
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", "--disable-quic", f"--user-data-dir={profile}"]

    def shown(*options: str) -> str:
        command = [str(BROWSER), *quiet, *options, place.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "deployed value per episode" in shown("--dump-dom")
    shown("--window-size=390,1200", f"--screenshot={tmp_path / 'phone.png'}")
    shown(f"--print-to-pdf={tmp_path / 'print.pdf'}")
    assert (tmp_path / "phone.png").stat().st_size > 10_000 and (tmp_path / "print.pdf").stat().st_size > 10_000
