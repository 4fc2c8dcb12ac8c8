"""Pages of files that are kept in memory: those that were used last, as far as there is room."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.core.aligned_memory import mapped_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

# Beside a slot of 4,096 bytes: the page that it holds, and whether it was used since the hand came by.
_SLOT_BYTES = PAGE_BYTES + 4 + 1
_PAGE_ENTRY_BYTES = 4  # where each page is kept
_NOWHERE = -1


class KeptPages:
    """Copies of pages, evicted by CLOCK: a page that was used since the hand came by stays for another round.

    Thread-safe. What it gives out are copies, so that no page is held while it is used, and any room will do.

    Parameters
    ----------
    num_pages : pages that there are; they are numbered from 0
    max_bytes : for the pages and what is noted of them; less than one page needs: none is kept
    """

    def __init__(self, num_pages: int, *, max_bytes: int) -> None:
        room = max_bytes - _PAGE_ENTRY_BYTES * num_pages
        self.num_slots = min(max(room, 0) // _SLOT_BYTES, num_pages)
        self._lock = threading.Lock()
        self._hand = 0
        self._slot_of: LocalArray = np.full(num_pages, _NOWHERE, dtype=np.int32)
        self._page_in: LocalArray = np.full(self.num_slots, _NOWHERE, dtype=np.int32)
        self._was_used = np.zeros(self.num_slots, dtype=np.uint8)
        # Not touched: pages that never come take no memory.
        self._memory = mapped_bytes(PAGE_BYTES * max(self.num_slots, 1), touch=False)

    @property
    def num_bytes(self) -> int:
        """Bytes that are held when every slot is taken."""
        return _SLOT_BYTES * self.num_slots + _PAGE_ENTRY_BYTES * len(self._slot_of)

    def copy(self, first_page: int, positions: IdArray, out: NDArray[Any], missing: LocalArray) -> int:
        """Copy the elements at ``positions`` whose pages are kept; return how many are not.

        Parameters
        ----------
        first_page : page of element 0; elements lie one behind the other from its start on
        positions : (M,) elements of pages that there are
        out : (M,) of the elements' dtype; those whose pages are kept are written
        missing : (M,) receives the ranks in ``positions`` of the others, ascending
        """
        elements = self._memory.view(out.dtype).reshape(-1, PAGE_BYTES // out.itemsize)
        # Copied under the lock, so that no slot gets another page meanwhile.
        with self._lock:
            count: int = _copy_kept(
                first_page, positions, self._slot_of, elements, self._was_used, out, missing
            )
        return count

    def keep(self, pages: IdArray, content: NDArray[np.uint8]) -> None:
        """Keep ``pages`` (P,), whose verified bytes are ``content`` (P, 4096), in place of those that nobody used."""
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
    for i in range(pages.shape[0]):
        # Another thread may have read it, too.
        if slot_of[pages[i]] >= 0:
            continue
        # Ends within two rounds: the first clears what it passes.
        while was_used[hand]:
            was_used[hand] = 0
            hand = (hand + 1) % page_in.shape[0]
        if page_in[hand] >= 0:
            slot_of[page_in[hand]] = -1
        for byte in range(memory.shape[1]):  # a row at once takes numba seconds to compile, and longer to run
            memory[hand, byte] = content[i, byte]
        page_in[hand] = pages[i]
        slot_of[pages[i]] = hand
        hand = (hand + 1) % page_in.shape[0]
    return hand
