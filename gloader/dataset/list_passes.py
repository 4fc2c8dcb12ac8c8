"""Passes over the edges for samplers that read full neighbour lists. Frontiers choose edges while the lists stream."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.kernels import njit
from gloader.core.thread_times import helping
from gloader.dataset.edge_passes import PassCall, PassReport
from gloader.dataset.topology import element_rule
from gloader.errors import BudgetError, StoreError
from gloader.samplers.list_rule import ListDraws, ListRule, list_draws_bytes
from gloader.ssd_store.cost.profile import default_sweep_gap_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.columns import MAX_EXTENT_BYTES, ArrayFile
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.spill.pieces import SpilledPieces
from gloader.ssd_store.sweep.passes import PassPlan, plan_pass
from gloader.ssd_store.sweep.sweep_kernels import WHOLE_FILE
from gloader.ssd_store.sweep.sweeper import SweepCost
from gloader.ssd_store.sweep.wanted_rows import empty_bits, next_bit
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.core.signals import Cancellation
    from gloader.dataset.edge_passes import PassSettings
    from gloader.dataset.topology import AnyEdges
    from gloader.samplers.sweeping import Frontier
    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import IdArray

MIN_LIST_PASS_BYTES: Final = 2 * 2**20  # enough for read extents
# Bytes of edges per piece. A piece fits in a core's cache, and keeps a disk busy.
_MAX_PIECE_BYTES: Final = 2**20
_READING_PART: Final = 4  # one part in four of the memory is for reading; the frontiers have the rest
_MAX_WORD_BYTES: Final = 64 * 2**10  # bytes that a frontier gathers before a write; more gains nothing
_PIECES_HELD: Final = 8  # two for each of two files, and two for each of two lanes' bounce buffers
_FILES_PER_GROUP: Final = 8  # files per hop; each is removed once it is done
_MIN_FILE_BYTES: Final = 16 * 2**10
_WIDE_GAP: Final = 2**40
_NO_WEIGHTS: Final[NDArray[Any]] = np.empty(0, dtype=np.float32)


class ListPasses:
    """`EdgePasses` for a `ListRule`. Passes take turns. Owns files, rings, a thread and buffers until `close`.

    A pass reads the pages with the frontiers' lists in file order, and the pages with the same edges' weights. It works
    piece by piece. While the frontiers choose from one piece, a thread reads the next piece.

    Parameters
    ----------
    dataset : a dataset of one type, or a relation
    rule : the sampler's rule
    folder : the spill folder for the draws
    settings : memory and disks
    piece_bytes : bytes of edges per piece. By default, as many as the memory allows

    Raises
    ------
    BudgetError
        The memory is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """

    def __init__(
        self,
        dataset: AnyEdges,
        rule: ListRule,
        folder: SpillFolder,
        settings: PassSettings,
        *,
        piece_bytes: int | None = None,
    ) -> None:
        memory_bytes, io = settings.memory_bytes, settings.io
        if memory_bytes < MIN_LIST_PASS_BYTES:
            raise BudgetError(
                f"passes over lists need {MIN_LIST_PASS_BYTES} bytes of buffers and {memory_bytes} are allowed; raise "
                "memory_budget"
            )
        allowed = min(_MAX_PIECE_BYTES, memory_bytes // _READING_PART // _PIECES_HELD)
        piece_bytes = (allowed if piece_bytes is None else piece_bytes) // PAGE_BYTES * PAGE_BYTES
        self._rule = rule
        self._folder = folder
        self._draw_bytes = memory_bytes - _PIECES_HELD * max(piece_bytes, allowed)
        self._piece_pages = piece_bytes // PAGE_BYTES
        self._settings = settings
        self._turn = threading.Lock()
        self._is_closed = False
        self._passes: list[SpilledPieces] = []
        self._stack = ExitStack()
        with dataset.as_opened(), ExitStack() as undo:
            undo.callback(self._stack.close)
            self._sources = self._open(dataset, "indices", io)
            self._weights = self._open(dataset, "edge_weight", io) if rule.is_weighted else None
            is_direct, os_io = self._sources.is_direct, dataset.os_io
            self._gap_bytes = default_sweep_gap_bytes(self._sources.path.parent)
            bounce_bytes = max(2 * piece_bytes, MAX_EXTENT_BYTES)
            self._lane = self._open_lane(bounce_bytes, io, is_direct, os_io)
            self._back = self._open_lane(
                bounce_bytes, io, is_direct, os_io if folder.os_io.is_real else folder.os_io
            )
            self._pool = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="gloader-lists"))
            undo.pop_all()
        held = self._sources.num_bytes + (0 if self._weights is None else self._weights.num_bytes)
        marks = self._sources.record.num_pages // 8
        self.resident_bytes = memory_bytes + held + marks
        self._buffers = [self._new_buffer() for _ in range(2)]

    def sweep(self, frontiers: Sequence[Frontier], *, label: str, cancellation: Cancellation) -> SweptLists:
        """Write the draws for ``frontiers`` to the spill folder in one pass. A failed pass leaves no files.

        Parameters
        ----------
        frontiers : frontiers of any batches, for hops below L
        label : the pass's name, for messages

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError, GraphError
            The edges cannot be read, or are damaged. The message names file and page.
        BudgetError, SpillError
            There are too many frontiers for the buffers; the spill folder has no room, its disk is full or fails.
        ConfigError
            A list is too long; see `ListRule.mark`.
        ChannelClosedError
            The work was cancelled.
        StoreError
            The passes are closed.
        """
        with self._turn:
            if self._is_closed:
                raise StoreError(f"{self._sources.path}: the passes over it are closed; open them again")
            capacity = self._capacity(len(frontiers))
            wanted = empty_bits(self._sources.record.num_pages)
            call = PassCall(label=label, cancellation=cancellation)
            about = self._mark(frontiers, wanted, call)
            plan = self._plan(wanted, sum(about.values()))
            groups = [frontier.hop for frontier in frontiers]
            size = self._rule.word_dtype.itemsize
            pieces = SpilledPieces(
                self._folder,
                groups,
                {hop: max(_MIN_FILE_BYTES, size * words // _FILES_PER_GROUP) for hop, words in about.items()},
                piece_bytes=capacity * size,
                label=f"what {label} drew",
            )
            try:
                draws = ListDraws(self._rule, frontiers, capacity=capacity)
                read = self._stream(draws, pieces, wanted, plan.gap_bytes, call)
                draws.finish(lambda owner, words: pieces.append(owner, words.view(np.uint8)))
                pieces.complete()
            except BaseException as error:
                pieces.give_up(error)
                raise
            # Passes whose files are gone are dropped here.
            self._passes = [*(others for others in self._passes if not others.is_gone), pieces]
        cost = SweepCost(read=read, writes=pieces.writes, bytes_written=pieces.bytes_written)
        report = PassReport(way=plan.way, predicted_s=plan.seconds, pages_wanted=plan.pages_wanted, cost=cost)
        return SweptLists(report, self._rule, pieces, self._back)

    def close(self) -> None:
        """Wait for a pass in progress, then release everything, and remove the passes' files. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed. The other files are removed.
        """
        with self._turn, ExitStack() as stack:
            for pieces in self._passes:
                stack.callback(pieces.close)
            # The lane closes before the files, because no read may reach a closed file.
            self._is_closed = True
            self._stack.close()
            self._buffers = []

    def _open(self, dataset: AnyEdges, name: str, io: IoMode) -> ArrayFile:
        record = dataset.arrays[name]
        rule = element_rule(dataset.root / record.file, name, dataset.limits)
        reader = ArrayFile(dataset.root, record, rule=rule, io=io, os_io=dataset.os_io)
        self._stack.callback(reader.close)
        return reader

    def _open_lane(self, bounce_bytes: int, io: IoMode, is_direct: bool, os_io: OsIO) -> ReadLane:
        when_closed = "the passes over the edges are closed; open them again"
        lane = ReadLane(bounce_bytes, io=io, is_direct=is_direct, os_io=os_io, when_closed=when_closed)
        self._stack.callback(lane.close)
        return lane

    def _new_buffer(self) -> _Buffer:
        # A piece's edges may begin or end within a page of weights, so there is one page more.
        num_weights = self._piece_pages + 1 if self._weights is not None else 0
        return _Buffer(
            sources=aligned_bytes(self._piece_pages * PAGE_BYTES).reshape(-1, PAGE_BYTES),
            weights=aligned_bytes(num_weights * PAGE_BYTES).reshape(-1, PAGE_BYTES),
        )

    def _capacity(self, num_owners: int) -> int:
        """Return the number of words that each of ``num_owners`` frontiers gathers before a write."""
        size = self._rule.word_dtype.itemsize
        held = list_draws_bytes(self._rule, num_owners, capacity=0)
        room = (self._draw_bytes - held) // max(num_owners, 1) // PAGE_BYTES * PAGE_BYTES
        if room < PAGE_BYTES:
            raise BudgetError(
                f"choosing from lists for {num_owners} frontiers at once needs {held + num_owners * PAGE_BYTES} bytes "
                f"of buffers and {self._draw_bytes} are allowed; raise memory_budget, or use smaller fan-outs or "
                "topology='direct'"
            )
        return min(room, _MAX_WORD_BYTES) // size

    def _mark(
        self,
        frontiers: Sequence[Frontier],
        wanted: NDArray[np.uint64],
        call: PassCall,
    ) -> dict[int, int]:
        """Mark the pages that ``frontiers`` need. Return an estimate of each hop's drawn words."""
        words: dict[int, int] = {}
        for frontier in frontiers:
            call.raise_if_cancelled("marking the lists of")
            edges = self._rule.mark(frontier, wanted, per_page=self._sources.per_page)
            words[frontier.hop] = words.get(frontier.hop, 0) + edges * self._rule.record_words
        return words

    def _plan(self, wanted: NDArray[np.uint64], num_words: int) -> PassPlan:
        """Return the plan for reading the pages ``wanted`` of the edges, and the matching pages of the weights."""
        plan = plan_pass(
            wanted,
            self._sources.record.num_pages,
            self._settings.rates,
            gap_bytes=self._gap_bytes,
            written_bytes=0,
            forced=self._settings.way,
        )
        # The pass reads as many weights as sources, so the time grows by the ratio of their element sizes.
        read_s = plan.seconds
        if self._weights is not None:
            read_s *= 1 + self._sources.per_page / self._weights.per_page
        write_s = num_words * self._rule.word_dtype.itemsize / self._settings.rates.write_bytes_per_s
        seconds = read_s + write_s if self._settings.rates.is_one_device else max(read_s, write_s)
        gap_bytes = _WIDE_GAP if plan.gap_bytes == WHOLE_FILE else plan.gap_bytes
        return replace(plan, seconds=seconds, gap_bytes=gap_bytes)

    def _stream(
        self,
        draws: ListDraws,
        pieces: SpilledPieces,
        wanted: NDArray[np.uint64],
        gap_bytes: int,
        call: PassCall,
    ) -> ReadStats:
        """Read the pages ``wanted`` piece by piece, and let the frontiers choose."""

        def take(owner: int, words: NDArray[Any]) -> None:
            pieces.append(owner, words.view(np.uint8))

        total = ReadStats(rows=0, requests=0, bytes_read=0)
        batches = _page_batches(wanted, self._sources.record.num_pages, self._piece_pages)
        ahead = self._read_ahead(batches, 0, gap_bytes)
        turn = 0
        try:
            while ahead is not None:
                piece = ahead.result()
                turn += 1
                ahead = self._read_ahead(batches, turn, gap_bytes)
                total += piece.cost
                for begin, sources, weights in self._runs(piece):
                    call.cancellation.raise_if_set(f"{call.label} over {self._sources.path}")
                    draws.offer(begin, sources, weights, take)
        except BaseException:
            if ahead is not None:
                ahead.exception()  # waits: no read may still fill a buffer that the next pass uses
            raise
        return total

    def _read_ahead(self, batches: Iterator[IdArray], turn: int, gap_bytes: int) -> Future[_ListPiece] | None:
        """Start to read the next pages into the other buffer. Return None if no pages are left."""
        pages = next(batches, None)
        if pages is None:
            return None
        return self._pool.submit(helping(self._read), pages, self._buffers[turn % 2], gap_bytes)

    def _read(self, pages: IdArray, buffer: _Buffer, gap_bytes: int) -> _ListPiece:
        content = buffer.sources[: len(pages)]
        cost = self._sources.read_pages(self._lane, pages, content, gap_bytes=gap_bytes)
        if self._weights is None:
            return _ListPiece(pages=pages, sources=content, weight_pages=pages, weights=content, cost=cost)
        # These pages hold the same edges' weights. If sources are wider, two of their pages share a page of weights.
        weight_pages = np.unique(pages * self._sources.per_page // self._weights.per_page)
        beside = buffer.weights[: len(weight_pages)]
        cost += self._weights.read_pages(self._lane, weight_pages, beside, gap_bytes=gap_bytes)
        return _ListPiece(pages=pages, sources=content, weight_pages=weight_pages, weights=beside, cost=cost)

    def _runs(self, piece: _ListPiece) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Yield each run of consecutive edges: the first position, the sources and the weights."""
        per_page = self._sources.per_page
        sources = piece.sources.reshape(-1).view(self._sources.dtype)
        begins = np.flatnonzero(np.diff(piece.pages, prepend=-2) != 1)
        for first, last in zip(begins, np.append(begins[1:], len(piece.pages)), strict=True):
            begin = int(piece.pages[first]) * per_page
            # The last page has padding behind the last edge.
            count = min(int(last - first) * per_page, self._rule.graph.num_edges - begin)
            here = sources[first * per_page : first * per_page + count]
            if self._weights is None:
                yield begin, here, _NO_WEIGHTS
                continue
            weights = piece.weights.reshape(-1).view(self._weights.dtype)
            page = begin // self._weights.per_page
            at = int(np.searchsorted(piece.weight_pages, page)) * self._weights.per_page
            at += begin - page * self._weights.per_page
            yield begin, here, weights[at : at + count]


class SweptLists:
    """The hops of one pass over lists, as `SweptHops`. Thread-safe; made by `ListPasses.sweep`."""

    def __init__(self, report: PassReport, rule: ListRule, pieces: SpilledPieces, lane: ReadLane) -> None:
        self.report = report
        self._rule = rule
        self._pieces = pieces
        self._lane = lane

    def read(self, owner: int) -> NDArray[Any]:
        """Return the records of ``frontiers[owner]``, read back and verified; see `SpilledPieces.read`."""
        return self._pieces.read(owner, self._lane, self._rule.word_dtype)

    def release(self, owner: int) -> None:
        """Release ``frontiers[owner]``. A file is removed once all its frontiers are released. Idempotent."""
        self._pieces.release(owner)

    def close(self) -> None:
        """Remove the files that were not released. Idempotent."""
        self._pieces.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    """The memory for one piece."""

    sources: NDArray[np.uint8]  # (pages, 4096)
    weights: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListPiece:
    """Ascending pages of sources, and the pages of the same edges' weights."""

    pages: IdArray
    sources: NDArray[np.uint8]  # (pages, 4096)
    weight_pages: IdArray
    weights: NDArray[np.uint8]
    cost: ReadStats


def _page_batches(wanted: NDArray[np.uint64], num_pages: int, size: int) -> Iterator[IdArray]:
    """Yield the ascending set bits in batches of ``size``. Pure."""
    start = 0
    while True:
        pages = np.empty(size, dtype=np.int64)
        count, start = _next_pages(wanted, start, num_pages, pages)
        if count == 0:
            return
        yield pages[:count]


@njit(cache=True, nogil=True)
def _next_pages(wanted: NDArray[np.uint64], start: int, num_pages: int, pages: IdArray) -> tuple[int, int]:
    """Write set bits from ``start`` on into ``pages``. Return their number, and the start of the next call."""
    count = 0
    while count < pages.shape[0]:
        start = next_bit(wanted, start, num_pages)
        if start == num_pages:
            break
        pages[count] = start
        count += 1
        start += 1
    return count, start
