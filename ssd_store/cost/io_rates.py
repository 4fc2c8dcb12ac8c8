"""What devices do, as the cost model sees them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gloader.ssd_store.cost.read_times import ReadTimes

if TYPE_CHECKING:
    from gloader.ssd_store.cost.calibration import Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class IoRates:
    """What the devices under the features and under the spill folder do."""

    random_reads_per_s: float  # of 4 KiB, from the features
    read_bytes_per_s: float  # sequential, from the features
    write_bytes_per_s: float  # sequential, into the spill folder
    pack_read_bytes_per_s: float  # sequential, from the spill folder
    medium_reads_per_s: float = 0.0  # random, of 16 KiB, from the features; 0: not measured
    wide_reads_per_s: float = 0.0  # random, of 64 KiB, likewise
    is_one_device: bool = True  # the features and the spill folder share a device, and so its bandwidth
    latency_s: float = 0.0  # of one read of 4 KiB with nothing beside it; 0: not measured
    # That a sweep's thread copies to its batches while the device waits for it; 0: no time of the device.
    dealt_bytes_per_s: float = 0.0
    # Of one device: what it does of two loads at once, over what it would do of them in turns.
    mixed_writes: float = 1.0  # a sweep, and packs that are written
    mixed_reads: float = 1.0  # a sweep, and random reads
    is_assumed: bool = False  # those of a modest SSD: nothing was measured

    @property
    def times(self) -> ReadTimes:
        """How long reads of the features take by their size."""
        return ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )

    def corrected(self, calibration: Calibration) -> IoRates:
        """Return what the reads of the run so far say that these rates are now. Pure."""
        alone, swept = calibration.factor("direct"), calibration.factor("staged")
        return replace(
            self,
            random_reads_per_s=self.random_reads_per_s / alone,
            medium_reads_per_s=self.medium_reads_per_s / alone,
            wide_reads_per_s=self.wide_reads_per_s / alone,
            read_bytes_per_s=self.read_bytes_per_s / swept,
        )

    def read_seconds(self, requests: float, num_bytes: float, *, calls: float = 1.0) -> float:
        """Return the seconds of reading ``num_bytes`` of the features in ``requests`` about equal reads. Pure.

        Reads that are too few to keep the device busy take the time of one.

        Parameters
        ----------
        requests : reads, of all calls
        num_bytes : of all reads
        calls : in which they are made: none is begun before the one before it has ended
        """
        if not requests:
            return 0.0
        busy = requests * self.times.seconds(num_bytes / requests)
        return max(busy, self.latency_s * min(calls, requests))

    def packing_seconds(self, read_s: float, write_s: float) -> float:
        """Return the seconds of a sweep that writes what it reads, from those of either alone. Pure."""
        both_s = (read_s + write_s) / self.mixed_writes if self.is_one_device else 0.0
        # Where a device does both well at once, either still takes its own time.
        return max(read_s, write_s, both_s)

    def dealing_seconds(self, num_bytes: float) -> float:
        """Return the seconds for which the device waits while a sweep deals ``num_bytes`` of rows out. Pure."""
        return num_bytes / self.dealt_bytes_per_s if self.dealt_bytes_per_s else 0.0
