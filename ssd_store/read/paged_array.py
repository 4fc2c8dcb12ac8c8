"""Arrays read page by page: any elements, or all pages in file order, verified on every read from the SSD.

The arrays are long one-dimensional arrays such as the edges. A page is 4 KiB of an array's file. `PagedArray.take`
reads any elements, and keeps their pages in `KeptPages` for later calls. `PagedScan.lists` reads lists (ranges of
consecutive elements, such as each node's in-edges) in large reads, and keeps no pages. Samplers and
inference read the edges of a graph that does not fit in memory through these two.

`KeptPages` has slots, each a place in memory for one page. It evicts by CLOCK: a hand moves around the slots. It clears
the mark of a page that was used since its last visit, and evicts the first page without a mark.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes, mapped_bytes
from gloader.core.kernels import njit
from gloader.errors import ForkError, ShapeError
from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.row_kernels import copy_lists, next_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.ssd_store.read.columns import ArrayFile
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.types import IdArray, LocalArray


# Bytes per slot: a page of 4,096 bytes, its page number, and a mark for a use since the hand's last visit.
_SLOT_BYTES = PAGE_BYTES + 4 + 1
_PAGE_ENTRY_BYTES = 4  # bytes per page of the array, for the number of its slot
_NOWHERE = -1  # slot of a page that is not kept, and page of an empty slot


class KeptPages:
    """Copies of pages in memory, evicted by CLOCK. Thread-safe.

    Its results are copies, so a page may be evicted at any time, and any amount of memory is enough.

    Parameters
    ----------
    num_pages : number of pages, numbered from 0
    max_bytes : bytes for the pages and their bookkeeping; with less than one page's share, no page is kept
    """

    def __init__(self, num_pages: int, *, max_bytes: int) -> None:
        room = max_bytes - _PAGE_ENTRY_BYTES * num_pages
        self.num_slots = min(max(room, 0) // _SLOT_BYTES, num_pages)
        self._lock = threading.Lock()
        self._hand = 0  # the slot at which the next eviction begins its search
        self._slot_of: LocalArray = np.full(num_pages, _NOWHERE, dtype=np.int32)  # by page
        self._page_in: LocalArray = np.full(self.num_slots, _NOWHERE, dtype=np.int32)  # by slot
        self._was_used = np.zeros(self.num_slots, dtype=np.uint8)  # by slot: the mark of a use, 0 or 1
        # The memory is not touched, so that unused pages take no space.
        self._memory = mapped_bytes(PAGE_BYTES * max(self.num_slots, 1), touch=False)

    @property
    def num_bytes(self) -> int:
        """Bytes with every slot in use."""
        return _SLOT_BYTES * self.num_slots + _PAGE_ENTRY_BYTES * len(self._slot_of)

    def copy(self, first_page: int, positions: IdArray, out: NDArray[Any], missing: LocalArray) -> int:
        """Copy the elements at ``positions`` whose pages are kept, and return the number of missing elements.

        Parameters
        ----------
        first_page : number, among the kept pages, of the page that begins with element 0
        positions : (M,) positions of elements
        out : (M,) with the elements' dtype; elements of kept pages are written
        missing : (M,) receives the missing elements' ranks in ``positions``, ascending
        """
        elements = self._memory.view(out.dtype).reshape(-1, PAGE_BYTES // out.itemsize)
        # The copy is made under the lock, so that no slot changes its page meanwhile.
        with self._lock:
            count: int = _copy_kept(
                first_page, positions, self._slot_of, elements, self._was_used, out, missing
            )
        return count

    def keep(self, pages: IdArray, content: NDArray[np.uint8]) -> None:
        """Keep ``pages`` (P,) with their verified bytes ``content`` (P, 4096); evict pages if all slots are in use."""
        if self.num_slots:
            with self._lock:
                self._hand = _keep(
                    pages, content, self._slot_of, self._page_in, self._was_used,
                    self._memory.reshape(-1, PAGE_BYTES), self._hand,
                )  # fmt: skip


@njit(cache=True, nogil=True)
def _copy_kept(
    first_page: int,
    positions: IdArray,
    slot_of: LocalArray,
    elements: NDArray[Any],
    was_used: NDArray[np.uint8],
    out: NDArray[Any],
    missing: LocalArray,
) -> int:
    """Copy as `KeptPages.copy`; ``elements`` (slots, elements per page) are the kept pages' elements."""
    per_page = elements.shape[1]
    count = 0
    for i in range(positions.shape[0]):
        page = positions[i] // per_page
        slot = slot_of[first_page + page]
        if slot < 0:
            missing[count] = i
            count += 1
        else:
            was_used[slot] = 1
            out[i] = elements[slot, positions[i] - page * per_page]
    return count


@njit(cache=True, nogil=True)
def _keep(
    pages: IdArray,
    content: NDArray[np.uint8],
    slot_of: LocalArray,
    page_in: LocalArray,
    was_used: NDArray[np.uint8],
    memory: NDArray[np.uint8],
    hand: int,
) -> int:
    """Keep ``pages`` as `KeptPages.keep`; return the hand's new position."""
    for i in range(pages.shape[0]):
        # Another thread may have read the page as well.
        if slot_of[pages[i]] >= 0:
            continue
        # The loop ends within two rounds, because the first round clears the marks.
        while was_used[hand]:
            was_used[hand] = 0
            hand = (hand + 1) % page_in.shape[0]
        if page_in[hand] >= 0:  # evict the slot's page
            slot_of[page_in[hand]] = -1
        # An assignment of the entire row would compile for seconds, and run slower.
        for byte in range(memory.shape[1]):
            memory[hand, byte] = content[i, byte]
        page_in[hand] = pages[i]
        slot_of[pages[i]] = hand
        hand = (hand + 1) % page_in.shape[0]
    return hand


# Pages that are read, verified and copied together: enough requests for a deep queue, and little memory.
_ROUND_PAGES: Final = 512
# Peak bytes of `take` per missing element, in addition to its value: 28 for its rank and its page, in both orders, and
# for the sort, and 24 for its place in the pages that were read.
_TAKING_BYTES: Final = 52
_IN_ORDER: IdArray = np.empty(0, dtype=np.int64)  # order of lists that are in file order already


class PagedArray:
    """A one-dimensional array on the SSD, whose pages are read on request. Thread-safe.

    Every read from the SSD is verified, however often it is repeated. Owns nothing.

    Parameters
    ----------
    file : the array's file, with the rule for its elements
    lane : lane for the reads
    kept : pages in memory
    first_page : this array's first page in ``kept``
    """

    def __init__(
        self,
        file: ArrayFile,
        *,
        lane: ReadLane,
        kept: KeptPages,
        first_page: int = 0,
    ) -> None:
        self._file = file
        self._lane = lane
        self._kept = kept
        self._first_page = first_page
        self._dtype = file.dtype
        self._per_page = file.per_page
        self._gap_bytes = default_row_gap_bytes(file.path.parent, PAGE_BYTES)
        self._pid = os.getpid()
        self._turn = threading.Lock()  # held by the call that uses `_room`
        self._room = _pages(min(_ROUND_PAGES, file.record.num_pages))  # memory for the pages of one round

    @property
    def length(self) -> int:
        """Number of elements."""
        return self._file.record.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' dtype."""
        return self._dtype

    @property
    def num_bytes(self) -> int:
        """Bytes held, without the kept pages and the lane."""
        return self._file.num_bytes + self._room.nbytes

    def take(self, positions: IdArray) -> NDArray[Any]:
        """Return the elements at ``positions`` (M,) int64, in any order, as (M,) read-only values.

        Raises
        ------
        ShapeError
            A position is out of range; nothing was read.
        Exception
            An element violates the array's rule, although its bytes are intact; the error is the rule's.
        ForkError
            This is a child of the process that opened the array.
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk differ from the written bytes, or are unreadable; the message names file and page.
        """
        self._require_own_process()
        self._require_inside(positions, positions)
        values = np.empty(len(positions), dtype=self._dtype)
        missing = np.empty(len(positions), dtype=np.int32)
        count = self._kept.copy(self._first_page, positions, values, missing)
        if count:
            self._read_missing(positions, missing[:count], values)
        # The values are read-only like an array in memory, so that every kernel compiles for one type.
        values.flags.writeable = False
        return values

    def take_bytes(self, count: int) -> int:
        """Return the peak memory in bytes of `take` for ``count`` elements that are all missing."""
        return (self._dtype.itemsize + _TAKING_BYTES) * count

    def scan(self) -> PagedScan:
        """Return a scan of this array, for one thread."""
        return PagedScan(self)

    def lists(self, starts: IdArray, counts: IdArray, tail: _Tail) -> NDArray[Any]:
        """Return lists as in `PagedScan.lists`. The scan keeps ``tail``, the last page, from one call to the next.

        Kept pages are neither used nor added. A pass that reads every list once would only evict pages that `take` uses
        again. Each round reads the pages of the next lists, and copies their elements; a list may need several rounds.
        """
        self._require_own_process()
        self._require_inside(starts, starts + counts - 1)
        order = np.argsort(starts, kind="stable") if (np.diff(starts) < 0).any() else _IN_ORDER
        ends = np.cumsum(counts)
        values = np.empty(int(ends[-1]) if len(ends) else 0, dtype=self._dtype)
        wanted = starts, counts, order
        # The next list in file order, and the number of its elements that are copied already.
        number, done, pages = 0, 0, np.empty(len(self._room), dtype=np.int64)
        while count := next_pages(*wanted, number, done, self._per_page, pages):
            round_pages = pages[:count]
            with self._turn:
                content = self._room[:count]
                # 1 if the first page is in memory from the previous round.
                known = int(round_pages[0] == tail.page)
                content[:known] = tail.content[:known]
                if known < count:
                    self._read(round_pages[known:], content[known:])
                elements = content.view(self._dtype)
                number, done = copy_lists(*wanted, ends, number, done, round_pages, elements, values)
                tail.page, tail.content[0] = int(round_pages[-1]), content[-1]
        return values

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all elements in order, some pages at a time; every page is read once.

        Raises
        ------
        Exception, ForkError, ChecksumError, StoreReadError, TruncatedStoreError
            See `take`.
        """
        scan, step = self.scan(), _ROUND_PAGES * self._per_page
        for start in range(0, self.length, step):
            yield scan.lists(np.array([start]), np.array([min(step, self.length - start)]))

    def _require_own_process(self) -> None:
        """Raise ForkError in a child of the process that opened the array."""
        # Locks, a ring and its threads do not survive a fork.
        if os.getpid() != self._pid:
            raise ForkError(
                f"{self._file.path} was opened by process {self._pid}, of which this is a child: open the dataset's "
                "topology, or the loader, in the process that samples"
            )

    def _require_inside(self, first: IdArray, last: IdArray) -> None:
        """Raise ShapeError if a range of positions ``first[i]`` to ``last[i]`` exceeds the array."""
        length = self.length
        if len(first) and (first.min() < 0 or last.max() >= length):
            wrong = np.where(first < 0, first, last)[(first < 0) | (last >= length)][:5].tolist()
            raise ShapeError(f"{self._file.path}: positions {wrong} are not in 0..{length - 1}")

    def _read_missing(self, positions: IdArray, missing: LocalArray, values: NDArray[Any]) -> None:
        """Read the pages of ``positions[missing]``, and write these elements to ``values``."""
        # 32 bits suffice: a hop may have millions of edges, and a file with fewer than 2**31 pages has less than 8 TB.
        wanted = (positions[missing] // self._per_page).astype(np.int32)
        order = np.argsort(wanted)
        in_order = wanted[order]
        # Each page's elements are order[begins[p]:ends[p]].
        begins = np.flatnonzero(np.diff(in_order, prepend=-1))
        ends = np.append(begins[1:], len(order))
        pages = in_order[begins].astype(np.int64)
        # The reads are in file order and bounded. Each page is used before another call may evict it.
        for first in range(0, len(pages), _ROUND_PAGES):
            round_pages = pages[first : first + _ROUND_PAGES]
            span = slice(begins[first], ends[first + len(round_pages) - 1])
            ranks = missing[order[span]]
            rows = np.searchsorted(round_pages, in_order[span])
            columns = positions[ranks] - round_pages[rows] * self._per_page
            with self._turn:
                content = self._room[: len(round_pages)]
                values[ranks] = self._read(round_pages, content)[rows, columns]
                self._kept.keep(round_pages + self._first_page, content)

    def _read(self, pages: IdArray, content: NDArray[np.uint8]) -> NDArray[Any]:
        """Read ``pages`` (P,), ascending, into ``content`` (P, 4096); return their elements (P, per page), verified."""
        self._file.read_pages(self._lane, pages, content, gap_bytes=self._gap_bytes)
        return content.view(self._dtype)


class PagedScan:
    """Lists of an array's elements, one after another, in large reads. For one thread; made by `PagedArray.scan`."""

    def __init__(self, array: PagedArray) -> None:
        self._array = array
        self._tail = _Tail(page=-1, content=_pages(1))

    def lists(self, starts: IdArray, counts: IdArray) -> NDArray[Any]:
        """Return the elements ``starts[i]`` to ``starts[i] + counts[i]`` for every i, one list after another.

        Parameters
        ----------
        starts, counts : (M,) int64, in any order; the reads are in file order

        Raises
        ------
        Exception, ShapeError, ForkError, ChecksumError, StoreReadError, TruncatedStoreError
            See `PagedArray.take`.
        """
        return self._array.lists(starts, counts, self._tail)


@dataclass(slots=True, kw_only=True)
class _Tail:
    """The last page of a round, with which the next round may begin."""

    page: int  # the page's number; -1 before the first round
    content: NDArray[np.uint8]  # (1, 4096)


def _pages(count: int) -> NDArray[np.uint8]:
    """Return room for ``count`` pages, (count, 4096)."""
    return aligned_bytes(count * PAGE_BYTES).reshape(-1, PAGE_BYTES)
