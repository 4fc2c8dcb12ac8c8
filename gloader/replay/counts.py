"""What the batches of a run need of cache and disk, counted: what a plan says before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class BatchCounts(NamedTuple):
    """Of one batch, of all tables together."""

    rows: int  # that are gathered on the host, those that the device holds left out
    hits: int
    misses: int
    admitted: int
    read_requests: int  # of the batch itself: none of a superbatch that is staged in memory
    read_bytes: int  # likewise; of a pack, those of its region


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchCounts:
    """Of one superbatch, of all tables together."""

    batches: tuple[BatchCounts, ...]
    strategy: str  # of the table that most is read of: "direct", "staged" or "packed"
    accesses: int  # of its trace
    stage_requests: int  # reads of the sweep; 0 where each batch reads alone
    stage_bytes: int  # that the sweep reads
    written_bytes: int  # into packs
    unique_rows: int  # that it misses

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.batches)

    @property
    def misses(self) -> int:
        """Missing rows of all batches."""
        return sum(batch.misses for batch in self.batches)
