"""An epoch's sums: rows, bytes and requests moved, and each stage's seconds.

The stages add their work to a `StatsRecorder`; its `snapshot` returns the sums as `EpochStats`. A batch passes the
stages in the order of `WORK_NAMES`. The consumer is the training loop. A row of a batch comes from the device's cache,
from host memory (a hit), or from the SSD (a miss). A table holds the feature rows of one node type or of one relation's
edges. A superbatch is a group of consecutive batches whose missing rows are planned together.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gloader.types import ReadStats

# Kinds of measured work: the stages in a batch's order, then "wait", the consumer's time without a batch. "sweep" reads
# the edge file for many batches, "stage" reads missing rows of many batches ahead, and "read" those of one batch.
WorkName: TypeAlias = Literal[
    "sweep", "sample", "inspect", "stage", "read", "gather", "transfer", "compute", "wait"
]
WORK_NAMES: tuple[WorkName, ...] = get_args(WorkName)
# "read" is missing: it has a thread and a timeline track of its own, but in the sums its time counts as "gather".
STAGES: tuple[WorkName, ...] = tuple(name for name in WORK_NAMES if name != "read")

# Counts that are kept for each table.
OF_TABLES = (
    "rows_gathered",
    "device_hits",
    "cache_hits",
    "rows_read",
    "requests",
    "bytes_read",
    "bytes_written",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """The sums over one epoch's batches."""

    epoch: int
    batches: int = 0  # batches delivered to the consumer
    seeds: int = 0  # seeds or predicted edges in these batches
    rows_gathered: int = 0  # rows put into batches
    # The next three counts add up to `rows_gathered`.
    device_hits: int = 0  # rows on the device
    cache_hits: int = 0  # rows from host memory
    rows_read: int = 0  # rows from the SSD
    # Traffic of feature rows, counted when it is issued.
    requests: int = 0  # reads issued to the SSD
    bytes_read: int = 0  # from the SSD
    bytes_written: int = 0  # to the SSD
    # Passes over the edge file, which the counts above omit. A pass counts for the epoch of its first batch.
    edge_passes: int = 0
    edge_bytes_read: int = 0  # from the SSD
    edge_bytes_written: int = 0  # to the SSD
    # Traffic for a dataset at a URL since the last epoch's report, with that of opening the dataset and of evaluations.
    object_requests: int = 0
    object_bytes: int = 0  # received bytes
    object_retries: int = 0  # repeated requests
    object_wait_s: float = 0.0  # time that requests were delayed, by a limit or before a retry
    seconds: float = 0.0  # the epoch's wall time
    cpu_seconds: float = 0.0  # processor time for all of the process's threads
    compile_seconds: float = 0.0  # part of the wall time with a compilation; later runs load the kernels
    retrieval_s: float = 0.0  # the part of stage_seconds["gather"] that read misses from the SSD
    # Thread-seconds by stage.
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    # By table name: the counts in `OF_TABLES`. Empty with a single table.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    def of_table(self, name: str) -> EpochStats:
        """Return the same epoch with one table's counts. With a single table, all counts stay. Pure."""
        if not self.tables:
            return self
        counts: dict[str, Any] = dict.fromkeys(OF_TABLES, 0) | self.tables.get(name, {})
        return replace(self, tables={}, **counts)

    @property
    def hit_rate(self) -> float:
        """The share of gathered rows from memory, see `hit_rate`."""
        return hit_rate([self])


def hit_rate(epochs: Sequence[EpochStats]) -> float:
    """Return the share of gathered rows from the device's or host's memory. 0 without rows. Pure."""
    rows = sum(epoch.rows_gathered for epoch in epochs)
    return sum(epoch.device_hits + epoch.cache_hits for epoch in epochs) / rows if rows else 0.0


def hits_by_table(epochs: Sequence[EpochStats]) -> dict[str, float]:
    """Return each table's `hit_rate`. Empty with a single table. Pure."""
    names = dict.fromkeys(name for epoch in epochs for name in epoch.tables)
    return {
        name: hit_rate([epoch.of_table(name) for epoch in epochs if name in epoch.tables]) for name in names
    }


def add_tables(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return each table's sums over ``parts``, such as the ranks' parts. Pure."""
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counts in part.items():
            sums = total.setdefault(name, dict.fromkeys(OF_TABLES, 0))
            for count, value in counts.items():
                sums[count] += value
    return total


def memory_by_table(epochs: Sequence[EpochStats]) -> str:
    """Return each table's share of rows from memory as text. Empty with a single table. Pure."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in hits_by_table(epochs).items())
    return f"from memory: {shares}" if shares else ""


class StatsRecorder:
    """Adds up one epoch. Thread-safe.

    Work for an epoch may begin before the consumer requests its first batch, so the clock is separate from the sums.
    The wall time runs from the last `start` to `stop`; the constructor calls `start` once.
    """

    def __init__(self, epoch: int) -> None:
        self._lock = threading.Lock()
        self._epoch = epoch
        # By field name of `EpochStats`.
        self._counts = dict.fromkeys(
            ("batches", "seeds", *OF_TABLES, "edge_passes", "edge_bytes_read", "edge_bytes_written"), 0
        )
        self._tables: dict[str, dict[str, int]] = {}  # by table name: the counts in `OF_TABLES`
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)  # thread-seconds by stage
        self._retrieval_s = 0.0  # see `EpochStats.retrieval_s`
        self.start()

    def start(self) -> None:
        """Start the clock, when the consumer requests the epoch's first batch."""
        with self._lock:
            self._stopped: tuple[float, float, float] | None = None  # `_clocks` at the stop
            self._started = _clocks()

    def stop(self) -> None:
        """Stop the clock when the consumer's epoch is over. Idempotent: the first call after `start` counts."""
        with self._lock:
            self._stopped = self._stopped or _clocks()

    def add_seconds(self, name: WorkName, seconds: float) -> None:
        """Add ``seconds`` to stage ``name``. Seconds in "read" count as "gather" and as retrieval."""
        with self._lock:
            if name == "read":
                self._retrieval_s += seconds
                name = "gather"
            self._seconds[name] += seconds

    def add_gather(
        self, *, rows: int, hits: int, read: ReadStats | None, device_hits: int = 0, table: str = ""
    ) -> None:
        """Count one batch's gather.

        Parameters
        ----------
        rows : U, all rows in the batch
        hits : rows from host memory
        read : cost for reading the missing rows from the SSD. None means that no row was missing.
        device_hits : rows that the device holds
        table : the rows' table, if there are several tables
        """
        with self._lock:
            for counts in self._counts_of(table):
                counts["rows_gathered"] += rows
                counts["device_hits"] += device_hits
                counts["cache_hits"] += hits
                if read is not None:
                    counts["rows_read"] += read.rows
                    counts["requests"] += read.requests
                    counts["bytes_read"] += read.bytes_read

    def add_staged(self, *, bytes_read: int, bytes_written: int, requests: int, table: str = "") -> None:
        """Count the bytes that staging a superbatch moved. Its rows count when their batches are gathered.

        Parameters
        ----------
        bytes_read, bytes_written : bytes read from and written to the SSD
        requests : reads issued to the disk
        table : the rows' table, if there are several tables
        """
        with self._lock:
            for counts in self._counts_of(table):
                counts["bytes_read"] += bytes_read
                counts["bytes_written"] += bytes_written
                counts["requests"] += requests

    def add_sweep(self, *, bytes_read: int, bytes_written: int) -> None:
        """Count a pass over the edges.

        Parameters
        ----------
        bytes_read, bytes_written : bytes read from and written to the SSD
        """
        with self._lock:
            self._counts["edge_passes"] += 1
            self._counts["edge_bytes_read"] += bytes_read
            self._counts["edge_bytes_written"] += bytes_written

    def add_batch(self, num_seeds: int) -> None:
        """Count one batch delivered to the consumer."""
        with self._lock:
            self._counts["batches"] += 1
            self._counts["seeds"] += num_seeds

    def snapshot(self) -> EpochStats:
        """Return the sums so far."""
        with self._lock:
            wall, cpu, compiling = self._stopped or _clocks()
            return EpochStats(
                epoch=self._epoch,
                seconds=wall - self._started[0],
                cpu_seconds=cpu - self._started[1],
                compile_seconds=compiling - self._started[2],
                retrieval_s=self._retrieval_s,
                stage_seconds=dict(self._seconds),
                tables={name: dict(counts) for name, counts in self._tables.items()},
                **self._counts,
            )

    def _counts_of(self, table: str) -> list[dict[str, int]]:
        """Return the counts to raise: those of all tables, and ``table``'s own if it has a name. Hold the lock."""
        if not table:
            return [self._counts]
        return [self._counts, self._tables.setdefault(table, dict.fromkeys(OF_TABLES, 0))]


def _clocks() -> tuple[float, float, float]:
    """Return the present wall clock, and this process's CPU seconds and compilation seconds."""
    # The import is here because it loads numba. The command line uses the stage names and starts without numba.
    from gloader.observe.compile_clock import compile_seconds

    return time.perf_counter(), time.process_time(), compile_seconds()
