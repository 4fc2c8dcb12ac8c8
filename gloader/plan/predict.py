"""The seconds of a step, predicted before anything is opened, for one way to share the memory out. Pure.

`predict_step` is the seam: who knows a better model of a run replaces this one function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gloader.ssd_store.cost.io_rates import STRATEGIES, IoRates, Strategy
from gloader.ssd_store.cost.strategy import PACK_GAIN
from gloader.ssd_store.miss_sources import in_ram_bytes
from gloader.ssd_store.read.extents import ALIGNMENT, mean_extent_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache.curve import CacheOutlook

# What nobody can measure before the loop runs: that it goes over the features of a batch at this rate (GraphSAGE over
# rows of 6.5 KB did on two cores, there and back), and that they are copied together at that one.
_LOOP_BYTES_PER_S: Final = 2e9
_COPY_BYTES_PER_S: Final = 4e9

# A core compares rows with their checksums and copies them at this rate: at 1.6 to 2.3 GB/s where rows were read one by
# one, packed or read back.
_CHECKED_BYTES_PER_S: Final = 2e9

# Resources that are busy at the same time get in each other's way: steps took 1.14 to 1.43 of the busiest one. In this
# norm two that are equally busy take 1.26, and one that is hardly busy nothing.
_NORM: Final = 3

# Of a step: what a slow batch holds up where no other is ready, shared out among the buffers.
_JITTER: Final = 0.1

_STAGED_MARGIN: Final = 1.1  # a superbatch may miss more rows than predicted: it was 4% once
# Of a batch whose edges are swept: its hops are picked to mark pages and to deal out, and twice that to make it.
_SWEPT_SAMPLINGS: Final = 4.0
_PASS_SAMPLINGS: Final = 2.0  # of these, in the one thread that makes passes
_PACKS_ALIVE: Final = 2  # one is read back while the next is written
_LONGEST_READ: Final = 128 * 1024
_TABLE_ROWS: Final = 257


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """The rows of one table that a step has to bring, measured on the first batches."""

    rows: float  # of a batch
    row_bytes: int  # in a batch
    stored_row_bytes: int
    file_rows: float  # of the file, over which those of a batch are spread evenly; N unless they lie together
    gap_bytes: int  # holes that a batch's reads go over


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step has to do, measured on the first batches and on the disk."""

    tables: tuple[TableWork, ...]  # of the types that have features, in the order of `Demand.tables`
    rates: IoRates
    sweep_gap_bytes: int
    sample_s: float  # of a batch, in one thread
    cores: int
    strategy: str = "auto"  # or the one that was asked for
    edges_s: float = 0.0  # that the disk is busy with the edges of a batch, where they are swept
    edge_bytes: float = 0.0  # that are read for them, in the long run
    is_exchanged: bool = False  # missing rows come from other machines, those of a superbatch together

    @property
    def is_swept(self) -> bool:
        """Whether edges come in sweeps."""
        return self.edge_bytes > 0

    @property
    def rows(self) -> float:
        """Rows of a batch, of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def batch_bytes(self) -> float:
        """Bytes of the features of a batch."""
        return sum(table.rows * table.row_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Who gets how much, as far as it makes a step faster or slower."""

    num_buffers: int
    num_batches: int  # S
    cache_rows: tuple[int, ...]  # of each table
    kept_share: float  # of the batches that are sampled ahead; the others are sampled twice
    staging_bytes: int  # idle memory for missing rows
    spill_bytes: int  # disk for packs; 0: there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The prediction for a step."""

    seconds: float
    weighed_s: float  # by which ways are compared: packs wear the disk, and count as much longer as they have to gain
    disk_s: float  # that the disk is busy
    miss_rate: float
    strategy: Strategy | None  # None: features are in memory
    edges_s: float = 0.0  # that the disk is busy with edges, beside ``disk_s``
    missed_bytes: tuple[int, ...] = ()  # of memory that would hold what a superbatch misses, of each table
    ahead_s: float = 0.0  # of ``disk_s``, what the disk does before the batch's turn: its part of a sweep
    misses: tuple[float, ...] = ()  # rows of a batch, of each table
    swept_bytes: float = 0.0  # that a batch's part of the sweep reads and writes


def predict_step(work: StepWork, shares: StepShares, outlooks: Sequence[CacheOutlook] | None) -> StepSeconds:
    """Return the seconds of a step in the long run. Never more where there is more of anything. Pure.

    The missing rows of all tables are taken to be read in one way: memory and disk for them are shared out by the bytes
    that each table misses, so that they suffice for all or for none.

    Parameters
    ----------
    work : of a step
    shares : of the memory
    outlooks : what a cache of any size misses of each table, with this S; None: features are in memory
    """
    if outlooks is None:
        seconds = _step(work, shares, _DiskWork(), samplings=1.0)
        return StepSeconds(
            seconds=seconds, weighed_s=seconds, disk_s=0.0, miss_rate=0.0, strategy=None, edges_s=work.edges_s
        )
    reads = [
        _reads(work, table, outlook, rows, shares.num_batches)
        for table, outlook, rows in zip(work.tables, outlooks, shares.cache_rows, strict=True)
    ]
    rate = sum(read.misses for read in reads) / work.rows if work.rows else 0.0
    ways = []
    for strategy, disk in _disk_work(work, shares, reads).items():
        seconds = _step(work, shares, disk, samplings=2.0 - shares.kept_share)
        weighed = seconds * (PACK_GAIN if strategy == "packed" else 1.0)
        ways.append(
            StepSeconds(
                seconds=seconds,
                weighed_s=weighed,
                disk_s=disk.seconds,
                miss_rate=rate,
                strategy=strategy,
                edges_s=work.edges_s,
                missed_bytes=tuple(read.staged_bytes for read in reads),
                ahead_s=disk.ahead_s,
                misses=tuple(read.misses for read in reads),
                swept_bytes=disk.swept_bytes,
            )
        )
    return min(ways, key=lambda way: way.weighed_s)


@dataclass(frozen=True, slots=True)
class _DiskWork:
    """What bringing a batch's missing rows takes."""

    ahead_s: float = 0.0  # that the disk works before the batch's turn
    own_s: float = 0.0  # and in it
    checked_bytes: float = 0.0  # that a core compares with checksums and copies
    swept_bytes: float = 0.0  # that are read and written ahead

    @property
    def seconds(self) -> float:
        """That the disk is busy."""
        return self.ahead_s + self.own_s


def _step(work: StepWork, shares: StepShares, disk: _DiskWork, *, samplings: float) -> float:
    """Return the seconds of a step."""
    num_bytes = work.batch_bytes
    gather, loop = num_bytes / _COPY_BYTES_PER_S, num_bytes / _LOOP_BYTES_PER_S
    checks, own = (disk.checked_bytes + work.edge_bytes) / _CHECKED_BYTES_PER_S, disk.own_s
    sampling = (_SWEPT_SAMPLINGS if work.is_swept else samplings) * work.sample_s
    cores = (sampling + gather + checks) / work.cores + loop
    # Whoever needs the same buffer takes turns.
    turns = {1: (own + gather + loop,), 2: (own + gather, loop)}.get(shares.num_buffers, (own, gather, loop))
    # Passes are made by one thread, which picks, verifies and deals out while the disk reads.
    passes = (
        _PASS_SAMPLINGS * work.sample_s + work.edge_bytes / _CHECKED_BYTES_PER_S if work.is_swept else 0.0
    )
    busy = (disk.seconds + work.edges_s, cores, passes, *turns)
    return float(sum(seconds**_NORM for seconds in busy) ** (1 / _NORM)) * (1 + _JITTER / shares.num_buffers)


class _Reads(NamedTuple):
    """What a cache leaves to be read of a table."""

    misses: float  # rows of a batch
    missed_bytes: float  # of those
    staged_bytes: int  # of memory that hold the different rows of a superbatch
    direct_s: float  # of a batch, alone
    sweep_s: float  # of a batch, its share of one pass over the superbatch's rows
    sweep_bytes: float  # likewise


@lru_cache(maxsize=128)  # shares of the memory that differ in other things have caches alike
def _reads(
    work: StepWork, table: TableWork, outlook: CacheOutlook, cache_rows: int, num_batches: int
) -> _Reads:
    misses = outlook.misses(cache_rows)
    unique = outlook.distinct_misses(cache_rows, num_batches)
    return _Reads(
        misses=misses,
        missed_bytes=misses * table.stored_row_bytes,
        staged_bytes=_staged_bytes(
            table, outlook, 0 if work.strategy == "staged" else cache_rows, num_batches
        ),
        direct_s=_read_seconds(work.rates, table, misses, 0, table.gap_bytes),
        sweep_s=_read_seconds(work.rates, table, unique, work.sweep_gap_bytes) / num_batches,
        sweep_bytes=expected_reads(
            unique,
            file_rows=table.file_rows,
            row_bytes=table.stored_row_bytes,
            gap_bytes=work.sweep_gap_bytes,
        )[1]
        / num_batches,
    )


def staged_by_name_bytes(work: StepWork, outlooks: Sequence[CacheOutlook], num_batches: int) -> int:
    """Return the memory that missing rows must have where staged reads were asked for by name, else 0. Pure.

    The cache is empty at first, and then a superbatch misses all of its rows, and must not be read in another way.
    """
    if work.strategy != "staged":
        return 0
    return sum(
        _staged_bytes(table, outlook, 0, num_batches)
        for table, outlook in zip(work.tables, outlooks, strict=True)
    )


def _staged_bytes(table: TableWork, outlook: CacheOutlook, cache_rows: int, num_batches: int) -> int:
    unique = outlook.distinct_misses(cache_rows, num_batches)
    return in_ram_bytes(math.ceil(_STAGED_MARGIN * unique), table.stored_row_bytes)


def _disk_work(work: StepWork, shares: StepShares, reads: list[_Reads]) -> dict[Strategy, _DiskWork]:
    """Return what the disk does for a batch in every way that fits."""
    rates = work.rates
    num_bytes = sum(read.missed_bytes for read in reads)
    direct_s, sweep_s = sum(read.direct_s for read in reads), sum(read.sweep_s for read in reads)
    swept = sum(read.sweep_bytes for read in reads)
    found: dict[Strategy, _DiskWork] = {"direct": _DiskWork(0.0, direct_s, num_bytes)}
    if sum(read.staged_bytes for read in reads) <= shares.staging_bytes:
        found["staged"] = _DiskWork(sweep_s, 0.0, num_bytes, swept)
    if 0 < _PACKS_ALIVE * shares.num_batches * num_bytes <= shares.spill_bytes:
        write = num_bytes / rates.write_bytes_per_s
        packing = sweep_s + write if rates.is_one_device else max(sweep_s, write)
        # Written and read back.
        found["packed"] = _DiskWork(
            packing, num_bytes / rates.pack_read_bytes_per_s, 2 * num_bytes, swept + num_bytes
        )
    if work.is_exchanged and len(found) > 1:
        del found["direct"]
    forced = [strategy for strategy in STRATEGIES if strategy == work.strategy]
    return {strategy: found[strategy] for strategy in forced if strategy in found} or found


def _read_seconds(rates: IoRates, of: TableWork, rows: float, *gaps: int) -> float:
    """Return the seconds that the best of ``gaps`` takes to read ``rows``."""
    table = _read_table(rates, of.file_rows, of.stored_row_bytes, gaps)
    return float(np.interp(rows, table[0], table[1]))


@lru_cache(maxsize=64)  # two of each table
def _read_table(
    rates: IoRates, file_rows: float, row_bytes: int, gaps: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return (2, K): numbers of rows, and the seconds of reading so many or more, whichever is less."""
    rows = np.linspace(0, 1, _TABLE_ROWS) ** 2 * file_rows
    seconds = [
        min(
            rates.read_seconds(
                *expected_reads(count, file_rows=file_rows, row_bytes=row_bytes, gap_bytes=gap)
            )
            for gap in gaps
        )
        for count in rows
    ]
    # Reads of nearly all rows merge, so that more rows may take less time: whoever wants fewer can read those too.
    return np.stack([rows, np.minimum.accumulate(seconds[::-1])[::-1]])


def expected_reads(rows: float, *, file_rows: float, row_bytes: int, gap_bytes: int) -> tuple[float, float]:
    """Return the requests and bytes that rows take which lie anywhere in a file with the same chance. Pure.

    Parameters
    ----------
    rows : wanted
    file_rows : that they are among
    row_bytes : R
    gap_bytes : longest hole that is read through
    """
    if rows <= 0:
        return 0.0, 0.0
    share = min(rows / max(file_rows, 1.0), 1.0)
    # Rows that begin or end in a page, and rows between two wanted ones whose pages are that near.
    per_page = mean_extent_bytes(row_bytes) / row_bytes
    between = (gap_bytes + ALIGNMENT) // row_bytes
    lone = (1 - share) ** between
    touched = 1 - (1 - share) ** per_page
    read = touched + (1 - touched) * (1 - lone * (1 + share * between) if gap_bytes else 0.0)
    num_bytes = file_rows * row_bytes * min(read, 1.0)
    return min(max(rows * lone * (1 - share), num_bytes / _LONGEST_READ, 1e-9), rows), num_bytes


def spread_of(pages: float, rows: float, *, num_rows: int, row_bytes: int) -> float:
    """Return over how many rows of the file those of a batch are spread, by the ``pages`` that hold them. Pure.

    Parameters
    ----------
    pages : that hold at least a byte of a row of the batch
    rows : of the batch
    num_rows, row_bytes : N and R
    """
    low, high = min(rows, float(num_rows)), float(num_rows)
    for _ in range(40):
        middle = (low + high) / 2
        _, num_bytes = expected_reads(rows, file_rows=middle, row_bytes=row_bytes, gap_bytes=0)
        low, high = (middle, high) if num_bytes < pages * ALIGNMENT else (low, middle)
    return high
