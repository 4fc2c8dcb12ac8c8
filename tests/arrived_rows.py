"""Rows that arrive from other machines, as tests have them: any layout, and a source that plays it from memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.signals import Cancellation
from gloader.errors import ChannelClosedError
from gloader.ssd_store.sweep.supply import ArrivingRows
from gloader.ssd_store.sweep.wanted_rows import ArrivalLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.types import IdArray

PAGE = 4096
_GARBAGE = 0xA5  # in pages that nobody wants


class PlayedPages:
    """A `SweepSource` that gives out the pages of ``content``, and notes what it was asked for.

    Parameters
    ----------
    content : (P * 4096,) uint8
    error : raised by read number ``fail_at``, from 1; 0: by none
    wait_at : the read, from 1, that waits until it is cancelled; 0: none
    before_read : called with the number of each read, from 1
    """

    def __init__(
        self,
        content: NDArray[np.uint8],
        *,
        error: BaseException | None = None,
        fail_at: int = 0,
        wait_at: int = 0,
        before_read: Callable[[int], None] | None = None,
    ) -> None:
        self.content = content
        self._error = error
        self._fail_at = fail_at
        self._wait_at = wait_at
        self._before_read = before_read
        self.reads: list[tuple[int, int]] = []  # offset and length
        self.num_closed = 0

    def read(self, buffer: memoryview, offset: int, /, *, cancellation: Cancellation) -> None:
        past = sum(self.reads[-1]) if self.reads else 0
        assert offset % PAGE == len(buffer) % PAGE == 0 < len(buffer) <= 2**20
        assert past <= offset <= len(self.content) - len(buffer), "out of order, or behind the end"
        self.reads.append((offset, len(buffer)))
        if self._before_read is not None:
            self._before_read(len(self.reads))
        if self._error is not None and len(self.reads) == self._fail_at:
            raise self._error
        while len(self.reads) == self._wait_at:
            if cancellation.is_set():
                raise ChannelClosedError("waiting for rows was cancelled")
        buffer[:] = self.content[offset : offset + len(buffer)].data

    def close(self) -> None:
        self.num_closed += 1


def arrange(
    rows: IdArray,
    row_bytes: int,
    *,
    owners: int,
    rounds: int,
    rng: np.random.Generator,
    is_aligned: bool = True,
    dtype: Any = np.int32,
) -> ArrivalLayout:
    """Return a layout of ``rows``, ascending: ranges of owners, each in runs of any length, round after round.

    Parameters
    ----------
    rows : (K,) ascending
    row_bytes : R
    owners, rounds : W, and how often each sends; some send nothing, or a single row
    rng : draws where ranges and runs end
    is_aligned : begin every run on a page; otherwise anywhere behind the last
    dtype : of the row ids of the layout
    """
    cuts = np.sort(rng.integers(0, len(rows) + 1, owners - 1))
    ranges = np.concatenate([[0], cuts, [len(rows)]])
    bounds = [0]
    for first, last in zip(ranges[:-1].tolist(), ranges[1:].tolist(), strict=True):
        ends = np.sort(rng.integers(first, last + 1, rounds - 1))
        if last - first > 2 and rounds > 2:
            ends[:2] = first, first + 1  # an empty run, and one of one row
        bounds += [*np.sort(ends).tolist(), last]
    counts = np.diff(bounds)
    per_page = math.lcm(row_bytes, PAGE) // row_bytes
    first_slot, slot = np.zeros(len(counts), np.int64), 0
    for turn in range(rounds):
        for owner in rng.permutation(owners):
            run = owner * rounds + turn
            slot = -(-slot // per_page) * per_page if is_aligned else slot + int(rng.integers(3))
            first_slot[run] = slot
            slot += int(counts[run])
    return ArrivalLayout(
        rows=rows.astype(dtype),
        bounds=np.array(bounds),
        first_slot=first_slot,
        num_slots=slot,
        row_bytes=row_bytes,
    )


def slot_of_each(layout: ArrivalLayout) -> dict[int, int]:
    """Return the slot of each row, one by one."""
    return {
        int(layout.rows[i]): int(layout.first_slot[q] + i - layout.bounds[q])
        for q in range(len(layout.first_slot))
        for i in range(layout.bounds[q], layout.bounds[q + 1])
    }


def play(layout: ArrivalLayout, array: NDArray[Any], **how: Any) -> tuple[ArrivingRows, PlayedPages]:
    """Return the rows of ``array`` on their way, and what brings them.

    Parameters
    ----------
    layout : of those that come
    array : (N, F) all rows, of R bytes
    how : of `PlayedPages`
    """
    size, num_pages = layout.row_bytes, -(-layout.num_slots * layout.row_bytes // PAGE)
    content, is_sent = np.zeros(num_pages * PAGE, np.uint8), np.zeros(num_pages, np.bool_)
    for row, slot in slot_of_each(layout).items():
        content[slot * size : (slot + 1) * size] = array[row].view(np.uint8)
        is_sent[slot * size // PAGE : ((slot + 1) * size - 1) // PAGE + 1] = True
    content.reshape(-1, PAGE)[~is_sent] = _GARBAGE
    source = PlayedPages(content, **how)
    return ArrivingRows(layout=layout, source=source), source
