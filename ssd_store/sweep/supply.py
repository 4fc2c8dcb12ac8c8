"""The input of a sweep: positions that come in portions, pages of the file, and rows of other machines.

`WantedPositions` supplies positions portion by portion, for arrays too long to hold them all. `SweepContent` is the
pages of the open file, or the pages that a `SweepSource` brings.

`ArrivingRows` are rows from other machines, in ascending runs. They form a file in all but name: page p holds the
bytes from 4096 p on, and slot s those from R s on, for rows of R bytes. A sweep deals rows out in the order of slots.
No id travels with a row: runs are stretches of all rows, so the rows of a batch are put into the order of arrival run
by run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from gloader.core.ids import id_dtype
from gloader.core.kernels import njit
from gloader.errors import PlanError
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.lane import mismatch
from gloader.ssd_store.sweep import kernels
from gloader.ssd_store.sweep.wanted_rows import WantedRows, collect_places, first_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import SweepSource
    from gloader.ssd_store.read.columns import StoredRows
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.sweep.kernels import Sweep
    from gloader.types import IdArray, IdPortions


_MOST_COLUMNS: Final = 16384  # for few owners: more are not filled faster
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedPositions:
    """The positions that O owners want of a long array, and the pages that hold them."""

    portions: IdPortions
    counts: IdArray  # (O,) positions of each owner, none twice
    pages: NDArray[np.uint64]  # a bit for each page of the file; written if ``exact_pages`` is there
    num_pages: int  # P
    gap_bytes: int  # longest hole that is read through; WHOLE_FILE: every page is read
    portion_bytes: int  # memory for the portions of all owners
    # Where ``pages`` has bits of pages that nobody wants: returns the others. Asked for where a page is damaged.
    exact_pages: Callable[[], NDArray[np.uint64]] | None = None


class Supply:
    """Hands rows to a sweep as it asks for them, and sees to it that they are those that were announced.

    Parameters
    ----------
    starts : (S,) where the rows of each batch begin in ``ids``
    ids : that are there at the beginning
    ends : (S,) where they end
    counts : (S,) rows of each batch
    portions : where others come from
    """

    def __init__(
        self,
        starts: IdArray,
        ids: NDArray[Any],
        ends: IdArray,
        *,
        counts: IdArray,
        portions: IdPortions | None = None,
    ) -> None:
        self.starts = starts
        self.ids = ids
        self.ends = ends
        self.num_rows = int(counts.sum())
        self._left = counts - (ends - starts)  # that were not handed over yet
        self.has_more = self._left > 0
        self._portions = portions

    def refill(self, sweep: Sweep) -> None:
        """Bring the next portion of every owner.

        Raises
        ------
        PlanError
            They are more than was announced, or none where more was promised.
        """
        if self._portions is None:
            return
        width = self.ids.shape[0] // self.ends.shape[0]
        taken = sweep.batches[kernels.ROW] - self.starts
        filled = self.ends - self.starts
        before = filled - taken
        is_waiting = sweep.batches[kernels.NEXT_BYTE] == kernels.UNKNOWN
        self._portions.fill(self.ids.reshape(-1, width), taken, filled, self.has_more)
        self._left -= filled - before
        is_wrong = (self._left < 0) | (filled < before) | (filled > width)
        is_wrong |= is_waiting & (filled == 0) & self.has_more
        if is_wrong.any():
            self._raise(int(is_wrong.argmax()))
        np.add(self.starts, filled, out=self.ends)
        kernels.continue_with(sweep, self.starts)

    def require_end(self, sweep: Sweep) -> None:
        """Check that every position was announced, came, and was found.

        Raises
        ------
        PlanError
            It was not.
        """
        is_wrong = (self._left != 0) | (sweep.batches[kernels.NEXT_BYTE] != kernels.NEVER)
        if is_wrong.any():
            self._raise(int(is_wrong.argmax()))

    def _raise(self, owner: int) -> None:
        raise PlanError(
            f"the positions of owner {owner} of a sweep are not those that were announced: {int(self._left[owner])} "
            "of them are missing, or none of a page that was marked; this is a bug of gloader, please report it"
        )


def supply_of(wanted: WantedRows | WantedPositions) -> Supply:
    """Return what hands ``wanted`` to a sweep; it owns the memory of portions."""
    if isinstance(wanted, WantedRows):
        return Supply(wanted.bounds[:-1], wanted.ids, wanted.bounds[1:], counts=wanted.counts)
    num_owners = wanted.counts.shape[0]
    room = wanted.portion_bytes // (_ID_BYTES * max(num_owners, 1))
    width = max(min(room, _MOST_COLUMNS), 1)
    starts = np.arange(num_owners, dtype=np.int64) * width
    ids = np.empty(num_owners * width, np.int64)
    return Supply(starts, ids, starts.copy(), counts=wanted.counts, portions=wanted.portions)


def is_wanted_for_certain(wanted: WantedRows | WantedPositions, sweep: Sweep) -> bool:
    """Return whether somebody wants the damaged page at which ``sweep`` stopped; if not, it can go on."""
    if isinstance(wanted, WantedPositions) and wanted.exact_pages is not None:
        np.copyto(sweep.pages, wanted.exact_pages())
        page = int(sweep.state[kernels.BAD_PAGE])
        return bool(int(sweep.pages[page >> 6]) >> (page & 63) & 1)
    return True


def raise_astray(sweep: Sweep, label: str) -> NoReturn:
    """Raise `PlanError` for a row that somebody wants, of a page that nobody marked."""
    owner = int(sweep.state[kernels.TURN])
    at = int(sweep.batches[kernels.NEXT_BYTE, owner])
    raise PlanError(
        f"{label} {owner} wants row {at // sweep.row_bytes} of page {at // ALIGNMENT}, which was not marked; this is a "
        "bug of gloader, please report it"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepContent:
    """Rows in a file, or in what takes its place, what brings them, and which are wanted."""

    wanted: WantedRows | WantedPositions
    stored: StoredRows  # how they lie there, and the checksums
    source: SweepSource | None = None  # None: the file


def bring(source: SweepSource, sweep: Sweep, is_cancelled: Callable[[], bool]) -> None:
    """Have the extent at the head of ``sweep`` filled; raises as `SweepSource.read`.

    Parameters
    ----------
    source : brings the pages
    sweep : under way
    is_cancelled : asked while it waits
    """
    slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
    start, length, at, _, _ = sweep.extents[:, slot].tolist()
    source.read(sweep.ring[at : at + length].data, start, is_cancelled=is_cancelled)
    sweep.extents[kernels.FLAG, slot] = kernels.DONE


class Repairs:
    """Extents with a damaged page that are read once more, if what brings the bytes of the file brought them anew.

    Parameters
    ----------
    file : that is swept
    """

    def __init__(self, file: DeviceFile) -> None:
        self._file = file
        self._has_brought = False
        self._last = -1  # number of the extent that was read once more

    def repair(self, sweep: Sweep) -> bool:
        """Read the extent at the head again; return whether that is worth another look. Nothing may be in flight."""
        head, page = int(sweep.state[kernels.HEAD]), int(sweep.state[kernels.BAD_PAGE])
        # A block that was brought anew may have been damaged in several extents, which were all read before.
        is_new = self._file.refetch(DATA_OFFSET + page * ALIGNMENT)
        if not is_new and (self._last == head or not self._has_brought):
            return False
        self._has_brought, self._last = True, head
        start, length, at, _, _ = sweep.extents[:, head % sweep.extents.shape[1]].tolist()
        self._file.read_fully(sweep.ring[at : at + length].data, DATA_OFFSET + start)
        return True


def raise_mismatch(content: SweepContent, sweep: Sweep) -> NoReturn:
    """Raise `ChecksumError` for the page at which ``sweep`` stopped: it is not what was written."""
    stored, wanted, page = content.stored, content.wanted, int(sweep.state[kernels.BAD_PAGE])
    rows: IdArray | None = None
    if isinstance(wanted, WantedRows):
        first = page * ALIGNMENT // stored.row_bytes
        last = ((page + 1) * ALIGNMENT - 1) // stored.row_bytes
        # Batches lie one after the other, so a page's rows are anywhere in the list: an error may take its time.
        is_asked = (wanted.ids >= first) & (wanted.ids <= last)
        rows = np.unique(wanted.ids[is_asked]).astype(np.int64)
    raise mismatch(stored.path, page, rows, row_bytes=stored.row_bytes, data_offset=DATA_OFFSET)


_PATH: Final = Path("rows from other machines")  # in messages, in place of a file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalLayout:
    """Where each of the rows that come will lie. A slot is a place of R bytes; slots count in the order of arrival.

    A run is what one owner sends in one round: a stretch of ``rows``. It begins on a page, so that slots between two
    runs may stay empty.
    """

    rows: NDArray[Any]  # (K,) int32 or int64, ascending, none twice: all rows that come
    bounds: IdArray  # (Q + 1,) ascending: run q is rows[bounds[q]:bounds[q + 1]], perhaps empty
    first_slot: IdArray  # (Q,) where each run begins; not ascending: owners take turns
    num_slots: int
    row_bytes: int  # R


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivingRows:
    """The rows of one table that a superbatch misses, on their way."""

    layout: ArrivalLayout
    source: SweepSource  # brings the pages of all slots, in order, and verifies them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalOrder:
    """In which order stretches of rows arrive: all that is kept of a layout to read rows back."""

    first_row: IdArray  # (Q,) of the runs that have rows, ascending
    in_turn: IdArray  # (Q,) their numbers, as they arrive

    def begins(self, rows: NDArray[Any]) -> IdArray:
        """Return (Q + 1,) where the rows of each run begin in ``rows``, which ascend and all arrive. Pure."""
        return np.append(np.searchsorted(rows, self.first_row), len(rows))


def order_of(layout: ArrivalLayout) -> ArrivalOrder:
    """Return the order in which the runs of ``layout`` arrive. Pure."""
    has_rows = np.diff(layout.bounds) > 0
    return ArrivalOrder(
        first_row=layout.rows[layout.bounds[:-1][has_rows]].astype(np.int64),
        in_turn=np.argsort(layout.first_slot[has_rows], kind="stable"),
    )


def arrival_order(order: ArrivalOrder, rows: IdArray) -> IdArray:
    """Return (M,) the positions in ``rows`` (M,), which ascend and all arrive, as they arrive. Pure."""
    positions = np.empty(len(rows), np.int64)
    _list_positions(order.begins(rows), order.in_turn, positions)
    return positions


def slots_of(layout: ArrivalLayout, rows: IdArray) -> NDArray[Any]:
    """Return the slots of ``rows``, ascending: those of ``rows[arrival_order(order_of(layout), rows)]``. Pure.

    Parameters
    ----------
    layout : of all that arrives
    rows : (M,) int64, ascending, none twice

    Returns
    -------
    (M,) int32, or int64 if there are more slots than that counts

    Raises
    ------
    PlanError
        One of them does not arrive.
    """
    order = order_of(layout)
    begins, slots = order.begins(rows), np.empty(len(rows), id_dtype(layout.num_slots))
    has_rows = np.diff(layout.bounds) > 0
    missing = 0 if len(rows) else -1
    if len(order.in_turn):
        begins[0] = 0  # what is before all that arrives is looked for in the first run, in vain
        missing = _list_slots(
            rows,
            begins,
            order.in_turn,
            layout.rows,
            layout.bounds[:-1][has_rows],
            layout.bounds[1:][has_rows],
            layout.first_slot[has_rows],
            slots,
        )
    if missing >= 0:
        raise PlanError(
            f"row {int(rows[missing])} is missed and does not arrive from any machine; this is a bug of gloader, "
            "please report it"
        )
    return slots


def collect_arrivals(
    misses: Sequence[IdArray], layout: ArrivalLayout, *, num_rows: int, is_cancelled: Callable[[], bool]
) -> WantedRows:
    """Take the slots of each batch's rows, in the order of arrival, and mark their pages.

    Parameters
    ----------
    misses : S arrays of row ids, ascending, none twice
    layout : of all that arrives
    num_rows : N
    is_cancelled : looked at before each batch

    Raises
    ------
    PlanError, ShapeError, ChannelClosedError
        As `slots_of` and `collect_rows`.
    """

    def place(rows: IdArray) -> NDArray[Any]:
        return slots_of(layout, rows)

    return collect_places(
        misses,
        place,
        num_rows=num_rows,
        num_places=layout.num_slots,
        row_bytes=layout.row_bytes,
        is_cancelled=is_cancelled,
    )


def stored_arrivals(stored: StoredRows, layout: ArrivalLayout) -> StoredRows:
    """Return how rows lie in what arrives, in place of the file of ``stored``. Pure.

    Raises
    ------
    PlanError
        They are not of the same length.
    """
    if layout.row_bytes != stored.row_bytes:
        raise PlanError(
            f"rows of {layout.row_bytes} bytes arrive, and those of {stored.path} have {stored.row_bytes}; this is a "
            "bug of gloader, please report it"
        )
    return replace(
        stored,
        path=_PATH,
        num_rows=layout.num_slots,
        checksums=np.empty(0, np.uint64),  # whoever brings the pages has compared them
        held=None,
    )


@njit(cache=True, nogil=True)
def _list_positions(begins: IdArray, in_turn: IdArray, positions: IdArray) -> None:
    count = 0
    for run in in_turn:
        for i in range(begins[run], begins[run + 1]):
            positions[count] = i
            count += 1


@njit(cache=True, nogil=True)
def _list_slots(
    rows: IdArray,
    begins: IdArray,
    in_turn: IdArray,
    arriving: NDArray[Any],
    first: IdArray,
    past: IdArray,
    first_slot: IdArray,
    slots: NDArray[Any],
) -> int:
    """Write the slots of ``rows``, run after run; return the position of a row that does not arrive, or -1.

    Parameters
    ----------
    rows : (M,) ascending
    begins : (Q + 1,) where those of each run begin
    in_turn : (Q,) runs as they arrive
    arriving : (K,) all that arrive, ascending
    first, past : (Q,) where those of each run begin and end
    first_slot : (Q,) of each run
    slots : (M,) written
    """
    count = 0
    for run in in_turn:
        low, end = first[run], past[run]
        shift = first_slot[run] - first[run]
        for i in range(begins[run], begins[run + 1]):
            low = first_at_least(arriving, low, end, rows[i])
            if low == end or arriving[low] != rows[i]:
                return i
            slots[count] = low + shift
            count += 1
    return -1
