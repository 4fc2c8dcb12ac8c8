"""Demand for host memory, measured before a run starts, and the bytes of each part of a memory plan. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.cache import node_bytes, table_bytes
from gloader.ssd_store import packer_memory_bytes

if TYPE_CHECKING:
    from gloader.cache import PlannerName
    from gloader.cache.curve import ReuseProfile
    from gloader.plan.predict import StepWork
    from gloader.plan.sweep_plan import SweepPlan


# A rank's loop, in another process, holds a batch while it waits for the next one, and nobody can take it back.
_FEWEST_BUFFERS_OF_RANKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDemand:
    """What the feature rows of one node type, or of the edges of one relation, would like to have."""

    name: str  # of the type or the relation
    num_nodes: int
    feature_bytes: int  # all rows, as stored
    row_bytes: int  # one row in a batch buffer
    slot_bytes: int  # what the cache policy keeps beside each cached row
    batch_rows: int  # unique rows of a large batch
    store_bytes: int  # checksums and read buffers of the SSD store
    stored_row_bytes: int  # R, one row on the SSD or in the host cache
    reuse: ReuseProfile  # how soon the rows of the first batches are used again
    repeated_rows: int = 0  # places of a large batch that have a row which another place has too

    @property
    def buffer_rows(self) -> int:
        """Rows of a large batch in a buffer."""
        return self.batch_rows + self.repeated_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a run would like to hold in host memory, measured before it starts."""

    tables: tuple[TableDemand, ...]  # of the types that have features; there may be none
    topology_bytes: int  # all of it, or what is held of one whose edges are on the SSD
    policy: PlannerName
    batch_rows: int  # unique nodes of a large batch, of all types: those without features are sampled too
    batch_edges: int  # sampled edges of a large batch
    batches_in_flight: int  # sampled batches that wait to be gathered
    sampler_threads: int
    sampler_map_bytes: int  # what each sampling thread keeps to find nodes again
    work: StepWork  # of a step, measured on the first batches and on the disk
    num_batches: int | None  # of the whole run, where that is known
    beside_bytes: int = 0  # of a large batch, beside rows and edges: pairs of links, trees of nodes
    sampler_call_bytes: int = 0  # what each sampling thread holds for a large batch, beside it
    num_seeds: int = 0  # of the whole epoch
    num_ranks: int = 1  # whose batches are gathered; each has feature buffers of its own
    is_reset: bool = False  # superbatches start from an empty cache
    sweeps: SweepPlan | None = None  # None: no passes over the edges are made
    others: tuple[tuple[str, int], ...] = ()  # name and bytes of what is held whatever is planned

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features of all types, as stored."""
        return sum(table.feature_bytes for table in self.tables)

    @property
    def store_bytes(self) -> int:
        """Bytes that all SSD stores hold."""
        return sum(table.store_bytes for table in self.tables)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer of features, for the rows of every type, one for each rank."""
        return sum(table.buffer_rows * table.row_bytes for table in self.tables) * self.num_ranks

    @property
    def fewest_buffers(self) -> int:
        """Buffers that a loop needs to go on."""
        return 1 if self.num_ranks == 1 else _FEWEST_BUFFERS_OF_RANKS


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
