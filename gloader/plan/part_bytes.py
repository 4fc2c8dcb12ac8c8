"""Bytes of the parts of a memory plan. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gloader.cache import node_bytes, table_bytes
from gloader.ssd_store import packer_memory_bytes

if TYPE_CHECKING:
    from gloader.plan.demand import Demand, TableDemand

# Reads in flight, checksums being verified, memory that the allocator keeps: needed beside the parts below.
FIXED_BYTES: Final = 24 << 20
_FIXED_SHARE: Final = 1 / 16  # of the budget, where that is more: measured as peak minus plan

# Of one superbatch, per access: two coded traces waiting or looked ahead at, two plans of 4 bytes, and the rows that
# are missing while they are counted and staged.
_TRACE_BYTES_PER_ACCESS: Final = 12.0

# Of a sampled batch. A row: its id, id and position in ascending order, the pair of both while it is sorted (8 bytes
# each), its degree (4), and entries of indptr (8). An edge: its local source (4), its position in the graph (8) and its
# weight (4).
_SAMPLED_ROW_BYTES: Final = 44
_SAMPLED_EDGE_BYTES: Final = 16

# Of a seed: its id, its label, and its place in the orders of three epochs (8 bytes each).
_SEED_BYTES: Final = 40


def topology_share(budget_bytes: int) -> int:
    """Return the bytes that a topology may take where nobody asked for more; a larger one is on the SSD. Pure."""
    # With more than half of the budget in the topology, too little would be left for the features.
    return budget_bytes // 2


def packing_bytes(demand: Demand, num_batches: int, *, room: int) -> int:
    """Return the bytes of the buffers that pack superbatches of ``num_batches``, of all tables. Pure."""
    # Those of one table: the packs of a superbatch are made one after another.
    return packer_memory_bytes(num_batches, room=max(room, 0)) if demand.tables else 0


def caches_bytes(demand: Demand, cache_rows: tuple[int, ...]) -> int:
    """Return the bytes of the host cache of all tables. Pure."""
    return sum(table_cache_bytes(table, rows) for table, rows in zip(demand.tables, cache_rows, strict=True))


def table_cache_bytes(table: TableDemand, rows: int) -> int:
    """Return the bytes of so many cached rows, with what the policy keeps beside them. Pure."""
    return rows * (table.stored_row_bytes + table.slot_bytes)


def planning_bytes(demand: Demand, num_batches: int) -> int:
    """Return the bytes of the traces, plans and tables of superbatches of ``num_batches``. Pure."""
    return sum(table_planning_bytes(demand, table, num_batches) for table in demand.tables)


def table_planning_bytes(demand: Demand, table: TableDemand, num_batches: int) -> int:
    """Return what `planning_bytes` counts for ``table``. Pure."""
    accesses = planned_accesses(table, num_batches)
    if demand.policy == "belady":
        tables = table_bytes(table.num_nodes, accesses)
    else:
        tables = node_bytes(demand.policy) * table.num_nodes
    # A superbatch and its look-ahead are counted in ``accesses``, and the bytes are those of one superbatch. Its
    # missing rows are counted in a bit of each row: little of nodes, 125 MB of a billion edges.
    return math.ceil(accesses / 2 * _TRACE_BYTES_PER_ACCESS) + tables + -(-table.num_nodes // 8)


def planned_accesses(table: TableDemand, num_batches: int) -> int:
    """Return the accesses of a superbatch and its look-ahead. Pure."""
    return 2 * num_batches * table.batch_rows


def workspace_bytes(demand: Demand, budget_bytes: int) -> int:
    """Return the bytes of what is sampled, and of all that is in no other part. Pure."""
    maps = demand.sampler_map_bytes * demand.sampler_threads
    fixed = max(FIXED_BYTES, int(_FIXED_SHARE * budget_bytes))
    seeds = _SEED_BYTES * demand.num_seeds
    calls = demand.sampler_call_bytes * demand.sampler_threads
    batches = batch_bytes(demand) * (demand.batches_in_flight + demand.sampler_threads)
    return fixed + maps + seeds + calls + batches


def batch_bytes(demand: Demand) -> int:
    """Return the bytes of a large sampled batch, without features. Pure."""
    rows, edges = _SAMPLED_ROW_BYTES * demand.batch_rows, _SAMPLED_EDGE_BYTES * demand.batch_edges
    return rows + edges + demand.beside_bytes
