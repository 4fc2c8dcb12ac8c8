"""The choice of how the missing rows of a superbatch are read, from nothing but which they are. Pure.

`MissRetrieval` makes it for a run, and `gloader.lab.analyze` for one that is planned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gloader.ssd_store.cost.profile import MAX_GAP_BYTES, default_sweep_gap_bytes
from gloader.ssd_store.cost.strategy import choose_strategy, count_misses
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import mean_extent_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.strategy import Calibration, Choice, IoRates, MissCounts
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOnDisk:
    """How the rows of a table lie in their file, and which holes between them are read through."""

    num_rows: int  # N
    row_bytes: int  # R
    max_extent_bytes: int  # longest read of a batch's rows
    sweep_gap_bytes: int  # longest hole that a sweep reads through
    gap_bytes: int | None = None  # that a batch's reads go over, as was asked for; None: what is faster

    @classmethod
    def of(cls, store: FeatureStore) -> Self:
        """Return what is known of the rows of ``store``."""
        stored = store.stored_rows
        return cls(
            num_rows=stored.num_rows,
            row_bytes=stored.row_bytes,
            max_extent_bytes=store.max_extent_bytes,
            sweep_gap_bytes=default_sweep_gap_bytes(stored.path.parent),
            gap_bytes=stored.settings.gap_bytes,
        )

    def batch_gap_bytes(self, rates: IoRates, calibration: Calibration) -> int:
        """Return the longest hole that a batch's reads go over: what was asked for, or what is faster by now."""
        if self.gap_bytes is not None:
            return self.gap_bytes
        times = rates.corrected(calibration).times
        return times.gap_bytes(mean_extent_bytes(self.row_bytes), most=MAX_GAP_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenReads:
    """The missing rows of a superbatch, counted, and how they are read."""

    counts: MissCounts
    choice: Choice
    gap_bytes: int  # longest hole that a batch's reads go over


def choose_reads(
    misses: Sequence[IdArray],
    rows: RowsOnDisk,
    rates: IoRates,
    *,
    calibration: Calibration,
    staging_bytes: int,
    spill_bytes: int,
    forced: str,
    is_whole: bool,
) -> ChosenReads:
    """Count the missing rows of a superbatch, and choose how they are read.

    Parameters
    ----------
    misses : the rows of each batch, see `count_misses`
    rows : those of the table
    rates : of the devices
    calibration : what the cost model's seconds are corrected by
    staging_bytes, spill_bytes : memory and disk that they may take
    forced : the strategy that was asked for, or "auto"
    is_whole : whether the file is on the disk, see `choose_strategy`

    Raises
    ------
    BudgetError
        A strategy that was asked for by name does not fit.
    """
    gap_bytes = rows.batch_gap_bytes(rates, calibration)
    counts = count_misses(
        misses,
        num_rows=rows.num_rows,
        row_bytes=rows.row_bytes,
        data_offset=DATA_OFFSET,
        gap_bytes=gap_bytes,
        sweep_gap_bytes=rows.sweep_gap_bytes,
        max_extent_bytes=rows.max_extent_bytes,
    )
    choice = choose_strategy(
        counts,
        rates,
        memory_bytes=staging_bytes,
        spill_bytes=spill_bytes,
        forced=forced,
        calibration=calibration,
        is_whole=is_whole,
    )
    return ChosenReads(counts=counts, choice=choice, gap_bytes=gap_bytes)


def packable_bytes(*, forced: str, share: float, room_bytes: int, budget_bytes: int) -> int:
    """Return the bytes of disk that the pack of a table may take. Pure.

    Parameters
    ----------
    forced : the strategy that was asked for, or "auto"
    share : the table's, of the disk for packs
    room_bytes, budget_bytes : of that disk, those that are not in use now, and all
    """
    if forced == "packed":  # whatever it costs, other tables their share too
        return room_bytes
    return min(room_bytes, int(share * budget_bytes))
