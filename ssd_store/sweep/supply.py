"""A sweep's input: the needed rows or positions, and the pages that hold them.

A sweep reads a file's needed pages once, in file order, and deals the rows out to their owners. An owner is a batch of
a superbatch (rows of features), or a frontier of sampled nodes (positions in a long array such as the edges).

`WantedRows` lists all owners' rows in memory. `WantedPositions` supplies positions portion by portion, for lists too
long for memory. `Supply` gives either to the kernels, and checks the numbers. `SweepContent` has the open file's pages,
or the pages that a `SweepSource` brings.

`ArrivingRows` are rows from other machines, in ascending runs. They form a virtual file: for rows of R bytes, page p
begins at byte 4096 p, and slot s at byte R s. A sweep deals rows out in the order of slots. No id travels with a row,
because all machines know the layout of the slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from gloader.errors import PlanError
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.lane import mismatch
from gloader.ssd_store.sweep import sweep_kernels as kernels
from gloader.ssd_store.sweep.wanted_rows import ArrivalLayout, WantedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.ssd_store.os_io import SweepSource
    from gloader.ssd_store.read.columns import RowFile
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.sweep.sweep_kernels import Sweep
    from gloader.types import IdArray, IdPortions


# Maximum number of ids per owner in a portion. A longer portion is not filled faster.
_MOST_COLUMNS: Final = 16384
_ID_BYTES: Final = 8  # ids in a portion are int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedPositions:
    """The positions in a long array that O owners need, and the pages that hold them."""

    portions: IdPortions  # supplies the positions, portion by portion
    counts: IdArray  # (O,) each owner's number of positions, without repeats
    pages: NDArray[np.uint64]  # one bit for each page in the file; overwritten if ``exact_pages`` is set
    num_pages: int  # P
    gap_bytes: int  # longest hole that a read bridges; WHOLE_FILE reads every page
    portion_bytes: int  # memory for all owners' portions
    # Returns exact page bits, if ``pages`` has bits of unneeded pages. Called for a damaged page.
    exact_pages: Callable[[], NDArray[np.uint64]] | None = None


class Supply:
    """Supplies row ids or positions to a sweep on request, and checks them against the announced numbers.

    Parameters
    ----------
    starts, ends : (O,) each owner's range in ``ids``
    ids : the ids available at the beginning
    counts : (O,) number of ids that each owner has announced
    portions : source of further ids; None means that ``ids`` has all
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
        self._left = counts - (ends - starts)  # number of ids not supplied yet
        self.has_more = self._left > 0  # (O,) True for owners with another portion
        self._portions = portions

    def refill(self, sweep: Sweep) -> None:
        """Fetch every owner's next portion.

        Raises
        ------
        PlanError
            There are more ids than announced, or none although more were announced.
        """
        if self._portions is None:
            return
        width = self.ids.shape[0] // self.ends.shape[0]  # room for each owner's ids
        taken = sweep.batches[kernels.ROW] - self.starts  # ids that the sweep has used
        filled = self.ends - self.starts  # ids in each owner's room, before and after the call to `fill`
        unused = filled - taken  # these stay
        is_waiting = sweep.batches[kernels.NEXT_BYTE] == kernels.UNKNOWN
        # Moves the unused ids to the front of each owner's room, appends the next ids, and updates all three arrays.
        self._portions.fill(self.ids.reshape(-1, width), taken, filled, self.has_more)
        self._left -= filled - unused
        # More ids than announced, lost ids, or more than there is room for; or no ids for an owner that waits for them.
        is_wrong = (self._left < 0) | (filled < unused) | (filled > width)
        is_wrong |= is_waiting & (filled == 0) & self.has_more
        if is_wrong.any():
            self._raise(int(is_wrong.argmax()))
        np.add(self.starts, filled, out=self.ends)
        kernels.continue_with(sweep, self.starts)

    def require_end(self, sweep: Sweep) -> None:
        """Check that every announced position was supplied and found.

        Raises
        ------
        PlanError
            A position was not supplied, or not found.
        """
        is_wrong = (self._left != 0) | (sweep.batches[kernels.NEXT_BYTE] != kernels.NEVER)
        if is_wrong.any():
            self._raise(int(is_wrong.argmax()))

    def _raise(self, owner: int) -> None:
        raise PlanError(
            f"the positions of owner {owner} of a sweep are not those that were announced: {int(self._left[owner])} "
            "of them are missing, or one lies on no marked page; this is a bug of gloader, please report it"
        )


def supply_of(wanted: WantedRows | WantedPositions) -> Supply:
    """Return the supply for a sweep over ``wanted``. It owns the memory for portions."""
    if isinstance(wanted, WantedRows):
        return Supply(wanted.bounds[:-1], wanted.ids, wanted.bounds[1:], counts=wanted.counts)
    num_owners = wanted.counts.shape[0]
    room = wanted.portion_bytes // (_ID_BYTES * max(num_owners, 1))
    width = max(min(room, _MOST_COLUMNS), 1)
    starts = np.arange(num_owners, dtype=np.int64) * width
    ids = np.empty(num_owners * width, np.int64)
    return Supply(starts, ids, starts.copy(), counts=wanted.counts, portions=wanted.portions)


def is_wanted_for_certain(wanted: WantedRows | WantedPositions, sweep: Sweep) -> bool:
    """Return True if the damaged page at which ``sweep`` stopped is really needed; if not, the sweep can continue.

    The page bits of `WantedPositions` may contain unneeded pages. The exact bits are computed now, and replace them.
    """
    if isinstance(wanted, WantedPositions) and wanted.exact_pages is not None:
        np.copyto(sweep.pages, wanted.exact_pages())
        page = int(sweep.state[kernels.BAD_PAGE])
        return bool(int(sweep.pages[page >> 6]) >> (page & 63) & 1)  # a word has 64 pages' bits
    return True


def raise_astray(sweep: Sweep, label: str) -> NoReturn:
    """Raise `PlanError` for a needed row on an unmarked page."""
    owner = int(sweep.state[kernels.TURN])
    byte = int(sweep.batches[kernels.NEXT_BYTE, owner])
    raise PlanError(
        f"{label} {owner} wants row {byte // sweep.row_bytes} of page {byte // ALIGNMENT}, which was not marked; this "
        "is a bug of gloader, please report it"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepContent:
    """Rows in a file or a virtual file, their source, and the needed ids."""

    wanted: WantedRows | WantedPositions
    stored: RowFile  # the rows' layout and checksums
    source: SweepSource | None = None  # None means the file itself


def bring(source: SweepSource, sweep: Sweep, cancellation: Cancellation) -> None:
    """Fill the oldest extent that is not dealt out with bytes from ``source``; raises as `SweepSource.read`.

    Parameters
    ----------
    source : source of the pages
    sweep : the running sweep
    """
    slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
    # The extent's first byte in the matrix, its bytes and its place in the ring (the read buffer).
    start, length, ring_offset, _, _ = sweep.extents[:, slot].tolist()
    source.read(sweep.ring[ring_offset : ring_offset + length].data, start, cancellation=cancellation)
    sweep.extents[kernels.FLAG, slot] = kernels.DONE


class Repairs:
    """Reads extents with a damaged page once more, if a mirror has fetched the file's bytes again.

    Parameters
    ----------
    file : the swept file
    """

    def __init__(self, file: DeviceFile) -> None:
        self._file = file
        self._has_refetched = False  # the file's bytes were fetched again in this sweep
        self._last = -1  # number of the last extent that was read once more

    def repair(self, sweep: Sweep) -> bool:
        """Read the damaged extent again. Return True if it may be intact now. No request may be in flight."""
        head, page = int(sweep.state[kernels.HEAD]), int(sweep.state[kernels.BAD_PAGE])
        # The bytes that were fetched again may belong to several extents, all read before the fetch. So an extent is
        # read once more even if this call fetches nothing.
        is_refetched = self._file.refetch(DATA_OFFSET + page * ALIGNMENT)
        if not is_refetched and (self._last == head or not self._has_refetched):
            return False
        self._has_refetched, self._last = True, head
        start, length, ring_offset, _, _ = sweep.extents[:, head % sweep.extents.shape[1]].tolist()
        self._file.read_fully(sweep.ring[ring_offset : ring_offset + length].data, DATA_OFFSET + start)
        return True


def raise_mismatch(content: SweepContent, sweep: Sweep) -> NoReturn:
    """Raise `ChecksumError` for the damaged page at which ``sweep`` stopped."""
    stored, wanted, page = content.stored, content.wanted, int(sweep.state[kernels.BAD_PAGE])
    rows: IdArray | None = None
    if isinstance(wanted, WantedRows):
        first = page * ALIGNMENT // stored.row_bytes
        last = ((page + 1) * ALIGNMENT - 1) // stored.row_bytes
        # The list has batch after batch, so a page's rows may be anywhere in it. The slow search is only needed for
        # errors.
        is_on_page = (wanted.ids >= first) & (wanted.ids <= last)
        rows = np.unique(wanted.ids[is_on_page]).astype(np.int64)
    raise mismatch(stored.path, page, rows, row_bytes=stored.row_bytes)


_PATH: Final = Path("rows from other machines")  # replaces a file's path in messages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivingRows:
    """One table's missing rows for a superbatch, in transit."""

    layout: ArrivalLayout
    source: SweepSource  # brings the pages of all slots, in order, and verifies them


def stored_arrivals(stored: RowFile, layout: ArrivalLayout) -> RowFile:
    """Return the description of arriving rows, which replaces the description ``stored`` of a file. Pure.

    Raises
    ------
    PlanError
        The rows have different lengths.
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
        checksums=np.empty(0, np.uint64),  # the source has verified the pages
        held=None,
    )
