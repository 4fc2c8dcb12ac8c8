"""Rows that come from other machines: in runs, each ascending, which lie behind each other as they arrive.

What arrives is a file in all but name: page p of it holds the bytes from 4096 p on, and slot s those from R s on. A
sweep over it deals rows out in the order of their slots. No id travels with a row, and none is kept for one: runs are
stretches of all rows, so the rows of a batch are brought into the order of arrival run by run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from gloader.core.ids import id_dtype
from gloader.errors import PlanError
from gloader.ssd_store.sweep.wanted_rows import collect_places, first_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.sources import SweepSource
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray

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
