"""Stage: the choice of a read method for a superbatch's missing rows, and the reads that are done ahead.

A superbatch is consecutive batches that are planned together. This step follows `Inspect`, which planned the cache for
the superbatch. `StageMisses` is the stage: its thread calls `process` for every superbatch, and `process` calls a
`MissRetrieval` for each table. The read step (`ReadMisses`) follows: it fetches the rows batch by batch.

- A table is the feature rows of a node type or of a relation.
- A missing row is a row that a batch needs and no cache holds.
- A strategy is a read method. "direct" reads each batch's rows when the batch is executed, and nothing ahead. "staged"
  reads all rows ahead into memory. "packed" reads all rows ahead, and writes each batch's rows as a pack to the disk.
- A sweep is a read ahead: it reads the rows once, in file order.
- An extent is the range of bytes of one read. A hole is bytes between two needed rows. An extent includes a short hole,
  as a second read would take longer.
- In an exchange, each machine reads a range of the rows, and the machines send each other the needed rows.

`choose_reads` is pure: the choice depends on the missing rows and the disk's rates. `MissRetrieval` calls it during a
run, and `gloader.lab.analyze` calls it to plan a recorded run again.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import GloaderError, MachineLeftError
from gloader.pipeline.other_ranks import Offer
from gloader.pipeline.superbatch import MissLists, StagedSuperbatch, StagedTable
from gloader.ssd_store import DirectMisses, load_misses
from gloader.ssd_store.cost.device_profile import MAX_GAP_BYTES
from gloader.ssd_store.cost.profile import default_sweep_gap_bytes
from gloader.ssd_store.cost.strategy import choose_strategy, count_misses
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import mean_extent_bytes
from gloader.ssd_store.sweep.wanted_rows import collect_union

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gloader.cache import CachePlan
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.other_ranks import RowExchange
    from gloader.pipeline.superbatch import PlannedSuperbatch, RunFeedback
    from gloader.pipeline.trained_embedding import TrainedEmbedding
    from gloader.ssd_store import FeatureStore, Packer
    from gloader.ssd_store.cost.io_rates import Calibration, IoRates
    from gloader.ssd_store.cost.strategy import Choice, MissCounts
    from gloader.ssd_store.miss_sources import MissSource
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.types import BatchId, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOnDisk:
    """The layout of a table's rows in their file, and the holes that reads may include."""

    num_rows: int  # N
    row_bytes: int  # R
    max_extent_bytes: int  # longest extent of a batch's reads
    sweep_gap_bytes: int  # longest hole that a sweep includes
    gap_bytes: int | None = None  # longest hole in a batch's reads; None means the fastest value

    @classmethod
    def of(cls, store: FeatureStore) -> Self:
        """Return the layout of the rows in ``store``."""
        stored = store.stored_rows
        return cls(
            num_rows=stored.num_rows,
            row_bytes=stored.row_bytes,
            max_extent_bytes=store.max_extent_bytes,
            sweep_gap_bytes=default_sweep_gap_bytes(stored.path.parent),
            gap_bytes=stored.settings.gap_bytes,
        )

    def batch_gap_bytes(self, rates: IoRates, calibration: Calibration) -> int:
        """Return the longest hole in a batch's reads: the configured value, or the fastest at the current rates."""
        if self.gap_bytes is not None:
            return self.gap_bytes
        times = rates.corrected(calibration).times
        return times.gap_bytes(mean_extent_bytes(self.row_bytes), most=MAX_GAP_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenReads:
    """A superbatch's counted missing rows, and the chosen read method."""

    counts: MissCounts  # the missing rows' requests and bytes with each read method
    choice: Choice  # the read method, with its predicted seconds
    gap_bytes: int  # longest hole in a batch's reads


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
    """Count a superbatch's missing rows, and choose their read method. Pure.

    Parameters
    ----------
    misses : each batch's missing rows (M,), ascending
    rows : the table's layout
    rates : the devices' rates
    calibration : corrections of the cost model's seconds
    staging_bytes, spill_bytes : memory and disk space available for the rows
    forced : the requested strategy, or "auto"
    is_whole : whether the full file is on this machine's disk

    Raises
    ------
    BudgetError
        A requested strategy does not fit.
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
    """Return the disk bytes available for a table's pack. Pure.

    Parameters
    ----------
    forced : the requested strategy, or "auto"
    share : the table's share of the disk for packs
    room_bytes, budget_bytes : disk bytes for packs that are free now, and in total
    """
    if forced == "packed":  # the user's request counts more than the other tables' shares
        return room_bytes
    return min(room_bytes, int(share * budget_bytes))


class StageMisses:
    """Stages superbatches in order, each while the previous one is executed.

    Parameters
    ----------
    retrievals : one per table; they choose the read method and start the reads
    feedback : corrects the predicted seconds by the measured seconds of past superbatches; receives each prediction
    instruments : measure the staging
    exchange : the exchange with other machines; None if this machine reads all of its rows
    embeddings : the embeddings whose trained rows are read ahead too
    """

    name: Final = "stage"  # the stage's name in errors and in the timeline

    def __init__(
        self,
        retrievals: Sequence[MissRetrieval],
        feedback: RunFeedback,
        instruments: Instruments,
        exchange: RowExchange | None = None,
        embeddings: Sequence[TrainedEmbedding] = (),
    ) -> None:
        self._exchange = exchange
        self._embeddings = embeddings
        self._served = 0  # bytes that the exchange had read at the last call of `_served_bytes`
        self._retrievals = retrievals
        self._feedback = feedback
        self._instruments = instruments
        self._cancellation = Cancellation()  # ends a sweep early, see `cancel`

    def process(self, planned: PlannedSuperbatch) -> StagedSuperbatch:
        """Return ``planned`` with sources of its missing rows; errors as in `MissRetrieval.begin`."""
        tables: list[StagedTable] = []
        seconds: list[float] = []
        with (
            ExitStack() as undo,
            self._instruments.working("stage", planned.first, batches=planned.num_batches) as work,
        ):
            work.note(superbatch=planned.number)
            unique_rows = 0
            cancellation = self._cancellation.reporting(work.beat)
            chosen = None if self._exchange is None else self._choose(self._exchange, planned, cancellation)
            for number, plan in enumerate(planned.plans):
                with self._naming(number):
                    # Tables are staged in order: a table gets the disk space that earlier tables left.
                    request, choice = self._request(number, plan) if chosen is None else chosen[number]
                    # The previous superbatch's reads use the disk at the same time as this sweep. `using` measures only
                    # the sweep's part of the time, because the cost model predicts only this part.
                    with self._feedback.device.using() as use:
                        table = self._begin(number, request, choice, planned.number, cancellation)
                undo.callback(table.misses.close)
                tables.append(table)
                unique_rows += request.counts.unique_rows
                seconds.append(use.seconds)
                name = self._feedback.name_of(number)  # "" with a single table
                self._count(table, planned.first, work, name=name, served_bytes=self._served_bytes(choice))
            trained = []
            recorder = self._instruments.recorder(planned.first.epoch)
            for embedding, write in zip(self._embeddings, planned.writes, strict=True):
                embedding.count_bytes(recorder)
                trained.append(embedding.rows.stage(write, cancellation=cancellation))
                embedding.count_bytes(recorder, work)
            if tables:
                largest = max((table.choice for table in tables), key=lambda choice: choice.read_bytes)
                work.note(strategy=largest.text)
            work.note(
                misses=sum(plan.num_misses for plan in planned.plans),
                unique_rows=unique_rows,
                accesses=sum(len(plan.actions) for plan in planned.plans),
            )
            undo.pop_all()
        staged = StagedSuperbatch(
            number=planned.number,
            first=planned.first,
            tables=tuple(tables),
            trained=tuple(trained),
        )
        self._feedback.begin(staged, stage_s=tuple(seconds))
        return staged

    def _request(self, number: int, plan: CachePlan) -> tuple[Request, Choice]:
        """Return a table's missing rows, and this machine's choice without an exchange."""
        request = self._retrievals[number].request(plan, self._feedback.calibration)
        return request, request.own

    def _choose(
        self, exchange: RowExchange, planned: PlannedSuperbatch, cancellation: Cancellation
    ) -> list[tuple[Request, Choice]]:
        """Return each table's missing rows, and the method that all machines choose together."""
        requests = []
        for number, plan in enumerate(planned.plans):
            with self._naming(number):
                requests.append(self._request(number, plan)[0])
        offers = [
            retrieval.offer(request) for retrieval, request in zip(self._retrievals, requests, strict=True)
        ]
        choices = exchange.choose(planned.number, offers, cancellation=cancellation)
        return list(zip(requests, choices, strict=True))

    def _begin(
        self, number: int, request: Request, choice: Choice, superbatch: int, cancellation: Cancellation
    ) -> StagedTable:
        """Do a table's reads ahead, and return its plan with a source of its missing rows."""
        retrieval = self._retrievals[number]
        if self._exchange is None or not choice.is_exchanged:
            return retrieval.begin(request, choice, superbatch=superbatch, cancellation=cancellation)
        rows = retrieval.union(request, cancellation=cancellation)
        with ExitStack() as undo:
            try:
                # Even if this table has all its rows, the end of the block may fail: it waits until this machine has
                # served the other machines. Then `undo` closes the table.
                with self._exchange.fetch(number, rows, cancellation=cancellation) as arriving:
                    table = retrieval.begin(
                        request, choice, superbatch=superbatch, cancellation=cancellation, arriving=arriving
                    )
                    undo.callback(table.misses.close)
                undo.pop_all()
            except MachineLeftError:
                # The other machine's loop has ended, and this loop will end too. Its last rows are read locally.
                if self._exchange.is_needed:
                    raise
                undo.close()  # frees the exchanged rows: the local reads need the room
                table = retrieval.begin(
                    request, request.own, superbatch=superbatch, cancellation=cancellation
                )
        return table

    @contextmanager
    def _naming(self, table: int) -> Iterator[None]:
        """Add the table's name to errors of the block, if there are several tables."""
        try:
            yield
        except GloaderError as error:
            if len(self._retrievals) > 1:
                error.add_note(f"while rows of {self._feedback.name_of(table)} were staged")
            raise

    def cancel(self) -> None:
        """End the current sweep; later ones end at once. Idempotent."""
        self._cancellation.set()

    def _served_bytes(self, choice: Choice) -> int:
        """Return the bytes that the disk read for all machines since the last call."""
        if self._exchange is None or not choice.is_exchanged:
            return 0
        before, self._served = self._served, self._exchange.bytes_read
        return self._served - before

    def _count(self, table: StagedTable, first: BatchId, work: Work, *, name: str, served_bytes: int) -> None:
        """Add the staging's bytes and requests to the timeline and to the epoch of the batch ``first``."""
        cost = table.misses.cost
        work.add_bytes(
            read=cost.read.bytes_read + served_bytes,
            written=cost.bytes_written,
            requests=cost.read.requests,
        )
        self._instruments.recorder(first.epoch).add_staged(
            bytes_read=cost.read.bytes_read + served_bytes,
            bytes_written=cost.bytes_written,
            requests=cost.read.requests,
            table=name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A superbatch's missing rows in one table, counted, and this machine's choice without an exchange."""

    plan: CachePlan  # the cache's hits, misses and admissions
    misses: MissLists  # each batch's missing rows
    counts: MissCounts  # their requests and bytes with each read method
    own: Choice  # this machine's choice if it reads all rows itself
    gap_bytes: int  # longest hole in a batch's reads
    calibration: Calibration  # corrections of the cost model's seconds


class MissRetrieval:
    """Counts one table's missing rows, chooses the fastest read method, and does the reads ahead. Owns nothing.

    Parameters
    ----------
    store : all N rows
    rates : the disk's rates
    packer, spill : the writer and the folder of packs; None if there is no disk space for packs
    staging_bytes : idle memory for missing rows
    forced : the requested strategy, or "auto"
    spill_share : the part of ``spill`` for this table's packs
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
        self.rows = RowsOnDisk.of(store)

    @property
    def spill_bytes(self) -> int:
        """Disk bytes available for packs now."""
        if self._spill is None or self._packer is None:
            return 0
        return packable_bytes(
            forced=self._forced,
            share=self._spill_share,
            room_bytes=self._spill.room_bytes,
            budget_bytes=self._spill.budget_bytes,
        )

    def request(self, plan: CachePlan, calibration: Calibration) -> Request:
        """Count the missing rows of ``plan``, and choose this machine's read method without an exchange.

        Parameters
        ----------
        plan : the plan with the rows to be staged
        calibration : corrections of the cost model's seconds

        Raises
        ------
        BudgetError
            A requested strategy does not fit.
        """
        misses = MissLists(plan)
        reads = self._choose(misses, calibration)
        return Request(
            plan=plan,
            misses=misses,
            counts=reads.counts,
            own=reads.choice,
            gap_bytes=reads.gap_bytes,
            calibration=calibration,
        )

    def offer(self, request: Request) -> Offer:
        """Return the offer to the other machines for ``request``."""
        return Offer(
            counts=request.counts,
            own=request.own,
            forced=self._forced,
            sweep_gap_bytes=self.rows.sweep_gap_bytes,
            rates=self.rates,
            calibration=request.calibration,
            staging_bytes=self.staging_bytes,
            spill_bytes=self.spill_bytes,
        )

    def union(self, request: Request, *, cancellation: Cancellation) -> IdArray:
        """Return the rows (K,) that any batch of the superbatch misses, ascending."""
        stored = self._store.stored_rows
        wanted = collect_union(
            request.misses,
            num_rows=stored.num_rows,
            row_bytes=stored.row_bytes,
            cancellation=cancellation,
        )
        return wanted.ids

    def download_s(self, rows: Sequence[IdArray]) -> float:
        """Return the seconds that reads of ``rows`` wait for a download; 0.0 if little or nothing must be downloaded.

        This is for a dataset at a URL, of which the disk holds only a part. One download may serve many batches, see
        `OsIO.download_s`.
        """
        stored = self._store.stored_rows
        if stored.os_io.is_whole:
            return 0.0
        wanted = collect_union(rows, num_rows=stored.num_rows, row_bytes=stored.row_bytes, cancellation=NEVER)
        with closing(self._store.duplicate_file()) as file:
            return stored.os_io.download_s(file.fd, wanted.pages, DATA_OFFSET)

    def begin(
        self,
        request: Request,
        choice: Choice,
        *,
        superbatch: int,
        cancellation: Cancellation,
        arriving: ArrivingRows | None = None,
    ) -> StagedTable:
        """Return the table's plan with a source of its missing rows; the caller owns the source.

        Parameters
        ----------
        request : the rows to be staged
        choice : the read method
        superbatch : the superbatch's number, for messages
        arriving : the rows as they arrive from other machines; None means that they are read here

        Raises
        ------
        SpillError
            The disk is full or fails.
        StoreError
            The features cannot be read, or are damaged.
        ChannelClosedError
            The work was cancelled.
        """
        misses = request.misses
        source: MissSource
        if choice.strategy == "staged":
            source = load_misses(self._store, misses, cancellation=cancellation, arriving=arriving)
        elif choice.strategy == "packed" and self._packer is not None:
            source = self._packer.pack(
                misses, superbatch=superbatch, cancellation=cancellation, arriving=arriving
            )
        else:
            source = DirectMisses(self._store, gap_bytes=request.gap_bytes)
        # The trace, which lists the batches' nodes, was needed only to find the missing rows.
        return StagedTable(plan=request.plan.without_trace(), misses=source, choice=choice)

    def _choose(self, misses: MissLists, calibration: Calibration) -> ChosenReads:
        """Return `choose_reads` for this table, with the memory and disk space that are free now."""
        return choose_reads(
            misses,
            self.rows,
            self.rates,
            calibration=calibration,
            staging_bytes=self.staging_bytes,
            spill_bytes=self.spill_bytes,
            forced=self._forced,
            is_whole=self._store.stored_rows.os_io.is_whole,
        )
