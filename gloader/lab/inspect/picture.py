"""The pictures of inspections: bytes read from the SSD against memory, or against the batches that share a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.malformed import printable_line
from gloader.core.units import format_bytes
from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from matplotlib.axes import Axes

    from gloader.dataset.edge_passes import PassWay
    from gloader.lab.inspect.policy_misses import Inspection
    from gloader.lab.inspect.topology_reads import TopologyReads

_STYLES = {"belady": "-", "static": "--", "none": ":"}
_WAY_STYLES: dict[PassWay, str] = {"direct": "-.", "merged": "--", "full": "-"}


def save_picture(inspection: Inspection, path: Path | BinaryIO, *, title: str) -> None:
    """Write a PNG with a curve per policy and a mark at the knee.

    Parameters
    ----------
    inspection : the data of the curves
    path : of the PNG file, replaced if it exists; or a file that is open for writing
    title : above the picture

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    axes, print_png = _canvas()
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
    print_png(path)


def save_topology_picture(reads: TopologyReads, path: Path | BinaryIO, *, title: str) -> None:
    """Write a PNG with a curve per way of reading edges and a mark at the size of a pass that a loader would choose.

    Parameters
    ----------
    reads : the data of the curves
    path, title : as of `save_picture`

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    axes, print_png = _canvas()
    for way, style in _WAY_STYLES.items():
        known = [found for found in reads.passes if way in found.ways]
        sizes = [found.num_batches for found in known]
        axes.plot(sizes, [found.ways[way].num_bytes / 1e6 for found in known], style, label=way, marker=".")
    axes.axhline(reads.direct.num_bytes / 1e6, color="grey", linestyle=":", label="alone, hop after hop")
    if reads.sweep is not None:
        axes.axvline(reads.sweep.num_batches, color="grey", linewidth=0.8, label="a loader's choice")
    axes.set_xscale("log", base=2)
    # A graph without edges has no reads, and zero has no logarithm.
    if reads.file_bytes:
        axes.set_yscale("log")
    axes.set(
        xlabel="batches that share a pass (S_t)",
        ylabel="edges read per batch, MB",
        title=printable_line(title),
    )
    axes.title.set_parse_math(parse_math=False)
    axes.legend(fontsize="small")
    print_png(path)


def _canvas() -> tuple[Axes, Callable[[Path | BinaryIO], None]]:
    """Return the axes of a new picture, and the function that writes it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of_extra("the picture needs matplotlib", "plot") from error
    # A new canvas instead of pyplot: no display, and no global state.
    figure = Figure(figsize=(8, 5), layout="constrained")
    return figure.add_subplot(), FigureCanvasAgg(figure).print_png


def _unit(num_bytes: int) -> tuple[float, str]:
    """Return the unit in which an axis up to ``num_bytes`` reads well. Pure."""
    for factor, name in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= factor:
            return factor, name
    return 1e3, "KB"
