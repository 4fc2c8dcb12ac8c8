"""What an epoch moved and where its time went."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.types import ReadStats

StageName = Literal["sample", "inspect", "stage", "gather", "transfer", "compute", "wait"]
STAGES: tuple[StageName, ...] = ("sample", "inspect", "stage", "gather", "transfer", "compute", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """The sums over the batches of one epoch."""

    epoch: int
    batches: int = 0
    seeds: int = 0
    rows_gathered: int = 0  # rows put into batches
    cache_hits: int = 0  # of those, rows that came from memory
    rows_read: int = 0  # of those, rows that came from the SSD
    requests: int = 0  # reads issued to the device
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0  # wall time of the epoch
    stage_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(STAGES, 0.0)
    )  # thread-seconds

    @property
    def hit_rate(self) -> float:
        """Share of gathered rows that came from memory; 0 for an epoch without rows."""
        return self.cache_hits / self.rows_gathered if self.rows_gathered else 0.0


class StatsRecorder:
    """Adds up one epoch. Thread-safe."""

    def __init__(self, epoch: int) -> None:
        self._lock = threading.Lock()
        self._epoch = epoch
        self._started = time.perf_counter()
        self._counts = dict.fromkeys(
            ("batches", "seeds", "rows_gathered", "cache_hits", "rows_read", "requests", "bytes_read"), 0
        )
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: StageName) -> Iterator[None]:
        """Add the time inside the block to stage ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(name, time.perf_counter() - started)

    def add_seconds(self, name: StageName, seconds: float) -> None:
        """Add ``seconds`` to stage ``name``."""
        with self._lock:
            self._seconds[name] += seconds

    def add_gather(self, *, rows: int, hits: int, read: ReadStats | None) -> None:
        """Count one batch's gather of ``rows`` rows, ``hits`` of them from memory, the rest by ``read``."""
        with self._lock:
            self._counts["rows_gathered"] += rows
            self._counts["cache_hits"] += hits
            if read is not None:
                self._counts["rows_read"] += read.rows
                self._counts["requests"] += read.requests
                self._counts["bytes_read"] += read.bytes_read

    def add_batch(self, num_seeds: int) -> None:
        """Count one batch handed to the consumer."""
        with self._lock:
            self._counts["batches"] += 1
            self._counts["seeds"] += num_seeds

    def snapshot(self) -> EpochStats:
        """Return the sums so far."""
        with self._lock:
            return EpochStats(
                epoch=self._epoch,
                seconds=time.perf_counter() - self._started,
                stage_seconds=dict(self._seconds),
                **self._counts,
            )
