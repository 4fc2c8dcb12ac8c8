"""Demand for host memory, measured before a run starts, and each part's bytes in a memory plan. Pure.

`Demand` has the sizes of a run: of its batches, its tables and its topology. `measure_demand` in
`gloader.pipeline.open.first_batches` makes it, and `gloader.plan.memory_plan` divides the memory budget from it.

- A table has the feature rows of one node type or relation.
- A large batch is the size that the memory must have room for: somewhat larger than the largest measured batch.
- A superbatch is S batches that are planned together. The cache planner looks at a superbatch and at the next one, its
  look-ahead. A trace is the list of a superbatch's accesses, and an access is one use of a row by one batch.
- A sweep is a pass over the edges on the SSD, which draws edges for many batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.cache import node_bytes, table_bytes
from gloader.cache.write_plan import write_access_bytes
from gloader.core.units import format_bytes
from gloader.ssd_store import packer_memory_bytes
from gloader.ssd_store.embedding.row_pieces import INDEX_BYTES

if TYPE_CHECKING:
    from gloader.cache import PlannerName
    from gloader.cache.curve import ReuseProfile
    from gloader.plan.predict import StepWork
    from gloader.plan.sweep_plan import SweepPlan


# Least bytes for small parts that are not counted singly: reads in flight, checksums under verification, allocator
# slack.
FIXED_BYTES: Final = 24 << 20
# The same as a share of the budget, used if it is more; measured as the peak of memory minus the plan.
_FIXED_SHARE: Final = 1 / 16

# Bytes per access of one superbatch: two traces in a compact code, which wait or serve as look-ahead; two plans with 4
# bytes each; and the missing rows while they are counted and staged.
_TRACE_BYTES_PER_ACCESS: Final = 12.0

# Bytes of a sampled batch per row and per edge. Row: its id; its id and its position after the sort by id, and both as
# a pair during the sort (8 bytes each); its degree (4); entries in indptr (8). Edge: its local source (4), its position
# in the graph (8) and its weight (4).
_SAMPLED_ROW_BYTES: Final = 44  # 4 x 8, 4 and 8
_SAMPLED_EDGE_BYTES: Final = 16  # 4, 8 and 4

# Bytes per seed: its id, its label, and its position in the orders of three epochs (8 bytes each).
_SEED_BYTES: Final = 40

# Least feature buffers per rank if a loader serves several ranks. A rank's loop runs in another process, and holds one
# batch while it waits for the next one.
_FEWEST_BUFFERS_OF_RANKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDemand:
    """One table's memory demand and access statistics: a node type's rows or a relation's edge rows."""

    name: str  # type or relation
    num_nodes: int  # number of rows: N, or E for a relation
    feature_bytes: int  # bytes of all rows, as stored
    row_bytes: int  # bytes of one row in a feature buffer
    slot_bytes: int  # the cache policy's own bytes per cached row
    batch_rows: int  # distinct rows in a large batch
    store_bytes: int  # bytes of checksums and read buffers, if the rows are read from the SSD
    stored_row_bytes: int  # R, bytes of one row on the SSD or in the host cache
    reuse: ReuseProfile  # the first batches' reuse statistics
    repeated_rows: int = 0  # positions of a large batch whose row is also at an earlier position

    @property
    def buffer_rows(self) -> int:
        """Rows of a large batch in a feature buffer, repeats included."""
        return self.batch_rows + self.repeated_rows

    def cache_bytes(self, rows: int) -> int:
        """Return the bytes for ``rows`` cached rows, with the cache policy's own bytes. Pure."""
        return rows * (self.stored_row_bytes + self.slot_bytes)

    def planned_accesses(self, num_batches: int) -> int:
        """Return the accesses in a superbatch and its look-ahead. Pure."""
        return 2 * num_batches * self.batch_rows

    def planning_bytes(self, policy: PlannerName, num_batches: int) -> int:
        """Return the bytes for traces, plans and lookup tables with superbatches of ``num_batches``. Pure."""
        accesses = self.planned_accesses(num_batches)
        tables = (
            table_bytes(self.num_nodes, accesses)
            if policy == "belady"
            else node_bytes(policy) * self.num_nodes
        )
        # ``accesses`` counts a superbatch and its look-ahead; the factor is per access of one superbatch. The last term
        # is a bitmap with one bit per row, which counts the missing rows: 125 MB for a billion edges.
        return math.ceil(accesses / 2 * _TRACE_BYTES_PER_ACCESS) + tables + -(-self.num_nodes // 8)


# Bytes per access of one superbatch of an embedding: two traces in a compact code; and beside each plan the ids of the
# rows that are read ahead (8), with a flag (1) and a batch (8).
_TRACES_PER_ACCESS: Final = 4
_STAGED_PER_ACCESS: Final = 17
_PLANS: Final = 3  # superbatches with a plan: one is used, one waits, and one is staged


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDemand:
    """The memory of a node type's trained rows; a slot is the room for one row."""

    name: str  # the node type
    num_rows: int  # N
    batch_rows: int  # distinct rows in a large batch
    num_slots: int  # rows in memory
    buffer_rows: int  # rows that are collected before they are written
    staging_bytes: int  # memory for rows that are read ahead
    fixed_bytes: int  # slots, rows read ahead, buffered writes, and the tensors of a batch
    row_bytes: int  # weights and state of a row
    folder: str  # of the table

    @property
    def text(self) -> str:
        """One line of text on the rows' places, for the report."""
        share = self.num_slots / max(self.num_rows, 1)
        return (
            f"trained rows of {self.name}: {self.num_slots:,} of {self.num_rows:,} rows ({share:.1%}) of "
            f"{format_bytes(self.row_bytes)} in memory; table in {self.folder}"
        )

    def planning_bytes(self, num_batches: int) -> int:
        """Return the bytes for traces, plans and lookup tables with superbatches of ``num_batches``. Pure."""
        accesses = num_batches * self.batch_rows
        plans = _PLANS * (write_access_bytes(self.num_rows) + _STAGED_PER_ACCESS)
        # Rows that wait in files for the batch that loads them.
        waiting = INDEX_BYTES * min(self.num_rows, 2 * accesses)
        lookup = table_bytes(self.num_rows, 2 * accesses)
        return accesses * (_TRACES_PER_ACCESS + plans) + lookup + waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The sizes of a run, measured before it starts."""

    tables: tuple[TableDemand, ...]  # one for each type or relation with features; may be empty
    topology_bytes: int  # bytes of the topology in memory; only a part of it if the edges are on the SSD
    policy: PlannerName  # policy of the host cache
    batch_rows: int  # unique nodes in a large batch over all types, with or without features
    batch_edges: int  # sampled edges in a large batch
    batches_in_flight: int  # sampled batches that wait to be gathered
    sampler_threads: int  # number of sampling threads
    sampler_map_bytes: int  # bytes of one sampling thread's lookup table
    work: StepWork  # one step's work, measured on the first batches and on the disk
    num_batches: int | None  # batches in the run, if known
    beside_bytes: int = 0  # bytes of a large batch except rows and edges: link pairs, node trees
    sampler_call_bytes: int = 0  # a sampling thread's working memory for one large batch
    num_seeds: int = 0  # seeds per epoch
    num_ranks: int = 1  # ranks that this process gathers for; each has its own feature buffers
    is_reset: bool = False  # superbatches start from an empty cache
    sweeps: SweepPlan | None = None  # None if edges are not swept
    others: tuple[tuple[str, int], ...] = ()  # names and bytes of further fixed parts
    embeddings: tuple[EmbeddingDemand, ...] = ()  # one for each node type with trained rows

    @property
    def feature_bytes(self) -> int:
        """Stored feature bytes over all tables."""
        return sum(table.feature_bytes for table in self.tables)

    @property
    def store_bytes(self) -> int:
        """Bytes for all SSD stores."""
        return sum(table.store_bytes for table in self.tables)

    @property
    def buffer_bytes(self) -> int:
        """Bytes for one feature buffer over all tables, summed over the ranks."""
        return sum(table.buffer_rows * table.row_bytes for table in self.tables) * self.num_ranks

    @property
    def fewest_buffers(self) -> int:
        """Least number of feature buffers per rank with which the loop can run."""
        return 1 if self.num_ranks == 1 else _FEWEST_BUFFERS_OF_RANKS

    @property
    def batch_bytes(self) -> int:
        """Bytes for one large sampled batch, without features."""
        rows, edges = _SAMPLED_ROW_BYTES * self.batch_rows, _SAMPLED_EDGE_BYTES * self.batch_edges
        return rows + edges + self.beside_bytes

    def caches_bytes(self, cache_rows: tuple[int, ...]) -> int:
        """Return the host cache's bytes over all tables. Pure."""
        return sum(table.cache_bytes(rows) for table, rows in zip(self.tables, cache_rows, strict=True))

    def planning_bytes(self, num_batches: int) -> int:
        """Return the bytes for all traces, plans and lookup tables if features are on the SSD. Pure."""
        tables = sum(table.planning_bytes(self.policy, num_batches) for table in self.tables)
        return tables + self.writing_bytes(num_batches)

    def writing_bytes(self, num_batches: int) -> int:
        """Return the bytes for all embeddings' traces, plans and lookup tables; see `EmbeddingDemand`. Pure."""
        return sum(embedding.planning_bytes(num_batches) for embedding in self.embeddings)

    def packing_bytes(self, num_batches: int, *, room: int) -> int:
        """Return the buffer bytes for packing superbatches of ``num_batches``. Pure."""
        # One table's buffers suffice, because a superbatch's packs are written one after another.
        return packer_memory_bytes(num_batches, room=max(room, 0)) if self.tables else 0

    def workspace_bytes(self, budget_bytes: int) -> int:
        """Return the bytes for batches being sampled or waiting, seeds, and small parts. Pure."""
        threads = (self.sampler_map_bytes + self.sampler_call_bytes) * self.sampler_threads
        fixed = max(FIXED_BYTES, int(_FIXED_SHARE * budget_bytes))
        batches = self.batch_bytes * (self.batches_in_flight + self.sampler_threads)
        return fixed + threads + _SEED_BYTES * self.num_seeds + batches


def topology_share(budget_bytes: int) -> int:
    """Return the default limit of a topology's bytes in memory. A larger topology stays on the SSD. Pure."""
    # More than half of the budget for the topology would leave too little for the features.
    return budget_bytes // 2
