"""`gloader inspect`: the reads of every cache policy at every cache size, or the reads of the edges.

The command samples an epoch and records the accessed rows: a trace. It then counts, without reading features, the
accesses that would read the SSD under each cache policy. With --topology it marks the pages of the edge file that
batches touch. A pass (or sweep) reads the edge file once for S_t batches. The command compares three ways to read a
pass: only touched pages ("direct"), also the holes between them ("merged"), or the whole file ("full").
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell, numbers
from gloader.cli.train import open_or_prepare, require_one_type
from gloader.config import ObjectSettings
from gloader.core.flag_values import EVERY_TYPE, SWITCH, EmbedDims, Fanout, Size
from gloader.core.malformed import shown
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.dataset import Dataset
    from gloader.lab.inspect import AccessTrace, EmbeddingReads, Inspection, TopologyReads
    from gloader.lab.report.svg import Chart


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class InspectFlags:
    """Flags for the sampled batches."""

    fanout: Fanout = (15, 10, 5)
    """Neighbours sampled per node: one number per layer, first the hop next to the seeds; -1 takes all."""
    batch_size: int = 1024
    """Training nodes per batch."""
    batches: int | None = None
    """Batches to sample. Default: a whole epoch, with --topology 64."""
    superbatch: int = 64
    """Batches planned together."""
    seed: int = 0
    """Key of the order and the sampling."""
    threads: int | None = None
    """Sampling threads. Default: one for each core of this process."""
    memory_budget: Size = None
    """Memory for traces and plans; with --topology, the loader's memory. Default: half of the free memory."""
    spill_budget: Size = None
    """With --topology: the loader's disk space. Default: a quarter of the free space, at most 4 x the features."""


# Default number of batches with --topology. The mean number of pages per batch is then exact to about a percent. Passes
# for more batches are assumed to read the whole file.
_BATCHES = 64
_WAYS = ("direct", "merged", "full")  # ways to read a pass; the module's docstring explains each


def read_topology(dataset: "Dataset", flags: "InspectFlags") -> "TopologyReads":
    """Return the costs of reading the edges of ``dataset``, for batches with ``flags``."""
    from contextlib import ExitStack

    from gloader.config import LoaderSettings
    from gloader.core.order import EpochOrder
    from gloader.dataset.topology import open_topology
    from gloader.lab.inspect import GapBytes, ReadDemand, inspect_topology, mark_pages
    from gloader.pipeline.open.disk import choose_edge_home, open_spill_folder
    from gloader.plan.available import default_budget_bytes
    from gloader.samplers import NeighborSampler
    from gloader.ssd_store.cost.device_rates import rates_of
    from gloader.ssd_store.cost.profile import default_row_gap_bytes, default_sweep_gap_bytes
    from gloader.ssd_store.format.checksum import PAGE_BYTES

    budget = flags.memory_budget or default_budget_bytes()
    record = dataset.arrays["indices"]
    settings = LoaderSettings.of(
        fanouts=flags.fanout, batch_size=flags.batch_size, seed=flags.seed, spill_budget=flags.spill_budget
    )
    with ExitStack() as stack:
        # A spill folder is opened even if a loader would keep the edges in memory, because the table shows every way.
        spill = open_spill_folder(dataset, settings.changed(topology="sweep"), stack, budget_bytes=budget)
        # Of the budget, a quarter is for the marks of pages, a quarter for read pages, and half for the graph.
        topology = stack.enter_context(open_topology(dataset, max_bytes=budget // 2))
        order = EpochOrder(
            seeds=dataset.train, num_nodes=dataset.num_nodes, batch_size=flags.batch_size, seed=flags.seed
        )
        marks = mark_pages(
            NeighborSampler(topology, flags.fanout, seed=flags.seed),
            order,
            edge_bytes=record.row_bytes,
            batches=_BATCHES if flags.batches is None else flags.batches,
            budget_bytes=budget // 2,
        )
        demand = ReadDemand(
            edge_bytes=record.row_bytes,
            num_nodes=dataset.num_nodes,
            num_edges=dataset.num_edges,
            home=choose_edge_home(dataset, settings, spill, budget_bytes=budget),
            budget_bytes=budget,
            spill_bytes=0 if spill is None else spill.budget_bytes,
        )
        file = dataset.root / record.file
        rates = rates_of(file, None if spill is None else spill.path)
        if dataset.mirrored is not None:
            rates = dataset.mirrored.rates(rates)
        gaps = GapBytes(
            alone=default_row_gap_bytes(file.parent, PAGE_BYTES),
            of_passes=default_sweep_gap_bytes(file.parent),
        )
        return inspect_topology(marks, demand, rates, gaps)


def show_topology(screen: Screen, reads: "TopologyReads", name: str) -> None:
    """Print tables and lines for the user."""
    screen.say(f"{name}: pages of edges that a batch touches, of {reads.num_pages:,}")
    screen.console.print(_hop_table(reads))
    screen.say(
        f"Alone, hop after hop, a batch reads {format_bytes(round(reads.direct.num_bytes))} in "
        f"{reads.direct.requests:,.0f} requests: {_seconds(reads.direct.seconds)}. Mapped, it waits for "
        f"{reads.faults:,.0f} page faults, one after another."
    )
    screen.say("\nIn passes that many batches share, a batch's part by batches a pass (S_t):")
    screen.console.print(_pass_table(reads))
    screen.say(
        "A pass reads the pages that are wanted (direct), holes between them too (merged), or all "
        f"{format_bytes(reads.file_bytes)} (full). What it brings is written once and read twice: "
        f"{format_bytes(round(reads.drawn_bytes))} a batch, not in the table. {reads.num_batches:,} of "
        f"{reads.epoch_batches:,} batches sampled."
    )
    screen.say(f"\n{_choice(reads)}")


def _choice(reads: "TopologyReads") -> str:
    """Return a loader's choice in sentences. Pure."""
    home = {
        "ram": "A loader keeps the edges in memory",
        "sweep": "A loader reads the edges in sweeps",
        "direct": "A loader reads the edges page by page",
    }[reads.home]
    sweep = reads.sweep
    if sweep is None:
        return f"{home} ({reads.reason}). No sweeps: {reads.refusal}."
    subject = "It makes" if reads.home == "sweep" else "With topology='sweep' it makes"
    return (
        f"{home} ({reads.reason}). {subject} a pass for {sweep.num_batches} batches (S_t): {sweep.reason}. That takes "
        f"{format_bytes(sweep.memory_bytes)} of memory and {format_bytes(sweep.spill_bytes)} of the spill disk, and "
        f"reads {format_bytes(round(sweep.read_bytes))} a batch, what passes brought included: "
        f"{_seconds(sweep.seconds)} of the disk."
    )


def _hop_table(reads: "TopologyReads") -> Table:
    """Return a row for each hop: the nodes, edges and pages that a batch touches."""
    table = numbers("hop", "nodes", "edges", "pages", "% of all")
    for number, hop in enumerate(reads.hops):
        share = 100 * hop.pages / max(reads.num_pages, 1)
        table.add_row(
            str(number), *(f"{value:,.0f}" for value in (hop.nodes, hop.edges, hop.pages)), f"{share:.1f}"
        )
    return table


def _pass_table(reads: "TopologyReads") -> Table:
    """Return a row for each number of batches per pass, with a batch's part of the reads."""
    table = numbers("S_t", "% wanted", *_WAYS, "fastest")
    for shared in reads.passes:
        cells = [
            _reads(shared.ways[way].num_bytes, shared.ways[way].seconds) if way in shared.ways else "-"
            for way in _WAYS
        ]
        share = "-" if shared.pages is None else f"{100 * shared.pages / max(reads.num_pages, 1):.1f}"
        is_chosen = reads.sweep is not None and shared.num_batches == reads.sweep.num_batches
        mark = " *" if is_chosen else ""
        table.add_row(f"{shared.num_batches}{mark}", share, *cells, shared.fastest)
    return table


def _reads(num_bytes: float, seconds: float) -> str:
    """Return a table cell with bytes and seconds."""
    return f"{format_bytes(round(num_bytes))} {_seconds(seconds):>8}"


def _seconds(seconds: float) -> str:
    """Return a duration. Parts of a pass get a few digits of milliseconds."""
    return f"{1000 * seconds:.2f} ms" if seconds < 0.01 else format_seconds(seconds)


_FLAGS, _OBJECTS = InspectFlags(), ObjectSettings()
_NO_DIMS: dict[str, int] = {}
_UNBOUNDED = 10_000  # characters, wider than any table


def inspect(
    *,
    dataset: str,
    flags: InspectFlags = _FLAGS,
    topology: Annotated[bool, SWITCH] = False,
    embed: EmbedDims = _NO_DIMS,
    out: Path | None = None,
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Sample an epoch and show the SSD reads of every cache policy at every cache size.

    For datasets of one node type. Nothing is trained and no feature is read. Cache sizes are shares of the feature
    rows. Every policy starts with an empty cache; only static sets are in memory from the start.

    Parameters
    ----------
    dataset
        A prepared folder, its URL (s3://...), or any source of `gloader prepare`.
    topology
        Show the reads of the edges instead: pages touched per hop, bytes and seconds per batch in each way of reading
        (page by page, and in passes for 1 to 512 batches), and the choice of a loader with this budget.
    embed
        Also show the bytes that `gloader train --embed DIM` would read and write in an epoch at every cache size, with
        the state of row-wise Adagrad.
    out
        Folder for `inspect.json` and `inspect.svg`; with --topology for `topology.json` and `topology.svg`.
    objects
        Settings for the mirror of a dataset at a URL.
    """
    screen = Screen.open(is_json=output.json)
    with open_or_prepare(dataset, screen, memory_budget=flags.memory_budget, objects=objects) as opened:
        require_one_type(
            opened,
            "gloader inspect",
            instead="gloader train --explain tells what is cached and read of each type",
        )
        from gloader.lab.report.inspection import draw_inspection, draw_topology

        dim = _dim_of(embed, opened, is_topology=topology)
        embedding: EmbeddingReads | None = None
        with screen.console.status("sampling and marking pages" if topology else "sampling and planning"):
            if topology:
                result: Any = read_topology(opened, flags)
            else:
                result, trace = _inspect(opened, flags)
                embedding = None if dim is None else _inspect_embedding(opened, flags, trace, dim)
        # The name of the files, and the functions that print the tables and draw the chart.
        name, show, draw = (
            ("topology", show_topology, draw_topology) if topology else ("inspect", _show, draw_inspection)
        )
        report = {"dataset": opened.name, "settings": _settings(flags), **result.to_json()}
        if embedding is not None:
            report["embedding"] = embedding.to_json()
        if not screen.is_json:
            show(screen, result, opened.name)
            if embedding is not None:
                _show_embedding(screen, embedding)
        if out is not None:
            _write(out, name, report, draw(result, name), screen)
        screen.result(report)


def _dim_of(embed: dict[str, int], dataset: "Dataset", *, is_topology: bool) -> int | None:
    """Return the width of the embedding, or None without one."""
    if not embed:
        return None
    if is_topology:
        raise ConfigError("--embed shows reads of rows, and --topology those of edges: give one of them")
    (name,) = dataset.node_types
    if unknown := [given for given in embed if given not in {EVERY_TYPE, name}]:
        raise ConfigError(f"--embed: the dataset has no node type {shown(unknown[0])}; it has {shown(name)}")
    return embed.get(name, embed.get(EVERY_TYPE))


def _inspect_embedding(
    dataset: "Dataset", flags: InspectFlags, trace: "AccessTrace", dim: int
) -> "EmbeddingReads":
    """Return the moved rows of an embedding with ``dim`` columns at each cache size."""
    from gloader.lab.inspect import inspect_embedding
    from gloader.pipeline.embedding_optimizers import RowwiseAdagrad
    from gloader.pipeline.embedding_rows import slot_bytes
    from gloader.plan.embedding_cost import TableSizes
    from gloader.ssd_store.cost.device_rates import rates_of
    from gloader.ssd_store.cost.profile import default_row_gap_bytes

    width = dim + RowwiseAdagrad().state_width(dim)
    storage = TableSizes(
        num_rows=dataset.num_nodes,
        row_bytes=4 * width,
        buffer_rows=0,  # follows from the slots
        gap_bytes=default_row_gap_bytes(dataset.root, 4 * width),
    )
    rates = rates_of(dataset.root / dataset.arrays["indices"].file, None)
    # Half of the budget: the trace takes a quarter of it, and its sorted rows take another quarter.
    return inspect_embedding(
        trace,
        storage,
        rates,
        slot_bytes=slot_bytes(width),
        superbatch=flags.superbatch,
        budget_bytes=_budget(flags) // 2,
    )


def _show_embedding(screen: Screen, reads: "EmbeddingReads") -> None:
    """Print a table with the embedding's work per epoch at each cache size."""
    table = numbers("memory", "rows", "% loaded", "read", "written", "disk")
    values = reads.to_json()
    for index, slots in enumerate(reads.slots):
        table.add_row(
            format_bytes(values["memory_bytes"][index]),
            f"{100 * slots / max(reads.storage.num_rows, 1):.1f}%",
            f"{100 * values['load_ratio'][index]:.1f}",
            format_bytes(values["read_bytes_per_epoch"][index]),
            format_bytes(values["written_bytes_per_epoch"][index]),
            format_seconds(values["disk_s_per_epoch"][index]),
        )
    row_bytes = format_bytes(reads.storage.row_bytes)
    screen.say(f"\nan embedding with rows of {row_bytes}, by the memory of its cache; an epoch:")
    screen.console.print(table)
    screen.say(
        "% loaded are the accesses that put a row into the cache. The cache has at least the rows of the largest "
        "batch. All rows are taken as trained before; rows of a first epoch are made without a read."
        + (" The disk's rates are assumed; `gloader doctor` measures them." if reads.is_assumed else "")
    )
    if reads.left_out:
        screen.say(
            f"Caches of {reads.left_out[0]:,} rows and more are left out: their plans take up to "
            f"{format_bytes(reads.needed_bytes)}. Give --memory-budget {2 * reads.needed_bytes} for all sizes."
        )


def _inspect(dataset: "Dataset", flags: InspectFlags) -> "tuple[Inspection, AccessTrace]":
    """Sample an epoch of ``dataset``. Return the reads of each policy at each cache size, and the trace."""
    from gloader.core.order import EpochOrder
    from gloader.dataset.topology import open_topology
    from gloader.lab.inspect import inspect_trace, sample_trace
    from gloader.samplers import NeighborSampler

    # Half of the budget is for the topology, and a quarter for each of two traces.
    budget = _budget(flags)
    threads = flags.threads or len(os.sched_getaffinity(0))
    with open_topology(dataset, max_bytes=budget // 2) as topology:
        order = EpochOrder(
            seeds=dataset.train, num_nodes=dataset.num_nodes, batch_size=flags.batch_size, seed=flags.seed
        )
        sampler = NeighborSampler(topology, flags.fanout, seed=flags.seed)
        # A run would sample epoch 0, and could presample epoch 1 to choose a static set.
        trace, presampled = (
            sample_trace(
                sampler, order, epoch=epoch, batches=flags.batches, threads=threads, budget_bytes=budget // 4
            )
            for epoch in (0, 1)
        )
        inspection = inspect_trace(
            trace,
            presampled,
            sampler,
            order,
            row_bytes=dataset.feature_bytes // max(dataset.num_nodes, 1),
            superbatch=flags.superbatch,
        )
        return inspection, trace


def _budget(flags: InspectFlags) -> int:
    """Return the memory for the command, in bytes."""
    from gloader.plan.available import default_budget_bytes

    return flags.memory_budget or default_budget_bytes()


def _settings(flags: InspectFlags) -> dict[str, Any]:
    """Return the flags that decide the result, for the report."""
    return {
        "fanout": list(flags.fanout),
        "batch_size": flags.batch_size,
        "superbatch": flags.superbatch,
        "seed": flags.seed,
    }


def _show(screen: Screen, inspection: "Inspection", name: str) -> None:
    """Print the knee (the best cache size), the tables of policies, and lines on the sampled batches."""
    screen.say(
        f"The knee is at {format_bytes(inspection.knee_bytes)} ({inspection.knee_slots:,} rows, "
        f"{100 * inspection.knee_slots / max(inspection.num_nodes, 1):.1f}%): "
        "less memory costs much reading, more saves little.\n"
    )
    title = f"{name}: % of {inspection.num_accesses:,} accesses that read the SSD"
    policies = [policy for policy in inspection.misses if policy != "none"]
    while policies:
        # Columns that do not fit go into a table below, because rich would cut their headings.
        count = len(policies)
        while count > 1 and not _fits(screen, _table(inspection, policies[:count])):
            count -= 1
        table = _table(inspection, policies[:count])
        table.title, title = cell(title) if title else None, ""
        screen.console.print(table)
        policies = policies[count:]
        if policies:
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
    """Return True if no column of ``table`` would be cut on this screen."""
    # Within the console's own width, `measure` finds no table wider than the console.
    unbounded = screen.console.options.update(width=_UNBOUNDED)
    return screen.console.measure(table, options=unbounded).maximum <= screen.console.width


def _table(inspection: "Inspection", policies: list[str]) -> Table:
    """Return a table with a column for each of ``policies``. Pure."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.add_column("\nmemory", no_wrap=True)
    for policy in policies:
        table.add_column(_heading(policy), justify="right", vertical="bottom", no_wrap=True)
    columns = [inspection.ratios(policy) for policy in policies]
    for size, *ratios in zip(inspection.memory_bytes(), *columns, strict=True):
        table.add_row(format_bytes(size), *(f"{100 * ratio:.1f}" for ratio in ratios))
    return table


def _heading(policy: str) -> str:
    """Return a heading of two lines: the policy and its variant, if any. Pure."""
    name, _, variant = policy.partition(", ")
    # Next to the same superbatches without reset, "S=64" would add no information.
    return f"{name}\n{variant.split()[-1]}" if variant else f"\n{name}"


def _write(out: Path, name: str, report: dict[str, Any], chart: "Chart | None", screen: Screen) -> None:
    """Write ``name``.json, and ``name``.svg if there is a chart. Damaged figures may have no chart."""
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_atomically

    make_output_folder(out)
    write_atomically(out / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
    if chart is not None:
        write_atomically(out / f"{name}.svg", chart.as_file())
    screen.say(f"\nresults in {out}")
