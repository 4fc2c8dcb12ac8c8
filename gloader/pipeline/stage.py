"""Stage: the choice of how a superbatch's missing rows are read, and the part of reading that is done ahead."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from gloader.errors import GloaderError
from gloader.pipeline.superbatch import MissLists, StagedSuperbatch, StagedTable
from gloader.ssd_store import DirectMisses, load_misses
from gloader.ssd_store.cost.profile import MAX_GAP_BYTES, default_sweep_gap_bytes
from gloader.ssd_store.cost.strategy import choose_strategy, count_misses
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import mean_extent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gloader.cache import CachePlan
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.superbatch import PlannedSuperbatch
    from gloader.ssd_store import FeatureStore, Packer
    from gloader.ssd_store.cost.strategy import Calibration, Choice, IoRates, MissCounts
    from gloader.ssd_store.misses.direct import MissSource
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import BatchId


class StageMisses:
    """Stages superbatches one after another, each while the one before it is executed.

    Parameters
    ----------
    retrievals : of each table: choose how rows are read, and begin to
    feedback : knows how wrong the predictions were so far, and is told of the next one
    instruments : measure it
    """

    name: Final = "stage"

    def __init__(
        self, retrievals: Sequence[MissRetrieval], feedback: RunFeedback, instruments: Instruments
    ) -> None:
        self._retrievals = retrievals
        self._feedback = feedback
        self._instruments = instruments
        self._is_cancelled = False

    def process(self, planned: PlannedSuperbatch) -> StagedSuperbatch:
        """Return ``planned`` with sources of its missing rows; errors as `MissRetrieval.begin`."""
        tables: list[StagedTable] = []
        seconds: list[float] = []
        with (
            ExitStack() as undo,
            self._instruments.working("stage", planned.first, batches=planned.num_batches) as work,
        ):
            work.note(superbatch=planned.number)
            for retrieval, plan in zip(self._retrievals, planned.plans, strict=True):
                # The sweep shares the disk with the reads of the superbatch that is executed: `using` measures its part
                # alone, which is what the cost model predicted.
                with self._naming(len(tables)), self._feedback.device.using() as use:
                    table = retrieval.begin(
                        plan,
                        self._feedback.calibration,
                        superbatch=planned.number,
                        is_cancelled=lambda: self._has_to_end(work),
                    )
                undo.callback(table.misses.close)
                tables.append(table)
                seconds.append(use.seconds)
                self._count(table, planned.first, work, name=self._feedback.name_of(len(tables) - 1))
            undo.pop_all()
        staged = StagedSuperbatch(number=planned.number, first=planned.first, tables=tuple(tables))
        self._feedback.begin(staged, stage_s=tuple(seconds))
        return staged

    @contextmanager
    def _naming(self, table: int) -> Iterator[None]:
        """Note whose rows were staged on an error of the block, where there are several tables."""
        try:
            yield
        except GloaderError as error:
            if len(self._retrievals) > 1:
                error.add_note(f"while rows of {self._feedback.name_of(table)} were staged")
            raise

    def cancel(self) -> None:
        """End the sweep that is under way, and every later one. Idempotent."""
        self._is_cancelled = True

    def _count(self, table: StagedTable, first: BatchId, work: Work, *, name: str) -> None:
        cost = table.misses.cost
        work.add_bytes(read=cost.read.bytes_read, written=cost.bytes_written)
        work.note(strategy=table.choice.strategy)
        self._instruments.recorder(first.epoch).add_staged(
            bytes_read=cost.read.bytes_read,
            bytes_written=cost.bytes_written,
            requests=cost.read.requests,
            table=name,
        )

    def _has_to_end(self, work: Work) -> bool:
        """Return whether a sweep has to end; that it asks shows that it makes progress."""
        work.beat()
        return self._is_cancelled


class MissRetrieval:
    """Counts the missing rows of each superbatch, chooses the fastest way to read them, and does its first part.

    Of one table. Owns nothing.

    Parameters
    ----------
    store : all N rows
    rates : of the device
    packer, spill : for packs; None: there are none
    staging_bytes : idle memory that missing rows may take
    forced : a strategy to take whatever it costs, or "auto"
    spill_share : the part of ``spill`` that packs of this table may take
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        rates: IoRates,
        packer: Packer | None,
        spill: SpillFolder | None,
        staging_bytes: int,
        forced: str,
        spill_share: float = 1.0,
    ) -> None:
        self._store = store
        self.rates = rates
        self._packer = packer
        self._spill = spill
        self.staging_bytes = staging_bytes
        self._forced = forced
        self._spill_share = spill_share
        self._sweep_gap_bytes = default_sweep_gap_bytes(store.stored_rows.path.parent)

    @property
    def spill_bytes(self) -> int:
        """Bytes of disk that packs may take now."""
        if self._spill is None or self._packer is None:
            return 0
        if self._forced == "packed":  # whatever it costs, other tables their share too
            return self._spill.room_bytes
        return min(self._spill.room_bytes, int(self._spill_share * self._spill.budget_bytes))

    def begin(
        self,
        plan: CachePlan,
        calibration: Calibration,
        *,
        superbatch: int,
        is_cancelled: Callable[[], bool],
    ) -> StagedTable:
        """Return ``plan`` with a source of its missing rows, which the caller owns.

        Parameters
        ----------
        plan : whose missing rows are staged
        calibration : what the cost model's seconds are corrected by
        superbatch : its number, for messages
        is_cancelled : asked again and again during a sweep; true ends it

        Raises
        ------
        BudgetError, SpillError
            A strategy that was asked for by name does not fit, or the disk is full or fails.
        StoreError
            The features cannot be read, or are damaged.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        gap_bytes = self._gap_bytes(calibration)
        misses = MissLists(plan)
        counts = self._count(misses, gap_bytes)
        choice = choose_strategy(
            counts,
            self.rates,
            memory_bytes=self.staging_bytes,
            spill_bytes=self.spill_bytes,
            forced=self._forced,
            calibration=calibration,
        )
        source = self._source_of(misses, superbatch, choice, gap_bytes, is_cancelled)
        return StagedTable(plan=plan.without_trace(), misses=source, choice=choice)

    def _gap_bytes(self, calibration: Calibration) -> int:
        """Return the longest hole that a batch's reads go over: what was asked for, or what is faster by now."""
        stored = self._store.stored_rows
        if stored.settings.gap_bytes is not None:
            return stored.settings.gap_bytes
        times = self.rates.corrected(calibration).times
        return times.gap_bytes(mean_extent_bytes(stored.row_bytes), most=MAX_GAP_BYTES)

    def _count(self, misses: MissLists, gap_bytes: int) -> MissCounts:
        stored = self._store.stored_rows
        return count_misses(
            misses,
            num_rows=stored.num_rows,
            row_bytes=stored.row_bytes,
            data_offset=DATA_OFFSET,
            gap_bytes=gap_bytes,
            sweep_gap_bytes=self._sweep_gap_bytes,
            max_extent_bytes=self._store.max_extent_bytes,
        )

    def _source_of(
        self,
        misses: MissLists,
        superbatch: int,
        choice: Choice,
        gap_bytes: int,
        is_cancelled: Callable[[], bool],
    ) -> MissSource:
        if choice.strategy == "staged":
            return load_misses(self._store, misses, is_cancelled=is_cancelled)
        if choice.strategy == "packed" and self._packer is not None:
            return self._packer.pack(misses, superbatch=superbatch, is_cancelled=is_cancelled)
        return DirectMisses(self._store, gap_bytes=gap_bytes)
