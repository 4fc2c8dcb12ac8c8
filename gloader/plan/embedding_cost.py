"""The disk's work for an embedding: bytes read and written, and their seconds at the disk's rates. Pure.

An embedding is the trained rows of a node type. A slot holds one row in memory. The rows' storage, the table, is a list
of runs: files of rows sorted by id. Rows move in these ways:

- A superbatch's rows that the table has are read ahead, each once, in the order of their ids.
- A row that leaves its slot and has a known later batch waits for it, as do rows that were read ahead. Waiting rows
  that do not fit in memory are written to the spill folder, and read back once.
- A row that leaves its slot without a known later batch is appended to the table. Full buffers become runs.
- Runs are merged now and then, see `run_merge`.

`RowTraffic` counts the moved rows of plans, and `predict_rows` predicts their bytes and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.write_plan import LATE, TABLE
from gloader.plan.predict import expected_reads
from gloader.ssd_store.embedding.run_merge import plan_merge

if TYPE_CHECKING:
    from gloader.cache.write_plan import WritePlan
    from gloader.ssd_store.cost.io_rates import IoRates

_ID_BYTES: Final = 8  # bytes of a row's id in a run
_FLUSHED: Final = 4  # a full memory of waiting rows writes this part of them: 1 / _FLUSHED


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTraffic:
    """Numbers of rows that moved over some superbatches."""

    num_superbatches: int = 0
    num_batches: int = 0
    accesses: int = 0  # rows of batches, with repeats
    forward: int = 0  # loaded rows that waited since their eviction
    staged: int = 0  # loaded rows that were read ahead from the table
    late: int = 0  # loaded rows that their own load read from the table
    fresh: int = 0  # loaded rows that were never trained, for which nothing is read
    appended: int = 0  # rows written to the table
    spilled: int = 0  # waiting rows that went through the spill folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSizes:
    """The sizes of an embedding's storage."""

    num_rows: int  # N
    row_bytes: int  # weights and state of a row
    buffer_rows: int  # appended rows that become one run
    gap_bytes: int  # longest gap between two rows that one read bridges


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """The disk's predicted work."""

    staged_bytes: int  # read for rows of the table: those read ahead, and late ones
    spilled_bytes: int  # written to the spill folder; as many are read back
    appended_bytes: int  # written to new runs
    merge_read_bytes: int
    merge_written_bytes: int
    seconds: float  # of the disk

    @property
    def read_bytes(self) -> int:
        """Bytes read in all ways."""
        return self.staged_bytes + self.spilled_bytes + self.merge_read_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes written in all ways."""
        return self.spilled_bytes + self.appended_bytes + self.merge_written_bytes


class TrafficCounter:
    """Counts the rows that consecutive plans move. Not thread-safe.

    Parameters
    ----------
    places : waiting rows that fit in memory
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: dict[int, int] = {}  # waiting rows in memory, by their batch
        self._last: WritePlan | None = None  # read ahead, and not yet loaded
        self._counts = dict.fromkeys((field.name for field in fields(RowTraffic)), 0)

    def add(self, plan: WritePlan) -> None:
        """Count the next plan. Its rows are read ahead before the batches of the last plan are loaded."""
        staged = {
            plan.first + index: int(np.count_nonzero(sources == TABLE))
            for index, sources in enumerate(plan.sources)
        }
        self._wait(staged)
        counts = self._counts
        counts["num_superbatches"] += 1
        counts["num_batches"] += len(plan)
        counts["accesses"] += plan.num_accesses
        counts["staged"] += sum(staged.values())
        counts["late"] += plan.num_loads_from(LATE)
        counts["forward"] += plan.num_loads - sum(staged.values()) - plan.num_loads_from(LATE)
        counts["appended"] += plan.num_evictions - plan.num_forward
        self._execute()
        self._last = plan

    def traffic(self) -> RowTraffic:
        """Return the counts, after the last plan."""
        self._execute()
        return RowTraffic(**self._counts)

    def _execute(self) -> None:
        """Let the rows of the last plan's batches be loaded and evicted."""
        if self._last is None:
            return
        for index, targets in enumerate(self._last.targets):
            batches, counts = np.unique(targets[targets >= 0] + self._last.first, return_counts=True)
            self._wait(dict(zip(batches.tolist(), counts.tolist(), strict=True)))
            self._waiting.pop(self._last.first + index, None)
        self._last = None

    def _wait(self, added: dict[int, int]) -> None:
        """Let rows wait for batches; if memory is full, rows of the farthest batches are spilled."""
        for batch, count in added.items():
            self._waiting[batch] = self._waiting.get(batch, 0) + count
        excess = sum(self._waiting.values()) - self._places
        if excess <= 0:
            return
        excess = max(excess, self._places // _FLUSHED)
        for batch in sorted(self._waiting, reverse=True):
            count = self._waiting.pop(batch)
            self._counts["spilled"] += count
            excess -= count
            if excess <= 0:
                return


def predict_rows(traffic: RowTraffic, storage: TableSizes, rates: IoRates) -> RowCost:
    """Return the predicted work of the disk for ``traffic``. Pure.

    All rows are assumed to have been trained before, so that the table has each of them.

    Parameters
    ----------
    traffic : rows that move
    storage : the embedding's sizes
    rates : the disk's rates
    """
    row_bytes, stored_bytes = storage.row_bytes, storage.row_bytes + _ID_BYTES
    file_rows, merge_read, merge_written = merged_rows(traffic.appended, storage)
    staged_bytes, seconds = 0.0, 0.0
    for rows, passes in (
        (traffic.staged, traffic.num_superbatches),
        (traffic.late, traffic.num_batches),
    ):
        if rows and passes:
            requests, num_bytes = expected_reads(
                rows / passes, file_rows=file_rows, row_bytes=row_bytes, gap_bytes=storage.gap_bytes
            )
            staged_bytes += num_bytes * passes
            seconds += rates.read_seconds(requests, num_bytes) * passes
    spilled_bytes, appended_bytes = traffic.spilled * row_bytes, traffic.appended * stored_bytes
    written = spilled_bytes + appended_bytes + merge_written * stored_bytes
    seconds += written / rates.write_bytes_per_s
    seconds += (
        merge_read * stored_bytes / rates.read_bytes_per_s + spilled_bytes / rates.pack_read_bytes_per_s
    )
    return RowCost(
        staged_bytes=round(staged_bytes),
        spilled_bytes=spilled_bytes,
        appended_bytes=appended_bytes,
        merge_read_bytes=merge_read * stored_bytes,
        merge_written_bytes=merge_written * stored_bytes,
        seconds=seconds,
    )


def merged_rows(appended: int, storage: TableSizes) -> tuple[float, int, int]:
    """Return the mean rows in all runs, and the rows that merges read and write, while rows are appended. Pure.

    The table begins with one run of all rows. Merges read and write in proportion to the appended rows, so that the
    numbers for few rows are parts of those for two tables of them. The rows of a run are assumed to be spread evenly,
    so a merge drops as many old versions as there are by chance.

    Parameters
    ----------
    appended : appended rows
    storage : the embedding's sizes
    """
    num_rows = max(storage.num_rows, 1)
    sizes, read, written, total = [num_rows], 0, 0, 0
    num_runs = max(2 * num_rows // max(storage.buffer_rows, 1), 1)
    for _ in range(num_runs):
        sizes.insert(0, min(storage.buffer_rows, num_rows))
        while (part := plan_merge(sizes, num_rows)) is not None:
            merged = sizes[part[0] : part[1]]
            kept = num_rows * (1 - float(np.prod([1 - size / num_rows for size in merged])))
            read, written = read + sum(merged), written + round(kept)
            sizes[part[0] : part[1]] = [round(kept)]
        total += sum(sizes)
    share = appended / (num_runs * min(storage.buffer_rows, num_rows))
    return total / num_runs, round(read * share), round(written * share)
