"""What a run would like to hold in host memory, measured before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gloader.cache import PlannerName
    from gloader.cache.reuse import ReuseProfile
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
