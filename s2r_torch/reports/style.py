"""What all figures share: how they are made, and how they get into files and pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2r_torch.files.whole import write_bytes

DPI = 150
COLUMNS = 9  # pictures of steps side by side; more could not be read


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, drawn without any window system or global state."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


@contextmanager
def plain_look() -> Iterator[None]:
    """Matplotlib as it is without a `matplotlibrc`: one that asks for LaTeX or for fonts that are not there must not
    decide whether a run has a report."""
    settings = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    with matplotlib.rc_context(settings):
        yield


def some_steps(horizon: int) -> list[int]:
    """The steps of an episode that are drawn side by side: all, or `COLUMNS` of them, the first and the last included.

    >>> some_steps(3), some_steps(17)
    ([0, 1, 2], [0, 2, 4, 6, 8, 10, 12, 14, 16])
    """
    if horizon <= COLUMNS:
        return list(range(horizon))
    return [round(i * (horizon - 1) / (COLUMNS - 1)) for i in range(COLUMNS)]


def save_figure(figure: Figure, path: Path) -> None:
    """A PNG file, whole or not at all."""
    write_bytes(path, png(figure))


def png(figure: Figure) -> bytes:
    """The figure as bytes, which may go to a file and into a page: drawing takes most of the time of a report."""
    buffer = BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)  # `savefig` draws it twice
    return buffer.getvalue()
