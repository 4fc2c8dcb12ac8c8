"""Figures of matplotlib, which is optional, and the pictures on a page that they become."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from gloader.errors import MissingDependencyError
from gloader.lab.report.page import Picture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DPI: Final = 150


def new_figure(*, width: float, height: float) -> Any:
    """Return a figure of so many inches.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        # Not pyplot: it keeps every figure alive and looks for a display.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of_extra("the picture needs matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, *, grid: str = "y") -> None:
    """Take what is not needed from ``axes``, and let thin lines help to read values off."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)


def save_figure(figure: Any, path: Path | BinaryIO) -> None:
    """Write ``figure`` as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(_DPI)
    # A report is drawn of any numbers, those of a diverged run among them, whose axes overflow.
    with np.errstate(over="ignore"):
        FigureCanvasAgg(figure).print_png(path)


def drawn(name: str, caption: str, draw: Callable[[BinaryIO], None]) -> Picture:
    """Return the picture that ``draw`` writes; errors as of ``draw``."""
    # Never a file of its own: a page that is killed in the making leaves nothing.
    png = BytesIO()
    draw(png)
    return Picture(name=slug(name), caption=caption, png=png.getvalue())


def slug(name: str) -> str:
    """Return ``name`` as that of a file. Pure."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
