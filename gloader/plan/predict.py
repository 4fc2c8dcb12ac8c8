"""Prediction of a step's seconds for one division of the memory, before anything is opened. Pure.

`gloader.plan.memory_plan` compares many divisions of the memory and takes the one with the shortest step. A step is the
work for one batch. A superbatch is S consecutive batches that are sampled and planned together. A row is missing if the
host cache does not hold it. Missing rows are read by one of three strategies. With "direct", each batch reads its own
rows. With "staged", one pass over the file reads a superbatch's rows into memory. With "packed", one pass copies them
to a pack, a file on the disk from which each batch reads its rows in sequence.

The prediction adds up the seconds of each resource: the disk, the cores, and the stages that use a feature buffer one
after another. The busiest resource decides, and the others delay it a little. `predict_step` makes the prediction; the
dataclasses before it are its input and its result.
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

# These two rates cannot be measured before the loop runs. The model computes on a batch's features at the first rate
# (measured for GraphSAGE on rows with 6.5 KB, two cores, forward and backward). Rows are gathered at the second rate.
_LOOP_BYTES_PER_S: Final = 2e9
_COPY_BYTES_PER_S: Final = 4e9

# A core verifies and copies rows at this rate. 1.6 to 2.3 GB/s were measured for direct, packed and read-back rows.
_CHECKED_BYTES_PER_S: Final = 2e9

# Exponent of the norm that combines the resources' seconds. Busy resources slow each other down: measured steps took
# 1.14 to 1.43 times the busiest resource's time. In this norm, two equally busy resources take 1.26 times as long as
# one, and a hardly busy resource adds nothing.
_NORM: Final = 3

# Share of a step by which a slow batch delays the loop if no other batch is ready. It is divided by the number of
# buffers, because each further buffer holds one more ready batch.
_JITTER: Final = 0.1

# Factor on the memory for staged rows, because a superbatch may miss more rows than predicted. 4% more were measured.
_STAGED_MARGIN: Final = 1.1
# Edges are swept if passes over the edge file serve many batches. A swept batch is sampled this many times: to mark
# pages, to distribute the read edges, and twice to build the batch.
_SWEPT_SAMPLINGS: Final = 4.0
_PASS_SAMPLINGS: Final = 2.0  # the first two of these samplings, in the thread that makes the passes
_PACKS_ALIVE: Final = 2  # packs on the disk: one is read back while the next is written
_LONGEST_READ: Final = 128 * 1024  # bytes of one request; longer reads are split
_TABLE_ROWS: Final = 257  # points of a table from row counts to seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """One table's rows that a step needs, measured on the first batches."""

    rows: float  # rows per batch
    row_bytes: int  # bytes per row in a batch
    stored_row_bytes: int  # bytes per row on the SSD
    file_rows: float  # rows of the file over which a batch's rows spread, see `spread_of`; at most N
    gap_bytes: int  # direct reads: longest gap between two rows that one read bridges


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """A step's work, measured on the first batches and on the disk."""

    tables: tuple[TableWork, ...]  # one for each type with features, in the order of the run's `Demand`
    rates: IoRates  # the disk's measured rates
    sweep_gap_bytes: int  # passes: longest gap between two rows that one read bridges
    sample_s: float  # sampling seconds per batch, in one thread
    cores: int  # cores that the process may use
    strategy: str = "auto"  # requested read strategy, or "auto"
    edges_s: float = 0.0  # disk time for one batch's edges, if they are swept
    edge_bytes: float = 0.0  # edge bytes read per batch, in the long run
    is_exchanged: bool = False  # machines send each other the missing rows of a superbatch

    @property
    def is_swept(self) -> bool:
        """True if edges are read in sweeps."""
        return self.edge_bytes > 0

    @property
    def rows(self) -> float:
        """Rows per batch over all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def batch_bytes(self) -> float:
        """Feature bytes per batch."""
        return sum(table.rows * table.row_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """The parts of a memory plan that change a step's duration."""

    num_buffers: int  # feature buffers per rank
    num_batches: int  # S, batches per superbatch
    cache_rows: tuple[int, ...]  # cached rows for each table
    # Each batch is sampled before its superbatch is planned. This share of the batches is kept in memory from then on.
    # The others are sampled a second time.
    kept_share: float = 0.0
    staging_bytes: int = 0  # idle memory, which may hold missing rows
    spill_bytes: int = 0  # disk space for packs; 0 without packs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The prediction for one step."""

    seconds: float  # duration of the step
    # ``seconds``, times `PACK_GAIN` with packs, because packs wear the disk. Candidates are compared by this number.
    weighed_s: float
    disk_s: float  # disk time for missing rows
    miss_rate: float  # share of a batch's rows that miss the host cache
    strategy: Strategy | None  # None if features are in memory
    edges_s: float = 0.0  # disk time for edges, in addition to ``disk_s``
    missed_bytes: tuple[int, ...] = ()  # memory to stage a superbatch's missing rows, for each table
    # Part of ``disk_s`` before the batch is gathered: its share of its superbatch's pass.
    ahead_s: float = 0.0
    misses: tuple[float, ...] = ()  # missing rows per batch, for each table
    swept_bytes: float = 0.0  # bytes that the superbatch's pass reads and writes, per batch


def predict_step(work: StepWork, shares: StepShares, outlooks: Sequence[CacheOutlook] | None) -> StepSeconds:
    """Return a step's predicted seconds in the long run. More memory or disk never gives a longer step. Pure.

    All tables' missing rows are assumed to be read by the same strategy. Memory and disk for these rows are divided in
    proportion to the tables' missed bytes, so they suffice either for all tables or for none.

    Parameters
    ----------
    work : a step's work
    shares : the memory's division
    outlooks : each table's cache outlook with this S: the predicted misses for any cache size. None means that
        features are in memory.
    """
    if outlooks is None:
        # With superbatches of one batch nothing is sampled ahead.
        samplings = 2.0 - shares.kept_share if shares.num_batches > 1 else 1.0
        seconds = _step(work, shares, _DiskWork(), samplings=samplings)
        return StepSeconds(
            seconds=seconds, weighed_s=seconds, disk_s=0.0, miss_rate=0.0, strategy=None, edges_s=work.edges_s
        )
    reads = [
        _reads(work, table, outlook, rows, shares.num_batches)
        for table, outlook, rows in zip(work.tables, outlooks, shares.cache_rows, strict=True)
    ]
    rate = sum(read.misses for read in reads) / work.rows if work.rows else 0.0
    predictions = []
    for strategy, disk in _disk_work(work, shares, reads).items():
        seconds = _step(work, shares, disk, samplings=2.0 - shares.kept_share)
        weighed = seconds * (PACK_GAIN if strategy == "packed" else 1.0)
        predictions.append(
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
    return min(predictions, key=lambda prediction: prediction.weighed_s)


@dataclass(frozen=True, slots=True)
class _DiskWork:
    """The disk's work for one batch's missing rows, with one strategy."""

    ahead_s: float = 0.0  # disk time in the superbatch's pass, before the batch is gathered; per batch
    own_s: float = 0.0  # disk time while the batch is gathered
    checked_bytes: float = 0.0  # bytes that a core verifies and copies
    swept_bytes: float = 0.0  # bytes read and written in the pass

    @property
    def seconds(self) -> float:
        """Disk time in seconds."""
        return self.ahead_s + self.own_s


def _step(work: StepWork, shares: StepShares, disk: _DiskWork, *, samplings: float) -> float:
    """Return a step's seconds.

    Parameters
    ----------
    work, shares : see `predict_step`
    disk : the disk's work for the missing rows
    samplings : number of times that each batch is sampled, if edges are not swept
    """
    # Every name below without a unit holds seconds per batch.
    num_bytes = work.batch_bytes
    gather, loop = num_bytes / _COPY_BYTES_PER_S, num_bytes / _LOOP_BYTES_PER_S
    checks, own = (disk.checked_bytes + work.edge_bytes) / _CHECKED_BYTES_PER_S, disk.own_s
    sampling = (_SWEPT_SAMPLINGS if work.is_swept else samplings) * work.sample_s
    cores = (sampling + gather + checks) / work.cores + loop
    # Reading, gathering and the loop use a buffer in turn. With three buffers all three run at the same time; with
    # fewer, some of them must wait for each other, so that their seconds add up.
    turns = {1: (own + gather + loop,), 2: (own + gather, loop)}.get(shares.num_buffers, (own, gather, loop))
    # One thread makes the passes over the edges. It samples, verifies and distributes edges while the disk reads.
    passes = (
        _PASS_SAMPLINGS * work.sample_s + work.edge_bytes / _CHECKED_BYTES_PER_S if work.is_swept else 0.0
    )
    busy = (disk.seconds + work.edges_s, cores, passes, *turns)
    combined = float(sum(seconds**_NORM for seconds in busy) ** (1 / _NORM))
    return combined * (1 + _JITTER / shares.num_buffers)


class _Reads(NamedTuple):
    """The reads of one table's missing rows, with a given host cache."""

    misses: float  # rows per batch
    missed_bytes: float  # missed bytes per batch
    staged_bytes: int  # memory for a superbatch's distinct missing rows
    direct_s: float  # seconds per batch, if each batch reads its own rows
    sweep_s: float  # seconds of one pass over the superbatch's rows, per batch
    sweep_bytes: float  # bytes that this pass reads, per batch


@lru_cache(maxsize=128)  # candidates often share a cache size
def _reads(
    work: StepWork, table: TableWork, outlook: CacheOutlook, cache_rows: int, num_batches: int
) -> _Reads:
    """Return the reads for one table with ``cache_rows`` cached rows and superbatches of ``num_batches``."""
    misses = outlook.misses(cache_rows)  # per batch
    unique = outlook.distinct_misses(cache_rows, num_batches)  # per superbatch
    return _Reads(
        misses=misses,
        missed_bytes=misses * table.stored_row_bytes,
        # If "staged" was requested by name, the memory must suffice for an empty cache, see `staged_by_name_bytes`.
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
    """Return the memory for staged rows that an explicitly requested ``staged`` strategy must have, or 0. Pure.

    The cache is empty at first, so the first superbatch misses all of its rows, and all must fit.
    """
    if work.strategy != "staged":
        return 0
    return sum(
        _staged_bytes(table, outlook, 0, num_batches)
        for table, outlook in zip(work.tables, outlooks, strict=True)
    )


def _staged_bytes(table: TableWork, outlook: CacheOutlook, cache_rows: int, num_batches: int) -> int:
    """Return the memory for a superbatch's distinct missing rows in one table, with a margin."""
    unique = outlook.distinct_misses(cache_rows, num_batches)
    return in_ram_bytes(math.ceil(_STAGED_MARGIN * unique), table.stored_row_bytes)


def _disk_work(work: StepWork, shares: StepShares, reads: list[_Reads]) -> dict[Strategy, _DiskWork]:
    """Return the disk's work for one batch with each strategy that fits into its memory or disk share."""
    rates = work.rates
    num_bytes = sum(read.missed_bytes for read in reads)
    direct_s, sweep_s = sum(read.direct_s for read in reads), sum(read.sweep_s for read in reads)
    swept = sum(read.sweep_bytes for read in reads)
    possible: dict[Strategy, _DiskWork] = {"direct": _DiskWork(0.0, direct_s, num_bytes)}
    if sum(read.staged_bytes for read in reads) <= shares.staging_bytes:
        possible["staged"] = _DiskWork(sweep_s, 0.0, num_bytes, swept)
    if 0 < _PACKS_ALIVE * shares.num_batches * num_bytes <= shares.spill_bytes:
        write = num_bytes / rates.write_bytes_per_s
        packing = sweep_s + write if rates.is_one_device else max(sweep_s, write)
        # Each byte is written and read back.
        possible["packed"] = _DiskWork(
            packing, num_bytes / rates.pack_read_bytes_per_s, 2 * num_bytes, swept + num_bytes
        )
    # Machines exchange the rows of whole superbatches, so no batch reads its own rows.
    if work.is_exchanged and len(possible) > 1:
        del possible["direct"]
    # A requested strategy is the only candidate. If it does not fit, all fitting strategies are candidates.
    forced = [strategy for strategy in STRATEGIES if strategy == work.strategy]
    return {strategy: possible[strategy] for strategy in forced if strategy in possible} or possible


def _read_seconds(rates: IoRates, table: TableWork, rows: float, *gaps: int) -> float:
    """Return the seconds to read ``rows`` rows with the best gap, in bytes, among ``gaps``."""
    row_counts, seconds = _read_table(rates, table.file_rows, table.stored_row_bytes, gaps)
    return float(np.interp(rows, row_counts, seconds))


@lru_cache(maxsize=64)  # two entries per table: for direct reads, and for passes
def _read_table(
    rates: IoRates, file_rows: float, row_bytes: int, gaps: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return (2, K): K row counts, and for each count the least seconds for reading at least so many rows."""
    # The squares put more points at small counts, at which the seconds per row change most.
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
    # Reads for nearly all rows merge, so more rows may take less time. In that case the larger read serves fewer rows.
    return np.stack([rows, np.minimum.accumulate(seconds[::-1])[::-1]])


def expected_reads(rows: float, *, file_rows: float, row_bytes: int, gap_bytes: int) -> tuple[float, float]:
    """Return (requests, bytes), both expected, for reading rows that are spread evenly over a file. Pure.

    Parameters
    ----------
    rows : rows to read
    file_rows : the file's rows over which they are spread
    row_bytes : R, bytes per row
    gap_bytes : longest gap between two rows that one read bridges
    """
    if rows <= 0:
        return 0.0, 0.0
    share = min(rows / max(file_rows, 1.0), 1.0)
    # A page is read if a requested row lies in it at least in part, or if it is in a short gap between two such rows.
    # Each row is requested with probability ``share``, independent of the others.
    per_page = mean_extent_bytes(row_bytes) / row_bytes  # rows with at least one byte in a given page
    between = (gap_bytes + ALIGNMENT) // row_bytes  # rows in the longest gap
    lone = (1 - share) ** between  # probability that none of so many consecutive rows is requested
    touched = 1 - (1 - share) ** per_page  # share of pages with a requested row
    # An untouched page is bridged if the distances to the next requested rows on both sides add up to at most the gap.
    read = touched + (1 - touched) * (1 - lone * (1 + share * between) if gap_bytes else 0.0)
    num_bytes = file_rows * row_bytes * min(read, 1.0)
    # A requested row begins a new read if no row within the gap before it is requested. Long reads are split. The
    # tiny minimum keeps the number of requests above 0.
    return min(max(rows * lone * (1 - share), num_bytes / _LONGEST_READ, 1e-9), rows), num_bytes


def spread_of(pages: float, rows: float, *, num_rows: int, row_bytes: int) -> float:
    """Return the number of file rows over which a batch's rows spread. Pure.

    A bisection finds the number for which evenly spread rows would touch as many pages as the batch's rows do.

    Parameters
    ----------
    pages : pages with at least one byte from the batch's rows
    rows : the batch's rows
    num_rows, row_bytes : N and R
    """
    low, high = min(rows, float(num_rows)), float(num_rows)
    for _ in range(40):  # halvings: the error ends below a row for 1e12 rows
        middle = (low + high) / 2
        _, num_bytes = expected_reads(rows, file_rows=middle, row_bytes=row_bytes, gap_bytes=0)
        low, high = (middle, high) if num_bytes < pages * ALIGNMENT else (low, middle)
    return high
