"""Rows that come to a sweep portion by portion, as there are too many of them to hold: positions in a long array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from gloader.errors import PlanError
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.sweep import kernels
from gloader.ssd_store.sweep.wanted_rows import WantedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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
