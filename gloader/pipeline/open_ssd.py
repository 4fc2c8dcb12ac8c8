"""Opening what brings features from the SSD: for each table a host cache, its planner, and what stages rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import SlotCache, access_counts, hottest_by_degree, make_planner
from gloader.cache.trace import NO_ROWS
from gloader.core.descriptors import require_descriptors
from gloader.errors import BudgetError
from gloader.pipeline.stage import MissRetrieval
from gloader.pipeline.table_files import FILES_OF_A_READER
from gloader.pipeline.tiers import SsdTable
from gloader.plan.divide_cache import share_out
from gloader.samplers import HeteroGraph
from gloader.ssd_store import Packer, pack_buffers
from gloader.ssd_store.regions.layout import MAX_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager, ExitStack

    from gloader.cache import SuperbatchPlanner
    from gloader.config import LoaderSettings
    from gloader.device import DeviceTier
    from gloader.pipeline.table_files import TableFile, TableFiles
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.samplers import Topology
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.regions.shared import SharedBuffers
    from gloader.types import FeatureSource, IdArray


# They copy hits; more do not pay where a model computes beside them.
_COPY_THREADS: Final = 2

# Shares of the disk are shared out in millionths, whatever is free of it by then.
_WHOLE: Final = 10**6


def open_ssd(
    files: TableFiles,
    plan: MemoryPlan,
    topology: Topology | HeteroGraph,
    settings: LoaderSettings,
    tiers: Sequence[DeviceTier],
    stack: ExitStack,
    *,
    staging_bytes: int,
    filling: Callable[[int], AbstractContextManager[FeatureSource]],
) -> tuple[SsdTable, ...]:
    """Open the host caches of ``plan``, their planners, and what stages and packs missing rows.

    Parameters
    ----------
    files : the rows of each table
    plan : of the memory
    topology : says which rows a static cache holds
    settings : those of the loader
    tiers : what the device holds of each table
    stack : closes what was opened
    staging_bytes : idle memory that missing rows of all tables may take
    filling : returns the rows of a table, with which its cache is filled

    Raises
    ------
    BudgetError
        Packs were asked for, and there is no folder for them.
    """
    require_pack_folder(settings, has_folder=files.spill is not None)
    staging = share_out(staging_bytes, plan.missed_bytes)
    spill = spill_shares(plan)
    buffers = None
    # The plan may have found packs too dear, though there is a folder for them.
    if files.spill is not None and plan.pack_buffer_bytes:
        # Each table is swept by a reader of its own; the files of a pack are written together.
        require_descriptors(FILES_OF_A_READER * len(files.tables) + MAX_FILES)
        buffers = pack_buffers(plan.pack_buffer_bytes)
        stack.callback(buffers.close)
    held = [NO_ROWS if tier.cache is None else tier.cache.plan.rows for tier in tiers]
    found = []
    for number, table in enumerate(files.tables):
        capacity = plan.cache_rows[number]
        hot = NO_ROWS
        if settings.memory.policy == "static":
            hot = static_rows(topology, table, capacity, held[number])
        retrieval = _open_retrieval(
            table.store,
            files,
            buffers,
            settings,
            stack,
            staging_bytes=staging[number],
            spill_share=spill[number],
        )
        slots = _open_slots(table.store, capacity, settings, stack)
        with filling(number) as rows:
            # Static rows are read now; the others come with the batches that miss them.
            slots.fill(hot, rows)
        found.append(
            SsdTable(
                store=table.store,
                slots=slots,
                planner=open_planner(plan, settings, table, hot=hot, held=held[number], number=number),
                retrieval=retrieval,
            )
        )
    return tuple(found)


def require_pack_folder(settings: LoaderSettings, *, has_folder: bool) -> None:
    """Raise BudgetError where packs were asked for, and there is no folder for them."""
    if settings.reading.io_strategy == "packed" and not has_folder:
        raise BudgetError(
            "io_strategy='packed' needs disk for packs, and there is no folder for them: give spill_budget bytes (0 "
            "means none) and a spill_dir that is not in memory, or use io_strategy='auto'"
        )


def spill_shares(plan: MemoryPlan) -> tuple[float, ...]:
    """Return the part of the disk for packs that each table may take. Pure."""
    return tuple(share / _WHOLE for share in share_out(_WHOLE, plan.missed_bytes))


def open_planner(
    plan: MemoryPlan, settings: LoaderSettings, table: TableFile, *, hot: IdArray, held: IdArray, number: int
) -> SuperbatchPlanner:
    """Return what decides the hits, misses and admissions of a table.

    Parameters
    ----------
    plan : of the memory
    settings : those of the loader
    table : whose rows
    hot : the rows of a static cache, see `static_rows`
    held : the rows that the device holds
    number : of the table in ``plan``
    """
    return make_planner(
        settings.memory.policy,
        num_nodes=table.rows.num_rows,
        capacity=plan.cache_rows[number],
        hot=hot,
        device_resident=held,
        reset=settings.memory.superbatch_reset,
        expected_accesses=plan.planned_accesses[number],
    )


def _open_slots(store: FeatureStore, capacity: int, settings: LoaderSettings, stack: ExitStack) -> SlotCache:
    return stack.enter_context(
        SlotCache(
            capacity,
            dim=store.dim,
            dtype=store.dtype,
            is_bfloat16=store.stored_rows.is_bfloat16,
            scale=store.stored_rows.scale,
            threads=min(_COPY_THREADS, settings.stages.sampler_threads),
        )
    )


def _open_retrieval(
    store: FeatureStore,
    files: TableFiles,
    buffers: SharedBuffers | None,
    settings: LoaderSettings,
    stack: ExitStack,
    *,
    staging_bytes: int,
    spill_share: float,
) -> MissRetrieval:
    packer = None
    if files.spill is not None and buffers is not None:
        packer = stack.enter_context(Packer(store, files.spill, buffers=buffers))
    return MissRetrieval(
        store,
        rates=files.rates,
        packer=packer,
        spill=files.spill,
        staging_bytes=staging_bytes,
        forced=settings.reading.io_strategy,
        spill_share=spill_share,
    )


def static_rows(topology: Topology | HeteroGraph, table: TableFile, capacity: int, held: IdArray) -> IdArray:
    """Return the rows of a static host cache of ``table``, beside those ``held`` by the device."""
    if table.is_of_edges:
        # How often an edge is taken is seen in batches alone: no edge is hotter than another before the first.
        return np.setdiff1d(np.arange(capacity + len(held)), held)[:capacity]
    if isinstance(topology, HeteroGraph):
        relations = [
            edges for (source, _, _), edges in topology.relations.items() if source == table.rows.name
        ]
    else:
        relations = [topology]
    degrees = np.zeros(table.rows.num_rows, dtype=np.int64)
    for edges in relations:
        degrees += access_counts(edges.sources.pieces(), len(degrees))
    degrees[held] = 0
    return hottest_by_degree(degrees, capacity)
