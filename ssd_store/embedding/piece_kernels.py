"""Loops over rows that wait for their batches: matched by id, copied, and listed by batch.

A place is an index into an array of rows. The places of one batch form a linked list: ``heads`` has the first place of
each batch, ``following`` the next place of each place, and -1 ends a list. A batch's list is at its number modulo the
length of ``heads``, a power of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block, prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

# The first cache lines of a row are prefetched eight rows early, as in `cache.slot_kernels`.
_AHEAD: Final = 8
_LINES: Final = 8
_LINE_VALUES: Final = 16  # float32 values in a cache line


@njit(cache=True, nogil=True)
def match(ids: IdArray, wanted: IdArray, take: IdArray, at: IdArray) -> int:
    """Find the entries of ``ids`` (n,) in ``wanted`` (M,), ascending, and return their number.

    ``take`` (n,) receives the index of each found entry in ``ids``, and ``at`` (n,) its index in ``wanted``.
    """
    count = 0
    if wanted.shape[0] == 0:
        return count
    low, high = wanted[0], wanted[wanted.shape[0] - 1]
    # Most of many ids are not wanted. Their low bits, looked up in a table, tell most of them without a search.
    size = 1
    while ids.shape[0] > wanted.shape[0] and size < 4 * wanted.shape[0]:
        size *= 2
    may_be_wanted = np.full(size, size == 1)
    for i in range(wanted.shape[0]):
        may_be_wanted[wanted[i] & (size - 1)] = True
    for i in range(ids.shape[0]):
        row = ids[i]
        if row < low or row > high or not may_be_wanted[row & (size - 1)]:
            continue
        j = np.searchsorted(wanted, row)
        if wanted[j] == row:
            take[count] = i
            at[count] = j
            count += 1
    return count


@njit(cache=True, nogil=True)
def copy_rows(
    source: NDArray[np.float32], take: IdArray, target: NDArray[np.float32], at: IdArray, width: int
) -> None:
    """Copy the rows ``take`` (n,) of ``source`` to the rows ``at`` (n,) of ``target``; both flat, all in range."""
    lines = min(_LINES, (width + _LINE_VALUES - 1) // _LINE_VALUES)
    for i in range(take.shape[0]):
        if i + _AHEAD < take.shape[0]:
            for line in range(lines):
                prefetch(source, take[i + _AHEAD] * width + line * _LINE_VALUES)
        copy_block(target, at[i] * width, source, take[i] * width, width)


@njit(cache=True, nogil=True)
def link(
    places: IdArray,
    batches: IdArray,
    heads: NDArray[np.int32],
    counts: NDArray[np.int32],
    following: NDArray[np.int32],
) -> None:
    """Add each of ``places`` (n,) to the list of its batch; ``counts`` has the length of each list."""
    mask = heads.shape[0] - 1
    for i in range(places.shape[0]):
        index = batches[i] & mask
        following[places[i]] = heads[index]
        heads[index] = places[i]
        counts[index] += 1


@njit(cache=True, nogil=True)
def list_places(head: int, following: NDArray[np.int32], places: IdArray) -> None:
    """Write the list that starts at ``head`` to ``places``, which has the list's length."""
    place = head
    for i in range(places.shape[0]):
        places[i] = place
        place = following[place]
