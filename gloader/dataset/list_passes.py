"""Passes over the edges for samplers that read full neighbour lists, such as weighted sampling.

The edges lie on the SSD in lists: a node's in-edges are consecutive. A frontier is one hop of one batch: the nodes
whose in-edges the hop samples. A pass reads the lists of many frontiers once, in file order, so that one read serves
many batches. The hops before these frontiers are drawn already when the pass begins. After the pass, the batches read
their draws back from the spill folder.

A pass first marks the pages that the frontiers need. Then it works piece by piece. A *piece* is some pages of the file
``indices``, with the same edges' pages of ``edge_weight``. While the frontiers choose edges in one piece, a thread
reads the next piece. A choice is stored as a *record* of a few *words* (numbers), whose dtype the `ListRule` defines.
Each frontier gathers its words in a buffer, which is written to the spill folder, a folder for temporary files, when it
is full. A *lane* is a read queue with an aligned buffer. An *owner* is the index of a frontier in the pass.
"""

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

# Minimum memory for a pass's buffers: room for the longest read requests.
MIN_LIST_PASS_BYTES: Final = 2 * 2**20
# Maximum bytes of edges per piece. Such a piece fits in a core's cache, and its reads keep a disk busy.
_MAX_PIECE_BYTES: Final = 2**20
_READING_PART: Final = 4  # 1 / 4 of the memory is for reading; the rest is for the frontiers' draws
_MAX_WORD_BYTES: Final = 64 * 2**10  # bytes that a frontier gathers before a write; more gains nothing
# Number of pieces for which the reading memory has room. Each of two buffers holds a piece of ``indices`` and a piece
# of ``edge_weight``. Each of two lanes has a read buffer for two pieces.
_PIECES_HELD: Final = 8
# Approximate number of spill files per hop ("group"). A file is removed once all of its frontiers are released.
_FILES_PER_GROUP: Final = 8
_MIN_FILE_BYTES: Final = 16 * 2**10  # minimum planned bytes of a spill file
# A hole is the unwanted pages between two wanted pages. One read covers a hole of at most the gap's bytes. This gap
# exceeds every file, so one read covers any hole.
_WIDE_GAP: Final = 2**40
_NO_WEIGHTS: Final[NDArray[Any]] = np.empty(0, dtype=np.float32)


class ListPasses:
    """`EdgePasses` for a `ListRule`. One pass runs at a time. Owns files, lanes, a thread and buffers until `close`.

    Parameters
    ----------
    dataset : a dataset of one type, or a relation
    rule : the sampler's rule, by which frontiers choose edges
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
        self._draw_bytes = memory_bytes - _PIECES_HELD * max(piece_bytes, allowed)  # for the frontiers' draws
        self._piece_pages = piece_bytes // PAGE_BYTES
        self._settings = settings
        self._turn = threading.Lock()  # held during a pass and by `close`, because passes share the buffers
        self._is_closed = False
        self._passes: list[SpilledPieces] = []  # the draws of earlier passes that have files left
        self._stack = ExitStack()
        with dataset.as_opened(), ExitStack() as undo:
            undo.callback(self._stack.close)
            self._sources = self._open(dataset, "indices", io)
            self._weights = self._open(dataset, "edge_weight", io) if rule.is_weighted else None
            is_direct, os_io = self._sources.is_direct, dataset.os_io
            self._gap_bytes = default_sweep_gap_bytes(self._sources.path.parent)
            bounce_bytes = max(2 * piece_bytes, MAX_EXTENT_BYTES)
            self._lane = self._open_lane(bounce_bytes, io, is_direct, os_io)
            # This lane reads the draws back from the spill folder. If the folder has system calls that are not the real
            # ones, as in tests, the lane uses them.
            self._back_lane = self._open_lane(
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
        frontiers : frontiers of any batches and hops
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
            capacity = self._capacity(len(frontiers))  # words that each frontier gathers before a write
            wanted = empty_bits(self._sources.record.num_pages)  # one bit per page
            call = PassCall(label=label, cancellation=cancellation)
            num_words = self._mark(frontiers, wanted, call)  # estimated number of drawn words by hop
            plan = self._plan(wanted, sum(num_words.values()))
            groups = [frontier.hop for frontier in frontiers]
            size = self._rule.word_dtype.itemsize
            pieces = SpilledPieces(
                self._folder,
                groups,
                {
                    hop: max(_MIN_FILE_BYTES, size * words // _FILES_PER_GROUP)
                    for hop, words in num_words.items()
                },  # the planned bytes of a spill file, by hop
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
            # The passes are kept for `close`, which removes their files. Passes without files left are dropped.
            self._passes = [*(others for others in self._passes if not others.is_gone), pieces]
        cost = SweepCost(read=read, writes=pieces.writes, bytes_written=pieces.bytes_written)
        report = PassReport(way=plan.way, predicted_s=plan.seconds, pages_wanted=plan.pages_wanted, cost=cost)
        return SweptLists(report, self._rule, pieces, self._back_lane)

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
            # The stack closes the lanes before the files, because no read may reach a closed file.
            self._is_closed = True
            self._stack.close()
            self._buffers = []

    def _open(self, dataset: AnyEdges, name: str, io: IoMode) -> ArrayFile:
        """Open the file of the array ``name`` until `close`."""
        record = dataset.arrays[name]
        rule = element_rule(dataset.root / record.file, name, dataset.limits)
        reader = ArrayFile(dataset.root, record, rule=rule, io=io, os_io=dataset.os_io)
        self._stack.callback(reader.close)
        return reader

    def _open_lane(self, bounce_bytes: int, io: IoMode, is_direct: bool, os_io: OsIO) -> ReadLane:
        """Open a lane until `close`. ``bounce_bytes`` is the size of its buffer; ``is_direct`` means O_DIRECT."""
        when_closed = "the passes over the edges are closed; open them again"
        lane = ReadLane(bounce_bytes, io=io, is_direct=is_direct, os_io=os_io, when_closed=when_closed)
        self._stack.callback(lane.close)
        return lane

    def _new_buffer(self) -> _Buffer:
        """Allocate the memory for one piece."""
        # A piece's edges may begin or end within a page of weights, so there is one page more.
        num_weights = self._piece_pages + 1 if self._weights is not None else 0
        return _Buffer(
            sources=aligned_bytes(self._piece_pages * PAGE_BYTES).reshape(-1, PAGE_BYTES),
            weights=aligned_bytes(num_weights * PAGE_BYTES).reshape(-1, PAGE_BYTES),
        )

    def _capacity(self, num_owners: int) -> int:
        """Return the number of words that each of ``num_owners`` frontiers gathers before a write.

        Raises
        ------
        BudgetError
            Less than a page is left for each frontier.
        """
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
        """Return the plan for reading the ``wanted`` pages of the sources, and the same edges' pages of the weights.

        ``num_words`` is the expected number of drawn words, whose writing takes time too.
        """
        plan = plan_pass(
            wanted,
            self._sources.record.num_pages,
            self._settings.rates,
            gap_bytes=self._gap_bytes,
            written_bytes=0,
            forced=self._settings.way,
        )
        # The pass reads one weight per source, so the reading time grows by the ratio of the element sizes.
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
        """Read the pages ``wanted`` piece by piece, and let the frontiers choose from each piece.

        While ``draws`` choose from a piece, at most one later piece is being read, into the other buffer.
        """

        def write(owner: int, words: NDArray[Any]) -> None:
            pieces.append(owner, words.view(np.uint8))

        total = ReadStats(rows=0, requests=0, bytes_read=0)
        page_batches = _page_batches(wanted, self._sources.record.num_pages, self._piece_pages)
        next_read = self._read_ahead(page_batches, 0, gap_bytes)
        number = 0
        try:
            while next_read is not None:
                piece = next_read.result()
                number += 1
                next_read = self._read_ahead(page_batches, number, gap_bytes)
                total += piece.cost
                for begin, sources, weights in self._runs(piece):
                    call.cancellation.raise_if_set(f"{call.label} over {self._sources.path}")
                    draws.offer(begin, sources, weights, write)
        except BaseException:
            if next_read is not None:
                next_read.exception()  # waits: no read may still fill a buffer that the next pass uses
            raise
        return total

    def _read_ahead(
        self, page_batches: Iterator[IdArray], number: int, gap_bytes: int
    ) -> Future[_ListPiece] | None:
        """Start to read piece ``number`` in the thread. Return None if no pages are left."""
        pages = next(page_batches, None)
        if pages is None:
            return None
        return self._pool.submit(helping(self._read), pages, self._buffers[number % 2], gap_bytes)

    def _read(self, pages: IdArray, buffer: _Buffer, gap_bytes: int) -> _ListPiece:
        """Read and verify the piece with these ``pages`` of sources into ``buffer``."""
        content = buffer.sources[: len(pages)]
        cost = self._sources.read_pages(self._lane, pages, content, gap_bytes=gap_bytes)
        if self._weights is None:
            return _ListPiece(pages=pages, sources=content, weight_pages=pages, weights=content, cost=cost)
        # These pages hold the same edges' weights. If a source takes more bytes than a weight, two pages of sources
        # share a page of weights.
        weight_pages = np.unique(pages * self._sources.per_page // self._weights.per_page)
        weights = buffer.weights[: len(weight_pages)]
        cost += self._weights.read_pages(self._lane, weight_pages, weights, gap_bytes=gap_bytes)
        return _ListPiece(pages=pages, sources=content, weight_pages=weight_pages, weights=weights, cost=cost)

    def _runs(self, piece: _ListPiece) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Yield the runs of consecutive edges in a piece, which may skip pages of the file.

        A run is the first edge's position, the sources (n,) and the weights (n,), or (0,) without weights.
        """
        per_page = self._sources.per_page
        sources = piece.sources.reshape(-1).view(self._sources.dtype)
        begins = np.flatnonzero(np.diff(piece.pages, prepend=-2) != 1)  # indices of the runs' first pages
        for first, last in zip(begins, np.append(begins[1:], len(piece.pages)), strict=True):
            begin = int(piece.pages[first]) * per_page
            # The file's last page has padding after the last edge.
            count = min(int(last - first) * per_page, self._rule.graph.num_edges - begin)
            run_sources = sources[first * per_page : first * per_page + count]
            if self._weights is None:
                yield begin, run_sources, _NO_WEIGHTS
                continue
            weights = piece.weights.reshape(-1).view(self._weights.dtype)
            page = begin // self._weights.per_page  # the page with the first edge's weight
            offset = int(np.searchsorted(piece.weight_pages, page)) * self._weights.per_page
            offset += begin - page * self._weights.per_page
            yield begin, run_sources, weights[offset : offset + count]


class SweptLists:
    """The draws of one pass over lists, as `SweptHops`. Thread-safe; made by `ListPasses.sweep`.

    Parameters
    ----------
    report : the pass's cost
    rule : the sampler's rule, which defines the dtype of the records
    pieces : the draws in the spill folder, one owner per frontier
    lane : the lane that reads the draws back
    """

    def __init__(self, report: PassReport, rule: ListRule, pieces: SpilledPieces, lane: ReadLane) -> None:
        self.report = report
        self._rule = rule
        self._pieces = pieces
        self._lane = lane

    def read(self, owner: int) -> NDArray[Any]:
        """Return the verified records of ``frontiers[owner]`` from the spill folder; see `SpilledPieces.read`."""
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
    weights: NDArray[np.uint8]  # (pages, 4096); (0, 4096) without weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListPiece:
    """The content of one piece: pages of sources, and the pages of the same edges' weights.

    Without weights, ``weight_pages`` and ``weights`` repeat the sources, and are not used.
    """

    pages: IdArray  # (p,) ascending page numbers of the sources
    sources: NDArray[np.uint8]  # (p, 4096)
    weight_pages: IdArray  # (q,) ascending page numbers of the weights
    weights: NDArray[np.uint8]  # (q, 4096)
    cost: ReadStats  # requests and bytes of reading the piece


def _page_batches(wanted: NDArray[np.uint64], num_pages: int, size: int) -> Iterator[IdArray]:
    """Yield the numbers of the marked pages, ascending, in arrays of ``size``; the last may be shorter. Pure.

    Parameters
    ----------
    wanted : one bit per page, 64 in a word
    num_pages : number of pages
    size : pages per array
    """
    start = 0
    while True:
        pages = np.empty(size, dtype=np.int64)
        count, start = _next_pages(wanted, start, num_pages, pages)
        if count == 0:
            return
        yield pages[:count]


@njit(cache=True, nogil=True)
def _next_pages(wanted: NDArray[np.uint64], start: int, num_pages: int, pages: IdArray) -> tuple[int, int]:
    """Write the next marked pages, from ``start`` on, into ``pages`` (n,). Return their number and the next start."""
    count = 0
    while count < pages.shape[0]:
        start = next_bit(wanted, start, num_pages)
        if start == num_pages:
            break
        pages[count] = start
        count += 1
        start += 1
    return count, start
