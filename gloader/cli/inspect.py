"""`gloader inspect`: the reads of every cache policy at every cache size, or those of the edges."""

import json
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.inspect_flags import InspectFlags
from gloader.cli.train import open_or_prepare, require_one_type
from gloader.cli.views.screen import Screen, cell
from gloader.config import ObjectSettings
from gloader.core.flag_values import SWITCH
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.dataset import Dataset
    from gloader.lab.inspect import Inspection


_FLAGS, _OBJECTS = InspectFlags(), ObjectSettings()
_UNBOUNDED = 10_000  # characters; no table is as wide


def inspect(
    *,
    dataset: str,
    flags: InspectFlags = _FLAGS,
    topology: Annotated[bool, SWITCH] = False,
    out: Path | None = None,
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Sample an epoch and show what every cache policy would read from the SSD at every cache size.

    For datasets of one node type. Nothing is trained and no feature is read. Sizes are shares of the feature rows;
    every policy starts with an empty cache, except that static sets are in memory already.

    Parameters
    ----------
    dataset
        A prepared folder, the URL of one (s3://...), or any source of `gloader prepare`.
    topology
        Show instead what every way of reading the edges takes: pages touched per hop, bytes and seconds a batch page by
        page and in passes for 1 to 512 batches, and what a loader with this budget would do.
    out
        Folder for `inspect.json` and, where matplotlib is installed, `inspect.png`; with --topology for `topology.json`
        and `topology.png`.
    objects
        How a dataset at a URL is mirrored.
    """
    screen = Screen.open(is_json=output.json)
    with open_or_prepare(dataset, screen, memory_budget=flags.memory_budget, objects=objects) as opened:
        require_one_type(
            opened,
            "gloader inspect",
            instead="gloader train --explain tells what is cached and read of each type",
        )
        show = _inspect_topology if topology else _inspect_features
        show(opened, flags, out, screen)


def _inspect_features(dataset: "Dataset", flags: InspectFlags, out: Path | None, screen: Screen) -> None:
    with screen.console.status("sampling and planning"):
        inspection = _inspect(dataset, flags)
    report = {"dataset": dataset.name, "settings": _settings(flags), **inspection.to_json()}
    if not screen.is_json:
        _show(screen, inspection, dataset.name)
    if out is not None:
        from gloader.lab.inspect.picture import save_picture

        title = dataset.name
        _write(out, "inspect", report, screen, lambda file: save_picture(inspection, file, title=title))
    screen.result(report)


def _inspect_topology(dataset: "Dataset", flags: InspectFlags, out: Path | None, screen: Screen) -> None:
    from gloader.cli.inspect_topology import read_topology, show_topology

    with screen.console.status("sampling and marking pages"):
        reads = read_topology(dataset, flags)
    report = {"dataset": dataset.name, "settings": _settings(flags), **reads.to_json()}
    if not screen.is_json:
        show_topology(screen, reads, dataset.name)
    if out is not None:
        from gloader.lab.inspect.picture import save_topology_picture

        title = dataset.name
        _write(out, "topology", report, screen, lambda file: save_topology_picture(reads, file, title=title))
    screen.result(report)


def _inspect(dataset: "Dataset", flags: InspectFlags) -> "Inspection":
    from gloader.core.order import EpochOrder
    from gloader.dataset.topology import open_topology
    from gloader.lab.inspect import inspect_trace, sample_trace
    from gloader.plan.available import available_memory_bytes
    from gloader.samplers import NeighborSampler

    # Half of the budget for the topology, a quarter for each of two traces.
    budget = flags.memory_budget or available_memory_bytes() // 2
    threads = flags.threads or len(os.sched_getaffinity(0))
    with open_topology(dataset, max_bytes=budget // 2) as topology:
        order = EpochOrder(
            seeds=dataset.train, num_nodes=dataset.num_nodes, batch_size=flags.batch_size, seed=flags.seed
        )
        sampler = NeighborSampler(topology, flags.fanout, seed=flags.seed)
        # Epoch 0 is what a run would sample; epoch 1 is what it could presample to choose a static set from.
        trace, presampled = (
            sample_trace(
                sampler, order, epoch=epoch, batches=flags.batches, threads=threads, budget_bytes=budget // 4
            )
            for epoch in (0, 1)
        )
        return inspect_trace(
            trace,
            presampled,
            sampler,
            order,
            row_bytes=dataset.feature_bytes // max(dataset.num_nodes, 1),
            superbatch=flags.superbatch,
        )


def _settings(flags: InspectFlags) -> dict[str, Any]:
    return {
        "fanout": list(flags.fanout),
        "batch_size": flags.batch_size,
        "superbatch": flags.superbatch,
        "seed": flags.seed,
    }


def _show(screen: Screen, inspection: "Inspection", name: str) -> None:
    # First, since it is what a reader came for.
    screen.say(
        f"The knee is at {format_bytes(inspection.knee_bytes)} ({inspection.knee_slots:,} rows, "
        f"{100 * inspection.knee_slots / max(inspection.num_nodes, 1):.1f}%): "
        "less memory costs much reading, more saves little.\n"
    )
    title = f"{name}: % of {inspection.num_accesses:,} accesses that read the SSD"
    rest = [policy for policy in inspection.misses if policy != "none"]
    while rest:
        # Columns that do not fit stand in a table below: rich would cut their headings.
        count = len(rest)
        while count > 1 and not _fits(screen, _table(inspection, rest[:count])):
            count -= 1
        table = _table(inspection, rest[:count])
        table.title, title = cell(title) if title else None, ""
        screen.console.print(table)
        rest = rest[count:]
        if rest:
            screen.say("")
    screen.say(
        f"\n{inspection.num_batches:,} of {inspection.epoch_batches:,} batches sampled; "
        f"{inspection.num_distinct:,} of {inspection.num_nodes:,} rows occur. "
        f"Without a cache an epoch reads {format_bytes(inspection.epoch_bytes('none')[0])}."
    )
    first_reads = inspection.num_distinct / max(inspection.num_accesses, 1)
    screen.say(
        f"The first read of each row is counted, {100 * first_reads:.1f}% of the accesses. Not so for static "
        "sets: they are in memory already, and to load one reads as much as its memory, once for all epochs."
    )


def _fits(screen: Screen, table: Table) -> bool:
    # With the console's own width, `measure` would find no table wider than that.
    unbounded = screen.console.options.update(width=_UNBOUNDED)
    return screen.console.measure(table, options=unbounded).maximum <= screen.console.width


def _table(inspection: "Inspection", policies: list[str]) -> Table:
    """Return the table of ``policies``, one in each column. Pure."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.add_column("\nmemory", no_wrap=True)
    for policy in policies:
        table.add_column(_heading(policy), justify="right", vertical="bottom", no_wrap=True)
    columns = [inspection.ratios(policy) for policy in policies]
    for size, *ratios in zip(inspection.memory_bytes(), *columns, strict=True):
        table.add_row(format_bytes(size), *(f"{100 * ratio:.1f}" for ratio in ratios))
    return table


def _heading(policy: str) -> str:
    """Return two lines: the policy, and its variant where it has one. Pure."""
    name, _, variant = policy.partition(", ")
    # Beside the column of the same superbatches that are not reset, "S=64" would say nothing new.
    return f"{name}\n{variant.split()[-1]}" if variant else f"\n{name}"


def _write(
    out: Path, name: str, report: dict[str, Any], screen: Screen, save: "Callable[[BytesIO], None]"
) -> None:
    """Write ``name``.json, and ``name``.png where ``save`` can draw it."""
    from gloader.errors import MissingDependencyError
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_atomically

    make_output_folder(out)
    write_atomically(out / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
    # Without matplotlib the figures are still there, as JSON.
    try:
        picture = BytesIO()
        save(picture)
        write_atomically(out / f"{name}.png", picture.getvalue())
    except MissingDependencyError as error:
        screen.say(f"no picture: {error}")
    screen.say(f"\nresults in {out}")
