"""A loader's files on the disk: feature rows, edges, and the folder for spilled data.

This is the first step of opening a loader. `gloader.pipeline.open.load_plan` calls the functions in this order:
`open_spill_folder` opens the folder. `choose_edge_home` decides between edges in memory and edges on the SSD, before
any batch is sampled. `open_edges` and `open_files` open the edges and the feature rows. `plan_edges` sets the number of
batches per pass over the edges, after the first batches were measured. Later, `gloader.pipeline.open.tiers` opens the
readers of these passes by `open_sweeps`.

- A home is the place of the edges: memory ("ram"), the SSD with passes ("sweep"), or the SSD with reads of single
  lists ("direct").
- A pass, or sweep, goes through the edge file once, in file order, and draws hops of many batches.
- A pack is one batch's feature rows, written to the disk ahead of the batch. Spilled data is packs, and the output of
  passes.
- Rates are the disk's requests and bytes per second. They are measured by probes, which are short trial reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from gloader.core.ids import id_dtype
from gloader.dataset.edge_passes import PassSettings
from gloader.dataset.hetero_passes import open_passes
from gloader.dataset.topology import open_hetero_topology, open_topology, require_offsets
from gloader.errors import BudgetError
from gloader.pipeline.edge_sweeps import SweepTier
from gloader.pipeline.open.device_rows import LARGER_THAN_PROBED
from gloader.plan.demand import topology_share
from gloader.plan.sweep_plan import SweepDemand, open_spill, plan_sweeps
from gloader.plan.topology_home import NO_FOLDER, SweepObstacle, choose_home
from gloader.samplers import (
    TIMED_SWEEP_REFUSAL,
    LaborSampler,
    MergedBlockSampler,
    MergedHeteroBlockSampler,
    NeighborSampler,
    RelationwiseSampler,
    hetero_sweep_refusal,
    reads_weights,
    swept_words,
)
from gloader.samplers.arguments import resolve_fanouts
from gloader.samplers.list_rule import KEPT_EDGE_BYTES
from gloader.ssd_store.cost.device_rates import RateLearner, find_rates
from gloader.ssd_store.format.checksum import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from gloader.config import IoMode, LoaderSettings, ReadingSettings, SamplingSettings
    from gloader.dataset import Dataset
    from gloader.dataset.tables import FeatureRows
    from gloader.pipeline.open.device_rows import Workload
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.plan.sweep_plan import SweepPlan
    from gloader.plan.topology_home import TopologyChoice
    from gloader.samplers import HeteroGraph, Topology
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import AnyBatch, BatchTypes, Block


# Maximum number of open descriptors per reader: the file, an io_uring ring, and the ring's event descriptors.
FILES_OF_A_READER: Final = 4
# Open descriptors per file of a local copy of an object store: to read it, to write it, and for its record of pages.
FILES_OF_A_MIRRORED_FILE: Final = 3
# Request methods that the probes use too. Reads with other methods say nothing about the probes' rates.
_AS_PROBED: Final = ("auto", "uring")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFile:
    """The feature rows for a node type, or for a relation's edges."""

    rows: FeatureRows  # the table in the dataset
    store: FeatureStore  # the table's open file
    is_of_edges: bool  # whether the rows are edge features


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDisk:
    """A recorded run's disks; a new plan for that run needs no measurements and no folders."""

    rates: IoRates  # as in the recording
    spill_bytes: int  # the bytes that could be spilled


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """All feature tables, and the folder for packs."""

    tables: tuple[FeatureFile, ...]
    spill: SpillFolder | None  # the folder for packs; None if nothing can be spilled
    rates: IoRates  # of the disks
    known: KnownDisk | None = None  # set if a run is only planned
    edge_spill: SpillFolder | None = None  # folder for the output of edge passes; None without passes
    row_spills: tuple[SpillFolder, ...] = ()  # a folder for the waiting rows of each trained embedding
    # Learns the rates from the run's reads too. None if these reads do not resemble the probes.
    learner: RateLearner | None = None

    @property
    def stores(self) -> tuple[FeatureStore, ...]:
        """Each table's feature rows."""
        return tuple(table.store for table in self.tables)

    @property
    def types(self) -> tuple[int, ...]:
        """Each table's number: node types first, then relations."""
        return tuple(table.rows.number for table in self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Each table's node type or relation."""
        return tuple(table.rows.name for table in self.tables)

    @property
    def spill_bytes(self) -> int:
        """Maximum bytes to spill."""
        if self.known is not None:
            return self.known.spill_bytes
        return 0 if self.spill is None else self.spill.budget_bytes


def open_files(
    dataset: Dataset,
    settings: LoaderSettings,
    spill: SpillFolder | None,
    stack: ExitStack,
    *,
    known: KnownDisk | None = None,
    trained_bytes: Sequence[int] = (),
) -> TableFiles:
    """Open the feature rows of ``dataset``.

    Parameters
    ----------
    dataset : the dataset with the features
    settings : the loader's settings
    spill : the folder for packs, or None
    stack : closes the files
    known : the disks of a recorded run that is only planned again; with None the disks are measured
    trained_bytes : bytes of the rows of each trained embedding; a part of ``spill`` is for them
    """
    tables = feature_rows(dataset, settings)
    # Rates come before the stores: a store reads through holes if that is cheaper at these rates.
    learner = None
    if known is None:
        rates, learner = _measured_rates(dataset, tables, settings, spill)
    else:
        rates = known.rates
    if learner is not None:
        stack.callback(learner.close)
    files = [
        FeatureFile(
            rows=rows,
            store=stack.enter_context(open_store(rows, settings.reading)),
            is_of_edges=rows.number >= len(dataset.node_types),
        )
        for rows in tables
    ]
    row_spills = []
    if spill is not None:
        # Each row waits at most twice, in the running superbatch and in the next one. The embeddings have folders of
        # their own, so that none counts on the room of another.
        most = spill.budget_bytes // (2 * max(len(trained_bytes), 1))
        for num_bytes in trained_bytes:
            share = min(most, 2 * num_bytes + _LEAST_TABLE_BYTES)
            row_spills.append(stack.enter_context(spill.split_off(share)))
    return TableFiles(
        tables=tuple(files),
        spill=spill,
        rates=rates,
        known=known,
        learner=learner,
        row_spills=tuple(row_spills),
    )


def with_edge_spill(files: TableFiles, plan: MemoryPlan, stack: ExitStack) -> TableFiles:
    """Return ``files`` with a folder for the output of edge passes, whose disk space packs cannot use."""
    if files.spill is None or plan.sweeps is None:
        return files
    return replace(files, edge_spill=stack.enter_context(files.spill.split_off(plan.sweeps.spill_bytes)))


def open_edges(
    dataset: Dataset, types: BatchTypes, *, max_bytes: int, io: IoMode = "auto", times: bool = False
) -> AbstractContextManager[Topology | HeteroGraph]:
    """Open the topology for batches of ``types``: per relation if batches name their types, else as one graph.

    Parameters
    ----------
    dataset : the edges
    types : the types that batches have
    max_bytes : memory for the edges; a larger topology is read from the SSD, with only its offsets in memory
    io : the method for reads from the SSD
    times : whether the edges' times are opened too
    """
    if types.are_named:
        return open_hetero_topology(dataset, max_bytes=max_bytes, io=io, times=times)
    return open_topology(dataset, max_bytes=max_bytes, io=io, times=times)


def feature_rows(dataset: Dataset, settings: LoaderSettings) -> tuple[FeatureRows, ...]:
    """Return the tables of ``dataset`` that a loader with ``settings`` reads, ordered by number."""
    return dataset.feature_rows(edges=settings.sampling.edge_features == "auto")


def open_store(rows: FeatureRows, reading: ReadingSettings) -> FeatureStore:
    """Open the feature rows ``rows`` for reads with the settings ``reading``."""
    return rows.open_features(io=reading.io, verify=reading.verify, gap_bytes=reading.max_gap)


def _measured_rates(
    dataset: Dataset, tables: Sequence[FeatureRows], settings: LoaderSettings, spill: SpillFolder | None
) -> tuple[IoRates, RateLearner | None]:
    """Return the disks' rates, and their learner if the run reads with the probes' request method."""
    file, span = _largest_file(dataset, tables)
    measured = find_rates(file, None if spill is None else spill.path, span=span)
    if dataset.mirrored is not None:
        return dataset.mirrored.rates(measured.rates), None
    return measured.rates, RateLearner(measured) if settings.reading.io in _AS_PROBED else None


def _largest_file(dataset: Dataset, tables: Sequence[FeatureRows]) -> tuple[Path, tuple[int, int] | None]:
    """Return the file whose reads represent the disk, and the byte range that is on this machine; None means all of it.

    It is the largest feature file, or the largest edge file if there are no features.
    """
    if tables:
        largest = max(tables, key=lambda rows: rows.held_bytes)
        return largest.features_path, None if largest.held is None else largest.held_span
    edges = max(dataset.edge_tables.values(), key=lambda table: table.topology_bytes, default=None)
    # With neither features nor edges, no file is read.
    return (dataset.root if edges is None else edges.root / edges.arrays["indices"].file), None


# Samplers that support sweeps, within the limits of `hetero_sweep_refusal`.
SWEPT_SAMPLERS: Final = (
    NeighborSampler,
    MergedBlockSampler,
    LaborSampler,
    RelationwiseSampler,
    MergedHeteroBlockSampler,
)

# Minimum disk space for the output of passes. The output grows with the batches and not with the graph: this is enough
# for a few batches of a small graph.
_LEAST_EDGE_BYTES: Final = 64 * 2**20

# Minimum disk space for packs per table, with several tables. A pack takes at least a page per batch.
_LEAST_TABLE_BYTES: Final = 4 * 2**20


def open_spill_folder(
    dataset: Dataset,
    settings: LoaderSettings,
    stack: ExitStack,
    *,
    budget_bytes: int,
    num_loaders: int = 1,
    trained_bytes: Sequence[int] = (),
) -> SpillFolder | None:
    """Open the folder for packs, for the edge passes' output and for trained rows; None if none is needed.

    Parameters
    ----------
    dataset : the features and edges
    settings : the loader's settings
    stack : closes the folder
    budget_bytes : the full memory budget
    num_loaders : loaders on this host; without a configured share, each gets an equal part of the disk
    trained_bytes : bytes of the rows of each trained embedding
    """
    memory = settings.memory
    is_large = dataset.topology_bytes > topology_share(budget_bytes)
    may_sweep = memory.topology == "sweep" or (memory.topology == "auto" and is_large)
    may_sweep = may_sweep and not settings.sampling.is_temporal
    if memory.features == "ram" and not may_sweep and not trained_bytes:
        return None
    edge_bytes = max(dataset.topology_bytes, _LEAST_EDGE_BYTES) if may_sweep else 0
    tables = feature_rows(dataset, settings)
    num_tables, feature_bytes = len(tables), sum(rows.feature_bytes for rows in tables)
    row_bytes = max(feature_bytes, num_tables * _LEAST_TABLE_BYTES if num_tables > 1 else 0)
    folder = open_spill(
        memory.spill_dir,
        memory.spill_budget,
        data_bytes=row_bytes + edge_bytes + sum(trained_bytes) + _LEAST_TABLE_BYTES * len(trained_bytes),
        num_loaders=num_loaders,
    )
    return None if folder is None else stack.enter_context(folder)


def choose_edge_home(
    dataset: Dataset,
    settings: LoaderSettings,
    spill: SpillFolder | KnownDisk | None,
    *,
    budget_bytes: int,
    room_bytes: int | None = None,
) -> TopologyChoice:
    """Return the edges' place, before batches are sampled.

    Parameters
    ----------
    dataset : the edges
    settings : the loader's settings
    spill : the folder for the output of passes, or None
    budget_bytes : the full memory budget
    room_bytes : the budget's part for edges; None means all of it

    Raises
    ------
    BudgetError
        The user requested edges in memory, and the budget is too small; or even the lists' offsets do not fit.
    ConfigError
        The user requested sweeps, which are impossible for this sampler or without a spill folder.
    """
    is_temporal = settings.sampling.is_temporal
    choice = choose_home(
        settings.memory.topology,
        topology_bytes=dataset.topology_bytes + (dataset.time_bytes if is_temporal else 0),
        budget_bytes=budget_bytes,
        obstacle=_obstacle(settings.sampling, spill),
        room_bytes=room_bytes,
    )
    if choice.home != "ram":
        require_offsets(dataset, budget_bytes=budget_bytes, times=is_temporal)
    return choice


def plan_edges(
    choice: TopologyChoice,
    demand: SweepDemand | None,
    *,
    is_required: bool,
    budget_bytes: int,
    spill_bytes: int,
    room_bytes: int | None = None,
) -> tuple[TopologyChoice, SweepPlan | None]:
    """Return the edges' place, and a plan for sweeps if the edges are swept. Pure.

    Parameters
    ----------
    choice : the choice before any batch was sampled
    demand : the sweeps' demand; None without batches
    is_required : whether the user requested sweeps
    budget_bytes, spill_bytes : the full memory and disk budgets
    room_bytes : memory for edges; None means the full budget

    Raises
    ------
    BudgetError
        The user requested sweeps, and the disk is too small for them.
    """
    if choice.home != "sweep":
        return choice, None
    if demand is None:
        return replace(choice, home="direct", reason="there are no batches"), None
    try:
        return choice, plan_sweeps(
            demand, budget_bytes=budget_bytes, spill_bytes=spill_bytes, room_bytes=room_bytes
        )
    except BudgetError as error:
        if is_required:
            raise
        return replace(choice, home="direct", reason=f"{choice.reason}, and {error}"), None


def sweep_demand(
    dataset: Dataset, settings: LoaderSettings, probe: Sequence[AnyBatch], *, num_batches: int | None
) -> SweepDemand | None:
    """Return the memory and disk that sweeps need for batches like ``probe``.

    Parameters
    ----------
    dataset : the edges
    settings : the loader's settings
    probe : the run's first batches; without batches the result is None
    num_batches : the run's number of batches; None if unknown
    """
    if not probe:
        return None
    spec, layout = settings.sampling.sampler, settings.sampling.layout
    names = ["indices", "edge_weight"] if reads_weights(spec) else ["indices"]
    # A pass writes one or several words per drawn edge: one if it draws edges by position, more if it must read each
    # node's full list of edges first.
    words, is_merged = swept_words(spec), layout == "merged"
    tables = {relation: table for relation, table in dataset.edge_tables.items() if table.num_edges}
    nodes = _largest([_hop_nodes(dataset, batch, is_merged=is_merged) for batch in probe])
    edges = {
        relation: _largest([_hop_edges(batch.edges_of(number), is_merged=is_merged) for batch in probe])
        for number, relation in enumerate(dataset.relations)
        if relation in tables
    }
    num_edges = sum(map(sum, edges.values()))
    return SweepDemand(
        file_bytes=sum(
            table.arrays[name].num_bytes
            for table in tables.values()
            for name in names
            if name in table.arrays
        ),
        node_bytes=id_dtype(dataset.num_nodes).itemsize,
        hop_nodes=nodes,
        # Each relation's output of a hop is padded to a page.
        hop_bytes=tuple(
            sum(
                words * table.arrays["indices"].row_bytes * edges[relation][hop] + PAGE_BYTES
                for relation, table in tables.items()
            )
            for hop in range(len(nodes))
        ),
        # A drawn edge touches one page. A full list touches at least two pages, and more if it is long.
        touched_pages=num_edges if words == 1 else len(names) * (2 * sum(nodes) + num_edges),
        num_batches=num_batches,
        kept_bytes=_kept_bytes(dataset, settings),
        # Passes that read edges at given positions share one set of buffers in turn.
        num_files=1 if words == 1 else max(len(tables), 1),
    )


def open_sweeps(
    dataset: Dataset,
    settings: LoaderSettings,
    plan: SweepPlan | None,
    work: Workload,
    *,
    folder: SpillFolder | None,
    rates: IoRates,
    stack: ExitStack,
) -> SweepTier | None:
    """Open the readers for edge passes over ``dataset``; None if there are no passes.

    Parameters
    ----------
    dataset : the edges
    settings : the loader's settings
    plan : the passes' plan, or None
    work : the sampler, and sampled batches
    folder : receives the passes' output
    rates : the disks' rates
    stack : closes the files

    Raises
    ------
    BudgetError
        The buffers of ``plan`` are too small for a pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        The edges cannot be opened.
    """
    sampler = work.sampler
    # The last condition is for the type checker: `_obstacle` has excluded every other sampler.
    if plan is None or folder is None or not isinstance(sampler, SWEPT_SAMPLERS):
        return None
    passes = open_passes(
        dataset,
        sampler.rule,
        folder,
        PassSettings(memory_bytes=plan.buffer_bytes, rates=rates, io=settings.reading.io),
    )
    stack.callback(passes.close)
    return SweepTier(
        passes=passes,
        sampler=sampler,
        num_batches=plan.num_batches,
        probed=work.probe,
        type_starts=dataset.type_starts,
    )


def _obstacle(sampling: SamplingSettings, spill: SpillFolder | KnownDisk | None) -> SweepObstacle | None:
    """Return the reason why edges cannot be swept, for batches of any size; None if they can."""
    refusal = hetero_sweep_refusal(sampling.sampler, sampling.fanouts)
    if sampling.is_temporal:
        refusal = TIMED_SWEEP_REFUSAL
    if refusal is not None:
        return SweepObstacle(reason=refusal[0], remedy=refusal[1])
    return NO_FOLDER if spill is None else None


def _kept_bytes(dataset: Dataset, settings: LoaderSettings) -> int:
    """Return the memory for one list's tentative picks, some of which are discarded later. Pure."""
    if not reads_weights(settings.sampling.sampler):
        return 0
    hops = resolve_fanouts(settings.sampling.fanouts, dataset.relations)
    return KEPT_EDGE_BYTES * min(max(0, *chain.from_iterable(hops)), dataset.num_edges)


def _hop_nodes(dataset: Dataset, batch: AnyBatch, *, is_merged: bool) -> list[int]:
    """Return the number of ids per hop that wait for a pass. Pure.

    These are the nodes that draw in the hop. In a merged layout only new nodes draw, and all nodes so far wait too.
    """
    seen = _seen_of_types(dataset, batch)
    if is_merged:
        seen = [[2 * after - before for before, after in pairwise([0, *counts])] for counts in seen]
    return [sum(counts) for counts in zip(*seen, strict=True)]


def _seen_of_types(dataset: Dataset, batch: AnyBatch) -> list[list[int]]:
    """Return the number of the batch's nodes before each hop, as one list per type. Pure."""
    counts_by_type = []
    for name, count in zip(dataset.node_types, batch.seed_counts, strict=True):
        counts = []
        for hop in reversed(batch.hops):
            counts.append(count)
            num_sources = (
                block.num_src
                for (source, _, _), block in zip(dataset.relations, hop, strict=True)
                if source == name
            )
            count = next(num_sources, count)  # noqa: PLW2901 - the nodes after the hop, before the next
        counts_by_type.append(counts)
    return counts_by_type


def _hop_edges(blocks: Sequence[Block], *, is_merged: bool) -> list[int]:
    """Return the number of edges per hop; a merged block also holds earlier hops' edges. Pure."""
    edges = [block.num_edges for block in reversed(blocks)]
    return [after - before for before, after in pairwise([0, *edges])] if is_merged else edges


def _largest(hops: list[list[int]]) -> tuple[int, ...]:
    """Return each hop's maximum over ``hops``, which has one list per batch, plus a margin for later batches. Pure."""
    return tuple(math.ceil(LARGER_THAN_PROBED * max(column)) for column in zip(*hops, strict=True))
