"""`gloader inspect --topology`: what every way of reading the edges takes, and what a loader would do."""

from typing import TYPE_CHECKING

from rich.table import Table

from gloader.cli.views.screen import Screen
from gloader.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from gloader.cli.inspect_flags import InspectFlags
    from gloader.dataset import Dataset
    from gloader.lab.inspect import TopologyReads

# Enough for the pages of a batch to be known to a percent; passes for more batches read the whole file.
_BATCHES = 64
_WAYS = ("direct", "merged", "full")


def read_topology(dataset: "Dataset", flags: "InspectFlags") -> "TopologyReads":
    """Return what reading the edges of ``dataset`` takes for batches by ``flags``."""
    from contextlib import ExitStack

    from gloader.config import LoaderSettings
    from gloader.core.order import EpochOrder
    from gloader.dataset.topology import open_topology
    from gloader.lab.inspect import GapBytes, ReadDemand, inspect_topology, mark_pages
    from gloader.pipeline.open_edges import choose_edge_home, open_spill_folder
    from gloader.plan.available import default_budget_bytes
    from gloader.samplers import NeighborSampler
    from gloader.ssd_store.cost.profile import default_row_gap_bytes, default_sweep_gap_bytes
    from gloader.ssd_store.cost.rates import rates_of
    from gloader.ssd_store.format.checksum import PAGE_BYTES

    budget = flags.memory_budget or default_budget_bytes()
    record = dataset.arrays["indices"]
    settings = LoaderSettings.of(
        fanouts=flags.fanout, batch_size=flags.batch_size, seed=flags.seed, spill_budget=flags.spill_budget
    )
    with ExitStack() as stack:
        # With room for what passes bring, also where the edges would be held: the table shows every way.
        spill = open_spill_folder(dataset, settings.changed(topology="sweep"), stack, budget_bytes=budget)
        # A quarter of the budget for the pages that are marked, a quarter for those that are read, half for the graph.
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
    """Print tables and lines for people."""
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
    """Return what a loader would do, as sentences. Pure."""
    home = {
        "ram": "A loader keeps the edges in memory",
        "sweep": "A loader reads the edges in sweeps",
        "direct": "A loader reads the edges page by page",
    }[reads.home]
    sweep = reads.sweep
    if sweep is None:
        return f"{home} ({reads.reason}). No sweeps: {reads.refusal}."
    made = "It makes" if reads.home == "sweep" else "With topology='sweep' it makes"
    return (
        f"{home} ({reads.reason}). {made} a pass for {sweep.num_batches} batches (S_t): {sweep.reason}. That takes "
        f"{format_bytes(sweep.memory_bytes)} of memory and {format_bytes(sweep.spill_bytes)} of the spill disk, and "
        f"reads {format_bytes(round(sweep.read_bytes))} a batch, what passes brought included: "
        f"{_seconds(sweep.seconds)} of the disk."
    )


def _hop_table(reads: "TopologyReads") -> Table:
    table = _blank("hop", "nodes", "edges", "pages", "% of all")
    for hop, found in enumerate(reads.hops):
        share = 100 * found.pages / max(reads.num_pages, 1)
        table.add_row(
            str(hop), *(f"{value:,.0f}" for value in (found.nodes, found.edges, found.pages)), f"{share:.1f}"
        )
    return table


def _pass_table(reads: "TopologyReads") -> Table:
    table = _blank("S_t", "% wanted", *_WAYS, "fastest")
    for found in reads.passes:
        cells = [
            _reads(found.ways[way].num_bytes, found.ways[way].seconds) if way in found.ways else "-"
            for way in _WAYS
        ]
        share = "-" if found.pages is None else f"{100 * found.pages / max(reads.num_pages, 1):.1f}"
        is_chosen = reads.sweep is not None and found.num_batches == reads.sweep.num_batches
        mark = " *" if is_chosen else ""
        table.add_row(f"{found.num_batches}{mark}", share, *cells, found.fastest)
    return table


def _reads(num_bytes: float, seconds: float) -> str:
    return f"{format_bytes(round(num_bytes))} {_seconds(seconds):>8}"


def _seconds(seconds: float) -> str:
    """Return a duration; of parts of a pass, a few digits of milliseconds."""
    return f"{1000 * seconds:.2f} ms" if seconds < 0.01 else format_seconds(seconds)


def _blank(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
