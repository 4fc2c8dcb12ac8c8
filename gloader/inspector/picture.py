"""The picture of an inspection: memory against bytes read from the SSD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.printable import printable_line
from gloader.core.units import format_bytes
from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from gloader.inspector.policy_misses import Inspection

_STYLES = {"belady": "-", "static": "--", "none": ":"}


def save_picture(inspection: Inspection, path: Path | BinaryIO, *, title: str) -> None:
    """Write a PNG with a curve per policy and a mark at the knee.

    Parameters
    ----------
    inspection : what is drawn
    path : of the PNG file, replaced if it exists; or a file that is open for writing
    title : above the picture

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of_extra("the picture needs matplotlib", "plot") from error
    # A canvas of its own instead of pyplot: no display, and nothing global is left behind.
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    memory_factor, memory_unit = _unit(max(inspection.memory_bytes()))
    read_factor, read_unit = _unit(max(inspection.epoch_bytes("none")))
    memory = [size / memory_factor for size in inspection.memory_bytes()]
    for name in inspection.misses:
        read = [size / read_factor for size in inspection.epoch_bytes(name)]
        style = _STYLES.get(name.split(",")[0], "-.")
        label = f"{name} (loading it not counted)" if name.startswith("static") else name
        axes.plot(memory, read, style, label=label, linewidth=1.5, marker=".", markersize=4)
    axes.axvline(inspection.knee_bytes / memory_factor, color="grey", linewidth=0.8)
    axes.annotate(
        f"knee {format_bytes(inspection.knee_bytes)}",
        (inspection.knee_bytes / memory_factor, axes.get_ylim()[1]),
        xytext=(4, -12),
        textcoords="offset points",
        color="grey",
    )
    axes.set(
        xlabel=f"host cache, {memory_unit}",
        ylabel=f"rows read from the SSD per epoch, {read_unit}",
        title=printable_line(title),
    )
    axes.title.set_parse_math(parse_math=False)  # a dollar in a name is a dollar
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    FigureCanvasAgg(figure).print_png(path)


def _unit(num_bytes: int) -> tuple[float, str]:
    """Return the unit in which an axis up to ``num_bytes`` reads well. Pure."""
    for factor, name in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= factor:
            return factor, name
    return 1e3, "KB"
