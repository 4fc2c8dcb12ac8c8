"""The sums of an epoch: rows, bytes and requests moved, and the seconds of every stage."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gloader.types import ReadStats

StageName = Literal["sweep", "sample", "inspect", "stage", "gather", "transfer", "compute", "wait"]
STAGES: tuple[StageName, ...] = (
    "sweep",
    "sample",
    "inspect",
    "stage",
    "gather",
    "transfer",
    "compute",
    "wait",
)

# The thread that reads ahead of the gather has its own track in a timeline; its time counts as "gather" in the sums.
WorkName: TypeAlias = StageName | Literal["read"]
WORK_NAMES: tuple[WorkName, ...] = (
    "sweep",
    "sample",
    "inspect",
    "stage",
    "read",
    "gather",
    "transfer",
    "compute",
    "wait",
)

# The counts that are known of each table.
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
    """The sums over the batches of one epoch."""

    epoch: int
    batches: int = 0
    seeds: int = 0
    rows_gathered: int = 0  # rows put into batches
    device_hits: int = 0  # of those, rows that the device held
    cache_hits: int = 0  # of those, rows that came from memory
    rows_read: int = 0  # of those, rows that came from the SSD
    # Counted as they are made, those of sweeps and of batches; what the cost model predicted is in `Choice`.
    requests: int = 0  # reads issued to the device
    bytes_read: int = 0
    bytes_written: int = 0
    # Of the passes over the edges, which the counts above leave out; each counts for the epoch of its first batch.
    edge_passes: int = 0
    edge_bytes_read: int = 0
    edge_bytes_written: int = 0
    # Of a dataset at a URL: what came from there since the epoch before was told of, by opening or evaluating, too.
    object_requests: int = 0
    object_bytes: int = 0
    object_retries: int = 0  # of the requests, those that were made again
    object_wait_s: float = 0.0  # that requests were held back, by a limit or before they were made again
    seconds: float = 0.0  # wall time of the epoch
    cpu_seconds: float = 0.0  # of all threads of the process, in that time
    compile_seconds: float = 0.0  # of it, while a kernel was compiled, which later runs load
    retrieval_s: float = 0.0  # the part of stage_seconds["gather"] that brought misses from the SSD
    stage_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(STAGES, 0.0)
    )  # thread-seconds
    # Of the counts above, those of each table by its name: `OF_TABLES`. Empty where there is one table.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    def of_table(self, name: str) -> EpochStats:
        """Return the same epoch with the counts of one table alone; all of them where there is one table. Pure."""
        if not self.tables:
            return self
        counts: dict[str, Any] = dict.fromkeys(OF_TABLES, 0) | self.tables.get(name, {})
        return replace(self, tables={}, **counts)

    @property
    def hit_rate(self) -> float:
        """Share of gathered rows that came from memory: `hit_rate` of this epoch alone."""
        return hit_rate([self])


def hit_rate(epochs: Sequence[EpochStats]) -> float:
    """Return the share of gathered rows that came from memory, the device's or the host's; 0 without rows. Pure."""
    rows = sum(epoch.rows_gathered for epoch in epochs)
    return sum(epoch.device_hits + epoch.cache_hits for epoch in epochs) / rows if rows else 0.0


def hits_by_table(epochs: Sequence[EpochStats]) -> dict[str, float]:
    """Return `hit_rate` of each table; nothing where there is one table. Pure."""
    names = dict.fromkeys(name for epoch in epochs for name in epoch.tables)
    return {
        name: hit_rate([epoch.of_table(name) for epoch in epochs if name in epoch.tables]) for name in names
    }


def add_tables(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the sums of each table over ``parts``, such as those of the ranks. Pure."""
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counts in part.items():
            sums = total.setdefault(name, dict.fromkeys(OF_TABLES, 0))
            for count, value in counts.items():
                sums[count] += value
    return total


def memory_by_table(epochs: Sequence[EpochStats]) -> str:
    """Say which part of the rows of each table came from memory; nothing where there is one table. Pure."""
    found = ", ".join(f"{name} {share:.0%}" for name, share in hits_by_table(epochs).items())
    return f"from memory: {found}" if found else ""


class StatsRecorder:
    """Adds up one epoch. Thread-safe.

    Work for an epoch may begin before its consumer does, so the sums and the clock are apart: the wall time runs
    from `start` (from the construction, without it) to `stop`.
    """

    def __init__(self, epoch: int) -> None:
        self._lock = threading.Lock()
        self._epoch = epoch
        self._counts = dict.fromkeys(
            (
                "batches",
                "seeds",
                "rows_gathered",
                "device_hits",
                "cache_hits",
                "rows_read",
                "requests",
                "bytes_read",
                "bytes_written",
                "edge_passes",
                "edge_bytes_read",
                "edge_bytes_written",
            ),
            0,
        )
        self._tables: dict[str, dict[str, int]] = {}
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._retrieval_s = 0.0
        self.start()

    def start(self) -> None:
        """Start the clock: the consumer asked for the epoch's first batch."""
        with self._lock:
            self._stopped: tuple[float, float, float] | None = None
            self._started = _clocks()

    def stop(self) -> None:
        """Stop the clock: the epoch is over for its consumer. Idempotent: the first end stays."""
        with self._lock:
            self._stopped = self._stopped or _clocks()

    def add_seconds(self, name: WorkName, seconds: float) -> None:
        """Add ``seconds`` to stage ``name``; those of "read" count as "gather", and as retrieval."""
        with self._lock:
            if name == "read":
                self._retrieval_s += seconds
                name = "gather"
            self._seconds[name] += seconds

    def add_gather(
        self, *, rows: int, hits: int, read: ReadStats | None, device_hits: int = 0, table: str = ""
    ) -> None:
        """Count the gather of one batch.

        Parameters
        ----------
        rows : U, all rows of the batch
        hits : of those, rows that came from host memory
        read : what bringing the others from the SSD took; None: there were no others
        device_hits : of the rows, those that the device holds
        table : whose rows, where there are several tables
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
        """Count what staging a superbatch moved; its rows count when their batches are gathered.

        Parameters
        ----------
        bytes_read, bytes_written : from and to the SSD
        requests : reads that the disk saw
        table : whose rows, where there are several tables
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
        bytes_read, bytes_written : from and to the SSD
        """
        with self._lock:
            self._counts["edge_passes"] += 1
            self._counts["edge_bytes_read"] += bytes_read
            self._counts["edge_bytes_written"] += bytes_written

    def add_batch(self, num_seeds: int) -> None:
        """Count one batch handed to the consumer."""
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
        """Return the counts of all tables, and those of ``table`` where it has a name; under the lock."""
        if not table:
            return [self._counts]
        return [self._counts, self._tables.setdefault(table, dict.fromkeys(OF_TABLES, 0))]


def _clocks() -> tuple[float, float, float]:
    """Return wall, CPU and compilation seconds, of this process."""
    # Here, because numba comes with it: the commands name the stages, and start without.
    from gloader.observe.compile_clock import compile_seconds

    return time.perf_counter(), time.process_time(), compile_seconds()
