"""What all figures share: how they are made, and how they get into files and pages."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2r_torch.files.whole import replacing

DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, drawn without any window system or global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """A PNG file, whole or not at all."""
    with replacing(path) as partial:
        figure.savefig(partial, dpi=DPI)


def png(figure: Figure) -> bytes:
    """The same, as bytes for a page."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
